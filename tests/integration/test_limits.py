"""Slots of a limit: who has one, who is called, and what becomes of the slots of the dead. Verb by verb."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from celery_once_beat.features.admission import store as limits
from celery_once_beat.features.admission.worker import Part
from celery_once_beat.store import Busy, Closed, Store, Waits
from celery_once_beat.windows import Window, WindowKey

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Slots:
    """The limit "reports" with two slots, and windows of two entries that share it."""

    def __init__(self, store: Store, raw: redis.Redis) -> None:
        self.store = store
        self.raw = raw
        self.keys = self.store.keys.of_limit("reports")

    def window(self, number: int) -> WindowKey:
        return WindowKey(f"entry {number % 2} @ night", START + number * timedelta(minutes=1))

    def windows(self, *numbers: int) -> tuple[WindowKey, ...]:
        return tuple(map(self.window, numbers))

    def acquire(self, number: int, owner: str | None = None, length: float = 30.0, most: int = 2) -> Any:
        return limits.acquire_slot(self.store, "reports", most, self.window(number), owner or f"w{number}:d:e", length)

    def renew(self, number: int, owner: str | None = None, *, begun: bool = False) -> bool:
        """``begun``: it has begun, in another execution's slot."""
        owner = owner or f"w{number}:d:e"
        renewal = limits.slot_renewal(self.store, "reports", self.window(number), owner, 30.0, takes_over=begun)
        return self.store.trip.one(renewal) == "kept"

    def release(self, number: int, owner: str | None = None, *, forget: bool = False) -> None:
        limits.release_slot(self.store, "reports", self.window(number), owner or f"w{number}:d:e", forget=forget)

    def sweep(self, most: int = 2) -> Any:
        """A beat asks how many wait, and whom it is to call."""
        requests = limits.ask_free_slots(self.store, {"reports": most})
        return self.store.overdue("beat", datetime.now(timezone.utc), 10, requests=requests).replies[0]

    def held(self) -> int:
        return self.raw.zcard(self.keys["slots"])

    def pass_time(self, seconds: float) -> None:
        """As if so many seconds had passed."""
        for member, score in self.raw.zrange(self.keys["slots"], 0, -1, withscores=True):
            self.raw.zadd(self.keys["slots"], {member: score - seconds * 1000})
        for key in (self.keys["called"], self.keys["fewest"]):
            if (left := self.raw.pttl(key)) > 0:
                self.raw.pexpire(key, left - round(seconds * 1000))


@pytest.fixture
def slots(store: Store, raw: redis.Redis) -> Slots:
    return Slots(store, raw)


def test_there_are_so_many(slots: Slots) -> None:
    """The others wait. A beat calls as many as there are free slots; those that have waited longest come first."""
    for number in (1, 2):
        assert slots.acquire(number) == slots.acquire(number) == limits.Acquired(), "the second time it is sent again"
    for number in (4, 3, 5):
        assert slots.acquire(number) == slots.acquire(number) == limits.Full()
    assert slots.sweep() == limits.FreeSlots(3, ())
    slots.release(1)
    slots.release(1)
    assert slots.sweep() == limits.FreeSlots(3, slots.windows(4))
    assert slots.sweep() == limits.FreeSlots(3, ()), "it is to come first"
    assert slots.acquire(4) == limits.Acquired()
    assert slots.sweep() == limits.FreeSlots(2, ())
    slots.release(2)
    slots.release(4)
    assert slots.sweep() == limits.FreeSlots(2, slots.windows(3, 5))
    assert slots.held() == 0
    for key in slots.raw.scan_iter("*limit*"):
        assert slots.raw.ttl(key) != -1


def test_no_slot_is_kept(slots: Slots) -> None:
    """Whoever comes first has it; one that was called and finds none is called again before those behind it."""
    for number in (1, 2, 3, 4):
        slots.acquire(number)
    slots.release(1)
    assert slots.sweep().windows == slots.windows(3)
    assert slots.acquire(9) == limits.Acquired()
    assert slots.acquire(3) == limits.Full()
    slots.release(9)
    assert slots.sweep().windows == slots.windows(3)


def test_who_finds_none_is_in_line_where_it_was(slots: Slots) -> None:
    """A beat has taken it off the line as it called it."""
    for number in (1, 2, 3, 4):
        slots.acquire(number)
    slots.release(1)
    assert slots.sweep().windows == slots.windows(3)
    slots.raw.zrem(slots.keys["waiting"], slots.raw.zrange(slots.keys["waiting"], 0, 0)[0])
    assert slots.acquire(9) == limits.Acquired()
    assert slots.acquire(3) == limits.Full()
    slots.release(9)
    assert slots.sweep().windows == slots.windows(3)


def test_who_comes_before_it_has_left_the_line(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    """A beat has called it. Before that beat goes on, another one publishes it, and it finds no slot: it is in line."""
    for number in (1, 2, 3, 4):
        slots.acquire(number)
    slots.release(1)
    (called,) = slots.sweep().windows

    def run_and_come(_requests: Any) -> list[str]:
        monkeypatch.undo()
        assert slots.acquire(9) == limits.Acquired()
        assert slots.acquire(3) == limits.Full()
        return ["due"]

    monkeypatch.setattr(slots.store.trip, "run", run_and_come)
    limits.make_due(slots.store, "reports", [called])
    slots.release(9)
    assert slots.sweep().windows == slots.windows(3)


def test_who_is_called_and_never_comes(slots: Slots) -> None:
    """It keeps no other slot from those behind it, and after two seconds a beat calls again."""
    for number in (1, 2, 3, 4):
        slots.acquire(number)
    slots.release(1)
    assert slots.sweep().windows == slots.windows(3)
    slots.raw.zrem(slots.keys["waiting"], slots.raw.zrange(slots.keys["waiting"], 0, 0)[0])  # it is overdue now
    slots.release(2)
    assert slots.sweep().windows == slots.windows(4)
    slots.pass_time(2.1)
    assert slots.sweep().windows == slots.windows(4)


def test_the_dead_give_their_slots_back(slots: Slots) -> None:
    """Their leases run out. A beat finds what they leave, and so does whoever acquires next."""
    for number in (1, 2, 3, 4):
        slots.acquire(number)
    slots.pass_time(20)
    assert slots.renew(2)
    assert slots.sweep().windows == ()
    slots.pass_time(15)
    assert slots.sweep().windows == slots.windows(3)
    slots.pass_time(40)
    assert slots.acquire(9) == limits.Acquired()
    assert slots.held() == 1
    assert not slots.renew(2)


def test_who_acquires_again_keeps_its_slot_for_longer(slots: Slots) -> None:
    """By the longer of both: another execution of the window that asks doesn't shorten it."""
    slots.acquire(1)
    (first,) = slots.raw.zrange(slots.keys["slots"], 0, -1, withscores=True)
    slots.acquire(1, length=60.0)
    (longer,) = slots.raw.zrange(slots.keys["slots"], 0, -1, withscores=True)
    assert longer[1] >= first[1] + 30_000
    slots.acquire(1, "B:d:e", length=5.0)
    assert slots.raw.zrange(slots.keys["slots"], 0, -1, withscores=True) == [longer]


def test_another_execution_of_the_same_window(slots: Slots) -> None:
    """A copy takes no second slot, and gives none back; the one that has begun makes the slot its own."""
    slots.acquire(1, "A:d:e")
    assert slots.acquire(1, "B:d:e") == limits.Acquired(shared=True)
    assert slots.held() == 1
    slots.release(1, "B:d:e")
    assert slots.held() == 1, "it was refused"
    assert slots.renew(1, "B:d:e", begun=True), "the other is dead"
    assert slots.raw.pttl(slots.keys["slots"]) > 0
    assert not slots.renew(1, "A:d:e"), "or only slow: it is stale, and takes nothing back"
    slots.release(1, "A:d:e")
    assert slots.held() == 1
    slots.release(1, "B:d:e")
    assert slots.held() == 0
    assert not slots.renew(1, "B:d:e"), "a renewal that comes behind the end makes no slot anew"


def test_a_beat_with_more_slots_than_workers(slots: Slots) -> None:
    """What it calls a worker lets wait again: it goes by that worker's number for a minute."""
    for number in (1, 2, 3):
        slots.acquire(number)
    assert slots.sweep(most=5).windows == ()
    slots.pass_time(20)
    assert slots.sweep(most=5).windows == ()
    slots.renew(1)
    slots.renew(2)
    slots.pass_time(41)
    assert slots.sweep(most=3).windows == slots.windows(3), "no worker has said anything for long"


def test_another_number_of_slots(slots: Slots) -> None:
    """Each worker goes by its own settings: while a deploy lowers the number, nobody new begins above it."""
    for number in (1, 2, 3):
        assert slots.acquire(number, most=3) == limits.Acquired()
    assert slots.acquire(4) == limits.Full()
    slots.release(1)
    assert slots.acquire(4) == limits.Full()
    assert slots.sweep().windows == ()
    slots.release(2)
    assert slots.sweep().windows == slots.windows(4)


def test_an_ended_window_waits_no_longer(slots: Slots) -> None:
    """The next one is called instead."""
    for number in (1, 2, 3, 4):
        slots.acquire(number)
    slots.release(3, "-", forget=True)
    slots.release(1)
    assert slots.sweep() == limits.FreeSlots(1, slots.windows(4))


@pytest.mark.parametrize(
    ("reply", "in_line"),
    [
        (Closed(""), True),
        (Busy("waiting to run again"), True),
        (Busy("running"), False),
        (Closed("expired"), False),
        (Waits(START, ()), False),
        (Waits(None, ()), True),
    ],
)
def test_what_a_refused_copy_says_of_the_line(slots: Slots, reply: Any, *, in_line: bool) -> None:
    """An older copy leaves it as it is: its window may have been ordered since, and that run waits for a slot."""
    for number in (1, 2, 3):
        slots.acquire(number)
    key = slots.window(3)
    part = Part(
        SimpleNamespace(name="tests.work"),
        slots.store,
        Window(key.entry, key.start, None, limit="reports"),
        key,
        "w9:d:e",
    )
    part.on_refusal(reply)
    slots.release(1)
    assert slots.sweep().windows == (slots.windows(3) if in_line else ())
