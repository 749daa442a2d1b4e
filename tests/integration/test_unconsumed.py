"""A queue that nobody consumes: its messages get no copies, and all windows run once somebody does."""

from __future__ import annotations

import pytest
from celery import Celery
from processes import wait_until
from stage import Stage
from system import System

from celery_once_beat.windows import format_instant


@pytest.mark.parametrize("purged", [False, True])
def test_a_worker_comes_when_windows_have_waited_for_it(system: System, purged: bool) -> None:
    """Until then each window has one message; then each runs once, though the queue was purged meanwhile."""
    system.entries = {"tick": {"task": "apps.once_app.work", "every": 1.0}}
    system.settings = {"once_beat_start_timeout": 1.0}
    beats = [system.beat(f"beat{number}").wait_ready() for number in (1, 2)]
    waits = "no worker that knows windows consumes its queue"
    wait_until(lambda: any(waits in beat.log for beat in beats), "beats see that", 60)
    wait_until(lambda: len(system.account().open) >= 5, "five wait", 60)
    for beat in beats[1:]:
        beat.stop()
    system.store.set_paused("tick", paused=True)
    number = len(system.account().open)
    wait_until(lambda: system.waiting() == number, "each has one message", 60)
    if purged:
        assert system.purge() == number
    system.worker().wait_ready()
    wait_until(lambda: not system.account().open, "all have ended", 60)
    assert system.recorded() == dict.fromkeys(system.starts(), 1)
    beats[0].stop()


def test_what_a_worker_consumes_may_change(system: System) -> None:
    """It says so by itself; a worker that has ended is heard of no more."""
    system.entries = {"tick": {"task": "apps.once_app.work", "every": 600.0}}
    worker = system.worker().wait_ready()

    def consumed() -> list[set[str]]:
        found, unreadable = system.store.workers(system.store.snapshot().now, 600.0)
        assert not unreadable
        return [each.queues for each in found.values()]

    wait_until(lambda: consumed() == [{system.queue}], "it has said what it consumes", 60)
    with Celery(broker=system.broker_url, set_as_current=False) as app:
        app.control.add_consumer("by night", reply=True, timeout=10, limit=1)
        wait_until(lambda: consumed() == [{system.queue, "by night"}], "it consumes one more", 60)
        app.control.cancel_consumer(system.queue, reply=True, timeout=10, limit=1)
        wait_until(lambda: consumed() == [{"by night"}], "it has given up the first", 90)
    worker.stop()


def test_copies_of_a_task_that_no_worker_knows_get_rare(stage: Stage) -> None:
    """Each is discarded at once, and the next one comes at doubling steps, or an eighth of the window's age later."""
    stage.reach("published")
    for _ in range(8):
        stage.recover()
        stage.confirm(wait=86_400.0)
    field = f"w:{format_instant(stage.start)}"
    words = stage.raw.hget(stage.entry_key, field).split(" ")
    words[5] = str(stage.now() - 960_000)  # its claim
    stage.raw.hset(stage.entry_key, field, " ".join(words))
    before = stage.now()
    stage.store.close_window(stage.window, "?", "unknown", 0)
    assert before + 120_000 <= stage.deadline() <= 2 * stage.now() - before + 120_001
