"""Windows that wait for each other: which one waits, which is next, what becomes of the others. Verb by verb."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from stage import ENTRY, MARK, MINUTE, T0, Stage, nth
from steps import play, promises

from celery_once_beat.errors import StoreDataError
from celery_once_beat.features.admission.beat import Part
from celery_once_beat.features.admission.store import Full, acquire_slot, make_due
from celery_once_beat.features.orders.store import abandon_many, backfill_many
from celery_once_beat.lookup import Lookup
from celery_once_beat.store import model as r
from celery_once_beat.windows import WindowKey, format_instant


def window(number: int) -> WindowKey:
    return WindowKey(ENTRY, nth(number))


class Tick(Stage):
    """The entry with claimed and published windows 1 to 9; what a test asks for is of the window with that number."""

    def __init__(self, url: str, most: int = 0, of_task: str = "allow", **end_rules: Any) -> None:
        super().__init__(url, limits={"reports": most} if most else {}, recovery_interval=5.0, claim_lease=300.0)
        self.of_task = of_task
        self.load(**end_rules)
        for number in range(1, 10):
            self.claim_nth(number)
            assert self.confirm() == r.Confirmed()

    def begin(self, number: int, owner: str = "", retry: int = 0, **more: Any) -> Any:
        self.start = nth(number)
        return super().begin(owner or f"w{number}", retry, overlap=self.of_task, **more)

    def end(self, number: int, outcome: str = "done", again: float | None = None, owner: str = "") -> Any:
        self.start = nth(number)
        return self.finish(owner or f"w{number}", outcome, again)

    def due(self) -> list[int]:
        """The windows that a beat's sweep takes next."""
        found = self.store.overdue("beat-1", datetime.now(timezone.utc), 100).shards[self.shard_number]
        return [(window.start - T0) // (nth(1) - T0) for window in found.windows]

    def publish(self, number: int) -> None:
        """A beat takes it, and its message is out."""
        assert isinstance(self.take(number), r.Taken)
        assert self.confirm() == r.Confirmed()

    def make_due(self, number: int) -> bool:
        """A beat has found a slot for it."""
        return make_due(self.store, "reports", [window(number)]) == ["due"]

    def take(self, number: int) -> Any:
        self.start = nth(number)
        return super().take("beat-1")

    def die(self, number: int, seconds_ago: float = 0.001) -> None:
        """Its lease has run out, and its deadline has passed."""
        self.start = nth(number)
        self.lapse()
        super().overdue(seconds_ago)

    def overdue(self, number: int) -> None:
        self.start = nth(number)
        super().overdue()

    def put_off(self, number: int) -> None:
        """No beat that lives knows the entry."""
        self.start = nth(number)
        assert self.postpone([], beat="beat-1") == ["postponed"]

    def order(self, number: int) -> None:
        assert isinstance(backfill_many(self.store, [(window(number), "order")], 5.0)[0], r.Claimed)

    def due_in(self, number: int) -> float:
        """Seconds until the window is overdue."""
        self.start = nth(number)
        return (self.deadline() - self.now()) / 1000

    def read(self) -> str:
        """For what each window waits, as people are shown it: another window, its turn, or a slot of a limit."""
        found = []
        for each in sorted(Lookup(self.store).entry(ENTRY, 20).windows, key=lambda each: each.start):
            if each.open and each.open.waits:
                other = (each.waits_for - T0) // MINUTE if each.waits_for else each.limit or "turn"
                found.append(f"{(each.start - T0) // MINUTE} for {other}")
        return ", ".join(found)

    def alerts(self) -> list[Any]:
        """What people are to be told."""
        return self.take_alerts()[0].found


@pytest.fixture
def make(redis_url: str, close_later: Callable[[Any], Any]) -> Callable[..., Tick]:
    return lambda **given: close_later(Tick(redis_url, **given))


#: What is promised | the settings, then what is done, one after another: a verb, the window's number, perhaps with a
#: letter for another copy of its message, and what the store answers, as :data:`PLAIN` and :func:`said` write it.
STEPS = """
all run in order: at the end of one the oldest is overdue, whichever came first | overlap=buffer_all
  begin 1; begin 3 = Waits 1; asleep 3; begin 4 = Waits 1; asleep 4; begin 2 = Waits 1; asleep 2
  end 1; due = 2; end 1; due = 2; begin 9c = Waits 2; publish 2; patient 2; begin 2; end 2; due = 3; end 2; due = 3
  begin 9c = Waits 3; publish 3; patient 3; begin 3; end 3; due = 4; begin 9c = Waits 4; publish 4; begin 4; end 4
  due = 9; begin 9; end 9; due =; idle; counts = done 5
what died goes before what is new, while a beat may be about to publish it | overlap=skip
  begin 1; die 1 55; begin 2 = Closed skipped
what died keeps others away for a minute | overlap=skip
  begin 1; die 1 65; begin 2
what nobody publishes, since no beat that lives knows its entry, keeps nobody away | overlap=skip
  begin 1; die 1; put_off 1; begin 2
what was put off and continues has its turn: its process was only frozen | overlap=skip
  begin 1; die 1; put_off 1; renew 1 = Renewed; begin 2 = Closed skipped
what is put off gives its turn to the next that waits, and a beat may have the entry again | overlap=buffer_all
  begin 1; begin 2 = Waits 1; die 1; put_off 1; soon 2; put_off 2; overdue 2; take 2; begin 3 = Waits 2; begin 2
what has its turn is skipped no more: newer ones wait behind it | overlap=buffer_one
  begin 1; begin 2 = Waits 1; end 1; due = 2; begin 3 = Waits 2; begin 4 = Waits 2 3; begin 2; end 2; due = 4
  counts = done 2 skipped 1
of the new ones the newest waits, the others are skipped: the newest comes last | overlap=buffer_one
  begin 1; begin 2 = Waits 1; begin 3 = Waits 1 2; begin 4 = Waits 1 3; end 1; due = 4; begin 3c = Closed; begin 4
  counts = done 1 skipped 2
it comes first | overlap=buffer_one
  begin 1; begin 4 = Waits 1; begin 3 = Closed skipped; begin 2 = Closed skipped; end 1; due = 4
it comes between others | overlap=buffer_one
  begin 1; begin 3 = Waits 1; begin 4 = Waits 1 3; begin 2 = Closed skipped; end 1; due = 4; counts = done 1 skipped 2
a retry keeps the turn: the others wait for its end | overlap=buffer_all
  begin 1; begin 2 = Waits 1; hand_over 1; begin 3 = Waits 1; overdue 2; take 2 = Unchanged waits; begin 1b 1; end 1b
  due = 2
one that runs again later gives its turn, and goes before what is new | overlap=buffer_all
  begin 1; begin 2 = Waits 1; begin 3 = Waits 1; fail 1; due = 2; fail 1; begin 2; overdue 1; take 1 = Unchanged waits
  end 2; due = 1; take 1; begin 1b; end 1b; due = 3; begin 3; fail 3; due =; overdue 3; take 3; begin 4 = Waits 3
what died goes first; given up, it calls the next | overlap=buffer_all max_attempts=2
  begin 1; begin 2 = Waits 1; die 1; begin 3 = Waits 1; take 1; begin 1b; begin 4 = Waits 1; die 1
  take 1 = Closed abandoned; due = 2; take 2; begin 2; counts = abandoned 1
who is dead and taken by nobody blocks nobody, and waits for the one that runs | overlap=buffer_all
  begin 1; begin 2 = Waits 1; die 1 61; begin 3 = Waits 2; due = 1 2; begin 2; begin 1b = Waits 2; end 2; due = 1
a stale holder calls nobody | overlap=buffer_all
  begin 1; begin 2 = Waits 1; die 1 61; begin 3 = Waits 2; begin 2; end 1 = Stale; begin 3 = Waits 2
abandoned by order the holder gives its turn at once | overlap=buffer_all
  begin 1; begin 2 = Waits 1; abandon 1; due = 2; overdue 2; take 2; end 1 = Stale
a beat that asks too early puts it off, and it stays in line | overlap=buffer_all
  begin 1; begin 2 = Waits 1; overdue 2; take 2 = Unchanged waits; asleep 2; end 1; due = 2
what was ordered waits, isn't skipped and goes first, also where it is of a later time | overlap=buffer_one
  begin 6; end 6; begin 5; order 6; begin 2 = Waits 5; begin_ordered 6b = Waits 5; end 5; due = 6
a copy of what waits waits, and its worker's death says nothing; an older retry's copy is refused | overlap=buffer_all
  begin 1; begin 2 = Waits 1; begin 2b = Waits 1; receive 2 = Unchanged; end 1; due = 2; publish 2
  receive 2 = Confirmed; begin 2; hand_over 2 0; begin 2b = Busy
without a slot of its limit it has its turn and waits; the others wait for it | overlap=buffer_all
  begin_full 1 = Waits slot; begin 2 = Waits 1; due =; make_due 1; due = 1; begin 1; make_due 1 = False; end 1; due = 2
what waits for a slot keeps the turn that it was given, also as the last in line | overlap=buffer_all
  begin 1; begin 2 = Waits 1; end 1; due = 2; publish 2; begin_full 2 = Waits slot; begin 3 = Waits 2; begin 2
what was called for a slot isn't sent again and again before somebody has consumed its message |
  begin_full 1 = Waits slot; make_due 1; publish 1; make_due 1 = False; begin_full 1 = Waits slot; make_due 1
what gets its turn in the same step isn't passed over | overlap=buffer_one
  begin 1; begin 2 = Waits 1; die 1 61; begin 3 = Waits 2; begin 2; end 2; due = 1 3
a window runs until its retry has ended, or while it may be dead; not if it is to run again later | of_task=skip
  begin 1; begin 2 = Closed skipped; begin 2 = Closed skipped; hand_over 1; begin 3 = Closed skipped; begin 1 1
  overdue 1; begin 4 = Closed skipped; fail 1; begin 5; counts = skipped 3
one that was out of contact isn't let in beside another; one that was ordered waits | of_task=skip
  begin 1; die 1; let_in; begin 2; renew 1 = Stale; end 2; renew 1 = Renewed; begin 3 = Closed skipped; end 1
  order 2; order 3; begin 2e; begin 3f = Waits 2; confirm 3 = Unchanged; counts = done 2 skipped 1
who has begun before keeps new ones back; where another runs, it is the next | of_task=skip
  begin 1; die 1; begin 2 = Closed skipped; let_in; begin 3; take 1 = Unchanged waits; due =; end 3; due = 1
  begin 4 = Closed skipped; take 1; begin 5 = Closed skipped; begin 1f; counts = done 1 skipped 3
a copy that is older than the retry that died is refused |
  begin 1; hand_over 1 0; begin 1 1; die 1; begin 1b = Busy; begin 1b 1
whose limit is reached keeps nobody from running | of_task=skip max_attempts=2
  begin 1a; die 1; begin 1b; die 1; begin 2
what people read is what the store goes by: who runs, who goes first | overlap=buffer_all
  begin 1; begin 2 = Waits 1; begin 3 = Waits 1; waits = 2 for 1, 3 for 1; end 1; waits = 2 for turn, 3 for 2
  begin_full 2 = Waits slot; waits = 2 for reports, 3 for 2; begin 2; waits = 3 for 2; die 2 61; begin 3
  begin 2c = Waits 3; waits = 2 for 3; begin 4 = Waits 3; waits = 2 for 3, 4 for 3; end 3; waits = 2 for turn, 4 for 2
whom nobody takes keeps nobody from running | of_task=skip max_attempts=2
  begin 1; die 1 61; begin 2
the last that waited has ended: no beat looks any more often than else | overlap=buffer_all
  begin 1; begin 2 = Waits 1; abandon 2; end 1; idle
"""
#: What a verb is answered where a step doesn't say it.
PLAIN = {"begin": "Begun", "take": "Taken", "end": "Finished", "abandon": "Finished", "fail": "Again"}
PLAIN |= {"hand_over": "HandedOver"} | dict.fromkeys(("make_due", "asleep", "patient", "soon", "idle"), "True")
DOING: dict[str, Callable[..., Any]] = {
    "begin": lambda t, n, owner, retry="0": t.begin(n, owner, int(retry)),
    "begin_full": lambda t, n, owner: t.begin(n, owner, no_slot="reports"),
    "begin_ordered": lambda t, n, owner: t.store.begin(WindowKey(ENTRY, nth(n), sent_as="of the order"), owner, 30.0),
    "end": lambda t, n, owner: t.end(n, owner=owner),
    "fail": lambda t, n, owner: t.end(n, "failed", 60.0, owner),
    "hand_over": lambda t, n, owner, delay="60": t.hand_over(owner, 1, float(delay)),
    "renew": lambda t, n, owner: t.renew(owner),
    "confirm": lambda t, n, owner: t.confirm(revision=1),
    "receive": lambda t, n, owner: t.receive(),
    "abandon": lambda t, n, owner: t.abandon(running=True),
    "die": lambda t, n, owner, ago="0.001": t.die(n, float(ago)),
    # No beat asks for it; its message may be lost, and others wait for it; a beat takes it soon.
    "asleep": lambda t, n, owner: t.due_in(n) > 300,
    "patient": lambda t, n, owner: 30 < t.due_in(n) <= 60,
    "soon": lambda t, n, owner: t.due_in(n) < 60,
}
OF_ALL: dict[str, Callable[[Tick], Any]] = {
    "due": Tick.due,
    "counts": lambda t: [word for each in sorted(t.counts().items()) for word in each],
    "let_in": lambda t: t.raw.hdel(t.entry_key, "running"),  # an older version let the next one begin
    "waits": lambda t: t.read(),
    # No beat looks between its sweeps.
    "idle": lambda t: (
        not (t.raw.hexists(t.entry_key, "waits") or t.raw.exists(t.store.keys.of_shard("lines", t.shard_number)))
    ),
}


def said(reply: Any) -> str:
    """An answer as :data:`STEPS` has it: its name; which window it waits for, and those that are passed over."""
    match reply:
        case r.Waits(start, over):
            return " ".join(["Waits", *(str((each - T0) // MINUTE) if each else "slot" for each in (start, *over))])
        case r.Closed(outcome=word) | r.Unchanged(word):
            return f"{type(reply).__name__} {word}".strip()
        case list():
            return " ".join(map(str, reply))
        case str():
            return reply
    return str(reply) if isinstance(reply, bool) else type(reply).__name__


@pytest.mark.parametrize(("settings", "steps"), promises(STEPS))
def test_who_begins_who_waits_and_who_is_next(make: Any, settings: dict[str, str], steps: list[str]) -> None:
    """As the table promises, step by step."""
    tick = make(**{name: int(value) if value.isdigit() else value for name, value in settings.items()})

    def do(verb: str, *words: str) -> str:
        if verb in OF_ALL:
            return said(OF_ALL[verb](tick))
        number = int(words[0].rstrip("abcdef"))
        tick.start = nth(number)
        if verb in DOING:
            return said(DOING[verb](tick, number, f"w{words[0]}", *words[1:]))
        return said(getattr(tick, verb)(number))

    play(steps, do, PLAIN)


def test_a_policy_of_another_version_is_named(make: Any) -> None:
    """Where it says what becomes of a window."""
    tick = make(overlap="skip")
    tick.begin(1)
    tick.raw.hset(tick.entry_key, "overlap", "odd")
    with pytest.raises(StoreDataError, match="field overlap: found odd"):
        tick.begin(2)


def test_what_is_passed_over_is_counted_where_it_belongs_and_told(make: Any) -> None:
    """A window from before the definition's last change counts apart; each one is told by its name."""
    tick = make(overlap="buffer_one", on_failure="proj.tell")
    tick.begin(1)
    tick.begin(2)
    tick.raw.hset(tick.entry_key, "since", format_instant(nth(2)))
    assert tick.begin(3) == r.Waits(nth(1), skipped=(nth(2),))
    assert tick.begin(4) == r.Waits(nth(1), skipped=(nth(3),))
    assert tick.counts() == {"skipped": 1}
    assert tick.raw.hget(tick.entry_key, "x:skipped") == "1"
    assert not tick.raw.hexists(tick.entry_key, f"w:{format_instant(nth(2))}"), "nothing is kept of it"
    assert [(alert.window.start, alert.ended.outcome) for alert in tick.alerts()] == [
        (nth(2), "skipped"),
        (nth(3), "skipped"),
    ]


@pytest.mark.long
def test_a_thousand_wait(make: Any) -> None:
    """Further new ones are skipped, and it is recorded why; a copy of one that waits, or what was ordered, isn't."""
    tick = make(overlap="buffer_all", on_failure="proj.tell")
    last = 1003
    asked = [r.ClaimRequest(window(number), nth(number - 1), MARK) for number in range(10, last + 1)]
    assert all(isinstance(reply, r.Claimed) for reply in tick.store.claim_many("beat-1", asked))
    tick.begin(1)
    for number in range(2, 1002):
        assert tick.begin(number) == r.Waits(nth(1))
    why = "1000 windows of its entry wait already"
    assert tick.begin(last - 1) == r.Closed("skipped", why=why)
    assert [(alert.window.start, alert.ended.failure) for alert in tick.alerts()] == [(nth(last - 1), why)]
    assert tick.begin(9, "copy") == r.Waits(nth(1))
    tick.order(last - 1)
    ordered = WindowKey(ENTRY, nth(last - 1), sent_as="of the order")
    assert tick.store.begin(ordered, "B", 30.0) == r.Waits(nth(1))
    tick.end(1)
    assert tick.due() == [last - 1], "it was ordered"
    tick.store.begin(ordered, "B", 30.0)
    assert abandon_many(tick.store, [(window(number), "order") for number in (2, 3)]) == [r.Finished()] * 2
    assert tick.begin(last) == r.Waits(nth(last - 1)), "there is room again"
    assert tick.counts() == {"skipped": 1, "done": 1, "cancelled": 2}


def test_a_beat_calls_those_that_the_dead_leave_room_for(make: Any) -> None:
    """The first in line has ended meanwhile: the next tick calls the one behind it, to be published at once."""
    tick = make(most=1)
    for number in (1, 2, 3):
        slot = acquire_slot(tick.store, "reports", 1, window(number), f"w{number}", 30.0)
        tick.begin(number, no_slot="reports" if slot == Full() else "")
    abandon_many(tick.store, [(window(2), "order")])
    tick.raw.delete(tick.store.keys.of_limit("reports")["slots"])  # its lease is over
    hurried, report = [], r.BeatReport(0.0, 0.0, 1, 0, "1")
    part = Part(SimpleNamespace(store=tick.store, recovery=SimpleNamespace(hurry=lambda: hurried.append(True))))

    def sweep() -> Any:
        found = tick.store.overdue("beat-1", datetime.now(timezone.utc), 100, requests=part.before_sweep(report))
        return part.after_sweep(found, found.replies)

    assert (sweep(), hurried, sweep()) == ([], [True], [window(3)])
