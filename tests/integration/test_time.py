"""Clocks that jump while the system runs, and days that pass."""

from __future__ import annotations

import pytest
from processes import wait_until
from system import System

pytestmark = pytest.mark.long

DAY = 86_400.0


def test_clocks_that_jump(system: System) -> None:
    """Clocks of beats and workers jump by an hour in both directions, as they run: each window once, none early."""
    worker = system.worker(pool="solo", faketime=0).wait_ready()
    beats = [system.beat(f"beat{n}", faketime=0) for n in (1, 2)]
    system.wait_done(2)
    for offset in (3600.0, -3600.0, 0.0):
        beats[0].set_clock_offset(offset)
        worker.set_clock_offset(-offset)
        system.wait_done(2)
        beats[1].set_clock_offset(offset)
        system.wait_done(2)
    beats[0].wait_log("clock is [0-9.]+ s ahead of the Redis server's")
    system.settle(beats)
    system.check_each_once()
    assert system.latest_early() <= 0


def test_workers_down_for_days(start_redis, system: System) -> None:
    """Windows that waited three days for a worker all run when there is one, each once."""
    server = system.use_store(start_redis(faketime=0))
    beat = system.beat(faketime=0)
    wait_until(lambda: system.waiting() >= 5, "five windows wait", 60)
    system.store.set_paused("tick", paused=True)
    beat.stop()
    waiting = len(system.account().open)
    for days in (0.5, 1.5, 3):
        # A day at a time, with a beat that lives: nobody consumes the queue, so it gets no copies.
        server.set_clock_offset(days * DAY)
        beat = system.beat(faketime=days * DAY)
        beat.wait_log("consumes its queue", 60)
        beat.stop()
        assert system.waiting() == waiting
    assert len(system.account().open) == waiting, "nothing was given up"
    worker = system.worker(pool="solo", faketime=3 * DAY).wait_ready()
    wait_until(lambda: not system.account().open, "all have their outcome", 60)
    system.check_each_once()
    assert worker.alive
