"""Which windows of an entry come next."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from celery_once_beat.beat import BeatEntry, Timetable
from celery_once_beat.errors import UndecidedError
from celery_once_beat.rules import PureSchedule

#: How far a schedule that can only be asked again and again is asked for its next start.
_ASKED_FOR = timedelta(days=31)
#: And how often one of the package's own is. One that leaves out what it starts goes through thousands each time.
_MOST_LOOKS = 60


def coming_starts(entry: BeatEntry | Timetable, after: datetime) -> Iterator[datetime]:
    """Yield the starts after ``after`` (aware UTC); raises ScheduleError where the schedule can't say.

    UndecidedError: it leaves out all for a month, or too many.
    """
    looks = 0
    while True:
        try:
            start = entry.after(after)
        except UndecidedError as exc:
            looks += 1
            if exc.asked < after + _ASKED_FOR and not (looks > _MOST_LOOKS and isinstance(entry.when, PureSchedule)):
                continue
            raise
        if start is None:
            return
        yield start
        if entry.one_off:
            return
        after = start
