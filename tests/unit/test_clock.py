"""The server's time, as a beat knows it."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta, timezone

import pytest

from celery_once_beat.clock import ServerClock


def test_a_quick_round_trip_says_the_time() -> None:
    """The server answered in the middle of it, and the monotonic clock carries its time on."""
    clock = ServerClock()
    server = datetime(2030, 1, 1, tzinfo=timezone.utc)
    now = time.monotonic()
    clock.measured(server, now - 0.1, now)
    assert timedelta(0) <= clock.now() - server - timedelta(seconds=0.05) < timedelta(seconds=5)


def test_a_slow_round_trip_never_puts_the_clock_ahead() -> None:
    """A server that was frozen for six seconds answers at the end of them: no window may run early for it."""
    clock = ServerClock()
    frozen = time.monotonic()
    server = datetime(2030, 1, 1, tzinfo=timezone.utc)
    clock.measured(server, frozen - 6.0, frozen)
    assert clock.now() - server < timedelta(seconds=3)


def test_a_slow_round_trip_does_not_replace_a_better_one(caplog: pytest.LogCaptureFixture) -> None:
    """What was measured before goes on, and nobody is told that clocks differ for a slow answer."""
    clock = ServerClock()
    now = time.monotonic()
    clock.measured(datetime.now(timezone.utc), now, now)
    with caplog.at_level(logging.WARNING, "celery_once_beat.clock"):
        clock.measured(datetime.now(timezone.utc) - timedelta(seconds=6), now - 6.0, now)
    assert abs(clock.now() - datetime.now(timezone.utc)) < timedelta(seconds=1)
    assert not caplog.records


def test_clocks_apart_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """With the figure, and once for as long as it lasts."""
    clock = ServerClock()
    with caplog.at_level(logging.WARNING, "celery_once_beat.clock"):
        for _ in range(3):
            now = time.monotonic()
            clock.measured(datetime.now(timezone.utc) - timedelta(seconds=7), now, now)
    (record,) = caplog.records
    assert "7.0 s ahead of" in record.getMessage()
