"""Leaks: windows by the thousands through one beat and one worker, and outages by the dozen, leave nothing behind.

``make leaks`` lets 100,000 windows through and writes docs/reports/leaks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from leaks.load import PATIENCE, Load
from leaks.report import report
from leaks.usage import Sample, slope
from pages import write
from processes import Processes, wait_until
from servers import RedisServer

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("leaks")]

WARM_UP = 500
OUTAGES = 16


#: What isn't a leak doesn't grow with the number of windows: it is taken once, in pieces. Of a process: the arenas of
#: Python's allocator, of 1 MiB each since 3.10, one of which may come late. Of the server: its tables.
PIECES = 2 * 1024 * 1024
PIECES_OF_SERVER = 256 * 1024


@pytest.fixture
def preloaded() -> Callable[[], None]:
    """No process is a fork: what it shares with its parent at first would be counted as growth later."""
    return lambda: None


def limit(windows: int, pieces: int = PIECES) -> float:
    """Bytes a window by which so many windows may let something grow."""
    return 25 + pieces / windows


def growth(samples: list[Sample]) -> dict[str, float]:
    """Bytes a window by which each process grew over the second half."""
    half = (samples[0].windows + samples[-1].windows) / 2
    late = [sample for sample in samples if sample.windows >= half]
    return {name: slope([(s.windows, s.memories()[name]) for s in late]) for name in late[0].processes}


def test_windows_leave_nothing_behind(
    procs: Processes, start_redis: Callable[..., RedisServer], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Thousands of windows on: the same memory, threads and connections of beat, worker and child, the same keys."""
    windows = request.config.getoption("windows")
    server = start_redis()
    load = Load(procs, tmp_path, server, server)
    load.run(WARM_UP)
    (before, _), kept = load.at_rest(), load.keys()
    samples = load.run(windows)
    after, _ = load.at_rest()
    grown = growth(samples)
    most = limit(windows // 2)
    write(request.config.getoption("report"), "leaks.md",
          report(windows, before, samples, after, grown, most, server))  # fmt: skip
    assert load.outcomes() <= {"done", "missed"}
    assert max(grown.values()) < most, grown
    # What may come late, and once: the thread of beat that asks for results, if a slow machine made it publish a window
    # again; a second connection of the child, if its thread renewed a lease just as its body asked.
    late = {"beat": (1, 0), "child": (0, 1)}
    for name, (threads, sockets) in after.held().items():
        more = (threads - before.held()[name][0], sockets - before.held()[name][1])
        assert more in ((0, 0), late.get(name)), (name, more)
    assert load.keys() == kept
    assert after.memory - before.memory < limit(windows, PIECES_OF_SERVER) * windows, (before.memory, after.memory)
    load.end()


def test_a_leak_is_found(
    procs: Processes, start_redis: Callable[..., RedisServer], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Where beat and the child keep some bytes for each window, the same check finds these two, and only these.

    Some: the first half has to fill what the allocator holds free after the warm-up, up to a few MiB in a beat, before
    the second half grows.
    """
    windows = min(request.config.getoption("windows"), 20_000)
    most = limit(windows // 2)
    server = start_redis()
    load = Load(procs, tmp_path, server, server, LEAK=str(round(4 * most)))
    load.run(WARM_UP)
    grown = growth(load.run(windows))
    found = {name for name, bytes_a_window in grown.items() if bytes_a_window >= most}
    assert found == {"beat", "child"}, grown
    print(grown)
    load.end()


def test_outages_leave_nothing_behind(
    procs: Processes, start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    """The store is gone sixteen times, killed or silent: no thread, connection or memory is left of it.

    Beat and worker have what they had before. The child may have three connections more, however many the outages: one
    to the broker, for messages that it put back, and two to the store, where it had none at rest: its own, and one of
    renewals that were sent beside an end.
    """
    server = start_redis(appendonly=True)
    load = Load(procs, tmp_path, server, start_redis(), entries=20, COLLECT="1")
    before, connections = load.at_rest()
    samples = []
    for number in range(OUTAGES):
        since = len(load.beat.log)
        load.resume()
        if number % 4 == 3:
            with server.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
            server.pause()
        else:
            server.kill()
        load.beat.wait_log("nothing is claimed until Redis can be used again", PATIENCE, since)
        if number % 4 == 3:
            server.resume()
        else:
            server.restart()
        load.beat.wait_log("Redis can be used again, after", PATIENCE, since)
        samples += load.run(20)[-1:]
    after, _ = load.at_rest()
    found = [(sample.held(), sample.memories()) for sample in samples]
    print(*found, sep="\n")
    threads, _ = after.held()["child"]
    assert {**after.held(), "child": before.held()["child"]} == before.held(), found
    assert threads == before.held()["child"][0], found

    def more() -> int:
        return load.sample().processes["child"].sockets - before.processes["child"].sockets

    # The child may open one of the three only now, and what it closed a server may still have.
    wait_until(lambda: load.clients() <= connections + more(), "the servers have no connection more", PATIENCE)
    assert more() <= 3, found
    for name in before.processes:
        # What each outage leaves behind grows over any four in a row, of which one is silent; what is taken once, in
        # pieces, grows less. A connection with its buffers and its parser is some 100 KiB.
        memory = [sample.memories()[name] for sample in samples]
        assert min(later - sooner for sooner, later in zip(memory, memory[4:], strict=False)) < 250_000, (name, found)
    load.end()
