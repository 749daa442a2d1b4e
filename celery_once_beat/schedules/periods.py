"""Spans of time that ``excluding`` leaves out: days, instants and ranges, perhaps named, perhaps repeated. Pure.

A date is a local day. A time without a zone is local too: in the period's own zone, else in that of the schedule.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from celery_once_beat.errors import SettingError
from celery_once_beat.options import wrong
from celery_once_beat.rules import find_zone, first_instant, plain_zone, spend, zone_name
from celery_once_beat.wording import expect, shown

from .local_times import names_zone, read_time
from .rrule import RULE_FIELDS, RRule

_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_YEAR, _LAST_YEAR = 2, 9999
_MOST_NAME = 200
#: Periods, dates and schedules that one ``excluding`` leaves out, and starts that a repeated period does.
MOST_LEFT_OUT = 10_000
_NUMBER = re.compile(r"[+-]?\d{1,9}", re.ASCII)
_RULE = re.compile(r"[A-Z]+=[A-Z0-9,+\-]+(;[A-Z]+=[A-Z0-9,+\-]+)*", re.ASCII)
#: The parts of a recurrence rule, RFC 5545, and our names for them.
_PARTS = {"BYDAY": "byweekday"} | {
    name.upper(): name for name in RULE_FIELDS if name not in ("dtstart", "byeaster", "byhour", "byminute", "bysecond")
}
#: Rules by which a year may have many spans.
_FREQUENT = re.compile("FREQ=(WEEKLY|DAILY)")
#: Of the budget, for one span.
_STEPS = 8
_REPEATED = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")


class LeftOut(NamedTuple):
    """A span in which nothing starts. Naive UTC, without its end."""

    start: datetime
    end: datetime
    name: str


@dataclass(frozen=True)
class Period:
    """A span of time, or a repeated one: a holiday, say. Raises SettingError.

    ``start`` and ``end`` are dates or datetimes, or their texts in ISO 8601. A date is a whole local day, also as
    ``end``; a time as ``end`` isn't in the span. Without ``end`` it is the day, or the instant, of ``start``. ``rule``
    is a recurrence rule of RFC 5545, like ``FREQ=YEARLY``, ``without`` has starts at which it isn't repeated. ``tz`` is
    the zone of local times; None: that of the schedule.
    """

    start: Any
    end: Any = None
    name: str = ""
    rule: str = ""
    without: tuple[Any, ...] = ()
    tz: Any = None
    _rrule: RRule | None = field(init=False, repr=False, compare=False, default=None)
    _without: frozenset[datetime] = field(init=False, repr=False, compare=False, default=frozenset())

    def __post_init__(self) -> None:
        """Read what it was given, strictly."""
        start = read_time("period, start", self.start)
        end = None if self.end is None else read_time("period, end", self.end)
        if end is not None:
            if (type(end), names_zone(end)) != (type(start), names_zone(start)):
                raise SettingError(f"period: found {start} to {end}, expected two dates, or two datetimes of one kind")
            if end < start or (end == start and isinstance(start, datetime)):
                raise SettingError(f"period: found {end} as end, expected one after {start}")
        fits = isinstance(self.name, str) and len(self.name) <= _MOST_NAME
        expect("period, name", self.name, fits, f"a text of up to {_MOST_NAME} characters", SettingError)
        fits = isinstance(self.without, (tuple, list)) and len(self.without) <= MOST_LEFT_OUT
        expect("period, without", self.without, fits, "a tuple of starts", SettingError)
        without = frozenset(_wall(read_time("period, without", each)) for each in self.without)
        values: dict[str, Any] = {"start": start, "end": end, "without": tuple(sorted(without)), "_without": without}
        values["tz"] = None if self.tz is None else find_zone(self.tz)
        values["_rrule"] = None if not self.rule else _read_rule(self.rule, start, values["tz"])
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def fields(self) -> dict[str, Any]:
        """Return what makes it, as JSON has it."""
        found = {
            "start": self.start.isoformat(),
            "end": self.end and self.end.isoformat(),
            "name": self.name,
            "rule": self.rule,
            "without": [each.isoformat() for each in self.without],
            "tz": self.tz and zone_name(self.tz),
        }
        return {name: value for name, value in found.items() if value}

    def __repr__(self) -> str:
        """Return the text that makes it again."""
        start, *more = self.fields().items()
        return f"Period({start[1]!r}{''.join(f', {name}={value!r}' for name, value in more)})"

    def spans(self, zone: tzinfo | None, since: datetime, until: datetime) -> Iterator[LeftOut]:
        """Yield its spans that meet ``since`` to ``until``, naive UTC; ``zone`` is that of local times."""
        zone = zone if self.tz is None else self.tz
        if self._rrule is None:
            span = self._span(self.start, self.end, zone)
            if span.start < until and span.end > since:
                yield span
            return
        length = timedelta(0) if self.end is None else self.end - self.start
        begin = since - length - 2 * _DAY if since.year > _FIRST_YEAR + length.days // 365 else datetime.min
        for wall in self._rrule.own_starts(begin, until + 2 * _DAY if until.year < _LAST_YEAR else until):
            spend(_STEPS)
            if wall not in self._without:
                start = wall if isinstance(self.start, datetime) else wall.date()
                span = self._span(start, None if self.end is None else start + length, zone)
                if span.start < until and span.end > since:
                    yield span

    def _span(self, start: Any, end: Any, zone: tzinfo | None) -> LeftOut:
        last = start if end is None else end
        begin = _instant(start, zone)
        if not isinstance(start, datetime):
            return LeftOut(begin, _instant(last + _DAY, zone) if last < date.max else datetime.max, self.name)
        return LeftOut(begin, begin + _MICROSECOND if end is None else _instant(end, zone), self.name)


class Periods:
    """Many periods, with local times in one zone: in which of them an instant is.

    The spans of repeated ones are computed for the year of the instant, or for its month where they are frequent.
    """

    def __init__(self, periods: tuple[Period, ...], zone: tzinfo) -> None:
        self._zone = plain_zone(zone)
        # Equal ones are one; the first gives its name.
        unique = {(each.start, each.end, each.rule, each.without, each.tz): each for each in reversed(periods)}
        self._repeated = [each for each in unique.values() if each.rule]
        once = (each for each in unique.values() if not each.rule)
        #: In order, and none meets another.
        self._once = _apart(span for each in once for span in each.spans(self._zone, datetime.min, datetime.max))
        self._monthly = any(_FREQUENT.search(each.rule) for each in self._repeated)
        self._within = lru_cache(maxsize=64)(self._spans_within)

    def at(self, instant: datetime) -> LeftOut | None:
        """Return the span in which an instant is, naive UTC, cut where an earlier one ends; None: it is in none."""
        spans = self._within(instant.year, instant.month if self._monthly else 0) if self._repeated else self._once
        index = bisect_right(spans, instant, key=_begin) - 1
        return spans[index] if index >= 0 and instant < spans[index].end else None

    def _spans_within(self, year: int, month: int) -> list[LeftOut]:
        """Return the spans that meet a month, or with 0 a year."""
        since = datetime(year, month or 1, 1)
        last = month or 12
        following = year + last // 12, last % 12 + 1
        until = datetime(*following, 1) if following[0] <= _LAST_YEAR else datetime.max
        first = bisect_right(self._once, since, key=_end)
        once = self._once[first : bisect_left(self._once, until, key=_begin)]
        return _apart(chain(once, *(each.spans(self._zone, since, until) for each in self._repeated)))


_begin, _end = attrgetter("start"), attrgetter("end")


def _apart(given: Iterable[LeftOut]) -> list[LeftOut]:
    """Return spans in order, each cut where an earlier one ends. Those of one name that touch are one."""
    spans: list[LeftOut] = []
    for span in sorted(given):
        last = spans[-1] if spans else None
        if last is None or span.start > last.end:
            spans.append(span)
        elif span.end <= last.end:
            continue
        elif span.name == last.name:  # days in a row are passed over at once
            spans[-1] = last._replace(end=span.end)
        else:
            spans.append(span._replace(start=last.end))
    return spans


def _wall(value: Any) -> datetime:
    """Return a date as its midnight, a datetime as its wall clock's time."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return datetime(value.year, value.month, value.day)


def _instant(value: Any, zone: tzinfo | None) -> datetime:
    try:
        if names_zone(value):
            return value.astimezone(timezone.utc).replace(tzinfo=None)  # type: ignore[no-any-return]
        return first_instant(_wall(value), zone)
    except OverflowError:  # at an end of the calendar, in UTC
        return datetime.min if value.year == 1 else datetime.max


def _read_rule(text: object, start: Any, zone: tzinfo | None) -> RRule:
    """Return the rule, which counts in the period's wall clock: as if that were UTC."""
    if not isinstance(text, str) or not _RULE.fullmatch(text):
        raise wrong("period, rule", text, "one like 'FREQ=YEARLY'")
    if names_zone(start):
        raise SettingError(f"period, rule: found {start!s:.40} as start, expected a local time and tz=")
    parts = dict(part.split("=") for part in text.split(";"))
    known = _PARTS.keys() >= parts.keys() and len(parts) == text.count("=")
    if not known or parts.get("FREQ") not in _REPEATED:
        raise wrong("period, rule", text, f"FREQ={' or '.join(_REPEATED)} and days")
    try:
        fields: dict[str, Any] = {_PARTS[name]: _value(name, value, zone) for name, value in parts.items()}
        return RRule(fields.pop("freq"), _wall(start).replace(tzinfo=timezone.utc), **fields)
    except ValueError as exc:
        raise SettingError(f"period, rule {shown(text)}: {exc}") from exc


def _value(name: str, text: str, zone: tzinfo | None) -> Any:
    """Return the value of a part, which the rule judges."""
    if name == "UNTIL":
        return _until(text, zone)
    values = [int(each) if _NUMBER.fullmatch(each) else each for each in text.split(",")]
    return values if len(values) > 1 else values[0]


def _until(text: str, zone: tzinfo | None) -> datetime:
    """Return the last instant of a rule on its wall clock, as if that were UTC."""
    if "T" not in text:
        return datetime.strptime(text, "%Y%m%d").replace(tzinfo=timezone.utc)
    found = datetime.strptime(text.removesuffix("Z"), "%Y%m%dT%H%M%S").replace(tzinfo=timezone.utc)
    return found.astimezone(zone).replace(tzinfo=timezone.utc) if zone is not None and text.endswith("Z") else found
