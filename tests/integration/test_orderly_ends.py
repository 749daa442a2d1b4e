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
from celery_once_beat.store.model import ClaimRequest, Closed, Confirmation, LoadRequest
from celery_once_beat.windows import Window, WindowKey, encode_headers
from celery_once_beat.worker import leases

POOLS = ["prefork", "threads", "gevent"]
BOTH = ("early", "late")


class Waiting:
    """A worker in which ends wait."""

    def __init__(
        self,
        system: System,
        pool: str,
        acks: tuple[str, ...],
        *,
        within: float = 600.0,
        concurrency: int = 2,
        beside: bool = False,
        **settings: Any,
    ) -> None:
        system.app, system.entries = "apps.drain_app", {}
        system.settings = {"once_beat_lease": 30.0, **settings}
        self.system = system
        self.acks = acks
        self.app = Celery(broker=system.broker_url, set_as_current=False)
        self.worker = system.worker(
            pool=pool, concurrency=1 if pool == "solo" else concurrency, env={"WITHIN": str(within)}
        ).wait_ready()
        if beside:
            self.keep_busy()
        for each in acks:
            self.publish(each, f"drain.{each}", len(acks))
        wait_until(lambda: len(system.ledger.read("waits")) == len(acks), "the ends wait", 60)

    def publish(self, entry: str, task: str, *args: Any) -> None:
        window = Window(entry, nth(1), None)
        store = self.system.store
        store.load_many([LoadRequest(entry, "beat", "mark", 86400.0, EntryPolicy(), known=T0)])
        (claimed,) = store.claim_many("beat", [ClaimRequest(WindowKey(entry, window.start), T0, "mark")])
        store.confirm_many([Confirmation(WindowKey(entry, window.start), claimed.revision, 1, 600.0)])
        self.send(task, *args, headers=encode_headers(window))

    def send(self, task: str, *args: Any, **options: Any) -> str:
        return str(self.app.send_task(task, args, queue=self.system.queue, **options).id)

    def keep_busy(self, seconds: float = 600.0) -> list[str]:
        """Let a task without a window run in each child."""
        sent = [self.send("drain.sleeps", seconds) for _ in self.acks]
        wait_until(lambda: len(self.system.ledger.read("sleeps")) == len(sent), "they run", 60)
        return sent

    def check_open(self) -> None:
        assert [self.system.outcomes(each) for each in self.acks] == [{}] * len(self.acks), "nothing is recorded yet"

    def check_done(self) -> None:
        """Each window is done, and another worker may not begin it."""
        for each in self.acks:
            assert self.system.outcomes(each) == {"done": 1}
            begun = self.system.store.begin(WindowKey(each, nth(1)), "another", 30.0)
            assert isinstance(begun, Closed)
        assert len(self.system.ledger.read("start")) == len(self.acks)

    def check_done_soon(self) -> None:
        wait_until(lambda: all(self.system.outcomes(each) for each in self.acks), "the ends are recorded", 60)
        self.check_done()

    def check_done_at_end(self) -> None:
        """The worker ends, and then they are done."""
        self.worker.wait(60)
        self.check_done()


@pytest.fixture
def waiting(system: System, close_later: Callable[[Any], Any]) -> Callable[..., Waiting]:
    def make(pool: str, acks: tuple[str, ...] = BOTH, **settings: Any) -> Waiting:
        waiting = Waiting(system, pool, acks, **settings)
        close_later(waiting.app)
        return waiting

    return make


#: In one process, a second window would take the end of the first along.
CASES = [("prefork", BOTH), *((pool, (acks,)) for pool in ("solo", "threads", "gevent") for acks in BOTH)]


@pytest.mark.parametrize("following", ["drain.next", "drain.once", "window"])
@pytest.mark.parametrize("pool", ["solo", *POOLS])
@pytest.mark.long
def test_no_body_runs_before_it_is_recorded(waiting: Callable[..., Waiting], pool: str, following: str) -> None:
    """The next task may hold the GIL for an hour, or kill the process: what succeeded before stays so.

    The task has a window, is an OnceTask without one, or is a plain task.
    """
    case = waiting(pool, ("early",), concurrency=1)
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
    waiting(pool, acks, within=leases.WITHIN).check_done_soon()


@pytest.mark.parametrize(("pool", "acks"), CASES)
@pytest.mark.long
def test_a_warm_shutdown(waiting: Callable[..., Waiting], pool: str, acks: tuple[str, ...]) -> None:
    """SIGTERM: whatever waits is recorded before the worker has ended."""
    case = waiting(pool, acks)
    case.check_open()
    case.worker.terminate()
    case.check_done_at_end()


@pytest.mark.skipif(VERSION < (5, 5), reason="Celery 5.4 has none")
@pytest.mark.parametrize(("pool", "acks"), CASES)
@pytest.mark.long
def test_a_soft_shutdown(waiting: Callable[..., Waiting], pool: str, acks: tuple[str, ...]) -> None:
    """SIGQUIT, and some time for tasks to end: whatever waits is recorded before the worker has ended."""
    case = waiting(pool, acks, worker_soft_shutdown_timeout=1.0, worker_enable_soft_shutdown_on_idle=True)
    case.check_open()
    case.worker.signal(signal.SIGQUIT, main_only=True)
    case.worker.wait_log("Initiating Soft Shutdown")
    case.check_done_at_end()


@pytest.mark.parametrize(("pool", "acks"), CASES)
@pytest.mark.long
def test_a_cold_shutdown(waiting: Callable[..., Waiting], pool: str, acks: tuple[str, ...]) -> None:
    """SIGQUIT: whatever waits is recorded before the worker has ended, though Celery sends no worker_shutdown then."""
    if pool == "gevent" and VERSION < (5, 7):
        pytest.skip("Celery's handler may fail, and the worker goes on")
    case = waiting(pool, acks)
    case.check_open()
    case.worker.signal(signal.SIGQUIT, main_only=True)
    case.check_done_at_end()


@pytest.mark.parametrize(("pool", "acks"), CASES)
@pytest.mark.long
def test_a_restart(waiting: Callable[..., Waiting], pool: str, acks: tuple[str, ...]) -> None:
    """SIGHUP: the worker becomes another program, and runs no more functions of atexit's then.

    That program ends at once here, since it isn't started by the ``celery`` script.
    """
    case = waiting(pool, acks)
    case.check_open()
    case.worker.signal(signal.SIGHUP, main_only=True)
    case.worker.wait_log("ImportError: attempted relative import")
    case.check_done_at_end()


@pytest.mark.parametrize("limit", [{"worker_max_tasks_per_child": 1}, {"worker_max_memory_per_child": 1}], ids=str)
def test_a_child_that_has_done_its_work(waiting: Callable[..., Waiting], limit: dict[str, int]) -> None:
    """max_tasks_per_child and max_memory_per_child: it records what waits before it makes way for another."""
    waiting("prefork", **limit).check_done_soon()


@pytest.mark.long
def test_a_pool_that_restarts(waiting: Callable[..., Waiting]) -> None:
    """pool_restart: each child ends behind its next task, and records what waits."""
    case = waiting("prefork", worker_pool_restarts=True)
    case.check_open()
    case.app.control.pool_restart(reply=True, timeout=5)
    case.keep_busy(1.0)
    case.check_done_soon()


@pytest.mark.long
def test_a_pool_that_shrinks(waiting: Callable[..., Waiting]) -> None:
    """pool_shrink, and so does autoscale: the children that go record what waits."""
    case = waiting("prefork")
    case.check_open()
    case.app.control.pool_shrink(2, reply=True, timeout=5)
    case.check_done_soon()
