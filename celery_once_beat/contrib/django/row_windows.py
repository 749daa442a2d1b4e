"""How rows stand, by one look at the store; and what people order for one of them. Reads no row, and writes none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from celery_once_beat.beat import BeatEntry, as_loaded
from celery_once_beat.client import Orders, Said
from celery_once_beat.errors import OnceError, SettingError, UnknownScheduleError
from celery_once_beat.settings import Settings
from celery_once_beat.status import EntryStatus, WindowStatus, each_window, make_report
from celery_once_beat.store import Lookup, store_of
from celery_once_beat.windows import WindowKey

from .entry import as_entries
from .scheduler import OnceDatabaseScheduler

__all__ = ("RowWindows", "look_at", "pause", "resume", "run")

#: Windows of a row that are shown.
_SHOWN = 10


@dataclass(frozen=True)
class RowWindows:
    """How one row stands."""

    #: None: nobody knows, and ``trouble`` says why.
    status: EntryStatus | None = None
    #: Its newest windows, newest first.
    windows: tuple[WindowStatus, ...] = ()
    trouble: str = ""
    #: Address of the window board; '' where no setting gives it.
    board: str = ""


def look_at(rows: Iterable[Any], app: Any) -> dict[str, RowWindows]:
    """Return how each of the rows stands, by name. Never raises for Redis or a setting: that is the rows' trouble."""
    rows = list(rows)
    if app.main == "default":  # Celery's own, where no other was made
        trouble = "this process has no Celery app: import yours in the project's __init__.py"
        return {row.name: RowWindows(trouble=trouble) for row in rows}
    try:
        schedule = _schedule(rows, app)
        overview = Lookup(store_of(app)).overview([row.name for row in rows], _SHOWN)
        known = {status.entry: status for status in make_report(overview, schedule).entries}
    except OnceError as exc:
        return {row.name: RowWindows(trouble=str(exc)) for row in rows}
    found = {}
    for row in rows:
        windows = each_window(overview.entries[row.name])[:_SHOWN]
        trouble = "" if row.name in known else "no beat that lives has it"
        shown = tuple(map(WindowStatus.of, windows))
        found[row.name] = RowWindows(known.get(row.name), shown, trouble, store_of(app).settings.board_url or "")
    return found


def run(row: Any, app: Any, said: Said) -> WindowKey:
    """Order the row's newest window that has started, to be published by a beat within one look.

    Raises SettingError where it has none to be run, and StoreUnavailableError.
    """
    if not row.enabled:
        raise SettingError("it is disabled: no beat would publish it")
    entry = _entry(row, app)
    if not entry.tracked:
        raise SettingError(f"its task {entry.source.task!r} is no OnceTask: nobody would record its end")
    orders = Orders(store_of(app))
    start = orders.start_to_run(entry)
    orders.note("run", row.name, said, [start])
    try:
        (ordered,) = orders.run(row.name, [start])
    except UnknownScheduleError:
        raise UnknownScheduleError("no beat has loaded it yet") from None
    if ordered.task_id is None:
        raise SettingError("its newest window still owes its outcome")
    return WindowKey(row.name, start)


def pause(row: Any, app: Any, said: Said) -> None:
    """Have no further windows of the row claimed; raises UnknownScheduleError where no beat has loaded it."""
    store = store_of(app)
    if not store.pause(row.name, Orders(store).note("pause", row.name, said)):
        raise UnknownScheduleError("no beat has loaded it yet: disable it instead")


def resume(row: Any, app: Any, said: Said) -> None:
    """Have the row's windows claimed again; else as :func:`pause`."""
    store = store_of(app)
    if not store.resume(row.name, Orders(store).note("resume", row.name, said)):
        raise UnknownScheduleError("no beat has loaded it yet")


def _schedule(rows: Iterable[Any], app: Any) -> Any:
    app.loader.import_default_modules()  # an entry is tracked if its task is known
    app.finalize()
    found = as_entries((row for row in rows if row.enabled), OnceDatabaseScheduler.Entry, app)
    disabled = frozenset(row.name for row in rows if not row.enabled)
    return as_loaded(app, Settings.from_app(app), OnceDatabaseScheduler, found, disabled)


def _entry(row: Any, app: Any) -> BeatEntry:
    entries = _schedule([row], app).entries
    entry: BeatEntry | None = entries.get(row.name)
    if entry is None:
        raise SettingError(f"it is left out: {entries.wrong[row.name]}")
    return entry
