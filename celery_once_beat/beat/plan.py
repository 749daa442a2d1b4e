"""What a due entry claims next. Its starts are searched for in short slices of time, and made into steps."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from celery_once_beat.clock import steady
from celery_once_beat.errors import ScheduleError, UndecidedError
from celery_once_beat.rules import Step, next_steps
from celery_once_beat.wording import shown

if TYPE_CHECKING:
    from .entry import BeatEntry

_BEGINNING = datetime.min.replace(tzinfo=timezone.utc)
#: Seconds of searching for one entry's starts before the other entries are served.
_SLICE = 0.05
#: A plan that is older is made anew: what was on time may be late by now.
_LASTS = timedelta(seconds=5)
#: When a polled schedule is asked again: at the soonest, at the latest, and if it doesn't say, as by Celery's beat.
_LEAST_WAIT, _MOST_WAIT = timedelta(seconds=0.1), timedelta(days=366)
_ANY_WAIT = timedelta(seconds=300)


class Plan:
    """The next steps of one entry, and the starts that were found for them. No start is searched for twice."""

    __slots__ = ("_cursor", "_made_at", "_starts", "_steps", "searching")

    def __init__(self, cursor: datetime) -> None:
        self._cursor = cursor
        self._steps: deque[Step] = deque()
        self._made_at = _BEGINNING
        #: Those up to the cursor are dropped at the next search.
        self._starts: list[datetime] = []
        #: Not all that is due has been found yet: the next :meth:`step` continues the search.
        self.searching = False

    def step(self, entry: BeatEntry, now: datetime) -> Step | None:
        """Return what to claim next; None if nothing is due or, while ``searching``, found. Raises ScheduleError."""
        if entry.progress.unanswered is None and abs(now - self._made_at) > _LASTS:
            self.drop()
        if not self._steps:
            self._steps.extend(self._find(entry, now))
            self._made_at = now
        return self._steps[0] if self._steps else None

    def repeat(self, step: Step) -> None:
        """Take ``step`` once more, before anything else."""
        self._steps = deque([step])

    def drop(self) -> None:
        """Plan anew what is due."""
        self._steps.clear()

    def move(self, cursor: datetime) -> bool:
        """Continue from ``cursor``; returns whether anything is left of the plan."""
        if self._steps and self._steps[0].start > cursor != self._cursor:
            self.drop()  # another beat claimed: what was to be passed over is no longer the same
        while self._steps and self._steps[0].start <= cursor:
            self._steps.popleft()
        passed = bisect_right(self._starts, cursor)
        if cursor != self._cursor and cursor not in self._starts[passed - 1 : passed]:
            self._starts.clear()  # the cursor is no start that was found, so others may follow it
        self._cursor = cursor
        return bool(self._steps) or passed < len(self._starts)

    def _find(self, entry: BeatEntry, now: datetime) -> Iterable[Step]:
        del self._starts[: bisect_right(self._starts, self._cursor)]
        self.searching = self._search(entry, now)
        return next_steps(self._starts, now, entry.policy, more=self.searching)

    def _search(self, entry: BeatEntry, until: datetime) -> bool:
        """Look for starts up to ``until``, for a short time; returns whether there may be more."""
        if not self._starts:
            entry.timetable.forget()
        began = steady()
        while True:
            try:
                start = entry.after(self._starts[-1] if self._starts else self._cursor)
            except UndecidedError as exc:
                return exc.asked + entry.timetable.offset <= until
            if start is None or start > until:
                return False
            self._starts.append(start)
            if steady() - began > _SLICE:
                return True


class Polling(Plan):
    """The plan of a polled schedule, which is asked in real time whether it is due. It lasts until the next load."""

    __slots__ = ("ask_at",)

    def __init__(self, cursor: datetime) -> None:
        super().__init__(cursor)
        #: When the schedule is asked again; None: it hasn't been asked since the entry was loaded.
        self.ask_at: datetime | None = None

    @property
    def next(self) -> datetime:
        """When it is asked. A window that another beat began after this one had asked puts off the next question."""
        if self.ask_at is None:
            return self._cursor
        return self.ask_at + max(self._cursor - self._made_at, timedelta(0))

    def move(self, cursor: datetime) -> bool:
        """As the base's; it is never done."""
        super().move(cursor)
        return True

    def _find(self, entry: BeatEntry, now: datetime) -> Iterable[Step]:
        """Ask whether it is due; if it is, plan a window that starts ``now``.

        Its last run is the cursor: the newest window of any beat. Two beats that find it due claim from the same
        cursor, so one of them wins, and both ask again when the answer said to. A beat that has just loaded the entry
        doesn't know what the others were told: it leaves the interval of the newest window to them.
        """
        if now <= self._cursor:  # another beat's clock is a little ahead
            self.ask_at = self._cursor + _LEAST_WAIT
            return
        due, wait = _ask(entry.when, self._cursor)
        first, self.ask_at = self.ask_at is None, now + wait
        if due and first and self._cursor != entry.since and self._cursor + wait > now:
            due, self.ask_at = False, self._cursor + wait
        if due:
            yield Step(now, run=True)


def _ask(when: Any, last: datetime) -> tuple[bool, timedelta]:
    """Ask a polled schedule that ran at ``last``: whether it is due, and how long to wait before it is asked again."""
    answer = when.is_due(last.astimezone(getattr(when, "tz", timezone.utc)))
    try:
        due, seconds = answer
        wait = _ANY_WAIT if seconds is None else timedelta(seconds=min(seconds, _MOST_WAIT.total_seconds()))
    except (TypeError, ValueError, OverflowError):  # ValueError: NaN
        raise ScheduleError(
            f"{shown(when)}, is_due: found {shown(answer)}, expected whether it is due, and seconds to wait"
        ) from None
    return bool(due), max(wait, _LEAST_WAIT)
