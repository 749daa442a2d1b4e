"""A user's app, as mypy and pyright see it: nothing here is run. ``make types`` checks it.

What is right has to pass, and what is wrong has to be found: an ignore that isn't needed is an error too.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule, crontab
from sqlalchemy import Connection, MetaData, Table, create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from typing_extensions import assert_type

import celery_once_beat
from celery_once_beat import (
    AsyncSchedules,
    OnceScheduler,
    OnceSchedulerMixin,
    OnceTask,
    OneOff,
    Schedule,
    Schedules,
    Window,
    current_window,
    once,
    register_schedule_codec,
)
from celery_once_beat.contrib.django import OnceTask as DjangoOnceTask
from celery_once_beat.contrib.sqlalchemy import effects_table, prune
from celery_once_beat.errors import RecordError, VersionConflictError, WindowRecorded
from celery_once_beat.schedules import Period, at, between, cron, every, excluding, union
from celery_once_beat.signals import window_missed
from celery_once_beat.testing import (
    EmbeddedStore,
    OnceWindow,
    embedded_store,
    executing,
    pinned_clock,
    starts_between,
    window,
    windows_between,
)

app = Celery("proj", broker="redis://localhost", task_cls=OnceTask)


# -- a task and its window


@app.task(bind=True, base=OnceTask)
def report(self: OnceTask, day: str) -> int:
    window = self.window
    assert_type(window, Window)
    assert_type(window.scheduled, bool)
    assert_type(window.entry, str)
    assert_type(window.start, datetime)
    assert_type(window.end, datetime | None)
    assert_type(window.attempt, int)
    assert_type(window.fence, int | None)
    assert_type(window.last_done, datetime | None)
    assert_type(window.held, bool)
    assert_type(window.key, str)
    return len(day)


@app.task
def unbound() -> None:
    window = current_window()
    assert_type(window, Window | None)
    window.start  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


class Report(OnceTask):
    name = "proj.report"
    once_lease = 120.0

    def run(self, day: str) -> int:
        return len(day)


class SentAfterCommit(DjangoOnceTask):
    def run(self, day: str) -> int:
        self.delay_on_commit(day)
        return len(day)


class Wrong(OnceTask):
    once_lease = "two minutes"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


report.delay("2026-11-21")
report.apply_async(args=("2026-11-21",), countdown=10)


# -- effects


@app.task(bind=True, base=OnceTask)
def invoice(self: OnceTask, session: Session, connection: Connection) -> None:
    assert_type(self.window.record(session), bool)
    self.window.record(scoped_session(sessionmaker()), "load", skip=True, result={"invoices": 12})
    self.window.record(connection, step="load", using="other")
    self.window.record("load")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    try:
        self.window.record(session)
    except WindowRecorded as exc:
        assert_type(exc.recorded_at, str)
        raise
    except RecordError:
        return


async def book(session: AsyncSession, window: Window) -> None:
    assert_type(await session.run_sync(window.record), bool)


def every_night() -> int:
    with once("nightly", every="1d", url="redis://localhost") as window:  # not taken for one that ends exceptions
        return 1 if window is None else 2


prune(create_engine("sqlite://"), timedelta(days=90))
assert_type(effects_table(MetaData(), schema="jobs"), Table)


# -- keys of one's own


@once("cleanup", every="1h", app=app)
def cleanup(day: str) -> int:
    return len(day)


@once("cleanup", every=timedelta(hours=1), url="redis://localhost")
async def cleanup_later(day: str) -> int:
    return len(day)


assert_type(cleanup("2026-11-21"), int | None)


async def in_asyncio() -> None:
    assert_type(await cleanup_later("2026-11-21"), int | None)
    await cleanup_later(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with once("cleanup", every="1h", app=app) as window:
        assert_type(window, Window | None)
    await SentAfterCommit().apply_once_async(("2026-11-21",), key="ann", window=window, tracked=True)
    await SentAfterCommit().apply_once_async(("2026-11-21",), every="1d")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# -- schedulers


class AnnouncedScheduler(OnceSchedulerMixin):
    def tick(self, *args: Any, **kwargs: Any) -> float:
        return super().tick(*args, **kwargs)


app.conf.beat_scheduler = OnceScheduler


# -- signals and errors


@window_missed.connect
def on_missed(sender: object, window: Window, count: int, **_: object) -> None:
    assert_type(count, int)


# -- when

office = union(cron("0 9-17 * * mon-fri"), crontab(hour=10), "90 min", timedelta(hours=7), tz="Europe/Berlin")
assert_type(office, union)
assert_type(at("2026-12-24T18:00", tz="Europe/Berlin"), OneOff)
holidays = [date(2026, 12, 25), ("2026-12-24", "2026-12-26"), Period("2020-01-01", rule="FREQ=YEARLY")]
nightly: BaseSchedule = excluding(between(office, start="2026-01-01", end=date(2026, 12, 31)), holidays)
excluding(cron("@daily"), {"2026-12-25": "Christmas Day"}, tz=timezone.utc)
app.conf.beat_schedule = {
    "nightly": {"task": "proj.report", "schedule": nightly, "options": {"once": {"tz": "Europe/Berlin"}}},
    "hourly": {"task": "proj.report", "schedule": every(3600.0, anchor=datetime(2026, 1, 1, tzinfo=timezone.utc))},
}
cron(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- schedules that are set at run time


schedules = Schedules(app)
one = schedules.set(
    "tenant-42/report",
    task=report,
    schedule=crontab(hour=6),
    args=("2026-11-21",),
    options={"queue": "reports"},
    once={"catch_up": "all"},
    timezone="Europe/Berlin",
    by="anna",
    note="their trial ends in May",
)
assert_type(one, Schedule)
assert_type(one.changed_at, datetime)
assert_type(schedules.pause("tenant-42/report"), Schedule | None)
assert_type(schedules.delete("tenant-42/report", if_version=one.version), bool)
assert_type([each.name for each in schedules.list("tenant-")], list[str])
schedules.set("tenant-42/report", task="proj.report", schedule=timedelta(hours=1), if_version="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def set_time(user: str, hour: int) -> int | None:
    schedules = AsyncSchedules(url="redis://localhost", key_prefix="once:")
    try:
        made = await schedules.set(f"user-{user}", task="proj.report", schedule=crontab(hour=hour), if_version=0)
    except VersionConflictError:
        return None
    assert_type(made, Schedule)
    assert_type([each async for each in schedules.list()], list[Schedule])
    await schedules.set(user, schedule=60)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    for change in await schedules.changes(f"user-{user}"):
        assert_type(change.by, str)
    return made.version


class Tide(BaseSchedule):
    harbour = "Hamburg"


register_schedule_codec("tide", Tide, lambda tide: {"harbour": tide.harbour}, lambda _: Tide())
schedules.set("tide", task="proj.report", schedule=OneOff(datetime.now()))


# -- tests of its own


def test_report() -> None:
    with (
        pinned_clock("2026-11-21T02:00Z") as clock,
        executing(report, window("report", clock.now(), held=False)) as given,
    ):
        assert_type(given, Window)
        report("2026-11-21")
    assert_type(windows_between(app, "2026-11-21T00:00Z", clock.now()), list[Window])
    assert_type(starts_between(60, "2026-11-21T00:00Z", clock.now()), list[datetime])


def test_children(once_store: EmbeddedStore, once_window: OnceWindow) -> None:
    assert_type(once_store.url, str)
    assert_type(once_window(report, window("report", "2026-11-21T02:00Z")), Window)
    with embedded_store() as store:
        assert_type(store, EmbeddedStore)


assert_type(celery_once_beat.__version__, str)
celery_once_beat.OnceTasks  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
