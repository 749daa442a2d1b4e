"""When an entry's messages may run, and until when, by its options. Pure: no clock, no I/O."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from typing import Any

from celery.utils.time import maybe_iso8601

from celery_once_beat.errors import SettingError
from celery_once_beat.wording import shown

__all__ = ("Timing",)

#: The most seconds: Celery adds them to the time, and there is no year 10000.
_MOST = 200_000_000_000.0
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Timing:
    """What an entry's options say of when its messages run. A countdown goes before an eta, as in Celery."""

    #: Seconds, at least 0; None: none.
    countdown: float | None = None
    #: Aware; None: none.
    eta: datetime | None = None
    #: Seconds, or an aware instant; None: never.
    expires: float | datetime | None = None

    @classmethod
    def of(cls, entry: str, options: object, task: object, zone: tzinfo | None) -> Timing:
        """Validate the options of ``entry``; raises SettingError, which names the entry and the option.

        ``task`` is the task that it sends, or None; ``zone`` is that of naive datetimes, the app's.
        """
        if not isinstance(options, Mapping):
            raise _wrong(f"beat entry {entry!r}, options", options, "a dict")
        where = f"beat entry {entry!r}, options"
        headers = options.get("headers")
        if headers is not None and not isinstance(headers, Mapping):
            raise _wrong(f"{where}['headers']", headers, "a dict")
        countdown = _seconds(f"{where}['countdown']", options.get("countdown") or None)
        eta = _instant(f"{where}['eta']", options.get("eta") or None, zone)
        if "expires" in options:
            name, expires = f"{where}['expires']", options["expires"]
        else:
            name, expires = f"beat entry {entry!r}, expires of its task", getattr(task, "expires", None)
        if isinstance(expires, (datetime, str)):
            return cls(countdown, eta, _instant(name, expires or None, zone))
        return cls(countdown, eta, _seconds(name, expires))

    def delay(self, now: datetime, since: datetime | None = None) -> float:
        """Seconds from ``now`` until a message that is published now may run.

        A countdown counts from ``since``, None: from now. Both are aware.
        """
        if self.countdown is None:
            return 0.0 if self.eta is None else _until(self.eta, now)
        return self.countdown if since is None else max(self.countdown - _until(now, since), 0.0)

    def expires_after(self, now: datetime) -> float | None:
        """Seconds from ``now`` (aware) after which a message that is published now expires; None: never."""
        return _until(self.expires, now) if isinstance(self.expires, datetime) else self.expires


def _until(instant: datetime, now: datetime) -> float:
    return max((instant - now).total_seconds(), 0.0)


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    expected = "a number of seconds"
    if not isinstance(value, numbers.Real):
        raise _wrong(name, value, expected)
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not -_MOST <= seconds <= _MOST:  # also refuses NaN
        raise _wrong(name, value, f"{expected}, at most {_MOST:.0f}")
    return max(seconds, 0.0)


def _instant(name: str, value: Any, zone: tzinfo | None) -> datetime | None:
    if value is None:
        return None
    try:
        found: Any = maybe_iso8601(value) if isinstance(value, str) else value
        aware: datetime = found if found.utcoffset() is not None else found.replace(tzinfo=zone)
        _until(aware, _EPOCH)  # an exotic zone may refuse what is asked of it later
    except Exception as exc:  # whatever a stranger's zone raises
        raise _wrong(name, value, "a datetime, or its text in ISO 8601") from exc
    return aware


def _wrong(name: str, value: object, expected: str) -> SettingError:
    return SettingError(f"{name}: found {shown(value)}, expected {expected}")
