"""What people are to be told of a window, in the store: when it comes about, which beat has it, and that it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stage import ENTRY, STATES, Stage, in_ms, nth

from celery_once_beat.errors import StoreDataError
from celery_once_beat.features.alerts.store import Alert, Ended, alerted, drop_alert
from celery_once_beat.store import Ending
from celery_once_beat.store.codec import instant
from celery_once_beat.store.model import Closed, Finished, Paused
from celery_once_beat.windows import format_instant

ALL = {"deadline": 900.0, "pause_after_failures": 2, "on_failure": "proj.tell"}
FAR = 60_000.0
HOUR = 3_600_000


@pytest.fixture
def stage(new_stage: Callable[..., Stage]) -> Stage:
    stage = new_stage()
    stage.load(**ALL)
    return stage


def key(stage: Stage, what: str) -> str:
    return stage.store.keys.of_shard(what, stage.store.shard_of(ENTRY))


def late_in(stage: Stage, seconds: float) -> None:
    """The window's deadline is so far from now."""
    stage.raw.zadd(key(stage, "late"), {stage.member: int(stage.now() + seconds * 1000)}, xx=True)


def take(stage: Stage, most: int = 100) -> list[Alert]:
    """The alerts that a beat gets of the entry's shard."""
    (reply,) = stage.take_alerts(most)
    assert not isinstance(reply, Exception), reply
    assert not reply.foreign
    return reply.found


def take_one(stage: Stage) -> Alert:
    (alert,) = take(stage)
    return alert


def sent(stage: Stage, *alerts: Alert) -> None:
    for alert in alerts:
        alerted(stage.store, alert, "sent")


def time_passes(stage: Stage, alert: Alert, seconds: float) -> None:
    """It was taken so long ago."""
    stage.raw.xclaim(key(stage, "alerts"), "beats", "beat", 0, [alert.id], idle=int(seconds * 1000))


def end(stage: Stage, outcome: str, failure: str = "") -> None:
    stage.claim()
    late_in(stage, FAR)
    stage.confirm()
    stage.execute("A", outcome, failure=failure)


def left(stage: Stage) -> dict[str, int]:
    """How much is left of what is to be told."""
    counted = {
        "alerts": stage.raw.xlen(key(stage, "alerts")),
        "late": stage.raw.zcard(key(stage, "late")),
        "ends": stage.raw.hlen(key(stage, "ends")),
    }
    return {name: number for name, number in counted.items() if number}


def test_a_window_that_is_done_in_time_leaves_nothing(stage: Stage) -> None:
    """Its deadline is kept from its claim to its end."""
    stage.claim()
    assert stage.raw.zrange(key(stage, "late"), 0, -1, withscores=True) == [(stage.member, in_ms(stage.start) + 9e5)]
    late_in(stage, FAR)
    stage.confirm()
    stage.begin("A")
    assert stage.finish("A") == Finished()
    assert take(stage) == []
    assert left(stage) == {}


def test_late_is_said_once(stage: Stage) -> None:
    """One beat gets it; what that beat doesn't send, another one gets after publish_timeout."""
    stage.claim()
    late_in(stage, FAR)
    assert take(stage) == [], "it isn't late"
    late_in(stage, 0)
    first = take_one(stage)
    assert (first.window, first.kind, first.ended) == (stage.window, "late", None)
    assert first.deadline == instant(stage.deadline())
    assert take(stage) == [], "another beat sends it"
    time_passes(stage, first, 9.5)
    assert take(stage) == []
    time_passes(stage, first, 10.5)
    assert take(stage) == [first], "the first one died"
    sent(stage, first)
    sent(stage, first)
    assert take(stage) == []
    assert stage.store.account(ENTRY).late == 1
    assert left(stage) == {}


def test_what_a_slow_beat_sends_is_sent(stage: Stage) -> None:
    """Another beat has taken it meanwhile. If that one alone could end it, two slow ones would go on for ever."""
    stage.claim()
    alert = take_one(stage)
    time_passes(stage, alert, 11)
    assert take_one(stage) == alert
    sent(stage, alert)
    time_passes(stage, alert, 11)
    assert take(stage) == []


@pytest.mark.parametrize("outcome", ["failed", "revoked"])
def test_an_end_that_is_not_done_is_told_and_stays_late(stage: Stage, outcome: str) -> None:
    """What its failure said is told with it; the window is late all the same, since it isn't done."""
    end(stage, outcome, "ValueError: no")
    alert = take_one(stage)
    assert (alert.kind, alert.ended) == ("ended", Ended(outcome, alert.ended.at, "ValueError: no"))
    sent(stage, alert)
    late_in(stage, 0)
    late = take_one(stage)
    assert (late.kind, late.ended) == ("late", alert.ended)
    sent(stage, late)
    assert left(stage) == {}


@pytest.mark.parametrize(
    ("what", "outcomes", "alerts"),
    [
        ("skip", {"skipped": 2}, {(2, "ended"), (3, "ended")}),
        ("buffer_one", {"skipped": 1}, {(2, "ended"), (3, "late")}),  # the newest waits
        ("abandon", {"cancelled": 2}, set()),
    ],
)
def test_what_the_user_ordered_is_never_late(stage, what, outcomes, alerts) -> None:
    """Windows that overlap skips, or that somebody gives up. on_failure's task hears of a skip, and of no order."""
    stage.load(**ALL, overlap="allow" if what == "abandon" else what)
    stage.claim_nth(1)
    stage.begin("A")
    for number in (2, 3):
        stage.claim_nth(number)
        stage.abandon() if what == "abandon" else stage.begin("B")
    assert stage.counts() == outcomes
    found = {(number, alert.kind) for alert in take(stage) for number in (2, 3) if alert.window.start == nth(number)}
    assert found == alerts, "all are far past their deadline"


def test_windows_that_are_passed_over_are_told_each(stage: Stage) -> None:
    """A claim that passes over some tells of each; while the entry is paused somebody orders it, and nobody is told."""
    stage.claim(start=nth(4), missed=[nth(1), nth(2), nth(3)], missed_count=3)
    stage.raw.delete(key(stage, "late"))
    alerts = take(stage)
    assert [(alert.window.start, alert.ended.outcome) for alert in alerts] == [(nth(n), "missed") for n in (1, 2, 3)]
    stage.store.set_paused(ENTRY, paused=True)
    stage.claim(start=nth(6), since=nth(4), mode="cancel", missed=[nth(5), nth(6)], missed_count=2)
    assert take(stage) == []
    assert stage.counts() == {"missed": 3, "cancelled": 2}


def test_failures_in_a_row_pause_the_entry(stage: Stage) -> None:
    """A window that is done begins the row anew; orders, foreign texts, what says nothing of the task don't count."""
    stage.raw.hset(stage.entry_key, "streak", "foreign")
    for number, outcome in enumerate(["failed", "done", "failed", "revoked"], 1):
        stage.claim_nth(number)
        stage.execute("A", outcome)
    stage.claim_nth(5)
    stage.abandon()
    assert not stage.store.account(ENTRY).paused
    stage.claim_nth(6)
    stage.execute("A", "failed")
    account = stage.store.account(ENTRY)
    assert account.paused
    assert (account.paused_by, account.paused_for) == (
        "pause_after_failures",
        "2 windows in a row failed: 2026-01-01T00:03:00Z, 2026-01-01T00:06:00Z",
    )
    assert stage.claim(start=nth(7), since=nth(6)) == Paused()
    (paused,) = (alert for alert in take(stage) if alert.kind == "paused")
    assert (paused.window, paused.note) == (stage.window, account.paused_for)
    stage.store.set_paused(ENTRY, paused=False)
    stage.claim_nth(7)
    stage.execute("A", "failed")
    assert not stage.store.account(ENTRY).paused, "resumed: the row begins anew"


def test_of_many_failures_in_a_row_the_last_ten_are_named(stage: Stage) -> None:
    """With how many there were."""
    stage.load(**{**ALL, "pause_after_failures": 12})
    for number in range(1, 13):
        stage.claim_nth(number)
        stage.execute("A", "failed")
    named = ", ".join(f"2026-01-01T00:{minute:02}:00Z" for minute in range(3, 13))
    assert stage.store.account(ENTRY).paused_for == f"12 windows in a row failed: ... {named}"


def test_a_body_that_returned_pauses_nothing(stage: Stage) -> None:
    """What fails after it, a result that can't be stored for example, is told, and is no failure in a row."""
    for number in (1, 2, 3):
        stage.claim_nth(number)
        stage.begin("A")
        stage.store.finish(Ending(stage.window, "A", stage.fences["A"], "failed", failure="why", returned=True))
    assert stage.counts() == {"failed": 3}
    assert not stage.store.account(ENTRY).paused
    assert {alert.kind for alert in take(stage)} >= {"ended"}


def test_nothing_counts_while_it_is_paused(stage: Stage) -> None:
    """What was open then ends, and a person who resumes it isn't surprised by the next failure."""
    for number in (1, 2, 3):
        stage.claim_nth(number)
    stage.store.set_paused(ENTRY, '{"by": "anna", "note": "the mail server moves"}', paused=True)
    for number in (1, 2):
        stage.start = nth(number)
        stage.execute("A", "failed")
    account = stage.store.account(ENTRY)
    assert account.paused_by == "anna"
    stage.store.set_paused(ENTRY, paused=False)
    stage.start = nth(3)
    stage.execute("A", "failed")
    assert not stage.store.account(ENTRY).paused


def test_an_alert_is_left_to_others(stage: Stage) -> None:
    """A beat whose broker is away, say: whoever looks next gets it, behind all others."""
    stage.claim(start=nth(4), missed=[nth(1), nth(2)], missed_count=2)
    stage.raw.delete(key(stage, "late"))
    first = take(stage, 1)[0]
    alerted(stage.store, first, "left")
    alerted(stage.store, first, "left")
    alerts = take(stage)
    assert [(alert.window.start, alert.ended) for alert in alerts] == [
        (nth(2), alerts[0].ended),
        (nth(1), first.ended),
    ], "it is sent again, and left once"
    assert stage.raw.ttl(key(stage, "alerts")) > 86_400


def test_an_alert_of_an_entry_that_nobody_has(stage: Stage) -> None:
    """It is for beats that have the entry; once none has had it for an hour, it is forgotten."""
    end(stage, "failed")
    alert = take_one(stage)
    alerted(stage.store, alert, "unknown")
    assert take_one(stage).ended == alert.ended
    fields = {"window": stage.member, "kind": "ended", "at": stage.now() - HOUR - 1, "what": f"failed {HOUR} "}
    stage.raw.delete(key(stage, "alerts"))
    for what, number in (("left", 1), ("unknown", 0)):
        stage.raw.xadd(key(stage, "alerts"), fields)
        stage.raw.expire(key(stage, "alerts"), 60)
        alerted(stage.store, take_one(stage), what)
        assert len(take(stage)) == number, what


@pytest.mark.parametrize("how", ["dropped", "told no more", "lost", "garbage"])
def test_an_alert_is_for_nobody(stage: Stage, how: str) -> None:
    """All beats have dropped the entry, its ends aren't to be told any more, or the store lost it."""
    end(stage, "failed")
    alert = take_one(stage)
    if how == "dropped":
        stage.unload()
    elif how == "told no more":
        stage.load(deadline=900.0)
    else:
        stage.raw.delete(stage.entry_key)
    if how == "garbage":
        stage.raw.set(stage.entry_key, "garbage", ex=60)
    alerted(stage.store, alert, "unknown")
    assert left(stage) == {"late": 1, "ends": 1}


@pytest.mark.parametrize("field", ALL)
def test_an_end_is_told_where_somebody_is_named(new_stage: Callable[..., Stage], field: str) -> None:
    """The other two settings say nothing of each end."""
    stage = new_stage()
    stage.load(**{field: ALL[field]})
    end(stage, "failed")
    assert left(stage).get("alerts", 0) == (field == "on_failure")


@pytest.mark.parametrize("state", STATES)
def test_late_in_each_state(stage: Stage, state: str) -> None:
    """A window that is open, or ended and isn't done, is late once; one that is done isn't."""
    stage.reach(state)
    take(stage)
    stage.raw.zadd(key(stage, "late"), {stage.member: stage.now() - 1})
    is_open = stage.raw.zscore(stage.open_key, stage.member) is not None
    alerts = take(stage)
    assert [(alert.kind, alert.window) for alert in alerts] == [("late", stage.window)] * is_open
    stage.raw.delete(key(stage, "late"))


def test_alerts_that_nobody_takes_have_a_bound(stage: Stage) -> None:
    """The oldest are dropped, also of those that a beat took and never sent."""
    end(stage, "failed")
    dropped = take_one(stage)
    with stage.raw.pipeline() as pipe:
        for number in range(12_000):
            fields = {"window": stage.member, "kind": "ended", "at": number, "what": f"failed {number} "}
            pipe.xadd(key(stage, "alerts"), fields)
        pipe.execute()
    stage.claim_nth(2)
    assert stage.discard("revoked") == Closed("revoked")
    assert 10_000 <= stage.raw.xlen(key(stage, "alerts")) < 10_200
    time_passes(stage, dropped, 11)
    alerts = take(stage)
    assert len(alerts) == 100
    assert dropped not in alerts
    assert stage.raw.xpending(key(stage, "alerts"), "beats")["pending"] == 100
    stage.raw.delete(key(stage, "alerts"))


@pytest.mark.parametrize("what", ["alerts", "late", "ends"])
def test_a_foreign_key_stops_no_window(stage: Stage, what: str) -> None:
    """In the place of a key of alerts: windows are claimed, begin and end, and a beat that looks names it."""
    stage.raw.set(key(stage, what), "garbage", ex=600)
    for number, outcome in ((1, "failed"), (2, "done")):
        stage.claim_nth(number)
        stage.confirm()
        stage.execute("A", outcome)
    if what != "ends":
        (reply,) = stage.take_alerts()
        assert isinstance(reply, StoreDataError)
        assert key(stage, what) in str(reply)
    assert stage.store.account(ENTRY).counts == {"failed": 1, "done": 1}


EVENT = {"window": f"{ENTRY}@{format_instant(nth(1))}", "kind": "ended", "at": "12", "what": "failed 12 Boom"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": "garbage"}, {"window": f"@{format_instant(nth(1))}"}, {"kind": "early"}, {"at": "garbage"},
        {"at": "-1"}, {"what": "garbage"}, {"what": ""}, {"what": "failed x Boom"},
        {"what": "failed 99999999999999999 Boom"}, {"what": "fai\x1bled 12 Boom"},
        {"kind": "late", "what": "12garbage"}, {"more": "garbage"},
    ],
)  # fmt: skip
def test_an_event_that_is_not_ours(stage: Stage, wrong: dict[str, Any]) -> None:
    """It stops no other, and goes once it was seen."""
    stage.raw.xadd(key(stage, "alerts"), {**EVENT, **wrong})
    end(stage, "failed")
    (reply,) = stage.take_alerts()
    assert [alert.kind for alert in reply.found] == ["ended"]
    ((event, found),) = reply.foreign
    assert found.isprintable()
    drop_alert(stage.store, stage.store.shard_of(ENTRY), event)
    sent(stage, *reply.found)
    assert left(stage) == {"late": 1, "ends": 1}
    assert stage.raw.xpending(key(stage, "alerts"), "beats")["pending"] == 0
