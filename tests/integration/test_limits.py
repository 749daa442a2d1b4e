"""Slots of a limit: who has one, who is called, and what becomes of the slots of the dead. Verb by verb."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from steps import play, promises

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


#: What is promised | then what is done, one after another: a verb, the window's number, perhaps with a letter for
#: another execution of it, and the answer. A sweep's is how many wait, and which of them are called.
STEPS = """
there are so many, and the others wait; a beat calls as many as there are free slots, who waits longest first |
  acquire 1; acquire 1; acquire 2; acquire 2; acquire 4 = Full; acquire 4 = Full; acquire 3 = Full; acquire 5 = Full
  sweep = 3:; release 1; release 1; sweep = 3: 4; sweep = 3:; acquire 4; sweep = 2:; release 2; release 4
  sweep = 2: 3 5; held = 0; expire
no slot is kept: who comes first has it, and one that was called and finds none is called again before the others |
  acquire 1; acquire 2; acquire 3 = Full; acquire 4 = Full; release 1; sweep = 2: 3; acquire 9; acquire 3 = Full
  release 9; sweep = 2: 3
who finds none is in line where it was, although a beat has taken it off the line |
  acquire 1; acquire 2; acquire 3 = Full; acquire 4 = Full; release 1; sweep = 2: 3; overdue; acquire 9
  acquire 3 = Full; release 9; sweep = 2: 3
who is called and never comes keeps no other slot from those behind it, and after two seconds a beat calls again |
  acquire 1; acquire 2; acquire 3 = Full; acquire 4 = Full; release 1; sweep = 2: 3; overdue; release 2; sweep = 1: 4
  pass 2.1; sweep = 1: 4
the dead give their slots back: a beat finds what they leave, and so does who acquires next |
  acquire 1; acquire 2; acquire 3 = Full; acquire 4 = Full; pass 20; renew 2; sweep = 2:; pass 15; sweep = 2: 3
  pass 40; acquire 9; held = 1; renew 2 = False
a copy takes no second slot, and gives none back; the one that begins makes the slot its own, and who ended has none |
  acquire 1a; acquire 1b = Acquired shared; held = 1; release 1b; held = 1; take_over 1b; expire; renew 1a = False
  release 1a; held = 1; release 1b; held = 0; renew 1b = False
a beat with more slots than workers goes by the number of the worker that lets wait again, for a minute |
  acquire 1; acquire 2; acquire 3 = Full; sweep 5 = 1:; pass 20; sweep 5 = 1:; renew 1; renew 2; pass 41; sweep 3 = 1: 3
who acquires again keeps its slot for longer, by the longer of both |
  acquire 1; longest = 1; acquire 1 2 60; longest = 2; acquire 1b 2 5 = Acquired shared; longest = 2
while a deploy lowers the number of slots nobody new begins above it |
  acquire 1 3; acquire 2 3; acquire 3 3; acquire 4 = Full; release 1; acquire 4 = Full; sweep = 1:; release 2
  sweep = 1: 4
an ended window waits no longer, and the next one is called instead |
  acquire 1; acquire 2; acquire 3 = Full; acquire 4 = Full; forget 3; release 1; sweep = 1: 4
a worker's main process gives the slot of its dead child back, and no other's |
  acquire 1a; release_dead 1b; held = 1; release_dead 1a; held = 0
"""
PLAIN = {"acquire": "Acquired", "renew": "True", "take_over": "True", "expire": "True"}
DOING: dict[str, Callable[..., Any]] = {
    "acquire": lambda s, n, owner, most="2", length="30": s.acquire(n, owner, float(length), int(most)),
    "renew": Slots.renew,
    "take_over": lambda s, n, owner: s.renew(n, owner, begun=True),
    "release": Slots.release,
    "release_dead": lambda s, n, owner: s.release(n, owner.removesuffix(":e")),
    "forget": lambda s, n, _: s.release(n, "-", forget=True),
}
OF_ALL: dict[str, Callable[..., Any]] = {
    "sweep": lambda s, most="2": s.sweep(int(most)),
    "held": Slots.held,
    "pass": lambda s, seconds: s.pass_time(float(seconds)),
    # A beat makes the first in line overdue.
    "overdue": lambda s: s.raw.zremrangebyrank(s.keys["waiting"], 0, 0),
    # Another execution of the window that asks doesn't shorten it.
    "longest": lambda s: round(
        (s.raw.zrange(s.keys["slots"], -1, -1, withscores=True)[0][1] / 1000 - time.time()) / 30
    ),
    "expire": lambda s: all(s.raw.ttl(key) != -1 for key in s.raw.scan_iter("*limit*")),
}


@pytest.mark.parametrize(("_settings", "steps"), promises(STEPS))
def test_who_has_a_slot_and_who_is_called(slots: Slots, _settings: object, steps: list[str]) -> None:
    """As the table promises, step by step."""
    numbers = {slots.window(number): number for number in range(10)}

    def do(verb: str, *words: str) -> str:
        if verb in OF_ALL:
            reply = OF_ALL[verb](slots, *words)
        else:
            reply = DOING[verb](slots, int(words[0].rstrip("ab")), f"w{words[0]}:d:e", *words[1:])
        match reply:
            case limits.FreeSlots(waiting, windows):
                return " ".join([f"{waiting}:", *(str(numbers[window]) for window in windows)])
            case limits.Acquired(shared):
                return "Acquired shared" if shared else "Acquired"
        return "Full" if reply == limits.Full() else str(reply)

    play(steps, do, PLAIN)


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
    window = Window(key.entry, key.start, None, limit="reports")
    Part(SimpleNamespace(name="tests.work"), slots.store, window, key, "w9:d:e").on_refusal(reply)
    slots.release(1)
    assert slots.sweep().windows == (slots.windows(3) if in_line else ())
