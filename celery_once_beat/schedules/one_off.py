"""A schedule that starts once."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from celery.schedules import BaseSchedule

from celery_once_beat.windows import format_instant

__all__ = ("OneOff",)


class OneOff(BaseSchedule):
    """Starts once, at an aware datetime, as ``clocked`` of django-celery-beat does; ValueError for a naive one."""

    def __init__(self, at: datetime, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if at.utcoffset() is None:
            raise ValueError(f"found {at!r}, expected a datetime with a time zone")
        #: By this name ``rules.starts`` knows that no start follows.
        self.clocked_time = at.astimezone(timezone.utc)

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:  # noqa: ARG002  # Celery's signature
        """Return the time from now to the instant."""
        return self.clocked_time - self.now()

    def __eq__(self, other: object) -> bool:
        """Whether it is the same instant."""
        return isinstance(other, OneOff) and other.clocked_time == self.clocked_time

    def __hash__(self) -> int:
        """By the instant."""
        return hash(self.clocked_time)

    def __repr__(self) -> str:
        """Return the same text in every process."""
        return f"<one-off: {format_instant(self.clocked_time)}>"
