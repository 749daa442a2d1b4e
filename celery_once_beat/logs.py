"""The package's loggers, and the ``extra`` of a line: a name for the event, and the window or entry that it is about.

``docs/logs.md`` lists the names. The prose of a line may change, so programs should read ``action``.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from celery.utils import log as celery_log

from .clock import steady
from .errors import SettingError
from .windows import Window, WindowKey, format_instant


class _Guarded(logging.Logger):
    """A logger that never raises, whatever its application's record factory, filters and logger class do.

    Python refuses an ``extra`` whose name is on the record already. Here the record keeps what it has, and the field is
    ``once_<name>``.
    """

    def makeRecord(  # noqa: N802, PLR0913, PLR0917  # as the base's
        self, name: str, level: int, fn: str, lno: int, msg: object, args: Any, exc_info: Any,
        func: str | None = None, extra: Mapping[str, object] | None = None, sinfo: str | None = None,
    ) -> logging.LogRecord:  # fmt: skip
        try:
            record = super().makeRecord(name, level, fn, lno, msg, args, exc_info, func, None, sinfo)
        except Exception:  # noqa: BLE001  # a user's factory
            _print_error()
            record = logging.LogRecord(name, level, fn, lno, msg, args, exc_info, func, sinfo)
        fields = record.__dict__
        for field, value in (extra or {}).items():
            fields.setdefault(f"once_{field}" if field in fields else field, value)
        return record

    def handle(self, record: logging.LogRecord) -> None:  # as the base's
        try:
            super().handle(record)
        except Exception:  # noqa: BLE001  # a user's filter or handler
            _print_error()


class Logged:
    """What was logged: a lasting trouble is one line, and another one if its reason changes or it comes back.

    After ``most`` others it is logged again: what is foreign must not fill the memory.
    """

    def __init__(self, most: float = 1000) -> None:
        self._most = most
        self._reasons: dict[object, object] = {}

    def is_new(self, what: object, why: object = None) -> bool:
        """Note the trouble of ``what``; returns False where it was noted for the same reason."""
        known = what in self._reasons and self._reasons[what] == why
        if len(self._reasons) >= self._most:
            self._reasons.clear()
        self._reasons[what] = why
        return not known

    def knows(self, what: object) -> bool:
        """Whether ``what`` has a trouble that was noted."""
        return what in self._reasons

    def has(self, why: object) -> bool:
        """Whether anything has its trouble for this reason."""
        return why in self._reasons.values()

    def end(self, what: object) -> None:
        """Note that ``what`` has no trouble any more."""
        self._reasons.pop(what, None)


class Outage:
    """Something that doesn't work: one line when it begins, one when the reason changes, and one when it is over."""

    def __init__(self, logger: logging.Logger, actions: tuple[str, str], over: str, **extra: Any) -> None:
        self._logger = logger
        #: Of the lines: that it doesn't work, that it works again.
        self._actions = actions
        self._over = over
        self._extra = extra
        #: Why it doesn't work; None while it does.
        self.why: str | None = None
        self._since = 0.0

    @property
    def lasts(self) -> bool:
        """Whether it doesn't work."""
        return self.why is not None

    @property
    def seconds(self) -> float:
        """For how long it hasn't worked."""
        return steady() - self._since if self.lasts else 0.0

    def begin(self, text: str, *arguments: object, why: str = "", error: BaseException | None = None) -> None:
        """Log that it doesn't work, unless that was logged for the same reason; ``error`` with its traceback."""
        if not self.lasts:
            self._since = steady()
        if self.why != why:
            self.why, text = why, f"once: {text}"
            self._logger.error(text, *arguments, exc_info=error, extra=about(self._actions[0], **self._extra))

    def end(self) -> None:
        """Say that it works again, if it didn't."""
        if self.lasts:
            seconds, self.why = self.seconds, None
            extra = about(self._actions[1], **self._extra)
            self._logger.warning("once: %s, after %.1f s", self._over, seconds, extra=extra)


def guarded(logger: logging.Logger) -> logging.Logger:
    """Return ``logger``, made one that never raises. What is raised in it is printed to stderr."""
    if not isinstance(logger, _Guarded):
        logger.__class__ = type("GuardedLogger", (_Guarded, type(logger)), {})
    return logger


def get_logger(name: str) -> logging.Logger:
    """Return Celery's logger of that name, made one that never raises."""
    return guarded(celery_log.get_logger(name))


def _print_error() -> None:
    if logging.raiseExceptions and sys.__stderr__:  # Celery replaces sys.stderr by a logger
        with suppress(Exception):
            traceback.print_exc(file=sys.__stderr__)


def about(action: str, window: Window | WindowKey | None = None, **more: Any) -> dict[str, Any]:
    """Return the ``extra`` of a line: ``action``, the window's ``entry`` and ``start`` (UTC, as in keys), and more.

    ``owner`` is the beat or the delivery that speaks, ``attempt`` the number of the execution, from 1.
    """
    extra: dict[str, Any] = {"action": action}
    if window is not None:
        extra.update(entry=window.entry, start=format_instant(window.start))
    return {**extra, **more}


@contextmanager
def ending_if_wrong(logger: logging.Logger) -> Iterator[None]:
    """End the process for a wrong setting, with one line and status 78, which supervisors don't restart."""
    try:
        yield
    except SettingError as exc:
        logger.critical("once: %s", exc, extra=about("setting_wrong"))
        raise SystemExit(os.EX_CONFIG) from None


def log_window(
    logger: logging.Logger,
    level: int,
    action: str,
    window: Window | WindowKey,
    text: str,
    *arguments: object,
    **more: Any,
) -> None:
    """Log what became of a window: "once: window … of … ``text``", with ``about(action, window, **more)``."""
    text, extra = "once: window %s of %r " + text, about(action, window, **more)
    logger.log(level, text, format_instant(window.start), window.entry, *arguments, extra=extra, stacklevel=2)
