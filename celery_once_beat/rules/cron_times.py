"""The local times that the fields of a crontab allow, Celery's or cron's. Pure: naive times, to the second."""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from functools import lru_cache

_LAST_YEAR = 9999
#: A day of month, a month and a weekday meet again within these, also past 2100.
_MOST_MONTHS = 41 * 12
_EVERY_HOUR = re.compile(r"\*(/\d+)?", re.ASCII)

_month = lru_cache(maxsize=1024)(monthrange)


def every_hour(hours: object) -> bool:
    """Whether a field of hours is ``*`` or ``*/n``: it then starts whenever the clock shows a scheduled time."""
    return isinstance(hours, str) and _EVERY_HOUR.fullmatch(hours) is not None


class CronTimes:
    """Seconds of minutes of hours of days.

    ``allows`` says whether a day belongs to it: given the day of the month, the month's first weekday (0 is Monday) and
    its length.
    """

    def __init__(
        self,
        minutes: Collection[int],
        hours: Collection[int],
        months: Collection[int],
        allows: Callable[[int, int, int], bool],
        seconds: Collection[int] = (0,),
    ) -> None:
        self._seconds = sorted(seconds)
        #: Of a day.
        self._minutes = [hour * 60 + minute for hour in sorted(hours) for minute in sorted(minutes)]
        self._months = months if self._minutes else ()
        self._allows = allows
        #: It may be decades away, and is asked for again and again.
        self._first_date = lru_cache(maxsize=64)(self._find_date)
        #: Days of a month, by its first weekday and its length: there are 28 kinds.
        self._days: dict[tuple[int, int], tuple[int, ...]] = {}

    def first(self, earliest: datetime) -> datetime | None:
        """Return the first of the times that isn't before ``earliest``; None if there is none."""
        if earliest.microsecond:
            earliest = earliest.replace(microsecond=0) + timedelta(seconds=1)
        days = self._days_of(earliest.year, earliest.month)
        if earliest.day in days:
            minutes, seconds = self._minutes, self._seconds
            minute, second = earliest.hour * 60 + earliest.minute, seconds[0]
            index = bisect_left(minutes, minute)
            if index < len(minutes) and minutes[index] == minute:
                nth = bisect_left(seconds, earliest.second)
                if nth < len(seconds):
                    second = seconds[nth]
                else:
                    index += 1
            if index < len(minutes):
                return earliest.replace(hour=minutes[index] // 60, minute=minutes[index] % 60, second=second)
        return self._on_later_day(earliest, days)

    def _on_later_day(self, earliest: datetime, days: tuple[int, ...]) -> datetime | None:
        """Return the first time after the day of ``earliest``, whose month has ``days``."""
        index = bisect_left(days, earliest.day + 1)
        if index < len(days):
            date: tuple[int, int, int] | None = (earliest.year, earliest.month, days[index])
        else:
            date = self._first_date(earliest.year * 12 + earliest.month)
        if date is None:
            return None
        first = self._minutes[0]
        return datetime(*date, first // 60, first % 60, self._seconds[0])

    def _find_date(self, first: int) -> tuple[int, int, int] | None:
        """Return the first date in a month, counted from year 0, or after it."""
        for number in range(first, min(first + _MOST_MONTHS, 12 * (_LAST_YEAR + 1))):
            days = self._days_of(number // 12, number % 12 + 1)
            if days:
                return number // 12, number % 12 + 1, days[0]
        return None

    def _days_of(self, year: int, month: int) -> tuple[int, ...]:
        if month not in self._months:
            return ()
        kind = _month(year, month)
        days = self._days.get(kind)
        if days is None:
            days = self._days[kind] = tuple(day for day in range(1, kind[1] + 1) if self._allows(day, *kind))
        return days
