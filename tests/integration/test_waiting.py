"""Windows that wait for each other, or for a slot of a limit: real beats and workers, and the deaths of both."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from celery import Celery
from processes import wait_until
from system import System, rare

from celery_once_beat.windows import task_id

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


@pytest.mark.parametrize("by", ["app", "task", "entry"])
@pytest.mark.long
def test_all_run_one_after_another(system: System, by: str) -> None:
    """Whoever says it: each window runs, in order, and no two at once."""
    system.entries = {"tick": dict(LONG)}
    system.settings = dict(LEASE)
    if by == "app":
        system.settings["once_beat_overlap"] = "buffer_all"
    elif by == "task":
        system.task = {"once_overlap": "buffer_all"}
    else:
        system.entries["tick"]["options"] = {"once": {"overlap": "buffer_all"}}
    system.worker(concurrency=3).wait_ready()
    beat = system.beat()
    claimed(system, 6)
    system.settle([beat], timeout=90)
    begun = [event["start"] for event in system.ledger.read("start")]
    assert begun == sorted(begun)
    assert most_at_once(system) == 1
    system.check_each_once()


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


@pytest.mark.long
def test_what_waits_while_no_beat_lives(system: System) -> None:
    """It begins once a beat lives again, in its order."""
    system.entries = {"tick": {**LONG, "args": [3.0], "options": {"once": {"overlap": "buffer_all"}}}}
    system.settings = dict(LEASE)
    system.worker(concurrency=2).wait_ready()
    beat = system.beat()
    waiting(system, 3)
    beat.kill()
    system.count_as_gone(beat)
    wait_until(lambda: all(each.waits for each in system.account().open.values()), "the one that ran has ended", 60)
    system.store.pause("tick")
    begun = len(system.ledger.read("start"))
    assert len(system.account().open) >= 3
    beat = system.beat("second-beat")
    system.settle([beat])
    starts = [event["start"] for event in system.ledger.read("start")]
    assert len(starts) >= begun + 3
    assert starts == sorted(starts)
    system.check_each_once()


@pytest.mark.long
def test_one_waits(system: System) -> None:
    """Of those that come while one runs, one runs next; the others are skipped, and the law holds."""
    system.entries = {"tick": {**LONG, "args": [3.5], "options": {"once": {"overlap": "buffer_one"}}}}
    system.settings = dict(LEASE)
    system.worker(concurrency=3).wait_ready()
    beat = system.beat()
    wait_until(lambda: system.outcomes().get("skipped", 0) >= 4, "windows are skipped", 60)
    system.settle([beat])
    assert set(system.outcomes()) == {"done", "skipped"}
    assert most_at_once(system) == 1
    begun = [event["start"] for event in system.ledger.read("start")]
    assert begun == sorted(begun)
    assert len(begun) == system.outcomes()["done"]
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


@pytest.mark.long
def test_a_beat_and_the_holder_die(system: System) -> None:
    """The others wait on, and begin once a beat has recovered the dead one."""
    system.entries = {"tick": {**LONG, "options": {"once": {"overlap": "buffer_all"}}}}
    system.settings = {"once_beat_lease": 4.0}
    first, beat = system.worker("first").wait_ready(), system.beat("first-beat")
    wait_until(lambda: system.ledger.read("start"), "one runs", 60)
    claimed(system, 4)
    (killed, *_) = (event["start"] for event in system.ledger.read("start")[-1:])
    first.kill()
    beat.kill()
    system.worker("second", concurrency=2).wait_ready()
    system.count_as_gone(beat)
    beat = system.beat("second-beat")
    wait_until(lambda: system.recorded()[killed], "the killed one runs again", 60)
    system.settle([beat], timeout=120)
    begun = [event["start"] for event in system.ledger.read("start")]
    assert begun[begun.index(killed) + 1] == killed, "nothing runs between"
    system.check_each_once(body_again=1)


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


def settled(system: System, beats: list[Any]) -> None:
    for entry in system.entries:
        system.store.pause(entry)
    for entry in system.entries:
        wait_until(lambda entry=entry: not system.account(entry).open, f"each window of {entry} has ended", 120)
    for beat in beats:
        beat.stop()


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
    settled(system, [beat])
    for entry in system.entries:
        system.check_each_once(entry)
    assert most_at_once(system) == 2
    assert "waits for a slot of the limit 'reports'" in workers[0].log + workers[1].log
    with system.client() as client:
        assert client.zcard("once:limit:{reports}:slots") == 0
        assert client.zcard("once:limit:{reports}:waiting") == 0


@pytest.mark.parametrize("point", ["worker.body", "worker.begun", "worker.finished"])
@pytest.mark.long
def test_the_slots_of_the_dead(system: System, point: str) -> None:
    """A killed worker's slots are free once their leases are over, and the windows that waited for them run."""
    system.entries = shared(3)
    system.settings = {"once_beat_lease": 4.0, "once_beat_limits": {"reports": 1}}
    system.kill_point = f"{point}:KILL"
    beats, _ = system.pair(concurrency=2)
    system.wait_fired()
    settled(system, beats)
    for entry in system.entries:
        assert set(system.outcomes(entry)) == {"done"}
    starts = [event["mono"] for event in sorted(system.ledger.read("start"), key=lambda event: event["mono"])]
    assert len(starts) >= 3
    with system.client() as client:
        assert client.zcard("once:limit:{reports}:waiting") == 0


@pytest.mark.long
def test_overlap_and_limit(system: System) -> None:
    """Both at once: windows of an entry in their order, so many of all entries, and none stands still."""
    system.entries = shared(3, overlap="buffer_all")
    system.settings = {**LEASE, "once_beat_limits": {"reports": 2}}
    system.worker(concurrency=6).wait_ready()
    beat = system.beat()
    for entry in system.entries:
        claimed(system, 4, entry)
    settled(system, [beat])
    assert most_at_once(system) <= 2
    for entry in system.entries:
        system.check_each_once(entry)
        assert most_at_once(system, {entry}) == 1
        begun = [event["start"] for event in system.ledger.read("start", entry=entry)]
        assert all(one < other for one, other in itertools.pairwise(begun))


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
    settled(system, [beat])
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
    settled(system, [beat])
    system.check_each_once("tick-0")
    gone = "discarded, no worker that knows its limit 'reports'"
    before = worker.log.count(gone)
    system.put(copy)
    wait_until(lambda: worker.log.count(gone) > before, "a late copy goes, too", 60)


@pytest.mark.long
def test_a_slot_that_becomes_free_meanwhile(system: System) -> None:
    """Between the look for a slot and the wait for one it became free: a beat finds it, before and after."""
    system.entries = shared(2)
    # One runs until the other has found no slot, on a busy machine too.
    for definition, seconds in zip(system.entries.values(), (6.0, 0.1), strict=True):
        definition |= {"every": 3600.0 * 24, "args": [seconds]}
    system.settings = {**LEASE, "once_beat_limits": {"reports": 1}}
    system.worker("first").wait_ready()
    second = system.worker("second", env={"kill_point": "worker.full:STOP"}, extra_args=["-Q", system.queue + "-2"])
    second.wait_ready()
    system.beat()
    wait_until(lambda: system.store.account("tick-1"), "they are loaded", 60)
    system.once("run", "tick-0")
    wait_until(lambda: system.ledger.read("start", entry="tick-0"), "one runs", 60)
    system.once("run", "tick-1", env={"settings": {"task_default_queue": system.queue + "-2"}})
    assert system.wait_fired() is second
    wait_until(lambda: system.account("tick-0").apart, "the slot is free", 60)
    second.resume()
    wait_until(lambda: system.account("tick-1").apart == {"done": 1}, "the other has it", 60)


@pytest.mark.long
def test_a_worker_that_sleeps_before_its_begin(system: System) -> None:
    """Its slot is another's when it wakes: it gives its begin back, which is no attempt, and waits for a slot."""
    system.entries = shared(2, 6.0)
    for definition in system.entries.values():
        definition |= {"every": 3600.0 * 24}
    system.settings = {**LEASE, "once_beat_lease": 4.0, "once_beat_limits": {"reports": 1}}
    system.worker("first").wait_ready()
    system.beat()
    wait_until(lambda: system.store.account("tick-0") and system.store.account("tick-1"), "they are loaded", 60)
    elsewhere = {"settings": {"task_default_queue": system.queue + "-2"}}
    env = {"kill_point": "worker.acquired:STOP"}
    sleeper = system.worker("sleeper", env=env, extra_args=["-Q", system.queue + "-2"])
    sleeper.wait_ready()
    system.once("run", "tick-1", env=elsewhere)
    assert system.wait_fired() is sleeper
    with system.client() as client:
        gone = lambda: not client.zcard("once:limit:{reports}:slots")  # noqa: E731
        wait_until(gone, "the sleeper's slot has lapsed", 60)
    system.once("run", "tick-0")
    wait_until(lambda: system.ledger.read("start", entry="tick-0"), "the other one runs", 60)
    sleeper.resume()
    for entry in system.entries:
        wait_until(lambda entry=entry: system.account(entry).apart == {"done": 1}, f"{entry} has run", 60)
    assert most_at_once(system) == 1
    assert [event["attempt"] for event in system.ledger.read("start")] == [1, 1]


def test_a_retry_carries_no_copy_of_its_message(system: System) -> None:
    """What a worker keeps of a message, in case that it has to put it back, stays in that worker."""
    system.app = "apps.waiting_app"
    system.entries = {
        "tick": {
            "task": "apps.waiting_app.retries",
            "every": 1.0,
            "args": ["x" * 20_000],
            "options": {"once": {"overlap": "buffer_all"}},
        }
    }
    system.settings = dict(LEASE)
    system.worker(concurrency=2).wait_ready()
    beat = system.beat()
    wait_until(lambda: len(system.ledger.read("finish")) >= 2, "windows are done after retries", 60)
    system.settle([beat])
    sizes = {event["retries"]: event["size"] for event in system.ledger.read("start")}
    assert max(sizes.values()) < 5_000, sizes


@pytest.mark.long
def test_a_revoked_window_holds_up_nobody(system: System) -> None:
    """A window that is called and found revoked: the next one has the slot."""
    system.entries = {"tick": {**LONG, "args": [6.0], "options": SHARED}}
    system.settings = {**LEASE, "once_beat_limits": {"reports": 1}}
    system.worker(concurrency=3).wait_ready()
    beat = system.beat()
    waiting(system, 2)
    system.store.pause("tick")
    _, second, *_ = sorted(system.account().open)
    with Celery(broker=system.broker_url, set_as_current=False) as app:
        app.control.revoke(task_id("once:", "tick", second))
    wait_until(lambda: not system.account().open, "each has ended", 120)
    assert system.outcomes()["revoked"] == 1
    beat.stop()


@pytest.mark.long
def test_a_queue_without_workers_blocks_no_limit(system: System) -> None:
    """Windows that are called and that nobody consumes keep no slot from others, and get few copies."""
    elsewhere = f"{system.queue}-dead"
    system.entries = {"dead": {**LONG, "args": [60.0], "options": {**SHARED, "queue": elsewhere}}}
    system.settings = {**LEASE, "once_beat_limits": {"reports": 1}}
    dead = system.worker("dead", concurrency=2, extra_args=["-Q", elsewhere]).wait_ready()
    beat = system.beat()
    waiting(system, 8, "dead")
    system.store.pause("dead")
    beat.stop()
    dead.kill()
    with system.client() as client:
        client.delete("once:limit:{reports}:slots")  # its lease is over
    system.entries = {**system.entries, "live": {**LONG, "args": [0.01], "options": SHARED}}
    system.worker("live", concurrency=2).wait_ready()
    beat = system.beat("second-beat")
    wait_until(lambda: len(system.ledger.read("finish", entry="live")) >= 20, "live ones run", 90)
    account = system.account("dead")
    with system.client() as client:
        assert client.llen(elsewhere) <= 2 * len(account.open)
    system.settle([beat], "live")


@pytest.mark.long
def test_people_see_for_what_a_window_waits(system: System) -> None:
    """Status, history, next and JSON say it; a window that is next in line is no trouble."""
    system.entries = {
        "nightly": {**LONG, "args": [60], "options": {"once": {"overlap": "buffer_all"}}},
        "report": {"task": "apps.once_app.work", "every": 1.0, "args": [60], "options": {"once": {"limit": "reports"}}},
    }
    system.settings = {**LEASE, "once_beat_limits": {"reports": 1}}
    system.worker(concurrency=4).wait_ready()
    beat = system.beat()
    for entry in system.entries:
        claimed(system, 3, entry)
        system.store.pause(entry)

    def waits(entry: str) -> list[dict[str, Any]]:
        windows = json.loads(system.once("history", entry, "--json"))["windows"]
        return windows if sum(each["state"] == "buffered" for each in windows) >= 2 else []

    newest, *_, first = wait_until(lambda: waits("nightly"), "windows wait for their turn", 60)
    assert first["state"] == "running"
    assert (newest["waits_for"], newest["limit"]) == (first["start"], None)
    (line,) = re.findall(rf".* waits for {first['start'][11:19]}'s.*", system.once("next", "nightly", "-n", "1"))
    assert re.search(r"\(\d windows\)", line), "however many they are, they are one line"
    newest, *_ = wait_until(lambda: waits("report"), "windows wait for a slot", 60)
    assert (newest["waits_for"], newest["limit"]) == (None, "reports")
    assert system.once("next", "report", "-n", "1").count("waits for a slot of reports (") == 1
    assert "buffered, waits for a slot of reports" in system.once("history", "report")
    status = system.once("status")
    assert re.search(rf"^nightly .* \d, \d waits? for {first['start'][11:19]}'s", status, re.MULTILINE)
    assert re.search(r"^report .* \d, \d waits? for a slot of reports", status, re.MULTILINE)
    told = {each["entry"]: each for each in json.loads(system.once("status", "--json"))["entries"]}
    for entry in system.entries:
        assert told[entry]["buffered"] == told[entry]["open"] - 1
        assert told[entry]["overdue"] == 0
        assert "waits" not in " ".join(told[entry]["attention"])
    beat.stop()
