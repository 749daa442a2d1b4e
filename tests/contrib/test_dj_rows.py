"""What a row of django-celery-beat is as an entry: its windows, its options, its definition."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import schedule, solar
from processes import environ, wait_until
from shops import ONCE, Orm, Shop

from celery_once_beat import OnceTask
from celery_once_beat.beat import BeatEntry, Entries
from celery_once_beat.errors import SettingError
from celery_once_beat.rules.starts import next_start, starts_after
from celery_once_beat.schedules import describe
from celery_once_beat.settings import Settings

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
TASK = "proj.task"


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("tests", broker="memory://", set_as_current=False, task_cls=OnceTask) as app:
        app.conf.once_beat_redis_url = "redis://127.0.0.1:1/0"
        app.conf.timezone = "Europe/Berlin"
        yield app


@pytest.fixture
def read(rows: Any, app: Celery) -> Any:
    """All rows as a beat reads them."""
    from celery_once_beat.contrib.django import OnceDatabaseScheduler

    return lambda: OnceDatabaseScheduler(app, lazy=True).all_as_schedule()


@pytest.fixture
def make(rows: Any, read: Any) -> Any:
    """``make(interval=30, …)``: a row with its schedule, as an entry; None where it isn't enabled."""
    from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, SolarSchedule

    def of(interval: int | None = None, cron: str = "", sun: Any = None, clocked: Any = None, **fields: Any) -> Any:
        if interval:
            fields["interval"] = IntervalSchedule.objects.get_or_create(every=interval, period="seconds")[0]
        if cron:
            names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
            parts = dict(zip(names, cron.split(), strict=True))
            fields["crontab"] = CrontabSchedule.objects.create(**parts, timezone=fields.pop("zone", "UTC"))
        if sun:
            fields["solar"] = SolarSchedule.objects.get_or_create(event=sun[0], latitude=sun[1], longitude=sun[2])[0]
        if clocked:
            fields["clocked"] = ClockedSchedule.objects.create(clocked_time=clocked)
            fields.setdefault("one_off", True)
        name = fields.pop("name", "row")
        rows.objects.create(name=name, task=TASK, **fields)
        return read().get(name)

    return of


def in_berlin(*when: int) -> datetime:
    return datetime(*when, tzinfo=BERLIN).astimezone(UTC)


def windows(entry: Any, since: datetime = NOW, until: timedelta = 3 * DAY) -> list[datetime]:
    """The starts by the row as a beat has it: with its anchor."""
    row = row_of(entry)
    return list(starts_after(entry.schedule, since, since + until, anchor=row.policy.anchor))


def rows_of(*entries: Any, **settings: Any) -> Entries:
    """Entries as a beat has them."""
    rows = Entries("beat", Settings(redis_url="redis://h", **settings), {})
    rows.refresh({entry.name: entry for entry in entries})
    return rows


def row_of(entry: Any, **settings: Any) -> BeatEntry:
    rows = rows_of(entry, **settings)
    row = rows.get(entry.name)
    assert row is not None, rows.wrong
    return row


# -- when


@pytest.mark.long
def test_each_kind_of_schedule(make: Any) -> None:
    """The same windows as by the schedule in code."""
    assert windows(make(interval=7200), until=HOUR * 5) == [NOW + 2 * HOUR, NOW + 4 * HOUR]
    assert windows(make(name="days", interval=86_400)) == [in_berlin(2026, 3, day) for day in (2, 3, 4)]
    nightly = make(name="nightly", cron="30 2 * * *", zone="America/New_York")
    assert [start.hour for start in windows(nightly)] == [7, 7, 7]
    assert windows(make(name="clocked", clocked=NOW + HOUR)) == [NOW + HOUR]
    sun = windows(make(name="sun", sun=("sunrise", "52.5", "13.4")))
    app = Celery(set_as_current=False)
    assert sun == list(starts_after(solar("sunrise", 52.5, 13.4, app=app), NOW, NOW + 3 * DAY))
    assert len(sun) == 3


def test_a_crontab_over_daylight_saving(make: Any) -> None:
    """Its own zone's: what doesn't exist on 29 March runs after the gap."""
    entry = make(cron="30 2 * * *", zone="Europe/Berlin")
    assert windows(entry, in_berlin(2026, 3, 27)) == [
        in_berlin(2026, 3, 27, 2, 30), in_berlin(2026, 3, 28, 2, 30), in_berlin(2026, 3, 29, 3, 0)
    ]  # fmt: skip


@pytest.mark.long
def test_a_row_begins_with_its_start_time(make: Any) -> None:
    """An interval's first window is start_time itself, a crontab's its first time from then on."""
    begins = NOW + HOUR + timedelta(seconds=7.5)
    assert windows(make(interval=7200, start_time=begins), until=HOUR * 6) == [begins + n * 2 * HOUR for n in range(3)]
    days = make(name="days", interval=86_400, start_time=in_berlin(2026, 3, 27, 8, 15))
    assert windows(days, until=30 * DAY)[:3] == [in_berlin(2026, 3, day, 8, 15) for day in (27, 28, 29)]
    cron = make(name="cron", cron="0 * * * *", start_time=NOW + 2 * HOUR)
    assert windows(cron, until=HOUR * 4) == [NOW + n * HOUR for n in (2, 3, 4)]
    headers = json.dumps({"once": {"anchor": "2026-03-01T00:00:01Z"}})
    own = make(name="own", interval=7200, start_time=begins, headers=headers)
    assert windows(own, until=HOUR * 4) == [NOW + 2 * HOUR + SECOND], "an anchor of its own goes before"


def test_a_row_ends_before_its_expiry(make: Any) -> None:
    """A window at that instant is none; the messages of the others expire then, as under django-celery-beat."""
    entry = make(interval=3600, expires=NOW + 3 * HOUR)
    assert windows(entry) == [NOW + HOUR, NOW + 2 * HOUR]
    assert next_start(entry.schedule, NOW + 5 * HOUR) is None
    assert entry.options["expires"] == NOW + 3 * HOUR
    both = make(name="both", interval=3600, start_time=NOW + 90 * MINUTE, expires=NOW + 3 * HOUR)
    assert windows(both) == [NOW + 90 * MINUTE, NOW + 150 * MINUTE]
    assert windows(make(name="sun", sun=("solar_noon", "52.5", "13.4"), expires=NOW + DAY), until=9 * DAY)
    assert make(name="seconds", interval=3600, expire_seconds=90).options["expires"] == 90


def test_a_one_off_has_one_window(make: Any) -> None:
    """The first after it was loaded; `next` shows no other."""
    row = row_of(make(interval=3600, one_off=True))
    assert row.one_off
    row.progress.since = NOW
    assert row.after(NOW) == NOW + HOUR
    assert row.after(NOW + HOUR) is None
    assert not row_of(make(name="clocked", clocked=NOW)).one_off, "it has one anyway"


def test_a_clocked_row_counts_from_its_time(make: Any) -> None:
    """It isn't lost where it is first seen later. What another scheduler has run before isn't run again."""
    late = make(clocked=NOW)
    assert late.counts_from == NOW - timedelta(microseconds=1)
    assert next_start(late.schedule, late.counts_from) == NOW
    assert make(name="ran", clocked=NOW, last_run_at=NOW + SECOND).counts_from is None
    assert make(name="of old", clocked=NOW, last_run_at=NOW - DAY).counts_from is not None
    assert make(name="interval", interval=5).counts_from is None


# -- options


def test_headers_without_once(make: Any) -> None:
    """What a person writes there is taken out of the message, and is what `options` has elsewhere."""
    headers = {"mine": [1], "once": {"catch_up": "all", "grace": 3600, "anchor": "2026-03-01T00:00:00+01:00"}}
    entry = make(interval=5, headers=json.dumps(headers), args="[1]", kwargs='{"a": 2}', queue="slow", priority=3)
    assert entry.options == {
        "queue": "slow", "priority": 3, "headers": {"mine": [1], "periodic_task_name": "row"},
        "once": headers["once"],
    }  # fmt: skip
    assert (entry.args, entry.kwargs) == ([1], {"a": 2})
    policy = row_of(entry).policy
    assert (policy.catch_up, policy.grace, policy.anchor) == ("all", 3600, datetime(2026, 2, 28, 23, tzinfo=UTC))


def test_what_a_row_may_set(make: Any) -> None:
    """Whatever an entry may: how its windows wait, and what people are told."""
    once = {
        "overlap": "buffer_one", "limit": "reports", "deadline": 900, "pause_after_failures": 5,
        "on_failure": "proj.tell", "tracked": True,
    }  # fmt: skip
    row = row_of(make(interval=5, headers=json.dumps({"once": once})), limits={"reports": 3})
    assert {key: getattr(row.policy, key) for key in once} == once


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "once": ({"headers": '{"once": {"grce": 1}}'}, r"'row', option 'once': unknown key 'grce' \(did you mean 'grace'"),
    "kind": ({"headers": '{"once": "all"}'}, "'row', option 'once': found str, expected a dict"),
    "anchor": ({"headers": '{"once": {"anchor": "noon"}}', "expires": NOW}, r"'row', once\['anchor'\]: found 'noon'"),
    "started": ({"headers": '{"once": 5}', "start_time": NOW}, "'row', option 'once': found int"),
    "headers": ({"headers": "{"}, "row 'row', headers: found '{', expected JSON"),
    "no object": ({"headers": "[1]"}, r"row 'row', headers: found '\[1\]', expected an object"),
    "args": ({"args": "1, 2"}, "row 'row', args: found '1, 2', expected JSON"),
    "kwargs": ({"kwargs": "[]"}, "row 'row', kwargs: found '\\[\\]', expected an object"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_row_is_named_and_left_as_it_is(make: Any, rows: Any, case: str) -> None:
    """What was found, what was expected; nothing is written, the others go on."""
    fields, why = WRONG[case]
    beat = rows_of(make(interval=5, **fields), make(name="good", interval=5))
    assert [row.name for row in beat] == ["good"]
    assert list(beat.wrong) == ["row"]
    assert re.search(why, beat.wrong["row"])
    assert rows.objects.get(name="row").enabled


def test_rows_that_no_form_lets_pass(make: Any, rows: Any, read: Any) -> None:
    """Code may write anything: a broken crontab, no schedule at all, a zone that only another machine knows."""
    from django.db import connection
    from django_celery_beat.models import CrontabSchedule

    make(cron="0 0 * * *")
    CrontabSchedule.objects.update(hour="24")
    make(name="zone", cron="0 1 * * *")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_celery_beat_crontabschedule SET timezone = 'Mars/Olympus' WHERE hour = '1'")
    rows.objects.create(name="other", task=TASK, interval=make(name="good", interval=5).model.interval)
    rows.objects.filter(name="other").update(interval=None)
    found = read()
    row_of(found["good"])
    for name, why in (
        ("row", "row 'row': ValueError"),
        ("other", "row 'other' has no schedule"),
        ("zone", "row 'zone': ValidationError.*Mars/Olympus"),
    ):
        with pytest.raises(SettingError, match=why):
            _ = found[name].task
    rows.objects.all().delete()
    with connection.cursor() as cursor:  # other tests read all that there is
        cursor.execute("DELETE FROM django_celery_beat_crontabschedule WHERE timezone = 'Mars/Olympus'")


# -- definitions

ALL_KINDS = """
row("interval", interval=every(30))
row("days", interval=every(86400))
row("crontab", crontab=CrontabSchedule.objects.create(minute="*/7", hour="2,3", timezone="Asia/Kathmandu"))
row("sun", solar=SolarSchedule.objects.create(event="sunset", latitude="52.52", longitude="13.405"))
row("clocked", clocked=at(now(60)), one_off=True)
bounds = {"start_time": now(60), "expires": now(3600)}
row("bounded", interval=every(30), **bounds)
row("bounded crontab", crontab=CrontabSchedule.objects.create(minute="5", timezone="Europe/Berlin"), **bounds)
row("bounded sun", solar=SolarSchedule.objects.get(), **bounds)
row("bounded clocked", clocked=at(now(90)), one_off=True, **bounds)
row("one-off", interval=every(30), one_off=True)
row("anchored", interval=every(30), headers='{"once": {"anchor": "2026-01-01T00:00:00Z"}}')
row("one-off, anchored", interval=every(30), one_off=True, headers='{"once": {"anchor": "2026-01-01T00:00:00Z"}}')
"""
READ = """
from celery_once_beat.contrib.django import OnceDatabaseScheduler
from celery_once_beat.beat import Entries
from celery_once_beat.settings import Settings

rows = Entries("beat", Settings(redis_url="redis://h"), {})
rows.refresh(OnceDatabaseScheduler(app, lazy=True).all_as_schedule())
result = {row.name: [row.fingerprint, repr(row.source.schedule)] for row in rows}
"""


@pytest.mark.long
def test_a_definition_is_the_same_in_every_process(shop: Shop) -> None:
    """Fingerprints have neither objects nor addresses in them, and differ wherever windows may."""
    shop.orm(ALL_KINDS)
    here, there = shop.orm(READ), Orm(shop.env(), shop.directory)
    assert there(READ) == here
    there.close()
    assert len(here) == 12
    assert len({mark for mark, _ in here.values()}) == 12
    assert not any(" at 0x" in text for _, text in here.values())
    assert not any("object" in text for _, text in here.values())
    for name, edit in {
        "bounded": "expires=now(7200)",
        "bounded crontab": "start_time=now(90)",
        "one-off": "one_off=False",
        "interval": "one_off=True",
        "one-off, anchored": "interval=every(31)",
    }.items():
        shop.orm(f"edit({name!r}, {edit})")
        assert shop.orm(READ)[name] != here[name]
    shop.orm("edit('anchored', description='another', kwargs='{}', queue='q', priority=1)")
    assert shop.orm(READ)["anchored"] == here["anchored"]


def test_schedules_for_people_to_read(make: Any) -> None:
    """In the order of cron, with the zone, with the bounds."""
    begins = datetime(2026, 3, 1, 12, tzinfo=UTC)
    cron = {"cron": "30 2 1 * 5", "zone": "Europe/Berlin"}
    assert describe(make(**cron).schedule) == "30 2 1 * 5 Europe/Berlin"
    assert describe(make(name="bounded", **cron, start_time=begins).schedule) == (
        "30 2 1 * 5 Europe/Berlin, from 2026-03-01T12:00:00Z"
    )
    one_off = make(name="one-off", interval=90, one_off=True, expires=begins)
    assert describe(one_off.schedule) == "every 90 s, until 2026-03-01T12:00:00Z, one-off"
    long = make(name="long", **cron, start_time=begins, expires=begins + DAY, one_off=True)
    assert describe(long.schedule).startswith("30 2 1 * 5 Europe/Berlin, from 2026-03-01T12:00:00Z, until")


@pytest.mark.long
def test_times_without_a_zone(new_shop: Any) -> None:
    """With USE_TZ = False a row's times are in Django's TIME_ZONE, all of them."""
    shop = new_shop(USE_TZ=False)
    shop.orm("import zoneinfo; berlin = zoneinfo.ZoneInfo('Europe/Berlin'); noon = datetime(2027, 7, 1, 12)")
    shop.orm("row('clocked', clocked=at(noon), one_off=True)")
    shop.orm("row('bounded', interval=every(3600), start_time=noon, expires=noon + timedelta(hours=2))")
    text = shop.once("next", "-S", ONCE, "--from", "2027-07-01T00:00Z", "--json")
    assert [(window["entry"], window["start"][:19]) for window in json.loads(text)] == [
        ("bounded", "2027-07-01T10:00:00"), ("clocked", "2027-07-01T10:00:00"), ("bounded", "2027-07-01T11:00:00"),
    ]  # fmt: skip


_RAN = """
from celery.utils.time import maybe_make_aware
from celery_once_beat.contrib.django import OnceModelEntry
from celery_once_beat.contrib.django.database import Database
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry

row('ran', interval=every(60))
began = now()
next(ModelEntry(PeriodicTask.objects.get(), app=app)).save()
ran = OnceModelEntry(PeriodicTask.objects.get(), app=app).ran_elsewhere
ours = now(60)
Database(DatabaseScheduler, 1.0)._write_ran(PeriodicTask.objects.get().pk, 1, ours)
stock = maybe_make_aware(ModelEntry(PeriodicTask.objects.get(), app=app).last_run_at)
result = [began <= ran <= now(), stock == ours]
"""


@pytest.mark.parametrize("zones", [True, False])
def test_when_a_row_ran_is_written_as_the_stock_scheduler_does(new_shop: Any, zones: bool) -> None:
    """Each reads what the other has written. Without USE_TZ, and without DJANGO_CELERY_BEAT_TZ_AWARE, it is in UTC."""
    shop = new_shop() if zones else new_shop(USE_TZ=False, DJANGO_CELERY_BEAT_TZ_AWARE=False)
    assert shop.orm(_RAN) == [True, True]


# -- what a beat reads


def test_all_enabled_rows_are_read(make: Any, rows: Any, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """django-celery-beat 2.8 and 2.9 leave out crontabs more than two hours from now; recovery and `next` need them."""
    from django_celery_beat import schedulers

    for hour in range(24):
        make(name=f"at {hour}", cron=f"0 {hour} * * *")
    make(name="far", clocked=datetime(2999, 1, 1, tzinfo=UTC))
    make(name="switched off", interval=5, enabled=False)
    assert sorted(read()) == sorted(["far", *(f"at {hour}" for hour in range(24))])
    if not hasattr(schedulers.DatabaseScheduler, "_get_crontab_exclude_query"):
        pytest.skip("this release of django-celery-beat reads all of them")
    monkeypatch.setattr(schedulers, "aware_now", lambda: NOW)
    stock = schedulers.DatabaseScheduler(Celery(set_as_current=False), lazy=True)
    left = {row.name for row in stock.enabled_models_qs()}
    assert left == {f"at {hour}" for hour in (4, 10, 11, 12, 13, 14)}


@pytest.mark.parametrize(
    "bounds",
    [
        {}, {"start_time": -DAY}, {"start_time": DAY}, {"expires": DAY}, {"expires": -DAY},
        {"start_time": -DAY, "one_off": True},
    ],
)  # fmt: skip
@pytest.mark.parametrize("when", [{"interval": 30}, {"cron": "0 2 * * *"}], ids=["interval", "cron"])
def test_is_due_as_the_base_has_it(make: Any, when: dict[str, Any], bounds: dict[str, Any]) -> None:
    """For code that asks entries itself, other than a beat: nothing is written for that."""
    from django_celery_beat.schedulers import ModelEntry

    now = datetime.now(UTC)
    moments = {name: now + by if isinstance(by, timedelta) else by for name, by in bounds.items()}
    entry = make(**when, last_run_at=now - HOUR, **moments)
    found = entry.is_due()
    entry.model.refresh_from_db()
    assert entry.model.enabled
    expected = ModelEntry(entry.model, app=entry.app).is_due()
    assert found.is_due == expected.is_due
    assert found.next == pytest.approx(expected.next, abs=5)


@pytest.fixture
def database(rows: Any, read: Any) -> Any:
    """A beat's access to the rows, without its thread."""
    from django_celery_beat.models import PeriodicTasks

    from celery_once_beat.contrib.django import OnceModelEntry
    from celery_once_beat.contrib.django.database import Database

    scheduler = SimpleNamespace(
        Model=rows, Changes=PeriodicTasks, Entry=OnceModelEntry, all_as_schedule=read, write_row=None
    )
    return Database(scheduler, 1.0)


def test_a_one_off_is_disabled_once(make: Any, rows: Any, database: Any, caplog: pytest.LogCaptureFixture) -> None:
    """By one of several beats; people see when. Its run count is what another scheduler needs to run it again."""
    caplog.set_level(logging.INFO)
    entry = make(interval=5, one_off=True, total_run_count=1, last_run_at=NOW)
    for _ in range(2):
        database._disable(entry.name, (entry, lambda: True))
    row = rows.objects.get()
    assert (row.enabled, row.total_run_count, row.last_run_at) == (False, 0, NOW)
    assert row.date_changed > entry.model.date_changed
    assert [record.action for record in caplog.records] == ["row_disabled"]  # type: ignore[attr-defined]


def test_a_spent_rows_count_stays_as_it_was_set_back(make: Any, rows: Any, database: Any) -> None:
    """What a beat has to write of it comes after it was disabled: when it ran, not how often."""
    entry = make(interval=5, one_off=True)
    database.ran(entry.model.pk, datetime.now(timezone.utc))
    database.disable(entry, lambda: True)
    database.flush()
    database._round()
    row = rows.objects.get()
    assert (row.enabled, row.total_run_count) == (False, 0)
    assert row.last_run_at is not None


def test_what_can_not_be_written_hides_nothing(make: Any, rows: Any, database: Any) -> None:
    """The rows are read, and what is behind it is written; each round tries again."""
    make(name="a", interval=5)
    written: list[str] = []

    def write(name: str, _: Any) -> None:
        if name == "refused":
            raise OSError("permission denied")
        written.append(name)

    database._scheduler.write_row = write
    database.write({"refused": {}, "taken": {}})
    for _ in range(2):
        database._round()
        assert [*database.seen.schedule] == ["a"]
        assert database.trouble == "can't be written: OSError: permission denied"
    assert written == ["taken"]


@pytest.mark.parametrize("edit", ["saved", "enabled again", "another time", "regular", "garbage"])
def test_what_was_edited_since_is_not_disabled(make: Any, rows: Any, database: Any, edit: str) -> None:
    """It is to run once more, or again and again; the beat that asked hadn't seen it yet."""
    entry = make(clocked=NOW)
    row = rows.objects.get()
    if edit == "saved":
        row.save()
    elif edit == "enabled again":
        database._disable(entry.name, (entry, lambda: True))
        rows.objects.update(enabled=True)
    elif edit == "another time":
        row.clocked.clocked_time = NOW + DAY
        row.clocked.save()
    elif edit == "garbage":
        rows.objects.update(kwargs="{")
    else:
        rows.objects.update(one_off=False)
    database._disable(entry.name, (entry, lambda: True))
    assert rows.objects.get().enabled


def test_when_rows_ran_is_written_in_time(make: Any, rows: Any, database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows hold up the next look by half a second; what is left is written after it. An error loses none."""
    keys = [make(name=name, interval=5).model.pk for name in "abc"]
    changed = rows.objects.get(name="a").date_changed
    rows.objects.filter(name="c").update(last_run_at=datetime(2999, 1, 1, tzinfo=UTC))
    for _ in range(2):
        for key in keys:
            database.ran(key, datetime.now(timezone.utc))
    monkeypatch.setattr("celery_once_beat.contrib.django.database._WRITING", 0.0)
    database._round()
    assert set(rows.objects.values_list("total_run_count", flat=True)) == {0}, "nobody has asked for it"
    database.flush()
    database._round()
    assert set(rows.objects.values_list("total_run_count", flat=True)) == {0}, "there was no time"
    monkeypatch.setattr("celery_once_beat.contrib.django.database._WRITING", 9.0)
    with monkeypatch.context() as patch:
        patch.setattr(type(rows.objects.all()), "update", _away)
        database._round()
        assert database.trouble == "can't be written: OSError: away"
    database._round()
    assert not database.trouble
    assert set(rows.objects.values_list("total_run_count", flat=True)) == {2}
    assert rows.objects.get(name="c").last_run_at.year == 2999, "another beat's clock is ahead"
    row = rows.objects.get(name="a")
    assert row.last_run_at is not None
    assert row.date_changed == changed, "it isn't an edit"


def _away(*_: Any, **__: Any) -> None:
    raise OSError("away")


def test_what_one_row_refuses_holds_up_no_other(make: Any, rows: Any, database: Any) -> None:
    """A row whose count is full, or that can't be read any more: what is to be written of the others is."""
    full, other, too = (make(name=name, interval=5).model.pk for name in ("full", "other", "full too"))
    unreadable, spent = (make(name=name, clocked=NOW) for name in ("unreadable", "spent"))
    rows.objects.filter(pk__in=(full, too)).update(total_run_count=2**63 - 1)  # SQLite's largest
    for key in (full, other, too):
        database.ran(key, datetime.now(timezone.utc))
    for entry in (unreadable, spent):
        database.disable(entry, lambda entry=entry: {}[0] if entry is unreadable else True)
    for _ in range(3):
        database.flush()
        database._round()
        assert database.trouble.startswith("can't be written: ")
    assert rows.objects.get(pk=other).total_run_count == 1
    assert not rows.objects.get(name="spent").enabled


@pytest.mark.long
def test_rows_of_the_conf(shop: Shop) -> None:
    """`beat_schedule` is written to rows at a start, `once` and all; a row that is switched off stays so."""
    env = {"IN_CONF": "1"}
    shop.orm("row('in conf', interval=every(1), enabled=False)")
    beat = shop.beat(**env)
    beat.wait_ready()
    wait_until(lambda: shop.orm.row("in conf", "crontab__hour") == ["3"], "the row is the conf's", 60)
    fields = "enabled, interval, crontab__hour, crontab__minute, args, expire_seconds, queue, headers"
    assert shop.orm.row("in conf", fields)[:-1] == [False, None, "3", "30", '["conf"]', 91, "slow"]
    assert json.loads(shop.orm.row("in conf", "headers")[0]) == {"once": {"catch_up": "all"}}
    assert shop.store.account("in conf") is None
    assert "in conf" not in shop.once("next", "-S", ONCE, env=env)
    shop.orm("edit('in conf', enabled=True)")
    wait_until(lambda: shop.store.account("in conf"), "it is loaded", 60)
    assert "in conf" in shop.once("next", "-S", ONCE, env=env)


def test_beats_that_start_at_once_make_one_interval(app: Celery, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, code that asks for the interval of that length would get neither."""
    from django.db import connections
    from django_celery_beat.models import IntervalSchedule

    from celery_once_beat.contrib.django import OnceDatabaseScheduler

    from_schedule = IntervalSchedule.from_schedule

    def slowly(*given: Any, **more: Any) -> Any:
        found = from_schedule(*given, **more)
        time.sleep(0.5)
        return found

    monkeypatch.setattr(IntervalSchedule, "from_schedule", slowly)

    def write(name: str) -> None:
        scheduler = OnceDatabaseScheduler(app, lazy=True)
        scheduler.update_from_dict({name: {"task": "t", "schedule": schedule(7.0, app=app)}})
        connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, ["a", "b"]))
    assert {*rows.objects.values_list("name", flat=True)} == {"a", "b"}
    assert IntervalSchedule.objects.filter(every=7).count() == 1


def test_the_names_need_django(django_here: object) -> None:
    """What is missing is said; a task base doesn't need it."""
    code = """
from celery_once_beat.contrib import django
assert django.OnceTask.delay_on_commit
try:
    django.OnceDatabaseScheduler
except ImportError as exc:
    print(exc)
"""
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True, env=environ({}))
    assert "DJANGO_SETTINGS_MODULE set, 'django_celery_beat' in INSTALLED_APPS" in done.stdout


def test_the_admin_knows_the_scheduler(django_here: object) -> None:
    """By its whole name: it looks for CELERY_BEAT_SCHEDULER without the short ones."""
    from django_celery_beat.utils import is_database_scheduler

    assert is_database_scheduler("celery_once_beat.contrib.django:OnceDatabaseScheduler")


def test_a_beat_in_the_process_sends_what_the_rows_say(app: Celery, rows: Any, make: Any) -> None:
    """``once_beat`` reads them at each tick: one that a view makes runs from then on, until it is disabled."""
    from celery_once_beat.testing import OnceBeat

    app.conf.beat_scheduler = "once-django"

    @app.task(name=TASK, shared=False)
    def send(user: str) -> str:
        return f"to {user}"

    with OnceBeat() as beat:
        beat(app, "2026-03-01T06:00Z")
        make(cron="30 8 * * *", zone="Europe/Berlin", args='["ann"]')
        (sent,) = beat.until("09:00")
        assert (sent.entry, sent.window.start, sent.run()) == ("row", in_berlin(2026, 3, 1, 8, 30), "to ann")
        assert len(beat.until("2026-03-04T06:00Z")) == 2
        rows.objects.update(enabled=False)
        assert beat.until("2026-03-06T06:00Z") == []
    assert rows.objects.get().last_run_at is None, "no row is written"
