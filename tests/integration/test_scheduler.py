"""The scheduler among Celery's own ways: built lazily, wrapped by others, closed twice, its entries looked at."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery, beat
from celery.app.task import Context
from celery.exceptions import NotRegistered, SoftTimeLimitExceeded
from celery.schedules import crontab, schedule
from celery.signals import before_task_publish
from processes import wait_until
from redbeat.schedulers import RedBeatScheduler, acquire_distributed_beat_lock
from servers import RedisServer, free_port, without_shard

from celery_once_beat import OnceScheduler, OnceSchedulerMixin, OnceTask
from celery_once_beat.beat import BeatEntry
from celery_once_beat.beat.publishing import SLICE, Job
from celery_once_beat.clock import steady
from celery_once_beat.errors import StoreUnavailableError, UncertainWriteError
from celery_once_beat.rules.balance import balance
from celery_once_beat.store.model import Begun, ClaimRequest, Confirmation
from celery_once_beat.windows import (
    Window,
    WindowKey,
    decode_headers,
    encode_headers,
    find_headers,
    next_start,
    task_id,
)

QUEUE = "scheduler"


def tick() -> None:
    """A task that no worker of these tests runs."""


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    """An app with one entry that is due each 100 ms, whose options are shared and hold headers."""
    with Celery("tests", broker=redis_url, set_as_current=False, task_cls=OnceTask) as app:
        app.conf.update(task_default_queue=QUEUE, once_beat_recovery_interval=0.2)
        app.conf.beat_schedule = {
            "tick": {
                "task": "tests.tick",
                "schedule": timedelta(milliseconds=100),
                "options": {"headers": {"mine": 1}, "once": {"catch_up": "all"}},
            }
        }
        app.task(tick, name="tests.tick", shared=False)
        yield app


@pytest.fixture
def schedulers(app: Celery) -> Iterator[Callable[[], OnceScheduler]]:
    """Make schedulers, and close them at the end."""
    made: list[OnceScheduler] = []

    def make(cls: type[OnceScheduler] = OnceScheduler) -> OnceScheduler:
        made.append(cls(app))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()


def messages(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.llen(QUEUE))  # type: ignore[arg-type]


def soon() -> datetime:
    """A full second that is about to come. Who is slow to set up begins with the next of its interval."""
    return datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=2)


def tick_until(scheduler: OnceScheduler, done: Callable[[], object], what: str) -> None:
    wait_until(lambda: scheduler.tick() is not None and done(), what, 60, every=0.01)


def test_a_lazy_scheduler_does_no_io() -> None:
    """Beat's banner builds one only to describe it: nothing listens where Redis and broker should be."""
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"
    with Celery("tests", broker=url, set_as_current=False) as app:
        scheduler = OnceScheduler(app, lazy=True)
        assert "once -> redis://:**@127.0.0.1" in scheduler.info
        assert "secret" not in scheduler.info + repr(scheduler)
        scheduler.close()


def test_redbeat_may_be_imported() -> None:
    """What it does at the start of any beat finds that there is no lock here; Sentry's SDK imports it where it can."""
    with Celery("tests", broker="memory://", set_as_current=False) as app:
        scheduler = OnceScheduler(app, lazy=True)
        acquire_distributed_beat_lock(sender=beat.Service(app, scheduler_cls=lambda **_: scheduler))
        scheduler.close()


class OverRedBeat(OnceSchedulerMixin, RedBeatScheduler):
    """Its schedule holds what is near, and its entries say themselves whether they are enabled."""


class Partial(beat.Scheduler):
    """A base that gives a part of its schedule, for all that is known."""

    def get_schedule(self) -> dict[str, Any]:
        return {}

    schedule = property(get_schedule, beat.Scheduler.set_schedule)


class OverPartial(OnceSchedulerMixin, Partial):
    pass


class OwnRule(beat.ScheduleEntry):
    def is_due(self) -> Any:
        return False, 5.0


class OverOwnRule(OnceSchedulerMixin, beat.Scheduler):
    Entry = OwnRule


class Vouched(OverPartial):
    base_is_fit = True


class OverPersistent(OnceSchedulerMixin, beat.PersistentScheduler):
    pass


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (OverRedBeat, "RedBeatScheduler can't stand behind OnceSchedulerMixin"),
        (OverPartial, "Partial can't stand behind OnceSchedulerMixin"),
        (OverOwnRule, "OwnRule decides by an is_due of its own"),
    ],
)
def test_an_unfit_base_is_refused(
    cls: type[beat.Scheduler], said: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At its start, with one line that says what to do instead: it would lose windows, or run disabled entries."""
    with Celery("tests", broker=redis_url, set_as_current=False) as app:
        app.conf.redbeat_redis_url = redis_url
        with pytest.raises(SystemExit) as ended:
            cls(app)
        assert ended.value.code == os.EX_CONFIG
        (record,) = [record for record in caplog.records if getattr(record, "action", "") == "scheduler_unfit"]
        assert said in record.getMessage()
        assert "base_is_fit = True" in record.getMessage()


@pytest.mark.parametrize("cls", [OnceScheduler, OverPersistent, Vouched])
def test_a_fit_base_is_not_refused(cls: type[OnceSchedulerMixin]) -> None:
    """Celery's own, and those whose author says so."""
    assert cls._unfit() == ""


class Hooked(OnceScheduler):
    """Notes when each of its hooks is called."""

    heard: list[str]
    away = False

    def poll_schedule(self) -> datetime | None:
        self.heard = [*getattr(self, "heard", []), "poll"]
        return super().poll_schedule()

    def on_entries_changed(self) -> None:
        self.heard.append(f"changed to {[entry.name for entry in self.entries]}")

    def on_sweep(self) -> None:
        self.heard.append(f"look, {len(self.entries.unloaded())} unloaded")
        if self.away:
            raise StoreUnavailableError("a node of it")

    def on_published(self, entry: BeatEntry, window: Window, *, again: bool) -> None:
        self.heard.append(f"published {entry.source.task} {window.entry} {again}")

    def on_close(self) -> None:
        self.heard.append("close")


def test_hooks_are_called_in_order(schedulers: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """A subclass hears of each tick, change, look and publish, and of the end; where it can't look, beat goes on."""
    scheduler = schedulers(Hooked)
    scheduler.away = True
    tick_until(scheduler, lambda: "published tests.tick tick False" in scheduler.heard, "a window is published")
    assert list(dict.fromkeys(scheduler.heard))[:3] == ["poll", "changed to ['tick']", "look, 1 unloaded"]
    assert [record.action for record in caplog.records if "a node of it" in record.getMessage()] == ["store_away"]  # type: ignore[attr-defined]
    scheduler.close()
    assert scheduler.heard[-1] == "close"


class Slow(OnceScheduler):
    """After each poll so much time passes that a window comes due."""

    began: datetime

    def poll_schedule(self) -> datetime | None:
        self.began = self.clock.now()
        known_at = super().poll_schedule()
        time.sleep(0.12)
        return known_at


def test_what_comes_due_after_the_poll_is_for_the_next_tick(schedulers: Callable[..., Any]) -> None:
    """The schedule may have changed by then, however long the process stood still meanwhile."""
    scheduler = schedulers(Slow)
    cursors = set()
    while len(cursors) < 3:
        scheduler.tick()
        entry = scheduler.entries.get("tick")
        if entry.cursor != entry.since:  # a window is claimed
            cursors.add(entry.cursor)
            assert entry.cursor <= scheduler.began


@pytest.mark.parametrize("scheme", ["sentinel", "redis+cluster"])
@pytest.mark.parametrize("path", ["", "/0"])
def test_the_banner_shows_each_server_and_no_password(scheme: str, path: str) -> None:
    """Sentinels and a cluster's nodes are a list of URLs, each with a password of its own."""
    url = f"{scheme}://:secret1@one:1{path};{scheme}://me:secret2@two:2{path}"
    with Celery("tests", broker="memory://", set_as_current=False) as app:
        app.conf.update(once_beat_redis_url=url, once_beat_redis_options={"master_name": "m"})
        scheduler = OnceScheduler(app, lazy=True)
        assert "one:1" in scheduler.info
        assert "two:2" in scheduler.info
        assert "secret" not in scheduler.info + repr(scheduler)
        scheduler.close()


def test_setting_up_does_not_wait_for_redis() -> None:
    """A standby that starts while Redis is away must not look dead: setting up and a tick come back at once."""
    with Celery("tests", broker=f"redis://127.0.0.1:{free_port()}/0", set_as_current=False) as app:
        scheduler = OnceScheduler(app)
        assert scheduler.tick() > 0
        assert scheduler.tick() > 0
        scheduler.close()
        scheduler.close()


def test_others_may_wrap_apply_entry(
    monkeypatch: pytest.MonkeyPatch, redis_url: str, schedulers: Callable[[], OnceScheduler]
) -> None:
    """Sentry and Datadog wrap Scheduler.apply_entry and unpack (scheduler, entry): once a window, the winner's."""
    seen = []
    original = beat.Scheduler.apply_entry

    def wrapper(*args: object, **kwargs: object) -> object:
        scheduler, entry = args
        seen.append((scheduler, entry.name, entry.schedule))  # type: ignore[attr-defined]
        return original(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(beat.Scheduler, "apply_entry", wrapper)
    pair = [schedulers(), schedulers()]
    tick_until(pair[0], lambda: pair[1].tick() is not None and len(seen) >= 6, "six windows are published")
    assert len(seen) == messages(redis_url)
    assert {name for _, name, _ in seen} == {"tick"}


def test_entries_stay_as_celery_knows_them(schedulers: Callable[[], OnceScheduler]) -> None:
    """Shared options aren't written into, no attribute is added, and winners and losers keep last_run_at."""
    pair = [schedulers(), schedulers()]
    before = datetime.now(timezone.utc)
    tick_until(
        pair[0],
        lambda: pair[1].tick() is not None and all(s.schedule["tick"].total_run_count >= 3 for s in pair),
        "both have seen three windows pass",
    )
    for scheduler in pair:
        entry = scheduler.schedule["tick"]
        assert entry.options == {"headers": {"mine": 1}, "once": {"catch_up": "all"}}
        assert next(entry).total_run_count == entry.total_run_count + 1
        assert entry.last_run_at >= before


def test_a_reloading_base_is_noticed(schedulers: Callable[..., OnceScheduler]) -> None:
    """A base that makes new entries at each access goes on, whatever of the moment is in their options.

    One that reloads says so by another heap.
    """

    class Reloading(OnceScheduler):
        def get_schedule(self) -> dict[str, object]:
            now = datetime.now(timezone.utc)
            options = {"headers": {"made": now.isoformat()}, "expires": now + timedelta(hours=1)}
            return {name: self.Entry(**{**dict(entry), "options": options}) for name, entry in self.data.items()}

        schedule = property(get_schedule, OnceScheduler.set_schedule)

        def reserve(self, entry: object) -> object:
            return next(entry)  # type: ignore[call-overload]

    scheduler = schedulers(Reloading)
    # Its schedule is a copy, so what the base put there at its setting up is gone.
    scheduler.data.update(OnceScheduler(scheduler.app).data)
    scheduler._heap = []  # as DatabaseScheduler says that it reloaded
    once = scheduler.store
    tick_until(scheduler, lambda: (found := once.account("tick")) and len(found.open) >= 3, "three windows are claimed")
    scheduler.data["more"] = scheduler.Entry(name="more", task="tests.tick", schedule=schedule(0.1), app=scheduler.app)
    del scheduler.data["tick"]
    scheduler._heap = []
    tick_until(scheduler, lambda: once.account("more"), "the new entry is loaded")


def test_closing_says_that_a_beat_left(schedulers: Callable[[], OnceScheduler]) -> None:
    """Celery closes a scheduler in its signal handler and once more: the second finds nothing left to do."""
    first, second = schedulers(), schedulers()
    tick_until(first, lambda: second.tick() is not None and len(first._recovery.alive) == 2, "both live")
    second.close()
    second.close()
    assert len(first.store.heartbeat(first.beat_id).beats) == 1


@pytest.mark.long
def test_a_confirm_that_redis_does_not_take(
    app: Celery, schedulers: Callable[..., OnceScheduler], start_redis: Callable[..., RedisServer]
) -> None:
    """The slice that was claimed is published all the same; it stays open, and is published again under the same id."""
    server = start_redis(appendonly=True)
    # Times for a busy machine: a slice has to be out within half a claim's lease.
    app.conf.update(once_beat_redis_url=server.url(), once_beat_claim_lease=10.0, once_beat_publish_timeout=10.0)
    later = soon() + timedelta(seconds=3)  # all are loaded by then
    every = {"task": "tests.tick", "schedule": timedelta(seconds=30), "options": {"once": {"anchor": later}}}
    app.conf.beat_schedule = {f"entry {number}": every for number in range(SLICE + 50)}
    ids = []

    class Unlucky(OnceScheduler):
        def apply_async(self, entry, **kwargs):
            if not ids:
                server.kill()
            result = super().apply_async(entry, **kwargs)
            ids.append(result.id)
            return result

    scheduler = schedulers(Unlucky)
    tick_until(scheduler, lambda: ids, "windows are published")
    assert messages(app.conf.broker_url) == len(set(ids)) == SLICE
    scheduler.tick()
    assert scheduler._store_down_since
    server.restart()
    tick_until(scheduler, lambda: ids.count(ids[0]) > 1, "the window that wasn't confirmed is published again")


def test_a_base_that_can_not_keep_last_run_at(
    app: Celery, schedulers: Callable[..., OnceScheduler], caplog: pytest.LogCaptureFixture
) -> None:
    """A base whose ``reserve`` raises costs no window, and is said once."""

    class Forgetful(OnceScheduler):
        def reserve(self, entry):
            raise RuntimeError("the database is away")

    scheduler = schedulers(Forgetful)
    with caplog.at_level(logging.ERROR, "celery_once_beat.beat.publishing"):
        tick_until(scheduler, lambda: messages(app.conf.broker_url) >= 3, "windows are published")
    assert [record.action for record in caplog.records] == ["entry_not_advanced"]  # type: ignore[attr-defined]


def said(caplog: pytest.LogCaptureFixture, action: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "action", "") == action]


def queued(url: str) -> list[dict[str, Any]]:
    """Headers of the messages that wait, the oldest first."""
    with redis.Redis.from_url(url) as client:
        found: Any = client.lrange(QUEUE, 0, -1)
    return [json.loads(message)["headers"] for message in reversed(found)]


class Moody(OnceScheduler):
    """Raises in ticks while it is moody."""

    moody = True

    def get_schedule(self) -> dict[str, object]:
        if self.moody and self._ticking:
            raise RuntimeError("not now")
        return self.data

    schedule = property(get_schedule, OnceScheduler.set_schedule)


def test_a_base_that_raises_in_a_tick(
    schedulers: Callable[..., Any], redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and the beat goes on when the base does."""
    scheduler = schedulers(Moody)
    for _ in range(3):
        assert scheduler.tick() > 0
    scheduler.moody = False
    tick_until(scheduler, lambda: messages(redis_url) >= 3, "windows are published")
    (record,) = said(caplog, "tick_failed")
    assert "not now" in record.getMessage()


def test_windows_before_a_base_that_raises_at_first(schedulers: Callable[..., Any]) -> None:
    """Nobody has seen a schedule without its entry: what came due while no beat ran still counts."""
    first = schedulers()
    tick_until(first, lambda: (found := first.store.account("tick")) and found.open, "a window is claimed")
    before = first.store.account("tick")
    first.close()
    second = schedulers(Moody)
    wait_until(lambda: next_start(schedule(0.1), before.cursor) < datetime.now(timezone.utc), "one passes", 60)
    second.tick()
    second.moody = False
    tick_until(second, lambda: second.store.account("tick").cursor > before.cursor, "the second beat goes on")
    assert second.store.account("tick").since == before.since


def test_a_large_negative_countdown(app: Celery, redis_url: str, schedulers: Callable[[], OnceScheduler]) -> None:
    """It is none: each window has one message, and isn't overdue before its worker could begin it."""
    app.conf.beat_schedule["tick"]["options"]["countdown"] = -1e6
    scheduler = schedulers()
    looked = []
    tick_until(
        scheduler,
        lambda: looked.append(scheduler._recovery._next) or len(set(looked)) > 3,
        "it looks for what is overdue",
    )
    scheduler.store.pause("tick")
    account = scheduler.store.account("tick")
    assert account is not None
    assert len(account.open) == messages(redis_url) > 0


def test_a_countdown_longer_than_grace(app: Celery, redis_url: str, schedulers: Callable[[], OnceScheduler]) -> None:
    """A window that a worker begins as soon as its message may run isn't missed."""
    once = {"grace": 0.2, "anchor": soon()}
    options = {"countdown": 30, "once": once}
    app.conf.beat_schedule["tick"] = {"task": "tests.tick", "schedule": timedelta(seconds=20), "options": options}
    scheduler = schedulers()
    tick_until(scheduler, lambda: messages(redis_url), "a window is published")
    window = decode_headers(find_headers(queued(redis_url)[0]))
    assert window is not None
    wait_until(
        lambda: datetime.now(timezone.utc) > window.start + timedelta(seconds=0.3), "its grace has passed", 20, 0.01
    )
    key = WindowKey("tick", window.start)
    assert isinstance(scheduler.store.begin(key, "worker", 30.0), Begun)


def test_a_countdown_counts_from_the_first_publish(
    app: Celery, redis_url: str, schedulers: Callable[[], OnceScheduler]
) -> None:
    """What is published again doesn't wait once more."""
    app.conf.beat_schedule["tick"]["options"]["countdown"] = 30
    scheduler = schedulers()
    tick_until(scheduler, lambda: scheduler.entries.get("tick").cursor, "the entry is loaded")  # type: ignore[union-attr]
    row = scheduler.entries.get("tick")
    assert row is not None
    with redis.Redis.from_url(redis_url) as client:
        client.delete(QUEUE)
    for start in (datetime.now(timezone.utc) - timedelta(minutes=1), datetime.now(timezone.utc)):
        scheduler._publish([Job(row, start, 1, None, again=True)], steady())
    assert [headers["eta"] is None for headers in queued(redis_url)] == [True, False]


def test_what_a_receiver_starts_can_be_ended(app: Celery, schedulers: Callable[[], OnceScheduler]) -> None:
    """A process that is started while windows are published blocks no signal."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**_: object) -> None:
        if not started:
            started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))

    before_task_publish.connect(start)
    try:
        tick_until(schedulers(), lambda: started, "a receiver starts a process")
        started[0].terminate()
        assert started[0].wait(60) == -signal.SIGTERM
    finally:
        before_task_publish.disconnect(start)
        for child in started:
            child.kill()


@pytest.mark.long
def test_a_slow_broker(app: Celery, redis_url: str, schedulers: Callable[..., OnceScheduler]) -> None:
    """A tick publishes what it has time for. Untracked windows, which nobody else would send, go out in later ones."""
    app.conf.once_beat_publish_timeout = 1.0
    options = {"once": {"anchor": soon(), "tracked": False}}
    every = {"task": "tests.tick", "schedule": timedelta(hours=1), "options": options}
    app.conf.beat_schedule = {f"entry {number}": every for number in range(20)}
    by_tick: list[int] = []

    class Slow(OnceScheduler):
        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(0.1)
            return super().apply_async(*args, **kwargs)

    scheduler = schedulers(Slow)
    tick_until(scheduler, lambda: by_tick.append(messages(redis_url)) or by_tick[-1] >= 20, "all are published")
    assert len({number for number in by_tick if number}) > 1, "not in one tick"
    assert len({headers["once_entry"] for headers in queued(redis_url)}) == messages(redis_url) == 20


@pytest.fixture
def slow_beat(
    app: Celery,
    schedulers: Callable[..., OnceScheduler],
    start_redis: Callable[..., RedisServer],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[float], Any]:
    """A beat whose four messages take so many leases of a claim each; after each of them another beat looks."""
    server = start_redis(faketime=0)
    lease, passed = 4.0, [0.0]
    app.conf.update(once_beat_redis_url=server.url(), once_beat_claim_lease=lease, once_beat_publish_timeout=20.0)
    every = {"task": "tests.tick", "schedule": timedelta(hours=1), "options": {"once": {"anchor": soon()}}}
    app.conf.beat_schedule = {f"entry {number}": every for number in range(4)}
    for module in ("claiming", "publishing", "scheduler"):
        monkeypatch.setattr(f"celery_once_beat.beat.{module}.steady", lambda: steady() + passed[0])

    def make(leases: float) -> OnceScheduler:
        other = schedulers()
        wait_until(lambda: other.tick() is not None and not other.entries.unloaded(), "the other has loaded", 30)

        class Slow(OnceScheduler):
            def apply_async(self, *args: Any, **kwargs: Any) -> Any:
                result = super().apply_async(*args, **kwargs)
                passed[0] += leases * lease
                server.set_clock_offset(passed[0])
                for _ in range(2):  # the first learns the time
                    other._sweep()
                return result

        return schedulers(Slow)

    return make


@pytest.mark.long
def test_a_beat_that_publishes_slowly_keeps_its_claims(
    app: Celery, redis_url: str, slow_beat: Callable[[float], OnceScheduler]
) -> None:
    """It renews what it hasn't published, so no other beat publishes that too."""
    tick_until(slow_beat(0.6), lambda: messages(redis_url) >= 4, "all are published")
    assert len({headers["once_entry"] for headers in queued(redis_url)}) == messages(redis_url) == 4


def test_a_beat_that_was_frozen_leaves_what_another_has_taken(
    app: Celery, redis_url: str, slow_beat: Callable[[float], OnceScheduler]
) -> None:
    """It goes on after its claims' lease: what another beat has taken isn't published by it too."""
    tick_until(slow_beat(1.2), lambda: messages(redis_url) >= 4, "all are published")
    sent = Counter(headers["once_entry"] for headers in queued(redis_url))
    assert sorted(sent.values()) == [1, 1, 1, 2], "twice the one that it was at"


def test_what_is_claimed_and_not_yet_published_needs_no_store(
    start_redis: Callable[..., RedisServer], app: Celery, redis_url: str, schedulers: Callable[[], OnceScheduler]
) -> None:
    """An untracked window, for which there was no time, is published though Redis has gone away meanwhile."""
    server = start_redis()
    app.conf.update(once_beat_redis_url=server.url())
    every = {"task": "tests.tick", "schedule": timedelta(hours=1), "options": {"once": {"tracked": False}}}
    app.conf.beat_schedule = {"tick": every}
    scheduler = schedulers()
    tick_until(scheduler, lambda: not scheduler.entries.unloaded() and len(scheduler.entries), "it is loaded")
    row = scheduler.entries.get("tick")
    assert row is not None
    assert row.next is not None
    scheduler._owed.append(Job(row, row.next, 0, None))
    server.kill()
    scheduler._recovery.hurry()
    scheduler.tick()
    assert scheduler._store_down_since is not None
    assert messages(redis_url) == 1


class Nested(OnceTask):
    """Sets headers of its own, as tracers and tenants' bases do."""

    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        options["headers"] = {"tenant": "acme"}
        return super().apply_async(*args, **options)


class Renamed(OnceTask):
    """Gives each message an id of its own."""

    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        options["task_id"] = str(uuid.uuid4())
        return super().apply_async(*args, **options)


def test_a_task_that_sets_headers_of_its_own(
    app: Celery, redis_url: str, schedulers: Callable[[], OnceScheduler], caplog: pytest.LogCaptureFixture
) -> None:
    """The window's are in the message all the same."""
    app.task(tick, name="tests.nested", base=Nested, shared=False)
    app.conf.beat_schedule["tick"]["task"] = "tests.nested"
    tick_until(schedulers(), lambda: messages(redis_url) >= 2, "windows are published")
    for headers in queued(redis_url):
        window = decode_headers(find_headers(headers))
        assert window is not None
        assert window.tracked
        assert headers["tenant"] == "acme"
    assert not said(caplog, "entry_astray")


def test_a_task_that_sends_another_message(
    app: Celery, redis_url: str, schedulers: Callable[[], OnceScheduler], caplog: pytest.LogCaptureFixture
) -> None:
    """No worker would know its window: said once, the window ends as untracked, and so do those that follow."""
    app.task(tick, name="tests.renamed", base=Renamed, shared=False)
    app.conf.beat_schedule["tick"]["task"] = "tests.renamed"
    scheduler = schedulers()
    tick_until(scheduler, lambda: messages(redis_url) >= 4, "windows are published")
    account = scheduler.store.account("tick")
    assert account is not None
    assert not account.open
    assert account.counts == {"untracked": messages(redis_url)}
    assert balance("tick", schedule(0.1), account).even
    (record,) = said(caplog, "entry_astray")
    assert "'tick' is untracked from now on: no message with its task id went out" in record.getMessage()


def test_a_window_that_nobody_begins(
    app: Celery, redis_url: str, schedulers: Callable[[], OnceScheduler], caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once into which queue it goes and which task it sends; again only after a window has begun."""
    app.conf.once_beat_start_timeout = 0.1
    app.conf.beat_schedule["tick"] = {"task": "tests.tick", "schedule": timedelta(hours=1), "options": {}}
    scheduler = schedulers()
    tick_until(scheduler, lambda: scheduler.entries.get("tick").cursor, "the entry is loaded")  # type: ignore[union-attr]
    once, row = scheduler.store, scheduler.entries.get("tick")
    assert row is not None
    key = WindowKey("tick", row.next)

    def published_again(times: int) -> None:
        before = messages(redis_url)
        tick_until(scheduler, lambda: messages(redis_url) >= before + times, "it is published again")

    assert row.cursor is not None
    (claimed,) = once.claim_many(scheduler.beat_id, [ClaimRequest(key, row.cursor, row.fingerprint)])
    once.confirm_many([Confirmation(key, claimed.turn, 1, 0.1)])  # type: ignore[union-attr]
    published_again(4)
    (record,) = said(caplog, "window_not_begun")
    assert f"the queue '{QUEUE}'" in record.getMessage()
    assert "the task 'tests.tick'" in record.getMessage()


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery's, with the newest redis-py
@pytest.mark.parametrize(
    ("state", "result", "outcome"),
    [
        ("SUCCESS", 7, "done"),
        ("FAILURE", ValueError("no"), "failed"),
        ("FAILURE", NotRegistered("tests.tick"), None),
        ("FAILURE", SoftTimeLimitExceeded(), None),
        ("STARTED", None, None),
    ],
)
@pytest.mark.long
def test_a_window_whose_result_is_there(
    app: Celery,
    redis_url: str,
    schedulers: Callable[[], OnceScheduler],
    state: str,
    result: object,
    outcome: str | None,
) -> None:
    """Workers that know no windows have executed it: it ends as its result says, and isn't published for ever.

    What a worker discards as unknown has a result too, and goes on being published.
    """
    app.conf.update(once_beat_start_timeout=0.1, result_backend=redis_url)
    app.conf.beat_schedule["tick"] = {"task": "tests.tick", "schedule": timedelta(hours=1), "options": {}}
    scheduler = schedulers()
    tick_until(scheduler, lambda: scheduler.entries.get("tick").cursor, "the entry is loaded")  # type: ignore[union-attr]
    once, row = scheduler.store, scheduler.entries.get("tick")
    assert row is not None
    assert row.cursor is not None
    key = WindowKey("tick", row.next)
    (claimed,) = once.claim_many(scheduler.beat_id, [ClaimRequest(key, row.cursor, row.fingerprint)])
    app.backend.store_result(task_id("once:", "tick", key.start), result, state)
    once.confirm_many([Confirmation(key, claimed.turn, 1, 0.1)])  # type: ignore[union-attr]

    def counts() -> dict[str, int]:
        account = once.account("tick")
        return account.counts if account else {}

    if outcome is None:
        tick_until(scheduler, lambda: messages(redis_url) >= 5, "it is published again and again")
        assert counts() == {}
    else:
        tick_until(scheduler, counts, "it is closed")
        assert counts() == {outcome: 1}


@pytest.mark.long
def test_a_state_of_the_store_is_said_once(
    app: Celery,
    schedulers: Callable[[], OnceScheduler],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While no replica has what is claimed, nothing is published; one line at its beginning, one at its end."""
    monkeypatch.setattr("celery_once_beat.store.roundtrip._WAIT_MS", 20)
    app.conf.update(once_beat_publish_timeout=1.0)
    scheduler = schedulers()
    settings = scheduler.store._trip.settings
    tick_until(scheduler, lambda: scheduler.entries.all_loaded, "the entry is loaded")
    scheduler.store._trip.settings = replace(settings, wait_replicas=1)  # the replica has gone

    def states() -> list[str]:
        actions = [record.action for record in caplog.records]  # type: ignore[attr-defined]
        return [action for action in actions if action.startswith("store_")]

    with caplog.at_level(logging.INFO, "celery_once_beat.beat.scheduler"):
        tick_until(scheduler, lambda: scheduler._store_down_since, "a claim is uncertain")
        for _ in range(20):  # it has to load the entry once more, and that is uncertain, too
            scheduler.tick()
        assert states() == ["store_away"]
        assert not messages(app.conf.broker_url)
        scheduler.store._trip.settings = settings  # as if the replica were back
        tick_until(scheduler, lambda: messages(app.conf.broker_url), "windows are published")
    assert states() == ["store_away", "store_back"]


def test_a_beat_that_wins_nothing_says_that_replicas_are_back(
    app: Celery,
    schedulers: Callable[[], OnceScheduler],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its looks tell, where every window is another's, or none is due: it isn't said to be away for ever."""
    monkeypatch.setattr("celery_once_beat.store.roundtrip._WAIT_MS", 20)
    scheduler = schedulers()
    trip = scheduler.store._trip
    tick_until(scheduler, lambda: scheduler.entries.all_loaded, "the entry is loaded")
    trip.settings = replace(trip.settings, wait_replicas=1)  # the replica has gone
    with caplog.at_level(logging.INFO, "celery_once_beat.beat.scheduler"):
        tick_until(scheduler, lambda: scheduler._store_down_since, "a claim is uncertain")
        with pytest.raises(UncertainWriteError):
            scheduler.store.pause("tick")
        scheduler.tick()
        assert scheduler._store_down_since, "no replica has what that tick wrote"
        trip.settings = replace(trip.settings, wait_replicas=0)  # as if the replica were back
        tick_until(scheduler, lambda: not scheduler._store_down_since, "it says so")
    actions = [record.action for record in caplog.records]  # type: ignore[attr-defined]
    assert [action for action in actions if action.startswith("store_")] == ["store_away", "store_back"]


def test_a_result_that_can_not_be_told_yet(
    app: Celery, redis_url: str, schedulers: Callable[[], OnceScheduler]
) -> None:
    """The node of its entry is away: what is due on others is seen to, and it is told later."""
    with without_shard(redis_url, 0) as app.conf.once_beat_redis_url:
        scheduler = schedulers()
        away = next(name for name in map(str, range(1000)) if scheduler.store.shard_of(name) == 0)
        found = [(WindowKey(name, soon()), "done") for name in (away, "tick")]
        scheduler._results.found.extend(found)
        with pytest.raises(StoreUnavailableError):
            scheduler._close_by_result()
        assert [*scheduler._results.found] == found[::-1]


@pytest.mark.parametrize("nested", [False, True])
def test_the_windows_headers_survive_a_retry(app: Celery, nested: bool) -> None:
    """Also where another tool nests headers, so that Celery would forget those at the top."""
    task = app.tasks["tests.tick"]
    start = datetime(2026, 11, 21, tzinfo=timezone.utc)
    from celery_once_beat import Window

    window = Window("tick", start, start + timedelta(hours=1))
    message = {"id": "1", "task": task.name, "args": (), "kwargs": {}, **encode_headers(window)}
    if nested:
        message["headers"] = {"trace": "1"}
    signature = task.signature_from_request(Context(message), retries=1)
    headers = signature.options["headers"]
    assert decode_headers(find_headers(headers)) == window
    assert ("trace" in headers) == nested


def test_the_package_is_lazy() -> None:
    """``celery --help`` with the package installed imports neither redis nor the store."""
    code = "import celery_once_beat, sys; print([m for m in sys.modules if m in ('redis', 'celery_once_beat.store')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_crontabs_are_scheduled_in_their_zone(app: Celery) -> None:
    """An app's time zone counts for its crontabs, as in stock beat."""
    from celery_once_beat.windows import next_start

    app.conf.timezone = "Europe/Berlin"
    when = crontab(hour=2, minute=0, app=app)
    assert next_start(when, datetime(2026, 7, 1, tzinfo=timezone.utc)) == datetime(2026, 7, 2, 0, tzinfo=timezone.utc)


def test_a_beat_that_loads_for_long_says_that_it_lives(
    app: Celery, schedulers: Callable[[], OnceScheduler], redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is heard of between what it loads, and publishes meanwhile: nobody takes it for gone, however many entries."""
    monkeypatch.setattr("celery_once_beat.beat.claiming._LOADING", 0.0)  # one entry is more than there is time for
    tick = app.conf.beat_schedule["tick"]
    app.conf.beat_schedule = {f"tick-{n}": tick for n in range(12)}
    scheduler = schedulers()
    heard = []
    for left in range(11, -1, -1):
        assert scheduler.tick() == 0.0 or not left
        assert len(scheduler.entries.unloaded()) == left
        with redis.Redis.from_url(redis_url) as client:
            ((_, at),) = client.zrange("once:beats", 0, -1, withscores=True)
        heard.append(at)
        wait_until(lambda: time.time() * 1000 > heard[-1] + 10, "the clock goes on", 5, every=0.001)
    assert heard == sorted(set(heard))
    assert messages(redis_url), "what was loaded first is claimed while others are loaded"


def test_each_entry_is_made_once(app: Celery, schedulers: Callable[..., OnceScheduler]) -> None:
    """At a start, however many there are, and each asks for the time by itself only if it is told none."""
    made: Counter[str] = Counter()
    asked = []

    class Entry(beat.ScheduleEntry):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made[self.name] += 1

        def default_now(self) -> datetime:
            asked.append(self.name)
            return super().default_now()

    class Counting(OnceScheduler):
        pass

    Counting.Entry = Entry
    tick = app.conf.beat_schedule["tick"]
    app.conf.beat_schedule = {"a": tick, "b": {**tick, "last_run_at": None}, "c": tick}
    schedulers(Counting)
    assert made == {"a": 1, "b": 1, "c": 1, "celery.backend_cleanup": 1}
    assert asked == ["b"]


def test_after_an_outage_only_what_isnt_known_is_loaded(
    start_redis: Callable[..., RedisServer], app: Celery, schedulers: Callable[[], OnceScheduler]
) -> None:
    """A store that was away and kept its data isn't asked for every entry again."""
    server = start_redis(appendonly=True)
    app.conf.update(once_beat_redis_url=server.url())
    app.conf.beat_schedule = {
        f"hourly-{n}": {"task": "tests.tick", "schedule": timedelta(days=366)} for n in range(200)
    }
    scheduler = schedulers()
    tick_until(scheduler, lambda: not scheduler.entries.unloaded(), "all are loaded")
    server.kill()
    tick_until(scheduler, lambda: scheduler._store_down_since is not None, "the store is away")
    server.restart()
    tick_until(scheduler, lambda: scheduler._store_down_since is None, "the store is back")
    scheduler.tick()
    tick_until(scheduler, lambda: not scheduler.entries.unloaded(), "what isn't known is loaded")
    with server.client() as client:
        loads = client.info("commandstats").get("cmdstat_hset", {}).get("calls", 0)
    assert loads < 100


@pytest.fixture
def two_deploys(
    app: Celery, schedulers: Callable[..., OnceScheduler], start_redis: Callable[..., RedisServer]
) -> tuple[RedisServer, OnceScheduler, OnceScheduler]:
    """A server whose clock can be moved, and two beats that have another definition of ``tick`` each: older, newer."""
    server = start_redis(faketime=0)
    app.conf.update(once_beat_redis_url=server.url())
    beats = []
    for hours in (1, 2):
        app.conf.beat_schedule = {"tick": {"task": "tests.tick", "schedule": timedelta(hours=hours)}}
        beats.append(schedulers())
        tick_until(beats[-1], lambda: beats[-1].entries.all_loaded, "it has loaded")
    beats[0].entries.reload("tick")  # as a refused claim does
    beats[0]._sweep()
    assert in_force(beats[0]) == definition(beats[1])
    return server, *beats


def definition(scheduler: OnceScheduler) -> str:
    row = scheduler.entries.get("tick")
    assert row is not None
    return row.fingerprint


def in_force(scheduler: OnceScheduler) -> str:
    account = scheduler.store.account("tick")
    assert account is not None
    return account.fingerprint


def test_a_beat_that_wakes_up_has_its_definition_again(two_deploys: Any) -> None:
    """While it is frozen for longer than it may be silent the older one counts; then its own does, at once."""
    server, older, newer = two_deploys
    for seconds in (4, 8, 12, 16, 17):
        server.set_clock_offset(seconds)
        older._sweep()
    assert in_force(older) == definition(older)
    newer._sweep()
    assert newer._recovery.forgotten
    assert in_force(older) == definition(newer)
    older.entries.reload("tick")
    older._sweep()
    assert in_force(older) == definition(newer), "that one loaded last"


def test_after_an_outage_no_beat_takes_anothers_definition(two_deploys: Any) -> None:
    """The store is away from both for long. The first that is back knows that the other one may still come."""
    server, older, newer = two_deploys
    for hours in (1, 2):
        server.set_clock_offset(hours * 3600)
        older._sweep()
        older.entries.reload("tick")
        older._sweep()
        assert in_force(older) == definition(newer)
        newer._sweep()
        assert not newer._recovery.forgotten
        assert newer.entries.get("tick").cursor is not None
