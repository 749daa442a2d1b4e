"""The beat scheduler over django-celery-beat's tables; any number of beats run it on one database.

Windows are claimed as everywhere. ``last_run_at`` and ``total_run_count`` are written for people to look at; they
decide nothing, but that a clocked row isn't run again which another scheduler has run. What the rows say is read by a
thread (``database``); here is what a beat makes of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from celery.utils.log import get_logger
from django.db.utils import DatabaseError, InterfaceError, InternalError, OperationalError, ProgrammingError
from django_celery_beat.schedulers import DatabaseScheduler

from celery_once_beat.beat import RETRY_AFTER, Job, OnceSchedulerMixin, Row
from celery_once_beat.clock import steady
from celery_once_beat.errors import DatabaseUnavailableError, OnceError, StoreUnavailableError
from celery_once_beat.logs import about
from celery_once_beat.store import EntryAccount, Published, Spent, Unknown
from celery_once_beat.windows import Window
from celery_once_beat.wording import shown

from .database import INTERVAL, SILENT, Database, Seen, Tables, alone, one_line
from .entry import OnceModelEntry, WrongEntry, instant

__all__ = ("OnceDatabaseScheduler",)

logger = get_logger(__name__)

#: The database can't be asked, may only be read (PostgreSQL's InternalError), or has no such tables yet: not this row's
#: or that one's fault.
_AWAY = (OperationalError, InterfaceError, InternalError, ProgrammingError)
#: Seconds for which a row with a new name waits, until every beat has seen it: none then runs it by its old name.
_SEEN_BY_ALL = 2 * INTERVAL


class OnceDatabaseScheduler(OnceSchedulerMixin, DatabaseScheduler):  # type: ignore[misc]  # the base has no types
    """``celery beat -S once-django``: the schedule of django-celery-beat's tables, with each window once."""

    Entry = OnceModelEntry
    base_is_fit = True
    _schedule: dict[str, Any] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._database: Database | None = None
        self._seen: Seen | None = None
        self._one_offs: list[Row] = []
        #: Those of them that are named in the log, since their time is past and they never ran.
        self._passed: set[Row] = set()
        #: Name of a row → the one that it had, and when all beats know (time.monotonic()).
        self._renamed: dict[str, tuple[str, float]] = {}
        self._database_away_since: float | None = None
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """As the mixin's; what is to be written, and all reading, is left to a thread."""
        assert self.max_interval is not None  # the base has a default
        tables = Tables(self.Model, self.Changes, self.Entry)
        self._database = Database(tables, self.all_as_schedule, self._write, self.max_interval)
        super().setup_schedule()
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
        schedule: dict[str, Any] = {}
        for model in self._asked(self.enabled_models_qs()):
            try:
                schedule[model.name] = self.Entry(model, app=self.app)
            except Exception as exc:  # noqa: BLE001  # whatever a stranger's crontab or place raises
                why = str(exc) if isinstance(exc, OnceError) else f"row {model.name!r}: {shown(exc)}"
                schedule[model.name] = WrongEntry(model.name, why)
        return schedule

    def switched_off(self, names: Sequence[str]) -> list[str]:
        """Return which of these have a row that is disabled; asks the database as ``all_as_schedule`` does."""
        return self._asked(self.Model.objects.filter(name__in=names, enabled=False).values_list("name", flat=True))

    @staticmethod
    def _asked(query: Any) -> list[Any]:
        try:
            return list(query)
        except (DatabaseError, InterfaceError) as exc:
            raise DatabaseUnavailableError(f"the database can't be read: {one_line(exc)}") from exc

    @property
    def schedule(self) -> dict[str, Any]:  # type: ignore[override]  # as the base's, which can't be set either
        """The entries that this beat knows; asks the database only where it was built lazily."""
        if self._schedule is None:
            self._schedule = self.all_as_schedule() if self._database is None else {}
        return self._schedule

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        """Make rows of entries, as the base does, before they are read the next time."""
        if self._database is not None:
            self._database.write(dict_)
            return
        for name, fields in dict_.items():
            self._write(name, fields)

    def _write(self, name: str, fields: Mapping[str, Any]) -> None:
        try:
            with alone(self.Changes):
                self.Entry.from_entry(name, app=self.app, **fields)
        except _AWAY:
            raise
        except Exception as exc:  # noqa: BLE001  # whatever a stranger's entry raises
            logger.error(
                "once: entry %s is left out: %s", shown(name), shown(exc), extra=about("entry_wrong", entry=name)
            )

    # -- the tick ---------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        assert self._database is not None
        self._database.wait_if_stood_still()
        before, self._seen = self._seen, self._database.seen
        changed = self._seen is not None and self._seen.schedule is not self._schedule
        if self._seen is not None and changed:
            self._schedule, self._changed = self._seen.schedule, True
        if before is not None and self._seen is not None and self._seen.at - before.at > SILENT:
            self._seen_at = self._clock.now()  # nobody knows when what is new came: it counts from now
        super()._refresh()
        if self._seen is not None and changed:
            self._came(self._seen, before)
            self._one_offs = [row for row in self._rows if row.entry.model.one_off]
            self._passed.intersection_update(self._one_offs)
        self._say_what_is_wrong(self._database.trouble)

    def _came(self, seen: Seen, before: Seen | None) -> None:
        """Say when the rows that are new here were made, enabled or named so: nothing from before that runs."""
        names = {} if before is None else {_key(entry): name for name, entry in before.schedule.items()}
        for row in self._rows.unloaded():
            if before is not None and row.came_at is None and row.absent_at is not None:
                row.came_at = self._came_at(row, row.absent_at, seen)
                if row.entry.edited_at <= row.absent_at:
                    # Nor does it say that it wasn't there at the last look: another beat may have read it earlier.
                    row.absent_at = self._at(before.read[0])
            old = names.get(_key(row.entry), row.name)
            if old != row.name and self._rows.get(old) is None:
                self._renamed[row.name] = old, time.monotonic() + _SEEN_BY_ALL
                self._wait(row, old)
        for row in self._rows:
            old_entry = before and before.schedule.get(row.name)
            if row.one_off and old_entry and _key(old_entry) not in (None, _key(row.entry)):
                # Deleted and made anew between two looks: what the old one has run is not this one's. The same moment
                # for all beats.
                row.absent_at = row.entry.edited_at
                self._rows.reload(row.name)

    def _came_at(self, row: Row, absent_at: datetime, seen: Seen) -> datetime:
        """When a row came that wasn't there at ``absent_at``: as exactly as anything says, and not before it did."""
        # Between two looks something else may have changed too: what the row says of itself goes first.
        for moment in (row.entry.edited_at, seen.changed and instant(seen.changed)):
            if moment is not None and moment > absent_at:
                return moment
        return self._at(seen.read[1])  # it came without a trace: whenever that was, it was before it was read

    def _at(self, moment: float) -> datetime:
        return self._clock.now() - timedelta(seconds=steady() - moment)

    def _schedule_seen_at(self) -> datetime | None:
        return None if self._seen is None else self._at(self._seen.at)

    def _say_what_is_wrong(self, trouble: str) -> None:
        if trouble and self._database_away_since is None:
            self._database_away_since = time.monotonic()
            logger.error(
                "once: beat goes on with the rows that it knows, the database %s",
                trouble,
                extra=about("database_away", owner=self._beat_id),
            )
        elif not trouble and self._database_away_since is not None:
            logger.warning(
                "once: the database can be used again, after %.1f s",
                time.monotonic() - self._database_away_since,
                extra=about("database_back", owner=self._beat_id),
            )
            self._database_away_since = None

    def _wait(self, row: Row, old: str) -> None:
        reason = f"it was named {old!r}: it goes on when every beat knows"
        self._rows.rest(row, self._clock.now(), RETRY_AFTER, reason, action="entry_renamed", level=logging.INFO)

    def _see_to_renamed(self) -> None:
        """Let rows with a new name go on behind what ran by their old one."""
        if self._renamed:
            self._rows.wake(self._clock.now())  # none of them is loaded before this
        waiting = {row.name for row in self._rows.unloaded()}
        for name, (old, until) in list(self._renamed.items()):
            row = self._rows.get(name)
            if row is None or row.cursor is not None:
                del self._renamed[name]
            elif until <= time.monotonic() or name in waiting:
                account = self._account_of(name, old)
                if account is not None and _has_had_its_window(row, account):
                    assert self._database is not None
                    self._database.disable(row.entry, lambda: True)
                    self._renamed[name] = old, time.monotonic() + _SEEN_BY_ALL
                    self._wait(row, old)
                    continue
                if account is not None and row.counts_from is None:
                    row.came_at = max(row.came_at or account.cursor, account.cursor)
                del self._renamed[name]
                self._rows.wake_up(name)

    def _account_of(self, name: str, old: str) -> EntryAccount | None:
        """What is known of a row by its old name; raises StoreUnavailableError."""
        try:
            return self._once.account(old)
        except StoreUnavailableError:
            # Only one node of a cluster, perhaps, that of this old name: next time the others come first.
            self._renamed[name] = self._renamed.pop(name)
            for row in self._rows.unloaded():
                if row.name in self._renamed:
                    self._wait(row, self._renamed[row.name][0])
            raise
        except OnceError:
            return None  # what stands there tells nothing of the row

    def _look(self) -> StoreUnavailableError | None:
        away = None
        try:
            self._see_to_renamed()
        except StoreUnavailableError as exc:
            away = exc  # this beat says that it lives all the same
        away = super()._look() or away
        assert self._database is not None
        spent = [row for row in self._one_offs if _is_spent(row) and not self._database.is_to_disable(row.entry)]
        try:
            if spent:
                self._disable(spent)
        except StoreUnavailableError as exc:
            away = exc
        for row in self._one_offs:
            if row not in self._passed and _is_passed(row):
                self._passed.add(row)
                logger.warning(
                    "once: row %r isn't run: %s is before %s, up to where its windows were looked at already; "
                    "give it a time that is to come",
                    row.name,
                    row.entry.model.clocked.clocked_time,
                    row.since,
                    extra=about("row_passed", entry=row.name, owner=self._beat_id),
                )
        return away

    def _disable(self, rows: list[Row]) -> None:
        """Disable one-offs whose window has its outcome. Until then their rows are needed: it may be to recover."""
        assert self._database is not None
        accounts = self._once.accounts([row.name for row in rows])
        for row, account in zip(rows, accounts, strict=True):
            try:
                if isinstance(account, EntryAccount) and not account.open:
                    self._spend(row, account.since)
            except StoreUnavailableError:
                raise
            except OnceError:
                continue  # what met it first has said so

    def _spend(self, row: Row, since: datetime) -> None:
        """Disable a one-off that has had its window, unless it was enabled again since."""
        assert self._database is not None
        if not row.one_off:
            self._database.disable(row.entry, lambda: True)  # a clocked row has one time, however often it is enabled
            return
        if row.cursor is not None and since > row.cursor:
            self._rows.reload(row.name)  # another beat saw it disabled and enabled again, which this one didn't
            return
        ask = partial(self._once.spent, row.name, since, row.entry.edited_at, self._clock.now())
        spent = ask()
        if spent == Spent():
            self._database.disable(row.entry, lambda: _agrees(ask))
            return
        # All beats that find it so have it count from the same moment.
        row.absent_at, row.came_at = spent.again if isinstance(spent, Spent) else None, None
        self._rows.reload(row.name)

    # -- for people -------------------------------------------------------------------------------------------

    def _reserve(self, row: Row) -> Any:
        """Leave the entry as it is: the mixin advances it also where another beat has the window."""
        return row.entry

    def _send(self, entry: Any, window: Window, job: Job) -> Published:
        published = super()._send(entry, window, job)
        if published == Published.SENT and not job.again and self._database is not None:
            self._database.ran(entry.model.pk)
        return published

    def sync(self) -> None:
        """Have it written which rows ran, and when; doesn't wait for it."""
        if self._database is not None:
            self._database.flush()

    def close(self) -> None:
        """As the mixin's, and write what is left to be."""
        super().close()
        if not self._ticking and self._database is not None:
            self._database.stop()


def _key(entry: Any) -> Any:
    """What makes an entry the same row, whatever its name."""
    model = getattr(entry, "model", None)
    return None if model is None else model.pk


def _agrees(ask: Callable[..., Spent | Unknown]) -> bool:
    """Have the store keep which edit of a one-off is disabled; False where it knows better."""
    try:
        return ask(disabled=True) == Spent()
    except OnceError:
        return False  # the next look tries again


def _has_had_its_window(row: Row, old: EntryAccount) -> bool:
    """Whether a one-off has had its window under another name."""
    clocked = row.entry.model.clocked
    if clocked is not None:
        return old.since < instant(clocked.clocked_time) <= old.cursor
    return row.one_off and old.cursor > old.since


def _is_spent(row: Row) -> bool:
    """Whether a one-off's window is behind it, as far as this beat knows."""
    if row.cursor is None or row.since is None or row.next is not None:
        return False
    clocked = row.entry.model.clocked
    if clocked is None:
        return row.cursor > row.since
    # One that hasn't run counts from just before its time: if it doesn't, its time was moved to where the entry's
    # windows had been looked at already, and it never ran.
    return row.cursor >= instant(clocked.clocked_time) and not _is_passed(row)


def _is_passed(row: Row) -> bool:
    """Whether a clocked row that hasn't run can't: the cursor was beyond its time before that was its time."""
    counts_from = row.entry.counts_from
    return (
        counts_from is not None and row.since is not None and row.since > instant(row.entry.model.clocked.clocked_time)
    )
