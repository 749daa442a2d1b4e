"""The rows as a source of entries: from when an entry counts whose row is new here."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from celery_once_beat.beat import BeatEntry, Entries, ScheduleSource, ServerClock

from .database import SILENT, Seen
from .entry import instant


class RowSource(ScheduleSource):
    """The rows, as the thread of ``database`` has seen them."""

    def __init__(self, all_entries: Entries, clock: ServerClock) -> None:
        super().__init__(all_entries)
        self._clock = clock
        #: What was seen at this tick, and at the one before.
        self._seen: Seen | None = None
        self._before: Seen | None = None

    def see(self, seen: Seen) -> None:
        """Note what is seen at this tick."""
        self._before, self._seen = self._seen, seen

    def is_replaced(self, entry: BeatEntry) -> bool:
        """Whether another row has the name."""
        old = self._before and self._before.schedule.get(entry.name)
        return bool(old) and _key(old) not in (None, _key(entry.source))

    def set_first_seen(self, entry: BeatEntry, old: BeatEntry | None) -> None:
        """Count it from when its row came: nothing from before that runs."""
        super().set_first_seen(entry, old)
        absent_at = entry.progress.absent_at
        if self._seen and self._before and entry.progress.came_at is None and absent_at is not None:
            self._date(entry, absent_at, self._seen, self._before)
        if self.is_replaced(entry):
            # Neither what the row before ran counts for it, nor what that owed. All beats take the same moment.
            entry.set_first_seen(entry.progress.came_at, entry.source.edited_at)

    def _date(self, entry: BeatEntry, absent_at: datetime, seen: Seen, before: Seen) -> None:
        """Say when an entry came that wasn't there at ``absent_at``, as exactly as is known, and not before that."""
        if seen.at - before.at > SILENT:
            absent_at = self._clock.now()  # nobody knows when it came: it counts from now
        # Another row may have changed last: what this one says of itself goes first.
        moments: list[datetime] = [entry.source.edited_at, *([instant(seen.changed)] if seen.changed else ())]
        # One that came without a trace came before it was read.
        came_at = next((moment for moment in moments if moment > absent_at), self._clock.at(seen.read[1]))
        if entry.source.edited_at <= absent_at:
            # It may have been there at the last poll: another beat may have read it earlier.
            absent_at = self._clock.at(before.read[0])
        entry.set_first_seen(came_at, absent_at)


def _key(source: Any) -> Any:
    """What makes an entry the same row, whatever its name."""
    model = getattr(source, "model", None)
    return None if model is None else model.pk
