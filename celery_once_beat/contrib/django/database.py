"""The rows as one beat reads and writes them, in a thread of its own.

A database that is slow, away or locked holds up nothing: beat continues with the rows that it knows. Writes wait (rows
for the app's own entries, when a row ran last, that a one-off has run). A database that takes no writes is still read.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from django.conf import settings
from django.db import close_old_connections, connections, router, transaction
from django.db.models import Case, DateTimeField, F, Value, When
from django.db.models.functions import Coalesce, Greatest
from django.utils.timezone import make_naive
from django_celery_beat.utils import now

from celery_once_beat.clock import steady
from celery_once_beat.errors import DatabaseUnavailableError
from celery_once_beat.logs import about, get_logger

from .entry import zone_of_runs

logger = get_logger(__name__)

T = TypeVar("T")

#: Seconds between two polls for changes, at most.
INTERVAL = 2.0
#: Seconds after which all rows are read anyway: QuerySet.update() leaves no trace to look for.
_ANYWAY = 300.0
#: Seconds of a round that go into writing when rows ran.
_WRITING = 0.5
#: Seconds without an answer after which the database counts as away.
SILENT = 15.0
#: Seconds for which a beat that was frozen waits for the rows as they are now.
_FROZEN = 2.0
#: Seconds for which a start waits for the first answer, and an end for the last writes.
_START, _END = 10.0, 5.0


def one_line(error: BaseException) -> str:
    """Return an error for a message; a driver's may have several lines."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"


class Seen(NamedTuple):
    """The rows as they were ``at`` (``clock.steady``), but for changes that leave no trace."""

    schedule: dict[str, Any]
    at: float
    #: When they were read, all of them: before, after (``clock.steady``).
    read: tuple[float, float]
    #: When one of them changed last, as PeriodicTasks says: Django's time; None where it says nothing.
    changed: datetime | None


class Database:
    """The access of one beat, ``scheduler``, to the rows. Its methods return at once; its thread does the work."""

    def __init__(self, scheduler: Any, interval: float) -> None:
        self._scheduler = scheduler
        self._interval = min(interval, INTERVAL)
        #: None: not yet read.
        self.seen: Seen | None = None
        self._to_write: dict[str, Mapping[str, Any]] = {}
        self._to_disable: dict[str, tuple[Any, Callable[[], bool]]] = {}
        #: Key of a row → how many windows ran since this was written, and the latest start of one.
        self._ran: dict[Any, tuple[int, datetime]] = {}
        self._lock = threading.Lock()
        self._error = ""
        self._heard = time.monotonic()
        self._flush = False
        self._stopping = False
        self._tried = threading.Event()
        self._wake = threading.Event()
        #: What was seen before this process was frozen.
        self._old: Seen | None = None
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
        """What is wrong with the database, as ``can't be read: …``; '' while nothing is."""
        silent = time.monotonic() - self._heard
        return f"can't be read: no answer for {silent:.0f} s" if silent > SILENT else self._error

    def wait_if_frozen(self) -> None:
        """After this process was frozen, wait for the rows as they are now; once, and not for long."""
        long_ago = steady() - 3 * self._interval
        while self.seen is not None and self.seen.at < long_ago and self.seen is not self._old and not self._error:
            self._old = self.seen  # a poll that ends only now may have begun before
            self._tried.clear()
            self._wake.set()
            self._tried.wait(_FROZEN)

    def write(self, entries: Mapping[str, Any]) -> None:
        """Make rows of entries, before the first poll if possible."""
        self._to_write.update(entries)

    def ran(self, key: Any, start: datetime) -> None:
        """Note that a row's window was published; it is written at the next :meth:`flush`.

        ``start`` (aware) is its start by the schedule, and not the moment of the publish: all windows up to the start
        are claimed, but some up to that moment may be owed.
        """
        with self._lock:
            times, latest = self._ran.get(key, (0, start))
            self._ran[key] = times + 1, max(latest, start)

    def flush(self) -> None:
        """Write what has run, soon."""
        self._flush = True

    def disable(self, entry: Any, agreed: Callable[[], bool]) -> None:
        """Disable the row of a one-off that has run, if it is still the same, and ``agreed`` just before the commit."""
        self._to_disable[entry.name] = entry, agreed

    def is_to_disable(self, entry: Any) -> bool:
        """Whether the row of ``entry``, as it is, is to be disabled: the database is slow, or takes no writes."""
        known = self._to_disable.get(entry.name)
        return known is not None and known[0] is entry

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
            self._round()
            self._heard = time.monotonic()
            self._tried.set()
            if stopping:
                connections.close_all()
                return
            self._wake.wait(self._interval)
            self._wake.clear()

    def _round(self) -> None:
        unwritten = [
            _tried(partial(_work_off, self._to_write, self._scheduler.write_row)),
            _tried(partial(_work_off, self._to_disable, self._disable)),
        ]
        unread = _tried(self._poll)  # also where nothing may be written
        if self._flush or self._stopping:
            unwritten.append(_tried(self._write_what_ran))
        wrong = [f"can't be read: {unread}"] if unread else [f"can't be written: {why}" for why in unwritten if why]
        self._error = wrong[0] if wrong else ""

    def _poll(self) -> None:
        at = steady()
        changed = self._scheduler.Changes.last_change()  # before the rows: what changes meanwhile is read once more
        # Any difference: who changed them may have a clock that is behind.
        if self.seen is None or changed != self.seen.changed or at - self.seen.read[0] > _ANYWAY:
            schedule = self._scheduler.all_as_schedule()
            self.seen = Seen(schedule, at, (at, steady()), changed)
        else:
            self.seen = Seen(self.seen.schedule, at, self.seen.read, changed)

    def _disable(self, _: str, spent: tuple[Any, Callable[[], bool]]) -> None:
        entry, agreed = spent
        # As this beat knows it: it may have been disabled by another, and enabled again to run once more.
        known = entry.model
        everyone = self._scheduler.Model.objects
        rows = everyone.filter(pk=known.pk, date_changed=known.date_changed, enabled=True, one_off=True)
        row = rows.select_related("interval", "crontab", "solar", "clocked").first()
        if row is None or not self._is_same(row, entry):
            return
        # Later than the edit that is known, whatever the clocks say: by that the store knows one that comes after.
        edited = max(now(), known.date_changed + timedelta(microseconds=1))
        with transaction.atomic(using=router.db_for_write(self._scheduler.Model)):
            # The run count is set back as django-celery-beat's own scheduler does, which would run no row that has one.
            if not rows.update(enabled=False, total_run_count=0, date_changed=edited):
                return
            self._scheduler.Changes.update_changed()
            if not agreed():
                transaction.set_rollback(True, using=router.db_for_write(self._scheduler.Model))
                return
        logger.info(
            "once: row %r has had its one window: it is disabled; enabled again it has one more",
            entry.name,
            extra=about("row_disabled", entry=entry.name),
        )

    def _is_same(self, row: Any, entry: Any) -> bool:
        """Whether the row still has the entry's schedule, which is a row of another table."""
        try:
            return repr(self._scheduler.Entry(row, app=entry.app).schedule) == repr(entry.schedule)
        except Exception:  # noqa: BLE001  # it is no entry any more, whatever a user's crontab raises
            return False

    def _write_what_ran(self) -> None:
        """Write as much as there is time for; the rest in the next round."""
        until = time.monotonic() + _WRITING
        self._flush = False
        for key in list(self._ran):
            if not self._stopping and time.monotonic() >= until:
                self._flush = True
                return
            with self._lock:
                times, last = self._ran.pop(key)
            try:
                self._write_ran(key, times, last)
            except Exception:
                with self._lock:  # behind the others
                    more, latest = self._ran.get(key, (0, last))
                    self._ran[key] = times + more, max(last, latest)
                self._flush = True
                raise

    def _write_ran(self, key: Any, times: int, last: datetime) -> None:
        at = Value(last if settings.USE_TZ else make_naive(last, zone_of_runs()), output_field=DateTimeField())
        # Of several beats the latest: each adds what it sent itself. No save(): it would look like an edit.
        # A one-off's count was set back as it was disabled.
        is_spent = When(enabled=False, one_off=True, then=F("total_run_count"))
        self._scheduler.Model.objects.filter(pk=key).update(
            total_run_count=Case(is_spent, default=F("total_run_count") + times),
            last_run_at=Greatest(Coalesce("last_run_at", at), at),
        )


def _work_off(jobs: dict[str, T], do: Callable[[str, T], None]) -> None:
    """Do each of the jobs once. One that fails goes behind the others; one that is given anew meanwhile stays."""
    for name, job in list(jobs.items()):
        try:
            do(name, job)
        except Exception:
            jobs.setdefault(name, jobs.pop(name))
            raise
        if jobs.get(name) is job:
            del jobs[name]


def _tried(step: Callable[[], None]) -> str:
    """Take a step; return what went wrong, or ''. Its transaction is committed here."""
    try:
        close_old_connections()
        _commit()  # without autocommit and with REPEATABLE READ others' changes would never be seen
        step()
        _commit()
    except DatabaseUnavailableError as exc:
        return one_line(exc.__cause__ or exc)
    except Exception as exc:  # noqa: BLE001  # whatever a driver, or a user's model, raises
        return one_line(exc)
    return ""


@contextmanager
def alone(changes: Any) -> Iterator[None]:
    """Keep other beats from writing: two that start together would make two intervals of the same length.

    It locks the row in which ``changes`` keeps when rows changed, which every database can.
    """
    changes.objects.get_or_create(ident=1, defaults={"last_update": now()})
    with transaction.atomic(using=router.db_for_write(changes)):
        changes.objects.filter(ident=1).update(last_update=F("last_update"))
        yield


def _commit() -> None:
    with suppress(transaction.TransactionManagementError):
        transaction.commit()
