"""What an entry may set, and which of the windows that have passed run. Pure: no clock, no I/O.

Times are seconds, instants aware UTC datetimes.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any, cast

from celery.schedules import BaseSchedule, crontab, schedule

from celery_once_beat.errors import SettingError
from celery_once_beat.settings import CATCH_UP, Settings, check_choice, check_count, check_seconds
from celery_once_beat.wording import did_you_mean, shown

from .starts import every_hour, naive_utc

__all__ = ("EntryPolicy", "Step", "check_anchor", "fingerprint", "next_steps", "spread_offset")

#: Windows passed over that are claimed while more of them are being looked for: the store then knows how far it got.
_MOST_AT_ONCE = 10_000
#: Of the windows passed over, the newest are named, so that their run keys are looked at: older leases have ended.
_MOST_LISTED = 1000
#: Claims of one entry planned with one look at the clock.
_MOST_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class EntryPolicy:
    """An entry's limits: what its ``once`` option says, else its task's attributes, else the settings."""

    catch_up: str
    grace: float | None
    max_catch_up: int
    tolerance: float
    start_timeout: float
    max_attempts: int
    #: False: a window whose execution died is dropped (``once_recover`` of the task).
    recover: bool = True
    #: Where an interval's grid starts; None: see :func:`~celery_once_beat.windows.next_start`.
    anchor: datetime | None = None
    #: Whether workers close the entry's windows; None: as the task says.
    tracked: bool | None = None
    #: Seconds after which a window that failed runs again, 0: never; None: as its task says, in the worker.
    retry_failed_after: float | None = None
    #: ``allow`` or ``skip``; None: as its task says, in the worker.
    overlap: str | None = None
    #: Seconds over which entries of the same schedule are spread; see :func:`spread_offset`.
    spread: float = 0.0

    @classmethod
    def of(cls, entry: str, once: object, task: object, settings: Settings) -> EntryPolicy:
        """Validate the ``once`` option of ``entry``; raises SettingError naming entry and key."""
        if once is None:
            once = {}
        if not isinstance(once, Mapping):
            raise SettingError(
                f"beat entry {entry!r}, option 'once': found {type(once).__name__}, expected a dict like "
                "{'catch_up': 'all'}"
            )
        for key in once:
            if key not in _CHECKS:
                hint = did_you_mean(str(key), _CHECKS, repr)
                raise SettingError(
                    f"beat entry {entry!r}, option 'once': unknown key {key!r:.80}{hint}, "
                    f"expected one of {', '.join(_CHECKS)}"
                )
        values: dict[str, Any] = {}
        for field in fields(cls):
            name = field.name
            of_task = getattr(task, f"once_{name}", None) if name in ("max_attempts", "recover") else None
            if name in once:
                values[name] = _CHECKS[name](f"beat entry {entry!r}, once[{name!r}]", once[name])
            elif of_task is not None:
                values[name] = of_task
            elif field.default is MISSING:
                values[name] = getattr(settings, name)
        return cls(**values)


def check_anchor(name: str, value: Any) -> datetime | None:
    """Return an anchor as an aware datetime; raises SettingError, which begins with ``name``."""
    if value is None:
        return None
    try:
        # Where options are kept as JSON, in a database's rows say, it is a text.
        instant = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
        naive_utc(instant)
    except (AttributeError, TypeError, ValueError, OverflowError):  # OverflowError: beyond the calendar, in UTC
        raise SettingError(
            f"{name}: found {shown(value)}, expected a datetime with a time zone, or its text in ISO 8601"
        ) from None
    return cast("datetime", instant)


def spread_offset(entry: str, spread: float) -> timedelta:
    """Return a fixed delay for ``entry``, of 0 to ``spread`` seconds in whole ms, derived from its name."""
    share = int.from_bytes(hashlib.blake2b(entry.encode(), digest_size=8).digest(), "big") / 2**64
    return timedelta(milliseconds=int(share * spread * 1000))


_CHECKS = {
    "catch_up": check_choice(*CATCH_UP),
    "grace": check_seconds(0, optional=True),
    "max_catch_up": check_count(0),
    "start_timeout": check_seconds(0.1),
    "max_attempts": check_count(1),
    "anchor": check_anchor,
    "tracked": check_choice(True, False),
    "recover": check_choice(True, False),
    "retry_failed_after": check_seconds(0),
    "overlap": check_choice("allow", "skip"),
    "spread": check_seconds(0),
}


def fingerprint(task: str, when: object, anchor: datetime | None, spread: float = 0.0) -> str:
    """Return a short text that is the same for the same task and schedule in every process, however written."""
    parts = [task, anchor.astimezone(timezone.utc).isoformat() if anchor else "", type(when).__name__]
    if isinstance(when, crontab):
        cron_fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        parts += [repr(sorted(getattr(when, name))) for name in cron_fields]
        parts += [str(every_hour(when)), str(when.tz)]
    elif isinstance(when, schedule):
        run_every: timedelta = when.run_every  # type: ignore[attr-defined]  # celery-types lacks it
        parts.append(repr(run_every))
        if run_every and not run_every % timedelta(days=1):
            parts.append(str(when.tz))  # whole days fall on the zone's midnights
    elif isinstance(when, BaseSchedule) and " at 0x" not in repr(when):
        parts.append(repr(when))
    if spread:
        parts.append(f"spread {spread}")
    if getattr(when, "one_off", False):
        parts.append("one-off")
    return hashlib.sha256("\x00".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


@dataclass(frozen=True)
class Step:
    """The next claim of an entry: ``start`` is published if ``run``, else missed like those before it."""

    start: datetime
    run: bool
    #: The newest of the windows passed over before ``start``, in order, and how many there are in all.
    missed: tuple[datetime, ...] = ()
    missed_count: int = 0

    @property
    def all_missed(self) -> tuple[datetime, ...]:
        """As ``missed``, with ``start`` if that doesn't run either."""
        return self.missed if self.run else (*self.missed, self.start)

    @property
    def all_missed_count(self) -> int:
        """As ``missed_count``, with ``start`` if that doesn't run either."""
        return self.missed_count + (not self.run)


def next_steps(
    due: Sequence[datetime], now: datetime, policy: EntryPolicy, *, begin: int = 0, more: bool = False
) -> list[Step]:
    """Say what to claim next, in order, given the starts that are due from ``due[begin]`` on: in order, none after now.

    Where none is more than ``tolerance`` late, all run in order. Else ``catch_up`` says which: the newest of all that
    are due (``latest``), the newest ``max_catch_up`` of the late ones and those on time (``all``), or only those on
    time (``none``). Older than ``grace`` is missed.

    ``more``: further ones are due that aren't known yet. Returns [] if nothing is due, or nothing can be said yet, and
    not more steps than are worth planning with one look at the clock.
    """
    late = _count_before(due, begin, now, policy.tolerance)
    all_late_known = not more or late < len(due)
    old = begin if policy.grace is None else _count_before(due, begin, now, policy.grace)
    if policy.catch_up == "latest" and late > begin:
        # One that is late is kept until the newest is known: it says that only that one runs.
        first = late - 1 if more else max(len(due) - 1, old)
        decided = not more
    else:
        most = policy.max_catch_up if policy.catch_up == "all" else 0
        first = max(late - most, begin, old)
        decided = all_late_known
    passed = first - begin
    if first == len(due) or not decided:
        if not passed or (more and passed < _MOST_AT_ONCE):
            return []
        start = due[first - 1]
        return [Step(start, False, _newest(due, begin, first - 1), passed - 1)]
    steps = [Step(start, True) for start in due[first : first + _MOST_STEPS]]
    if passed:
        steps[0] = replace(steps[0], missed=_newest(due, begin, first), missed_count=passed)
    return steps


def _newest(due: Sequence[datetime], begin: int, end: int) -> tuple[datetime, ...]:
    return tuple(due[max(begin, end - _MOST_LISTED) : end])


def _count_before(due: Sequence[datetime], begin: int, now: datetime, seconds: float) -> int:
    """The index of the first that isn't more than ``seconds`` old."""
    return bisect_left(due, now - timedelta(seconds=seconds), begin)
