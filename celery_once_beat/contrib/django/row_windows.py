"""How rows stand, by one look at the store; and what people order for them. Reads no row, and writes none.

A web server waits for each of these functions. So each question to the store is over in two seconds, for however many
rows. :func:`run` asks two: the time, and then for the windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LimitError  # another than the builtin before Python 3.11
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from celery_once_beat.beat import BeatEntry, Entries, as_loaded
from celery_once_beat.client import OrderedBy, log_order, newest_start
from celery_once_beat.errors import NotLoadedError, OnceError, SettingError, StoreUnavailableError
from celery_once_beat.features.orders.store import Open, Order, backfill_many, pause_many, refuse_orders, write_orders
from celery_once_beat.identity import order_name, page_id
from celery_once_beat.lookup import Lookup, each_window
from celery_once_beat.schedules import check_words
from celery_once_beat.settings import Settings
from celery_once_beat.status import EntryStatus, WindowStatus, make_report
from celery_once_beat.store import Store, Unknown, store_of
from celery_once_beat.windows import WindowKey, format_instant

from .entry import as_entries
from .scheduler import OnceDatabaseScheduler

T = TypeVar("T")

#: Windows of a row that are shown.
_SHOWN = 10
#: Most rows of one action of which the log of orders has a record each.
_MOST_NOTED = 100
#: Seconds within which the store has answered.
_PATIENCE = 2.0
_UNKNOWN = NotLoadedError("no beat has loaded it yet")


@dataclass(frozen=True)
class RowWindows:
    """How one row stands."""

    #: None: nobody knows, and ``trouble`` says why.
    status: EntryStatus | None = None
    #: Its newest windows, newest first.
    windows: tuple[WindowStatus, ...] = ()
    trouble: str = ""
    #: Address of the row's page on the window board; '' where no setting gives the board's.
    board: str = ""


def read_windows(rows: Iterable[Any], app: Any) -> dict[str, RowWindows]:
    """Return how each of the rows stands, by name. Never raises for Redis or a setting: that is the rows' trouble."""
    rows = list(rows)
    if app.main == "default":  # Celery's own, where no other was made
        trouble = "this process has no Celery app: import yours in the project's __init__.py"
        return {row.name: RowWindows(trouble=trouble) for row in rows}
    try:
        schedule = _schedule(rows, app)
        store = store_of(app)
        overview = _in_time(lambda: Lookup(store).overview([row.name for row in rows], _SHOWN))
        known = {status.entry: status for status in make_report(overview, schedule).entries}
    except OnceError as exc:
        return {row.name: RowWindows(trouble=str(exc)) for row in rows}
    found = {}
    for row in rows:
        windows = each_window(overview.entries[row.name])[:_SHOWN]
        trouble = "" if row.name in known else "no beat that lives has it"
        shown = tuple(map(WindowStatus.of, windows))
        found[row.name] = RowWindows(known.get(row.name), shown, trouble, _page(store.settings.board_url, row.name))
    return found


def run(rows: Sequence[Any], app: Any, by: OrderedBy) -> list[datetime | OnceError]:
    """Order the newest window of each row that has started, to be published by a beat within one look.

    Returns for each row the start of its window, or why none runs. Raises SettingError, and StoreUnavailableError where
    the store doesn't answer in time: the orders may have been carried out all the same.
    """
    check_words(by.name, by.note)
    store, entries = store_of(app), _schedule(rows, app).entries

    now = _in_time(store.snapshot).now
    found = [_to_run(row, entries, now) for row in rows]
    keys = [WindowKey(row.name, at) for row, at in zip(rows, found, strict=True) if isinstance(at, datetime)]
    orders = _orders(store, "run", by, {key.entry: format_instant(key.start) for key in keys})

    def order() -> Iterator[Any]:
        write_orders(store, orders)
        return iter(backfill_many(store, [(key, order_name()) for key in keys], overdue_in=0.0))

    replies = _in_time(order)
    done = [_ordered(at, next(replies)) if isinstance(at, datetime) else at for at in found]
    _refuse(store, orders, {row.name: each for row, each in zip(rows, done, strict=True)})
    return done


def set_paused(rows: Sequence[Any], app: Any, by: OrderedBy, *, paused: bool) -> list[OnceError | None]:
    """Pause or resume all these rows in one round trip; returns for each row why it can't be, or None.

    Raises as :func:`run` does.
    """
    store, words = store_of(app), check_words(by.name, by.note)
    names = [row.name for row in rows]
    orders = _orders(store, "pause" if paused else "resume", by, dict.fromkeys(names, ""))
    replies = _in_time(lambda: pause_many(store, names, words, orders, paused=paused))
    done = [
        _UNKNOWN if isinstance(reply, Unknown) else reply if isinstance(reply, OnceError) else None for reply in replies
    ]
    _refuse(store, orders, dict(zip(names, done, strict=True)))
    return done


def _refuse(store: Store, orders: Mapping[str, Order], done: Mapping[str, object]) -> None:
    """Write down which orders were refused."""
    if len(done) <= _MOST_NOTED:  # each row has its own
        each = ((of, order, done[order.entry]) for of, order in orders.items())
        refused = {of: (order, why) for of, order, why in each if isinstance(why, OnceError)}
        _in_time(lambda: refuse_orders(store, refused))


def _orders(store: Store, what: str, by: OrderedBy, rows: Mapping[str, str]) -> dict[str, Order]:
    """Return what the log of orders gets: a record a row, one for all where they are many, which would take it long."""
    if len(rows) > _MOST_NOTED:
        first, others = next(iter(rows)), len(rows) - 1
        orders = [Order(what, first, by.name, by.note, f"and {others} more rows, which have it in their histories")]
    else:
        orders = [Order(what, name, by.name, by.note, about) for name, about in rows.items()]
    for order in orders:
        log_order(order)
    return {store.new_id(): order for order in orders}


def _page(board: str | None, entry: str) -> str:
    if not board:
        return ""
    parts = urlsplit(board)
    return parts._replace(path=f"{parts.path.rstrip('/')}/entry/{page_id(entry)}").geturl()


def _in_time(ask: Callable[[], T]) -> T:
    """Ask the store; raises StoreUnavailableError where it hasn't answered in time, whatever it waits for."""
    asking = ThreadPoolExecutor(1, "once-admin")
    try:
        return asking.submit(ask).result(_PATIENCE)
    except LimitError:
        raise StoreUnavailableError(f"Redis: no answer within {_PATIENCE:g} s") from None
    finally:
        asking.shutdown(wait=False)


def _to_run(row: Any, entries: Any, now: datetime) -> datetime | OnceError:
    """Return the start of the row's window that is to run, or why there is none."""
    entry: BeatEntry | None = entries.get(row.name)
    if not row.enabled:
        return SettingError("it is disabled: no beat would publish it")
    if entry is None:
        return SettingError(f"it is left out: {entries.wrong[row.name]}")
    if not entry.tracked:
        return SettingError(f"its task {entry.source.task!r} is no OnceTask: nobody would record its end")
    try:
        return newest_start(entry, now) or SettingError("no window of it has started yet")
    except OnceError as exc:
        return exc


def _ordered(start: datetime, reply: Any) -> datetime | OnceError:
    if isinstance(reply, OnceError):
        return reply
    if isinstance(reply, Unknown):
        return _UNKNOWN
    return SettingError("its newest window still owes its outcome") if isinstance(reply, Open) else start


def _schedule(rows: Iterable[Any], app: Any) -> Any:
    app.loader.import_default_modules()  # an entry is tracked if its task is known
    app.finalize()
    found = as_entries((row for row in rows if row.enabled), OnceDatabaseScheduler.Entry, app)
    disabled = frozenset(row.name for row in rows if not row.enabled)
    entries = Entries("", Settings.from_app(app), app.tasks)
    return as_loaded(entries, OnceDatabaseScheduler, found, disabled)
