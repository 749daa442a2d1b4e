"""Leaks: windows by the thousands through one beat and one worker leave nothing behind.

``make leaks`` lets 100,000 windows through and writes docs/reports/leaks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from leaks.load import Load
from leaks.report import report
from leaks.usage import Sample, slope
from processes import Processes
from servers import RedisServer

pytestmark = pytest.mark.xdist_group("leaks")

WARM_UP = 500


def limit(windows: int) -> float:
    """Bytes that a process may grow by for each window, over the second half of so many windows.

    What isn't a leak doesn't grow with the number of windows: the interpreter's allocator takes memory in pieces, of
    some 256 KiB in all until it has what it needs.
    """
    return 25 + 256 * 1024 / (windows / 2)


def growth(samples: list[Sample]) -> dict[str, float]:
    """Bytes a window by which each process grew over the second half."""
    half = (samples[0].windows + samples[-1].windows) / 2
    late = [sample for sample in samples if sample.windows >= half]
    return {name: slope([(s.windows, s.memories()[name]) for s in late]) for name in late[0].processes}


def test_windows_leave_nothing_behind(
    procs: Processes, start_redis: Callable[..., RedisServer], request: pytest.FixtureRequest
) -> None:
    """Thousands of windows on: the same memory, threads and connections of beat, worker and child, the same keys."""
    windows = request.config.getoption("windows")
    server = start_redis()
    load = Load(procs, server, server)
    load.run(WARM_UP)
    before = load.rest()
    samples = load.run(windows)
    after = load.rest()
    grown = growth(samples)
    text = report(windows, before, samples, after, grown, limit(windows), server)
    print(text)
    folder = request.config.getoption("report")
    if folder:
        path = Path(folder, "leaks.md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert load.outcomes() <= {"done", "missed"}
    assert max(grown.values()) < limit(windows), grown
    assert after.held() == before.held()
    assert after.keys == before.keys
    assert after.memory - before.memory < limit(windows) * windows, (before.memory, after.memory)
    load.end()


def test_a_leak_is_found(
    procs: Processes, start_redis: Callable[..., RedisServer], request: pytest.FixtureRequest
) -> None:
    """Where beat and the child keep some bytes for each window, the same check finds these two, and only these.

    Some: the first half has to fill what the allocator holds free after the warm-up, up to a few MiB in a beat, before
    the second half grows.
    """
    windows = min(request.config.getoption("windows"), 20_000)
    server = start_redis()
    load = Load(procs, server, server, LEAK=str(round(8 * limit(windows))))
    load.run(WARM_UP)
    grown = growth(load.run(windows))
    found = {name for name, bytes_a_window in grown.items() if bytes_a_window >= limit(windows)}
    assert found == {"beat", "child"}, grown
    print(grown)
    load.end()
