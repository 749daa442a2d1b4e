"""When one entry starts: by its schedule, in its time zone and spread, and by the definitions that it had before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery.schedules import crontab, schedule

from celery_once_beat.errors import ScheduleError, UndecidedError
from celery_once_beat.logs import about, get_logger
from celery_once_beat.rules import count_starts, is_polled
from celery_once_beat.schedules import Composed, describe
from celery_once_beat.windows import next_start
from celery_once_beat.wording import shown

from .guard import TookTooLong, within_time

if TYPE_CHECKING:
    from .entry import BeatEntry

logger = get_logger(__name__)

_END = datetime.max.replace(tzinfo=timezone.utc)
_TEN_DAYS = timedelta(days=10)
_THIRTY_DAYS = 30 * 86_400.0
_THREE_YEARS = 3 * 366 * 86_400.0
#: A schedule whose starts lie closer together, twice in a row, is a mistake: it would fill the queue for ever.
_LEAST_APART = timedelta(milliseconds=1)


class Earlier:
    """An earlier definition of an entry that was set at run time. ``until`` (aware UTC) is its last instant."""

    def __init__(self, until: datetime, make: Callable[[], BeatEntry | None]) -> None:
        self.until = until
        self._make = make
        self._logged = False

    @cached_property
    def entry(self) -> BeatEntry | None:
        """The entry that it makes; None: there was none, or it can't be read.

        Made when it is first asked for, since mostly nothing is owed by it.
        """
        return self._make()

    def next(self, start: datetime) -> datetime | None:
        """Return its first start after ``start``; None where there is none up to ``until``, or it can't say."""
        if self.entry is None:
            return None
        try:
            found = self.entry.after(start)
        except UndecidedError as exc:
            if exc.asked > self.until:
                return None
            raise
        except ScheduleError as exc:  # it must not hold up the definition that took its place
            if not self._logged:
                self._logged = True
                log_earlier(self.entry.name, "can't say when it starts", exc)
            return None
        return found if found is not None and found <= self.until else None


def log_earlier(name: str, trouble: str, why: object) -> None:
    """Log that windows which an earlier definition owes don't run."""
    text = f"once: schedule %r: an earlier version {trouble}, its windows don't run: %s"
    logger.error(text, name, why, extra=about("schedule_unreadable", entry=name))


class Timetable:
    """The starts of one entry. Instants are aware UTC. Whatever a schedule raises is a ScheduleError."""

    __slots__ = ("_asked", "_last", "anchor", "earlier", "offset", "one_off", "polled", "when")

    def __init__(self, when: Any, anchor: datetime | None, offset: timedelta, *, one_off: bool) -> None:
        #: The schedule.
        self.when = when
        #: It moves the grid of an interval.
        self.anchor = anchor
        #: How much later the entry starts than its schedule says (``spread``).
        self.offset = offset
        #: Only the first window after its definition was loaded is one.
        self.one_off = one_off
        #: The schedule is asked in real time whether it is due; see ``plan``.
        self.polled = is_polled(when)
        #: Its earlier definitions, oldest first. Each has the windows up to its ``until``.
        self.earlier: Sequence[Earlier] = ()
        #: What :meth:`after` was asked last, and its answer, which is also that for what lies between the two.
        self._last: tuple[datetime, datetime | None] | None = None
        #: A start after which the schedule is undecided, and up to when it was asked.
        self._asked: tuple[datetime, datetime] | None = None

    def after(self, start: datetime) -> datetime | None:
        """Return the first start after ``start``; None where there is none, or it is polled. Raises ScheduleError.

        UndecidedError: there is none up to where the schedule was asked; the next call asks on.
        """
        if self.polled:
            return None
        if self._last is None or not self._last[0] <= start < (self._last[1] or _END):
            self._last = start, self._next(start)
        return self._last[1]

    def forget(self) -> None:
        """Ask the schedule again, since it may say another thing by now."""
        self._last = None

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many starts there are after ``after`` up to ``until``, by the definitions of their times."""
        number = 0
        for old in self.earlier:
            if after < old.until:
                if old.entry is not None:
                    number += old.entry.timetable.count(after, min(until, old.until))
                after = min(until, old.until)
        return number + count_starts(self.when, after - self.offset, until - self.offset, anchor=self.anchor)

    def left_out(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, str]]:
        """Yield the instants after ``after`` up to ``until`` that its schedule leaves out, each with why, in order.

        Raises ScheduleError.
        """
        if isinstance(self.when, Composed):
            for start, why in self.when.left_out(after - self.offset, until - self.offset):
                yield start + self.offset, why

    def check_apart(self, start: datetime, following: datetime | None) -> None:
        """Raise ScheduleError if starts follow too closely twice in a row: ``following`` and the next one."""
        if following is not None and following - start < _LEAST_APART:
            third = self._next(following)
            if third is not None and third - following < _LEAST_APART:
                raise ScheduleError(
                    f"{shown(self.when)} starts again {(third - following).microseconds} µs after a start, "
                    "expected at least 1 ms"
                )

    def ttl(self, now: datetime) -> float:
        """Seconds for which the store remembers the entry: 30 days, or three intervals if longer.

        Three years where it is polled: nobody knows its intervals.
        """
        if self.polled:
            return _THREE_YEARS
        if _starts_each_ten_days(self.when):
            return _THIRTY_DAYS
        try:
            first = self._next(now)
            second = first and self._next(first)
        except ScheduleError:
            return _THIRTY_DAYS  # Entries.advance logs it
        if first is None:
            return _THIRTY_DAYS
        interval = max((second or first) - first, first - now)
        return max(_THIRTY_DAYS, 3 * interval.total_seconds())

    def _next(self, start: datetime) -> datetime | None:
        for old in self.earlier:
            if start < old.until:
                owed = old.next(start)
                if owed is not None:
                    return owed
                start = old.until
        asked = self._asked[1] if self._asked is not None and self._asked[0] == start else None
        try:
            # Celery's plain interval is one sum, in no code of a user's.
            with nullcontext() if type(self.when) is schedule else within_time():
                found = next_start(self.when, start - self.offset, anchor=self.anchor, asked=asked)
            return None if found is None else found + self.offset
        except UndecidedError as exc:
            self._asked = start, exc.asked
            raise
        except TookTooLong as exc:
            raise ScheduleError(f"{describe(self.when)} can't say when it starts next: {exc}") from None
        except OverflowError:  # past the last datetime
            return None


def _starts_each_ten_days(when: Any) -> bool:
    """Whether that is plain to see, as of most; any other schedule has to be asked when it starts."""
    kind: Any = type(when)
    if kind is schedule:
        return bool(when.run_every < _TEN_DAYS)
    # On every date, so on each of its days of the week.
    return kind is crontab and len(when.month_of_year) == 12 and len(when.day_of_month) == 31  # noqa: PLR2004
