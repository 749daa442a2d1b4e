"""Schedules of cron lines: ``cron("0 2 * * mon-fri", tz="Europe/Berlin")``. Pure.

The parser is our own. Of those on the index, croniter 7.0 reads ``R`` as a random number, accepts ``*/90`` and ranges
that wrap, and has the last Friday as ``L5``; cron-converter 2.0 knows neither ``L`` nor ``#``. cronsim has the same
syntax as this, and is what the tests compare with.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

from celery_once_beat.errors import SettingError
from celery_once_beat.options import wrong
from celery_once_beat.rules import CronTimes, PureSchedule, by_wall_clock, every_hour, find_zone, plain_zone, zone_name
from celery_once_beat.wording import shown

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
_TERM = re.compile(r"(\*|[0-9a-z]+)(?:-([0-9a-z]+))?(?:/(\d{1,4}))?", re.ASCII)
_OF_MONTH = re.compile(r"([0-9a-z]+?)(?:(l)|#([1-5]))", re.ASCII)


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: dict[str, int]
    #: What it allows besides numbers, for messages.
    more: str = ""


_MORE_WEEKDAYS = " (Sunday is both), sun to sat, 5L for the last Friday, mon#2 for the second Monday"
_FIELDS = (
    _Field("second", 0, 59, {}),
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}, ", L for the last day"),
    _Field("month", 1, 12, _MONTHS, ", jan to dec"),
    _Field("day of week", 0, 7, _WEEKDAYS, _MORE_WEEKDAYS),
)


class cron(PureSchedule):  # noqa: N801  # as Celery's crontab
    """Starts by a line of cron: minute, hour, day of month, month, day of week; with six fields, seconds come first.

    A field is ``*``, a number, a range ``1-5``, or a list of them, each perhaps with a step: ``*/15``. Months and
    weekdays have names. ``L`` is the last day of the month, ``5L`` its last Friday, ``mon#2`` its second Monday.
    ``@yearly``, ``@monthly``, ``@weekly``, ``@daily`` and ``@hourly`` are read too. If neither day of month nor day of
    week begins with ``*``, a day that either allows counts, as in Vixie's cron; Celery's crontab wants both.

    ``tz`` is the time zone, by name or as itself; None: the app's. Raises SettingError, which names the field.
    """

    local = True

    def __init__(self, line: str, *, tz: str | tzinfo | None = None) -> None:
        super().__init__()
        self.line = _check_line(line)
        self.zone = None if tz is None else find_zone(tz)
        self._times, self._repeats = _read(self.line)

    def start_after(self, after: datetime) -> datetime | None:
        """Return the first start after ``after``, by the fields and the wall clock's rule."""
        return by_wall_clock(plain_zone(self.tz), after, self._times.first, repeats=self._repeats)

    def words(self) -> str:
        """Return the line, and the zone if it has one."""
        return self.line if self.zone is None else f"{self.line} {zone_name(self.zone)}"

    def made_of(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the line, and the zone if it has one."""
        return (self.line,), {} if self.zone is None else {"tz": zone_name(self.zone)}


def _check_line(line: object) -> str:
    if not isinstance(line, str) or not line.strip() or " #" in line or len(line) > _MOST_TEXT:
        raise wrong("cron", line, "a line like '0 2 * * mon-fri', without a comment")
    return " ".join(line.lower().split())


@lru_cache(maxsize=4096)  # many have the same
def _read(line: str) -> tuple[CronTimes, bool]:
    """Return the times that a line means, and whether it starts whenever the clock shows one of them."""
    fields = _NICKNAMES.get(line, line).split(" ")
    if line.startswith("@") and line not in _NICKNAMES:
        raise wrong("cron", line, f"one of {', '.join(_NICKNAMES)}, or fields")
    if "?" in fields or (len(fields) == len(_FIELDS) + 1 and fields[-1][0] in "*12"):  # a year
        raise SettingError(
            f"cron: found a line of Quartz, {shown(line)}, expected one of cron: without the year, * for ?, and days "
            "of week by name, since Quartz counts them from 1, Sunday"
        )
    if len(fields) == len(_FIELDS) - 1:
        fields.insert(0, "0")
    if len(fields) != len(_FIELDS):
        raise SettingError(
            f"cron: found {len(fields)} fields in {shown(line)}, expected 5: minute, hour, day of month, month and "
            "day of week; or 6, with the second first"
        )
    seconds, minutes, hours, days, months, weekdays = fields
    times = CronTimes(
        seconds=_numbers(_FIELDS[0], seconds),
        minutes=_numbers(_FIELDS[1], minutes),
        hours=_numbers(_FIELDS[2], hours),
        months=_numbers(_FIELDS[4], months),
        allows=_days(days, weekdays),
    )
    if times.first(datetime(2000, 1, 1)) is None:
        raise SettingError("cron: found days of month that none of the months has, expected a date that occurs")
    return times, every_hour(hours)


def _days(of_month: str, of_week: str) -> Callable[[int, int, int], bool]:
    """Return what says whether a day fits: given its number, the month's first weekday (0 is Monday) and its length."""
    numbers, last_day = _days_of_month(of_month)
    weekdays, of_one_week = _days_of_week(of_week)
    # As Vixie's cron: a field that begins with a star restricts, two others are alternatives.
    both = of_month.startswith("*") or of_week.startswith("*")

    def allows(day: int, first: int, length: int) -> bool:
        weekday = (first + day) % 7  # 0 is Sunday
        nth = (day - 1) // 7 + 1
        by_date = day in numbers or (last_day and day == length)
        by_weekday = (
            weekday in weekdays or (weekday, nth) in of_one_week or (day + 7 > length and (weekday, 0) in of_one_week)
        )
        return by_date and by_weekday if both else by_date or by_weekday

    return allows


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
        two = f"{match[1]}-{field.high},{field.low}-{match[2]}"
        raise _wrong(field, term, f"a range from low to high, like {two}")
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
    return wrong(f"cron, {field.name}", term, f"{expected}, or *")
