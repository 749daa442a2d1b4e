"""Between each two steps of the protocol a beat or a worker is killed, or frozen for longer than every timeout.

After each: every window has exactly one outcome, and no success is recorded twice.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from processes import wait_until
from system import System

#: To be killed, and to be frozen for longer than every timeout.
ACTIONS = ["KILL", pytest.param("STOP", marks=pytest.mark.long)]
BEAT = [
    f"beat.{point}"
    for point in ("before_claim", "claimed", "published", "before_push", "pushed", "before_confirm", "confirmed")
]
WORKER = ["worker.before_begin", "worker.begun", "worker.body", "worker.before_finish", "worker.finished"]
#: Of an end that nobody listens to, and what must be so that the process gets there.
ENDS = {
    "worker.body_returned": {},
    "worker.traced": {},
    "worker.before_finish": {},
    "worker.finished": {},
    "worker.end_waits": {},
    "worker.draining": {"WITHIN": "1", "settings": {"worker_max_tasks_per_child": 3}},
}
RETRY = ["worker.before_hand_over", "worker.handed_over", "worker.retry_published"]
#: Of windows that wait for each other, and of those that wait for a slot of a limit.
GAPS = {
    "turn": ("worker.waits", "worker.body", "worker.finished", "beat.taken"),
    "slot": ("worker.acquired", "worker.waits", "worker.before_release", "worker.released"),
    "call": ("beat.before_due", "beat.due"),
}
WORK = {"task": "apps.once_app.work"}
SLOT = {**WORK, "every": 2.0, "args": [0.4], "options": {"once": {"limit": "reports"}}}
SLOTS = {f"tick-{number}": SLOT for number in range(3)}
WAITING = {
    "turn": {"tick": {**WORK, "every": 1.0, "args": [1.2], "options": {"once": {"overlap": "buffer_all"}}}},
    "slot": SLOTS,
    "call": SLOTS,
}


def goes_on(system: System, point: str, action: str, **worker: Any) -> None:
    """Let one process of a pair be killed or frozen at the point; the others go on, and a frozen one once it thaws."""
    # Frozen for longer than every timeout: that of the markers too. No bystander loses its lease on a busy machine.
    system.settings = {"once_beat_lease": 4.0, "once_beat_marker_ttl": 2.0, "once_beat_retention": 4.0}
    system.kill_point = f"{point}:{action}"
    beats, workers = system.pair(**worker)
    fired = system.wait_fired()
    frozen_at = len(system.recorded())
    wait_until(
        lambda: len(system.recorded()) >= frozen_at + 5 and not overdue(system),
        "five more windows are done and what was overdue is recovered",
        timeout=90,
    )
    if action == "STOP":
        if fired in beats:
            system.count_as_gone(fired)
            with system.client() as client:
                wait_until(lambda: client.zcard("once:beats") == 1, "the other has noticed", 60)
        fired.resume()
        system.wait_done(2)
    left = [proc for proc in (*beats, *workers) if proc is not fired]
    assert all(proc.alive for proc in left), "a bystander ended"
    assert fired.alive == (action == "STOP")
    system.settle([beat for beat in beats if beat.alive])


def overdue(system: System) -> bool:
    """Whether a window other than the newest is open."""
    account = system.account()
    return any(start < account.cursor for start in account.open)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("point", BEAT)
def test_a_beat_at_each_gap(system: System, point: str, action: str) -> None:
    """No window is lost or executed twice when a beat dies or freezes between two of its steps."""
    goes_on(system, point, action)
    system.check_each_once()


@pytest.mark.parametrize("action", ["KILL", "STOP"])
@pytest.mark.parametrize("point", ["beat.unconfirmed", "beat.broker_confirmed"])
@pytest.mark.long
@pytest.mark.xdist_group("rabbitmq")
def test_a_beat_around_the_confirms_of_a_slice(system: System, rabbit_url: str, point: str, action: str) -> None:
    """A beat dies or freezes with messages in RabbitMQ's socket, or with their confirms and nothing said of them."""
    system.broker_url = rabbit_url
    goes_on(system, point, action)
    system.check_each_once()


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("point", WORKER)
def test_a_worker_at_each_gap(system: System, point: str, action: str) -> None:
    """A worker that dies or freezes between two of its steps: another executes, one success is recorded.

    One that had written its last line, or woke up after its lease, may have come to the body's end too: that is the
    at-least-once of effects which no store can rule out, and which the fence tells apart.
    """
    goes_on(system, point, action)
    ends_late = point == "worker.before_finish" or (action == "STOP" and point in ("worker.begun", "worker.body"))
    system.check_each_once(body_again=1 if ends_late else 0)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("point", ENDS)
@pytest.mark.long
def test_a_worker_at_each_gap_of_an_end_that_waits(system: System, point: str, action: str) -> None:
    """A worker that dies or freezes between its body's last line and the record of its end: the window runs again."""
    system.app = "apps.drain_app"
    if point == "worker.draining":  # a child lasts for three of them, and only the last one's end still waits
        system.entries = {"tick": {"task": "apps.once_app.work", "every": 2.0}}
    goes_on(system, point, action, env=ENDS[point])
    system.check_each_once(body_again=1)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("point", RETRY)
@pytest.mark.long
def test_a_worker_at_each_gap_of_a_retry(system: System, point: str, action: str) -> None:
    """A worker that dies or freezes around handing its window to a retry loses none and doubles none."""
    system.entries = {"tick": {"task": "apps.once_app.retrying", "every": 1.0, "args": [1]}}
    goes_on(system, point, action)
    system.check_each_once()


def all_end(system: System, point: str, action: str) -> None:
    """Let a process be killed or frozen at the point; then every window ends, and none has or waits for a slot."""
    system.settings = {"once_beat_lease": 4.0, "once_beat_limits": {"reports": 1}}
    system.kill_point = f"{point}:{action}"
    beats, workers = system.pair(concurrency=3)
    fired = system.wait_fired()
    frozen_at = len(system.ledger.read("finish"))
    wait_until(lambda: len(system.ledger.read("finish")) >= frozen_at + 4, "four more windows have run", 90)
    if action == "STOP":
        fired.resume()
    assert all(proc.alive for proc in (*beats, *workers) if proc is not fired), "a bystander ended"
    system.settle([], *system.entries, timeout=120)
    keys = system.store.keys.of_limit("reports")
    with system.client() as client:
        wait_until(lambda: not client.zcard(keys["waiting"]), "nobody waits for a slot", 60)
        held = lambda: client.zcount(keys["slots"], client.time()[0] * 1000, "+inf")  # noqa: E731
        wait_until(lambda: not held(), "each slot is free", 60)
    for beat in beats:
        if beat.alive:
            beat.stop()
    for entry in system.entries:
        system.check_each_once(entry, body_again=1 if action == "KILL" else 2)


def bodies_beside_others(system: System) -> list[Any]:
    """Bodies that came to their end, and began before the one before them ended."""
    times = []
    for end in system.ledger.read("finish"):
        (start, *_) = system.ledger.read("start", entry=end["entry"], fence=end["fence"])
        times.append((start["mono"], end["mono"], end["entry"], end["start"]))
    times.sort()
    return [two for one, two in itertools.pairwise(times) if two[0] < one[1]]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(("waits_for", "point"), [(each, point) for each, points in GAPS.items() for point in points])
@pytest.mark.long
def test_each_gap_of_a_wait(system: System, waits_for: str, point: str, action: str) -> None:
    """Who waits for a turn or a slot, gives it back or calls the next dies or freezes: all run, one at a time."""
    system.entries = WAITING[waits_for]
    all_end(system, point, action)
    if action == "KILL":  # frozen, the body beside it went on, out of contact for longer than its lease
        assert not bodies_beside_others(system)
