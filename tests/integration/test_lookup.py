"""What people are told of windows, entries and beats is what happened; what can't be read hides nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from processes import wait_until

from celery_once_beat.lookup import EntrySeen, Lookup
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.store import (
    BeatReport,
    Begun,
    Claimed,
    ClaimRequest,
    Closed,
    Ending,
    LoadRequest,
    Store,
    shard_of,
)
from celery_once_beat.windows import WindowKey

MARK = "fingerprint-1"


class Teller:
    """One entry whose windows are claimed and ended by hand, and who looks at it."""

    def __init__(self, store: Store, raw: redis.Redis) -> None:
        self.store = store
        self.lookup = Lookup(self.store)
        self.raw = raw
        self.cursor = self.now().replace(microsecond=0) - timedelta(hours=1)
        self.first = self.cursor
        self.store.load_many(
            [
                LoadRequest(
                    name, "host:1:a", MARK, 3600.0, EntryPolicy(),
                    known=self.cursor,
                )
                for name in ("nightly", "other")
            ]
        )  # fmt: skip

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def claim(self, minutes: float = 1.0, **given: Any) -> WindowKey:
        window = WindowKey("nightly", self.cursor + timedelta(minutes=minutes))
        (reply,) = self.store.claim_many("host:1:a", [ClaimRequest(window, self.cursor, MARK, **given)])
        assert isinstance(reply, Claimed), reply
        self.cursor = window.start
        return window

    def run(self, window: WindowKey, outcome: str = "done", owner: str = "w@far:1:2") -> Begun:
        begun = self.store.begin(window, owner, 30.0)
        assert isinstance(begun, Begun), begun
        if outcome:
            self.store.finish(Ending(window, owner, begun.fence, outcome))
        return begun

    def seen(self, name: str = "nightly", windows: int = 50) -> EntrySeen:
        return self.lookup.entry(name, windows)


@pytest.fixture
def teller(store: Store, raw: redis.Redis) -> Teller:
    return Teller(store, raw)


def test_a_window_from_its_claim_to_its_end(teller: Teller) -> None:
    """Published, running, overdue, done: the same window as it goes on; then its record with every moment."""
    window = teller.claim()
    assert [(story.start, story.state) for story in teller.seen().windows] == [(window.start, "published")]
    before = teller.now()
    begun = teller.run(window, "")
    (story,) = teller.seen().windows
    assert story.state == "running"
    assert story.open is not None
    assert (story.open.attempts, story.open.owner, story.open.beat) == (1, "w@far:1:2", "host:1:a")
    assert abs(story.open.begun - before) < timedelta(seconds=30)
    (key,) = [key for key in teller.raw.scan_iter("once:*:open") if teller.raw.zcard(key)]
    teller.raw.zadd(key, {f"nightly@{teller.raw.zrange(key, 0, 0)[0].partition('@')[2]}": 1.0})
    late = teller.seen()
    assert [story.state for story in late.windows] == ["overdue"]
    assert list(late.overdue) == [window.start]
    teller.store.finish(Ending(window, "w@far:1:2", begun.fence, "done"))
    seen = teller.seen()
    (story,) = seen.windows
    past = story.past
    assert (past.start, past.outcome, past.attempts, past.missed) == (window.start, "done", 1, 0)
    assert (past.beat, past.worker) == ("host:1", "w@far")
    assert past.claimed <= past.begun <= past.closed
    assert timedelta(0) <= past.took < timedelta(seconds=30)
    assert seen.last == story
    assert not seen.overdue


def test_windows_that_never_ran(teller: Teller) -> None:
    """Missed ones stand as one record with their number; revoked before it began, it has no execution."""
    missed = [teller.cursor + timedelta(minutes=n) for n in (1, 2, 3)]
    last = teller.claim(4, missed=missed, missed_count=7)
    assert isinstance(teller.store.close_window(last, "w@far:1", "revoked", 0), Closed)
    revoked, passed = teller.seen().windows
    assert (revoked.state, revoked.past.begun, revoked.past.took) == ("revoked", None, None)
    assert (revoked.past.attempts, revoked.past.worker) == (0, ""), "who ended it didn't run it"
    assert (passed.state, passed.start, passed.past.missed, passed.past.worker) == ("missed", missed[-1], 7, "")


def test_who_ran_it_last_is_shown_whoever_ends_it(teller: Teller) -> None:
    """A beat gives up a window whose only execution died: the history names the worker that died in it."""
    limits = EntryPolicy(max_attempts=1)
    teller.store.load_many([LoadRequest("nightly", "host:1:a", MARK, 3600.0, limits, known=teller.cursor)])
    window = teller.claim()
    teller.store.begin(window, "w@far:1:2", 0.05)

    def given_up() -> bool:
        return teller.store.take_many("host:1:a", [(window, MARK)])[0] == Closed("abandoned")

    wait_until(given_up, "the window is overdue, and given up", 60)
    (seen,) = teller.seen().windows
    assert (seen.state, seen.past.worker) == ("abandoned", "w@far")


def test_beats_and_what_they_say(teller: Teller) -> None:
    """With its heartbeat a beat says how it is; one that leaves is gone with it; none that lives is hidden."""
    report = BeatReport(offset=-0.25, lag=1.5, entries=12, untracked=3, version="0.1.0")
    teller.store.overdue("one:1:a", teller.now(), 10, report=report)
    teller.store.heartbeat("two:2:b")
    found = {beat.beat: beat for beat in teller.lookup.overview([]).beats}
    assert {name: getattr(found["one:1:a"], name) for name in vars(report)} == vars(report)
    assert found["two:2:b"].version is None
    assert all(0 <= beat.heard < 30 for beat in found.values())
    teller.raw.hset(teller.store.keys.of_beats["reports"], "two:2:b", "what nobody understands")
    assert {beat.beat: beat.entries for beat in teller.lookup.overview([]).beats} == {"one:1:a": 12, "two:2:b": None}
    teller.store.leave("one:1:a")
    assert not teller.raw.hexists(teller.store.keys.of_beats["reports"], "one:1:a")
    assert teller.raw.ttl(teller.store.keys.of_beats["reports"]) > 0


@pytest.mark.parametrize("what", ["entry", "history", "record", "open"])
def test_a_foreign_key_is_trouble_of_its_entry_alone(teller: Teller, what: str) -> None:
    """The line says which key; the other entry is told as ever."""
    for window in (teller.claim(), teller.claim()):
        teller.run(window)
    store = teller.store
    key = {
        "entry": store.entry_key("nightly"),
        "history": store.keys.of_entry("history", "nightly"),
        "record": store.keys.of_entry("history", "nightly"),
        "open": store.keys.open(store.shard_of("nightly")),
    }[what]
    if what == "record":
        teller.raw.lpush(key, "no record at all")
    else:
        teller.raw.delete(key)
        teller.raw.set(key, "mine", ex=60)
    overview = teller.lookup.overview(["nightly", "other"])
    assert overview.entries["nightly"].trouble
    assert ("nightly" if what == "record" else key) in overview.entries["nightly"].trouble
    assert overview.entries["other"].account is not None
    if store.shard_of("other") != store.shard_of("nightly"):
        assert not overview.entries["other"].trouble
    teller.raw.delete(key)


def test_what_is_only_for_people_stops_no_beat_and_no_begin(teller: Teller) -> None:
    """A foreign key in the place of reports or of refused copies: verbs go on."""
    teller.raw.set(teller.store.keys.of_beats["reports"], "mine", ex=60)
    teller.raw.set(teller.store.keys.of_entry("refused", "nightly"), "mine", ex=60)
    report = BeatReport(0.0, 0.0, 1, 0, "1")
    assert teller.store.overdue("one:1:a", teller.now(), 10, report=report).heartbeat.beats == ("one:1:a",)
    teller.store.leave("one:1:a")
    window = teller.claim()
    teller.run(window)
    assert teller.store.begin(window, "late:1:1", 30.0) == Closed()
    teller.raw.delete(teller.store.keys.of_beats["reports"])
    assert "holds a string, expected a hash" in teller.seen().trouble


def test_thousands_of_entries_of_one_shard(teller: Teller) -> None:
    """However many are looked at, a script gets no more keys than Lua takes at once."""
    names = [name for number in range(40_000) if shard_of(name := f"entry-{number}") == 0][:2000]
    assert {seen.trouble for seen in teller.lookup.entries(names, 1).values()} == {""}
