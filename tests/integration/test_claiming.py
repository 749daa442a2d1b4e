"""What a beat claims, step by step on a real store: what it is told, and how it goes on."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, schedule
from proxy import Proxy
from servers import without_shard
from steps import heard

from celery_once_beat import OnceTask
from celery_once_beat.beat.claiming import Claiming, Claims
from celery_once_beat.beat.entries import RETRY_AFTER, Entries
from celery_once_beat.beat.loading import Loading
from celery_once_beat.beat.server_clock import ServerClock
from celery_once_beat.clock import steady
from celery_once_beat.errors import StoreUnavailableError, UncertainWriteError
from celery_once_beat.settings import Settings
from celery_once_beat.store.verbs import Store

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
LOGGER = "celery_once_beat.beat"


def work() -> None:
    """A task that nobody runs here."""


class Fickle(BaseSchedule):
    """Every minute, or as it is told: what users write that reads a database, say."""

    every = MINUTE

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return last_run_at + self.every - self.now()


class Beat:
    """One beat's claims, without what publishes them. Time is what a test says."""

    def __init__(self, url: str, name: str = "beat-1", **settings: Any) -> None:
        self.app = Celery("tests", set_as_current=False, task_cls=OnceTask)
        self.app.task(work, name="proj.task", shared=False)
        self.app.finalize()
        self.settings = Settings(redis_url=url, **settings)
        self.store = Store(self.settings)
        self.rows = Entries(name, self.settings, self.app.tasks)
        clock = ServerClock()
        self.loading = Loading(self.store, self.rows, clock, name)
        self.claiming = Claiming(self.store, self.rows, clock, name)
        self.schedule: dict[str, ScheduleEntry] = {}
        heard(self.store, name)

    def entry(self, name: str, when: Any = 60.0, **options: Any) -> ScheduleEntry:
        every = when if isinstance(when, BaseSchedule) else schedule(when, app=self.app)
        return ScheduleEntry(name=name, task="proj.task", schedule=every, options=options, app=self.app)

    def load(self, *entries: ScheduleEntry, known: datetime = T0) -> None:
        """Load these entries, whose windows count from ``known``."""
        self.schedule = {entry.name: entry for entry in entries}
        self.rows.refresh(self.schedule)
        for row in self.rows.unloaded():
            row.progress.known = known
        self.loading.load()

    def claim(self, minutes: float) -> Claims:
        return self.claiming.claim(self.schedule, T0 + minutes * MINUTE)


@pytest.fixture
def new_beat(close_later: Callable[[Any], Any]) -> Callable[..., Beat]:
    def make(url: str, name: str = "beat-1", **settings: Any) -> Beat:
        beat = Beat(url, name, **settings)
        close_later(beat.store)
        return beat

    return make


@pytest.fixture
def beat(new_beat: Callable[..., Beat], redis_url: str) -> Beat:
    return new_beat(redis_url)


def starts(claims: Claims) -> list[tuple[str, float]]:
    """Entry and minute of what was won."""
    return [(job.entry.name, (job.start - T0) / MINUTE) for job in claims.won]


def test_what_is_due_is_won_by_one_beat(new_beat: Callable[..., Beat], redis_url: str) -> None:
    """Of two beats the first wins; the second learns where to go on, and wins the next window."""
    one, two = new_beat(redis_url, "beat-1"), new_beat(redis_url, "beat-2")
    for beat in (one, two):
        beat.load(beat.entry("a"), beat.entry("b"))
    assert sorted(starts(one.claim(1))) == [("a", 1), ("b", 1)]
    claims = two.claim(1)
    assert not claims.won
    assert sorted(row.name for row in claims.lost) == ["a", "b"]
    assert sorted(starts(two.claim(2))) == [("a", 2), ("b", 2)]
    assert not one.claim(2).won


def test_what_is_passed_over_is_said_once(beat: Beat, caplog: pytest.LogCaptureFixture) -> None:
    """After an outage the latest window runs; how many are missed, up to which, is noted and logged in one line."""
    beat.load(beat.entry("a"))
    with caplog.at_level(logging.WARNING, LOGGER):
        claims = beat.claim(10)
    assert starts(claims) == [("a", 10)], "one: the latest, though it is on time"
    ((window, count),) = claims.missed
    assert (window.entry, window.start, count) == ("a", T0 + 9 * MINUTE, 9)
    (record,) = caplog.records
    assert (record.action, record.entry, record.count) == ("window_missed", "a", 9)  # type: ignore[attr-defined]
    assert beat.store.account("a").counts == {"missed": 9}
    assert [starts(beat.claim(minutes)) for minutes in (10, 11, 12)] == [[], [("a", 11)], [("a", 12)]]
    assert len(caplog.records) == 1


def test_a_store_that_goes_away_at_a_claim(new_beat, start_redis) -> None:
    """Nothing is won, nothing is lost: the same windows are due as soon as it is back."""
    server = start_redis(appendonly=True)
    beat = new_beat(server.url())
    beat.load(beat.entry("a"), beat.entry("b"))
    server.kill()
    assert beat.claim(1).away is not None
    server.restart()
    assert sorted(starts(beat.claim(1))) == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("since", ["nothing", "the next window", "all data lost"])
def test_an_unanswered_claim_that_was_carried_out(new_beat, redis_server, redis_url, raw, tracked, since) -> None:
    """It is this beat's, also where it has to load all anew: nobody else would publish an untracked window.

    After a long outage the store has forgotten the beat, and other beats may have gone on.
    """
    with Proxy(redis_server.port) as proxy:
        beat, other = new_beat(proxy.url()), new_beat(redis_url, "beat-2")
        other.load(other.entry("first"))
        other.claim(1)  # from here on the server knows the script
        for each in (other, beat):
            each.load(each.entry("a", once={"tracked": tracked, "catch_up": "all"}))

        def cut_off() -> bool:
            proxy.away = True
            return True

        proxy.lose_reply(when=cut_off)
        assert beat.claim(1).away is not None
        assert proxy.lost == 1
        assert not other.claim(1).won, "it was carried out"
        if since == "the next window":
            assert starts(other.claim(2)) == [("a", 2)]
        elif since == "all data lost":
            raw.flushall()
        proxy.away = False
        beat.rows.restart()
        beat.loading.load()
        found = [starts(beat.claim(3)) for _ in range(4)]
        expected = [("a", 1), ("a", 3)] if since == "the next window" else [("a", 1), ("a", 2), ("a", 3)]
        assert [start for each in found for start in each] == expected
        beat.loading.load()
        assert not beat.claim(3).won


def test_an_unanswered_claim_that_was_not_carried_out(new_beat, redis_server, redis_url) -> None:
    """Nothing is left of it: which windows run after a long outage is for ``catch_up`` to say."""
    with Proxy(redis_server.port) as proxy:
        beat = new_beat(proxy.url())
        beat.load(beat.entry("a"))
        proxy.away = True
        proxy.cut()
        assert beat.claim(1).away is not None
        proxy.away = False
        beat.rows.restart()
        beat.loading.load()
        claims = beat.claim(10)
        assert starts(claims) == [("a", 10)]
        assert [count for _, count in claims.missed] == [9]


def test_an_entry_that_is_paused(beat: Beat, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of it is claimed until it is resumed; the next load reads that. Each is said once."""
    beat.load(beat.entry("a"), beat.entry("b"))
    beat.store.set_paused("a", paused=True)
    with caplog.at_level(logging.INFO, "celery_once_beat.beat.entries"):
        for minute in (1, 2, 3):
            assert starts(beat.claim(minute)) == [("b", minute)]
            beat.loading.load()
        assert [record.action for record in caplog.records] == ["entry_paused"]  # type: ignore[attr-defined]
        beat.store.set_paused("a", paused=False)
        beat.loading.load()
        assert starts(beat.claim(1)) == [("a", 1)], "it goes on where it was"
    assert [record.action for record in caplog.records] == ["entry_paused", "entry_goes_on"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("countdown", "grace"), [(60, 90.0), (-1e6, 30.0)])
def test_grace_counts_from_when_a_message_may_run(beat: Beat, raw: redis.Redis, countdown: float, grace: float) -> None:
    """What the store is told is the entry's grace and its countdown."""
    beat.load(beat.entry("a", countdown=countdown, once={"grace": 30}))
    assert raw.hget(beat.store.entry_key("a"), "grace") == f"{grace * 1000:.0f}"


def test_a_server_whose_clock_went_back_is_said_once(beat: Beat, caplog: pytest.LogCaptureFixture) -> None:
    """While beats run, too: what has been claimed up to the old time isn't claimed again, and goes on from there."""
    now = datetime.now(timezone.utc).replace(microsecond=0)
    clock = beat.loading._clock

    def server_says(at: datetime) -> None:
        clock.measured(at, time.monotonic(), time.monotonic())
        beat.rows.end_rests(steady() + RETRY_AFTER)

    with caplog.at_level(logging.INFO, LOGGER):
        server_says(now)
        beat.load(*(beat.entry(name) for name in "abc"), known=now)
        assert not beat.loading.behind
        for _ in range(3):
            server_says(now - timedelta(hours=1))
            beat.loading.load()
            assert not beat.claiming.claim(beat.schedule, now - timedelta(hours=1) + MINUTE).won
        assert 3000 < beat.loading.behind < 3700
        server_says(now + MINUTE)
        beat.loading.load()
        assert len(beat.claiming.claim(beat.schedule, now + MINUTE).won) == 3
    said = [getattr(record, "action", "") for record in caplog.records]
    assert [action for action in said if "cursor" in action] == ["entry_cursor_ahead", "entry_cursors_reached"]
    assert not beat.loading.behind


def test_a_beat_that_is_told_to_end_waits_for_no_server(beat: Beat, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM in the middle of a load ends the tick, though Redis doesn't answer."""
    told, ended = threading.Event(), threading.Event()

    def hanging(*_: Any) -> Any:
        # Again until it is heard: Python misses a signal that comes just before a thread goes to sleep on a lock.
        while not told.wait(0.2):
            os.kill(os.getpid(), signal.SIGTERM)
        ended.wait(60)

    def end(*_: object) -> None:
        if not told.is_set():
            told.set()
            raise SystemExit

    monkeypatch.setattr(beat.store, "load_many", hanging)
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(SystemExit):
            beat.load(beat.entry("a"))
    finally:
        signal.signal(signal.SIGTERM, before)
        ended.set()


@pytest.mark.parametrize("lost", [None, 1])
def test_a_claim_that_no_replica_has_wins_nothing(beat: Beat, raw: redis.Redis, lost: int | None) -> None:
    """Nothing is published on it, also where one entry's data is lost: it is asked for again, and no window is lost."""
    beat.load(*map(beat.entry, "abc"))
    if lost is not None:
        in_order = sorted(beat.rows, key=beat.rows.order)  # as they are claimed
        raw.delete(beat.store.entry_key(in_order[lost].name))
    beat.store.trip.settings = replace(beat.settings, wait_replicas=1)  # the replica has gone
    claims = beat.claim(1)
    assert isinstance(claims.away, UncertainWriteError)
    assert not claims.won
    assert not claims.lost
    beat.store.trip.settings = beat.settings  # as if the replica were back
    beat.loading.load()
    assert sorted(starts(beat.claim(1))) == [("a", 1), ("b", 1), ("c", 1)]


def test_a_superseded_beat_asks_again_when_the_other_is_gone(new_beat: Callable[..., Beat], redis_url: str) -> None:
    """It wins nothing of that entry, and loses nothing else; it asks at none of its looks while the other lives."""
    old, new = new_beat(redis_url, "beat-1"), new_beat(redis_url, "beat-2")
    old.load(old.entry("a"), old.entry("b"))
    new.load(new.entry("a", 30.0), new.entry("b"))
    assert starts(old.claim(1)) == [("b", 1)]
    row = old.rows.get("a")
    assert old.rows.unloaded() == [row], "a refused claim doesn't rest: its load says by whom"
    for _ in range(2):
        old.loading.reload_superseded(["beat-1", "beat-2"])
        old.loading.load()
        assert not old.rows.unloaded()
        assert "beat-2 loaded another definition" in row.trouble
    new.store.leave("beat-2")
    old.loading.reload_superseded(["beat-1"])
    old.loading.load()
    assert row.cursor is not None
    assert not row.trouble


def test_a_schedule_that_starts_later_than_it_said(beat: Beat) -> None:
    """It is asked again when it would be due, and waits for what it says then."""
    fickle = Fickle(app=beat.app)
    beat.load(beat.entry("a", fickle))
    fickle.every = 5 * MINUTE
    assert [starts(beat.claim(minutes)) for minutes in (1, 4, 5)] == [[], [], [("a", 5)]]


def test_a_definition_that_changed_behind_the_rows(beat: Beat) -> None:
    """Nothing of it is claimed: it has to be loaded first. One that was made anew and says the same goes on."""
    beat.load(*map(beat.entry, "abc"))
    beat.schedule["a"], beat.schedule["c"] = beat.entry("a", 30.0), beat.entry("c")
    claims = beat.claim(1)
    assert claims.replaced
    assert sorted(starts(claims)) == [("b", 1), ("c", 1)]
    del beat.schedule["b"]
    assert starts(beat.claim(2)) == [("c", 2)], "nor of one that is gone"


def test_planning_too_much_is_cut(beat: Beat, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a long outage there is much to look through: what there was no time for stays due."""
    beat.load(*map(beat.entry, "abc"))
    with monkeypatch.context() as patch:
        patch.setattr("celery_once_beat.beat.claiming._PLANNING", -1.0)
        assert not beat.claim(1).won
    assert sorted(starts(beat.claim(1))) == [("a", 1), ("b", 1), ("c", 1)]


def test_what_is_back_before_the_store_was_told_is_not_left(beat: Beat) -> None:
    """Redis was away meanwhile: nothing has happened, and what came due counts."""
    beat.load(beat.entry("a"))
    beat.loading.unload(beat.rows.refresh({}))
    beat.load(beat.entry("a"))
    account = beat.store.account("a")
    assert account.cursor == T0
    assert account.fingerprint not in (None, "-")


def test_who_can_not_be_loaded_keeps_no_other_from_it(new_beat, redis_url, monkeypatch) -> None:
    """Of a cluster one node is away: all others' entries are loaded, though there isn't time for all at once."""
    monkeypatch.setattr("celery_once_beat.beat.loading._LOADING", 0.0)  # one entry at a time
    names = [f"entry-{n}" for n in range(400)]
    away = [name for name in names if Store.shard_of(None, name) == 3]  # type: ignore[arg-type]
    here = next(name for name in names if name not in away)
    with without_shard(redis_url, 3) as url:
        beat = new_beat(url)
        beat.schedule = {name: beat.entry(name) for name in [here, *away]}
        beat.rows.refresh(beat.schedule)
        for _ in range(len(away) + 1):
            with contextlib.suppress(StoreUnavailableError):
                beat.loading.load()
        assert {row.name for row in beat.rows.unloaded()} == {*away}
