"""A schedule by a recurrence rule of RFC 5545, as dateutil and RedBeat have it.

A rule counts in the local time of its ``dtstart``, whose offset from UTC is fixed: it knows no daylight saving.

dateutil goes through a rule from its ``dtstart`` on, and through one that has no start up to the year 9999. Here the
search for the next start takes a bounded number of steps, however old or odd the rule is: it begins at the period that
it is asked for, dateutil says which days of one month or year belong to the rule, and after ``HORIZON`` it ends.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from datetime import MAXYEAR, datetime, timedelta, timezone, tzinfo
from itertools import chain, groupby, islice, product, takewhile
from math import prod
from typing import Any

from celery import Celery
from dateutil.rrule import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY, rrule, weekday

from celery_once_beat.errors import ScheduleError
from celery_once_beat.rules import PureSchedule, budget, spend
from celery_once_beat.wording import expect, shown

from .strict_json import whole_of

_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_SECONDS_OF_DAY = _DAY // _SECOND
#: A start that follows the one before it by more isn't found.
HORIZON = 41 * 366 * _DAY
_LAST = datetime(9999, 12, 1)
#: Steps in which a whole schedule is read: a rule that counts its starts goes through all of them.
MOST_READ = 300_000
#: It is walked through when the schedule is made.
_MOST_COUNT = 10_000
#: Of hour, minute and second: a rule for more of them has a smaller freq.
_MOST_TIMES = 1440
#: Of the budget: for dateutil's days of one month or year, for one day, and for each batch of units of a day.
_MONTH_STEPS, _DAY_STEPS, _BATCH_STEPS = 80, 8, 128
_BATCH = 256

#: By dateutil's numbers.
_FREQS = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
#: 40 years of each.
_MOST_INTERVAL = tuple(40 * a_year for a_year in (1, 12, 52, 365, 8_760, 525_600, 31_536_000))
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_WEEKDAY = re.compile(rf"([+-]?[1-9]\d?)?({'|'.join(_WEEKDAYS)})", re.ASCII)


def _from_both_ends(most: int) -> tuple[int, ...]:
    return (*range(-most, 0), *range(1, most + 1))


_NUMBERS: Mapping[str, Collection[int]] = {
    "bysetpos": _from_both_ends(366),
    "bymonth": range(1, 13),
    "bymonthday": _from_both_ends(31),
    "byyearday": _from_both_ends(366),
    "byeaster": range(-80, 251),
    "byweekno": _from_both_ends(53),
    "byhour": range(24),
    "byminute": range(60),
    "bysecond": range(60),
}
_OF_DAYS = ("bymonth", "bymonthday", "byyearday", "byeaster", "byweekno", "byweekday")
RULE_FIELDS = ("freq", "dtstart", "interval", "wkst", "count", "until", *_NUMBERS, "byweekday")


class RRule(PureSchedule):
    """Starts by a recurrence rule of RFC 5545.

    ``freq`` is ``"YEARLY"`` to ``"SECONDLY"``, ``dtstart`` an aware datetime with a fixed offset from UTC, or its text
    in ISO 8601. The rule counts in that offset, and doesn't follow daylight saving; a crontab does. Further fields are
    named as in ``dateutil.rrule``: ``interval``, ``wkst``, ``count``, ``until``, ``bysetpos``, ``bymonth``,
    ``bymonthday``, ``byyearday``, ``byeaster``, ``byweekno``, ``byweekday`` (like ``"MO"`` or ``["-1FR"]``),
    ``byhour``, ``byminute``, ``bysecond``. Raises ValueError for what it can't read.

    A start more than 41 years after the one before it isn't found. ``count`` is at most 10,000.
    """

    def __init__(self, freq: str | int, dtstart: datetime | str, *, app: Celery | None = None, **rule: Any) -> None:
        super().__init__(app=app)
        #: The rule as JSON has it. Two that are equal are the same rule.
        self.fields = _read_fields(freq, dtstart, rule)
        first = datetime.fromisoformat(self.fields["dtstart"])
        self._offset: timedelta = first.utcoffset()  # type: ignore[assignment]  # it has one
        self._starts = _Starts(self.fields, first.replace(tzinfo=None))
        #: In the rule's own time: no start is later.
        self._end = self._last_start(first.replace(tzinfo=None))

    def _last_start(self, first: datetime) -> datetime:
        until = self.fields.get("until")
        end = _LAST if until is None else min(datetime.fromisoformat(until).replace(tzinfo=None), _LAST)
        count = self.fields.get("count")
        if count is None:
            return end
        try:
            with budget(MOST_READ):
                counted = list(islice(self._starts.walk(first, end), count))
        except ScheduleError as exc:
            raise ValueError(f"count: found {count}, but {exc}") from exc
        if len(counted) == count:
            return counted[-1]
        if self._starts.horizon(first) < end:
            raise ValueError(f"count: found {count}, but the rule has {len(counted)} starts within 41 years")
        return end

    def start_after(self, after: datetime) -> datetime | None:
        """Return the first start after ``after``, by the rule."""
        earliest = (after + self._offset).replace(microsecond=0) + _SECOND
        start = next(self._starts.walk(earliest, self._end), None)
        return None if start is None else start - self._offset

    def own_starts(self, earliest: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the starts from ``earliest`` up to ``until``. All are naive, in the rule's own time."""
        return self._starts.walk(earliest, min(until, self._end))

    def made_of(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the rule."""
        freq, dtstart, *rule = self.fields.items()
        return (freq[1], dtstart[1]), dict(rule)


class _Starts:
    """The starts of a rule, but for its ``until`` and ``count``: naive, in the rule's own time.

    They are days with times. A day is made of units: hours, minutes or seconds if ``freq`` is one of these, else the
    day is its one unit.
    """

    def __init__(self, fields: Mapping[str, Any], first: datetime) -> None:
        self._first = first
        self._freq = freq = _FREQS.index(fields["freq"])
        self._interval: int = fields.get("interval", 1)
        self._wkst = _WEEKDAYS.index(fields.get("wkst", "MO"))
        days_by = {name: fields[name] for name in _OF_DAYS if name in fields} | _days_of_first(fields, freq, first)
        days_by["byweekday"] = [_dateutil_weekday(text) for text in days_by.get("byweekday", _WEEKDAYS)]
        self._days_by = days_by
        self._each_day = freq >= DAILY and not any(name in fields for name in _OF_DAYS)
        by = (
            fields.get("byhour", [first.hour] if freq < HOURLY else range(24)),
            fields.get("byminute", [first.minute] if freq < MINUTELY else range(60)),
            fields.get("bysecond", [first.second] if freq < SECONDLY else range(60)),
        )
        #: Hours, minutes and seconds at which a unit of the rule begins.
        self._begins = [sorted(by[n]) if freq >= HOURLY + n else [0] for n in range(3)]
        #: Phases of a day in which the rule has no start.
        self._barren: set[int] = set()
        inner = [by[n] if freq < HOURLY + n else [0] for n in range(3)]
        if prod(map(len, inner)) > _MOST_TIMES:
            raise ValueError(f"byhour, byminute, bysecond: expected at most {_MOST_TIMES} times, or a shorter freq")
        #: Seconds from the begin of a unit to its starts.
        self._inner = sorted(map(_seconds, product(*inner)))
        self._unit = {HOURLY: 3600, MINUTELY: 60, SECONDLY: 1}.get(freq, _SECONDS_OF_DAY)
        #: Which of the starts of a year, a month or a week count; of shorter periods that is decided here.
        self._positions: list[int] = fields.get("bysetpos", [])
        if freq >= DAILY and self._positions:
            self._inner = [self._inner[index] for index in self._at_positions(len(self._inner))]
            self._positions = []

    def _at_positions(self, number: int) -> list[int]:
        """Return which of so many starts count, from 0 on."""
        found = {position - (position > 0) for position in self._positions if abs(position) <= number}
        return sorted({index % number for index in found})

    def horizon(self, earliest: datetime) -> datetime:
        """Return up to when starts are looked for."""
        return min(max(earliest, self._first), _LAST - HORIZON) + HORIZON

    def walk(self, earliest: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the starts from ``earliest`` to ``end``, in order, as far as the horizon."""
        earliest = max(earliest, self._first)
        end = min(end, self.horizon(earliest))
        starts = self._by_position(earliest, end) if self._positions else self._by_day(earliest, end)
        return takewhile(lambda start: start <= end, starts)

    def _by_position(self, earliest: datetime, end: datetime) -> Iterator[datetime]:
        times = self._inner
        for _, found in groupby(self._days(earliest, end), self._period):
            days = list(found)
            for index in self._at_positions(len(days) * len(times)):
                start = days[index // len(times)] + times[index % len(times)] * _SECOND
                if start >= earliest:
                    yield start

    def _by_day(self, earliest: datetime, end: datetime) -> Iterator[datetime]:
        for day in self._days(earliest, end):
            since, phase = max((earliest - day) // _SECOND, 0), self._phase(day)
            if since >= _SECONDS_OF_DAY or phase in self._barren:
                continue
            seconds = self._times(phase, since)
            second = next(seconds, None)
            if second is not None:
                yield from (day + each * _SECOND for each in chain((second,), seconds))
            elif not since:
                self._barren.add(phase)

    def _times(self, phase: int, since: int) -> Iterator[int]:
        """Yield the seconds of a day from ``since`` on at which the rule starts."""
        units = range(phase, _SECONDS_OF_DAY // self._unit, self._interval if self._freq >= HOURLY else 1)
        units = units[bisect_left(units, since // self._unit) :]
        hours, minutes, seconds = map(frozenset, self._begins)
        few = prod(map(len, self._begins)) < len(units)
        begins = map(_seconds, product(*self._begins)) if few else (unit * self._unit for unit in units)
        for number, begin in enumerate(begins):
            if number % _BATCH == _BATCH - 1:
                spend(_BATCH_STEPS)
            in_fields = begin // 3600 in hours and begin // 60 % 60 in minutes and begin % 60 in seconds
            if in_fields and begin // self._unit in units:
                yield from (begin + inner for inner in self._inner if begin + inner >= since)

    def _phase(self, day: datetime) -> int:
        """Return the first of a day's units that is a whole number of intervals away from the rule's first."""
        if self._freq < HOURLY:
            return 0
        return (self._first - day) // (self._unit * _SECOND) % self._interval

    def _days(self, earliest: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the rule's days as midnights, from the begin of the period of ``earliest`` on."""
        if self._each_day:
            step = self._interval if self._freq == DAILY else 1
            number = earliest.toordinal()
            for each in range(number + (self._first.toordinal() - number) % step, end.toordinal() + 1, step):
                spend(_DAY_STEPS)
                yield datetime.fromordinal(each)
            return
        yearly = self._freq == YEARLY
        step = {YEARLY: 12 * self._interval, MONTHLY: self._interval}.get(self._freq, 1)
        first = self._first.year * 12 if yearly else _month(self._first)
        month = earliest.year * 12 if yearly else _month(earliest - 6 * _DAY)
        of_first = self._period(self._first)
        for each in range(month + (first - month) % step, _month(end) + 1, step):
            for day in self._days_from(datetime(each // 12, each % 12 + 1, 1)):
                if self._freq not in (WEEKLY, DAILY) or (
                    # The week of dtstart begins with that, as dateutil has it.
                    day.date() >= self._first.date() and (self._period(day) - of_first) % self._interval == 0
                ):
                    spend(0 if yearly else _DAY_STEPS)
                    yield day

    def _days_from(self, begin: datetime) -> rrule:
        """The days in one year or month. By its interval no other one follows: dateutil would look up to year 9999."""
        spend(_MONTH_STEPS)
        freq = YEARLY if self._freq == YEARLY else MONTHLY
        return rrule(freq, begin, 12 * MAXYEAR, self._wkst, byhour=0, byminute=0, bysecond=0, **self._days_by)

    def _period(self, day: datetime) -> int:
        """Return which year, month or week it is in, or which day it is."""
        if self._freq == YEARLY:
            return day.year
        if self._freq == MONTHLY:
            return _month(day)
        number = day.toordinal()
        return (number - 1 - self._wkst) // 7 if self._freq == WEEKLY else number


def _seconds(time: tuple[int, int, int]) -> int:
    hour, minute, second = time
    return hour * 3600 + minute * 60 + second


def _month(day: datetime) -> int:
    return day.year * 12 + day.month - 1


def _days_of_first(fields: Mapping[str, Any], freq: int, first: datetime) -> dict[str, Any]:
    """A rule that says nothing about days has those of its first start."""
    if any(name in fields for name in _OF_DAYS if name != "bymonth"):
        return {}
    if freq == YEARLY:
        return {"bymonth": fields.get("bymonth", [first.month]), "bymonthday": [first.day]}
    if freq == MONTHLY:
        return {"bymonthday": [first.day]}
    return {"byweekday": [_WEEKDAYS[first.weekday()]]} if freq == WEEKLY else {}


def _dateutil_weekday(text: str) -> weekday:
    return weekday(_WEEKDAYS.index(text[-2:]), int(text[:-2]) if text[:-2] else None)


# -- fields, read strictly


def _read_fields(freq: str | int, dtstart: datetime | str, rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule as JSON has it, each rule in one form."""
    number: Any = _FREQS.index(freq) if freq in _FREQS else freq
    expect("freq", freq, type(number) is int and number in range(len(_FREQS)), f"one of {', '.join(_FREQS)}")
    first = _instant("dtstart", dtstart)
    fields: dict[str, Any] = {"freq": _FREQS[number], "dtstart": first.isoformat()}
    rule = {name: value for name, value in rule.items() if value is not None}
    for name in rule:
        if name not in RULE_FIELDS:
            raise ValueError(f"rrule: found the field {shown(name)}, expected {', '.join(RULE_FIELDS)}")
    interval = whole_of(rule, "interval", _MOST_INTERVAL[number], 1)
    if interval != 1:
        fields["interval"] = interval
    wkst = _weekdays("wkst", rule.get("wkst", 0), 0)
    expect("wkst", rule.get("wkst"), len(wkst) == 1, "one weekday")
    if wkst != ["MO"]:
        (fields["wkst"],) = wkst
    if "count" in rule:
        fields["count"] = whole_of(rule, "count", _MOST_COUNT)
    if "until" in rule:
        fields["until"] = _until(rule["until"], first.tzinfo)
    fields |= {name: _numbers(name, rule[name], known) for name, known in _NUMBERS.items() if name in rule}
    if "byweekno" in rule and number == WEEKLY:  # dateutil is wrong about weeks at the turn of a year
        raise ValueError("byweekno: found WEEKLY as freq, expected YEARLY, as RFC 5545 has it")
    if "byweekday" in rule:
        most = 0 if number > MONTHLY else 5 if number == MONTHLY or "bymonth" in rule else 53
        fields["byweekday"] = _weekdays("byweekday", rule["byweekday"], most)
    return fields


def _instant(name: str, value: object) -> datetime:
    """Return a datetime with a fixed offset, to the second."""
    expected = "a datetime with a fixed offset like 2026-11-22T09:00:00+01:00"
    try:
        found: Any = datetime.fromisoformat(value) if isinstance(value, str) else value
        offset = found.tzinfo.utcoffset(None)
        at: datetime = found.replace(microsecond=0, tzinfo=timezone(offset))
    except (ValueError, TypeError, AttributeError):  # no datetime, a naive one, a zone whose offset changes
        hint = "; a rule doesn't follow daylight saving, a crontab does" if getattr(value, "tzinfo", None) else ""
        raise ValueError(f"{name}: found {shown(value)}, expected {expected}{hint}") from None
    expect(name, value, at.year > 1, "a later year")
    return at


def _until(value: object, zone: tzinfo | None) -> str:
    try:
        return _instant("until", value).astimezone(zone).isoformat()
    except OverflowError:
        raise ValueError(f"until: found {shown(value)}, expected an earlier one") from None


def _all(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]


def _numbers(name: str, value: object, known: Collection[int]) -> list[int]:
    numbers = _all(value)
    fits = numbers and all(type(number) is int and number in known for number in numbers)
    but = "" if 0 in known or min(known) > 0 else ", but not 0"
    expect(name, value, fits, f"whole numbers from {min(known)} to {max(known)}{but}")
    return sorted(set(numbers))


def _weekdays(name: str, value: object, most: int) -> list[str]:
    """Return weekdays as texts like ``MO``, or with ``most`` up to 53 like ``2MO`` or ``-1FR``."""
    found = {_weekday(each) for each in _all(value)}
    numbers = [int(each[:-2] or 0) for each in found if each is not None]
    fits = found and None not in found and all(abs(number) <= most for number in numbers)
    expect(name, value, fits, f"weekdays, MO to SU or -{most}MO to {most}SU" if most else "weekdays, MO to SU")
    return sorted(each for each in found if each is not None)


def _weekday(value: Any) -> str | None:
    """Return a weekday's text, of a text, a number (0 is Monday) or an object of dateutil's; None if it is none."""
    if isinstance(value, weekday):
        value = f"{value.n or ''}{_WEEKDAYS[value.weekday]}" if value.weekday in range(7) else None
    elif type(value) is int and value in range(7):
        value = _WEEKDAYS[value]
    match = _WEEKDAY.fullmatch(value) if isinstance(value, str) else None
    return f"{int(match[1]) if match[1] else ''}{match[2]}" if match else None
