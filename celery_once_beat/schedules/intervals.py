"""Schedules of fixed steps: ``every("90 min")``. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from typing import Any

from celery_once_beat.options import wrong
from celery_once_beat.rules import PureSchedule, calendar_start, find_zone, grid_number, grid_start, zone_name
from celery_once_beat.wording import A_SPAN, number_of, read_span, shown

from .local_times import read_instant

_DAY = timedelta(days=1)
#: A beat runs nothing that starts again sooner; 30 years.
LEAST_STEP, MOST_STEP = timedelta(milliseconds=1), timedelta(seconds=1e9)
MOST_MONTHS = 360
_CALENDAR = re.compile(r"(\d{1,3}) ?(month|year)s?", re.ASCII)
_UNITS = ((_DAY, "d"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min"), (timedelta(seconds=1), "s"))


class every(PureSchedule):  # noqa: N801  # as Celery's schedule
    """Starts in steps: seconds, a timedelta, or a text like ``"90 min"`` or ``"1 month"``; from 1 ms to 30 years.

    The steps are counted from ``anchor``: an instant, or a local time in ``tz``. None: from the Unix epoch, whole days
    from the midnight of Monday 1970-01-05, months from the first of January. Whole days, months and years keep the
    local time of day in ``tz``, by name or as itself; None: in the app's time zone. A month that lacks the anchor's day
    has the start on its last one. Raises SettingError.
    """

    def __init__(
        self, step: str | float | timedelta, *, anchor: str | datetime | None = None, tz: str | tzinfo | None = None
    ) -> None:
        super().__init__()
        #: A time, or a number of months.
        self.step = _read_step(step)
        self.local = isinstance(self.step, int) or not self.step % _DAY
        self.zone = None if tz is None else find_zone(tz)
        #: Aware UTC; None: the epoch.
        self.anchor = None if anchor is None else read_instant("every, anchor", anchor, tz)
        self._origin = None if self.anchor is None else self.anchor.replace(tzinfo=None)

    def start_after(self, after: datetime) -> datetime | None:
        """Return the first start after ``after``, on the grid."""
        if isinstance(self.step, int):
            return calendar_start(self.step, self.tz, after, self._origin)
        return grid_start(self.step, self.tz if self.local else None, after, self._origin)

    def number(self, after: datetime, until: datetime) -> int | None:
        """Return how many starts there are, by dividing; None for those that follow a wall clock."""
        return None if isinstance(self.step, int) else grid_number(self.step, after, until, self._origin)

    def words(self) -> str:
        """Return the step; where it has more, all of it."""
        return f"every {step_text(self.step)}" if self.anchor is None and self.zone is None else shown(self)

    def made_of(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the step, and what else it has."""
        named = {} if self.anchor is None else {"anchor": self.anchor.isoformat()}
        return (step_text(self.step),), named if self.zone is None else {**named, "tz": zone_name(self.zone)}


def _read_step(step: object) -> timedelta | int:
    calendar = _CALENDAR.fullmatch(step.strip()) if isinstance(step, str) else None
    if calendar and 1 <= (months := int(calendar[1]) * (12 if calendar[2] == "year" else 1)) <= MOST_MONTHS:
        return months
    found = read_span(step)
    if found is None or not LEAST_STEP <= found <= MOST_STEP:
        is_line = isinstance(step, str) and (step.startswith("@") or len(step.split()) in (5, 6))
        hint = "; a cron line goes into cron()" if is_line else ""
        raise wrong("every", step, f"seconds, a timedelta or {A_SPAN}, '1 month'; 1 ms to 30 years{hint}")
    return found


def step_text(step: timedelta | int) -> str:
    """Return a text that reads as the step: in the largest unit of which it is a whole number, else in seconds."""
    if isinstance(step, int):
        return number_of(step, "month")
    for size, unit in _UNITS:
        if step >= size and not step % size:
            return f"{step // size} {unit}"
    return f"{step.total_seconds()!r} s"
