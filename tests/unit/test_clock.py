"""The server's time, as a beat knows it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest

from celery_once_beat.beat.server_clock import ServerClock
from celery_once_beat.clock import steady


@pytest.mark.parametrize("length", [0.001, 0.1, 6.0])
def test_a_round_trip_never_puts_the_clock_ahead(length: float) -> None:
    """The server may have answered at its very end: no window may run early for it. Monotonic time carries it on."""
    clock = ServerClock()
    received = steady()
    server = datetime(2030, 1, 1, tzinfo=timezone.utc)
    clock.measured(server, received - length, received)
    passed = clock.now() - server
    assert timedelta(0) <= passed <= timedelta(seconds=steady() - received)


def test_time_passes_in_suspend() -> None:
    """What is trusted for so long isn't trusted longer because the machine was suspended meanwhile.

    A time namespace moves the clock that counts suspend, and no other.
    """
    code = "import time; from celery_once_beat.clock import steady; print(steady() - time.monotonic())"
    apart = ["unshare", "--time", "--boottime", "86400"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no time namespaces on this machine, or not for this user")
    plain, suspended = (
        float(subprocess.run([*command, sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for command in ([], apart)
    )
    assert abs(suspended - plain - 86400) < 3600


def test_a_slow_round_trip_that_shows_a_jump_counts() -> None:
    """Where every round trip is slow, a server's clock that was set back or forward isn't missed for it."""
    clock = ServerClock()
    now = steady()
    clock.measured(datetime.now(timezone.utc), now, now)
    back = datetime.now(timezone.utc) - timedelta(hours=1)
    clock.measured(back, now - 1.0, now)
    assert abs(clock.now() - back) < timedelta(seconds=30)


def test_a_slow_round_trip_does_not_replace_a_better_one() -> None:
    """What was measured before goes on."""
    clock = ServerClock()
    now = steady()
    clock.measured(datetime.now(timezone.utc), now, now)
    clock.measured(datetime.now(timezone.utc) - timedelta(seconds=6), now - 6.0, now)
    assert abs(clock.now() - datetime.now(timezone.utc)) < timedelta(seconds=1)
