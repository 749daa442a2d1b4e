"""What somebody may order on the board, and how it is carried out. Blocks: its methods are called in threads."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from datetime import datetime
from typing import Any

from celery_once_beat.beat import BeatEntry, load_schedule
from celery_once_beat.client import OrderedBy, Orders, Schedules, Wanted, newest_start
from celery_once_beat.errors import OnceError, SettingError, UnknownScheduleError
from celery_once_beat.features.orders.store import OrderRecord, read_orders
from celery_once_beat.features.runtime.beat import add_defined
from celery_once_beat.lookup import Lookup, each_window
from celery_once_beat.schedules import Definition
from celery_once_beat.status import View, line_up, paused_words
from celery_once_beat.windows import format_instant

#: What of a definition is edited on the board. What it is called with isn't shown there.
_EDITED = ("schedule", "once")
#: Of one backfill.
_MOST_WINDOWS = 10_000


class Desk:
    """Takes orders for the entries that a board shows. An order is written down before it is carried out."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._store = view.store
        self._lookup = Lookup(self._store)
        #: Pauses and resumes too.
        self.orders = Orders(self._store)
        self._schedules = Schedules(view.app)

    def log(self) -> list[OrderRecord]:
        """Return who ordered what of late, newest first."""
        return read_orders(self._store)

    def facts(self, name: str) -> dict[str, Any]:
        """Return what somebody has to know of an entry before they order something; it may have left the schedule."""
        seen, now = self._lookup.entry(name, 1), self._store.snapshot().now
        facts: dict[str, Any] = {
            **dict.fromkeys(("newest", "why_not", "changes", "definition")),
            "paused": "" if seen.account is None else paused_words(seen.account, now),
            # Windows that owe their outcome, and orders; newest first.
            "open": [window for window in each_window(seen) if window.open is not None],
            "log": [record for record in self.log() if record.order.entry == name],
        }
        try:
            facts["newest"] = newest_start(self._entry(name), now)
        except OnceError as exc:
            facts["why_not"] = str(exc)
        # Set at run time: it can be edited.
        with suppress(OnceError):  # no name that a schedule of people's could have, or one that can't be read
            facts["changes"] = self._schedules.changes(name)
            facts["definition"] = definition = self._schedules.get(name)
            known = definition.as_json() if definition else {}
            facts["edited"] = {
                field: json.dumps(known.get(field, {}), indent=2, ensure_ascii=False) for field in _EDITED
            }
        return facts

    def _entry(self, name: str) -> BeatEntry:
        """Return the entry as the beats run it, if its windows can be ordered."""
        view = self._view
        loaded = load_schedule(view.app, view.settings, view.scheduler)
        add_defined(loaded, view.app, self._store)
        overview = self._lookup.overview([name], and_loaded=True)
        found = next((each for each in line_up(loaded, overview)[0] if each.name == name), None)
        if found is None and name in loaded.entries.wrong:
            raise SettingError(f"it can't run: {loaded.entries.wrong[name]}")
        if found is None:
            raise UnknownScheduleError("it isn't in the schedule")
        if not found.tracked:
            raise SettingError("it is untracked: nobody could record the end of a window")
        if found.entry is None:
            raise SettingError("the board's app doesn't have it, and its schedule is of a type that isn't known here")
        return found.entry

    # -- orders -----------------------------------------------------------------------------------------------

    def run(self, name: str, by: OrderedBy, start: datetime | None) -> None:
        """Run the window at ``start`` now, None: the newest."""
        at = self.orders.start_to_run(self._entry(name), start)
        (ordered,) = self.orders.run(name, [at], by)
        if ordered.task_id is None:
            raise SettingError(f"{format_instant(at)} still owes its outcome, and is left alone")

    def plan(self, name: str, since: datetime, until: datetime, *, again: bool) -> tuple[list[datetime], Counter[str]]:
        """Return what a backfill would run, and what it would leave out."""
        return self.orders.starts_between(self._entry(name), since, until, again=again, most=_MOST_WINDOWS)

    def edit(self, name: str, by: OrderedBy, edited: dict[str, Any], version: int) -> None:
        """Change when a schedule that was set at run time starts, and its ``once`` settings.

        Raises VersionConflictError where it hasn't ``version`` any more.
        """
        known = self._schedules.get(name)
        if known is None:
            raise UnknownScheduleError("no such schedule is set at run time")
        definition = Definition.from_json({**known.as_json(), **{field: edited[field] for field in _EDITED}})
        self._schedules.check(name, definition)
        with self.orders.noted("edit", name, by) as words:
            self._schedules.put(Wanted(name, definition), words, if_version=version)
