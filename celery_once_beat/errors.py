"""Everything this package raises, under one root.

A message says what was found, what was expected and where to change it; it never carries a password.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

__all__ = (
    "DatabaseUnavailableError",
    "HeaderError",
    "NewerVersionError",
    "NotAppliedError",
    "OnceError",
    "ScheduleError",
    "SettingError",
    "StoreDataError",
    "StoreUnavailableError",
    "UncertainWriteError",
    "UndecidedError",
    "UnknownScheduleError",
    "VersionConflictError",
)


class OnceError(Exception):
    """Root of all errors of celery-once-beat."""


class SettingError(OnceError, ValueError):
    """A setting, an entry's ``once`` option or a task attribute isn't what it has to be."""


class ScheduleError(OnceError):
    """A schedule can't say when it starts next: it raised, or its next start doesn't come after the last."""


class UndecidedError(ScheduleError):
    """A schedule was asked as often as one call may ask. It isn't due up to ``asked``; the next call goes on there."""

    def __init__(self, text: str, asked: datetime) -> None:
        super().__init__(text)
        #: Aware UTC.
        self.asked = asked


class HeaderError(OnceError, ValueError):
    """A message's ``once_…`` headers aren't those of a window."""


class NewerVersionError(OnceError):
    """A message or a key was written by a newer version of this package; it isn't guessed at."""


class StoreUnavailableError(OnceError):
    """Redis can't be reached, or doesn't answer in time. The command may have been carried out."""


class UncertainWriteError(StoreUnavailableError):
    """Fewer replicas than ``once_beat_wait_replicas`` confirmed a write: a failover could undo it."""


class VersionConflictError(OnceError):
    """A schedule has another version than the caller expected; nothing was changed."""

    def __init__(self, text: str, current: Any = None) -> None:
        super().__init__(text)
        #: The schedule as it is, a ``celery_once_beat.Schedule``; None: there is none.
        self.current = current


class NotAppliedError(OnceError):
    """A file of schedules wasn't applied; its ``__cause__`` says why."""


class UnknownScheduleError(OnceError, LookupError):
    """There is no schedule of that name."""


class DatabaseUnavailableError(OnceError):
    """A scheduler's schedule is in a database that can't be asked."""


class StoreDataError(OnceError):
    """A key in Redis holds something that this package didn't put there."""
