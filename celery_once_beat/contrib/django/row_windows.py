"""How rows stand, by one look at the store; and what people order for them. Reads no row, and writes none.

A web server waits for each of these functions. So each question to the store is over in two seconds, for however many
rows. :func:`run` asks two: the time, and then for the windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LimitError  # another than the builtin before Python 3.11
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from celery_once_beat.beat import BeatEntry, Entries, as_loaded
from celery_once_beat.client import OrderedBy, log_order, newest_start
from celery_once_beat.errors import NotLoadedError, OnceError, SettingError, StoreUnavailableError
from celery_once_beat.features.orders.store import Open, Order, backfill_many, refuse_orders, write_orders
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
    found = {row.name: _to_run(row, entries, now) for row in rows}
    starts = {name: at for name, at in found.items() if isinstance(at, datetime)}
    windows = [(WindowKey(name, at), order_name()) for name, at in starts.items()]
    about = {name: format_instant(at) for name, at in starts.items()}
    refused = _order(store, "run", by, about, lambda: backfill_many(store, windows, overdue_in=0.0))
    return [refused.get(name, at) for name, at in found.items()]


def set_paused(rows: Sequence[Any], app: Any, by: OrderedBy, *, paused: bool) -> list[OnceError | None]:
    """Pause or resume all these rows; returns for each row why it can't be, or None. Raises as :func:`run` does."""
    store, words = store_of(app), check_words(by.name, by.note)
    requests = [store.pause_request(row.name, words, paused=paused) for row in rows]
    about = {row.name: "" for row in rows}
    refused = _order(store, "pause" if paused else "resume", by, about, lambda: store.trip.run(requests))
    return [refused.get(row.name) for row in rows]


def _order(
    store: Store, what: str, by: OrderedBy, about: Mapping[str, str], carry_out: Callable[[], list[Any]]
) -> dict[str, OnceError]:
    """Write down what is ordered of rows, by name, and carry it out; returns which were refused, and why.

    The log of orders gets a record a row; one for all where they are many, which would take it long.
    """
    many = len(about) > _MOST_NOTED
    if many:
        others = f"and {len(about) - 1} more rows, which have it in their histories"
        records = [Order(what, next(iter(about)), by.name, by.note, others)]
    else:
        records = [Order(what, name, by.name, by.note, text) for name, text in about.items()]
    for record in records:
        log_order(record)
    orders = {store.new_id(): record for record in records}

    def order() -> list[Any]:
        write_orders(store, orders)
        return carry_out()

    errors = {name: _error_in(reply) for name, reply in zip(about, _in_time(order), strict=True)}
    refused = {name: error for name, error in errors.items() if error is not None}
    if not many:
        noted = {of: (each, refused[each.entry]) for of, each in orders.items() if each.entry in refused}
        _in_time(lambda: refuse_orders(store, noted))
    return refused


def _error_in(reply: object) -> OnceError | None:
    if isinstance(reply, Open):
        return SettingError("its newest window still owes its outcome")
    if isinstance(reply, Unknown):
        return NotLoadedError("no beat has loaded it yet")
    return reply if isinstance(reply, OnceError) else None


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


def _schedule(rows: Iterable[Any], app: Any) -> Any:
    app.loader.import_default_modules()  # an entry is tracked if its task is known
    app.finalize()
    found = as_entries((row for row in rows if row.enabled), OnceDatabaseScheduler.Entry, app)
    disabled = frozenset(row.name for row in rows if not row.enabled)
    entries = Entries("", Settings.from_app(app), app.tasks)
    return as_loaded(entries, OnceDatabaseScheduler, found, disabled)
