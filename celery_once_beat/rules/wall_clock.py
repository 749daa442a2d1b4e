"""Wall clocks: at which instant a local time comes, also where a zone's clock jumps. Pure.

Debian cron's rule for daylight saving, for all schedules that have a local time:

* a local time that the clock skips comes at the first instant after the gap; several of them are one start;
* a local time that the clock shows twice comes once, the first time;
* but what repeats (a crontab with ``*`` or ``*/n`` hours) starts whenever the clock shows a scheduled time, and only
  then.

For that a zone's history is cut into eras of one UTC offset, and a scheduled time is looked for era by era.

Inside this module an instant is a naive datetime in UTC, a wall time a naive one in the zone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from celery_once_beat.wording import shown

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)
_LAST_YEAR = 9999
#: Fixed years: what is made of them is the same tomorrow. Corrections of earlier ones move no coming start.
_COMPARED = datetime(2020, 1, 1), datetime(2050, 1, 1)


def naive_utc(instant: datetime) -> datetime:
    """Return an aware instant as a naive one in UTC; raises ValueError for a naive one."""
    if instant.tzinfo is timezone.utc:
        return instant.replace(tzinfo=None)
    if instant.utcoffset() is None:
        raise ValueError(f"found {shown(instant)}, expected an aware datetime")
    return instant.astimezone(timezone.utc).replace(tzinfo=None)


class _Era(NamedTuple):
    """A time in which a zone keeps one offset from UTC."""

    start: datetime
    end: datetime
    offset: timedelta
    shown: datetime  # by the era's start the wall clock had shown or skipped every time before this one


def by_wall_clock(
    zone: tzinfo | None, after: datetime, scheduled: Callable[[datetime], datetime | None], *, repeats: bool
) -> datetime | None:
    """Return the first instant after `after` at which a scheduled wall time starts, by the rule at the module's top.

    `scheduled` returns the first scheduled wall time that isn't before the one it is given.
    """
    eras_of = _eras if isinstance(zone, Hashable) else _eras.__wrapped__  # dateutil's zones can't be cached
    moment = after + MICROSECOND
    while True:
        era = next((era for era in eras_of(zone, moment.year) if moment < era.end), None)
        if era is None:
            return None
        wall = moment + era.offset
        if not repeats:
            wall = era.shown if moment == era.start else max(wall, era.shown)
        due = scheduled(wall)
        if due is None:
            return None
        start = max(due - era.offset, moment)  # what was skipped just before the era starts with it
        if start < era.end:
            return start
        # Clocks go back by a day at most, so after two idle ones there is nothing to repeat before `due`.
        idle = era.end - moment > 2 * DAY
        moment = max(era.end, due - era.offset - 2 * DAY) if idle else era.end


@lru_cache(maxsize=1024)
def _eras(zone: tzinfo | None, year: int) -> tuple[_Era, ...]:
    """The eras of a year (UTC), and of the few days before it, for what the clock had shown by then."""
    start = datetime(year, 1, 1) - 3 * DAY if year > 1 else datetime.min + DAY
    last = datetime(year + 1, 1, 1) if year < _LAST_YEAR else datetime.max - DAY
    shown = start + offset_at(zone, start)
    eras = []
    while start < last:
        offset, end = offset_at(zone, start), _offset_end(zone, start, last)
        eras.append(_Era(start, end, offset, shown))
        start, shown = end, max(shown, end + offset)
    return tuple(eras)


def changes(zone: tzinfo | None) -> Iterator[tuple[datetime, timedelta]]:
    """Yield the offsets that a zone has in the years of _COMPARED, each with the instant from which it has it."""
    start, last = _COMPARED
    while start < last:
        yield start, offset_at(zone, start)
        start = _offset_end(zone, start, last, 7 * DAY)


def _offset_end(zone: tzinfo | None, start: datetime, last: datetime, most: timedelta = 6 * HOUR) -> datetime:
    """The first instant after `start`, to the second, at which the offset is another one, or `last`.

    An offset that lasts for less than `most` may be passed over.
    """
    offset = offset_at(zone, start)
    while start < last:
        step = min(most, last - start)
        if offset_at(zone, start + step) != offset:
            seconds = range(step // SECOND)
            changed = bisect_left(seconds, True, key=lambda n: offset_at(zone, start + n * SECOND) != offset)
            return start + changed * SECOND
        start += step
    return last


def offset_at(zone: tzinfo | None, instant: datetime) -> timedelta:
    """Return the zone's offset from UTC at an instant."""
    return instant.replace(tzinfo=timezone.utc).astimezone(zone).replace(tzinfo=None) - instant


def first_instant(wall: datetime, zone: tzinfo | None) -> datetime:
    """Return the instant at which a wall time comes; OverflowError past the ends of the calendar."""
    if isinstance(zone, ZoneInfo):
        offset = zone.utcoffset(wall.replace(fold=0))
        if offset is not None and offset == zone.utcoffset(wall.replace(fold=1)):
            return wall - offset  # the clock shows it once
    found = by_wall_clock(zone, wall - 2 * DAY, lambda earliest: wall if earliest <= wall else None, repeats=False)
    if found is None:
        raise OverflowError("a time past the ends of the calendar")
    return found
