"""What the code on a node has: its name, the database and the server that all nodes share, a timer, and the ledger."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from threading import Thread
from typing import Any

from .ledger import Ledger

__all__ = ("DATABASE", "NAME", "SETTINGS", "URL", "database", "run", "side_by_side", "timer")

NAME = os.environ.get("WAYS_NODE", "?")
URL = os.environ.get("WAYS_URL", "redis://localhost")
DATABASE = os.environ.get("WAYS_DATABASE", "ways.db")

#: For the apps: shorter times than the defaults, as everything here is.
SETTINGS = {
    "beat_scheduler": "once",
    "once_beat_lease": 3,
    "once_beat_publish_timeout": 2,
    "once_beat_start_timeout": 4,
    "once_beat_recovery_interval": 0.5,
    "once_beat_marker_ttl": 5,
    "broker_connection_retry_on_startup": True,
}

_ledger = Ledger(os.environ.get("WAYS_LEDGER", os.devnull), NAME)


def database() -> sqlite3.Connection:
    """A connection to the database that all nodes share; each statement is a transaction of its own."""
    return sqlite3.connect(DATABASE, isolation_level=None, timeout=30)


def timer(every: float) -> Iterator[float]:
    """Yield each time that is due, once it has come, as Unix time: whole multiples of ``every`` seconds.

    The same on each node, as by cron. One that passes while the caller works is left out; one for which the node waits
    while it stands still comes late.
    """
    print("node ready.", flush=True)
    due = 0.0
    while True:
        due = max(due + every, (time.time() // every + 1) * every)
        while time.time() < due:
            time.sleep(max(due - time.time(), 0.0))
        yield due


def side_by_side(function: Callable[..., None], arguments: Iterable[tuple[Any, ...]]) -> None:
    """Call a function with each of these arguments, each in a thread of its own; returns once all have."""
    threads = [Thread(target=function, args=each) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def run(entry: str, start: float | datetime, since: float | datetime | None = None) -> Iterator[None]:
    """Write into the ledger that a job runs, and how it ended.

    ``start`` is that of the window that it takes itself to run. A job that works on a range of time says from when it
    does: it has then done what lies after ``since`` and up to ``start``.
    """
    window = entry, _unix(start), None if since is None else _unix(since)
    _ledger.write("start", *window)
    try:
        yield
    except Exception:
        _ledger.write("failed", *window)
        raise
    _ledger.write("done", *window)


def _unix(instant: float | datetime) -> float:
    return instant.timestamp() if isinstance(instant, datetime) else instant
