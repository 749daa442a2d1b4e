"""Looks at one app's schedule and store again and again, for the board and the metrics. Writes nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_once_beat.beat import LoadedSchedule, load_schedule
from celery_once_beat.errors import OnceError
from celery_once_beat.features.runtime.beat import add_defined
from celery_once_beat.logs import Logged, about, guarded
from celery_once_beat.lookup import EntrySeen, Lookup, Overview, Remembered, WindowSeen, each_window
from celery_once_beat.settings import Settings
from celery_once_beat.store import Store

from .judgements import needs_records
from .report import LastStatuses, Report, make_report

if TYPE_CHECKING:
    from celery import Celery

logger = guarded(logging.getLogger(__name__))

#: Most windows of an entry that the board shows.
_MOST_WINDOWS = 200
#: Seconds after which the schedule is read again: a database's may have changed.
_SCHEDULE_LASTS = 30.0


@dataclass(frozen=True)
class Sight:
    """What one look shows."""

    report: Report
    #: By entry of the schedule: its newest windows, newest first, each once. The same object while they are the same.
    windows: Mapping[str, Sequence[WindowSeen]]


class View:
    """Looks, for one thread at a time. Raises SettingError if a setting, or the scheduler's name, is wrong.

    It sees so many windows of each entry; None: as many as the store keeps, up to 200.
    """

    def __init__(
        self, app: Celery, settings: Settings, scheduler: str | None = None, *, windows: int | None = None
    ) -> None:
        self.app = app
        self.settings = settings
        self.scheduler = scheduler
        self._shown = min(max(settings.history_size, 1), _MOST_WINDOWS) if windows is None else windows
        self.store = Store(settings)
        self._lookup = Lookup(self.store)
        self._schedule: LoadedSchedule = load_schedule(app, settings, scheduler)
        self._loaded_at = time.monotonic()
        self._logged = Logged()
        #: By entry: as the last look saw it, with its history, and its windows, each once.
        self._seen: dict[str, tuple[EntrySeen, EntrySeen, Sequence[WindowSeen]]] = {}
        self._remembered = Remembered()
        self._last_statuses = LastStatuses()

    def close(self) -> None:
        """Give the connections back."""
        self.store.close()

    def snapshot(self) -> Sight:
        """Look once; raises StoreUnavailableError where Redis doesn't answer."""
        schedule = self._current_schedule()
        add_defined(schedule, self.app, self.store)
        overview = take_snapshot(self._lookup, schedule, self._remembered)
        # A history is read again only if its entry changed: a look then costs the same, however many windows are shown.
        known, now = self._seen, overview.entries
        changed = [
            name
            for name, seen in now.items()
            if name not in known or (known[name][0] is not seen and known[name][0] != seen)  # mostly it is
        ]
        again = self._lookup.overview(changed, self._shown).entries if self._shown > 1 and changed else now
        new = {name: (now[name], again[name], each_window(again[name])) for name in changed}
        self._seen = {name: new.get(name) or (now[name], *known[name][1:]) for name in now}
        # An older window that can't be read is its entry's trouble too.
        entries = {
            name: replace(seen, trouble=deep.trouble) if deep.trouble and not seen.trouble else seen
            for name, (seen, deep, _) in self._seen.items()
        }
        report = make_report(replace(overview, entries=entries), schedule, self._last_statuses)
        return Sight(report, {name: windows for name, (_, _, windows) in self._seen.items()})

    def _current_schedule(self) -> LoadedSchedule:
        if time.monotonic() - self._loaded_at >= _SCHEDULE_LASTS:
            try:
                known = self._schedule.entries
                self._schedule = load_schedule(self.app, self.settings, self.scheduler, known)
                self._logged.end("schedule")
            except (Exception, SystemExit) as exc:  # noqa: BLE001  # whatever a user's scheduler, or its database, raises
                if self._logged.is_new("schedule"):
                    logger.warning(
                        "once: the schedule can't be read again, the last one is shown: %s",
                        exc if isinstance(exc, OnceError) else type(exc).__name__,
                        extra=about("schedule_unreadable"),
                    )
            self._loaded_at = time.monotonic()
        return self._schedule


def take_snapshot(
    lookup: Lookup, schedule: LoadedSchedule, before: Remembered | None = None, children: Iterable[str] = ()
) -> Overview:
    """Look at all that a report needs: the entries of ``schedule``, those that beats have loaded, beats and workers.

    And tracked ``children``, by name. ``before``: who looks again and again reads what has changed. Raises
    StoreUnavailableError.
    """
    overview = lookup.overview([*schedule.names, *children], and_loaded=True, before=before)
    odd = [name for name, seen in overview.entries.items() if needs_records(seen, overview.now)]
    return lookup.with_records(overview, odd)
