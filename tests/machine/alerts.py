"""Rules: what is to be said of windows. A beat may sleep or die before it says it, and before the store knows."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta

from hypothesis.stateful import invariant, precondition, rule
from machine.beats import Beat, BeatRules
from machine.rules import maybe, nothing, rarely, several
from machine.world import OFF

from celery_once_beat.outcomes import FAILED_AS
from celery_once_beat.store import model as r
from celery_once_beat.windows import WindowKey

__all__ = ("TOLD", "NoticeRules")

#: What entries want to be said.
TOLD = (
    {},
    {"deadline": 25.0 + OFF, "on_failure": "proj.tell"},
    {"deadline": 25.0 + OFF, "on_failure": "proj.tell", "pause_after_failures": 2},
)


@dataclass
class Telling:
    """What a beat has taken and is to say."""

    beat: str
    alert: r.Alert
    reply: r.AlertDetails
    #: Until then no other beat says it.
    until: datetime


class NoticeRules(BeatRules):
    """Any beat says what is due; each thing is said once, unless the beat that says it dies or sleeps."""

    telling: list[Telling]
    #: How often each was said, and how often more than once was excused.
    said: Counter[tuple[r.Alert, datetime | None]]
    excused: Counter[tuple[r.Alert, datetime | None]]

    def begin_telling(self) -> None:
        self.telling, self.said, self.excused = [], Counter(), Counter()

    @rule(which=several, twice=maybe)
    def tell(self, which, twice):
        self.tell_by(self.beats[which % 2], twice=twice)

    def tell_by(self, beat: Beat, *, twice: bool = False) -> None:
        world, now = self.world, self.world.time
        due = [alert for alert, at in world.books.alerts.items() if at <= now.timestamp() * 1000]
        due.sort(key=lambda each: (astuple(each.window), each.kind))
        if not due:
            return

        def send():
            return world.store.take_alerts(beat.name, [(alert, True) for alert in due])

        until = now + timedelta(seconds=world.store.settings.publish_timeout)
        for alert, reply in zip(due, world.ask("tell", send, nothing, twice=twice), strict=True):
            if isinstance(reply, r.AlertDetails):
                self.telling.append(Telling(beat.name, alert, reply, until))

    @precondition(lambda self: self.telling)
    @rule(which=several, dies=rarely, twice=maybe)
    def say(self, which, dies, twice):
        self.say_all([self.pick(self.telling, which)], dies=dies, twice=twice)

    def say_all(self, told: list[Telling], *, dies: bool = False, twice: bool = False) -> None:
        for telling in told:
            self.telling.remove(telling)
            ended = telling.reply.ended
            what = telling.alert, ended.at if ended and telling.alert.kind == "ended" else None
            self.said[what] += 1
            # Who slept says it beside another beat; what the store isn't told is said again.
            self.excused[what] += dies or self.world.time >= telling.until
        if told and not dies:
            said = [(telling.alert, telling.reply.turn) for telling in told]
            self.world.ask(
                "told", lambda: [self.world.store.confirm_alert(*each) for each in said], nothing, twice=twice
            )

    @precondition(lambda self: self.telling)
    @rule(which=several)
    def who_says_it_dies_before(self, which):
        self.telling.remove(self.pick(self.telling, which))

    @invariant()
    def each_is_said_once(self):
        if hasattr(self, "said") and not self.world.lossy:
            for what, number in self.said.items():
                ordered = self.world.backfills[what[0].window]
                assert number <= 1 + self.excused[what] + (what[1] is None) * ordered, f"{what} was said {number} times"

    def tell_due(self, beat: Beat) -> None:
        """Say what is due: it would hide what becomes overdue behind it."""
        self.tell_by(beat)
        self.say_all([*self.telling])

    def tell_all(self, beat: Beat) -> None:
        """One beat lives: all is said that is owed, and nothing is left of it."""
        world = self.world
        while world.books.alerts:
            world.pass_time(max(max(world.books.alerts.values()) / 1000 - world.time.timestamp(), 0.1))
            self.tell_due(beat)
        if world.lossy or not self.told:
            return
        told = {alert.window for alert, at in self.said if alert.kind == "ended" and at is not None}
        owed = {window for window in world.owed if window.entry == "tracked"}
        assert owed <= told, f"nobody was told of {owed - told}"
        left = {name for name in world.client.hkeys(world.store.entry_key("tracked")) if name[:2] in ("e:", "n:")}
        assert not left, left

    def check_pause(self, entry: str) -> None:
        """Its failures have paused the entry, as many as were asked for, and people were told."""
        account = self.world.books.accounts[entry]
        assert account.paused_by == "pause_after_failures", account
        number, starts = re.fullmatch(r"(\d+) windows in a row failed: (.*)", account.paused_for).groups()
        assert int(number) == self.told.get("pause_after_failures")
        failed = [WindowKey(entry, datetime.fromisoformat(start[:-1] + "+00:00")) for start in starts.split(", ")]
        for window in failed:
            ends = [end for (ended, _), ends in self.world.closings.items() if ended == window for end in ends]
            assert FAILED_AS & {*ends}, f"{window} has paused {entry}, and it ended as {ends}"
        assert self.said[r.Alert(failed[-1], "paused"), None], self.said
