"""The schedule as a beat of this app would load it, for display. Writes nothing.

A stock scheduler that is built lazily is empty, and setting up a database scheduler writes rows: each is read another
way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.beat import Scheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name

from celery_once_beat.errors import OnceError, SettingError
from celery_once_beat.settings import Settings
from celery_once_beat.wording import shown

from .entries import Entries
from .scheduler import OnceScheduler


@dataclass(frozen=True)
class LoadedSchedule:
    """The schedule of one app."""

    entries: Entries
    #: The scheduler class.
    scheduler: str
    #: Whether that one claims windows; False: a stock scheduler.
    claims_windows: bool
    #: Names of what a database has and isn't to run.
    disabled: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """Of all that people are shown."""
        return [*(entry.name for entry in self.entries), *self.disabled]


def load_schedule(
    app: Celery, settings: Settings, scheduler: str | None = None, known: Entries | None = None
) -> LoadedSchedule:
    """Return the entries of ``app``; ``scheduler`` is a class or its short name, as beat's ``-S`` takes it.

    ``known`` are those of an earlier call, which are kept: an entry whose definition is the same stays the same object.
    Raises SettingError where there is no such scheduler.
    """
    # As beat does before it makes its scheduler: tasks add entries of their own.
    app.loader.import_default_modules()
    app.finalize()
    cls, found, disabled = read_entries(app, scheduler or app.conf.beat_scheduler)
    entries = Entries("", settings, app.tasks) if known is None else known
    return as_loaded(entries, cls, found, disabled)


def read_entries(app: Celery, scheduler: str) -> tuple[type[Scheduler], dict[str, Any], frozenset[str]]:
    """Return the class of a scheduler, the entries that Celery would give it, and the names of disabled ones."""
    try:
        extensions: Any = load_extension_class_names("celery.beat_schedulers")
        cls = symbol_by_name(scheduler, aliases=dict(extensions or ()))
    except (ImportError, AttributeError, ValueError) as exc:
        raise SettingError(f"beat_scheduler: found {shown(scheduler)}, expected a scheduler's class: {exc}") from exc
    try:
        with silence():
            return cls, *_read_entries(app, cls)
    except OnceError:
        raise
    except Exception as exc:  # its text may hold a password
        raise SettingError(f"the schedule of {shown(scheduler)} can't be read: {type(exc).__name__}") from exc


def as_loaded(
    entries: Entries, cls: type[Scheduler], found: dict[str, Any], disabled: frozenset[str]
) -> LoadedSchedule:
    """Return ``found``, entries of Celery's own by name, as a beat with the scheduler ``cls`` would load them.

    ``entries`` become those.
    """
    with silence():  # the caller shows what a beat would log
        entries.refresh(found)
    claims_windows = bool(getattr(cls, "claims_windows", False))
    return LoadedSchedule(entries, f"{cls.__module__}:{cls.__qualname__}", claims_windows, disabled)


def _read_entries(app: Celery, cls: type[Scheduler]) -> tuple[dict[str, Any], frozenset[str]]:
    from_conf = OnceScheduler(app, lazy=True)
    Scheduler.setup_schedule(from_conf)  # OnceScheduler's own needs a Redis, which isn't asked here
    entries = dict(from_conf.schedule)
    if hasattr(cls, "all_as_schedule"):  # a database's: its rows are read, none is made
        stored: Any = cls(app=app, lazy=True)  # by name, as beat does
        # django-celery-beat's disables a row that it can't read.
        stored.Entry = type("Entry", (stored.Entry,), {"_disable": lambda *_: None})
        entries.update(stored.all_as_schedule())
        # Of Django's models alone: the app's conf may have an entry whose row is disabled.
        rows = getattr(getattr(stored, "Model", None), "objects", None)
        off = frozenset(() if rows is None else rows.filter(enabled=False).values_list("name", flat=True))
        return {name: entry for name, entry in entries.items() if name not in off}, off
    return entries, frozenset()


class _Quiet(threading.local):
    """Threads that read a schedule, in which nothing is logged. Others, of a web server say, still log."""

    now = False

    def filter(self, _: logging.LogRecord) -> bool:
        """Whether a record of this thread is logged."""
        return not self.now


_quiet = _Quiet()


@contextmanager
def silence() -> Iterator[None]:
    """Log nothing."""
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        if isinstance(logger, logging.Logger):
            logger.addFilter(_quiet)  # once: it knows those that it has
    before, _quiet.now = _quiet.now, True
    try:
        yield
    finally:
        _quiet.now = before
