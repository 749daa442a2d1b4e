"""A schedule that starts once."""

from __future__ import annotations

from datetime import datetime, timezone, tzinfo
from typing import Any

from celery_once_beat.rules import PureSchedule
from celery_once_beat.windows import format_instant

from .local_times import read_instant


class OneOff(PureSchedule):
    """Starts once, at an aware datetime; ValueError for a naive one. ``at`` reads a text."""

    def __init__(self, at: datetime, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if at.utcoffset() is None:
            raise ValueError(f"found {at!r}, expected a datetime with a time zone")
        #: The instant, in UTC, by the name that it has in django-celery-beat's ``clocked``.
        self.clocked_time = at.astimezone(timezone.utc)

    def start_after(self, after: datetime) -> datetime | None:
        """Return the instant, if it is later."""
        start = self.clocked_time.replace(tzinfo=None)
        return start if start > after else None

    def made_of(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the instant."""
        return (self.clocked_time,), {}

    def words(self) -> str:
        """Return the instant."""
        return format_instant(self.clocked_time)

    def __repr__(self) -> str:
        """Return the call of :func:`at` that makes it again."""
        return f"at({self.clocked_time.isoformat()!r})"


def at(when: str | datetime, *, tz: str | tzinfo | None = None) -> OneOff:
    """Return the schedule that starts once: at ``when``, a datetime or its text in ISO 8601.

    ``tz`` is the time zone of one that names none. A local time that the clock skips is the first instant after the
    gap, one that it shows twice is the first of the two. Raises SettingError.
    """
    return OneOff(read_instant("at", when, tz))
