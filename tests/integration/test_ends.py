"""How a window ends beyond the table of ends (test_ends_table): limits, copies, and what an end leaves behind."""

from __future__ import annotations

import time

import pytest
from celery import Celery
from processes import wait_until
from system import SLOWLY, System

from celery_once_beat.windows import format_instant, task_id


def one_window(system: System, task: str, timeout: float = 60, *, worker: bool = True, **entry) -> str:
    """Let one window of a slow entry be claimed, and wait for its outcome; returns its start."""
    # Not so often that a second one is claimed before the entry is paused.
    system.entries = {"tick": {"task": f"apps.once_app.{task}", "every": 5.0, **entry}}
    if worker:
        system.worker().wait_ready()
    beat = system.beat()
    account = wait_until(lambda: system.store.account("tick"), "the entry is seen", 60)
    wait_until(lambda: system.account().cursor > account.born, "a window is claimed", 60)
    system.store.set_paused("tick", paused=True)
    start = format_instant(system.account().cursor)
    if worker:
        wait_until(lambda: not system.account().open, "the window has its outcome", timeout)
        beat.stop()
    return start


@pytest.mark.long
def test_a_task_that_kills_its_worker_each_time(system: System) -> None:
    """A window whose executions all die is abandoned after max_attempts, with an error in the log."""
    system.task = {"once_max_attempts": 2}
    system.settings = {"once_beat_start_timeout": 60.0}  # no copy for a worker that is slow: the beat finds the limit
    workers = [system.worker(f"worker{n}") for n in range(3)]
    for worker in workers:
        worker.wait_ready()
    one_window(system, "deadly", worker=False)
    (beat,) = [proc for proc in system.procs if proc not in workers]
    wait_until(lambda: system.outcomes().get("abandoned"), "the window is abandoned", 60)
    assert len(system.ledger.read("start")) == 2
    assert sum(worker.alive for worker in workers) == 1
    wait_until(lambda: "is abandoned" in beat.log, "it is said", 60)
    assert " ERROR/" in next(line for line in beat.log.splitlines() if "is abandoned" in line)


@pytest.mark.long
def test_retry_failed_after(system: System) -> None:
    """The same window runs again later, up to max_attempts, and then has failed."""
    system.settings = {"once_beat_retry_failed_after": 0.5}
    one_window(system, "ending", args=["fails"])
    assert system.outcomes() == {"failed": 1}
    assert [event["attempt"] for event in system.ledger.read("start")] == [1, 2, 3]


@pytest.mark.parametrize("terminate", [False, True])
def test_a_revoked_task(system: System, terminate: bool) -> None:
    """A revoked window is closed as revoked and not published again: before it began, or terminated while it ran."""
    system.worker().wait_ready()
    system.settings = {"once_beat_start_timeout": 60.0}
    control = Celery(broker=system.broker_url).control
    if terminate:
        start = one_window(system, "ending", args=["sleeps"], worker=False)
        wait_until(lambda: system.ledger.read("start"), "it runs", 60)
    else:
        start = one_window(system, "work", worker=False, options={"countdown": 10})  # until then it is revoked
    window = next(iter(system.account().open))
    control.revoke(task_id("once:", "tick", window), terminate=terminate, signal="SIGKILL")
    wait_until(lambda: system.outcomes() == {"revoked": 1}, "it is revoked", 60)
    wait_until(lambda: [event["outcome"] for event in system.ledger.read("closed")] == ["revoked"], "it is heard", 60)
    assert start == format_instant(window)
    assert len(system.ledger.read("start")) == int(terminate)


@pytest.mark.long
def test_grace(system: System) -> None:
    """A window that is older than its grace when a worker gets to it is missed, and isn't executed."""
    system.settings = SLOWLY
    one_window(system, "work", worker=False, options={"once": {"grace": 5.0}})
    wait_until(system.waiting, "the message waits", 60)
    window = next(iter(system.account().open))
    wait_until(lambda: time.time() > window.timestamp() + 6, "its grace passes", 60)
    worker = system.worker().wait_ready()
    wait_until(lambda: system.outcomes() == {"missed": 1}, "it is missed", 60)
    assert not system.ledger.read("start")
    worker.wait_log("is missed: it was too late")


@pytest.mark.long
def test_a_duplicate_leaves_no_trace(system: System) -> None:
    """A copy that is refused changes nothing in the result, with task_track_started too."""
    system.result_url = system.store_url
    system.settings = {  # no copy but ours
        "task_track_started": True, "once_beat_start_timeout": 600.0, "once_beat_lease": 60.0,
    }  # fmt: skip
    start = one_window(system, "work", worker=False)
    body = wait_until(system.queued, "the message waits", 60)[0]
    worker = system.worker(pool="solo").wait_ready()
    wait_until(lambda: system.outcomes() == {"done": 1}, "it is done", 60)
    app = Celery(broker=system.broker_url, backend=system.result_url, set_as_current=False)
    result = app.AsyncResult(task_id("once:", "tick", system.account().cursor))
    wait_until(lambda: result.state == "SUCCESS", "its result is stored", 60)
    before = result.backend.get(result.backend.get_key_for_task(result.id))
    system.put(body)
    wait_until(system.refused, "the copy is refused", 60)
    system.put(body)
    wait_until(lambda: len(system.refused()) == 2, "and the next", 60)
    assert result.backend.get(result.backend.get_key_for_task(result.id)) == before
    assert system.account().refused == 2
    assert len(system.ledger.read("start", start=start)) == 1
    assert worker.alive


def test_redelivery_an_hour_later(start_redis, system: System) -> None:
    """A finished window's message that comes back an hour later, when its markers have expired, is refused."""
    server = system.use_store(start_redis("valkey", faketime=0))
    one_window(system, "work", worker=False)
    body = wait_until(system.queued, "the message waits", 60)[0]
    system.worker(pool="solo").wait_ready()
    wait_until(lambda: system.outcomes() == {"done": 1}, "it is done", 60)
    for proc in system.procs:
        proc.end()
    server.set_clock_offset(3700)
    with server.client() as client:
        assert not [key for key in client.scan_iter("once:*") if ":run:" in str(key)], "the markers have expired"
    system.worker("later", pool="solo").wait_ready()
    system.put(body)
    wait_until(system.refused, "the message is refused", 60)
    assert len(system.ledger.read("start")) == 1
    assert system.outcomes() == {"done": 1}
