"""What somebody may order on the board, and how it is carried out. Blocks: its methods are called in threads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from celery_once_beat.beat import BeatEntry, load_schedule
from celery_once_beat.client import OrderedBy, Orders, Schedules, Wanted, newest_start
from celery_once_beat.errors import OnceError, SettingError, UnknownScheduleError
from celery_once_beat.features.orders.store import OrderRecord, read_orders
from celery_once_beat.features.runtime.beat import add_defined
from celery_once_beat.identity import digest
from celery_once_beat.lookup import Lookup, each_window
from celery_once_beat.schedules import Definition
from celery_once_beat.status import View, line_up, paused_words
from celery_once_beat.windows import format_instant, parse_instant
from celery_once_beat.wording import read_time, shown

#: What of a definition is edited on the board. What it is called with isn't shown there.
_EDITED = ("schedule", "once")
#: Of one backfill.
_MOST_WINDOWS = 10_000

#: Of a form.
Fields = Mapping[str, Sequence[str]]
#: What came of an order, for people; or the values of a page that asks about it first.
Done = str | dict[str, Any]


class Desk:
    """Takes orders for the entries that a board shows. An order is written down before it is carried out.

    Each of ``orders`` takes the entry's name, who orders it, and a form's fields. Raises OnceError.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._store = view.store
        self._zone = view.app.timezone
        self._lookup = Lookup(self._store)
        self._orders = Orders(self._store)
        self._schedules = Schedules(view.app)
        self.orders = {
            "run": self._run,
            "backfill": self._backfill,
            "republish": self._republish,
            "pause": self._pause,
            "resume": self._resume,
            "abandon": self._abandon,
            "edit": self._edit,
        }

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

    def _run(self, name: str, by: OrderedBy, fields: Fields) -> Done:
        start = self._orders.start_to_run(self._entry(name), self._time(fields, "window"))
        (ordered,) = self._orders.run(name, [start], by)
        if ordered.task_id is None:
            raise SettingError(f"{format_instant(start)} still owes its outcome, and is left alone")
        return "Ordered 1 window. A beat publishes it at once."

    def _backfill(self, name: str, by: OrderedBy, fields: Fields) -> Done:
        """First show what it would run. What was shown is run: windows that are due since then aren't."""
        since, until = self._time(fields, "since"), self._time(fields, "until")
        if since is None or until is None:
            raise SettingError("From, To: found nothing, expected times")
        until = min(until, datetime.now(timezone.utc))
        again, agreed = bool(only(fields, "again")), only(fields, "agreed")
        starts, skipped = self._orders.starts_between(self._entry(name), since, until, again=again, most=_MOST_WINDOWS)
        #: The same for the same windows.
        known = digest(" ".join(map(format_instant, starts)), 32).hex()
        if agreed == known and starts:
            ordered = self._orders.run(name, starts, by, "backfill")
            number = sum(each.task_id is not None for each in ordered)  # some may be open by now
            return f"Ordered {number} windows. Beats publish them at once."
        asked = {"since": since, "until": until, "again": again, "agreed_by": only(fields, "by"), "note": by.note}
        return {**asked, "starts": starts, "skipped": skipped, "digest": known, "changed": bool(agreed)}

    def _republish(self, name: str, by: OrderedBy, _: Fields) -> Done:
        starts = [window.start for window in self.facts(name)["open"]]
        again = self._orders.republish(name, starts, by)
        if not again:
            raise SettingError("no window is open whose message is out, and which no worker has begun")
        return f"{len(again)} windows are published again. If their messages weren't lost, workers refuse the copies."

    def _pause(self, name: str, by: OrderedBy, _: Fields) -> Done:
        self._orders.pause(name, by)
        return "Paused. Open windows continue."

    def _resume(self, name: str, by: OrderedBy, _: Fields) -> Done:
        self._orders.resume(name, by)
        return "Resumed. Windows of the pause are caught up on as the entry's catch_up says."

    def _abandon(self, name: str, by: OrderedBy, fields: Fields) -> Done:
        try:
            starts = sorted({parse_instant(text) for text in fields.get("start", ())})
        except ValueError as exc:
            raise SettingError(str(exc)) from exc
        if not starts:
            raise SettingError("found no window, expected one or more to give up")
        gone, left = self._orders.abandon(name, starts, by, running=bool(only(fields, "running")))
        if not gone:
            raise SettingError("they run, and are left alone" if left else "none of them is open any more")
        return f"Gave up {len(gone)} windows; left {len(left)}, since they run."

    def _edit(self, name: str, by: OrderedBy, fields: Fields) -> Done:
        """Change when a schedule of run time starts, and its ``once`` settings; not over somebody else's change."""
        version = only(fields, "version")
        if not version.isdecimal() or len(version) > 15:  # noqa: PLR2004
            raise SettingError(f"version: found {shown(version)}, expected a number")
        known = self._schedules.get(name)
        if known is None:
            raise UnknownScheduleError("no such schedule is set at run time")
        edited = {field: _json(field, only(fields, field)) for field in _EDITED}
        definition = Definition.from_json({**known.as_json(), **edited})
        self._schedules.check(name, definition)
        with self._orders.noted("edit", name, by) as words:
            self._schedules.put(Wanted(name, definition), words, if_version=int(version))
        return "Changed. It counts from now."

    def _time(self, fields: Fields, name: str) -> datetime | None:
        text = only(fields, name).strip()
        found = read_time(text, self._zone) if text else None
        if text and found is None:
            raise SettingError(f"found {shown(text)}, expected a time like 2026-11-21T02:00")
        return found


def only(fields: Fields, name: str) -> str:
    """Return the value of a field that a form has once; '' where it lacks it."""
    return fields.get(name, ("",))[0]


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise SettingError(f"{name}: found {shown(text)}, expected JSON: {exc}") from exc
