"""Schedules that are made of others: ``between``, ``excluding``, ``union``. Pure.

A composed schedule's candidates are the starts of its parts. It goes through them in order; the first that nothing
leaves out is its next start. So a question is one walk, however the schedules are nested. The walk ends when half of
its budget is used up; then UndecidedError says how far it got. A single step that takes more than the rest is an error.

A part that follows the app's time zone is put into that zone first: ``in_zone`` makes a schedule that is the same in
any process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from celery.schedules import BaseSchedule, crontab, schedule, solar
from typing_extensions import Self

from celery_once_beat.errors import SettingError, UndecidedError
from celery_once_beat.options import wrong
from celery_once_beat.rules import (
    PureSchedule,
    budget,
    find_zone,
    in_zone,
    is_tz_aware_crontab,
    spend,
    zone_name,
    zones_of,
)
from celery_once_beat.windows import next_start
from celery_once_beat.wording import expect, number_of, shown

from .calendar_file import CalendarFile
from .intervals import every
from .local_times import names_zone, read_instant, read_time
from .one_off import OneOff
from .periods import MOST_LEFT_OUT, Period, Periods
from .rrule import HORIZON, MOST_READ
from .words import describe

_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1)
#: Of schedules within each other.
_MOST_LEVELS = 16
#: Schedules that one is made of, at all levels.
_MOST_PARTS = 200
#: Of the budget, for a question to one of Celery's schedules or ours.
_STEPS = 20
#: Of Celery's crontab.
_ARGUMENTS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")

#: Starts of a ``between``.
MOST_RUNS = 10_000
#: Of lists within each other.
_MOST_LISTS = 16
_EXPECTED = (
    "a date, a datetime, a tuple of two, a Period, a schedule, an .ics file as a pathlib.Path, a list of them, or a "
    "dict of dates and names"
)

Part: TypeAlias = "BaseSchedule | str | float | timedelta | datetime"
Moment: TypeAlias = "str | date | datetime"


class Composed(PureSchedule):
    """A schedule that is made of others, which are values: changing an argument later changes nothing.

    ``tz`` is the time zone of parts that name none; None: that of the app.
    """

    parts: tuple[BaseSchedule, ...]
    placed = True  # each sets its own when it is made, instead of the base's property

    def __init__(self, parts: Iterable[Part], tz: str | tzinfo | None) -> None:
        super().__init__()
        self._own_zone = None if tz is None else find_zone(tz)
        self.parts = tuple(_part(part, self._own_zone) for part in parts)
        self.zone = self._own_zone or _one_zone(self.parts)
        self.placed = all(_is_placed(part) for part in self.parts)
        below = [part for part in self._below() if isinstance(part, Composed)]
        self.levels: int = 1 + max((part.levels for part in below), default=0)
        self.size: int = len(list(self._below())) + sum(part.size for part in below)
        if self.levels > _MOST_LEVELS or self.size > _MOST_PARTS:
            raise SettingError(
                f"{type(self).__name__}: found {self.size} schedules on {self.levels} levels, expected up to "
                f"{_MOST_PARTS} on {_MOST_LEVELS}"
            )
        self._in_app: Composed | None = None

    def _below(self) -> Iterator[BaseSchedule]:
        """Yield all schedules that it is made of."""
        yield from self.parts

    # -- for those that compose it

    def candidate(self, after: datetime, *, left_out: bool = False) -> datetime | None:
        """Return the first instant after ``after`` that may be a start; None: there is none. All are naive, in UTC.

        Instants that are sure to be left out are passed over, unless ``left_out`` asks for them too.
        """
        raise NotImplementedError

    def allows(self, start: datetime) -> bool:
        """Whether an instant, naive UTC, is a start."""
        raise NotImplementedError

    def why_not(self, start: datetime) -> str | None:
        """Say why a candidate is left out; None: nothing leaves it out."""
        raise NotImplementedError

    # -- as a schedule

    def start_after(self, after: datetime) -> datetime | None:
        """Return the first start after ``after``."""
        placed = self._in_known_zone()
        moment = after
        with budget() as half_spent:
            while moment == after or not half_spent():
                start = placed.candidate(moment)
                if start is None or placed.allows(start):
                    return start
                if start - after > HORIZON:
                    return None
                moment = start
        raise UndecidedError(
            f"{shown(self)} leaves out each start up to {moment}Z", asked=moment.replace(tzinfo=timezone.utc)
        )

    def left_out(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, str]]:
        """Yield the instants after ``after`` up to ``until`` that are left out, and why.

        Both are aware; what is yielded is aware UTC. Raises ScheduleError if a file of holidays can't be read.
        """
        placed = self._in_known_zone()
        moment: datetime | None = after.astimezone(timezone.utc).replace(tzinfo=None)
        end = until.astimezone(timezone.utc).replace(tzinfo=None)
        while moment is not None:
            moment = placed.candidate(moment, left_out=True)
            if moment is None or moment > end:
                return
            why = placed.why_not(moment)
            if why is not None:
                yield moment.replace(tzinfo=timezone.utc), why

    def _in_known_zone(self) -> Composed:
        """Return it with all local times in a known zone."""
        if self.placed:
            return self
        zone = self.tz
        known = self._in_app
        if known is None or known.zone is not zone:
            known = self._in_app = self.in_zone(zone)
        return known

    def zones(self) -> Iterator[tzinfo | None]:
        """Yield those of its parts, and that of its own local times."""
        placed = self._in_known_zone()
        if placed.zone is not None:
            yield placed.zone
        for part in placed._below():  # noqa: SLF001  # of the same type
            yield from zones_of(part)

    def _with_zone(self, **named: Any) -> dict[str, Any]:
        if self._own_zone is not None:
            named["tz"] = zone_name(self._own_zone)
        return {name: value for name, value in named.items() if value is not None}


class between(Composed):  # noqa: N801  # as its call reads
    """The starts of a schedule from ``start`` on and before ``end``; if ``end`` is a date, that day is included.

    Each is a date or a datetime, or its text in ISO 8601; None: no bound. ``runs``: only the first so many of them; it
    needs a ``start``. Local times are in ``tz``, by name or as itself; None: in the schedule's zone, else in that of
    the app. Raises SettingError.
    """

    def __init__(
        self,
        when: Part,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        runs: int | None = None,
        tz: str | tzinfo | None = None,
    ) -> None:
        super().__init__((when,), tz)
        fits = runs is None or (type(runs) is int and 1 <= runs <= MOST_RUNS and start is not None)
        expected = f"a whole number from 1 to {MOST_RUNS:,}, and start=, from which they count"
        self._runs: int | None = expect("between, runs", runs, fits, expected, SettingError)
        self._start = None if start is None else read_time("between, start", start)
        self._end = None if end is None else read_time("between, end", end)
        local = [each for each in (self._start, self._end) if each is not None and not names_zone(each)]
        if local and self.zone is None:
            self.placed = False
        self._bounds = self._instants(self.zone or timezone.utc)
        if self._bounds[0] >= self._bounds[1]:
            raise SettingError(f"between: found {end!s:.40} as end, expected one after {start!s:.40}")

    def _instants(self, zone: tzinfo) -> tuple[datetime, datetime]:
        found = [datetime.min, datetime.max]
        for index, bound in enumerate((self._start, self._end)):
            if bound is not None:
                if index and not isinstance(bound, datetime) and bound < date.max:
                    bound += _DAY  # noqa: PLW2901  # the day counts as a whole
                found[index] = read_instant("between", bound, zone).replace(tzinfo=None)
        return found[0], found[1]

    def candidate(self, after: datetime, *, left_out: bool = False) -> datetime | None:
        """Return the first one within the bounds."""
        first, end = self._bounds[0], self._last
        start = _candidate(self.parts[0], first - _MICROSECOND if after < first else after, left_out=left_out)
        return start if start is not None and start < end else None

    def allows(self, start: datetime) -> bool:
        """Whether it is within the bounds, and the schedule starts then."""
        return self._bounds[0] <= start < self._last and _allows(self.parts[0], start)

    @cached_property
    def _last(self) -> datetime:
        """The instant before which it starts: of ``runs`` right after the last of them."""
        moment, end = self._bounds
        if self._runs is None:
            return end
        moment -= _MICROSECOND
        left = self._runs
        with budget(MOST_READ, apart=True):
            while left and moment < end:
                found = _candidate(self.parts[0], moment, left_out=False)
                if found is None:
                    return end
                moment = found
                left -= _allows(self.parts[0], moment)
        return min(moment + _MICROSECOND, end)

    def why_not(self, start: datetime) -> str | None:
        """Say why the schedule leaves it out."""
        return _why_not(self.parts[0], start)

    def words(self) -> str:
        """Return the schedule in words, its zone if it has one, and its bounds."""
        zone = "" if self._own_zone is None else f" {zone_name(self._own_zone)}"
        bounds = (("from", self._start), ("until", self._end))
        texts = [f"{word} {at.isoformat().replace('+00:00', 'Z')}" for word, at in bounds if at is not None]
        texts += [] if self._runs is None else [number_of(self._runs, "run")]
        return ", ".join([describe(self.parts[0]) + zone, *texts])

    def made_of(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the schedule and its bounds."""
        start, end = (None if each is None else each.isoformat() for each in (self._start, self._end))
        return self.parts, self._with_zone(start=start, end=end, runs=self._runs)


class excluding(Composed):  # noqa: N801  # as its call reads
    """The starts of a schedule without some.

    ``left_out`` is one of these, or a list: a date (a whole local day), a datetime (that instant), a text of either in
    ISO 8601, a tuple of two (from the first on and before the second; if that is a date, its day is left out too), a
    ``Period``, a schedule (its starts), an .ics file as a ``Path``; or a dict of dates and their names. Local times are
    in ``tz``, by name or as itself; None: in the schedule's zone, else in that of the app. Raises SettingError.

    A file is read when the schedule is first asked, once in a process: ScheduleError if that fails. What is stored as
    JSON has the file's events.
    """

    def __init__(self, when: Part, left_out: object, *, tz: str | tzinfo | None = None) -> None:
        items = tuple(_read_left_out(left_out))
        if len(items) > MOST_LEFT_OUT:
            raise SettingError(f"excluding: found {len(items)} to leave out, expected up to {MOST_LEFT_OUT}")
        zone = None if tz is None else find_zone(tz)
        #: Periods and files.
        self._spans = tuple(each for each in items if not isinstance(each, BaseSchedule))
        part = _part(when, zone)
        theirs = zone or _one_zone((part,))  # they follow the schedule's zone
        #: The schedules whose starts are left out.
        self.others = tuple(_part(each, theirs) for each in items if isinstance(each, BaseSchedule))
        super().__init__((part,), zone)
        if self.zone is None:
            self.placed = False

    def _below(self) -> Iterator[BaseSchedule]:
        yield from self.parts
        yield from self.others

    def in_zone(self, zone: tzinfo) -> Self:
        """Return it with all that names no zone in ``zone``; of files, what was read is kept."""
        if self.placed:
            return self
        return type(self)(self.parts[0], [*self._spans, *self.others], tz=zone)

    def periods(self) -> tuple[Period, ...]:
        """Return the periods that are left out, those of files too; ScheduleError: a file can't be read."""
        periods = (each.periods if isinstance(each, CalendarFile) else (each,) for each in self._spans)
        return tuple(chain.from_iterable(periods))

    def zones(self) -> Iterator[tzinfo | None]:
        """Yield those of its periods too."""
        yield from super().zones()
        yield from (period.tz for period in self.periods() if period.tz is not None)

    def rule(self) -> str:
        """Return what says when it starts: of a file, what stands in it."""
        reads = any(isinstance(each, CalendarFile) for each in self._spans)
        return f"{super().rule()} {self.periods()!r}" if reads else super().rule()

    @cached_property
    def _left_out(self) -> Periods:
        return Periods(self.periods(), self.zone or timezone.utc)

    def candidate(self, after: datetime, *, left_out: bool = False) -> datetime | None:
        """Return the schedule's next one. A span in which it is left out is passed over as a whole."""
        start = _candidate(self.parts[0], after, left_out=left_out)
        span = None if start is None or left_out else self._left_out.at(start)
        return start if span is None else _candidate(self.parts[0], span.end - _MICROSECOND, left_out=left_out)

    def allows(self, start: datetime) -> bool:
        """Whether the schedule starts then, and nothing leaves it out."""
        return (
            self._left_out.at(start) is None
            and _allows(self.parts[0], start)
            and not any(_allows(other, start) for other in self.others)
        )

    def why_not(self, start: datetime) -> str | None:
        """Say what leaves it out: the day and the name of a period, or a schedule."""
        span = self._left_out.at(start)
        if span is not None:
            there = start.replace(tzinfo=timezone.utc).astimezone(self.zone or timezone.utc)
            return f"{there.day} {there:%B}" + (f", {span.name}" if span.name else "")
        for other in self.others:
            if _allows(other, start):
                return shown(other)
        return _why_not(self.parts[0], start)

    def made_of(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the schedule and what is left out."""
        return (self.parts[0], [*map(_plainest, self._spans), *self.others]), self._with_zone()


def _read_left_out(given: Any, levels: int = _MOST_LISTS) -> Iterator[Period | CalendarFile | BaseSchedule]:
    """Yield what is left out, of one thing or of a list; raises SettingError."""
    if isinstance(given, Mapping):
        for day, name in given.items():
            yield Period(day, name=str(name))
    elif levels and isinstance(given, (list, set, frozenset)):
        for each in given if isinstance(given, list) else sorted(given, key=str):
            yield from _read_left_out(each, levels - 1)
    elif isinstance(given, (Period, CalendarFile, BaseSchedule)):
        yield given
    elif isinstance(given, PathLike):
        yield CalendarFile(Path(given))
    elif isinstance(given, str) and given.endswith(".ics"):
        raise wrong("excluding", given, "a file as pathlib.Path(…): a text is never taken for one")
    elif isinstance(given, tuple) and len(given) == len(("start", "end")):
        yield Period(*given)
    elif isinstance(given, (str, date)):
        yield Period(given)
    else:
        raise wrong("excluding", given, _EXPECTED)


def _plainest(span: Period | CalendarFile) -> Any:
    """Return the plainest value that :func:`_read_left_out` reads as the span."""
    if isinstance(span, CalendarFile):
        return span.path
    fields = span.fields()
    if fields.keys() == {"start"}:
        return fields["start"]
    return (fields["start"], fields["end"]) if fields.keys() == {"start", "end"} else span


class union(Composed):  # noqa: N801  # as its call reads
    """The starts of several schedules; instants that coincide are one. Raises SettingError."""

    def __init__(self, *schedules: Part, tz: str | tzinfo | None = None) -> None:
        if not schedules:
            raise SettingError("union: found no schedule, expected one or more")
        super().__init__(schedules, tz)

    def candidate(self, after: datetime, *, left_out: bool = False) -> datetime | None:
        """Return the first one of all."""
        starts = (_candidate(part, after, left_out=left_out) for part in self.parts)
        return min((start for start in starts if start is not None), default=None)

    def allows(self, start: datetime) -> bool:
        """Whether one of them starts then."""
        return any(_allows(part, start) for part in self.parts)

    def why_not(self, start: datetime) -> str | None:
        """Say why one of them leaves it out, where no other one starts then."""
        if self.allows(start):
            return None
        return next((why for part in self.parts if (why := _why_not(part, start)) is not None), None)

    def made_of(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the schedules."""
        return self.parts, self._with_zone()


# -- parts


class CronPart(crontab):
    """Celery's crontab as a part: its repr makes it again."""

    def __repr__(self) -> str:
        """Return the call that makes it."""
        written = (cron_field(getattr(self, f"_orig_{name}")) for name in _ARGUMENTS)
        return f"crontab({', '.join(map(repr, written))})"


def cron_field(written: Any) -> str | int | list[int]:
    """Return a field of Celery's crontab as JSON has it: numbers in order."""
    return written if isinstance(written, (str, int)) else sorted(int(number) for number in written)


class SolarPart(solar):
    """Celery's solar schedule as a part: its repr makes it again."""

    def __repr__(self) -> str:
        """Return the call that makes it."""
        return f"solar({self.event!r}, {self.lat!r}, {self.lon!r})"


def _part(given: Any, zone: tzinfo | None) -> BaseSchedule:
    """Return a schedule as a part of another: a value, in its own zone, else in ``zone``."""
    part: Any
    if isinstance(given, PureSchedule):
        part = given
    elif isinstance(given, datetime):
        part = OneOff(read_instant("schedule", given, zone))
    elif isinstance(given, (int, float, str, timedelta)):
        part = every(given)
    elif type(given) is schedule:
        part = every(given.run_every, tz=vars(given).get("tz"))  # type: ignore[attr-defined]  # celery-types lacks it
    elif type(given) in (solar, SolarPart):
        part = SolarPart(given.event, given.lat, given.lon)
    elif type(given) in (crontab, CronPart) or is_tz_aware_crontab(type(given)):
        part = CronPart(**{name: getattr(given, f"_orig_{name}") for name in _ARGUMENTS})
        own = vars(given).get("tz")
        if own is not None and own is not zone:
            return between(part, tz=own)
    else:
        raise SettingError(
            f"schedule: found {shown(given)}, expected cron(), every(), at(), an RRule, another composed schedule, or "
            "Celery's crontab, schedule or solar"
        )
    return part if zone is None else in_zone(part, zone)


def _is_placed(part: BaseSchedule) -> bool:
    """Whether its local times are in a known zone."""
    if isinstance(part, crontab):
        return "tz" in vars(part)
    return not isinstance(part, PureSchedule) or part.placed


def _one_zone(parts: tuple[BaseSchedule, ...]) -> tzinfo | None:
    """Return the zone of all local times of the parts, if they name one."""
    zones = {part.zone for part in parts if isinstance(part, PureSchedule)} - {None}
    return zones.pop() if len(zones) == 1 and all(map(_is_placed, parts)) else None


def _candidate(part: BaseSchedule, after: datetime, *, left_out: bool) -> datetime | None:
    return part.candidate(after, left_out=left_out) if isinstance(part, Composed) else _start(part, after)


def _allows(part: BaseSchedule, start: datetime) -> bool:
    return part.allows(start) if isinstance(part, Composed) else _start(part, start - _MICROSECOND) == start


def _why_not(part: BaseSchedule, start: datetime) -> str | None:
    return part.why_not(start) if isinstance(part, Composed) else None


def _start(part: BaseSchedule, after: datetime) -> datetime | None:
    spend(_STEPS)
    if isinstance(part, PureSchedule):
        return part.start_after(after)
    start = next_start(part, after.replace(tzinfo=timezone.utc))
    return None if start is None else start.replace(tzinfo=None)
