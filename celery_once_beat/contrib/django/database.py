"""The rows as one beat reads and writes them, in a thread of its own.

A database that is slow, away, locked or hangs holds up nothing: beat goes on with the rows that it knows. What it
writes (when a row ran last, that a one-off has run) is for people, and waits.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from celery.utils.log import get_logger
from django.db import close_old_connections, connections, transaction
from django.db.models import DateTimeField, F, Value
from django.db.models.functions import Coalesce, Greatest
from django_celery_beat.utils import now

from celery_once_beat.errors import DatabaseUnavailableError
from celery_once_beat.logs import about

__all__ = ("Database", "Seen", "Tables", "one_line")

logger = get_logger(__name__)

#: Seconds between two looks for changes, at most.
_INTERVAL = 2.0
#: Seconds after which all rows are read anyway: what QuerySet.update() changes leaves no trace to look for.
_ANYWAY = 300.0
#: Seconds of a round that go into writing when rows ran.
_WRITING = 0.5
#: Seconds without an answer after which the database counts as away.
_SILENT = 15.0
#: Seconds for which a start waits for the first answer, and an end for the last writes.
_START, _END = 10.0, 5.0


def one_line(error: Exception) -> str:
    """Return an error for a message; a driver's may have several lines."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"


class Seen(NamedTuple):
    """The rows as they were ``at`` (time.monotonic())."""

    schedule: dict[str, Any]
    at: float


class Tables(NamedTuple):
    """The models of a scheduler, and how it makes an entry of a row."""

    rows: Any
    changes: Any
    entry: Callable[..., Any]


class Database:
    """One beat's access to the rows. All but what a thread of its own does returns at once."""

    def __init__(
        self,
        tables: Tables,
        read: Callable[[], dict[str, Any]],
        write: Callable[[Mapping[str, Any]], None],
        interval: float,
    ) -> None:
        self._tables = tables
        self._read = read
        self._write = write
        self._interval = min(interval, _INTERVAL)
        #: None: not yet read.
        self.seen: Seen | None = None
        self._change: object = None
        self._read_at = 0.0
        self._to_write: list[Mapping[str, Any]] = []
        self._to_disable: dict[str, Any] = {}
        #: Key of a row → how often it ran since this was written, and when last.
        self._ran: dict[Any, tuple[int, datetime]] = {}
        self._lock = threading.Lock()
        self._error = ""
        self._heard = time.monotonic()
        self._flush = False
        self._stopping = False
        self._tried = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="once-database", daemon=True)

    # -- asked by beat ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start reading; waits for the first answer, but not for ever."""
        self._heard = time.monotonic()
        # A signal is for beat's own thread, which holds it back while it publishes.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._tried.wait(_START)

    @property
    def trouble(self) -> str:
        """Why the rows can't be read; '' while they can."""
        silent = time.monotonic() - self._heard
        return f"no answer for {silent:.0f} s" if silent > _SILENT else self._error

    def write(self, mapping: Mapping[str, Any]) -> None:
        """Make rows of entries, before the next look."""
        self._to_write.append(mapping)

    def ran(self, key: Any) -> None:
        """Note that a row ran; it is written at the next :meth:`flush`."""
        with self._lock:
            self._ran[key] = (self._ran.get(key, (0,))[0] + 1, now())

    def flush(self) -> None:
        """Write what has run, soon."""
        self._flush = True

    def disable(self, entry: Any) -> None:
        """Disable the row of a one-off that has run, if it is still the same."""
        self._to_disable[entry.name] = entry

    def stop(self) -> None:
        """Write what is left, and end. Again: does nothing."""
        self._flush = self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_END)

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            stopping = self._stopping
            try:
                self._round()
                self._error = ""
            except DatabaseUnavailableError as exc:
                self._error = str(exc)
            except Exception as exc:  # noqa: BLE001  # whatever a driver, or a user's model, raises
                self._error = one_line(exc)
            self._heard = time.monotonic()
            self._tried.set()
            if stopping:
                connections.close_all()
                return
            self._wake.wait(self._interval)
            self._wake.clear()

    def _round(self) -> None:
        close_old_connections()
        with suppress(transaction.TransactionManagementError):
            transaction.commit()  # without autocommit and with REPEATABLE READ others' changes would never be seen
        while self._to_write:
            self._write(self._to_write[0])
            del self._to_write[0]
        while self._to_disable:
            self._disable(self._to_disable.popitem()[1])
        at = time.monotonic()
        change = self._tables.changes.last_change()  # before the rows: what changes meanwhile is read once more
        # Any difference: who changed them may have a clock that is behind.
        if self.seen is None or change != self._change or at - self._read_at > _ANYWAY:
            self.seen = Seen(self._read(), at)
            self._change, self._read_at = change, at
        else:
            self.seen = Seen(self.seen.schedule, at)
        if self._flush or self._stopping:
            self._write_what_ran()

    def _disable(self, entry: Any) -> None:
        # As this beat knows it: it may have been disabled by another, and enabled again to run once more.
        known = entry.model
        everyone = self._tables.rows.objects
        rows = everyone.filter(pk=known.pk, date_changed=known.date_changed, enabled=True, one_off=True)
        row = rows.select_related("interval", "crontab", "solar", "clocked").first()
        if row is None or repr(self._tables.entry(row, app=entry.app).schedule) != repr(entry.schedule):
            return  # or its schedule was given another time
        # The run count is set back as django-celery-beat's own scheduler does, which would run no row that has one.
        if rows.update(enabled=False, total_run_count=0, date_changed=now()):
            self._tables.changes.update_changed()
            logger.info(
                "once: row %r has had its one window: it is disabled",
                entry.name,
                extra=about("row_disabled", entry=entry.name),
            )

    def _write_what_ran(self) -> None:
        """Write as much as there is time for; the rest in the next round."""
        until = time.monotonic() + _WRITING
        left = list(self._ran)
        self._flush = False
        try:
            while left and (self._stopping or time.monotonic() < until):
                times, last = self._ran[left[-1]]
                at = Value(last, output_field=DateTimeField())
                # Of several beats the latest: each adds what it sent itself. No save(): it would look like an edit.
                self._tables.rows.objects.filter(pk=left[-1]).update(
                    total_run_count=F("total_run_count") + times,
                    last_run_at=Greatest(Coalesce("last_run_at", at), at),
                )
                self._written(left.pop(), times)
        finally:
            self._flush |= bool(left)

    def _written(self, key: Any, times: int) -> None:
        with self._lock:
            ran, last = self._ran.pop(key)
            if ran > times:
                self._ran[key] = ran - times, last
