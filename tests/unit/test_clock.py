"""The server's time, as a beat knows it."""

from __future__ import annotations

import logging
import re
import time
from datetime import datetime, timedelta, timezone

import pytest

from celery_once_beat.clock import ServerClock


@pytest.mark.parametrize("length", [0.001, 0.1, 6.0])
def test_a_round_trip_never_puts_the_clock_ahead(length: float) -> None:
    """The server may have answered at its very end: no window may run early for it. Monotonic time carries it on."""
    clock = ServerClock()
    received = time.monotonic()
    server = datetime(2030, 1, 1, tzinfo=timezone.utc)
    clock.measured(server, received - length, received)
    passed = clock.now() - server
    assert timedelta(0) <= passed <= timedelta(seconds=time.monotonic() - received)


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
    assert re.search(r" 7\.\d s ahead of", record.getMessage())
