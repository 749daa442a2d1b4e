"""Which windows of an entry come next, and which was the newest."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from celery_once_beat.beat import BeatEntry
from celery_once_beat.errors import UndecidedError
from celery_once_beat.rules import PureSchedule, latest_start

#: How far a schedule that can only be asked again and again is asked for its next start.
_ASKED_FOR = timedelta(days=31)
#: And how often one of the package's own is. One that leaves out what it starts goes through thousands each time.
_MOST_LOOKS = 60


def coming_starts(entry: BeatEntry, after: datetime) -> Iterator[datetime]:
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


def newest_start(entry: BeatEntry, now: datetime) -> datetime | None:
    """Return the newest start up to ``now`` (aware UTC), by the definition of its time; None where there is none."""
    start = _newest_by(entry, now)
    for old in reversed(entry.timetable.earlier):
        if start is not None and start > old.until:
            break
        start = None if old.entry is None else _newest_by(old.entry, min(now, old.until))
    return start


def _newest_by(entry: BeatEntry, until: datetime) -> datetime | None:
    if entry.timetable.polled:
        return None
    start = latest_start(entry.when, until - entry.offset, anchor=entry.policy.anchor)
    return None if start is None else start + entry.offset
