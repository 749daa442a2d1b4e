"""What people order of an entry: windows to run, and windows to give up. Beats carry it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from celery_once_beat.beat import BeatEntry
from celery_once_beat.errors import NotLoadedError, NoWindowError, OnceError, UnknownScheduleError
from celery_once_beat.identity import order_name
from celery_once_beat.logs import about, get_logger
from celery_once_beat.lookup import Lookup, each_window
from celery_once_beat.rules import latest_start
from celery_once_beat.schedules import check_words
from celery_once_beat.store import Busy, Claimed, ClaimRequest, Confirmed, Finished, Store, Unknown, raised
from celery_once_beat.windows import WindowKey, format_instant, task_id
from celery_once_beat.wording import printable

from .store import Open, Order, abandon_many, backfill_many, refuse_orders, republish_many, write_orders

logger = get_logger(__name__)

#: Windows that are ordered in one pipeline.
_ORDERED = 100
#: A resume names so many of the newest windows that it passes over, since they may have run.
_MOST_LISTED = 1000
_MICROSECOND = timedelta(microseconds=1)
#: No window starts before this. At the calendar's begin one can't reckon in time zones.
_EARLIEST = datetime(1970, 1, 1, tzinfo=timezone.utc)


class OrderedBy(NamedTuple):
    """Who orders something, and why."""

    name: str
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
    """Orders for the entries of one store, each written down before it is carried out. Instants are aware UTC.

    Raises NoWindowError for what can't be ordered, NotLoadedError where the store has no such entry.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lookup = Lookup(store)

    @contextmanager
    def noted(
        self, what: str, name: str, by: OrderedBy | None, starts: Sequence[datetime] = (), about: str = ""
    ) -> Iterator[str]:
        """Write an order down, then carry it out in the block; if that raises, it is written down as refused.

        The block gets who gives it and why, as the store keeps that. ``by`` None: it isn't written down.
        """
        if by is None:
            yield "{}"
            return
        words = check_words(by.name, by.note)
        request, order = self._store.new_id(), Order(what, name, by.name, by.note, about or _about(starts))
        write_orders(self._store, {request: order})
        log_order(order)
        try:
            yield words
        except OnceError as exc:
            refuse_orders(self._store, {request: (order, exc)})
            raise

    def start_to_run(self, entry: BeatEntry, start: datetime | None = None) -> datetime:
        """Return the start of the window that an order means: ``start``, or None: the newest that has started."""
        now = self._store.snapshot().now
        if start is None:
            newest = newest_start(entry, now)
            if newest is None:
                raise NoWindowError(f"no window of {entry.name!r} has started yet; see: once next {entry.name}")
            return newest
        at = format_instant(start)
        if start > now:
            raise NoWindowError(f"{at} hasn't come yet")
        if start < _EARLIEST or [*entry.starts(start - _MICROSECOND, start)] != [start]:
            raise NoWindowError(f"{at} is no window of {entry.name!r}; see: once next --from {at} {entry.name}")
        return start

    def starts_between(
        self, entry: BeatEntry, since: datetime, until: datetime, *, again: bool = False, most: int | None = None
    ) -> tuple[list[datetime], Counter[str]]:
        """Return the starts of a backfill from ``since`` to ``until``, both included, up to now.

        And how many are left out: what is open, and unless ``again`` what is done. With ``most`` raises NoWindowError
        where that many start in this time, however many are left out.
        """
        now = self._store.snapshot().now
        if until < since:
            raise NoWindowError("TO lies before FROM")
        if since > now:
            raise NoWindowError("FROM lies in the future: no window has begun since")
        since, until = max(since, _EARLIEST), min(until, now)
        if most is not None and len([*islice(entry.starts(since, until), most)]) == most:
            raise NoWindowError(f"found {most} windows or more, expected fewer at a time")
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

    def run(
        self,
        name: str,
        starts: Sequence[datetime],
        by: OrderedBy | None = None,
        what: str = "run",
        *,
        waits: bool = False,
    ) -> list[OrderedWindow]:
        """Open the windows of the entry ``name`` that start at ``starts``; a beat publishes them within one look.

        ``by``: it is written down first, as the order ``what``. ``waits``: the entry was set at run time, and
        perhaps no beat has loaded it yet.
        """
        with self.noted(what, name, by, starts):
            replies = self._each(name, starts, partial(backfill_many, self._store, overdue_in=0.0, waits=waits))
            if any(isinstance(reply, Unknown) for _, reply in replies):
                raise _not_loaded(name)
        prefix = self._store.settings.key_prefix
        return [
            OrderedWindow(start, None if isinstance(reply, Open) else task_id(prefix, name, start, reply.ordered))
            for start, reply in replies
        ]

    def abandon(
        self, name: str, starts: Sequence[datetime], by: OrderedBy | None = None, *, running: bool = False
    ) -> Abandoned:
        """Give up the open windows of the entry ``name`` that start at ``starts``; ``running``: also those that run.

        Nothing stops an execution; its end isn't recorded any more.
        """
        with self.noted("abandon", name, by, starts):
            replies = self._each(name, starts, partial(abandon_many, self._store, running=running))
        return Abandoned(
            [start for start, reply in replies if isinstance(reply, Finished)],
            [start for start, reply in replies if isinstance(reply, Busy)],
        )

    def republish(self, name: str, starts: Sequence[datetime], by: OrderedBy) -> list[datetime]:
        """Have beats publish windows again whose message is out and lost; returns the starts of those."""
        with self.noted("republish", name, by, starts):
            replies = self._each(name, starts, partial(republish_many, self._store))
        return [start for start, reply in replies if isinstance(reply, Confirmed)]

    def _each(self, name: str, starts: Sequence[datetime], give: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """Give orders for windows, by many at a time; returns each start with its reply, raises the first error."""
        found: list[Any] = []
        for position in range(0, len(starts), _ORDERED):
            chunk = starts[position : position + _ORDERED]
            replies = give([(WindowKey(name, start), order_name()) for start in chunk])
            found += zip(chunk, map(raised, replies), strict=True)
        return found

    def pause(self, name: str, by: OrderedBy) -> None:
        """Claim no further windows of the entry ``name``; open windows continue."""
        with self.noted("pause", name, by) as words:
            self._set_paused(name, words, paused=True)

    def resume(self, name: str, by: OrderedBy, miss: BeatEntry | None = None) -> int:
        """Claim windows again; those of the pause are caught up on as after an outage.

        With ``miss``, the entry, they are recorded as cancelled instead; returns how many.
        """
        with self.noted("resume", name, by, about="" if miss is None else "from now on") as words:
            missed = 0 if miss is None else self.miss(miss)
            self._set_paused(name, words, paused=False)
        return missed

    def _set_paused(self, name: str, words: str, *, paused: bool) -> None:
        if isinstance(self._store.set_paused(name, words, paused=paused), Unknown):
            raise _not_loaded(name)

    def miss(self, entry: BeatEntry) -> int:
        """Count the windows up to now as cancelled; returns how many, without those that ran all the same, by order."""
        account, now = self._store.account(entry.name), self._store.snapshot().now
        if account is None:
            raise _not_loaded(entry.name)
        if not account.paused:
            raise UnknownScheduleError(f"{entry.name!r} isn't paused")
        starts = list(entry.starts(account.cursor, now))
        if not starts:
            return 0
        request = ClaimRequest(
            WindowKey(entry.name, starts[-1]),
            account.cursor,
            entry.fingerprint,
            mode="cancel",
            missed=starts[-_MOST_LISTED:],
            missed_count=len(starts),
        )
        reply = raised(self._store.claim_many(order_name(), [request])[0])
        if not isinstance(reply, Claimed):
            raise UnknownScheduleError(f"{entry.name!r} changed meanwhile ({type(reply).__name__.lower()}): ask again")
        return reply.missed


def newest_start(entry: BeatEntry, now: datetime) -> datetime | None:
    """Return the newest start up to ``now`` (aware UTC), by the definition of its time; None where there is none."""
    start = _newest_by(entry, now)
    for old in reversed(entry.timetable.earlier):
        if start is not None and start > old.until:
            break
        start = None if old.entry is None else _newest_by(old.entry, min(now, old.until))
    return start


def _newest_by(entry: BeatEntry, until: datetime) -> datetime | None:
    if entry.timetable.polled:
        return None
    start = latest_start(entry.when, until - entry.offset, anchor=entry.policy.anchor)
    return None if start is None else start + entry.offset


def _not_loaded(name: str) -> NotLoadedError:
    return NotLoadedError(f"no beat has loaded {name!r}: start one that has it in its schedule")


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
