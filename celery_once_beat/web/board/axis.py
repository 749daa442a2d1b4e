"""The axis of time that all rows of the board share, and what stands in each of its columns. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo

from celery_once_beat.lookup import WindowSeen
from celery_once_beat.outcomes import OPEN, OUTCOMES, STATES
from celery_once_beat.status import WindowStatus

from . import words

_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Zoom:
    """How much time the axis shows: ``columns`` columns, each ``step`` long."""

    name: str
    label: str
    step: timedelta
    columns: int
    #: Each so many columns the axis says the time.
    marked: int


_ZOOMS = (
    Zoom("hour", "1 h", timedelta(minutes=2), 30, 5),
    Zoom("6h", "6 h", timedelta(minutes=15), 24, 4),
    Zoom("day", "1 day", _HOUR, 24, 2),
    Zoom("week", "7 days", timedelta(hours=6), 28, 4),
    Zoom("month", "31 days", _DAY, 31, 2),
)
ZOOMS = {zoom.name: zoom for zoom in _ZOOMS}


def _urgency(state: str) -> tuple[object, ...]:
    urgency = OUTCOMES[state].urgency if state in OUTCOMES else 0
    return -urgency, state != "overdue", state not in OPEN, state == "done"


#: The most urgent state has the lowest rank: it is what a column shows that has several.
_RANK = {state: rank for rank, state in enumerate(sorted(STATES, key=_urgency))}


@dataclass(frozen=True)
class Axis:
    """The columns up to now. Two of the same zoom are equal while none has passed."""

    zoom: Zoom
    #: Where the first column begins, where each next one does, and where the last one ends; aware UTC.
    bounds: tuple[datetime, ...]
    #: What the axis says above its columns, by column; columns count from 1.
    marks: tuple[tuple[int, str], ...]
    #: Of all times that are shown.
    zone: tzinfo

    @property
    def begin(self) -> datetime:
        """Where the first column begins."""
        return self.bounds[0]

    def column(self, instant: datetime) -> int:
        """Return the column in which an instant lies, from 1; 0: it is before the first one."""
        return min(bisect_right(self.bounds, instant), self.zoom.columns)

    def place(self, instant: datetime) -> float:
        """Return how many columns, and parts of one, lie before an instant."""
        if not self.begin < instant < self.bounds[-1]:
            return 0.0 if instant <= self.begin else float(self.zoom.columns)
        column = self.column(instant)
        begin, end = self.bounds[column - 1 : column + 1]
        return column - 1 + (instant - begin) / (end - begin)


@dataclass(frozen=True)
class Cell:
    """What one entry, or one group of them, has in one column."""

    column: int
    #: A name of ``outcomes.STATES``: the most urgent of its windows'.
    state: str
    #: Newest first.
    windows: Sequence[WindowSeen]

    @property
    def past_deadline(self) -> int:
        """How many of them ended past their deadline."""
        return sum(map(ended_late, self.windows))

    @property
    def counts(self) -> list[tuple[str, int]]:
        """How many windows stand how, the most urgent first."""
        counted = Counter(words.state_of(seen.state).name for seen in self.windows)
        return sorted(counted.items(), key=lambda item: _RANK[item[0]])


def make_axis(zoom: Zoom, now: datetime, zone: tzinfo) -> Axis:
    """Return the axis whose last column has ``now`` in it.

    Columns of up to an hour are all equally long. Longer ones follow the local day: where the clocks change, one is an
    hour shorter or longer.
    """
    there = now.astimezone(zone).replace(tzinfo=None)
    since_midnight = there - there.replace(hour=0, minute=0, second=0, microsecond=0)
    into = since_midnight % zoom.step
    last = there - into
    steps = range(1 - zoom.columns, 2)
    if zoom.step <= _HOUR:
        begin = now.astimezone(timezone.utc) - into
        bounds = tuple(begin + number * zoom.step for number in steps)
    else:
        naive = (last + number * zoom.step for number in steps)
        bounds = tuple(start.replace(tzinfo=zone).astimezone(timezone.utc) for start in naive)
    return Axis(zoom, bounds, tuple(_marks(zoom, [bound.astimezone(zone) for bound in bounds[:-1]])), zone)


def _marks(zoom: Zoom, starts: Sequence[datetime]) -> Iterable[tuple[int, str]]:
    """Say the time where it is round: a date where a day begins."""
    every = zoom.step * zoom.marked
    for column, start in enumerate(starts, 1):
        since_midnight = timedelta(hours=start.hour, minutes=start.minute)
        if zoom.step == _DAY:
            if (len(starts) - column) % zoom.marked == 0:
                yield column, f"{start.day} {start:%b}" if start.day <= zoom.marked or column == 1 else f"{start.day}"
        elif since_midnight == timedelta(0):
            yield column, f"{start:%a} {start.day}" if zoom.step > _HOUR else f"{start.day} {start:%b}"
        elif since_midnight % every == timedelta(0) and zoom.step <= _HOUR:
            yield column, f"{start:%H:%M}"


def cells_of(windows: Iterable[WindowSeen], axis: Axis) -> list[Cell]:
    """Return what stands in each column that has windows, the oldest first; ``windows`` come newest first."""
    by_column: dict[int, list[WindowSeen]] = {}
    for seen in windows:
        column = axis.column(seen.start)
        if column:
            by_column.setdefault(column, []).append(seen)
    return [Cell(column, worst(seen.state for seen in found), found) for column, found in sorted(by_column.items())]


def ended_late(seen: WindowSeen) -> bool:
    """Whether a window ended past its deadline."""
    return seen.done_by is not None and WindowStatus.of(seen).past_deadline() is not None


def bars_of(windows: Iterable[WindowSeen], axis: Axis) -> list[tuple[str, float, float]]:
    """Return a bar for each execution that took a column or more: its state, its left end and its width, in columns.

    What runs has no end yet: its bar goes on to the end of the axis.
    """
    bars = []
    for seen in windows:
        known = seen.past or seen.open
        if known is None or known.begun is None or not (seen.past or seen.state == "running"):
            continue
        left = axis.place(known.begun)
        width = axis.place(seen.past.closed if seen.past else axis.bounds[-1]) - left
        if width >= 1 or (width and not seen.past):
            bars.append((words.state_of(seen.state).name, round(left, 3), round(width, 3)))
    return bars


def worst(states: Iterable[str]) -> str:
    """Return the most urgent of some states."""
    return min((words.state_of(state).name for state in states), key=_RANK.__getitem__)
