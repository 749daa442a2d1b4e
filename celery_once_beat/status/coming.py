"""Which windows of an entry come next, which was the newest, and which ones an order would run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from celery_once_beat.beat import BeatEntry
from celery_once_beat.errors import UndecidedError
from celery_once_beat.rules import latest_start
from celery_once_beat.store import EntrySeen
from celery_once_beat.windows import format_instant

from .poll import each_window

#: How far a schedule that can only be asked again and again is asked for its next start.
_ASKED_FOR = timedelta(days=31)
_MICROSECOND = timedelta(microseconds=1)


def coming_starts(entry: BeatEntry, after: datetime) -> Iterator[datetime]:
    """Yield the starts after ``after`` (aware UTC); raises ScheduleError where the schedule can't say."""
    while True:
        try:
            start = entry.after(after)
        except UndecidedError as exc:
            if exc.asked < after + _ASKED_FOR:
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
    for old in reversed(entry.earlier):
        if start is not None and start > old.until:
            break
        start = None if old.entry is None else _newest_by(old.entry, min(now, old.until))
    return start


def _newest_by(entry: BeatEntry, until: datetime) -> datetime | None:
    start = latest_start(entry.source.schedule, until - entry.offset, anchor=entry.policy.anchor)
    return None if start is None else start + entry.offset


def about_windows(starts: Sequence[datetime]) -> str:
    """Say in a few words which windows start at ``starts``, which are in order."""
    if len(starts) <= 1:
        return "".join(map(format_instant, starts))
    return f"{len(starts)} windows, {format_instant(starts[0])} to {format_instant(starts[-1])}"


def starts_to_run(
    entry: BeatEntry, seen: EntrySeen, since: datetime, until: datetime, *, again: bool
) -> tuple[list[datetime], Counter[str]]:
    """Return the starts from ``since`` to ``until`` that an order runs, and how many it leaves out: open, or done.

    With ``again`` those that are done run too.
    """
    known = {window.start: window for window in each_window(seen)}
    skipped: Counter[str] = Counter()
    starts = []
    for start in entry.starts(since - _MICROSECOND, until):
        found = known.get(start)
        if found is not None and found.open is not None:
            skipped["open"] += 1
        elif found is not None and found.state == "done" and not again:
            skipped["done"] += 1
        else:
            starts.append(start)
    return starts, skipped
