"""Rules: what is to be said of windows. A beat may sleep or die before it says it, and before the store knows."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from hypothesis.stateful import invariant, precondition, rule
from machine.beats import BeatRules
from machine.rules import maybe, nothing, rarely, several
from machine.world import ENTRIES, OFF

from celery_once_beat.features.alerts.store import Alert, Alerts, alerted, take_alerts
from celery_once_beat.outcomes import FAILED_AS
from celery_once_beat.windows import WindowKey

#: What entries want to be said.
TOLD = (
    {},
    {"deadline": 25.0 + OFF, "on_failure": "proj.tell"},
    {"deadline": 25.0 + OFF, "on_failure": "proj.tell", "pause_after_failures": 2},
)

#: A window, the kind of its alert, and when it ended.
What = tuple[WindowKey, str, "datetime | None"]


@dataclass
class Telling:
    """What a beat has taken and is to say."""

    alert: Alert
    #: Until then no other beat gets it.
    until: datetime

    @property
    def what(self) -> What:
        alert = self.alert
        return alert.window, alert.kind, alert.ended.at if alert.ended and alert.kind == "ended" else None


class NoticeRules(BeatRules):
    """Any beat says what there is; each thing is said once, unless the beat that says it dies or sleeps."""

    telling: list[Telling]
    #: How often each was said, and how often more than once was excused.
    said: Counter[What]
    excused: Counter[What]

    def begin_telling(self) -> None:
        self.telling, self.said, self.excused = [], Counter(), Counter()

    @rule()
    def tell(self):
        world = self.world
        shards = sorted({world.store.shard_of(entry) for entry in ENTRIES})
        until = world.time + timedelta(seconds=world.store.settings.publish_timeout)
        for reply in world.ask("take alerts", lambda: take_alerts(world.store, shards, 3), nothing):
            assert isinstance(reply, Alerts), reply
            assert not reply.foreign
            self.telling += [Telling(alert, until) for alert in reply.found]

    @precondition(lambda self: self.telling)
    @rule(which=several, dies=rarely, twice=maybe)
    def say(self, which, dies, twice):
        self.say_all([self.pick(self.telling, which)], dies=dies, twice=twice)

    def say_all(self, told: list[Telling], *, dies: bool = False, twice: bool = False) -> None:
        for telling in told:
            self.telling.remove(telling)
            self.said[telling.what] += 1
            # Who slept says it beside another beat; what the store isn't told is said again.
            self.excused[telling.what] += dies or self.world.time >= telling.until
            if not dies:
                self.becomes(telling, "sent", twice=twice)

    def becomes(self, telling: Telling, what: str, *, twice: bool) -> None:
        self.world.ask("alerted", lambda: alerted(self.world.store, telling.alert, what), nothing, twice=twice)

    @precondition(lambda self: self.telling)
    @rule(which=several)
    def who_says_it_dies_before(self, which):
        self.telling.remove(self.pick(self.telling, which))

    @precondition(lambda self: self.telling)
    @rule(which=several, twice=maybe)
    def who_cannot_say_it_leaves_it(self, which, twice):
        telling = self.pick(self.telling, which)
        self.telling.remove(telling)
        # Who slept leaves it beside another beat that says it.
        self.excused[telling.what] += self.world.time >= telling.until
        self.becomes(telling, "left", twice=twice)

    @invariant()
    def each_is_said_once(self):
        if hasattr(self, "said") and not self.world.lossy:
            for what, number in self.said.items():
                ordered = self.world.backfills[what[0]]
                assert number <= 1 + self.excused[what] + ordered, f"{what} was said {number} times"

    def tell_all(self) -> None:
        """One beat lives: all is said that is owed, and nothing is left of it."""
        world = self.world
        while untold := self.untold():
            now = world.time.timestamp()
            world.pass_time(max(max(untold) - now, world.store.settings.publish_timeout))
            self.tell()
            self.say_all([*self.telling])
        if world.lossy or not self.told:
            return
        told = {window for window, kind, _ in self.said if kind == "ended"}
        owed = {window for window in world.owed if window.entry == "tracked"}
        assert owed <= told, f"nobody was told of {owed - told}"

    def untold(self) -> list[float]:
        """When what is left to be said is due, server seconds."""
        store, client, due = self.world.store, self.world.client, []
        for shard in {store.shard_of(entry) for entry in ENTRIES}:
            alerts, late, ends = (store.keys.of_shard(what, shard) for what in ("alerts", "late", "ends"))
            due += [at / 1000 for _, at in client.zrange(late, 0, -1, withscores=True)]
            due += [0.0] * client.xlen(alerts)
            if not self.world.lossy:
                late_windows = client.zrange(late, 0, -1)
                assert set(client.hkeys(ends)) <= set(late_windows), "an end is kept while its window may be late"
        return due

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
        assert self.said[failed[-1], "paused", None], self.said
