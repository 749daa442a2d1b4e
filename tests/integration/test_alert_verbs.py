"""What people are to be told of a window, in the store: when it comes about, which beat has it, and that it is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from stage import ENTRY, STATES, T0, Stage, in_ms, nth
from steps import play, promises

from celery_once_beat.errors import StoreDataError
from celery_once_beat.features.alerts.store import Alert, alerted, drop_alert
from celery_once_beat.store import Ending
from celery_once_beat.store.codec import instant
from celery_once_beat.store.model import Claimed, Closed
from celery_once_beat.windows import format_instant

ALL = {"deadline": 900.0, "pause_after_failures": 2, "on_failure": "proj.tell"}
HOUR = 3_600_000


class Alerts(Stage):
    """The entry, its windows by their numbers, and what a beat has taken last. Alerts are of a far future or past."""

    claimed, allowed = 0, 0.0
    taken: Sequence[Alert] = ()

    def at(self, number: str) -> None:
        self.start = nth(int(number))

    def key(self, what: str) -> str:
        return self.store.keys.of_shard(what, self.shard_number)

    def claims(self, number: str, *missed: str, mode: str = "run") -> str:
        """Claim it, and pass over others; its deadline is a minute from now."""
        self.at(number)
        since, passed = nth(self.claimed), [nth(int(each)) for each in missed]
        reply = self.claim(since=since, missed=passed, missed_count=len(passed), mode=mode)
        if isinstance(reply, Claimed):
            self.claimed = int(number)
            self.allowed = (self.raw.zscore(self.key("late"), self.member) or 0.0) - in_ms(self.start)
            self.late_in(60)
        return type(reply).__name__

    def late_in(self, seconds: float) -> None:
        """The window's deadline is so far from now."""
        self.raw.zadd(self.key("late"), {self.member: int(self.now() + seconds * 1000)}, xx=True)

    def ends(self, number: str, outcome: str, failure: str = "", **more: Any) -> None:
        self.at(number)
        fence = self.begin("A").fence
        self.store.finish(Ending(self.window, "A", fence, outcome, failure=failure, **more))

    def runs(self, number: str, outcome: str, **more: Any) -> None:
        self.claims(number)
        self.ends(number, outcome, **more)

    def get(self, most: int = 100) -> list[Alert]:
        """The alerts that a beat gets of the entry's shard."""
        (reply,) = self.take_alerts(most)
        assert not reply.foreign
        self.taken = reply.found or self.taken
        return list(reply.found)

    def takes(self, most: str = "100") -> str:
        return ", ".join(
            f"{each.kind} {(each.window.start - T0) // (nth(1) - T0)}"
            + (f" {each.ended.outcome} {each.ended.failure}".rstrip() if each.ended else "")
            for each in self.get(int(most))
        )

    def passes(self, seconds: str) -> None:
        """What was taken last was taken so long ago."""
        for alert in self.taken:
            self.raw.xclaim(self.key("alerts"), "beats", "beat", 0, [alert.id], idle=int(float(seconds) * 1000))

    def answer(self, what: str) -> None:
        for alert in self.taken:
            alerted(self.store, alert, what)

    def old(self) -> None:
        """There is an alert of an hour ago, and no other."""
        fields = {"window": self.member, "kind": "ended", "at": self.now() - HOUR - 1, "what": f"failed {HOUR} "}
        self.raw.delete(self.key("alerts"))
        self.raw.xadd(self.key("alerts"), fields)
        self.raw.expire(self.key("alerts"), 60)

    def kept(self) -> str:
        """How much is left of what is to be told."""
        alerts, late, ends = map(self.key, ("alerts", "late", "ends"))
        counted = {"alerts": self.raw.xlen(alerts), "late": self.raw.zcard(late), "ends": self.raw.hlen(ends)}
        return " ".join(f"{name} {number}" for name, number in counted.items() if number)

    def why_paused(self) -> str:
        account = self.store.account(ENTRY)
        return f"{account.paused_by}: {re.sub('2026-01-01T00:|:00Z', '', account.paused_for)}" if account.paused else ""


@pytest.fixture
def stage(new_stage: Callable[..., Stage]) -> Alerts:
    stage = new_stage(kind=Alerts)
    stage.load(**ALL)
    return stage


#: What is promised | how the entry is loaded, then what is done: a verb, a window's number.
STEPS = """
done in time it leaves nothing; its deadline is kept from its claim to its end |
  claims 1; allowed = 900000.0; ends 1 done; takes =; kept =
late is said once: what a beat doesn't send, another does after publish_timeout |
  claims 1; takes =; late 1; takes = late 1; takes =; passes 9.5; takes =
  passes 10.5; takes = late 1; answer sent; answer sent; takes =; lates = 1; kept =
what a slow beat sends is sent, though another has taken it: else two slow ones would go on for ever |
  claims 1; late 1; takes = late 1; passes 11; takes = late 1; answer sent; passes 11; takes =
an end that isn't done is told with its words, and the window is late all the same |
  claims 1; ends 1 failed Boom; takes = ended 1 failed Boom; answer sent; late 1; takes = late 1 failed Boom
  answer sent; kept =; claims 2; ends 2 revoked; takes = ended 2 revoked
what overlap skips is told, and never late | overlap=skip
  claims 1; begin 1; claims 2; begin 2; claims 3; begin 3; late 2; late 3; takes = ended 2 skipped, ended 3 skipped
of those that wait the newest one is late | overlap=buffer_one
  claims 1; begin 1; claims 2; begin 2; claims 3; late 2; late 3; begin 3; takes = ended 2 skipped, late 3
of what somebody orders nobody is told |
  claims 1; begin 1; claims 2; abandon; late 2; takes =; counts = cancelled 1
windows that are passed over are told each; while the entry is paused somebody orders it |
  claims 4 1 2 3; takes = ended 1 missed, ended 2 missed, ended 3 missed; pause; cancels 6 5 6; takes =
  counts = cancelled 2 missed 3
failures in a row pause the entry; one that is done begins the row anew, orders and the revoked don't count |
  foreign; runs 1 failed; runs 2 done; runs 3 failed; runs 4 revoked; claims 5; abandon; why_paused =
  runs 6 failed; why_paused = pause_after_failures: 2 windows in a row failed: 03, 06; claims 7 = Paused
  takes = ended 1 failed, ended 3 failed, ended 4 revoked, ended 6 failed, paused 6; resume; runs 7 failed
  why_paused =
of many failures the last ten are named | pause_after_failures=12
  fails 12; why_paused = pause_after_failures: 12 windows in a row failed: ... 03, 04, 05, 06, 07, 08, 09, 10, 11, 12
what fails after the body returned is told, and no failure in a row |
  returns 1; returns 2; returns 3; why_paused =; takes = ended 1 failed, ended 2 failed, ended 3 failed
nothing counts while it is paused: who resumes it isn't surprised by the next failure |
  claims 1; claims 2; claims 3; pause; ends 1 failed; ends 2 failed; resume; ends 3 failed; why_paused =
an alert that is left to others comes once more, behind all others, and is kept for long |
  claims 4 1 2; takes 1 = ended 1 missed; answer left; answer left; takes = ended 2 missed, ended 1 missed; long = True
an alert of an entry that nobody has is for beats that have it; after an hour it is forgotten |
  runs 1 failed; takes = ended 1 failed; answer unknown; takes = ended 1 failed; old; takes; answer left
  takes = ended 1 failed; old; takes; answer unknown; takes =
an alert is for nobody once all beats have dropped the entry |
  runs 1 failed; takes; unload; answer unknown; kept = late 1 ends 1
an alert is for nobody once ends aren't to be told any more |
  runs 1 failed; takes; quiet; answer unknown; kept = late 1 ends 1
an alert is for nobody once the store has lost the entry |
  runs 1 failed; takes; lose; answer unknown; kept = late 1 ends 1
an alert is for nobody once the entry's key isn't ours |
  runs 1 failed; takes; lose; spoil; answer unknown; kept = late 1 ends 1
failures from before a time in which nothing counted them are of no row |
  runs 1 failed; quiet; runs 2 failed; loud; runs 3 failed; why_paused =
what failed and is done by order is late no more, and nothing is kept of its end | only=deadline
  claims 1; ends 1 failed; kept = late 1 ends 1; order 1; ends 1 done; kept =
a sweep says whether there is something to take |
  seen = False; claims 1; seen = False; late 1; seen = True; takes; seen = True; answer sent; seen = False
ends are told where a task is named, and by no other setting | only=deadline
  runs 1 failed; takes =
a row of failures tells no end | only=pause_after_failures
  runs 1 failed; takes =
a task that is named is told | only=on_failure
  runs 1 failed; takes = ended 1 failed
"""
DOING: dict[str, Callable[..., Any]] = {
    "late": lambda s, number: s.at(number) or s.late_in(0),
    "begin": lambda s, number: s.at(number) or Stage.begin(s, f"w{number}"),
    "cancels": lambda s, *numbers: s.claims(*numbers, mode="cancel"),
    "returns": lambda s, number: s.runs(number, "failed", returned=True),
    "fails": lambda s, most: [s.runs(str(number), "failed") for number in range(1, int(most) + 1)],
    "pause": lambda s: s.store.set_paused(ENTRY, paused=True),
    "resume": lambda s: s.store.set_paused(ENTRY, paused=False),
    "foreign": lambda s: s.raw.hset(s.entry_key, "streak", "foreign"),
    "quiet": lambda s: s.load(deadline=900.0),
    "order": lambda s, number: s.at(number) or s.backfill(),
    "loud": lambda s: s.load(**ALL),
    "seen": lambda s: s.shard_number in s.store.overdue("beat-1", s.store.snapshot().now, 10).with_work("alerts"),
    "lose": lambda s: s.raw.delete(s.entry_key),
    "spoil": lambda s: s.raw.set(s.entry_key, "garbage", ex=60),
    "counts": lambda s: " ".join(f"{word} {number}" for word, number in sorted(s.counts().items())),
    "allowed": lambda s: s.allowed,
    "lates": lambda s: s.store.account(ENTRY).late,
    "long": lambda s: s.raw.ttl(s.key("alerts")) > 86_400,
}


@pytest.mark.parametrize(("settings", "steps"), promises(STEPS))
def test_who_is_told_what(new_stage: Callable[..., Alerts], settings: dict[str, str], steps: list[str]) -> None:
    """As the table promises, step by step."""
    stage, only = new_stage(kind=Alerts), settings.get("only")
    given = {name: int(value) if value.isdigit() else value for name, value in settings.items()}
    stage.load(**({only: ALL[only]} if only else {**ALL, **given}))

    def do(verb: str, *words: str) -> str:
        return str(DOING[verb](stage, *words) if verb in DOING else getattr(stage, verb)(*words))

    play(steps, do, {})


@pytest.mark.parametrize("state", STATES)
def test_late_in_each_state(stage: Alerts, state: str) -> None:
    """A window that is open, or ended and isn't done, is late once; one that is done isn't."""
    stage.reach(state)
    stage.get()
    stage.raw.zadd(stage.key("late"), {stage.member: stage.now() - 1})
    is_open = stage.raw.zscore(stage.open_key, stage.member) is not None
    alerts = stage.get()
    assert [(alert.kind, alert.window) for alert in alerts] == [("late", stage.window)] * is_open
    assert not is_open or alerts[0].deadline == instant(stage.deadline())
    stage.raw.delete(stage.key("late"))


def test_alerts_that_nobody_takes_have_a_bound(stage: Alerts) -> None:
    """The oldest are dropped, also of those that a beat took and never sent."""
    stage.runs("1", "failed")
    (dropped,) = stage.get()
    with stage.raw.pipeline() as pipe:
        for number in range(12_000):
            fields = {"window": stage.member, "kind": "ended", "at": number, "what": f"failed {number} "}
            pipe.xadd(stage.key("alerts"), fields)
        pipe.execute()
    stage.claim_nth(2)
    assert stage.discard("revoked") == Closed("revoked")
    assert 10_000 <= stage.raw.xlen(stage.key("alerts")) < 10_200
    stage.passes("11")
    alerts = stage.get()
    assert len(alerts) == 100
    assert dropped not in alerts
    assert stage.raw.xpending(stage.key("alerts"), "beats")["pending"] == 100
    stage.raw.delete(stage.key("alerts"))


@pytest.mark.parametrize("what", ["alerts", "late", "ends"])
def test_a_foreign_key_stops_no_window(stage: Alerts, what: str) -> None:
    """In the place of a key of alerts: windows are claimed, begin and end, and a beat that looks names it."""
    stage.raw.set(stage.key(what), "garbage", ex=600)
    for number, outcome in ((1, "failed"), (2, "done")):
        stage.claim_nth(number)
        stage.confirm()
        stage.execute("A", outcome)
    if what != "ends":
        (reply,) = stage.take_alerts()
        assert isinstance(reply, StoreDataError)
        assert stage.key(what) in str(reply)
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
def test_an_event_that_is_not_ours(stage: Alerts, wrong: dict[str, Any]) -> None:
    """It stops no other, and goes once it was seen."""
    stage.raw.xadd(stage.key("alerts"), {**EVENT, **wrong})
    stage.runs("1", "failed")
    (reply,) = stage.take_alerts()
    stage.taken = reply.found
    assert [alert.kind for alert in reply.found] == ["ended"]
    ((event, found),) = reply.foreign
    assert found.isprintable()
    drop_alert(stage.store, stage.shard_number, event)
    stage.answer("sent")
    assert stage.kept() == "late 1 ends 1"
    assert stage.raw.xpending(stage.key("alerts"), "beats")["pending"] == 0
