"""Crontabs: Celery's fields, and Debian cron's rule where a zone's clock jumps."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from functools import cache
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from celery_once_beat.windows import next_start, starts_after

UTC = timezone.utc
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

pytestmark = pytest.mark.usefixtures("unmeasured")


@cache
def app_in(zone: str) -> Celery:
    app = Celery("tests", set_as_current=False)
    app.conf.timezone = zone
    return app


def cron(*fields: Any, zone: str = "UTC") -> crontab:
    """A crontab of minute, hour, day of month, month and day of week, in the usual order."""
    minute, hour, day, month, weekday = (*fields, "*", "*", "*")[:5]
    return crontab(minute, hour, weekday, day, month, app=app_in(zone))


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


# -- Celery's fields


def field(low: int, high: int) -> st.SearchStrategy[Any]:
    numbers = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        st.integers(1, high).map(lambda n: f"*/{n}"),
        numbers,
        st.sets(numbers, min_size=1, max_size=4),
        st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}"),
    )


FIELDS = (field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6))
INSTANTS = st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))


@st.composite
def crontabs(draw: st.DrawFn, zone: str = "UTC") -> crontab:
    try:
        return cron(*(draw(each) for each in FIELDS), zone=zone)
    except ValueError:  # newer Celery refuses dates that never occur
        assume(False)
        raise


def celerys_start(schedule: crontab, after: datetime, tz: tzinfo = UTC) -> datetime | None:
    """What Celery's own arithmetic says at `after` for an entry that ran last then."""
    held, schedule.nowfun = schedule.nowfun, lambda: after.astimezone(tz)
    try:
        return after + schedule.remaining_estimate(after.astimezone(tz))
    except (RuntimeError, ValueError):  # it gives up on dates that are far apart
        return None
    finally:
        schedule.nowfun = held


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"])
@settings(max_examples=100, deadline=None)
@given(data=st.data(), after=INSTANTS)
def test_a_crontab_has_celerys_starts(zone: str, data: st.DataObject, after: datetime) -> None:
    """As long as the zone's clock doesn't jump in between, a start is the one that Celery's own crontab gives."""
    schedule, tz = data.draw(crontabs(zone)), ZoneInfo(zone)
    expected = celerys_start(schedule, after, tz)
    assume(expected is not None)
    if zone != "UTC":
        assume(expected < after + 400 * DAY)
        days = [after + n * DAY for n in range(-2, (expected - after).days + 3)]
        assume(len({day.astimezone(tz).utcoffset() for day in days}) == 1)
    assert next_start(schedule, after) == expected


@pytest.mark.parametrize(
    ("fields", "after", "starts"),
    [
        (("30", "4", "31"), "2026-01-31T05:00", ["2026-03-31T04:30", "2026-05-31T04:30", "2026-07-31T04:30"]),
        (("0", "0", "29", "2"), "2023-03-01T00:00", ["2024-02-29T00:00", "2028-02-29T00:00"]),
        (("0", "0", "29", "2"), "1896-02-29T00:00", ["1904-02-29T00:00"]),  # 1900 was no leap year
        (("0", "0", "29", "2", "1"), "2016-02-29T00:00", ["2044-02-29T00:00"]),
        (("0", "0", "29", "2", "1"), "2072-02-29T00:00", ["2112-02-29T00:00"]),  # past 2100, the longest wait
        (("0", "0", "1", "1"), "2025-12-31T23:59:59.999999", ["2026-01-01T00:00", "2027-01-01T00:00"]),
    ],
)
def test_a_crontab_skips_dates_that_do_not_exist(fields: tuple[str], after: str, starts: list[str]) -> None:
    """Months without a 31st, years without a 29 February: day of month AND month AND day of week."""
    found = starts_after(cron(*fields), at(after), at("2200-01-01"))
    assert list(islice(found, len(starts))) == [at(start) for start in starts]


def test_a_crontab_that_never_fits_has_no_start() -> None:
    """None comes back at once for 30 February (which older Celery accepts) and for an empty field."""
    schedule = cron(0, 0)
    schedule.day_of_month, schedule.month_of_year = {30}, {2}
    assert next_start(schedule, at("2026-01-01")) is None
    schedule = cron(0, 0)
    schedule.minute = set()
    assert next_start(schedule, at("2026-01-01")) is None


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Apia", "America/New_York"])
def test_a_crontab_ends_with_the_calendar(zone: str) -> None:
    """At the ends of the calendar there is a start, or None; no error."""
    assert next_start(cron(0, 0, zone=zone), datetime.max.replace(tzinfo=UTC) - HOUR) is None
    assert next_start(cron(0, 0, zone=zone), at("9999-06-01")) is not None
    assert next_start(cron("*", "*", zone=zone), at("9999-12-30T12:00")) == at("9999-12-30T12:01")
    assert next_start(cron(0, 0, 1, 1, zone=zone), at("9999-06-01")) is None
    assert next_start(cron("*", "*", zone=zone), at("0001-02-01")) is not None


# -- daylight saving


@pytest.mark.parametrize(
    ("zone", "fields", "day", "expected"),
    [
        ("Europe/Berlin", (30, 2), "2026-03-29", ["29 03:00 +0200"]),
        ("Europe/Berlin", ("0,15,30", "2,3"), "2026-03-29", [
            "29 03:00 +0200", "29 03:15 +0200", "29 03:30 +0200"]),
        ("Europe/Berlin", ("*/30", "1-2"), "2026-10-25", [
            "25 01:00 +0200", "25 01:30 +0200", "25 02:00 +0200", "25 02:30 +0200"]),
        ("Europe/Berlin", (30, "*/2"), "2026-03-29", [
            "29 00:30 +0100", *(f"29 {h:02}:30 +0200" for h in range(4, 24, 2))]),
        ("America/Havana", (0, 0), "2026-03-08", ["08 01:00 -0400"]),
        ("America/Sao_Paulo", (30, "*/23"), "2019-02-16", [
            "16 00:30 -0200", "16 23:30 -0200", "16 23:30 -0300"]),
        ("Australia/Lord_Howe", (15, 2), "2026-10-04", ["04 02:30 +1100"]),
        ("Australia/Lord_Howe", (45, 1), "2026-04-05", ["05 01:45 +1100"]),
        ("Australia/Lord_Howe", (45, "*/1"), "2026-04-05", [
            "05 00:45 +1100", "05 01:45 +1100", "05 01:45 +1030",
            *(f"05 {h:02}:45 +1030" for h in range(2, 24))]),
        ("Pacific/Apia", (0, "9,17"), "2011-12-29", ["29 09:00 -1000", "29 17:00 -1000"]),
        ("Pacific/Apia", (0, "9,17"), "2011-12-31", ["31 00:00 +1400", "31 09:00 +1400", "31 17:00 +1400"]),
        ("Pacific/Apia", (0, 0, 30), "2011-12-31", ["31 00:00 +1400"]),
    ],
)  # fmt: skip
def test_a_day_on_which_the_clock_jumps(zone: str, fields: Any, day: str, expected: list[str]) -> None:
    """Fixed hours start once: after the gap, or the first time. ``*`` and ``*/n`` hours follow the clock."""
    begin, end = at(day, zone), at((datetime.fromisoformat(day) + DAY).isoformat(), zone)
    starts = starts_after(cron(*fields, zone=zone), begin - MINUTE, end - MINUTE)
    assert [start.astimezone(ZoneInfo(zone)).strftime("%d %H:%M %z") for start in starts] == expected


# -- zones of other kinds


class Summer(tzinfo):
    """A zone that is no ZoneInfo, and can't be hashed, like dateutil's."""

    __hash__ = None  # type: ignore[assignment]

    def utcoffset(self, _: datetime | None) -> timedelta:
        return 2 * HOUR

    def dst(self, _: datetime | None) -> timedelta:
        return HOUR


class Pytz(tzinfo):
    """A zone like pytz's, which knows its name, and whose own arithmetic isn't used."""

    zone = "Europe/Berlin"


@pytest.mark.parametrize(
    ("tz", "start"),
    [(Summer(), "2026-01-01T01:00"), (timezone(-5 * HOUR), "2026-01-01T08:00"), (Pytz(), "2026-01-01T02:00")],
)
def test_the_schedules_own_zone_counts(tz: tzinfo, start: str) -> None:
    """A fixed offset, a zone that can't be hashed and pytz's are as good as a ZoneInfo."""
    schedule = cron(0, 3)
    schedule.tz = tz
    assert next_start(schedule, at("2026-01-01")) == at(start)
