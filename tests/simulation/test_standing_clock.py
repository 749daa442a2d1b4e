"""The clock of a simulated process stands still until it is set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.standing_clock import StandingClock, library

ASKS = """
import sys, time
from datetime import datetime, timezone
for _ in sys.stdin:
    time.sleep(0.001)
    now = datetime.now(timezone.utc)
    print(time.time_ns(), time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), now.isoformat(), flush=True)
"""


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_clock_that_stands_still(tmp_path: Path, goes_on: bool) -> None:
    """A process reads the times that are set, all of its clocks; with goes_on all but the wall clock are added."""
    clock = StandingClock(tmp_path / "clock", goes_on=goes_on)
    clock.set(1_772_409_600 * 10**9, 5, 7)
    env = {**os.environ, **clock.env(library(tmp_path))}
    with subprocess.Popen(
        [sys.executable, "-c", ASKS], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def ask() -> list[str]:
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline().split()

        first, again = ask(), ask()
        assert first[0] == again[0] == "1772409600000000000"
        assert first[3] == "2026-03-02T00:00:00+00:00"
        clock.set(1_772_409_601 * 10**9 + 2_000, 15, 27)
        later = ask()
        assert later[0] == "1772409601000002000"
        assert later[3] == "2026-03-02T00:00:01.000002+00:00"
        if goes_on:
            assert int(first[1]) < int(again[1]) < int(later[1])
            assert int(first[1]) > 10**6, "the machine's own"
        else:
            assert (first[1:3], again[1:3], later[1:3]) == (["5", "7"], ["5", "7"], ["15", "27"])
        process.stdin.close()
