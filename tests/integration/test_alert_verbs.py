"""What is to be said of a window, in the store: when it becomes due, who says it, and that it is said once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from stage import ENTRY, STATES, T0, Stage, nth

from celery_once_beat.errors import StoreDataError
from celery_once_beat.store import Ending
from celery_once_beat.store.codec import read_members
from celery_once_beat.store.model import (
    FIRST_ALERT,
    Alert,
    AlertDetails,
    Closed,
    Ended,
    Finished,
    Forgotten,
    Paused,
    Unchanged,
)
from celery_once_beat.windows import format_instant

ALL = {"deadline": 900.0, "pause_after_failures": 2, "on_failure": "proj.tell"}


@pytest.fixture
def stage(any_url: str) -> Iterator[Stage]:
    stage = Stage(any_url)
    stage.load(**ALL)
    yield stage
    stage.close()


def alerts(stage: Stage) -> dict[str, int]:
    """The notices there are: kind → when it is due, server ms."""
    found = stage.raw.zrange(stage.open_key, 0, -1, withscores=True)
    read = {member: (alert, int(score)) for (member, score) in found for alert in read_members([member])}
    return {alert.kind: at - FIRST_ALERT for alert, at in read.values() if isinstance(alert, Alert)}


def due(stage: Stage, kind: str) -> None:
    stage.raw.zadd(stage.open_key, {f"{stage.member}!{kind}": FIRST_ALERT + stage.now() - 1}, xx=True)


#: The turns that beats were given.
turns: dict[tuple[str, str], int] = {}


def tell(stage: Stage, kind: str, beat: str = "beat-1", *, known: bool = True) -> Any:
    reply = stage.store.take_alerts(beat, [(Alert(stage.window, kind), known)])[0]
    turns[beat, kind] = getattr(reply, "turn", turns.get((beat, kind), 0))
    return reply


def told(stage: Stage, kind: str, beat: str = "beat-1") -> bool:
    return stage.store.confirm_alert(Alert(stage.window, kind), turns[beat, kind])


def end(stage: Stage, outcome: str, failure: str = "") -> None:
    stage.claim()
    stage.confirm()
    fence = stage.begin("A").fence
    assert stage.store.finish(Ending(stage.window, "A", fence, outcome, failure=failure)) == Finished()


def fields(stage: Stage) -> set[str]:
    """What of a notice is left in the hash."""
    return {name for name in stage.raw.hkeys(stage.entry_key) if name[:2] in ("e:", "n:") or name == "streak"}


def test_a_window_that_is_done_in_time_leaves_nothing(stage: Stage) -> None:
    """Its deadline is kept from its claim to its end."""
    stage.claim()
    assert alerts(stage) == {"late": (stage.start - T0.replace(year=1970)).total_seconds() * 1000 + 900_000}
    stage.confirm()
    stage.begin("A")
    assert stage.finish("A") == Finished()
    assert alerts(stage) == {}
    assert fields(stage) == set()


def test_late_is_said_once(stage: Stage) -> None:
    """One beat says it; sent again it is answered the same; what that beat doesn't say, another one does."""
    stage.claim()
    stage.raw.zadd(stage.open_key, {f"{stage.member}!late": FIRST_ALERT + stage.now() + 60_000}, xx=True)
    assert tell(stage, "late") == Unchanged(), "it isn't due"
    due(stage, "late")
    first = tell(stage, "late")
    assert isinstance(first, AlertDetails)
    assert first.ended is None
    assert not first.paused
    assert tell(stage, "late") == first, "the reply was lost"
    assert tell(stage, "late", "beat-2") == Unchanged(), "another beat says it"
    due(stage, "late")
    assert isinstance(tell(stage, "late", "beat-2"), AlertDetails), "the first one died"
    assert told(stage, "late", "beat-2")
    assert told(stage, "late", "beat-2"), "the reply was lost"
    assert tell(stage, "late") == Unchanged()
    assert stage.store.account(ENTRY).late == 1
    assert (alerts(stage), fields(stage)) == ({}, set())


def test_what_a_slow_beat_says_is_said(stage: Stage) -> None:
    """Another beat has taken it meanwhile. If that one alone could end it, two slow ones would go on for ever."""
    stage.claim()
    for beat in ("beat-1", "beat-2", "beat-1"):
        due(stage, "late")
        assert isinstance(tell(stage, "late", beat), AlertDetails)
    assert told(stage, "late", "beat-2")
    assert alerts(stage) == {}
    assert told(stage, "late", "beat-1")
    assert stage.store.account(ENTRY).late == 1


@pytest.mark.parametrize("outcome", ["failed", "revoked"])
def test_an_end_that_is_not_done_is_told_and_stays_late(stage: Stage, outcome: str) -> None:
    """What its failure said is told with it; the window is late all the same, since it isn't done."""
    end(stage, outcome, "ValueError: no")
    assert alerts(stage).keys() == {"late", "ended"}
    said = tell(stage, "ended")
    assert said.ended == Ended(outcome, said.ended.at, 1, "ValueError: no")
    assert told(stage, "ended")
    due(stage, "late")
    assert tell(stage, "late").ended == said.ended
    assert told(stage, "late")
    assert {name[:2] for name in fields(stage)} <= {"st"}
    assert alerts(stage) == {}


def test_a_beat_that_slept_does_not_remove_a_later_end(stage: Stage) -> None:
    """The window ran again by order, and failed again: that is to be told too."""
    end(stage, "failed", "first")
    assert tell(stage, "ended").ended.failure == "first"
    stage.backfill()
    fence = stage.begin("B").fence
    stage.store.finish(Ending(stage.window, "B", fence, "failed", failure="second"))
    assert told(stage, "ended")
    first = turns["beat-1", "ended"]
    assert tell(stage, "ended").ended.failure == "second"
    assert not stage.store.confirm_alert(Alert(stage.window, "ended"), first), "it came late, once more"
    due(stage, "ended")
    assert tell(stage, "ended", "beat-2").ended.failure == "second"
    stage.backfill()
    stage.begin("C")
    stage.finish("C")
    assert told(stage, "ended", "beat-2")
    assert fields(stage) == {"streak"}


@pytest.mark.parametrize("again", ["open", "done"])
def test_an_end_is_told_that_was_ordered_again_before(stage: Stage, again: str) -> None:
    """It ended in a failure, and somebody is to be told; how late it is goes by how it stands now."""
    end(stage, "failed", "ValueError: no")
    stage.backfill()
    if again == "done":
        stage.begin("B")
        stage.finish("B")
    said = tell(stage, "ended")
    assert (said.ended.outcome, said.ended.failure) == ("failed", "ValueError: no")
    assert told(stage, "ended")
    if again == "open":
        due(stage, "late")
        late = tell(stage, "late")
        assert (late.ended, late.open.backfill) == (None, True)
        assert told(stage, "late")
    assert alerts(stage) == {}
    assert fields(stage) == {"streak"}


def test_windows_that_are_passed_over_are_told_each(stage: Stage) -> None:
    """A claim that passes over some tells of each; while the entry is paused somebody orders it, and nobody is told."""
    stage.claim(start=nth(4), missed=[nth(1), nth(2), nth(3)], missed_count=3)
    for number in (1, 2, 3):
        stage.start = nth(number)
        due(stage, "ended")
        assert tell(stage, "ended").ended.outcome == "missed"
        assert told(stage, "ended")
    stage.store.pause(ENTRY)
    stage.claim(start=nth(6), since=nth(4), mode="pass", missed=[nth(5), nth(6)], missed_count=2)
    assert "ended" not in alerts(stage)


def test_windows_that_are_passed_over_are_told_only_on_failure(stage: Stage) -> None:
    """An entry that has a deadline alone keeps nothing of them."""
    stage.load(deadline=900.0)
    stage.claim(start=nth(4), missed=[nth(1), nth(2), nth(3)], missed_count=3)
    stage.start = nth(3)
    assert "ended" not in alerts(stage)
    assert not fields(stage)


def test_failures_in_a_row_pause_the_entry(stage: Stage) -> None:
    """A window that is done begins the row anew; a person's order, and what says nothing of the task, don't count."""
    for number, outcome in enumerate(["failed", "done", "failed", "revoked"], 1):
        stage.start = nth(number)
        stage.claim(since=nth(number - 1))
        fence = stage.begin("A").fence
        stage.store.finish(Ending(stage.window, "A", fence, outcome))
    stage.start = nth(5)
    stage.claim(since=nth(4))
    stage.abandon()
    assert not stage.store.account(ENTRY).paused
    stage.start = nth(6)
    stage.claim(since=nth(5))
    fence = stage.begin("A").fence
    stage.store.finish(Ending(stage.window, "A", fence, "failed"))
    account = stage.store.account(ENTRY)
    assert account.paused
    assert (account.paused_by, account.paused_for) == (
        "pause_after_failures",
        "2 windows in a row failed: 2026-01-01T00:03:00Z, 2026-01-01T00:06:00Z",
    )
    assert stage.claim(start=nth(7), since=nth(6)) == Paused()
    assert tell(stage, "paused").paused_for == account.paused_for
    assert told(stage, "paused")
    stage.store.resume(ENTRY)
    stage.start = nth(7)
    stage.claim(since=nth(6))
    fence = stage.begin("A").fence
    stage.store.finish(Ending(stage.window, "A", fence, "failed"))
    assert not stage.store.account(ENTRY).paused, "resumed: the row begins anew"


def test_nothing_counts_while_it_is_paused(stage: Stage) -> None:
    """What was open then ends, and a person who resumes it isn't surprised by the next failure."""
    for number in (1, 2, 3):
        stage.start = nth(number)
        stage.claim(since=nth(number - 1))
    stage.store.pause(ENTRY, '{"by": "anna", "note": "the mail server moves"}')
    for number in (1, 2):
        stage.start = nth(number)
        fence = stage.begin("A").fence
        stage.store.finish(Ending(stage.window, "A", fence, "failed"))
    account = stage.store.account(ENTRY)
    assert account.paused_by == "anna"
    stage.store.resume(ENTRY)
    stage.start = nth(3)
    fence = stage.begin("A").fence
    stage.store.finish(Ending(stage.window, "A", fence, "failed"))
    assert not stage.store.account(ENTRY).paused


def test_a_notice_of_an_entry_that_nobody_has(stage: Stage) -> None:
    """It is for beats that have the entry; once none has had it for an hour, it is forgotten."""
    end(stage, "failed")
    assert tell(stage, "ended", known=False) == Unchanged()
    stage.raw.zadd(stage.open_key, {f"{stage.member}!ended": FIRST_ALERT + stage.now() - 3_700_000}, xx=True)
    assert tell(stage, "ended", known=False) == Forgotten()
    assert "ended" not in alerts(stage)
    end_again = stage.start = nth(2)
    assert end_again
    stage.claim(since=nth(1))
    assert stage.discard("revoked") == Closed("revoked")
    stage.unload()
    assert tell(stage, "ended", known=False) == Forgotten(), "all beats have dropped it"


def test_without_the_settings_nothing_is_kept(any_url: str) -> None:
    """Of an entry that sets none of them, open has its windows alone, and its hash nothing more."""
    stage = Stage(any_url)
    stage.load(**ALL)
    stage.load()
    end(stage, "failed")
    assert alerts(stage) == {}
    assert not {"tells", "streak"} & set(stage.raw.hkeys(stage.entry_key))
    assert fields(stage) == set()
    stage.close()


@pytest.mark.parametrize("field", ALL)
def test_an_end_is_told_where_somebody_is_named(any_url: str, field: str) -> None:
    """The other two settings say nothing of each end."""
    stage = Stage(any_url)
    stage.load(**{field: ALL[field]})
    end(stage, "failed")
    assert ("ended" in alerts(stage)) is (field == "on_failure")
    stage.close()


@pytest.mark.parametrize("state", STATES)
def test_late_in_each_state(stage: Stage, state: str) -> None:
    """Whatever the state of a window, what is said of it is said once, and can be read."""
    stage.reach(state)
    stage.raw.zadd(stage.open_key, {f"{stage.member}!late": FIRST_ALERT + stage.now() - 1})
    answer = tell(stage, "late")
    assert isinstance(answer, (AlertDetails, Unchanged, Forgotten))
    assert tell(stage, "late") == answer, "the reply was lost"
    assert told(stage, "late")
    assert alerts(stage).get("late") is None


def test_nothing_is_left_of_an_entry_that_the_store_lost(stage: Stage) -> None:
    """What is said of its windows makes no key that lives for ever."""
    end(stage, "failed")
    stage.raw.delete(stage.entry_key)
    due(stage, "late")
    assert tell(stage, "late") == Unchanged(), "how it ended was lost with the entry"
    assert not stage.raw.exists(stage.entry_key)
    assert "late" not in alerts(stage)


def test_a_counter_that_cannot_be_read_says_nothing_twice(stage: Stage) -> None:
    """The counter is for people; what was said is said."""
    stage.claim()
    due(stage, "late")
    stage.raw.hset(stage.entry_key, "late", "garbage")
    assert isinstance(tell(stage, "late"), AlertDetails)
    assert told(stage, "late")
    assert alerts(stage) == {}


def test_a_backlog_does_not_keep_ends_from_being_told(stage: Stage) -> None:
    """Thousands of windows are open, since workers were down; the ends of those are told. Untold ends have a bound."""
    filler = {f"w:{number}": "an open window" for number in range(2001)}
    stage.raw.hset(stage.entry_key, mapping=filler)
    end(stage, "failed")
    assert "ended" in alerts(stage)
    stage.raw.hset(stage.entry_key, mapping={f"e:{number}": "an end" for number in range(2000)})
    stage.start = nth(2)
    stage.claim(since=nth(1))
    assert stage.discard("revoked") == Closed("revoked")
    assert f"{stage.member}!ended" not in stage.raw.zrange(stage.open_key, 0, -1)


@pytest.mark.parametrize(("field", "outcome"), [("streak", "failed"), ("streak", "done"), ("tells", "done")])
def test_garbage_that_an_end_would_meet(stage: Stage, field: str, outcome: str) -> None:
    """The body doesn't run: its end couldn't be recorded, so it would run again and again."""
    stage.claim()
    stage.confirm()
    stage.raw.hset(stage.entry_key, field, "garbage")
    with pytest.raises(StoreDataError, match=f"field {field}: found garbage"):
        stage.begin("A")
    stage.raw.hset(stage.entry_key, field, {"streak": "0", "tells": "900000 2 1"}[field])
    fence = stage.begin("A").fence
    assert stage.store.finish(Ending(stage.window, "A", fence, outcome)) == Finished()


@pytest.mark.parametrize("text", ["garbage", "failed x 1 ", "failed 12 1", "failed 99999999999999999 1 no"])
def test_an_end_that_cannot_be_read(stage: Stage, text: str) -> None:
    """It names its key, and is the answer to this notice alone."""
    end(stage, "failed")
    stage.raw.hset(stage.entry_key, f"e:{format_instant(stage.start)}", text)
    answer = tell(stage, "ended")
    assert isinstance(answer, StoreDataError)
    assert stage.entry_key in str(answer)
