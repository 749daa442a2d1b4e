"""The beat scheduler over django-celery-beat's tables; any number of beats run it on one database.

``last_run_at`` and ``total_run_count`` are written for display. They decide one thing: what another scheduler has run
isn't run again. A thread reads and writes the rows (``database``); this module decides what a beat makes of them. In
this file a row is the database's, an entry is beat's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from django.db import close_old_connections
from django.db.utils import DatabaseError, InterfaceError, InternalError, OperationalError, ProgrammingError
from django_celery_beat.schedulers import DatabaseScheduler

from celery_once_beat.beat import BeatEntry, OnceSchedulerMixin, log_left_out
from celery_once_beat.errors import DatabaseUnavailableError, OnceError, StoreUnavailableError
from celery_once_beat.logs import Outage, about, get_logger
from celery_once_beat.store import EntryAccount, Spent, Unknown
from celery_once_beat.windows import Window
from celery_once_beat.wording import shown

from .database import Database, alone, one_line
from .entry import OnceModelEntry, WrongEntry, as_entries, instant
from .row_store import RowSeen, find_rows, leave_rows, left_rows, mark_spent
from .source import RowSource

logger = get_logger(__name__)

#: The database can't be asked, may only be read (PostgreSQL's InternalError), or has no such tables yet: not this row's
#: or that one's fault.
_AWAY = (OperationalError, InterfaceError, InternalError, ProgrammingError)


#: Seconds between two sweeps while a row waits for its old name.
_WAITING = 0.2


class OnceDatabaseScheduler(OnceSchedulerMixin, DatabaseScheduler):  # type: ignore[misc]  # the base has no types
    """``celery beat -S once-django``: the schedule of django-celery-beat's tables, with each window once."""

    Entry = OnceModelEntry
    base_is_fit = True
    _schedule: dict[str, Any] | None

    #: It was built lazily: it only shows the rows.
    _only_shows = True
    _database: Database

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._one_offs: list[BeatEntry] = []
        #: Those of them that are named in the log, since their time is past and they never ran.
        self._passed: set[BeatEntry] = set()
        #: Names of entries whose rows weren't theirs at the last sweep, by what the store says.
        self._waiting: set[str] = set()
        #: Whether it is known which rows were switched off, deleted or renamed while no beat ran.
        self._caught_up = False
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """As the mixin's; what is to be written, and all reading, is left to a thread."""
        assert self.max_interval is not None  # the base has a default
        self._only_shows = False
        self._database = Database(self, self.max_interval)
        super().setup_schedule()
        actions, over = ("database_away", "database_back"), "the database can be used again"
        self._outage = Outage(logger, actions, over, owner=self.beat_id)
        self._source = RowSource(self.entries, self.clock)
        self.entries.scheduled = self._source
        self._database.start()

    # -- the rows ---------------------------------------------------------------------------------------------

    def enabled_models_qs(self) -> Any:
        """Return all enabled rows.

        The base of 2.8 and 2.9 leaves out crontabs of other hours: a window that passed could never be caught up with,
        and one that is open not be recovered.
        """
        rows = self.Model.objects.filter(enabled=True)
        return rows.select_related("interval", "crontab", "solar", "clocked")  # one query: one moment

    def all_as_schedule(self) -> dict[str, Any]:
        """Return all enabled rows as entries. Asks the database, writes nothing; raises DatabaseUnavailableError."""
        if self._only_shows:
            close_old_connections()  # who shows the rows asks from any thread, whose last connection may have died
        rows = self.enabled_models_qs()
        try:
            try:
                models = list(rows)
            except (DatabaseError, InterfaceError):
                raise
            except Exception:  # noqa: BLE001  # one row's: a time zone, say, that this machine doesn't have
                models = [_read_alone(rows, *row) for row in rows.values_list("pk", "name")]
        except (DatabaseError, InterfaceError) as exc:
            raise DatabaseUnavailableError(f"the database can't be read: {one_line(exc)}") from exc
        return as_entries(models, self.Entry, self.app)

    @property
    def schedule(self) -> dict[str, Any]:  # type: ignore[override]  # as the base's, which can't be set either
        """The entries that this beat knows; asks the database only where it was built lazily."""
        if self._schedule is None:
            self._schedule = self.all_as_schedule() if self._only_shows else {}
        return self._schedule

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        """Make rows of entries, as the base does, before they are read the next time."""
        if not self._only_shows:
            self._database.write(dict_)
            return
        for name, fields in dict_.items():
            self.write_row(name, fields)

    def write_row(self, name: str, fields: Mapping[str, Any]) -> None:
        """Make a row of an entry; one that can't be made is logged. Raises what says that the database is away."""
        try:
            with alone(self.Changes):
                self.Entry.from_entry(name, app=self.app, **fields)
        except _AWAY:
            raise
        except Exception as exc:  # noqa: BLE001  # whatever a user's entry raises
            log_left_out(name, shown(exc))

    # -- the tick ---------------------------------------------------------------------------------------------

    def poll_schedule(self) -> datetime | None:
        """Take what the thread has read."""
        self._database.wait_if_frozen()
        seen = self._database.seen
        if self._database.trouble:
            what = (
                "beat knows no row yet, and runs none" if seen is None else "beat continues with the rows that it knows"
            )
            self._outage.begin(f"{what}, the database %s", self._database.trouble)
        else:
            self._outage.end()
        if seen is None:
            return None
        self._source.see(seen)
        if seen.schedule is not self._schedule:
            self._schedule, self._heap = seen.schedule, None
        return self.clock.at(seen.at)

    def on_entries_changed(self) -> None:
        """Note the one-offs."""
        self._one_offs = [entry for entry in self.entries if not entry.stored and entry.source.model.one_off]
        self._passed.intersection_update(self._one_offs)

    def _catch_up(self) -> None:
        """Find rows that were switched off, deleted or renamed while no beat ran; raises StoreUnavailableError.

        This beat runs without them: if they are switched on again, windows from before that don't count.
        """
        if self._caught_up or self._database.seen is None:
            return
        self.unload(left_rows(self.store, self.schedule))
        self._caught_up = True

    # -- new names --------------------------------------------------------------------------------------------

    def _see_to_renamed(self) -> None:
        """Let rows continue from where they were by other names; raises StoreUnavailableError.

        The store knows which entry is made of which row. A row that has another name now leaves its old entry. Its new
        entry waits until no living beat has the old one. Only what the store knows counts.
        """
        for name in self._waiting:
            self.entries.wake(name)
        unloaded = {entry.source.row: entry for entry in self.entries.unloaded() if not entry.stored}
        ask = partial(find_rows, self.store, {row: entry.name for row, entry in unloaded.items()})
        found = ask()
        held = [(old, row) for row, seen in found.items() if isinstance(seen, RowSeen) for old in seen.names]
        left = [(old, row) for old, row in held if not self._is_spent_by(unloaded[row], old)]
        says_nothing: set[tuple[str, str]] = set()
        if held:
            with suppress(StoreUnavailableError):
                replies = zip(left, leave_rows(self.store, self.beat_id, left), strict=True)
                says_nothing = {pair for pair, reply in replies if not _is_known(reply)}
            found = ask()
        self._waiting = {unloaded[row].name for row in found}
        if found:
            self.recovery.hurry(_WAITING)
        away = None
        for row, seen in found.items():
            entry = unloaded[row]
            if isinstance(seen, StoreUnavailableError):
                away = seen
                self.entries.rest(entry, "")
                continue
            old = next((name for name in seen.names if (name, row) not in says_nothing), None)
            if old is not None:
                reason = f"it was named {old!r}: it continues when every beat knows that"
                self.entries.rest(entry, reason, action="entry_renamed", level=logging.INFO)
            elif seen.cursor is not None:
                entry.progress.pause = seen.pause
                if entry.counts_from is None:
                    came_at = entry.progress.came_at or entry.source.edited_at
                    entry.set_first_seen(max(came_at, seen.cursor), entry.progress.absent_at)
        if away is not None:
            raise away

    def _is_spent_by(self, entry: BeatEntry, old: str) -> bool:
        """Whether a one-off has had its window by its old name: it is disabled."""
        if not entry.source.model.one_off:
            return False
        try:
            account = self.store.account(old)
            if account is None or not _has_had_its_window(entry, account):
                return False
            return self._database.is_to_disable(entry.source) or self._spend(entry, account.since, old)
        except StoreUnavailableError:
            return True  # that isn't known yet
        except OnceError:
            return False  # that key says nothing of the row

    # -- one-offs ---------------------------------------------------------------------------------------------

    def on_sweep(self) -> None:
        """See to rows with a new name, and to one-offs whose time is past; raises StoreUnavailableError."""
        away = None
        for step in (self._catch_up, self._see_to_renamed, self._see_to_one_offs):
            try:
                step()
            except StoreUnavailableError as exc:
                away = exc
        if away is not None:
            raise away

    def _see_to_one_offs(self) -> None:
        """Disable one-offs whose window has its outcome. Until then their rows are needed to recover it."""
        for entry in self._one_offs:
            if entry not in self._passed and _is_passed(entry):
                self._passed.add(entry)
                logger.warning(
                    "once: row %r isn't run: %s is before %s, up to where its windows were looked at already; "
                    "give it a time that is to come",
                    entry.name,
                    entry.source.model.clocked.clocked_time,
                    entry.progress.since,
                    extra=about("row_passed", entry=entry.name, owner=self.beat_id),
                )
        spent = [
            entry for entry in self._one_offs if _is_spent(entry) and not self._database.is_to_disable(entry.source)
        ]
        if not spent:
            return
        for entry, account in zip(spent, self.store.accounts([entry.name for entry in spent]), strict=True):
            try:
                if isinstance(account, EntryAccount) and not account.open:
                    self._spend(entry, account.since, entry.name)
            except StoreUnavailableError:
                raise
            except OnceError:
                continue  # already reported where it was first met

    def _spend(self, entry: BeatEntry, since: datetime, name: str) -> bool:
        """Disable a one-off that has had its window by ``name``; False where it was enabled again since."""
        if not entry.one_off:  # a clocked row has one time, however often it is enabled
            self._database.disable(entry.source, lambda: True)
            return True
        if entry.cursor is not None and since > entry.cursor:
            self.entries.reload(entry.name)  # another beat saw it disabled and enabled again, which this one didn't
            return False
        ask = partial(mark_spent, self.store, name, since, entry.source.edited_at, self.clock.now())
        spent = ask()
        if spent == Spent():
            self._database.disable(entry.source, lambda: _agrees(ask))
            return True
        # All beats that find it so have it count from the same moment.
        entry.set_first_seen(None, spent.again if isinstance(spent, Spent) else None)
        self.entries.reload(entry.name)
        return False

    # -- for people -------------------------------------------------------------------------------------------

    def reserve(self, entry: Any) -> Any:
        """Leave the entry as it is: the database says when a row ran."""
        return entry

    def on_published(self, entry: BeatEntry, window: Window, *, again: bool) -> None:
        """Have it written, at the next ``sync``, which window of the row ran."""
        if not again and not self._only_shows:
            self._database.ran(entry.source.model.pk, window.start - entry.offset)

    def sync(self) -> None:
        """Have it written which rows ran, and when; doesn't wait for it."""
        if not self._only_shows:
            self._database.flush()

    def on_close(self) -> None:
        """Write what is left to be."""
        if not self._only_shows:
            self._database.stop()


def _read_alone(rows: Any, pk: Any, name: str) -> Any:
    try:
        return rows.get(pk=pk)
    except (DatabaseError, InterfaceError):
        raise
    except Exception as exc:  # noqa: BLE001  # whatever a field raises
        return WrongEntry(name, exc)


def _is_known(reply: str | OnceError) -> bool:
    """Whether a reply of ``leave_rows`` is about the row's old name."""
    return reply != "unknown" and isinstance(reply, (str, StoreUnavailableError))


def _agrees(ask: Callable[..., Spent | Unknown]) -> bool:
    """Have the store keep which edit of a one-off is disabled; False where it knows better."""
    try:
        return ask(disabled=True) == Spent()
    except OnceError:
        return False  # the next poll tries again


def _has_had_its_window(entry: BeatEntry, old: EntryAccount) -> bool:
    """Whether a one-off has had its window under another name."""
    clocked = entry.source.model.clocked
    if clocked is not None:
        return old.since < instant(clocked.clocked_time) <= old.cursor
    return old.cursor > old.since


def _is_spent(entry: BeatEntry) -> bool:
    """Whether a one-off has had its window, by what this beat knows."""
    if entry.cursor is None or entry.progress.since is None or entry.next is not None:
        return False
    clocked = entry.source.model.clocked
    if clocked is None:
        return entry.cursor > entry.progress.since
    # One that hasn't run counts from just before its time: if it doesn't, its time was moved to where the entry's
    # windows had been looked at already, and it never ran.
    return entry.cursor >= instant(clocked.clocked_time) and not _is_passed(entry)


def _is_passed(entry: BeatEntry) -> bool:
    """Whether a clocked row that hasn't run can't: the cursor was beyond its time before that was its time."""
    counts_from = entry.source.counts_from
    return (
        counts_from is not None
        and entry.progress.since is not None
        and entry.progress.since > instant(entry.source.model.clocked.clocked_time)
    )
