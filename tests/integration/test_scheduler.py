"""The scheduler among Celery's own ways: built lazily, wrapped by others, closed twice, its entries looked at."""

from __future__ import annotations

import json
import logging
import os
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
from celery.schedules import schedule
from celery.signals import before_task_publish
from processes import wait_until
from redbeat.schedulers import RedBeatScheduler, acquire_distributed_beat_lock
from servers import free_port

from celery_once_beat import OnceScheduler, OnceSchedulerMixin, OnceTask
from celery_once_beat.beat import BeatEntry
from celery_once_beat.beat.publishing import Job
from celery_once_beat.clock import steady
from celery_once_beat.errors import StoreUnavailableError, UncertainWriteError
from celery_once_beat.rules import count_starts
from celery_once_beat.settings import name_broker
from celery_once_beat.store.model import Claimed, ClaimRequest, Confirmation, Published
from celery_once_beat.windows import Window, WindowKey, decode_headers, find_headers, next_start

QUEUE = "scheduler"


def tick() -> None:
    """A task that no worker of these tests runs."""


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    """An app with one entry that is due each 100 ms, whose options are shared and hold headers."""
    with Celery("tests", broker=redis_url, backend=redis_url, set_as_current=False, task_cls=OnceTask) as app:
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
def schedulers(app: Celery, close_later: Callable[[Any], Any]) -> Callable[..., OnceScheduler]:
    """Make schedulers, and close them at the end."""
    return lambda cls=OnceScheduler: close_later(cls(app))


def queued(url: str) -> list[dict[str, Any]]:
    """Headers of the messages that wait, the oldest first."""
    with redis.Redis.from_url(url) as client:
        found: Any = client.lrange(QUEUE, 0, -1)
    return [json.loads(message)["headers"] for message in reversed(found)]


def messages(url: str) -> int:
    return len(queued(url))


def tick_until(scheduler: OnceScheduler, done: Callable[[], object], what: str) -> None:
    wait_until(lambda: scheduler.tick() is not None and done(), what, 60, every=0.01)


def soon() -> datetime:
    """A full second that is about to come. Who is slow to set up begins with the next of its interval."""
    return datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=2)


def hourly(app: Celery, *names: str, **options: Any) -> None:
    """These entries are all, "tick" without any."""
    entry = {"task": "tests.tick", "schedule": timedelta(hours=1), "options": options}
    app.conf.beat_schedule = dict.fromkeys(names or ["tick"], entry)


def loaded(scheduler: OnceScheduler) -> Any:
    """The entry "tick", once the store knows it."""
    tick_until(scheduler, lambda: scheduler.entries.get("tick").cursor, "the entry is loaded")
    return scheduler.entries.get("tick")


def of_an_hour(app: Celery, schedulers: Callable[..., OnceScheduler], **options: Any) -> tuple[OnceScheduler, Any]:
    """A scheduler whose entry "tick" is hourly, and that entry."""
    hourly(app, **options)
    scheduler = schedulers()
    return scheduler, loaded(scheduler)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@127.0.0.1:1/0", ["once -> redis://:**@127.0.0.1"]),
        ("sentinel://:secret1@one:1;sentinel://me:secret2@two:2/0", ["one:1", "two:2"]),
        ("redis+cluster://:secret1@one:1/0;redis+cluster://me:secret2@two:2", ["one:1", "two:2"]),
    ],
)
def test_a_lazy_scheduler_does_no_io(url: str, shown: list[str]) -> None:
    """Beat's banner builds one only to describe it: nothing listens there. Each server is shown, and no password.

    What celery-redbeat does at the start of any beat, where it is imported, finds that there is no lock here.
    """
    with Celery("tests", broker="memory://", set_as_current=False) as app:
        app.conf.update(once_beat_redis_url=url, once_beat_redis_options={"master_name": "m"})
        scheduler = OnceScheduler(app, lazy=True)
        assert all(server in scheduler.info for server in shown)
        assert "secret" not in scheduler.info + repr(scheduler)
        acquire_distributed_beat_lock(sender=beat.Service(app, scheduler_cls=lambda **_: scheduler))
        scheduler.close()


def said(caplog: pytest.LogCaptureFixture, action: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "action", "") == action]


class OverRedBeat(OnceSchedulerMixin, RedBeatScheduler):
    """Its schedule holds what is near, and its entries say themselves whether they are enabled."""


class OwnRule(beat.ScheduleEntry):
    def is_due(self) -> Any:
        return False, 5.0


class OverOwnRule(OnceSchedulerMixin, beat.Scheduler):
    Entry = OwnRule


class Vouched(OverRedBeat):
    base_is_fit = True


class OverPersistent(OnceSchedulerMixin, beat.PersistentScheduler):
    pass


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (OverRedBeat, "RedBeatScheduler can't stand behind OnceSchedulerMixin"),
        (OverOwnRule, "OwnRule decides by an is_due of its own"),
    ],
)
def test_an_unfit_base_is_refused(cls: type[beat.Scheduler], why: str, redis_url, caplog) -> None:
    """At its start, with one line that says what to do: it would lose windows. Celery's own and vouched ones aren't."""
    with Celery("tests", broker=redis_url, set_as_current=False) as app:
        app.conf.redbeat_redis_url = redis_url
        with pytest.raises(SystemExit) as ended:
            cls(app)
        assert ended.value.code == os.EX_CONFIG
        (record,) = said(caplog, "scheduler_unfit")
        assert why in record.getMessage()
        assert "base_is_fit = True" in record.getMessage()
    assert {fit._unfit() for fit in (OnceScheduler, OverPersistent, Vouched)} == {""}


class Hooked(OnceScheduler):
    """Notes when each of its hooks is called."""

    heard: list[str]

    def poll_schedule(self) -> datetime | None:
        self.heard = [*getattr(self, "heard", []), "poll"]
        return super().poll_schedule()

    def on_entries_changed(self) -> None:
        self.heard.append(f"changed to {[entry.name for entry in self.entries]}")

    def on_sweep(self) -> None:
        self.heard.append(f"look, {len(self.entries.unloaded())} unloaded")
        raise StoreUnavailableError("a node of it")

    def on_published(self, entry: BeatEntry, window: Window, *, again: bool) -> None:
        self.heard.append(f"published {entry.source.task} {window.entry} {again}")

    def on_close(self) -> None:
        self.heard.append("close")


def test_hooks_are_called_in_order(schedulers: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """A subclass hears of each tick, change, look and publish, and of the end; where it can't look, beat goes on."""
    scheduler = schedulers(Hooked)
    tick_until(scheduler, lambda: "published tests.tick tick False" in scheduler.heard, "a window is published")
    assert list(dict.fromkeys(scheduler.heard))[:3] == ["poll", "changed to ['tick']", "look, 1 unloaded"]
    assert [record.action for record in caplog.records if "a node of it" in record.getMessage()] == ["store_away"]
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


def test_setting_up_does_not_wait_for_redis() -> None:
    """A standby that starts while Redis is away must not look dead: setting up and a tick come back at once."""
    with Celery("tests", broker=f"redis://127.0.0.1:{free_port()}/0", set_as_current=False) as app:
        scheduler = OnceScheduler(app)
        assert scheduler.tick() > 0
        scheduler.close()
        scheduler.close()


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


class Moody(OnceScheduler):
    """Raises in ticks while it is moody."""

    moody = True

    def get_schedule(self) -> dict[str, object]:
        if self.moody and self._ticking:
            raise RuntimeError("not now")
        return self.data

    schedule = property(get_schedule, OnceScheduler.set_schedule)


def test_windows_before_a_base_that_raises_at_first(schedulers: Callable[..., Any], caplog) -> None:
    """It is said once. Nobody has seen a schedule without its entry: what came due while no beat ran still counts."""
    first = schedulers()
    tick_until(first, lambda: (found := first.store.account("tick")) and found.open, "a window is claimed")
    before = first.store.account("tick")
    first.close()
    second = schedulers(Moody)
    wait_until(lambda: next_start(schedule(0.1), before.cursor) < datetime.now(timezone.utc), "one passes", 60)
    for _ in range(3):
        second.tick()
    second.moody = False
    tick_until(second, lambda: second.store.account("tick").cursor > before.cursor, "the second beat goes on")
    assert second.store.account("tick").since == before.since
    (record,) = said(caplog, "tick_failed")
    assert "not now" in record.getMessage()


def test_a_base_that_can_not_keep_last_run_at(redis_url, schedulers, caplog) -> None:
    """A base whose ``reserve`` raises costs no window, and is said once."""

    class Forgetful(OnceScheduler):
        def reserve(self, entry: object) -> object:
            raise RuntimeError("the database is away")

    tick_until(schedulers(Forgetful), lambda: messages(redis_url) >= 3, "windows are published")
    assert len(said(caplog, "entry_not_advanced")) == 1


def test_a_countdown_counts_from_the_first_publish(app, redis_url, schedulers) -> None:
    """What is published again doesn't wait once more."""
    scheduler, row = of_an_hour(app, schedulers, countdown=30)
    for start in (datetime.now(timezone.utc) - timedelta(minutes=1), datetime.now(timezone.utc)):
        scheduler._publish([Job(row, start, Claimed(1, None), again=True)], steady())
    assert [headers["eta"] is None for headers in queued(redis_url)] == [True, False]


def test_expires_is_counted_from_the_servers_time(app, redis_url, schedulers, monkeypatch) -> None:
    """Of an ordered window, too, which doesn't expire in the store: this machine's clock is an hour behind."""
    scheduler, row = of_an_hour(app, schedulers, expires=900)
    start = datetime.now(timezone.utc)
    monkeypatch.setattr(scheduler.clock, "now", lambda: start + timedelta(hours=1))
    scheduler._publish([Job(row, start, Claimed(1, None, ordered=start))], steady())
    (headers,) = queued(redis_url)
    assert datetime.fromisoformat(headers["expires"]) == start + timedelta(hours=1, seconds=900)


def test_replicas_are_back_for_a_beat_that_wins_nothing(schedulers, caplog, monkeypatch) -> None:
    """Its looks tell, where no window is due: it isn't said to be away for ever. One line each, begin and end."""
    monkeypatch.setattr("celery_once_beat.store.roundtrip._WAIT_MS", 20)
    scheduler = schedulers()
    trip = scheduler.store.trip
    tick_until(scheduler, lambda: scheduler.entries.all_loaded, "the entry is loaded")
    trip.settings = replace(trip.settings, wait_replicas=1)  # the replica has gone
    tick_until(scheduler, lambda: scheduler._store_outage.lasts, "a claim is uncertain")
    with pytest.raises(UncertainWriteError):
        scheduler.store.set_paused("tick", paused=True)
    for _ in range(3):
        scheduler.recovery.hurry()
        scheduler.tick()
    assert scheduler._store_outage.lasts, "no replica has what those ticks wrote"
    trip.settings = replace(trip.settings, wait_replicas=0)  # as if the replica were back
    tick_until(scheduler, lambda: not scheduler._store_outage.lasts, "it says so")
    assert [len(said(caplog, action)) for action in ("store_away", "store_back")] == [1, 1]


def test_a_sweep_finds_that_the_store_lost_all(app, raw, schedulers) -> None:
    """Where nothing is due for long: its entries are there again at once, from the cursors that the beat knew."""
    app.conf.beat_schedule["tick"]["schedule"] = timedelta(days=1)
    scheduler = schedulers()
    tick_until(scheduler, lambda: scheduler.store.account("tick"), "the entry is loaded")
    before = scheduler.store.account("tick")
    raw.flushdb()
    tick_until(scheduler, lambda: scheduler.store.account("tick"), "it is loaded again")
    assert scheduler.store.account("tick").cursor == before.cursor


def test_a_closed_scheduler_ends_its_process(schedulers: Callable[[], OnceScheduler]) -> None:
    """Python swallows what Celery's handler of SIGTERM raises where it meets an object that is finalized."""
    scheduler = schedulers()
    scheduler.close()
    with pytest.raises(SystemExit):
        scheduler.tick()


def test_a_foreign_key_in_the_place_of_the_beats(redis_url, raw, schedulers, caplog) -> None:
    """It is named once, and the beat goes on when it is gone."""
    scheduler = schedulers()
    raw.set("once:beats", "mine", ex=600)
    for _ in range(3):
        scheduler.recovery.hurry()
        assert scheduler.tick() > 0
    raw.delete("once:beats")
    (record,) = said(caplog, "store_away")
    assert "'once:beats' holds a string" in record.getMessage()
    tick_until(scheduler, lambda: messages(redis_url), "windows are published")


def test_a_name_makes_no_log_line(app, redis_url, schedulers, caplog) -> None:
    """Celery logs it unquoted."""
    name = "tick\n[2026-11-21 00:00:00,000: CRITICAL/MainProcess] \x1b[2J"
    app.conf.beat_schedule = {name: app.conf.beat_schedule["tick"]}
    with caplog.at_level(logging.INFO):
        tick_until(schedulers(), lambda: messages(redis_url), "a window is published")
    assert queued(redis_url)[0]["once_entry"] == name
    sending = [record.getMessage() for record in caplog.records if "Sending due task" in record.getMessage()]
    assert sending
    assert not [line for line in sending if not line.isprintable()]


def test_a_receiver_that_names_messages(app, redis_url, schedulers) -> None:
    """A message keeps the id of its window: by another one workers take its headers for copied, and run each copy."""

    def name(headers: dict[str, Any], **_: object) -> None:
        headers["id"] = "mine"

    before_task_publish.connect(name)
    try:
        tick_until(schedulers(), lambda: messages(redis_url), "a window is published")
    finally:
        before_task_publish.disconnect(name)
    headers = queued(redis_url)[0]
    assert headers["id"] == headers["once_id"] != "mine"


@pytest.mark.long
def test_a_slow_broker(app: Celery, redis_url: str, schedulers: Callable[..., OnceScheduler]) -> None:
    """A tick publishes what it has time for. Untracked windows, which nobody else would send, go out in later ones."""
    app.conf.once_beat_publish_timeout = 1.0
    hourly(app, *(f"entry {number}" for number in range(20)), once={"anchor": soon(), "tracked": False})
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
def slow_beat(app, schedulers, start_redis, monkeypatch) -> Callable[[float], Any]:
    """A beat whose four messages take so many leases of a claim each; after each of them another beat looks."""
    server = start_redis(faketime=0)
    lease, passed = 4.0, [0.0]
    app.conf.update(once_beat_redis_url=server.url(), once_beat_claim_lease=lease, once_beat_publish_timeout=20.0)
    hourly(app, *(f"entry {number}" for number in range(4)), once={"anchor": soon()})
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
def test_a_beat_that_publishes_slowly_keeps_its_claims(app, redis_url, slow_beat) -> None:
    """It renews what it hasn't published, so no other beat publishes that too."""
    tick_until(slow_beat(0.6), lambda: messages(redis_url) >= 4, "all are published")
    assert len({headers["once_entry"] for headers in queued(redis_url)}) == messages(redis_url) == 4


def test_a_beat_that_was_frozen_leaves_what_another_has_taken(app, redis_url, slow_beat) -> None:
    """It goes on after its claims' lease: what another beat has taken isn't published by it too."""
    tick_until(slow_beat(1.2), lambda: messages(redis_url) >= 4, "all are published")
    sent = Counter(headers["once_entry"] for headers in queued(redis_url))
    assert sorted(sent.values()) == [1, 1, 1, 2], "twice the one that it was at"


def test_what_is_claimed_and_not_yet_published_needs_no_store(start_redis, app, redis_url, schedulers) -> None:
    """An untracked window, for which there was no time, is published though Redis has gone away meanwhile."""
    server = start_redis()
    app.conf.update(once_beat_redis_url=server.url())
    scheduler, row = of_an_hour(app, schedulers, once={"tracked": False})
    scheduler._owed.append(Job(row, row.next, Claimed(0, None)))
    server.kill()
    scheduler.recovery.hurry()
    scheduler.tick()
    assert scheduler._store_outage.lasts
    assert messages(redis_url) == 1


def sends_by(app: Celery, apply_async: Callable[..., Any]) -> None:
    """The entry's task publishes as this does, which is given Celery's own way, its arguments and options."""

    class Base(OnceTask):
        abstract = True

        def apply_async(self, *args: Any, **options: Any) -> Any:
            return apply_async(super().apply_async, *args, **options)

    app.task(tick, name="tests.own", base=Base, shared=False)
    app.conf.beat_schedule["tick"]["task"] = "tests.own"


def test_a_task_that_sets_headers_of_its_own(app, redis_url, schedulers, caplog) -> None:
    """As tracers and tenants' bases do: the window's are in the message all the same."""
    sends_by(app, lambda send, *args, **options: send(*args, **{**options, "headers": {"tenant": "acme"}}))
    tick_until(schedulers(), lambda: messages(redis_url) >= 2, "windows are published")
    for headers in queued(redis_url):
        assert decode_headers(find_headers(headers)).tracked
        assert headers["tenant"] == "acme"
    assert not said(caplog, "entry_astray")


def test_a_task_that_sends_another_message(app, redis_url, schedulers, caplog) -> None:
    """No worker would know its window: said once, the window ends as untracked, and so do those that follow."""
    sends_by(app, lambda send, *args, **options: send(*args, **{**options, "task_id": str(uuid.uuid4())}))
    scheduler = schedulers()
    tick_until(scheduler, lambda: messages(redis_url) >= 4, "windows are published")
    account = scheduler.store.account("tick")
    assert not account.open
    assert account.counts == {"untracked": messages(redis_url)}
    assert account.accounted == count_starts(schedule(0.1), account.since, account.cursor)
    (record,) = said(caplog, "entry_astray")
    assert "'tick' is untracked from now on: no message with its task id went out" in record.getMessage()


def test_a_task_that_sends_nothing(app, schedulers, redis_url, caplog) -> None:
    """That window ends as untracked. Those that follow are tracked, since no message has lost its window."""
    unsent = [True]
    sends_by(app, lambda send, *args, **options: None if unsent and unsent.pop() else send(*args, **options))
    scheduler = schedulers()
    tick_until(scheduler, lambda: len(queued(redis_url)) >= 5, "windows are published")
    account = scheduler.store.account("tick")
    assert account.counts == {"untracked": 1}
    assert len(account.open) == len(queued(redis_url))
    (record,) = said(caplog, "window_unsent")
    assert "no message" in record.getMessage()


@pytest.mark.parametrize("way", ["apply_entry", "send_task", "apply_async"])
def test_several_messages_of_one_window(app, schedulers, redis_url, caplog, way: str) -> None:
    """One a tenant, say: each has an id and a key of its own, the same if the window is published again; said once."""

    class Fanned(OnceScheduler):
        def apply_entry(self, entry: Any, producer: Any = None) -> None:
            for _ in range(1 if way == "apply_async" else 3):
                if way == "send_task":
                    self.app.send_task(entry.task, entry.args, entry.kwargs, producer=producer, **entry.options)
                else:
                    super().apply_entry(entry, producer)

    hourly(app)
    if way == "apply_async":
        sends_by(app, lambda send, *args, **options: [send(*args, **options) for _ in range(3)][-1])
    scheduler = schedulers(Fanned)
    row, start = loaded(scheduler), datetime.now(timezone.utc)
    for again in (False, True):
        scheduler._publish([Job(row, start, Claimed(1, None), again=again)], steady())
    sent = [(headers["once_entry"], headers["id"]) for headers in queued(redis_url)]
    assert sent[:3] == sent[3:]
    assert [entry for entry, _ in sent[:3]] == ["tick", "tick#2", "tick#3"]
    assert len({name for _, name in sent}) == 3
    assert caplog.text.count("sends several messages") == 1
    assert not said(caplog, "entry_astray")


class Counting(OnceScheduler):
    """Counts what it has sent, by a server that can't be reached."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        super().apply_async(*args, **options)
        raise RuntimeError("the metrics are away")


class CountingEntries(OnceScheduler):
    """The same, where nothing logs what is raised."""

    def apply_entry(self, *args: Any, **options: Any) -> None:
        super().apply_entry(*args, **options)
        raise RuntimeError("the metrics are away")


@pytest.mark.parametrize("cls", [OnceScheduler, Counting, CountingEntries])
def test_what_is_raised_behind_the_message(app, schedulers, redis_url, cls: type[OnceScheduler]) -> None:
    """The message is out: it isn't sent again, and its window doesn't fail before a worker comes to it."""

    def audited(send: Callable[..., Any], *args: Any, **options: Any) -> None:
        send(*args, **options)
        raise ConnectionError("the table of what was sent is away")

    if cls is OnceScheduler:
        sends_by(app, audited)
    scheduler = schedulers(cls)
    tick_until(scheduler, lambda: len(queued(redis_url)) >= 40, "windows of four seconds are published")
    ids = [headers["id"] for headers in queued(redis_url)]
    account = scheduler.store.account("tick")
    assert len(ids) == len(set(ids)) == len(account.open)
    assert account.counts == {}


def published_by_hand(app: Celery, schedulers: Callable[[], OnceScheduler], *queue: str) -> tuple[Any, datetime]:
    """A scheduler, and the start of a window that has no message, though the store has heard of one."""
    app.conf.once_beat_start_timeout = 0.1
    scheduler, row = of_an_hour(app, schedulers)
    key = WindowKey("tick", row.next)
    (claimed,) = scheduler.store.claim_many(scheduler.beat_id, [ClaimRequest(key, row.cursor, row.fingerprint)])
    scheduler.store.confirm_many([Confirmation(key, claimed.revision, Published.SENT, 0.1, *queue)])
    return scheduler, key.start


def test_a_window_that_nobody_begins(app, redis_url, schedulers, caplog) -> None:
    """From its third message on the log says which task no worker begins."""
    scheduler, _ = published_by_hand(app, schedulers)
    scheduler.store.consume("worker", name_broker(app.connection_for_read()), [QUEUE])
    tick_until(scheduler, lambda: messages(redis_url) == 3, "it is published again")
    records = said(caplog, "window_overdue") + said(caplog, "window_not_begun")
    assert [record.action for record in records] == ["window_overdue", "window_not_begun", "window_not_begun"]
    assert records[-1].task == "tests.tick"


@pytest.mark.parametrize(
    ("broker", "queues"), [("", [QUEUE, "other"]), ("another", ["other"]), ("", ["other", "-"]), ("", None)]
)
def test_a_window_whose_queue_nobody_consumes(app, redis_url, raw, schedulers, caplog, broker, queues) -> None:
    """It gets no copy, and that is said once, until a worker consumes its queue, or may do so for all that is known."""
    scheduler, start = published_by_hand(app, schedulers, QUEUE)
    once, mine = scheduler.store, name_broker(app.connection_for_read())
    once.consume("elsewhere", mine, ["other"])
    before = once.account("tick").open[start]
    tick_until(scheduler, lambda: said(caplog, "window_not_begun"), "it is said")
    for _ in range(3):
        scheduler.recovery.hurry()
        scheduler.tick()
    assert once.account("tick").open == {start: before}
    assert not messages(redis_url)
    if queues is None:
        raw.set(once.keys.workers, "foreign", ex=600)
    else:
        once.consume("worker", broker or mine, queues)
    tick_until(scheduler, lambda: messages(redis_url), "it is published again")
    (record,) = said(caplog, "window_not_begun")
    assert f"consumes its queue '{QUEUE}'" in record.getMessage()


def test_the_package_is_lazy() -> None:
    """``celery --help`` with the package installed imports neither redis nor the store."""
    code = "import celery_once_beat, sys; print([m for m in sys.modules if m in ('redis', 'celery_once_beat.store')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_beat_that_loads_for_long_says_that_it_lives(app, schedulers, redis_url, raw, monkeypatch) -> None:
    """It is heard of between what it loads, and publishes meanwhile: nobody takes it for gone, however many entries."""
    monkeypatch.setattr("celery_once_beat.beat.loading._LOADING", 0.0)  # one entry is more than there is time for
    tick = app.conf.beat_schedule["tick"]
    app.conf.beat_schedule = {f"tick-{n}": tick for n in range(12)}
    scheduler = schedulers()
    heard = []
    for left in range(11, -1, -1):
        assert scheduler.tick() == 0.0 or not left
        assert len(scheduler.entries.unloaded()) == left
        ((_, at),) = raw.zrange("once:beats", 0, -1, withscores=True)
        heard.append(at)
        wait_until(lambda: time.time() * 1000 > heard[-1] + 10, "the clock goes on", 5, every=0.001)
    assert heard == sorted(set(heard))
    assert messages(redis_url), "what was loaded first is claimed while others are loaded"
