"""When windows start, found from a schedule alone: no I/O, no clock.

:func:`next_start` is the one primitive: the same schedule and the same instant give the same answer in every
process, whatever ran last, so that all beats agree on windows.

Crontabs and intervals of whole days follow a wall clock; ``wall_clock`` has the rule for daylight saving. The package's
own schedules say themselves when they start (``pure``).
"""

from __future__ import annotations

import threading
from calendar import monthrange
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache, partial
from itertools import takewhile
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_once_beat.errors import ScheduleError, UndecidedError
from celery_once_beat.wording import shown

from .budget import budget, spend
from .cron_times import CronTimes, every_hour
from .pure import PureSchedule
from .wall_clock import DAY, HOUR, MICROSECOND, SECOND, by_wall_clock, naive_utc, offset_at
from .zones import plain_zone

# Inside this module an instant is a naive datetime in UTC, a wall time a naive one in the schedule's zone.
_EPOCH = datetime(1970, 1, 1)
_MONDAY = datetime(1970, 1, 5)
#: No window is looked for further back. Aware, as callers' instants are.
_BEGINNING = datetime(1970, 1, 1, tzinfo=timezone.utc)

# The types whose rules are known here; BaseSchedule has none.
_KINDS: tuple[Any, ...] = (PureSchedule, schedule, crontab, solar, BaseSchedule)
# The methods with which a schedule's type decides when it is due.
_RULES = {"is_due", "remaining_estimate", "remaining_delta", "_next_event"}
#: Steps in which the newest start of one of the package's own schedules is found.
_MOST_STEPS = 2_000_000
#: Of a day's search for the sun.
_SOLAR_STEPS = 40
_PINNING = threading.RLock()
_ABSENT = object()


def next_start(
    schedule: BaseSchedule, after: datetime, *, anchor: datetime | None = None, asked: datetime | None = None
) -> datetime | None:
    """Return the first scheduled instant after `after` (aware), in UTC; None if there is none by year 9999.

    `anchor` (aware) moves the grid of an interval, so that the anchor is one of its instants; intervals of
    whole days then keep the anchor's local time of day. Other schedules ignore it.

    Celery's own types are computed: ``schedule`` as a fixed grid (whole days from local midnight, counted
    from Monday 1970-01-05; anything else from the epoch), ``crontab`` by its fields, ``solar`` by the sun's
    days. A type with a rule of its own is asked instead, as if it had run last at `after` and the time were
    that too; where it counts from its last run, its windows depend on `after`.

    One of the package's own may look at a bounded number of starts: UndecidedError says up to when; give that as
    `asked` (aware) to go on. Raises ScheduleError if the schedule raises, doesn't advance or is polled
    (``is_polled``), and ValueError if `after`, `anchor` or `asked` is naive.
    """
    cls: Any = type(schedule)  # hashable, whatever a schedule's stubs say of its instances
    kind = _kind(cls)
    moment = naive_utc(after)
    origin = None if anchor is None else naive_utc(anchor)
    if kind is BaseSchedule and is_polled(schedule):
        raise ScheduleError(f"{shown(schedule)} is polled: its is_due says in real time whether it starts")
    try:
        if kind is BaseSchedule:
            start = _own_start(schedule, moment)
        elif kind is PureSchedule:
            pure: Any = schedule
            start = pure.start_after(moment if asked is None else max(moment, naive_utc(asked)))
        else:
            start = _STARTS[kind](schedule, moment, origin)
    except ScheduleError:
        raise
    except OverflowError:  # past the last datetime
        return None
    except (Exception, SystemExit) as error:  # a signal's, too: beat ends at its next tick
        raise ScheduleError(f"{shown(schedule)} can't say when it starts next: {shown(error)}") from error
    if start is None:
        return None
    if start <= moment:
        raise ScheduleError(f"{shown(schedule)} doesn't advance: it starts at {start}Z next after {moment}Z")
    return start.replace(tzinfo=timezone.utc)


def starts_after(
    schedule: BaseSchedule, after: datetime, until: datetime, *, anchor: datetime | None = None
) -> Iterator[datetime]:
    """Yield the starts after `after` up to and including `until` (both aware), in order; see next_start.

    A schedule that is undecided is asked on, up to `until`.
    """
    asked = None
    while True:
        try:
            start, asked = next_start(schedule, after, anchor=anchor, asked=asked), None
        except UndecidedError as error:
            asked = error.asked
            if asked > until:
                return
            continue
        if start is None or start > until:
            return
        yield start
        after = start


def count_starts(when: BaseSchedule, after: datetime, until: datetime, *, anchor: datetime | None = None) -> int:
    """Return how many starts :func:`starts_after` yields; of an interval in UTC without going through them."""
    cls: Any = type(when)
    number = None
    if isinstance(when, PureSchedule):
        number = when.number(naive_utc(after), naive_utc(until))
    elif _kind(cls) is schedule:
        step: timedelta = when.run_every  # type: ignore[attr-defined]  # celery-types lacks it
        number = grid_number(step, naive_utc(after), naive_utc(until), None if anchor is None else naive_utc(anchor))
    return sum(1 for _ in starts_after(when, after, until, anchor=anchor)) if number is None else number


def latest_start(schedule: BaseSchedule, until: datetime, *, anchor: datetime | None = None) -> datetime | None:
    """Return the newest start up to and including `until` (aware), None if there is none since 1970; see next_start.

    ScheduleError also where one of the package's own schedules leaves out too many in a row.
    """
    back = timedelta(minutes=1)
    with budget(_MOST_STEPS):
        while until > _BEGINNING:
            since = until - back if until - _BEGINNING > back else _BEGINNING
            starts = starts_after(schedule, since, until, anchor=anchor)
            first = next(starts, None)
            if first is not None:
                pure = isinstance(schedule, PureSchedule)
                return _last_start(schedule, first, until) if pure else max(starts, default=first)
            until = since
            back *= 30
    return None


def _last_start(when: BaseSchedule, newest: datetime, until: datetime) -> datetime:
    """The newest start up to `until`, where `newest` is one: a schedule may have ended after a million of them."""
    while True:
        middle = newest + (until - newest) / 2
        later = next(starts_after(when, middle, until), None)
        if later is not None:
            newest = later
        elif middle == newest:
            return newest
        else:
            until = middle


def _own_bases(cls: Any) -> Iterator[type]:
    """The classes that come before the first whose rules are known, but for django-celery-beat's crontab."""
    before = takewhile(lambda base: base not in _KINDS, cls.__mro__)
    return (base for base in before if not is_tz_aware_crontab(base))


@lru_cache(maxsize=256)
def _kind(cls: Any) -> Any:
    """Return the type, Celery's or ours, that decides when a `cls` is due; BaseSchedule if `cls` decides itself."""
    kind = next((base for base in cls.__mro__ if base in _KINDS), BaseSchedule)
    rules = _RULES & vars(kind).keys()
    return BaseSchedule if any(rules & vars(base).keys() for base in _own_bases(cls)) else kind


def is_polled(schedule: object) -> bool:
    """Whether a schedule has to be asked in real time, by ``is_due``, since nobody can say when it starts next.

    So it is if its type has an ``is_due`` of its own, computes the ``run_every`` of Celery's interval, or has Celery's
    ``is_due`` with a ``remaining_estimate`` that doesn't take the time from ``self.now()``. A one-off with a
    ``clocked_time`` isn't polled.
    """
    cls: Any = type(schedule)
    own = any({"is_due", "run_every"} & vars(base).keys() for base in _own_bases(cls))
    return (own or _has_own_clock(schedule)) and not hasattr(schedule, "clocked_time")


@lru_cache(maxsize=256)
def computes_interval(cls: Any) -> bool:
    """Whether a type of interval computes its ``run_every``: at random, or from a table, for all that is known."""
    return any("run_every" in vars(base) for base in _own_bases(cls))


#: Types, and whether their ``remaining_estimate`` has a clock of its own. Weak, since a base may make types as it goes.
_own_clocks: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def _has_own_clock(own: Any) -> bool:
    cls: Any = type(own)
    if not issubclass(cls, BaseSchedule) or cls.is_due is BaseSchedule.is_due or _kind(cls) is not BaseSchedule:
        return False
    if cls not in _own_clocks:
        try:
            _own_clocks[cls] = not _ask(own, _MONDAY)[1]
        except Exception:  # noqa: BLE001  # whatever it raises is logged when it is asked for its start
            return False
    return _own_clocks[cls]


def is_tz_aware_crontab(cls: type) -> bool:
    """django-celery-beat's crontab, or its copy: ``is_due`` only converts to its zone, which is its ``tz`` as well."""
    return _is_of_database(cls, "tzcrontab.TzAwareCrontab")


def is_clocked(cls: type) -> bool:
    """django-celery-beat's one-off, or its copy: it starts at its ``clocked_time``."""
    return _is_of_database(cls, "clockedschedule.clocked")


def _is_of_database(cls: type, path: str) -> bool:
    """Whether it is django-celery-beat's class of that path, or sqlalchemy-celery-beat's."""
    package, _, within = f"{cls.__module__}.{cls.__name__}".partition(".")
    return within == path and package in ("django_celery_beat", "sqlalchemy_celery_beat")


# -- intervals


def _interval_start(interval: Any, after: datetime, anchor: datetime | None) -> datetime | None:
    step = interval.run_every
    if step <= timedelta(0):
        raise ScheduleError(f"{shown(interval)}: found an interval of {step.total_seconds():g} s, expected more than 0")
    return grid_start(step, None if step % DAY else interval.tz, after, anchor)


def grid_start(step: timedelta, zone: tzinfo | None, after: datetime, anchor: datetime | None) -> datetime | None:
    """Return the first instant after `after` on the grid of an interval; both, and the anchor, are naive UTC.

    Whole days fall on midnights in `zone`, or keep the anchor's local time of day; any other grid needs no zone.
    """
    if step % DAY:
        return _on_grid(anchor or _EPOCH, step, after + MICROSECOND)
    zone = plain_zone(zone)
    origin = anchor + offset_at(zone, anchor) if anchor else _MONDAY
    return by_wall_clock(zone, after, partial(_on_grid, origin, step), repeats=False)


def calendar_start(months: int, zone: tzinfo | None, after: datetime, anchor: datetime | None) -> datetime | None:
    """Return the first instant after `after` whole months from the anchor, at its local time; both are naive UTC.

    In a month that lacks the anchor's day it is the last one. None: it is past the end of the calendar.
    """
    zone = plain_zone(zone)
    origin = anchor + offset_at(zone, anchor) if anchor else _EPOCH

    def scheduled(earliest: datetime) -> datetime | None:
        passed = (earliest.year - origin.year) * 12 + earliest.month - origin.month
        for steps in (passed // months, passed // months + 1):
            year, month = divmod(origin.year * 12 + origin.month - 1 + steps * months, 12)
            if not 1 <= year <= datetime.max.year:
                continue
            day = min(origin.day, monthrange(year, month + 1)[1])
            found = origin.replace(year=year, month=month + 1, day=day)
            if found >= earliest:
                return found
        return None

    return by_wall_clock(zone, after, scheduled, repeats=False)


def grid_number(step: timedelta, after: datetime, until: datetime, anchor: datetime | None) -> int | None:
    """Return how many instants of an interval's grid are after `after` up to `until`; None: not told by dividing.

    All are naive UTC. Whole days follow a wall clock.
    """
    if step <= timedelta(0) or not step % DAY:
        return None
    origin = anchor or _EPOCH
    return max((until - origin) // step - (after - origin) // step, 0)


def _on_grid(origin: datetime, step: timedelta, earliest: datetime) -> datetime:
    steps = -((origin - earliest) // step)  # rounded up, and exact: timedeltas are whole microseconds
    return origin + steps * step


# -- crontabs


def _crontab_start(cron: Any, after: datetime, _anchor: datetime | None) -> datetime | None:
    times = _times_of(*map(frozenset, cron_fields(cron)))
    return by_wall_clock(plain_zone(cron.tz), after, times.first, repeats=repeats(cron))


def repeats(cron: Any) -> bool:
    """Whether a crontab of Celery's starts whenever the clock shows a scheduled time."""
    return every_hour(cron._orig_hour)  # noqa: SLF001  # as it was written; cron.hour has lost that


#: Of a crontab of Celery's, in the order of cron.
CRON_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
#: Their numbers, as sets.
cron_fields = attrgetter(*CRON_FIELDS)


@lru_cache(maxsize=4096)  # many have the same
def _times_of(*fields: frozenset[int]) -> CronTimes:
    """Return the times of Celery's fields: day of month AND day of week."""
    minutes, hours, days, months, weekdays = fields
    return CronTimes(minutes, hours, months, lambda day, first, _: day in days and (first + day) % 7 in weekdays)


# -- the sun


def _solar_start(sun: Any, after: datetime, _anchor: datetime | None) -> datetime | None:
    """The first event after `after`; None if the sun has none there in a whole year.

    The last digits of ephem's answer vary with the instant that it searches from, so it searches from fixed
    ones only: one in each of the sun's days, about six hours or more away from the event. Its answer is good
    to a tenth of a second; a start is a whole one, so that machines whose last bits differ agree on it.
    """
    observer = sun.cal.copy()
    center = {"use_center": True} if sun.use_center else {}
    hours = {"next_rising": -6, "next_transit": 0, "next_setting": 6}[sun.method]
    origin = _EPOCH + hours * HOUR - round(sun.lon * 240) * SECOND
    today = (after - origin) // DAY
    for day in range(today, today + 400):
        begin = origin + day * DAY
        spend(_SOLAR_STEPS)
        try:
            event = getattr(observer, sun.method)(sun.ephem.Sun(), start=sun.ephem.Date(begin), **center)
        except sun.ephem.CircumpolarError:  # polar day or night
            continue
        start: datetime = _EPOCH + round((event.datetime() - _EPOCH) / SECOND) * SECOND
        if after < start < begin + DAY:
            return start
    return None


# -- types with a rule of their own


def _own_start(own: Any, after: datetime) -> datetime | None:
    """What the schedule says itself, by ``remaining_estimate``; None: it ends."""
    if hasattr(own, "clocked_time"):  # as django-celery-beat's
        clocked = naive_utc(own.clocked_time)
        return clocked if clocked > after else None
    remaining, _ = _ask(own, after)
    if remaining is None and getattr(own, "may_end", False):
        return None
    start: datetime = after + remaining
    return start


def _ask(own: Any, last: datetime) -> tuple[Any, bool]:
    """Call ``remaining_estimate`` as if the schedule had run last at `last` and it were that now, both in its zone.

    Returns the answer, and whether it asked what time it is.
    """
    zone = getattr(own, "tz", timezone.utc)
    pinned = last.replace(tzinfo=timezone.utc).astimezone(_twin(zone) if isinstance(zone, ZoneInfo) else zone)
    asked = False

    def now() -> datetime:
        nonlocal asked
        asked = True
        return pinned

    with _PINNING:  # the process's threads share the schedule
        held = vars(own).get("nowfun", _ABSENT)
        own.nowfun = now
        try:
            return own.remaining_estimate(last.replace(tzinfo=timezone.utc).astimezone(zone)), asked
        except OverflowError as error:
            raise ScheduleError(f"{shown(own)} can't say when it starts next: {shown(error)}") from error
        finally:
            if held is _ABSENT:
                del own.nowfun
            else:
                own.nowfun = held


@lru_cache(maxsize=64)
def _twin(zone: ZoneInfo) -> tzinfo:
    """The same zone as another object: times of one object are subtracted by their wall clocks."""
    return ZoneInfo.no_cache(zone.key) if zone.key else zone


_STARTS: dict[type, Callable[..., Any]] = {schedule: _interval_start, crontab: _crontab_start, solar: _solar_start}
