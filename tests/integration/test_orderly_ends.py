"""An end that waits is recorded before the next body of its process, and at every orderly end of that.

Ends wait for minutes here, instead of milliseconds, and no beat runs. Under prefork two windows wait at once, one of a
task with early acks and one with late acks.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from celery import VERSION, Celery
from processes import wait_until
from stage import T0, nth
from system import System

from celery_once_beat.rules import EntryPolicy
from celery_once_beat.store.model import ClaimRequest, Closed, Confirmation, LoadRequest, Published
from celery_once_beat.windows import Window, WindowKey, encode_headers
from celery_once_beat.worker import leases

BOTH = ("early", "late")


class Waiting:
    """A worker in which ends wait."""

    def __init__(self, system: System, pool: str, acks: tuple[str, ...], within: float, most: int, **more: Any) -> None:
        system.app, system.entries = "apps.drain_app", {}
        system.settings = {"once_beat_lease": 30.0, **more}
        self.system = system
        self.acks = acks
        self.app = Celery(broker=system.broker_url, set_as_current=False)
        most = 1 if pool == "solo" else most
        self.worker = system.worker(pool=pool, concurrency=most, env={"WITHIN": str(within)}).wait_ready()
        for each in acks:
            self.publish(each, f"drain.{each}", len(acks))
        wait_until(lambda: len(system.ledger.read("waits")) == len(acks), "the ends wait", 60)

    def publish(self, entry: str, task: str, *args: Any) -> None:
        window = Window(entry, nth(1), None)
        store = self.system.store
        store.load_many([LoadRequest(entry, "beat", "mark", 86400.0, EntryPolicy(), known=T0)])
        (claimed,) = store.claim_many("beat", [ClaimRequest(WindowKey(entry, window.start), T0, "mark")])
        store.confirm_many([Confirmation(WindowKey(entry, window.start), claimed.revision, Published.SENT, 600.0)])
        self.send(task, *args, headers=encode_headers(window))

    def send(self, task: str, *args: Any, **options: Any) -> None:
        self.app.send_task(task, args, queue=self.system.queue, **options)

    def check_open(self) -> None:
        assert [self.system.outcomes(each) for each in self.acks] == [{}] * len(self.acks), "nothing is recorded yet"

    def check_done(self) -> None:
        """Each window is done, and another worker may not begin it."""
        wait_until(lambda: all(map(self.system.outcomes, self.acks)), "the ends are recorded", 60)
        for each in self.acks:
            assert self.system.outcomes(each) == {"done": 1}
            assert isinstance(self.system.store.begin(WindowKey(each, nth(1)), "another", 30.0), Closed)
        assert len(self.system.ledger.read("start")) == len(self.acks)


@pytest.fixture
def waiting(system: System, close_later: Callable[[Any], Any]) -> Callable[..., Waiting]:
    def make(pool: str, acks: tuple[str, ...] = BOTH, within: float = 600.0, most: int = 2, **more: Any) -> Waiting:
        waiting = Waiting(system, pool, acks, within, most, **more)
        close_later(waiting.app)
        return waiting

    return make


#: In one process, a second window would take the end of the first along.
CASES = [("prefork", BOTH), *((pool, (acks,)) for pool in ("solo", "threads", "gevent") for acks in BOTH)]


@pytest.mark.parametrize("following", ["drain.next", "drain.once", "window"])
@pytest.mark.parametrize("pool", ["solo", "prefork", "threads", "gevent"])
@pytest.mark.long
def test_no_body_runs_before_it_is_recorded(waiting: Callable[..., Waiting], pool: str, following: str) -> None:
    """The next task may hold the GIL for an hour, or kill the process: what succeeded before stays so.

    The task has a window, is an OnceTask without one, or is a plain task.
    """
    case = waiting(pool, ("early",), most=1)
    case.check_open()
    if following == "window":
        case.publish("next", "drain.once")
    else:
        case.send(following)
    wait_until(lambda: case.system.ledger.read("dies"), "the next body has killed its process", 60)
    case.check_done()


@pytest.mark.parametrize(("pool", "acks"), CASES)
@pytest.mark.long
def test_a_worker_that_goes_on(waiting: Callable[..., Waiting], pool: str, acks: tuple[str, ...]) -> None:
    """Nothing comes next that could take an end along: a thread records it, whatever the pool."""
    waiting(pool, acks, within=leases.WITHIN).check_done()


SOFT = {"worker_soft_shutdown_timeout": 1.0, "worker_enable_soft_shutdown_on_idle": True}
#: How a worker is told to end, its settings, and what it prints then. With SIGHUP it becomes another program, which
#: ends at once here, since it isn't started by the ``celery`` script, and runs no more functions of atexit's.
SHUTDOWNS = {
    "warm": (signal.SIGTERM, {}, "Warm shutdown"),
    "soft": (signal.SIGQUIT, SOFT, "Initiating Soft Shutdown"),
    "cold": (signal.SIGQUIT, {}, ""),
    "restart": (signal.SIGHUP, {}, "ImportError: attempted relative import"),
}


@pytest.mark.parametrize(("pool", "acks"), CASES)
@pytest.mark.parametrize("how", SHUTDOWNS)
@pytest.mark.long
def test_a_shutdown(waiting: Callable[..., Waiting], pool: str, acks: tuple[str, ...], how: str) -> None:
    """Whatever waits is recorded before the worker has ended, though Celery sends no worker_shutdown if it is cold."""
    if how == "soft" and VERSION < (5, 5):
        pytest.skip("Celery 5.4 has none")
    if how == "cold" and pool == "gevent" and VERSION < (5, 7):
        pytest.skip("Celery's handler may fail, and the worker goes on")
    number, settings, line = SHUTDOWNS[how]
    case = waiting(pool, acks, **settings)
    case.check_open()
    case.worker.signal(number, main_only=True)
    case.worker.wait_log(line)
    case.worker.wait(60)
    assert all(map(case.system.outcomes, acks)), "by then"
    case.check_done()


@pytest.mark.parametrize("limit", [{"worker_max_tasks_per_child": 1}, {"worker_max_memory_per_child": 1}], ids=str)
def test_a_child_that_has_done_its_work(waiting: Callable[..., Waiting], limit: dict[str, int]) -> None:
    """max_tasks_per_child and max_memory_per_child: it records what waits before it makes way for another."""
    waiting("prefork", **limit).check_done()


@pytest.mark.parametrize("how", ["restarts", "shrinks"])
@pytest.mark.long
def test_a_pool_that_changes(waiting: Callable[..., Waiting], how: str) -> None:
    """pool_restart: each child ends behind its next task; pool_shrink, as autoscale: they record what waits."""
    case = waiting("prefork", worker_pool_restarts=True)
    case.check_open()
    if how == "shrinks":
        case.app.control.pool_shrink(2, reply=True, timeout=5)
    else:
        case.app.control.pool_restart(reply=True, timeout=5)
        for _ in case.acks:
            case.send("drain.sleeps", 1.0)
    case.check_done()
