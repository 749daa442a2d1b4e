"""Windows that wait for each other: which one waits, which is next, what becomes of the others. Verb by verb."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from stage import ENTRY, HOLDER, MARK, T0, Stage, nth

from celery_once_beat.features.admission.beat import Part
from celery_once_beat.features.admission.store import Full, acquire_slot, make_due
from celery_once_beat.features.orders.store import abandon_many, backfill_many
from celery_once_beat.features.reserved.store import receive_many
from celery_once_beat.lookup import Lookup
from celery_once_beat.store import model as r
from celery_once_beat.windows import WindowKey, format_instant


def window(number: int) -> WindowKey:
    return WindowKey(ENTRY, nth(number))


class Tick(Stage):
    """The entry with claimed and published windows 1 to 9; what a test asks for is of the window with that number."""

    def __init__(self, url: str, most: int = 0, of_task: str = "allow", **end_rules: Any) -> None:
        super().__init__(url, limits={"reports": most} if most else {}, recovery_interval=5.0, claim_lease=20.0)
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

    def due_after_end(self, number: int, *given: Any, **more: Any) -> list[int]:
        """End it; return the windows that are overdue then."""
        self.end(number, *given, **more)
        return self.due()

    def due(self) -> list[int]:
        """The windows that a beat's sweep takes next."""
        found = self.store.overdue("beat-1", datetime.now(timezone.utc), 100).shards[self.shard_number]
        return [(window.start - T0) // (nth(1) - T0) for window in found]

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

    def alerts(self) -> list[Any]:
        """What people are to be told."""
        return self.take_alerts()[0].found


@pytest.fixture
def make(redis_url: str, close_later: Callable[[Any], Any]) -> Callable[..., Tick]:
    return lambda **given: close_later(Tick(redis_url, **given))


def test_all_run_in_order(make: Any) -> None:
    """buffer_all: each waits for its turn; at the end of one the oldest is overdue, whichever came first."""
    tick = make(overlap="buffer_all")
    assert isinstance(tick.begin(1), r.Begun)
    for number in (3, 4, 2):
        assert tick.begin(number) == r.Waits(nth(1))
        assert tick.due_in(number) > 300, "no beat asks for it"
    for number, following in itertools.pairwise([1, 2, 3, 4]):
        assert tick.due_after_end(number) == [following]
        assert tick.due_after_end(number) == [following], "the reply was lost"
        assert tick.begin(9, "late") == r.Waits(nth(following)), "which goes first"
        tick.publish(following)
        assert 30 < tick.due_in(following) <= 60, "its message may be lost, and others wait for it"
        assert isinstance(tick.begin(following), r.Begun)
    assert tick.due_after_end(4) == [9]
    assert isinstance(tick.begin(9), r.Begun)
    assert tick.due_after_end(9) == []
    assert tick.raw.hget(tick.entry_key, "waits") is None
    assert not tick.raw.exists(tick.store.keys.of_shard("lines", tick.shard_number)), "no beat looks between sweeps"
    assert tick.counts() == {"done": 5}


def test_one_waits(make: Any) -> None:
    """Of the new ones the newest waits, however they come; the others are skipped and recorded."""
    for order in ([2, 3, 4], [4, 3, 2], [3, 4, 2]):
        tick = make(overlap="buffer_one")
        tick.begin(1)
        over = set()
        for number in order:
            reply = tick.begin(number)
            over |= {number} if reply == r.Closed("skipped") else set()
            over |= {each for each in (2, 3, 4) for start in getattr(reply, "skipped", ()) if start == nth(each)}
        assert over == {2, 3}
        assert tick.counts() == {"skipped": 2}
        assert tick.due_after_end(1) == [4]
        assert isinstance(tick.begin(4), r.Begun)
        assert tick.end(4) == r.Finished()
        assert tick.begin(3, "copy") == r.Closed("")
        tick.raw.flushall()


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


@pytest.mark.parametrize(("seconds", "reply"), [(55, r.Closed), (65, r.Begun)])
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
    tick.put_off(1)
    assert isinstance(tick.begin(2), r.Begun)


def test_what_was_put_off_and_continues_has_its_turn(make: Any) -> None:
    """Its process was only frozen: no other window runs beside it."""
    tick = make(overlap="skip")
    fence = tick.begin(1).fence
    tick.die(1)
    tick.put_off(1)
    assert tick.store.renew_many([r.Renewal(window(1), "w1", fence, 30.0, True)]) == [r.Renewed()]
    assert tick.begin(2) == r.Closed("skipped")


def test_what_is_put_off_gives_its_turn(make: Any) -> None:
    """The same with a buffer: the next that waits is overdue."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    tick.die(1)
    tick.put_off(1)
    assert tick.due_in(2) < 60
    tick.put_off(2)
    tick.overdue(2)
    assert isinstance(tick.take(2), r.Taken), "a beat has the entry again"
    assert tick.begin(3) == r.Waits(nth(2))
    assert isinstance(tick.begin(2), r.Begun)


def test_what_has_its_turn_is_skipped_no_more(make: Any) -> None:
    """buffer_one: it is overdue, or published; newer ones wait behind it."""
    tick = make(overlap="buffer_one")
    tick.begin(1)
    tick.begin(2)
    assert tick.due_after_end(1) == [2]
    assert tick.begin(3) == r.Waits(nth(2))
    assert tick.begin(4) == r.Waits(nth(2), skipped=(nth(3),))
    assert isinstance(tick.begin(2), r.Begun)
    assert tick.due_after_end(2) == [4]
    assert tick.counts() == {"done": 2, "skipped": 1}


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
    assert tick.due_after_end(1) == [last - 1], "it was ordered"
    tick.store.begin(ordered, "B", 30.0)
    assert abandon_many(tick.store, [(window(number), "order") for number in (2, 3)]) == [r.Finished()] * 2
    assert tick.begin(last) == r.Waits(nth(last - 1)), "there is room again"
    assert tick.counts() == {"skipped": 1, "done": 1, "cancelled": 2}


def test_a_retry_keeps_the_turn(make: Any) -> None:
    """The others wait for the end of it, not for the end of its first execution."""
    tick = make(overlap="buffer_all")
    fence = tick.begin(1).fence
    tick.begin(2)
    tick.store.hand_over(window(1), "w1", fence, 1, 60.0, 600.0)
    assert tick.begin(3) == r.Waits(nth(1))
    tick.overdue(2)
    assert tick.take(2) == r.Unchanged("waits"), "it isn't its turn"
    assert isinstance(tick.begin(1, "again", 1), r.Begun)
    assert tick.due_after_end(1, owner="again") == [2]


def test_one_that_runs_again_later_gives_its_turn(make: Any) -> None:
    """retry_failed_after: the next one runs meanwhile; then the failed one waits, and goes before what is new."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    tick.begin(3)
    assert tick.due_after_end(1, "failed", 60.0) == [2]
    assert tick.end(1, "failed", 60.0) == r.Again(), "sent again"
    tick.begin(2)
    tick.overdue(1)
    assert tick.take(1) == r.Unchanged("waits")
    assert tick.due_after_end(2) == [1], "it has begun before"
    assert isinstance(tick.take(1), r.Taken)
    assert isinstance(tick.begin(1, "again"), r.Begun)
    assert tick.due_after_end(1, owner="again") == [3]
    tick.begin(3)
    assert tick.due_after_end(3, "failed", 60.0) == []
    tick.overdue(3)
    assert isinstance(tick.take(3), r.Taken)
    assert tick.begin(4) == r.Waits(nth(3)), "its message is out"


def test_what_died_goes_first(make: Any) -> None:
    """The dead holder is recovered before what waits; given up, it calls the next."""
    tick = make(overlap="buffer_all", max_attempts=2)
    tick.begin(1)
    tick.begin(2)
    tick.die(1)
    assert tick.begin(3) == r.Waits(nth(1))
    assert isinstance(tick.take(1), r.Taken)
    assert isinstance(tick.begin(1, "B"), r.Begun)
    assert tick.begin(4) == r.Waits(nth(1))
    tick.die(1)
    assert tick.take(1) == r.Closed("abandoned")
    assert tick.due() == [2]
    assert isinstance(tick.take(2), r.Taken)
    assert isinstance(tick.begin(2), r.Begun)
    assert tick.counts() == {"abandoned": 1}


def test_who_is_dead_and_taken_by_nobody_blocks_nobody(make: Any) -> None:
    """No beat lives: after a while a begin finds whose turn it is, and calls that one."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    tick.die(1, seconds_ago=61)
    assert tick.begin(3) == r.Waits(nth(2))
    assert tick.due() == [1, 2]
    assert isinstance(tick.begin(2), r.Begun)
    assert tick.begin(1, "late") == r.Waits(nth(2)), "it died, and waits for the one that runs"
    assert tick.due_after_end(2) == [1], "it has begun before"


def test_a_stale_holder_calls_nobody(make: Any) -> None:
    """It ended after others began: nothing is recorded, and it has no turn to give."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    tick.die(1, seconds_ago=61)
    tick.begin(3)
    tick.begin(2)
    assert tick.end(1) == r.Stale()
    assert isinstance(tick.begin(3), r.Waits)


def test_abandoned_by_order_the_holder_gives_its_turn(make: Any) -> None:
    """The next one is overdue at once: nobody else publishes it."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    assert abandon_many(tick.store, [(window(1), "order")], running=True) == [r.Finished()]
    assert tick.due() == [2]
    tick.overdue(2)
    assert isinstance(tick.take(2), r.Taken)
    assert tick.end(1) == r.Stale()


def test_a_beat_that_asks_too_early(make: Any) -> None:
    """The deadline of one that waits has passed, and it isn't its turn: it is put off, and stays in line."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    tick.overdue(2)
    assert tick.take(2) == r.Unchanged("waits")
    assert tick.due_in(2) > 300
    assert tick.due_after_end(1) == [2]


def test_what_was_ordered_waits_and_goes_first(make: Any) -> None:
    """A backfill isn't skipped, and runs before new ones that wait, also where it is of a later time."""
    tick = make(overlap="buffer_one")
    tick.begin(6)
    tick.end(6)
    assert isinstance(tick.begin(5), r.Begun)
    tick.order(6)
    assert tick.begin(2) == r.Waits(nth(5))
    ordered = WindowKey(ENTRY, nth(6), sent_as="of the order")
    assert tick.store.begin(ordered, "B", 30.0) == r.Waits(nth(5))
    assert tick.due_after_end(5) == [6]


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


def test_a_copy_of_what_waits(make: Any) -> None:
    """Begun again by another copy it waits still; an older retry's copy is refused."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    tick.begin(2)
    assert tick.begin(2, "copy") == r.Waits(nth(1))
    assert receive_many(tick.store, [(window(2), 0, 30.0, HOLDER)]) == [r.Unchanged()], (
        "its worker's death says nothing"
    )
    assert tick.due_after_end(1) == [2]
    tick.publish(2)
    assert receive_many(tick.store, [(window(2), 0, 30.0, HOLDER)]) == [r.Confirmed()]
    fence = tick.begin(2).fence
    tick.store.hand_over(window(2), "w2", fence, 1, 0.0, 600.0)
    assert isinstance(tick.begin(2, "copy", 0), r.Busy)


def test_no_slot_and_buffer(make: Any) -> None:
    """A window without a slot of its limit has its turn and waits; the others of its entry wait for it."""
    tick = make(overlap="buffer_all")
    assert tick.begin(1, no_slot="reports") == r.Waits(None)
    assert tick.begin(2) == r.Waits(nth(1))
    assert tick.due() == [], "it has its turn, and waits for a slot"
    assert tick.make_due(1)
    assert tick.due() == [1]
    assert isinstance(tick.begin(1), r.Begun)
    assert not tick.make_due(1), "it runs"
    assert tick.due_after_end(1) == [2]


def test_what_waits_for_a_slot_keeps_the_turn_that_it_was_given(make: Any) -> None:
    """Also where it is the last in line: a newer one that finds a slot waits for it."""
    tick = make(overlap="buffer_all")
    tick.begin(1)
    assert tick.begin(2) == r.Waits(nth(1))
    assert tick.due_after_end(1) == [2]
    tick.publish(2)
    assert tick.begin(2, no_slot="reports") == r.Waits(None)
    assert tick.begin(3) == r.Waits(nth(2))
    assert isinstance(tick.begin(2), r.Begun)


def test_a_message_that_nobody_consumes_isnt_sent_again_and_again(make: Any) -> None:
    """Called for a slot, its message is out: it waits in no line until somebody has consumed that."""
    tick = make()
    tick.begin(1, no_slot="reports")
    assert tick.make_due(1)
    tick.publish(1)
    assert not tick.make_due(1)
    assert tick.begin(1, no_slot="reports") == r.Waits(None), "it was consumed, and there is no slot"
    assert tick.make_due(1)


def test_what_gets_its_turn_in_the_same_step_isnt_passed_over(make: Any) -> None:
    """buffer_one: the dead one has the turn no more, and a new one waits for the one that has it now."""
    tick = make(overlap="buffer_one")
    tick.begin(1)
    tick.begin(2)
    tick.die(1, seconds_ago=61)
    assert tick.begin(3) == r.Waits(nth(2))
    assert isinstance(tick.begin(2), r.Begun)
    assert tick.due_after_end(2) == [1, 3]


def test_for_what_each_waits(make: Any) -> None:
    """What people read is what the store goes by: who runs, who goes first."""
    tick = make(overlap="buffer_all")
    lookup = Lookup(tick.store)

    def waits() -> dict[int, int | str | None]:
        seen = lookup.entry(ENTRY, 20).windows
        numbers = {nth(number): number for number in range(10)}
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
    assert tick.begin(2, no_slot="reports") == r.Waits(None)
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


def test_who_counts_as_running(make: Any) -> None:
    """A window that runs or waits for its retry; not one whose lease is over, or that is to run again later."""
    tick = make(of_task="skip")
    tick.begin(1)
    assert tick.begin(2) == r.Closed("skipped")
    assert tick.begin(2) == r.Closed("skipped"), "its reply was lost"
    tick.start = nth(1)
    tick.hand_over("w1")
    assert tick.begin(3) == r.Closed("skipped"), "its retry is to come"
    tick.begin(1, retry=1)
    tick.overdue(1)
    assert tick.begin(4) == r.Closed("skipped"), "the first is overdue: it may be dead, and goes first"
    tick.end(1, "failed", 60.0)
    assert isinstance(tick.begin(5), r.Begun), "the first runs again in a minute"
    assert tick.counts() == {"skipped": 3}


def test_who_waits_and_who_comes_back(make: Any) -> None:
    """One that died, or was ordered, waits instead. One that was out of contact isn't let in beside another."""
    tick = make(of_task="skip")
    tick.begin(1)
    tick.die(1)
    tick.raw.hdel(tick.entry_key, "running")  # an older version let the next one begin
    assert isinstance(tick.begin(2), r.Begun)
    tick.start = nth(1)
    assert tick.renew("w1") == r.Stale()
    tick.end(2)
    tick.start = nth(1)
    assert tick.renew("w1") == r.Renewed(), "nobody began since"
    assert tick.begin(3) == r.Closed("skipped"), "it runs again, so it blocks again"
    tick.end(1)
    for number in (2, 3):
        tick.order(number)
    assert isinstance(tick.begin(2, "E"), r.Begun)
    assert tick.begin(3, "F") == r.Waits(nth(2))
    assert tick.confirm(revision=1) == r.Unchanged(), "it waits already: that copy is gone"
    assert tick.counts() == {"done": 2, "skipped": 1}


def test_who_has_begun_before_goes_first(make: Any) -> None:
    """Dead, it keeps new ones back; where another runs, it waits, and is the next."""
    tick = make(of_task="skip")
    tick.begin(1)
    tick.die(1)
    assert tick.begin(2) == r.Closed("skipped")
    tick.raw.hdel(tick.entry_key, "running")  # an older version lets new ones begin
    assert isinstance(tick.begin(3), r.Begun)
    assert tick.take(1) == r.Unchanged("waits")
    assert tick.due() == []
    assert tick.due_after_end(3) == [1]
    assert tick.begin(4) == r.Closed("skipped"), "it waits, and is to go next"
    assert isinstance(tick.take(1), r.Taken)
    assert tick.begin(5) == r.Closed("skipped"), "its message is on its way"
    assert tick.begin(1, "F").attempt == 2
    assert tick.counts() == {"done": 1, "skipped": 3}


@pytest.mark.parametrize("why", ["its limit is reached", "nobody takes it"])
def test_who_cant_run_again_keeps_nobody_from_running(make: Any, why: str) -> None:
    """No beat that lives takes it, or all its executions died: new ones go on."""
    tick = make(of_task="skip", max_attempts=2)
    for owner in ("A", "B") if why == "its limit is reached" else ("A",):
        assert isinstance(tick.begin(1, owner), r.Begun)
        tick.die(1, 61.0 if why == "nobody takes it" else 0.001)
    assert isinstance(tick.begin(2), r.Begun)
