"""What people order of an entry: windows to run, and windows to give up. Beats carry it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import NamedTuple

from celery.utils.log import get_logger

from celery_once_beat.beat import BeatEntry
from celery_once_beat.errors import OnceError, SettingError, UnknownScheduleError
from celery_once_beat.identity import order_name
from celery_once_beat.logs import about, guarded
from celery_once_beat.schedules import check_words
from celery_once_beat.status import each_window, newest_start
from celery_once_beat.store import Busy, Claimed, Finished, Lookup, Open, Order, Store, Unknown, raised
from celery_once_beat.windows import WindowKey, format_instant, task_id
from celery_once_beat.wording import printable

__all__ = ("Abandoned", "OrderedWindow", "Orders", "Said", "log_order")

logger = guarded(get_logger(__name__))

#: Windows that are ordered in one pipeline.
_ORDERED = 100
_MICROSECOND = timedelta(microseconds=1)
#: No window starts before this. At the calendar's begin one can't reckon in time zones.
_EARLIEST = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Said(NamedTuple):
    """Who orders something, and why."""

    by: str
    note: str = ""


class OrderedWindow(NamedTuple):
    """A window that was ordered to run."""

    #: Aware UTC.
    start: datetime
    #: Of its task; None: the window still owes its outcome, and was left alone.
    task_id: str | None


class Abandoned(NamedTuple):
    """What became of windows that were to be given up: their starts, aware UTC."""

    gone: list[datetime]
    #: They run, and were left alone.
    running: list[datetime]


class Orders:
    """Orders for the entries of one store. Instants are aware UTC. Raises SettingError for what can't be ordered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lookup = Lookup(store)

    def note(self, what: str, name: str, said: Said, starts: Sequence[datetime] = (), about: str = "") -> str:
        """Write an order down, before it is carried out; returns who gives it and why, as the store keeps that.

        It is of the windows that start at ``starts``, which are in order, or of what ``about`` says.
        """
        words = check_words(said.by, said.note)
        order = Order(what, name, said.by, said.note, about or _about(starts))
        self._store.note(order)
        log_order(order)
        return words

    def start_to_run(self, entry: BeatEntry, start: datetime | None = None) -> datetime:
        """Return the start of the window that an order means: ``start``, or None: the newest that has started."""
        now = self._store.snapshot().now
        if start is None:
            newest = newest_start(entry, now)
            if newest is None:
                raise SettingError(f"no window of {entry.name!r} has started yet; see: once next {entry.name}")
            return newest
        at = format_instant(start)
        if start > now:
            raise SettingError(f"{at} hasn't come yet")
        if start < _EARLIEST or [*entry.starts(start - _MICROSECOND, start)] != [start]:
            raise SettingError(f"{at} is no window of {entry.name!r}; see: once next --from {at} {entry.name}")
        return start

    def starts_between(
        self, entry: BeatEntry, since: datetime, until: datetime, *, again: bool = False, most: int | None = None
    ) -> tuple[list[datetime], Counter[str]]:
        """Return the starts of a backfill from ``since`` to ``until``, both included, up to now.

        And how many are left out: what is open, and unless ``again`` what is done. With ``most`` raises SettingError
        where that many start in this time, however many are left out.
        """
        now = self._store.snapshot().now
        if until < since:
            raise SettingError("TO lies before FROM")
        if since > now:
            raise SettingError("FROM lies in the future: no window has begun since")
        since, until = max(since, _EARLIEST), min(until, now)
        if most is not None and len([*islice(entry.starts(since, until), most)]) == most:
            raise SettingError(f"found {most} windows or more, expected fewer at a time")
        seen = self._lookup.entry(entry.name, self._store.settings.history_size or 1)
        known = {window.start: window for window in each_window(seen)}
        skipped: Counter[str] = Counter()
        starts = []
        for start in entry.starts(since - _MICROSECOND, until):
            found = known.get(start)
            if found is not None and found.open is not None:
                skipped["open"] += 1
            elif found is not None and found.state == "done" and not again:
                skipped["done"] += 1
            else:
                starts.append(start)
        return starts, skipped

    def run(self, name: str, starts: Sequence[datetime]) -> list[OrderedWindow]:
        """Open the windows of the entry ``name`` that start at ``starts``; a beat publishes them within one look."""
        ordered = []
        for position in range(0, len(starts), _ORDERED):
            chunk = starts[position : position + _ORDERED]
            orders = [(WindowKey(name, start), order_name()) for start in chunk]
            for start, reply in zip(chunk, self._store.backfill_many(orders, overdue_in=0.0), strict=True):
                if isinstance(reply, OnceError):
                    raise reply
                if isinstance(reply, Unknown):
                    raise UnknownScheduleError(f"no beat has loaded {name!r} yet: it is run by one that lives")
                ordered.append(OrderedWindow(start, self._task_id(name, start, reply)))
        return ordered

    def _task_id(self, name: str, start: datetime, reply: Claimed | Open) -> str | None:
        if isinstance(reply, Open):
            return None
        return task_id(self._store.settings.key_prefix, name, start, reply.ordered)

    def abandon(self, name: str, starts: Sequence[datetime], *, running: bool = False) -> Abandoned:
        """Give up the open windows of the entry ``name`` that start at ``starts``; ``running``: also those that run.

        Nothing stops an execution; its end isn't recorded any more.
        """
        left = Abandoned([], [])
        for position in range(0, len(starts), _ORDERED):
            chunk = starts[position : position + _ORDERED]
            orders = [(WindowKey(name, start), order_name()) for start in chunk]
            for start, reply in zip(chunk, self._store.abandon_many(orders, running=running), strict=True):
                if isinstance(raised(reply), Finished):
                    left.gone.append(start)
                elif isinstance(reply, Busy):
                    left.running.append(start)
        return left


def log_order(order: Order) -> None:
    """Say in the log who ordered what."""
    by, entry, why, of = map(printable, (order.by, order.entry, order.note or "-", order.about or "-"))
    logger.info(
        "once: ordered %s of %s by %s: %s (%s)",
        order.what,
        entry,
        by,
        why,
        of,
        extra=about("ordered", entry=order.entry),
    )


def _about(starts: Sequence[datetime]) -> str:
    if len(starts) <= 1:
        return "".join(map(format_instant, starts))
    return f"{len(starts)} windows, {format_instant(starts[0])} to {format_instant(starts[-1])}"
