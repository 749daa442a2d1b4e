"""Windows that wait for each other: which one waits, which is next, what becomes of the others. Verb by verb."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from celery_once_beat.features.admission.beat import Part
from celery_once_beat.features.admission.store import Full, acquire_slot, make_due
from celery_once_beat.features.alerts.store import take_alerts
from celery_once_beat.features.orders.store import abandon_many, backfill_many
from celery_once_beat.features.reserved.store import receive_many
from celery_once_beat.lookup import Lookup
from celery_once_beat.rules import EndRules
from celery_once_beat.settings import Settings
from celery_once_beat.store import Ending, Store
from celery_once_beat.store.model import (
    Again,
    BeatReport,
    Begun,
    Busy,
    Claimed,
    ClaimRequest,
    Closed,
    Confirmation,
    Confirmed,
    Finished,
    LoadRequest,
    Published,
    Renewal,
    Renewed,
    Stale,
    Taken,
    Unchanged,
    Waits,
)
from celery_once_beat.windows import WindowKey, format_instant

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)


class Tick:
    """One entry with claimed windows 1 to 9; window 1 starts a minute after the first cursor."""

    def __init__(self, url: str, most: int = 0, **end_rules: Any) -> None:
        limits = {"reports": most} if most else {}
        self.store = Store(Settings(redis_url=url, limits=limits, recovery_interval=5.0))
        self.raw = redis.Redis.from_url(url, decode_responses=True)
        self.fences: dict[str, int] = {}
        self.end_rules = {"max_attempts": 3, "recover": True, "grace": None, **end_rules}
        self.load()
        for number in range(1, 10):
            request = ClaimRequest(self.window(number), START + (number - 1) * MINUTE, "mark")
            (claimed,) = self.store.claim_many("beat", [request])
            assert isinstance(claimed, Claimed)
            self.confirm(number, claimed.revision)

    def load(self, **end_rules: Any) -> None:
        self.end_rules |= end_rules
        self.store.load_many([LoadRequest("tick", "beat", "mark", 86400.0, EndRules(**self.end_rules), known=START)])

    def close(self) -> None:
        self.store.close()
        self.raw.close()

    def window(self, number: int) -> WindowKey:
        return WindowKey("tick", START + number * MINUTE)

    def start(self, number: int) -> datetime:
        return self.window(number).start

    def begin(self, number: int, owner: str | None = None, retry: int = 0, **more: Any) -> Any:
        owner = owner or f"w{number}"
        reply = self.store.begin(self.window(number), owner, 30.0, retry, **more)
        if isinstance(reply, Begun):
            self.fences[owner] = reply.fence
        return reply

    def end(self, number: int, outcome: str = "done", again: float | None = None, owner: str | None = None) -> Any:
        owner = owner or f"w{number}"
        return self.store.finish(Ending(self.window(number), owner, self.fences[owner], outcome, again))

    def due_after_end(self, number: int, *given: Any, **more: Any) -> list[int]:
        """End it; return the windows that are overdue then."""
        self.end(number, *given, **more)
        return self.due()

    def due(self) -> list[int]:
        """The windows that a beat's sweep takes next."""
        found = self.store.overdue("beat", datetime.now(timezone.utc), 100).shards[self.store.shard_of("tick")]
        return [(window.start - START) // MINUTE for window in found]

    def publish(self, number: int) -> None:
        """A beat takes it, and its message is out."""
        taken = self.take(number)
        assert isinstance(taken, Taken), taken
        self.confirm(number, taken.revision)

    def confirm(self, number: int, turn: int) -> None:
        confirmation = Confirmation(self.window(number), turn, Published.SENT, 600.0)
        assert self.store.confirm_many([confirmation]) == [Confirmed()]

    def make_due(self, number: int) -> bool:
        """A beat has found a slot for it."""
        return make_due(self.store, "reports", [self.window(number)]) == ["due"]

    def take(self, number: int) -> Any:
        return self.store.take_many("beat", [(self.window(number), "mark")])[0]

    def die(self, number: int, seconds_ago: float = 0.001) -> None:
        """Its lease has run out, and its deadline has passed."""
        self.raw.delete(*self.raw.keys(f"once:*run:tick:{format_instant(self.start(number))}"))
        self.overdue(number, seconds_ago)

    def overdue(self, number: int, seconds_ago: float = 0.001) -> None:
        now = self.raw.time()[0] * 1000 - seconds_ago * 1000
        self.raw.zadd(self.store.keys.open(self.store.shard_of("tick")), {self.member(number): now}, xx=True)

    def member(self, number: int) -> str:
        return f"tick@{format_instant(self.start(number))}"

    def due_in(self, number: int) -> float:
        """Seconds until the window is overdue."""
        seconds, micro = self.raw.time()
        deadline = self.raw.zscore(self.store.keys.open(self.store.shard_of("tick")), self.member(number))
        assert deadline is not None, "it is closed"
        return deadline / 1000 - seconds - micro / 1e6

    @property
    def counts(self) -> dict[str, int]:
        return self.store.account("tick").counts

    def alerts(self) -> list[Any]:
        """What people are to be told."""
        return take_alerts(self.store, [self.store.shard_of("tick")], 100)[0].found


@pytest.fixture
def make(redis_url: str) -> Iterator[Any]:
    made: list[Tick] = []

    def make(**end_rules: Any) -> Tick:
        made.append(Tick(redis_url, **end_rules))
        return made[-1]

    yield make
    for tick in made:
        tick.close()


def test_all_run_in_order(make: Any) -> None:
    """buffer_all: each waits for its turn; at the end of one the oldest is overdue, whichever came first."""
    tick = make(overlap="buffer_all")
    assert isinstance(tick.begin(1), Begun)
    for number in (3, 4, 2):
        assert tick.begin(number) == Waits(tick.start(1))
        assert tick.due_in(number) > 300, "no beat asks for it"
    for number, following in itertools.pairwise([1, 2, 3, 4]):
        assert tick.due_after_end(number) == [following]
        assert tick.due_after_end(number) == [following], "the reply was lost"
        assert tick.begin(9, "late") == Waits(tick.start(following)), "which goes first"
        tick.publish(following)
        assert 30 < tick.due_in(following) <= 60, "its message may be lost, and others wait for it"
        assert isinstance(tick.begin(following), Begun)
    assert tick.due_after_end(4) == [9]
    assert isinstance(tick.begin(9), Begun)
    assert tick.due_after_end(9) == []
    assert tick.raw.hget(tick.store.entry_key("tick"), "waits") is None
    assert not tick.raw.exists(tick.store.keys.of_shard("lines", tick.store.shard_of("tick"))), (
        "no beat looks between sweeps"
    )
    assert tick.counts == {"done": 5}


def test_one_waits(make: Any) -> None:
    """Of the new ones the newest waits, however they come; the others are skipped and recorded."""
    for order in ([2, 3, 4], [4, 3, 2], [3, 4, 2]):
        tick = make(overlap="buffer_one")
        tick.begin(1)
        over = set()
        for number in order:
            reply = tick.begin(number)
            over |= {number} if reply == Closed("skipped") else set()
            over |= {each for each in (2, 3, 4) for start in getattr(reply, "skipped", ()) if start == tick.start(each)}
        assert over == {2, 3}
        assert tick.counts == {"skipped": 2}
        assert tick.due_after_end(1) == [4]
        assert isinstance(tick.begin(4), Begun)
        assert tick.end(4) == Finished()
        assert tick.begin(3, "copy") == Closed("")
        tick.raw.flushall()


def test_what_is_passed_over_is_counted_where_it_belongs_and_told(make: Any) -> None:
    """A window from before the definition's last change counts apart; each one is told by its name."""
    tick = make(overlap="buffer_one", on_failure="proj.tell")
    tick.begin(1)
    tick.begin(2)
    tick.raw.hset(tick.store.entry_key("tick"), "since", format_instant(tick.start(2)))
    assert tick.begin(3) == Waits(tick.start(1), skipped=(tick.start(2),))
    assert tick.begin(4) == Waits(tick.start(1), skipped=(tick.start(3),))
    assert tick.counts == {"skipped": 1}
    assert tick.raw.hget(tick.store.entry_key("tick"), "x:skipped") == "1"
    assert [(alert.window.start, alert.ended.outcome) for alert in tick.alerts()] == [
        (tick.start(2), "skipped"),
        (tick.start(3), "skipped"),
    ]


@pytest.mark.parametrize(("seconds", "reply"), [(55, Closed), (65, Begun)])
def test_what_died_keeps_others_away_for_a_minute(make: Any, seconds: float, reply: type) -> None:
    """Without overlap it goes before what is new, until no beat can be about to publish it any more."""
    tick = make(overlap="skip")
    tick.begin(1)
    tick.die(1, seconds)
    assert isinstance(tick.begin(2), reply)


def test_what_is_put_off_keeps_nobody_away(make: Any) -> None:
    """No beat that lives knows the entry, so nobody publishes what died: what is new begins."""
    tick = make(overlap="skip")
    tick.begin(1)
    tick.die(1)
    (reply,) = tick.store.postpone_many("beat", [(tick.window(1), "unknown")], 600.0)
    assert reply == "postponed"
    assert isinstance(tick.begin(2), Begun)


def test_what_was_put_off_and_continues_has_its_turn(make: Any) -> None:
    """Its process was only frozen: no other window runs beside it."""
    tick = make(overlap="skip")
    fence = tick.begin(1).fence
    tick.die(1)
    assert tick.store.postpone_many("beat", [(tick.window(1), "unknown")], 600.0) == ["postponed"]
    assert tick.store.renew_many([Renewal(tick.window(1), "w1", fence, 30.0, True)]) == [Renewed()]
    assert tick.begin(2) == Closed("skipped")


def test_what_is_put_off_gives_its_turn(make: Any) -> None:
    """The same with a buffer: the next that waits is overdue."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    tick.die(1)
    assert tick.store.postpone_many("beat", [(tick.window(1), "unknown")], 600.0) == ["postponed"]
    assert tick.due_in(2) < 60
    assert isinstance(tick.begin(2), Begun)


def test_what_has_its_turn_is_skipped_no_more(make: Any) -> None:
    """buffer_one: it is overdue, or published; newer ones wait behind it."""
    tick = make(overlap="buffer_one")
    tick.begin(1)
    tick.begin(2)
    assert tick.due_after_end(1) == [2]
    assert tick.begin(3) == Waits(tick.start(2))
    assert tick.begin(4) == Waits(tick.start(2), skipped=(tick.start(3),))
    assert isinstance(tick.begin(2), Begun)
    assert tick.due_after_end(2) == [4]
    assert tick.counts == {"done": 2, "skipped": 1}


@pytest.mark.long
def test_a_thousand_wait(make: Any) -> None:
    """Further new ones are skipped, and it is recorded why; a copy of one that waits, or what was ordered, isn't."""
    tick = make(overlap="buffer_all", on_failure="proj.tell")
    last = 1003
    asked = [ClaimRequest(tick.window(number), START + (number - 1) * MINUTE, "mark") for number in range(10, last + 1)]
    assert all(isinstance(reply, Claimed) for reply in tick.store.claim_many("beat", asked))
    tick.begin(1)
    for number in range(2, 1002):
        assert tick.begin(number) == Waits(tick.start(1))
    why = "1000 windows of its entry wait already"
    assert tick.begin(last - 1) == Closed("skipped", why=why)
    assert [(alert.window.start, alert.ended.failure) for alert in tick.alerts()] == [(tick.start(last - 1), why)]
    assert tick.begin(9, "copy") == Waits(tick.start(1))
    assert isinstance(backfill_many(tick.store, [(tick.window(last - 1), "order")], 5.0)[0], Claimed)
    ordered = WindowKey("tick", tick.start(last - 1), sent_as="of the order")
    assert tick.store.begin(ordered, "B", 30.0) == Waits(tick.start(1))
    assert tick.due_after_end(1) == [last - 1], "it was ordered"
    tick.store.begin(ordered, "B", 30.0)
    assert abandon_many(tick.store, [(tick.window(number), "order") for number in (2, 3)]) == [Finished()] * 2
    assert tick.begin(last) == Waits(tick.start(last - 1)), "there is room again"
    assert tick.counts == {"skipped": 1, "done": 1, "cancelled": 2}


def test_a_retry_keeps_the_turn(make: Any) -> None:
    """The others wait for the end of it, not for the end of its first execution."""
    tick = make(overlap="buffer_all")
    fence = tick.begin(1).fence
    tick.begin(2)
    tick.store.hand_over(tick.window(1), "w1", fence, 1, 60.0, 600.0)
    assert tick.begin(3) == Waits(tick.start(1))
    tick.overdue(2)
    assert tick.take(2) == Unchanged("waits"), "it isn't its turn"
    assert isinstance(tick.begin(1, "again", 1), Begun)
    assert tick.due_after_end(1, owner="again") == [2]


def test_one_that_runs_again_later_gives_its_turn(make: Any) -> None:
    """retry_failed_after: the next one runs meanwhile; then the failed one waits, and goes before what is new."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    tick.begin(3)
    assert tick.due_after_end(1, "failed", 60.0) == [2]
    assert tick.end(1, "failed", 60.0) == Again(), "sent again"
    tick.begin(2)
    tick.overdue(1)
    assert tick.take(1) == Unchanged("waits")
    assert tick.due_after_end(2) == [1], "it has begun before"
    assert isinstance(tick.take(1), Taken)
    assert isinstance(tick.begin(1, "again"), Begun)
    assert tick.due_after_end(1, owner="again") == [3]


def test_what_died_goes_first(make: Any) -> None:
    """The dead holder is recovered before what waits; given up, it calls the next."""
    tick = make(overlap="buffer_all", max_attempts=2)
    tick.begin(1)
    tick.begin(2)
    tick.die(1)
    assert tick.begin(3) == Waits(tick.start(1))
    assert isinstance(tick.take(1), Taken)
    assert isinstance(tick.begin(1, "B"), Begun)
    assert tick.begin(4) == Waits(tick.start(1))
    tick.die(1)
    assert tick.take(1) == Closed("abandoned")
    assert tick.due() == [2]
    assert isinstance(tick.take(2) if tick.overdue(2) is None else None, Taken)
    assert isinstance(tick.begin(2), Begun)
    assert tick.counts == {"abandoned": 1}


def test_who_is_dead_and_taken_by_nobody_blocks_nobody(make: Any) -> None:
    """No beat lives: after a while a begin finds whose turn it is, and calls that one."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    tick.die(1, seconds_ago=61)
    assert tick.begin(3) == Waits(tick.start(2))
    assert tick.due() == [1, 2]
    assert isinstance(tick.begin(2), Begun)
    assert tick.begin(1, "late") == Waits(tick.start(2)), "it died, and waits for the one that runs"
    assert tick.due_after_end(2) == [1], "it has begun before"


def test_a_stale_holder_calls_nobody(make: Any) -> None:
    """It ended after others began: nothing is recorded, and it has no turn to give."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    tick.die(1, seconds_ago=61)
    tick.begin(3)
    tick.begin(2)
    assert tick.end(1) == Stale()
    assert isinstance(tick.begin(3), Waits)


def test_abandoned_by_order_the_holder_gives_its_turn(make: Any) -> None:
    """The next one is overdue at once: nobody else publishes it."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    assert abandon_many(tick.store, [(tick.window(1), "order")], running=True) == [Finished()]
    assert tick.due() == [2]
    tick.overdue(2)
    assert isinstance(tick.take(2), Taken)
    assert tick.end(1) == Stale()


def test_a_beat_that_asks_too_early(make: Any) -> None:
    """The deadline of one that waits has passed, and it isn't its turn: it is put off, and stays in line."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    tick.overdue(2)
    assert tick.take(2) == Unchanged("waits")
    assert tick.due_in(2) > 300
    assert tick.due_after_end(1) == [2]


def test_what_was_ordered_waits_and_goes_first(make: Any) -> None:
    """A backfill isn't skipped, and runs before new ones that wait, also where it is of a later time."""
    tick = make(overlap="buffer_one")
    tick.begin(6)
    tick.end(6)
    assert isinstance(tick.begin(5), Begun)
    assert isinstance(backfill_many(tick.store, [(tick.window(6), "order")], 5.0)[0], Claimed)
    assert tick.begin(2) == Waits(tick.start(5))
    ordered = WindowKey("tick", tick.start(6), sent_as="of the order")
    assert tick.store.begin(ordered, "B", 30.0) == Waits(tick.start(5))
    assert tick.due_after_end(5) == [6]


def test_a_beat_calls_those_that_the_dead_leave_room_for(redis_url: str) -> None:
    """The first in line has ended meanwhile: the next tick calls the one behind it, to be published at once."""
    tick = Tick(redis_url, most=1)
    for number in (1, 2, 3):
        slot = acquire_slot(tick.store, "reports", 1, tick.window(number), f"w{number}", 30.0)
        tick.begin(number, no_slot="reports" if slot == Full() else "")
    abandon_many(tick.store, [(tick.window(2), "order")])
    tick.raw.delete(tick.store.keys.of_limit("reports")["slots"])  # its lease is over
    hurried, report = [], BeatReport(0.0, 0.0, 1, 0, "1")
    part = Part(SimpleNamespace(store=tick.store, recovery=SimpleNamespace(hurry=lambda: hurried.append(True))))

    def sweep() -> Any:
        found = tick.store.overdue("beat", datetime.now(timezone.utc), 100, requests=part.before_sweep(report))
        return part.after_sweep(found, found.replies)

    assert (sweep(), hurried, sweep()) == ([], [True], [tick.window(3)])
    tick.close()


def test_a_copy_of_what_waits(make: Any) -> None:
    """Begun again by another copy it waits still; an older retry's copy is refused."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    assert tick.begin(2, "copy") == Waits(tick.start(1))
    assert receive_many(tick.store, [(tick.window(2), 0, 30.0)]) == [Unchanged()], "its worker's death says nothing"
    assert tick.due_after_end(1) == [2]
    tick.publish(2)
    assert receive_many(tick.store, [(tick.window(2), 0, 30.0)]) == [Confirmed()]
    fence = tick.begin(2).fence
    tick.store.hand_over(tick.window(2), "w2", fence, 1, 0.0, 600.0)
    assert isinstance(tick.begin(2, "copy", 0), Busy)


def test_no_slot_and_buffer(make: Any) -> None:
    """A window without a slot of its limit has its turn and waits; the others of its entry wait for it."""
    tick = make(overlap="buffer_all")
    assert tick.begin(1, no_slot="reports") == Waits(None)
    assert tick.begin(2) == Waits(tick.start(1))
    assert tick.due() == [], "it has its turn, and waits for a slot"
    assert tick.make_due(1)
    assert tick.due() == [1]
    assert isinstance(tick.begin(1), Begun)
    assert not tick.make_due(1), "it runs"
    assert tick.due_after_end(1) == [2]


def test_what_waits_for_a_slot_keeps_the_turn_that_it_was_given(make: Any) -> None:
    """Also where it is the last in line: a newer one that finds a slot waits for it."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    assert tick.begin(2) == Waits(tick.start(1))
    assert tick.due_after_end(1) == [2]
    tick.publish(2)
    assert tick.begin(2, no_slot="reports") == Waits(None)
    assert tick.begin(3) == Waits(tick.start(2))
    assert isinstance(tick.begin(2), Begun)


def test_a_message_that_nobody_consumes_isnt_sent_again_and_again(make: Any) -> None:
    """Called for a slot, its message is out: it waits in no line until somebody has consumed that."""
    tick = make()
    tick.begin(1, no_slot="reports")
    assert tick.make_due(1)
    tick.publish(1)
    assert not tick.make_due(1)
    assert tick.begin(1, no_slot="reports") == Waits(None), "it was consumed, and there is no slot"
    assert tick.make_due(1)


def test_what_gets_its_turn_in_the_same_step_isnt_passed_over(make: Any) -> None:
    """buffer_one: the dead one has the turn no more, and a new one waits for the one that has it now."""
    tick = make(overlap="buffer_one")
    tick.begin(1)
    tick.begin(2)
    tick.die(1, seconds_ago=61)
    assert tick.begin(3) == Waits(tick.start(2))
    assert isinstance(tick.begin(2), Begun)
    assert tick.due_after_end(2) == [1, 3]


def test_for_what_each_waits(make: Any) -> None:
    """What people read is what the store goes by: who runs, who goes first."""
    tick = make(overlap="buffer_all")
    lookup = Lookup(tick.store)

    def waits() -> dict[int, int | str | None]:
        seen = lookup.entry("tick", 20).windows
        numbers = {tick.start(number): number for number in range(10)}
        return {
            numbers[each.start]: numbers[each.waits_for] if each.waits_for else each.limit
            for each in seen
            if each.open and each.open.waits
        }

    tick.begin(1)
    for number in (2, 3):
        tick.begin(number)
    assert waits() == {2: 1, 3: 1}
    tick.end(1)
    assert waits() == {2: None, 3: 2}, "it is its turn"
    assert tick.begin(2, no_slot="reports") == Waits(None)
    assert waits() == {2: "reports", 3: 2}
    tick.begin(2)
    assert waits() == {3: 2}
    tick.die(2, seconds_ago=61)
    tick.begin(3)
    tick.begin(2, "late")
    assert waits() == {2: 3}
    tick.begin(4)
    assert waits() == {2: 3, 4: 3}
    tick.end(3)
    assert waits() == {2: None, 4: 2}, "it has begun before"
