"""The base of the package's own schedules: values that compute their starts. No I/O, no clock.

:func:`~celery_once_beat.rules.next_start` asks ``start_after``. A stock beat asks ``is_due``, which is made of that: so
it runs the same instants.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone, tzinfo
from functools import partial
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedstate, schedule
from typing_extensions import Self

from celery_once_beat.errors import UndecidedError
from celery_once_beat.wording import shown

from .wall_clock import naive_utc

#: What a stock beat waits for a start that never comes. At an answer of None it stops, with all its entries.
_NEVER = timedelta(days=10_000).total_seconds()


class PureSchedule(BaseSchedule):
    """A schedule that is a value: its starts follow from what it was made of.

    Two that were made of the same are equal. Its repr makes it again.
    """

    #: Its own time zone; None: that of the app.
    zone: tzinfo | None = None
    #: It starts at local times.
    local = False

    @property
    def placed(self) -> bool:
        """Whether all of its local times are in a known zone."""
        return not self.local or self.zone is not None

    def start_after(self, after: datetime) -> datetime | None:
        """Return the first start after ``after``, both naive, in UTC; None: there is none.

        UndecidedError: there is none up to its ``asked``; ask from there to go on.
        """
        raise NotImplementedError

    def number(self, after: datetime, until: datetime) -> int | None:  # noqa: ARG002  # where a subclass can tell
        """Return how many starts there are after ``after`` up to ``until``; None: they have to be gone through."""
        return None

    def made_of(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that make it again."""
        raise NotImplementedError

    def in_zone(self, zone: tzinfo) -> Self:
        """Return it with all that names no zone in ``zone``."""
        if self.placed:
            return self
        positional, named = self.made_of()
        return type(self)(*positional, **{**named, "tz": zone})

    def rule(self) -> str:
        """Return what says when it starts: the same text in every process, another one for another schedule."""
        return repr(self.in_zone(self.tz))

    def zones(self) -> Iterable[tzinfo | None]:
        """Return the time zones whose rules decide when it starts."""
        return (self.tz,) if self.local else ()

    def words(self) -> str:
        """Say in a few words when it starts, for people."""
        return shown(self)

    @property  # type: ignore[override]  # celery-types has it as a str
    def tz(self) -> tzinfo:
        """The time zone of its local times. Not cached: that would keep the zone of the first app that asks."""
        if self.zone is not None:
            return self.zone
        zone: tzinfo = self.app.timezone
        return zone

    @tz.setter
    def tz(self, zone: tzinfo) -> None:
        self.zone = zone

    def remaining_estimate(self, last_run_at: datetime) -> timedelta | None:  # type: ignore[override]
        """Return the time from now to the first start after ``last_run_at``; None where there is none."""
        start = self.start_after(self._instant(last_run_at))
        return None if start is None else start - self._instant(self.now())

    def is_due(self, last_run_at: datetime) -> schedstate:
        """Return what a stock beat asks: whether a start has passed, and the seconds to the next one."""
        now = self._instant(self.now())
        due = False
        try:
            start = self.start_after(self._instant(last_run_at))
            due = start is not None and start <= now
            if due:
                start = self.start_after(now)
        except UndecidedError as undecided:
            start = naive_utc(undecided.asked)
        seconds: Any = _NEVER if start is None else max((start - now).total_seconds(), 0)
        return schedstate(due, seconds)

    def _instant(self, given: datetime) -> datetime:
        return naive_utc(given if given.utcoffset() is not None else given.replace(tzinfo=timezone.utc))

    def __eq__(self, other: object) -> bool:
        """Whether it was made of the same."""
        return type(other) is type(self) and repr(other) == repr(self)

    def __hash__(self) -> int:
        """By what it was made of."""
        return hash(repr(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Be made anew of the same."""
        positional, named = self.made_of()
        return partial(type(self), *positional, **named), ()

    def __repr__(self) -> str:
        """Return the text that makes it again, the same in every process."""
        positional, named = self.made_of()
        words = [*map(repr, positional), *(f"{name}={value!r}" for name, value in named.items())]
        return f"{type(self).__name__}({', '.join(words)})"


def in_zone(when: BaseSchedule, zone: tzinfo) -> BaseSchedule:
    """Return a schedule in a time zone, where it follows one and names none: a copy, or itself.

    Celery's crontabs and intervals follow that of their app.
    """
    if isinstance(when, PureSchedule):
        return when.in_zone(zone)
    if not isinstance(when, (crontab, schedule)):
        return when
    placed: Any = copy.copy(when)
    placed.app = vars(when).get("_app")  # not .app, which makes one where there is none
    placed.tz = zone
    result: BaseSchedule = placed
    return result
