"""The scheduler among Celery's own ways: built lazily, wrapped by others, closed twice, its entries looked at."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery import Celery, beat
from celery.app.task import Context
from celery.schedules import crontab, schedule
from processes import wait_until
from redbeat.schedulers import acquire_distributed_beat_lock
from servers import RedisServer, free_port

from celery_once_beat import OnceScheduler, OnceTask
from celery_once_beat.publishing import SLICE
from celery_once_beat.windows import decode_headers, encode_headers, find_headers

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


def test_a_one_off_without_the_store(app: Celery, redis_url: str, schedulers: Callable[[], OnceScheduler]) -> None:
    """It has one window as well where beats go on without Redis."""
    once_only = schedule(0.1, app=app)
    once_only.one_off = True  # type: ignore[attr-defined]
    app.conf.beat_schedule["one-off"] = {"task": "tests.tick", "schedule": once_only}
    app.conf.once_beat_redis_url = f"redis://127.0.0.1:{free_port()}/0"
    app.conf.once_beat_publish_without_store = True

    def sent() -> list[str]:
        with redis.Redis.from_url(redis_url) as client:
            found = client.lrange(QUEUE, 0, -1)
        return [json.loads(message)["headers"]["once_entry"] for message in found]  # type: ignore[union-attr]

    tick_until(schedulers(), lambda: sent().count("tick") >= 5, "five windows of the other are published")
    assert sent().count("one-off") == 1


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
    """A base that makes new entries at each access goes on; one that reloads says so by another heap."""

    class Reloading(OnceScheduler):
        def get_schedule(self) -> dict[str, object]:
            return {name: self.Entry(**dict(entry)) for name, entry in self.data.items()}

        schedule = property(get_schedule, OnceScheduler.set_schedule)

        def reserve(self, entry: object) -> object:
            return next(entry)  # type: ignore[call-overload]

    scheduler = schedulers(Reloading)
    # Its schedule is a copy, so what the base put there at its setting up is gone.
    scheduler.data.update(OnceScheduler(scheduler.app).data)
    scheduler._heap = []  # as DatabaseScheduler says that it reloaded
    once = scheduler._once
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
    assert len(first._once.heartbeat(first._beat_id).beats) == 1


def test_a_confirm_that_redis_does_not_take(
    app: Celery, schedulers: Callable[..., OnceScheduler], start_redis: Callable[..., RedisServer]
) -> None:
    """All that was claimed is published all the same; it stays open, and is published again under the same id."""
    server = start_redis(appendonly=True)
    app.conf.update(once_beat_redis_url=server.url(), once_beat_publish_timeout=5.0)
    every = {"task": "tests.tick", "schedule": timedelta(seconds=30), "options": {"once": {"anchor": soon()}}}
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
    assert messages(app.conf.broker_url) == len(set(ids)) == SLICE + 50
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
    with caplog.at_level(logging.ERROR, "celery_once_beat.publishing"):
        tick_until(scheduler, lambda: messages(app.conf.broker_url) >= 3, "windows are published")
    assert [record.action for record in caplog.records] == ["entry_not_advanced"]  # type: ignore[attr-defined]


def test_a_state_of_the_store_is_said_once(
    app: Celery,
    schedulers: Callable[[], OnceScheduler],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While no replica has what is claimed, nothing is published; one line at its beginning, one at its end."""
    monkeypatch.setattr("celery_once_beat.roundtrip._WAIT_MS", 20)
    app.conf.update(once_beat_wait_replicas=1, once_beat_publish_timeout=1.0)
    scheduler = schedulers()
    settings = scheduler._once._trip.settings

    def said() -> list[str]:
        actions = [record.action for record in caplog.records]  # type: ignore[attr-defined]
        return [action for action in actions if action.startswith("store_")]

    def cursor() -> datetime:
        account = scheduler._once.account("tick")
        assert account is not None
        return account.cursor

    with caplog.at_level(logging.INFO, "celery_once_beat.scheduler"):
        tick_until(scheduler, lambda: scheduler._store_down_since, "a claim is uncertain")
        first = cursor()
        tick_until(scheduler, lambda: cursor() > first, "it was overdue and taken, and another claimed, all uncertain")
        assert said() == ["store_away"]
        assert not messages(app.conf.broker_url)
        scheduler._once._trip.settings = replace(settings, wait_replicas=0)  # as if the replica were back
        tick_until(scheduler, lambda: messages(app.conf.broker_url), "windows are published")
    assert said() == ["store_away", "store_back"]


def test_a_beat_that_wins_nothing_says_that_replicas_are_back(
    app: Celery,
    schedulers: Callable[[], OnceScheduler],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its looks tell, where every window is another's, or none is due: it isn't said to be away for ever."""
    monkeypatch.setattr("celery_once_beat.roundtrip._WAIT_MS", 20)
    app.conf.update(once_beat_wait_replicas=1)
    scheduler = schedulers()
    trip = scheduler._once._trip
    with caplog.at_level(logging.INFO, "celery_once_beat.scheduler"):
        tick_until(scheduler, lambda: scheduler._store_down_since, "a claim is uncertain")
        scheduler._once.pause("tick")
        looked = scheduler._recovery._next
        tick_until(scheduler, lambda: scheduler._recovery._next > looked, "it looks once more")
        assert scheduler._store_down_since, "no replica has what that look wrote"
        trip.settings = replace(trip.settings, wait_replicas=0)  # as if the replica were back
        tick_until(scheduler, lambda: not scheduler._store_down_since, "it says so")
    actions = [record.action for record in caplog.records]  # type: ignore[attr-defined]
    assert [action for action in actions if action.startswith("store_")] == ["store_away", "store_back"]


@pytest.mark.parametrize("nested", [False, True])
def test_the_windows_headers_survive_a_retry(app: Celery, nested: bool) -> None:
    """Also where another tool nests headers, so that Celery would forget those at the top."""
    task = app.tasks["tests.tick"]
    start = datetime(2026, 11, 21, tzinfo=timezone.utc)
    from celery_once_beat import Window

    window = Window("tick", start, start + timedelta(hours=1))
    message = {"id": "1", "task": task.name, "args": (), "kwargs": {}, **encode_headers(window), "once_delivery": "me"}
    if nested:
        message["headers"] = {"trace": "1"}
    signature = task.signature_from_request(Context(message), retries=1)
    headers = signature.options["headers"]
    assert decode_headers(find_headers(headers)) == window
    assert ("trace" in headers) == nested
    assert "once_delivery" not in headers


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
    monkeypatch.setattr("celery_once_beat.claiming._LOADING", 0.0)  # one entry is more than there is time for
    tick = app.conf.beat_schedule["tick"]
    app.conf.beat_schedule = {f"tick-{n}": tick for n in range(12)}
    scheduler = schedulers()
    heard = []
    for left in range(11, -1, -1):
        assert scheduler.tick() == 0.0 or not left
        assert len(scheduler._rows.unloaded()) == left
        with redis.Redis.from_url(redis_url) as client:
            ((_, at),) = client.zrange("once:beats", 0, -1, withscores=True)
        heard.append(at)
        wait_until(lambda: time.time() * 1000 > heard[-1] + 10, "the clock goes on", 5, every=0.001)
    assert heard == sorted(set(heard))
    assert messages(redis_url), "what was loaded first is claimed while others are loaded"


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
    tick_until(scheduler, lambda: not scheduler._rows.unloaded(), "all are loaded")
    server.kill()
    tick_until(scheduler, lambda: scheduler._store_down_since is not None, "the store is away")
    server.restart()
    forgotten = False

    def back() -> bool:
        nonlocal forgotten
        forgotten |= scheduler._recovery.forgotten
        return scheduler._store_down_since is None

    tick_until(scheduler, back, "the store is back")
    with server.client() as client:
        calls = client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    assert forgotten or calls < 100, "forgotten: the outage was longer than a beat may be silent"
