"""A schedule with a first and a last moment. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedule

from celery_once_beat.rules import CRON_FIELDS
from celery_once_beat.windows import next_start

__all__ = ("Bounded",)


class Bounded(BaseSchedule):
    """The starts of another schedule from ``begins`` on and before ``ends`` (aware UTC, None for no bound).

    With ``one_off`` only the first of them that isn't past when the entry is loaded is a window: which one that is, the
    store remembers. ``anchor`` is that of an interval's grid.
    """

    def __init__(
        self,
        inner: BaseSchedule,
        *,
        begins: datetime | None = None,
        ends: datetime | None = None,
        anchor: datetime | None = None,
        one_off: bool = False,
    ) -> None:
        super().__init__(app=inner.app)
        self.inner = inner
        self.begins = begins
        self.ends = ends
        self.anchor = anchor
        self.one_off = one_off
        self.tz = inner.tz  # type: ignore[misc]  # a cached_property
        # For the base's entry, which knows the bounds itself. As a method it would make this type a polled one.
        self.is_due = inner.is_due  # type: ignore[method-assign]

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return the time from now to the first start after ``last_run_at`` (aware)."""
        after = last_run_at.astimezone(timezone.utc)
        if self.begins is not None and after < self.begins:
            after = self.begins - timedelta(microseconds=1)
        start = next_start(self.inner, after, anchor=self.anchor)
        if start is None or (self.ends is not None and start >= self.ends):
            return timedelta.max  # never: past the last datetime there is
        return start - self.now()

    def __repr__(self) -> str:
        """Return what is the same in every process for the same definition: fingerprints are made of it."""
        parts = [_words(self.inner)]
        if self.anchor is not None:
            parts.append(f"anchored at {_text(self.anchor)}")
        if self.begins is not None and self.begins != self.anchor:
            parts.append(f"from {_text(self.begins)}")
        if self.ends is not None:
            parts.append(f"until {_text(self.ends)}")
        if self.one_off:
            parts.append("one-off")
        return f"<bounded: {', '.join(parts)}>"


def _text(instant: datetime) -> str:
    return instant.astimezone(timezone.utc).replace(tzinfo=None).isoformat() + "Z"


def _words(inner: Any) -> str:
    if isinstance(inner, crontab):
        return " ".join([*(str(getattr(inner, f"_orig_{field}")) for field in CRON_FIELDS), str(inner.tz)])
    if isinstance(inner, schedule):
        every: timedelta = inner.run_every  # type: ignore[attr-defined]  # celery-types lacks it
        # Whole days fall on the zone's midnights.
        return f"every {every}" if every % timedelta(days=1) else f"every {every} ({inner.tz})"
    return repr(inner)
