"""Windows that wait for each other, or for a slot of a limit: real beats and workers, and the deaths of both."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from processes import wait_until
from system import System, rare

#: Longer than its interval.
LONG = {"task": "apps.once_app.work", "every": 1.0, "args": [1.5]}
#: Nobody dies of it on a busy machine.
LEASE = {"once_beat_lease": 30.0, "once_beat_start_timeout": 600.0}
SHARED = {"once": {"limit": "reports"}}


def most_at_once(system: System, entries: set[str] | None = None) -> int:
    """How many bodies ran at the same time at most, by the ledger."""
    running, most = 0, 0
    events = (event for event in system.ledger.read() if event["kind"] in {"start", "finish"})
    for event in sorted(events, key=lambda event: (event["mono"], event["kind"] == "start")):
        if entries is None or event["entry"] in entries:
            running += 1 if event["kind"] == "start" else -1
            most = max(most, running)
    return most


def waiting(system: System, number: int, entry: str = "tick") -> None:
    """Wait until so many windows wait for their turn, or for a slot."""

    def there() -> bool:
        account = system.store.account(entry)
        return account is not None and sum(window.waits for window in account.open.values()) >= number

    wait_until(there, f"{number} windows of {entry} wait", 60)


def claimed(system: System, number: int, entry: str = "tick") -> None:
    """Wait until so many windows are open or have ended."""

    def there() -> bool:
        account = system.store.account(entry)
        return account is not None and len(account.open) + sum(account.counts.values()) >= number

    wait_until(there, f"{number} windows of {entry} are claimed", 60)


def test_what_waited_begins_soon(system: System) -> None:
    """For its turn or for a slot: a beat that lives finds it at once, not only at its usual sweep, 5 s later."""
    once, soon = {"overlap": "buffer_all"}, rare()
    system.entries = {"turn": {"task": "apps.once_app.work", "every": 1.0, "args": [1.2], "options": {"once": once}}}
    for number in range(4):
        system.entries[f"slot-{number}"] = {"task": "apps.once_app.work", "args": [1.2], "options": SHARED, **soon}
    system.settings = {**LEASE, "once_beat_limits": {"reports": 1}, "once_beat_recovery_interval": 5.0}
    system.worker(concurrency=3).wait_ready()
    beat = system.beat()

    def ran(entries: set[str]) -> list[tuple[float, float]]:
        ends = [event for event in system.ledger.read("finish") if event["entry"] in entries]
        starts = [system.ledger.read("start", entry=end["entry"], fence=end["fence"])[0] for end in ends]
        return sorted((start["mono"], end["mono"]) for start, end in zip(starts, ends, strict=True))

    for entries in ({"turn"}, system.entries.keys() - {"turn"}):
        times = wait_until(lambda of=entries: len(found := ran(of)) >= 4 and found, "four have run", 60)
        gaps = [start - end for (_, end), (start, _) in itertools.pairwise(times[:4])]
        assert 0 < sorted(gaps)[1] < 3, gaps
    begun = [event["start"] for event in system.ledger.read("start", entry="turn")]
    assert begun == sorted(begun)
    assert "is overdue" not in beat.log
    beat.stop()


@pytest.mark.parametrize("by", ["app", "task", "entry"])
@pytest.mark.long
def test_skip(system: System, by: str) -> None:
    """Of an entry's windows one runs at a time; those that come meanwhile are skipped, recorded, and the law holds."""
    system.entries = {"tick": {**LONG, "args": [3.5]}}
    system.settings = {"once_beat_lease": 30.0}  # nobody dies, and nobody is to be taken for dead
    if by == "app":
        system.settings["once_beat_overlap"] = "skip"
    elif by == "task":
        system.task = {"once_overlap": "skip"}
        system.settings["once_beat_overlap"] = "allow"
    else:
        system.entries["tick"]["options"] = {"once": {"overlap": "skip"}}
    worker, beat = system.worker(concurrency=3).wait_ready(), system.beat()
    wait_until(lambda: system.outcomes().get("skipped", 0) >= 4, "windows are skipped", 60)
    system.settle([beat])
    outcomes = system.outcomes()
    assert set(outcomes) == {"done", "skipped"}
    times = sorted((event["mono"], event["kind"]) for event in system.ledger.read("start", "finish"))
    running = 0
    for _, kind in times:
        running += 1 if kind == "start" else -1
        assert running <= 1, times
    assert "is skipped: another window of its entry" in worker.log
    system.check_conservation()


@pytest.mark.parametrize("point", ["worker.body", "worker.finished", "worker.begun", "worker.before_finish"])
@pytest.mark.long
def test_a_worker_that_dies(system: System, point: str) -> None:
    """The window that it ran goes before those that wait; they all run, in their order but for that one."""
    system.entries = {"tick": {**LONG, "options": {"once": {"overlap": "buffer_all"}}}}
    system.settings = {"once_beat_lease": 4.0}
    system.kill_point = f"{point}:KILL"
    beats, _ = system.pair(concurrency=2)
    system.wait_fired()
    claimed(system, 6)
    system.settle(beats, timeout=120)
    system.check_each_once(body_again=1)
    # One that was killed before its end was recorded has no finish at all, or two.
    times = [(event["mono"], event["start"]) for event in system.ledger.read("start")]
    distinct = list(dict.fromkeys(start for _, start in sorted(times)))
    assert distinct == sorted(distinct)


def shared(entries: int, seconds: float = 1.0, **once: Any) -> dict[str, Any]:
    return {
        f"tick-{number}": {
            "task": "apps.once_app.work",
            "every": 2.0,
            "args": [seconds],
            "options": {"once": {"limit": "reports", **once}},
        }
        for number in range(entries)
    }


@pytest.mark.parametrize("by", ["task", "entry"])
@pytest.mark.long
def test_a_limit_of_two(system: System, by: str) -> None:
    """Over all entries two run at once, and each window runs."""
    system.entries = shared(4)
    if by == "task":
        for entry in system.entries.values():
            del entry["options"]
        system.task = {"once_limit": "reports"}
    system.settings = {**LEASE, "once_beat_limits": {"reports": 2}}
    workers = [system.worker(f"worker{n}", concurrency=3).wait_ready() for n in (1, 2)]
    beat = system.beat()
    for entry in system.entries:
        claimed(system, 3, entry)
    system.settle([beat], *system.entries, timeout=120)
    for entry in system.entries:
        system.check_each_once(entry)
    assert most_at_once(system) == 2
    assert "waits for a slot of the limit 'reports'" in workers[0].log + workers[1].log
    with system.client() as client:
        assert client.zcard("once:limit:{reports}:slots") == 0
        assert client.zcard("once:limit:{reports}:waiting") == 0


@pytest.mark.long
def test_a_worker_that_doesnt_know_the_limit(system: System) -> None:
    """It leaves the messages to those that do, and says so once."""
    system.entries = shared(1)
    system.settings = {**LEASE, "once_beat_limits": {"reports": 1}}
    lacks = system.worker("lacks", env={"settings": {"once_beat_limits": {"other": 1}}}).wait_ready()
    beat = system.beat()
    wait_until(lambda: "limit 'reports': found in a message" in lacks.log, "it says so", 60)
    assert not system.ledger.read("start")
    system.worker("knows").wait_ready()
    wait_until(lambda: len(system.ledger.read("finish")) >= 2, "the other one runs them", 60)
    assert lacks.log.count("limit 'reports': found in a message") == 1
    system.settle([beat], *system.entries, timeout=120)
    assert {event["worker"].partition("@")[0] for event in system.ledger.read("start")} == {"knows"}


@pytest.mark.long
def test_a_limit_that_is_gone(system: System) -> None:
    """Windows whose messages name a limit that no setting defines any more run, and no copy goes round for ever."""
    system.entries = shared(1, 0.1)
    system.settings = {**LEASE, "once_beat_limits": {"reports": 1}}
    beat = system.beat("before")
    wait_until(lambda: system.waiting() >= 2, "their messages wait in the queue", 60)
    beat.stop()
    system.entries = {"tick-0": {**system.entries["tick-0"], "options": {}}}
    del system.settings["once_beat_limits"]
    beat = system.beat("after").wait_ready()
    (copy, *_) = system.queued()
    worker = system.worker(concurrency=2).wait_ready()
    system.settle([beat], *system.entries, timeout=120)
    system.check_each_once("tick-0")
    gone = "discarded, no worker that knows its limit 'reports'"
    before = worker.log.count(gone)
    system.put(copy)
    wait_until(lambda: worker.log.count(gone) > before, "a late copy goes, too", 60)
