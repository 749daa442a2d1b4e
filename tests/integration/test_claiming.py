"""What a beat claims, step by step on a real store: what it is told, and how it goes on."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, schedule
from processes import wait_until
from proxy import Proxy, SlowProxy
from servers import RedisServer, without_shard

from celery_once_beat import OnceTask
from celery_once_beat.beat.claiming import Claiming, Claims
from celery_once_beat.beat.entries import RETRY_AFTER, Entries
from celery_once_beat.beat.server_clock import ServerClock
from celery_once_beat.clock import steady
from celery_once_beat.errors import StoreUnavailableError, UncertainWriteError
from celery_once_beat.settings import Settings
from celery_once_beat.store.verbs import Store
from celery_once_beat.windows import format_instant

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
LOGGER = "celery_once_beat.beat.claiming"


def work() -> None:
    """A task that nobody runs here."""


class Fickle(BaseSchedule):
    """Every minute, or as it is told: what users write that reads a database, say."""

    every = MINUTE
    broken = False

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        if self.broken:
            raise RuntimeError("no idea")
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
        self.claiming = Claiming(self.store, self.rows, ServerClock(), name)
        self.schedule: dict[str, ScheduleEntry] = {}
        self.store.heartbeat(name)

    def entry(self, name: str, when: Any = 60.0, **options: Any) -> ScheduleEntry:
        every = when if isinstance(when, BaseSchedule) else schedule(when, app=self.app)
        return ScheduleEntry(name=name, task="proj.task", schedule=every, options=options, app=self.app)

    def load(self, *entries: ScheduleEntry, known: datetime = T0) -> None:
        """Load these entries, whose windows count from ``known``."""
        self.schedule = {entry.name: entry for entry in entries}
        self.rows.refresh(self.schedule)
        for row in self.rows.unloaded():
            row.progress.known = known
        self.claiming.load(["beat-1", "beat-2"])

    def claim(self, minutes: float) -> Claims:
        return self.claiming.claim(self.schedule, T0 + minutes * MINUTE)


@pytest.fixture
def new_beat() -> Iterator[Callable[..., Beat]]:
    made: list[Beat] = []

    def make(url: str, name: str = "beat-1", **settings: Any) -> Beat:
        made.append(Beat(url, name, **settings))
        return made[-1]

    yield make
    for beat in made:
        beat.store.close()


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


def test_what_leaves_and_comes_back_is_not_late(new_beat: Callable[..., Beat], redis_url: str) -> None:
    """Once no beat has it: nothing of its absence runs or is missed, also where all beats are others by then."""
    one, two = new_beat(redis_url, "beat-1"), new_beat(redis_url, "beat-2")
    for beat in (one, two):
        beat.load(beat.entry("a"), beat.entry("b"))
    one.claiming.unload_entries(one.rows.refresh({"b": one.schedule["b"]}))
    one.claiming.load(["beat-1", "beat-2"])
    account = one.store.account("a")
    assert account is not None
    assert account.fingerprint != "-", "the other has it"
    two.claiming.unload_entries(two.rows.refresh({"b": two.schedule["b"]}))
    two.claiming.load(["beat-1", "beat-2"])
    before = datetime.now(timezone.utc) - MINUTE
    third = new_beat(redis_url, "beat-3")
    third.load(third.entry("a"), third.entry("b"))
    a, b = third.store.account("a"), third.store.account("b")
    assert a is not None
    assert b is not None
    assert a.cursor == a.since > before
    assert b.cursor == T0


def test_what_is_back_before_the_store_was_told_is_not_left(beat: Beat) -> None:
    """Redis was away meanwhile: nothing has happened."""
    beat.load(beat.entry("a"))
    beat.claiming.unload_entries(beat.rows.refresh({}))
    beat.load(beat.entry("a"))
    account = beat.store.account("a")
    assert account is not None
    assert account.fingerprint not in (None, "-")
    assert account.cursor == T0


def test_a_one_off_runs_once_though_the_store_lost_its_data(beat: Beat) -> None:
    """What this beat knows of it counts then."""
    entry = beat.entry("a")
    entry.schedule.one_off = True
    beat.load(entry)
    assert starts(beat.claim(1)) == [("a", 1)]
    with redis.Redis.from_url(beat.settings.redis_url) as client:
        client.flushall()
    beat.rows.restart()
    beat.claiming.load(["beat-1"])
    assert starts(beat.claim(5)) == []


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
    account = beat.store.account("a")
    assert account is not None
    assert account.counts == {"missed": 9}
    assert [starts(beat.claim(minutes)) for minutes in (10, 11, 12)] == [[], [("a", 11)], [("a", 12)]]
    assert len(caplog.records) == 1


def test_where_none_runs_all_are_missed(beat: Beat) -> None:
    """catch_up='none': the newest is one of the missed, and nothing is to be published."""
    beat.load(beat.entry("a", once={"catch_up": "none"}))
    claims = beat.claim(10.5)
    while True:
        more = beat.claim(10.5)
        if not (more.won or more.missed):
            break
        claims.won += more.won
        claims.missed += more.missed
    assert sum(count for _, count in claims.missed) + len(claims.won) == 10
    assert all(job.start >= T0 + 9.5 * MINUTE for job in claims.won), "only what is within tolerance runs"


def test_a_store_that_goes_away_at_a_claim(
    new_beat: Callable[..., Beat], start_redis: Callable[..., RedisServer]
) -> None:
    """Nothing is won, nothing is lost: the same windows are due as soon as it is back."""
    server = start_redis(appendonly=True)
    beat = new_beat(server.url())
    beat.load(beat.entry("a"), beat.entry("b"))
    server.kill()
    with pytest.raises(StoreUnavailableError):
        beat.claim(1)
    server.restart()
    assert sorted(starts(beat.claim(1))) == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("since", ["nothing", "the next window", "all data lost"])
def test_an_unanswered_claim_that_was_carried_out(
    new_beat: Callable[..., Beat], redis_server: RedisServer, redis_url: str, tracked: bool, since: str
) -> None:
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
        with pytest.raises(StoreUnavailableError):
            beat.claim(1)
        assert proxy.lost == 1
        assert not other.claim(1).won, "it was carried out"
        if since == "the next window":
            assert starts(other.claim(2)) == [("a", 2)]
        elif since == "all data lost":
            with redis.Redis.from_url(redis_url) as client:
                client.flushall()
        proxy.away = False
        beat.rows.restart()
        beat.claiming.load(["beat-1", "beat-2"])
        found = [starts(beat.claim(3)) for _ in range(4)]
        expected = [("a", 1), ("a", 3)] if since == "the next window" else [("a", 1), ("a", 2), ("a", 3)]
        assert [start for each in found for start in each] == expected
        beat.claiming.load(["beat-1", "beat-2"])
        assert not beat.claim(3).won


def test_an_unanswered_claim_that_was_not_carried_out(
    new_beat: Callable[..., Beat], redis_server: RedisServer, redis_url: str
) -> None:
    """Nothing is left of it: which windows run after a long outage is for ``catch_up`` to say."""
    with Proxy(redis_server.port) as proxy:
        beat = new_beat(proxy.url())
        beat.load(beat.entry("a"))
        proxy.away = True
        proxy.cut()
        with pytest.raises(StoreUnavailableError):
            beat.claim(1)
        proxy.away = False
        beat.rows.restart()
        beat.claiming.load(["beat-1"])
        claims = beat.claim(10)
        assert starts(claims) == [("a", 10)]
        assert [count for _, count in claims.missed] == [9]


def test_a_write_that_no_replica_has_wins_nothing(new_beat: Callable[..., Beat], redis_url: str) -> None:
    """An uncertain claim is never published on; it is asked for again, and then it is the same beat's."""
    beat = new_beat(redis_url)
    beat.load(beat.entry("a"))
    beat.store._trip.settings = replace(beat.settings, wait_replicas=1)  # the replica has gone
    claims = beat.claim(1)
    assert isinstance(claims.away, UncertainWriteError)
    assert not claims.won
    assert not claims.lost
    beat.store._trip.settings = replace(beat.settings, wait_replicas=0)  # as if the replica were back
    assert starts(beat.claim(1)) == [("a", 1)]


def test_a_definition_that_changed_behind_the_rows(beat: Beat) -> None:
    """Nothing of it is claimed: it has to be loaded first."""
    beat.load(beat.entry("a"), beat.entry("b"))
    beat.schedule["a"] = beat.entry("a", 30.0)
    claims = beat.claim(1)
    assert claims.replaced
    assert starts(claims) == [("b", 1)]
    del beat.schedule["b"]
    assert not beat.claim(2).won, "nor of one that is gone"


def test_a_schedule_that_breaks_later(beat: Beat) -> None:
    """It rests, and is asked again later; the others go on."""
    fickle = Fickle(app=beat.app)
    beat.load(beat.entry("a", fickle), beat.entry("b"))
    fickle.broken = True
    assert starts(beat.claim(1)) == [("b", 1)]
    fickle.broken = False
    beat.rows.wake(steady() + RETRY_AFTER)
    beat.claiming.load(["beat-1"])
    assert sorted(starts(beat.claim(2))) == [("a", 1), ("b", 2)], "none of its windows is lost"


def test_an_entry_that_is_paused(beat: Beat, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of it is claimed until it is resumed; the next load reads that. Each is said once."""
    beat.load(beat.entry("a"), beat.entry("b"))
    beat.store.pause("a")
    with caplog.at_level(logging.INFO, "celery_once_beat.beat.entries"):
        for minute in (1, 2, 3):
            assert starts(beat.claim(minute)) == [("b", minute)]
            beat.claiming.load(["beat-1"])
        assert [record.action for record in caplog.records] == ["entry_paused"]  # type: ignore[attr-defined]
        beat.store.resume("a")
        beat.claiming.load(["beat-1"])
        assert starts(beat.claim(1)) == [("a", 1)], "it goes on where it was"
    assert [record.action for record in caplog.records] == ["entry_paused", "entry_goes_on"]  # type: ignore[attr-defined]


def test_what_is_paused_is_asked_for_last_and_in_turn(beat: Beat, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are and however little time there is: others load first, and none of them is left out."""
    beat.load(*map(beat.entry, "abcd"))
    for name in "abc":
        beat.store.pause(name)
    beat.claim(1)
    assert beat.rows.all_loaded, "nothing has to be loaded at once"
    monkeypatch.setattr("celery_once_beat.beat.claiming.CHUNK", 1)
    monkeypatch.setattr("celery_once_beat.beat.claiming._LOADING", 0.0)
    load_many, asked = beat.store.load_many, []

    def counted(requests: Any, *rest: Any) -> Any:
        asked.extend(request.entry for request in requests)
        return load_many(requests, *rest)

    monkeypatch.setattr(beat.store, "load_many", counted)
    beat.rows.reload("d")
    for _ in range(7):
        beat.claiming.load(["beat-1"])
    assert asked[0] == "d"
    assert sorted(asked[1:4]) == ["a", "b", "c"]
    assert asked[4:] == asked[1:4]


def test_a_claim_by_an_old_definition(new_beat: Callable[..., Beat], redis_url: str) -> None:
    """A beat of an older deploy wins nothing of an entry that a newer one has loaded since, and loses nothing else."""
    old, new = new_beat(redis_url, "beat-1"), new_beat(redis_url, "beat-2")
    old.load(old.entry("a"), old.entry("b"))
    new.load(new.entry("a", 30.0), new.entry("b"))
    assert starts(old.claim(1)) == [("b", 1)]
    old.claiming.load(["beat-1", "beat-2"])
    row = old.rows.get("a")
    assert row is not None
    assert "beat-2 loaded another definition" in row.trouble


def test_a_superseded_beat_asks_again_when_the_other_is_gone(new_beat: Callable[..., Beat], redis_url: str) -> None:
    """Not at each of its looks while that one lives; at once when it is gone."""
    old, new = new_beat(redis_url, "beat-1"), new_beat(redis_url, "beat-2")
    old.load(old.entry("a"))
    new.load(new.entry("a", 30.0))
    assert not old.claim(1).won
    old.claiming.load(["beat-1", "beat-2"])
    old.rows.wake(steady() + 10)
    row = old.rows.get("a")
    assert row is not None
    old.claiming.load(["beat-1", "beat-2"])
    assert not old.rows.unloaded()
    assert row.trouble
    new.store.leave("beat-2")
    old.claiming.load(["beat-1"])
    assert row.cursor is not None
    assert not row.trouble


def test_a_claim_after_the_store_lost_everything(beat: Beat, redis_url: str) -> None:
    """The beat loads its entries anew, from the cursors that it knew: no window is lost."""
    beat.load(beat.entry("a"))
    assert starts(beat.claim(1)) == [("a", 1)]
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    assert not beat.claim(2).won
    beat.claiming.load(["beat-1"])
    assert starts(beat.claim(2)) == [("a", 2)]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_one_entry_is_unknown_and_the_others_are_uncertain(beat: Beat, redis_url: str, lost: int) -> None:
    """In whatever order the store answers so: nothing is won, the beat goes on, and no window is lost."""
    beat.load(beat.entry("a"), beat.entry("b"), beat.entry("c"))
    in_order = sorted(beat.rows, key=beat.rows.order)  # as they are claimed
    with redis.Redis.from_url(redis_url) as client:
        client.delete(beat.store.entry_key(in_order[lost].name))
    beat.store._trip.settings = replace(beat.settings, wait_replicas=1)
    claims = beat.claim(1)
    assert isinstance(claims.away, UncertainWriteError)
    assert not claims.won
    beat.store._trip.settings = beat.settings  # as if the replica were back
    beat.claiming.load(["beat-1"])
    assert sorted(starts(beat.claim(1))) == [("a", 1), ("b", 1), ("c", 1)]


class Touchy:
    """What raises where it is compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("don't compare me")

    __hash__ = None  # type: ignore[assignment]


def test_options_that_can_not_be_compared(beat: Beat, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody compares them: their entry runs."""
    beat.load(beat.entry("a", shadow=Touchy()), beat.entry("b"))
    beat.schedule["a"] = beat.entry("a", shadow=Touchy())  # as a base makes entries anew
    with caplog.at_level(logging.ERROR, "celery_once_beat.beat.entries"):
        assert sorted(starts(beat.claim(1))) == [("a", 1), ("b", 1)]
        assert sorted(starts(beat.claim(2))) == [("a", 2), ("b", 2)]
    assert not caplog.records


def test_an_entry_is_loaded_anew_while_it_is_due(beat: Beat) -> None:
    """What waits for its turn in a burst is left to its next one, whatever made it unknown meanwhile."""
    beat.load(beat.entry("a"), beat.entry("b"))
    late = T0 + MINUTE
    (first,) = beat.rows.due(late, 1)
    beat.rows.put(first)
    waiting = next(row for row in beat.rows if row is not first)
    beat.rows.reload(waiting.name)
    assert starts(beat.claim(1)) == [(first.name, 1)]
    beat.claiming.load(["beat-1"])
    assert starts(beat.claim(1)) == [(waiting.name, 1)]


@pytest.mark.parametrize(("countdown", "grace"), [(60, 90.0), (-1e6, 30.0)])
def test_grace_counts_from_when_a_message_may_run(beat: Beat, redis_url: str, countdown: float, grace: float) -> None:
    """What the store is told is the entry's grace and its countdown."""
    beat.load(beat.entry("a", countdown=countdown, once={"grace": 30}))
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert client.hget(beat.store.entry_key("a"), "grace") == f"{grace * 1000:.0f}"


def test_planning_too_much_is_cut(beat: Beat, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a long outage there is much to look through: what there was no time for stays due."""
    beat.load(beat.entry("a"), beat.entry("b"), beat.entry("c"))
    monkeypatch.setattr("celery_once_beat.beat.claiming._PLANNING", -1.0)
    assert not beat.claim(1).won
    monkeypatch.undo()
    assert sorted(starts(beat.claim(1))) == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.parametrize("zone", [timezone.utc, None])
def test_messages_that_expire_at_an_instant(beat: Beat, zone: timezone | None) -> None:
    """``expires`` as a datetime, naive in the app's time zone: the same instant for every copy of the message."""
    beat.app.conf.timezone = "UTC"
    instant = datetime.now(timezone.utc) + timedelta(hours=1)
    beat.load(beat.entry("a", expires=instant.replace(tzinfo=zone)))
    (job,) = beat.claim(1).won
    assert job.expires is not None
    assert abs(job.expires - instant) < 10 * SECOND


def test_a_cursor_in_the_future_is_said(beat: Beat, redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server's clock that was wrong: nothing is claimed until then; deleting the key that the line names helps."""
    beat.load(beat.entry("a"))
    key = beat.store.entry_key("a")
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    with redis.Redis.from_url(redis_url) as client:
        client.hset(key, "cursor", format_instant(tomorrow))
    beat.rows.restart()
    with caplog.at_level(logging.ERROR, LOGGER):
        beat.claiming.load(["beat-1"])
    (record,) = caplog.records
    assert record.action == "entry_cursor_ahead"  # type: ignore[attr-defined]
    assert key in record.getMessage()
    assert not beat.claim(1).won

    with redis.Redis.from_url(redis_url) as client:
        client.delete(key)
    beat.rows.wake(steady() + RETRY_AFTER)
    beat.claiming.load(["beat-1"])
    assert starts(beat.claim(1)) == [("a", 1)]


def test_a_server_whose_clock_went_back_is_said_once(beat: Beat, caplog: pytest.LogCaptureFixture) -> None:
    """While beats run, too: what has been claimed up to the old time isn't claimed again, and goes on from there."""
    now = datetime.now(timezone.utc).replace(microsecond=0)
    clock = beat.claiming._clock

    def server_says(at: datetime) -> None:
        clock.measured(at, time.monotonic(), time.monotonic())
        beat.rows.wake(steady() + RETRY_AFTER)

    with caplog.at_level(logging.INFO, LOGGER):
        server_says(now)
        beat.load(*(beat.entry(name) for name in "abc"), known=now)
        assert not beat.claiming.behind
        for _ in range(3):
            server_says(now - timedelta(hours=1))
            beat.claiming.load(["beat-1"])
            assert not beat.claiming.claim(beat.schedule, now - timedelta(hours=1) + MINUTE).won
        assert 3000 < beat.claiming.behind < 3700
        server_says(now + MINUTE)
        beat.claiming.load(["beat-1"])
        assert len(beat.claiming.claim(beat.schedule, now + MINUTE).won) == 3
    said = [getattr(record, "action", "") for record in caplog.records]
    assert [action for action in said if "cursor" in action] == ["entry_cursor_ahead", "entry_cursors_reached"]
    assert not beat.claiming.behind


def test_who_is_superseded_asks_at_once(new_beat: Callable[..., Beat], redis_url: str) -> None:
    """Its load says by whom; or it takes its entry back at once, where that one loaded its definition earlier."""
    old, new = new_beat(redis_url, "beat-1"), new_beat(redis_url, "beat-2")
    old.load(old.entry("a", 7.0))
    new.load(new.entry("a"))
    with redis.Redis.from_url(redis_url) as client:
        # As if the old one knew nothing of the new one, whose place in the list others had taken.
        client.hset(new.store.entry_key("a"), "loaders", "")
    old.rows.restart()
    old.claiming.load(["beat-1"])
    later = datetime.now(timezone.utc) + 2 * MINUTE
    assert not new.claiming.claim(new.schedule, later).won
    assert [row.name for row in new.rows.unloaded()] == ["a"], "it doesn't rest"
    new.claiming.load(["beat-1", "beat-2"])
    assert new.claiming.claim(new.schedule, later).won
    assert not old.claiming.claim(old.schedule, later).won
    old.claiming.load(["beat-1", "beat-2"])
    assert not old.rows.unloaded(), "it rests: the definition that was loaded last counts"


def test_who_can_not_be_loaded_keeps_no_other_from_it(
    new_beat: Callable[..., Beat], redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cluster one node is away: all others' entries are loaded, though there isn't time for all at once."""
    monkeypatch.setattr("celery_once_beat.beat.claiming._LOADING", 0.0)  # one entry at a time
    names = [f"entry-{n}" for n in range(400)]
    away = [name for name in names if Store.shard_of(None, name) == 3]  # type: ignore[arg-type]
    here = next(name for name in names if name not in away)
    with without_shard(redis_url, 3) as url:
        beat = new_beat(url)
        beat.schedule = {name: beat.entry(name) for name in [here, *away]}
        beat.rows.refresh(beat.schedule)
        for _ in range(len(away) + 1):
            with contextlib.suppress(StoreUnavailableError):
                beat.claiming.load(["beat-1"])
        assert {row.name for row in beat.rows.unloaded()} == {*away}


@pytest.mark.parametrize("most", [1, 2, 100])
def test_a_start_takes_no_more_connections_than_there_may_be(
    new_beat: Callable[..., Beat], start_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Chunks of entries are asked for ahead, but a call beyond ``max_connections`` would fail."""
    monkeypatch.setattr("celery_once_beat.beat.claiming.CHUNK", 2)
    monkeypatch.setattr("celery_once_beat.beat.claiming._LOADING", 60.0)
    server = start_redis()
    with SlowProxy(server.port, 0.4) as proxy:  # longer than a call is repeated
        beat = new_beat(proxy.url(), redis_options={"max_connections": most})
        beat.load(*[beat.entry(f"entry-{number}") for number in range(9)])
        assert not beat.rows.unloaded()
        with server.client() as client:
            assert len(client.client_list()) - 1 == min(most, 2)


def test_a_start_asks_no_more_once_redis_is_away(
    new_beat: Callable[..., Beat], start_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for ahead fails at the same time: a tick hangs for as long as one call does."""
    monkeypatch.setattr("celery_once_beat.beat.claiming.CHUNK", 2)
    server = start_redis()
    with Proxy(server.port) as proxy:
        beat = new_beat(proxy.url())
        load_many, asked = beat.store.load_many, []

        def counted(requests: Any, *rest: Any) -> Any:
            asked.append(requests)
            return load_many(requests, *rest)

        monkeypatch.setattr(beat.store, "load_many", counted)
        beat.store.close()  # it connects anew
        proxy.away = True
        with pytest.raises(StoreUnavailableError):
            beat.load(*[beat.entry(f"entry-{number}") for number in range(9)])
        assert len(asked) == 2
        assert len(beat.rows.unloaded()) == 9
        proxy.away = False
        beat.claiming.load(["beat-1"])
        assert not beat.rows.unloaded()


def test_a_beat_that_is_told_to_end_waits_for_no_server(beat: Beat, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM in the middle of a load ends the tick, though Redis doesn't answer."""
    asked, told, may_go_on, answered = (threading.Event() for _ in range(4))
    load_many = beat.store.load_many

    def hanging(*asked_for: Any) -> Any:
        asked.set()
        may_go_on.wait(60)
        replies = load_many(*asked_for)
        answered.set()
        return replies

    def end(*_: object) -> None:
        if not told.is_set():
            told.set()
            raise SystemExit

    def tell() -> None:
        asked.wait(30)
        # Again until it is heard: Python misses a signal that comes just before a thread goes to sleep on a lock.
        while not told.wait(0.2):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(beat.store, "load_many", hanging)
    before = signal.signal(signal.SIGTERM, end)
    telling = threading.Thread(target=tell)
    telling.start()
    try:
        with pytest.raises(SystemExit):
            beat.load(beat.entry("a"))
        assert not answered.is_set()
    finally:
        signal.signal(signal.SIGTERM, before)
        may_go_on.set()
        telling.join()
        wait_until(answered.is_set, "the load that was asked for has ended", 30)
