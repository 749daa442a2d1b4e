"""What people are told of windows, entries and beats is what happened; what can't be read hides nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from stage import ENTRY, Stage, nth
from steps import heard

from celery_once_beat.lookup import EntrySeen, Lookup
from celery_once_beat.store import BeatReport, Closed, shard_of


def seen(stage: Stage) -> EntrySeen:
    return Lookup(stage.store).entry(ENTRY, 50)


def test_a_window_from_its_claim_to_its_end(stage: Stage) -> None:
    """Published, running, overdue, done: the same window as it goes on; then its record with every moment."""
    stage.reach("published")
    assert [(story.start, story.state) for story in seen(stage).windows] == [(stage.start, "published")]
    before = datetime.now(timezone.utc)
    stage.begin("w@far:1:2")
    (story,) = seen(stage).windows
    assert story.state == "running"
    assert story.open is not None
    assert (story.open.attempts, story.open.owner, story.open.beat) == (1, "w@far:1:2", "beat-1")
    assert abs(story.open.begun - before) < timedelta(seconds=30)
    stage.overdue()
    late = seen(stage)
    assert [story.state for story in late.windows] == ["overdue"]
    assert list(late.overdue) == [stage.start]
    stage.finish("w@far:1:2")
    found = seen(stage)
    (story,) = found.windows
    past = story.past
    assert (past.start, past.outcome, past.attempts, past.missed) == (stage.start, "done", 1, 0)
    assert (past.beat, past.worker) == ("beat-1", "w@far")
    assert past.claimed <= past.begun <= past.closed
    assert timedelta(0) <= past.took < timedelta(seconds=30)
    assert found.last == story
    assert not found.overdue


def test_windows_that_never_ran(stage: Stage) -> None:
    """Missed ones stand as one record with their number; who revoked one before it began didn't run it.

    One that a beat gives up, whose only execution died, names the worker that died in it.
    """
    stage.claim(start=nth(4), missed=[nth(1), nth(2), nth(3)], missed_count=7)
    stage.start = nth(4)
    assert isinstance(stage.discard("revoked", owner="w@far:1"), Closed)
    stage.load(max_attempts=1)
    stage.claim_nth(5)
    stage.begin("w@far:1:2")
    stage.lapse()
    stage.overdue()
    assert stage.take() == Closed("abandoned")
    dead, revoked, passed = seen(stage).windows
    assert (dead.state, dead.past.worker) == ("abandoned", "w@far")
    assert (revoked.state, revoked.past.begun, revoked.past.took) == ("revoked", None, None)
    assert (revoked.past.attempts, revoked.past.worker) == (0, "")
    assert (passed.state, passed.start, passed.past.missed, passed.past.worker) == ("missed", nth(3), 7, "")


def test_beats_and_what_they_say(stage: Stage) -> None:
    """With its heartbeat a beat says how it is; one that leaves is gone with it; none that lives is hidden."""
    store, lookup, reports = stage.store, Lookup(stage.store), stage.store.keys.of_beats["reports"]
    report = BeatReport(offset=-0.25, lag=1.5, entries=12, untracked=3, version="0.1.0")
    store.overdue("one:1:a", datetime.now(timezone.utc), 10, report=report)
    heard(store, "two:2:b")
    found = {beat.beat: beat for beat in lookup.overview([]).beats}
    assert {name: getattr(found["one:1:a"], name) for name in vars(report)} == vars(report)
    assert found["two:2:b"].version is None
    assert all(0 <= beat.heard < 30 for beat in found.values())
    stage.raw.hset(reports, "two:2:b", "what nobody understands")
    assert {beat.beat: beat.entries for beat in lookup.overview([]).beats} == {"one:1:a": 12, "two:2:b": None}
    store.leave("one:1:a")
    assert not stage.raw.hexists(reports, "one:1:a")
    assert stage.raw.ttl(reports) > 0


@pytest.mark.parametrize("what", ["entry", "history", "record", "open"])
def test_a_foreign_key_is_trouble_of_its_entry_alone(stage: Stage, what: str) -> None:
    """The line says which key; the other entry is told as ever."""
    stage.load(entry="other")
    stage.reach("closed")
    key = {"entry": stage.entry_key, "open": stage.open_key}.get(what, stage.history_key)
    if what == "record":
        stage.raw.lpush(key, "no record at all")
    else:
        stage.raw.delete(key)
        stage.raw.set(key, "mine", ex=60)
    entries = Lookup(stage.store).overview([ENTRY, "other"]).entries
    assert (ENTRY if what == "record" else key) in entries[ENTRY].trouble
    assert entries["other"].account is not None
    assert not entries["other"].trouble


def test_what_is_only_for_people_stops_no_beat_and_no_begin(stage: Stage) -> None:
    """A foreign key in the place of reports or of refused copies: verbs go on."""
    reports = stage.store.keys.of_beats["reports"]
    for key in (reports, stage.store.keys.of_entry("refused", ENTRY)):
        stage.raw.set(key, "mine", ex=60)
    report = BeatReport(0.0, 0.0, 1, 0, "1")
    beats = stage.store.overdue("one:1:a", datetime.now(timezone.utc), 10, report=report).heartbeat.beats
    assert "one:1:a" in beats
    stage.store.leave("one:1:a")
    stage.reach("closed")
    assert stage.begin("late:1:1") == Closed()
    stage.raw.delete(reports)
    assert "holds a string, expected a hash" in seen(stage).trouble


def test_thousands_of_entries_of_one_shard(stage: Stage) -> None:
    """However many are looked at, a script gets no more keys than Lua takes at once."""
    names = [name for number in range(40_000) if shard_of(name := f"entry-{number}") == 0][:2000]
    assert {each.trouble for each in Lookup(stage.store).entries(names, 1).values()} == {""}


def test_one_script_reads_all_that_an_entry_has(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are asked one by one only if one of them can't be read."""
    stage.reach("closed")
    sent, send = [], stage.store.trip.send
    monkeypatch.setattr(stage.store.trip, "send", lambda requests: sent.extend(requests) or send(requests))
    assert [story.state for story in seen(stage).windows] == ["done"]
    assert ("HGETALL", stage.entry_key) not in sent
