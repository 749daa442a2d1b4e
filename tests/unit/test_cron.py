"""``cron`` and ``every``: what their texts mean, as values, and what is refused."""

from __future__ import annotations

import pickle
import random
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import schedule
from whens import check, report

from celery_once_beat.errors import SettingError
from celery_once_beat.schedules import OneOff, at, cron, every, read_schedule, write_schedule
from celery_once_beat.windows import next_start, starts_after

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
DAY = timedelta(days=1)
YEAR = 366 * DAY


def starts(when: Any, after: str, number: int = 3, zone: str = "UTC") -> list[str]:
    tz = ZoneInfo(zone)
    begin = datetime.fromisoformat(after).replace(tzinfo=tz)
    found = starts_after(when, begin, begin.astimezone(UTC) + 30 * YEAR)
    return [start.astimezone(tz).strftime("%Y-%m-%dT%H:%M:%S") for start in islice(found, number)]


# -- what a line means


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("0 2 * * mon-fri", ["2026-01-01T02:00:00", "2026-01-02T02:00:00", "2026-01-05T02:00:00"]),
        ("15,45 30 6 * * *", ["2026-01-01T06:30:15", "2026-01-01T06:30:45", "2026-01-02T06:30:15"]),
        ("0 0 1,L * *", ["2026-01-31T00:00:00", "2026-02-01T00:00:00", "2026-02-28T00:00:00"]),
        ("0 0 * * friL", ["2026-01-30T00:00:00", "2026-02-27T00:00:00", "2026-03-27T00:00:00"]),
        ("0 0 * * 1#1,3#5", ["2026-01-05T00:00:00", "2026-02-02T00:00:00", "2026-03-02T00:00:00"]),
        ("0 0 * jan-mar/2 7", ["2026-01-04T00:00:00", "2026-01-11T00:00:00", "2026-01-18T00:00:00"]),
        # On either of two days, as Vixie's cron has it; with a star in one of them on both.
        ("0 0 13 * fri", ["2026-01-02T00:00:00", "2026-01-09T00:00:00", "2026-01-13T00:00:00"]),
        ("0 0 */13 * fri", ["2026-02-27T00:00:00", "2026-03-27T00:00:00", "2026-05-01T00:00:00"]),
        ("10/20 3 * * *", ["2026-01-01T03:10:00", "2026-01-01T03:30:00", "2026-01-01T03:50:00"]),
        ("@daily", ["2026-01-02T00:00:00", "2026-01-03T00:00:00", "2026-01-04T00:00:00"]),
        ("@weekly", ["2026-01-04T00:00:00", "2026-01-11T00:00:00", "2026-01-18T00:00:00"]),
        ("@monthly", ["2026-02-01T00:00:00", "2026-03-01T00:00:00", "2026-04-01T00:00:00"]),
        ("@yearly", ["2027-01-01T00:00:00", "2028-01-01T00:00:00", "2029-01-01T00:00:00"]),
    ],
)
def test_a_line_means_what_cron_users_expect(line: str, expected: list[str]) -> None:
    """Numbers, names, ranges, steps, the last day, the nth weekday, seconds first, nicknames."""
    assert starts(cron(line, tz="UTC"), "2026-01-01T00:00") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("0 25 * * *", "cron, hour: found '25', expected 0 to 23, or *"),
        ("0 0 32 * *", "cron, day of month: found '32', expected 1 to 31, L for the last day, or *"),
        ("0 0 * 13 *", "cron, month: found '13', expected 1 to 12, jan to dec, or *"),
        ("0 0 * * 8", "cron, day of week: found '8', expected 0 to 7 (Sunday is both), sun to sat, 5L"),
        ("0 0 * * mon#6", "cron, day of week: found 'mon#6'"),
        ("0 0 * * fri-mon", "cron, day of week: found 'fri-mon', expected a range from low to high, like fri-7,0-mon"),
        ("*/0 * * * *", "cron, minute: found '*/0', expected a step from 1 to 59"),
        ("*-5 * * * *", "cron, minute: found '*-5'"),
        ("0 0 ? * *", "cron: found a line of Quartz, '0 0 ? * *', expected one of cron"),
        ("0 0 30 2 *", "cron: found days of month that none of the months has"),
        ("* * * *", "cron: found 4 fields"),
        ("0 8 * * mon-fri # x", "cron: found '0 8 * * mon-fri # x', expected a line like '0 2 * * mon-fri', without"),
        (" ", "cron: found ' ', expected a line like"),
        ("@reboot", "cron: found '@reboot', expected one of @yearly"),
        ("٣ * * * *", "cron, minute: found"),
        ("0 " * 400, "cron: found"),
        (None, "cron: found None, expected a line like '0 2 * * mon-fri'"),
    ],
)
def test_an_error_names_the_field_and_what_it_allows(line: Any, expected: str) -> None:
    """What cron wouldn't read is refused when the schedule is made."""
    with pytest.raises(SettingError) as caught:
        cron(line)
    assert str(caught.value).startswith(expected)


# -- every


@pytest.mark.parametrize("step", ["90 min", "1.5h", 5400, 5400.0, timedelta(minutes=90)])
def test_every_has_the_windows_of_celerys_interval(step: Any) -> None:
    """However its step is written; with an anchor, those through the anchor."""
    app = Celery("tests", set_as_current=False)
    assert starts(every(step), "2026-01-01") == starts(schedule(timedelta(minutes=90), app=app), "2026-01-01")
    quarter = every(step, anchor="2026-01-01T00:15", tz="UTC")
    assert starts(quarter, "2026-01-01", 2) == ["2026-01-01T00:15:00", "2026-01-01T01:45:00"]


def test_whole_days_keep_the_local_time_of_day() -> None:
    """Over a change of the clock too; without an anchor they fall on midnights, weeks on Mondays."""
    two_days = every("2 d", anchor="2026-03-27T06:30", tz="Europe/Berlin")
    assert starts(two_days, "2026-03-27T06:30", 2, "Europe/Berlin") == ["2026-03-29T06:30:00", "2026-03-31T06:30:00"]
    assert starts(every("1 w", tz="Europe/Berlin"), "2026-03-27", 1, "Europe/Berlin") == ["2026-03-30T00:00:00"]


@pytest.mark.parametrize(
    "step",
    ["", "soon", 0, "0 s", 0.0001, 1e10, float("nan"), True, None, "1e3 s", "0 months", "31 years", "1.5 months"],
)
def test_a_wrong_step_is_refused(step: Any) -> None:
    """What is no span of time, or none that a beat can keep."""
    with pytest.raises(SettingError, match=r"^every: found"):
        every(step)


@pytest.mark.parametrize(
    ("step", "anchor", "expected"),
    [
        ("1 month", "2026-01-31T02:30", ["2026-01-31T02:30", "2026-02-28T02:30", "2026-03-31T02:30"]),
        ("1 month", None, ["2026-01-01T00:00", "2026-02-01T00:00", "2026-03-01T00:00"]),
        ("3 months", "2027-05-30T06:00", ["2026-02-28T06:00", "2026-05-30T06:00", "2026-08-30T06:00"]),
        ("1 year", "2024-02-29T03:00", ["2026-02-28T03:00", "2027-02-28T03:00", "2028-02-29T03:00"]),
    ],
)
def test_months_keep_the_day_and_the_local_time(step: str, anchor: str | None, expected: list[str]) -> None:
    """In a month that lacks the day it is the last one; the steps go back from the anchor, too."""
    when = every(step, anchor=anchor, tz="Europe/Berlin")
    assert starts(when, "2025-12-31T03:00", 3, "Europe/Berlin") == [f"{start}:00" for start in expected]
    assert every("12 months", anchor="2026-01-01T00:00Z") == every("1 year", anchor="2026-01-01T00:00Z")
    last = datetime(9999, 12, 1, tzinfo=UTC)
    assert next_start(every("30 years", tz="UTC"), last) is None
    assert next_start(cron("0 0 1 * *", tz="UTC"), last) is None


# -- once


def test_at_is_a_one_off() -> None:
    """One thing under two names: a text in a zone, or an aware datetime."""
    christmas = at("2026-12-24T18:00", tz="Europe/Berlin")
    assert christmas == OneOff(datetime(2026, 12, 24, 17, tzinfo=UTC)) == at("2026-12-24T17:00Z")
    assert type(christmas) is OneOff
    assert starts(christmas, "2020-01-01") == ["2026-12-24T17:00:00"]
    assert next_start(christmas, christmas.clocked_time) is None


def test_a_local_time_that_the_clock_skips_or_shows_twice() -> None:
    """The first instant after the gap; the first of the two. Where a whole day was lost too."""
    assert at("2026-03-29T02:30", tz=BERLIN).clocked_time == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert at("2026-10-25T02:30", tz=BERLIN).clocked_time == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert at("2011-12-30T12:00", tz="Pacific/Apia").clocked_time == datetime(2011, 12, 30, 10, tzinfo=UTC)
    assert at("1900-01-01T00:00", tz="UTC").clocked_time.year == 1900


@pytest.mark.parametrize(("wrong", "tz"), [("2026-12-24T18:00", None), (None, "UTC"), ("2026-12-24", "Europe/Berlni")])
def test_a_wrong_time_is_refused(wrong: Any, tz: str | None) -> None:
    """Also one that names no zone."""
    with pytest.raises(SettingError):
        at(wrong, tz=tz)


# -- values

VALUES = [
    cron("0 2 * * mon-fri", tz="Europe/Berlin"),
    cron("*/5 * * * * *"),
    cron(" @Daily", tz=BERLIN),
    every("90 min"),
    every(0.25),
    every("3 d", anchor="2026-01-01T06:00", tz="Australia/Lord_Howe"),
    every("36 h", anchor="2026-01-01T06:00+01:00"),
    every("3 months", anchor="2026-01-31T06:00", tz="Europe/Berlin"),
    at("2026-12-24T18:00", tz="Europe/Berlin"),
]


@pytest.mark.parametrize("when", VALUES, ids=repr)
def test_a_schedule_is_a_value(when: Any) -> None:
    """Equal by what it was made of: as its own text, pickled, and hashed."""
    for same in (eval(repr(when)), pickle.loads(pickle.dumps(when))):
        assert (same, hash(same), repr(same)) == (when, hash(when), repr(when))
    assert len({*VALUES, when}) == len(VALUES)
    assert when != "another"


@pytest.mark.parametrize("when", VALUES, ids=repr)
def test_a_schedule_is_stored_as_json(when: Any) -> None:
    """What is read is in the zone that counted when it was written, and starts at the same instants."""
    app = Celery("tests", set_as_current=False)
    app.conf.timezone = "Asia/Tokyo"
    when = pickle.loads(pickle.dumps(when))
    when.app = app
    written = write_schedule(when)
    read = read_schedule(written)
    assert read == when.in_zone(ZoneInfo("Asia/Tokyo"))
    assert write_schedule(read) == written
    assert starts(read, "2026-01-01") == starts(when, "2026-01-01")


def test_without_a_zone_it_follows_its_app() -> None:
    """As Celery's crontab does, also where the app's zone is set later."""
    app = Celery("tests", set_as_current=False)
    when = cron("0 2 * * *")
    hash(when)
    when.app = app
    app.conf.timezone = "Asia/Tokyo"
    assert starts(when, "2026-01-01", 1) == ["2026-01-01T17:00:00"]


# -- in all time zones


@pytest.mark.parametrize("schedules", [100, pytest.param(5000, marks=pytest.mark.long)])
def test_starts_around_changes_of_clocks_are_as_an_independent_cron_has_them(schedules: int) -> None:
    """In some zones of the database, by ``make long`` in each; or by another rule, which is named."""
    counted = check(schedules, random.randrange(10**6))
    assert counted["as cronsim"] > 0.8 * counted["starts"], report(counted)
    assert sum(name.startswith("zone ") for name in counted) >= min(schedules, 500)
