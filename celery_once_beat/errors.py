"""Everything this package raises. Errors have one root, ``OnceError``; ``WindowRecorded`` is no error.

A message says what was found, what was expected and where to change it; it never carries a password.
"""

from __future__ import annotations

import builtins
import os
import signal
import traceback
from datetime import datetime
from typing import Any

#: The class of what task groups raise; Python 3.10 has none.
EXCEPTION_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())


class OnceError(Exception):
    """Root of all errors of celery-once-beat."""

    #: With which a command ends.
    exit_status = os.EX_UNAVAILABLE


class SettingError(OnceError, ValueError):
    """A setting, an entry's ``once`` option or a task attribute isn't what it has to be."""

    exit_status = os.EX_CONFIG


class NoWindowError(SettingError):
    """An entry has no window that is as an order names it."""

    exit_status = 2


class ScheduleError(OnceError):
    """A schedule can't say when it starts next: it raised, or its next start doesn't come after the last."""

    exit_status = os.EX_CONFIG


class UndecidedError(ScheduleError):
    """A schedule was asked as often as one call may. It isn't due up to ``asked``: the next call continues there."""

    def __init__(self, text: str, asked: datetime) -> None:
        super().__init__(text)
        #: Aware UTC.
        self.asked = asked


class HeaderError(OnceError, ValueError):
    """A message's ``once_…`` headers aren't those of a window."""


class NewerVersionError(OnceError):
    """A message or a key was written by a newer version of this package; it isn't guessed at."""

    exit_status = os.EX_DATAERR


class StoreUnavailableError(OnceError):
    """Redis can't be reached, or doesn't answer in time. The command may have been carried out."""


class UncertainWriteError(StoreUnavailableError):
    """Fewer replicas than ``once_beat_wait_replicas`` confirmed a write: a failover could undo it."""


class VersionConflictError(OnceError):
    """A schedule has another version than the caller expected; nothing was changed."""

    exit_status = 1

    def __init__(self, text: str, current: Any = None) -> None:
        super().__init__(text)
        #: The schedule as it is, a ``celery_once_beat.Schedule``; None: there is none.
        self.current = current


class NotAppliedError(OnceError):
    """A file of schedules wasn't applied; its ``__cause__`` says why."""

    def __init__(self, text: str, cause: OnceError) -> None:
        super().__init__(text)
        self.exit_status = cause.exit_status


class UnknownScheduleError(OnceError, LookupError):
    """There is no schedule of that name."""

    exit_status = 2


class NotLoadedError(OnceError):
    """No beat has loaded the entry yet, or no longer: what was asked for needs one that has."""

    exit_status = 2


class DatabaseUnavailableError(OnceError):
    """A scheduler's schedule is in a database that can't be asked."""


class StoreDataError(OnceError):
    """A key in Redis holds something that this package didn't put there."""

    exit_status = os.EX_DATAERR


class RecordError(OnceError):
    """A window was asked for what it can't promise: outside of a transaction, or in a thread that knows no window."""


class WindowRecorded(BaseException):
    """An earlier execution has committed this window, so what follows in the body is done. Let it leave the body.

    A task's execution then ends as done, with the recorded result. So does a function of ``once``; a block ends there.
    It is no ``Exception``, so that neither ``except Exception`` nor ``autoretry_for`` takes it for a failure.
    """

    def __init__(self, text: str, window: Any, step: str, result: Any = None, recorded_at: str = "") -> None:
        super().__init__(text)
        #: The ``Window`` of the execution that is refused.
        self.window = window
        self.step = step
        #: As it was recorded; None where none was.
        self.result = result
        #: By the clock of the worker that recorded it, in UTC, like ``2026-11-21T05:36:00.000000Z``.
        self.recorded_at = recorded_at


class NoServerError(OnceError):
    """There is no server to start for tests, or for the demo; says what to install."""


def from_signal(error: BaseException) -> bool:
    """Whether a signal's handler raised it, as Celery's raise SystemExit: it is to end the process."""
    ending = signal.valid_signals() - {signal.SIGALRM}  # that one ends what takes too long
    handlers = [getattr(signal.getsignal(number), "__code__", None) for number in ending]
    in_handler = any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))
    # Python's own for Ctrl-C, which has no frame; Celery's commands set another.
    interrupted = isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return in_handler or interrupted
