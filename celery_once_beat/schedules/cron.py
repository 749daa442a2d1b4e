"""Schedules of cron lines: ``cron("0 2 * * mon-fri", tz="Europe/Berlin")``. Pure.

The parser is our own. Of those on the index, croniter 7.0 reads ``R`` as a random number, accepts ``*/90`` and ranges
that wrap, and has the last Friday as ``L5``; cron-converter 2.0 knows neither ``L`` nor ``#``. cronsim has the same
syntax as this, and is what the tests compare with.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

from celery_once_beat.errors import SettingError
from celery_once_beat.rules import PureSchedule, by_wall_clock, find_zone, plain_zone, zone_name
from celery_once_beat.wording import shown

__all__ = ("cron",)

_LAST_YEAR = 9999
#: A date that occurs does so within these: day of month and weekday meet again, also past 2100.
_MOST_MONTHS = 41 * 12
_MOST_TEXT = 512

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {name: number for number, name in enumerate(re.findall("...", "janfebmaraprmayjunjulaugsepoctnovdec"), 1)}
_WEEKDAYS = {name: number for number, name in enumerate(re.findall("...", "sunmontuewedthufrisat"))}
_EVERY_HOUR = re.compile(r"\*(/\d+)?", re.ASCII)
_TERM = re.compile(r"(\*|[0-9a-z]+)(?:-([0-9a-z]+))?(?:/(\d{1,4}))?", re.ASCII)
_OF_MONTH = re.compile(r"([0-9a-z]+?)(?:(l)|#([1-5]))", re.ASCII)


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: dict[str, int]
    #: What it allows besides numbers, for messages.
    more: str = ""


_FIELDS = (
    _Field("second", 0, 59, {}),
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}, ", L for the last day"),
    _Field("month", 1, 12, _MONTHS, ", jan to dec"),
    _Field(
        "day of week",
        0,
        7,
        _WEEKDAYS,
        " (Sunday is both), sun to sat, 5L for the last Friday, mon#2 for the second Monday",
    ),
)


class cron(PureSchedule):  # noqa: N801  # as Celery's crontab
    """Starts by a line of cron: minute, hour, day of month, month, day of week; with six fields, seconds come first.

    A field is ``*``, a number, a range ``1-5``, or a list of them, each perhaps with a step: ``*/15``. Months and
    weekdays have names. ``L`` is the last day of the month, ``5L`` its last Friday, ``mon#2`` its second Monday.
    ``@yearly``, ``@monthly``, ``@weekly``, ``@daily`` and ``@hourly`` are read too. If neither day of month nor day of
    week begins with ``*``, a day that either allows counts, as in Vixie's cron; Celery's crontab wants both.

    ``tz`` is the time zone, by name or as itself; None: the app's. Raises SettingError, which names the field.
    """

    def __init__(self, line: str, *, tz: str | tzinfo | None = None) -> None:
        super().__init__()
        self.line = _check_line(line)
        self.zone = None if tz is None else find_zone(tz)
        self._times = _read(self.line)

    def start_after(self, after: datetime) -> datetime | None:
        """Return the first start after ``after``, by the fields and the wall clock's rule."""
        times = self._times
        return by_wall_clock(plain_zone(self.tz), after, times.first, repeats=times.repeats)

    def in_zone(self, zone: tzinfo) -> cron:
        """Return it in its own zone, else in ``zone``."""
        return self if self.zone is not None else cron(self.line, tz=zone)

    def words(self) -> str:
        """Return the line, and the zone if it has one."""
        return self.line if self.zone is None else f"{self.line} {zone_name(self.zone)}"

    def made_of(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the line, and the zone if it has one."""
        return (self.line,), {} if self.zone is None else {"tz": zone_name(self.zone)}


def _check_line(line: object) -> str:
    if not isinstance(line, str) or len(line) > _MOST_TEXT:
        raise SettingError(f"cron: found {shown(line)}, expected a line like '0 2 * * mon-fri'")
    return " ".join(line.lower().split())


class _Times:
    """The local times of a line. Naive, to the second."""

    def __init__(self, fields: list[str]) -> None:
        seconds, minutes, hours, days, months, weekdays = fields
        self._seconds = _numbers(_FIELDS[0], seconds)
        of_hour = _numbers(_FIELDS[1], minutes)
        self._minutes = tuple(h * 60 + minute for h in _numbers(_FIELDS[2], hours) for minute in of_hour)
        self._months = frozenset(_numbers(_FIELDS[4], months))
        #: It then starts whenever the clock shows a scheduled time.
        self.repeats = _EVERY_HOUR.fullmatch(hours) is not None
        self._days, self._last_day = _days_of_month(days)
        self._weekdays, self._of_month = _days_of_week(weekdays)
        #: As Vixie's cron: a field that begins with a star restricts, two others are alternatives.
        self._both = days.startswith("*") or weekdays.startswith("*")
        #: It may be decades away, and is asked for again and again.
        self._first_date = lru_cache(maxsize=64)(self._find_date)
        #: Dates of a month, by its first weekday (0 is Monday) and its length: there are 28 kinds.
        self._dates: dict[tuple[int, int], tuple[int, ...]] = {}

    def first(self, earliest: datetime) -> datetime | None:
        """Return the first of the times that isn't before ``earliest``; None if there is none."""
        if earliest.microsecond:
            earliest = earliest.replace(microsecond=0) + timedelta(seconds=1)
        day = earliest.day
        dates = self._dates_of(earliest.year, earliest.month)
        if day in dates:
            minute = earliest.hour * 60 + earliest.minute
            minutes, seconds = self._minutes, self._seconds
            index = bisect_left(minutes, minute)
            second = seconds[0]
            if index < len(minutes) and minutes[index] == minute:
                nth = bisect_left(seconds, earliest.second)
                if nth < len(seconds):
                    second = seconds[nth]
                else:
                    index += 1
            if index < len(minutes):
                return earliest.replace(hour=minutes[index] // 60, minute=minutes[index] % 60, second=second)
        return self._on_later_day(earliest, dates)

    def _on_later_day(self, earliest: datetime, dates: tuple[int, ...]) -> datetime | None:
        """Return the first time of the first date after that of ``earliest``, in whose month are ``dates``."""
        index = bisect_left(dates, earliest.day + 1)
        if index < len(dates):
            date: tuple[int, int, int] | None = (earliest.year, earliest.month, dates[index])
        else:
            date = self._first_date(earliest.year * 12 + earliest.month)
        first = self._minutes[0]
        return None if date is None else datetime(*date, first // 60, first % 60, self._seconds[0])

    def _find_date(self, first: int) -> tuple[int, int, int] | None:
        """Return the first date in a month, counted from year 0, or after it."""
        for number in range(first, min(first + _MOST_MONTHS, 12 * (_LAST_YEAR + 1))):
            dates = self._dates_of(number // 12, number % 12 + 1)
            if dates:
                return number // 12, number % 12 + 1, dates[0]
        return None

    def _dates_of(self, year: int, month: int) -> tuple[int, ...]:
        if month not in self._months:
            return ()
        kind = _month(year, month)
        dates = self._dates.get(kind)
        if dates is None:
            dates = self._dates[kind] = tuple(day for day in range(1, kind[1] + 1) if self._allows(day, *kind))
        return dates

    def _allows(self, day: int, first: int, length: int) -> bool:
        weekday = (first + day) % 7  # 0 is Sunday
        nth = (day - 1) // 7 + 1
        by_date = day in self._days or (self._last_day and day == length)
        by_weekday = (
            weekday in self._weekdays
            or (weekday, nth) in self._of_month
            or (day + 7 > length and (weekday, 0) in self._of_month)
        )
        return by_date and by_weekday if self._both else by_date or by_weekday

    def check(self) -> None:
        """Raise SettingError if no date fits, as for 30 February."""
        if self._on_later_day(datetime(2000, 1, 1), ()) is None:
            raise SettingError("cron: found days of month that none of the months has, expected a date that occurs")


_month = lru_cache(maxsize=1024)(monthrange)


@lru_cache(maxsize=4096)  # many have the same
def _read(line: str) -> _Times:
    fields = _NICKNAMES.get(line, line).split(" ")
    if line.startswith("@") and line not in _NICKNAMES:
        raise SettingError(f"cron: found {shown(line)}, expected one of {', '.join(_NICKNAMES)}, or fields")
    if len(fields) == len(_FIELDS) - 1:
        fields.insert(0, "0")
    if len(fields) != len(_FIELDS):
        raise SettingError(
            f"cron: found {len(fields)} fields in {shown(line)}, expected 5: minute, hour, day of month, month and "
            "day of week; or 6, with the second first"
        )
    times = _Times(fields)
    times.check()
    return times


def _numbers(field: _Field, text: str) -> tuple[int, ...]:
    return tuple(sorted({number for term in text.split(",") for number in _term(field, term)}))


def _days_of_month(text: str) -> tuple[frozenset[int], bool]:
    terms = text.split(",")
    numbers = [term for term in terms if term != "l"]
    return frozenset(_numbers(_FIELDS[3], ",".join(numbers)) if numbers else ()), "l" in terms


def _days_of_week(text: str) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
    """Return the weekdays, and those of one week of the month: weekday and its number, 0 for the last."""
    field = _FIELDS[5]
    plain: set[int] = set()
    of_month: set[tuple[int, int]] = set()
    for term in text.split(","):
        match = _OF_MONTH.fullmatch(term)
        if match:
            of_month.add((_number(field, match[1], term) % 7, int(match[3] or 0)))
        else:
            plain.update(number % 7 for number in _term(field, term))
    return frozenset(plain), frozenset(of_month)


def _term(field: _Field, term: str) -> range:
    """Return the numbers of a term, ``*/15`` or ``1-5`` say."""
    match = _TERM.fullmatch(term)
    if match is None or (match[1] == "*" and match[2]):
        raise _wrong(field, term)
    low, high = field.low, field.high
    if match[1] != "*":
        low = _number(field, match[1], term)
        if match[2]:
            high = _number(field, match[2], term)
        elif not match[3]:
            high = low
    step = int(match[3] or 1)
    if low > high:
        raise _wrong(field, term, f"a range from low to high, as {field.low}-{field.high}")
    if not 1 <= step <= max(field.high, 1):
        raise _wrong(field, term, f"a step from 1 to {field.high}")
    return range(low, high + 1, step)


def _number(field: _Field, text: str, term: str) -> int:
    number = field.names.get(text)
    if number is None and text.isdecimal() and len(text) <= len(str(field.high)):
        number = int(text)
    if number is None or not field.low <= number <= field.high:
        raise _wrong(field, term)
    return number


def _wrong(field: _Field, term: str, expected: str = "") -> SettingError:
    expected = expected or f"{field.low} to {field.high}{field.more}"
    return SettingError(f"cron, {field.name}: found {shown(term)}, expected {expected}, or *")
