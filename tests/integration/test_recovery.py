"""One beat's look at what is overdue, on a real store: what it takes, what it leaves, and what it says of it."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import schedule
from processes import wait_until
from proxy import Proxy
from servers import RedisServer
from steps import heard

from celery_once_beat import OnceTask
from celery_once_beat.beat import recovery
from celery_once_beat.beat.entries import Entries
from celery_once_beat.beat.recovery import Recovery
from celery_once_beat.beat.server_clock import ServerClock
from celery_once_beat.errors import StoreUnavailableError
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.store import BeatReport, ClaimRequest, LoadRequest, Store, shard_of
from celery_once_beat.windows import WindowKey

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
REPORT = BeatReport(offset=0.0, lag=0.0, entries=1, untracked=0, version="1")
LOGGER = "celery_once_beat.beat.recovery"


class Beat:
    """What a beat has for its recovery; every claim of it is overdue at once."""

    def __init__(self, store: Store, raw: redis.Redis) -> None:
        self.app = Celery("tests", set_as_current=False, task_cls=OnceTask)
        self.app.task(wait_until, name="proj.task", shared=False)
        self.store = store
        self.rows = Entries("beat-1", store.settings, self.app.tasks)
        self.recovery = Recovery(store, "beat-1", ServerClock(), self.rows, self, "", "")
        self.client = raw

    def schedule(self, *names: str) -> None:
        """The beat's schedule has these entries, each minute."""
        entry = {"task": "proj.task", "schedule": schedule(60, app=self.app), "app": self.app}
        self.rows.refresh({name: ScheduleEntry(name=name, **entry) for name in names})

    def claim(self, name: str, number: int, beat: str = "beat-1") -> list[WindowKey]:
        """``beat`` loads an entry and claims its first windows, which are overdue from then on."""
        row = self.rows.get(name)
        mark = row.fingerprint if row else "mark"
        heard(self.store, beat)
        self.store.load_many([LoadRequest(name, beat, mark, 86400.0, EntryPolicy(max_attempts=3), known=T0)])
        windows = [WindowKey(name, T0 + n * MINUTE) for n in range(1, number + 1)]
        for window in windows:
            self.store.claim_many(beat, [ClaimRequest(window, window.start - MINUTE, mark)])
        open_key = self.store.keys.of_shard("open", shard_of(name))
        for member, _ in self.client.zscan_iter(open_key):
            self.client.zadd(open_key, {member: (T0 + timedelta(days=1)).timestamp() * 1000}, xx=True)
        return windows

    def look(self) -> tuple[list[WindowKey], StoreUnavailableError | None]:
        jobs, away = self.recovery.take(self.recovery.sweep(REPORT))
        return [WindowKey(job.entry.name, job.start) for job in jobs], away

    def taken(self) -> list[WindowKey]:
        return self.look()[0]


@pytest.fixture
def beat(store: Store, raw: redis.Redis) -> Beat:
    return Beat(store, raw)


def test_what_nobody_can_take_hides_nothing(beat: Beat) -> None:
    """A hundred overdue windows of another beat's entry, which that one leaves: those behind them are found."""
    beat.schedule("a")
    shard = shard_of("a")
    gone = next(name for name in map(str, range(10_000)) if shard_of(name) == shard)
    heard(beat.store, "beat-2")
    beat.claim(gone, 100, beat="beat-2")
    (window,) = beat.claim("a", 1)
    # Its place is behind them: the same deadline, and a later name.
    assert not beat.taken(), "the first page is full of the other's"
    assert beat.taken() == [window]
    assert not beat.taken(), "and the look begins at the front again"


def test_entries_that_left_the_schedule_are_put_off(
    beat: Beat, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has them: one line for each window. One whose entry is back is taken within a minute."""
    assert recovery._PUT_OFF <= 60
    monkeypatch.setattr(recovery, "_PUT_OFF", 0.05)
    beat.schedule("a")
    (window,) = beat.claim("a", 1)
    beat.schedule()
    with caplog.at_level(logging.WARNING, LOGGER):
        for _ in range(3):
            assert not beat.taken()
            time.sleep(0.06)  # it is overdue again
    (record,) = caplog.records
    assert record.action == "window_unknown"  # type: ignore[attr-defined]
    assert (record.entry, record.owner) == (window.entry, "beat-1")  # type: ignore[attr-defined]
    beat.schedule("a")
    wait_until(lambda: beat.taken() == [window], "it is taken, as its entry is back", 10)


def test_a_shard_that_cant_be_read_is_said_once(beat: Beat, caplog: pytest.LogCaptureFixture) -> None:
    """The others are looked at all the same, each time."""
    beat.schedule("a")
    broken = (shard_of("a") + 1) % 16
    beat.client.set(f"once:{{{broken}}}:open", "no zset", ex=60)
    beat.claim("a", 1)
    with caplog.at_level(logging.ERROR, LOGGER):
        assert len(beat.taken()) == 1
        beat.look()
        beat.look()
        (record,) = caplog.records
        assert (record.action, record.shard) == ("shard_unreadable", broken)  # type: ignore[attr-defined]
        beat.client.delete(f"once:{{{broken}}}:open")
        beat.look()
        beat.client.set(f"once:{{{broken}}}:open", "no zset", ex=60)
        beat.look()
    assert len(caplog.records) == 2, "it was over, and began again"


def test_redis_goes_away_after_a_take(beat: Beat, redis_server: RedisServer, monkeypatch) -> None:
    """What was taken is to be published all the same; that Redis is away is said with it."""
    beat.schedule("a", "b")
    (window,) = beat.claim("a", 1)
    beat.claim("b", 1)
    beat.schedule("a")
    sweep = beat.recovery.sweep
    with Proxy(redis_server.port) as proxy:
        through = Store(replace(beat.store.settings, redis_url=proxy.url()))
        monkeypatch.setattr(beat.recovery._store, "postpone_many", through.postpone_many)
        monkeypatch.setattr(beat.recovery, "sweep", lambda report: (sweep(report), proxy.__exit__())[0])
        taken, away = beat.look()
        through.close()
    assert taken == [window]
    assert isinstance(away, StoreUnavailableError)
