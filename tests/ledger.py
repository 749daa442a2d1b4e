"""An append-only record of what really ran, written by the tasks of the tests and read by the tests.

It knows nothing of the package: what it counts is what happened, not what the store believes.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple


class WindowKey(NamedTuple):
    """One window of one entry; ``start`` is the text that the task wrote."""

    entry: str
    start: str


class Counts(NamedTuple):
    """How often a window was begun and how often it was brought to its end."""

    starts: int
    finishes: int


class Ledger:
    """A file of one JSON object a line. Any number of processes may write at the same time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event: *kind* (``"start"``, ``"finish"``, …) and what the caller knows of it.

        Usual fields: ``entry``, ``start`` (text of the window's start), ``attempt``, ``fence``. ``pid``,
        ``host``, ``at`` (``time.time()`` of the writer, whose clock may be a fake one) and ``mono`` (the machine's
        monotonic clock, which never is) are filled in.
        The line is there as a whole once this returns, also if the process is killed in the next instant.
        """
        who = {"pid": os.getpid(), "host": socket.gethostname()}
        event = {"kind": kind, **who, "at": time.time(), "mono": time.monotonic(), **fields}
        line = json.dumps(event, default=str).encode() + b"\n"
        # One write to a file opened for appending: the kernel keeps lines of several writers apart.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            written = os.write(file, line)
        finally:
            os.close(file)
        if written != len(line):
            raise OSError(f"{self.path}: wrote {written} of {len(line)} bytes")

    def read(self, *kinds: str, **fields: Any) -> list[dict[str, Any]]:
        """All events in the order in which they were written, or those of these *kinds* and *fields*."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return []
        whole, _, _ = text.rpartition("\n")  # a line without its end is still being written
        events = [json.loads(line) for line in whole.split("\n") if line]
        return [
            event
            for event in events
            if (not kinds or event["kind"] in kinds) and all(event.get(name) == value for name, value in fields.items())
        ]

    def windows(self, entry: str | None = None) -> list[WindowKey]:
        """Every window that an event names, each once, in order of entry and start."""
        return sorted(self.summary(entry))

    def summary(self, entry: str | None = None) -> dict[WindowKey, Counts]:
        """Starts and finishes of every window, of one *entry* or of all."""
        starts: Counter[WindowKey] = Counter()
        finishes: Counter[WindowKey] = Counter()
        seen: dict[WindowKey, None] = {}
        for event in self.read():
            if "entry" not in event or "start" not in event:
                continue
            if entry is not None and event["entry"] != entry:
                continue
            key = WindowKey(event["entry"], event["start"])
            seen[key] = None
            if event["kind"] == "start":
                starts[key] += 1
            elif event["kind"] == "finish":
                finishes[key] += 1
        return {key: Counts(starts[key], finishes[key]) for key in seen}

    def finished(self, entry: str | None = None) -> list[WindowKey]:
        """Windows with at least one finish."""
        return sorted(key for key, counts in self.summary(entry).items() if counts.finishes)

    def finished_twice(self, entry: str | None = None) -> list[WindowKey]:
        """Windows with more than one finish: what must never be, unless a test provokes a stale execution."""
        return sorted(key for key, counts in self.summary(entry).items() if counts.finishes > 1)

    def started_twice(self, entry: str | None = None) -> list[WindowKey]:
        """Windows with more than one start: expected after a crash or a retry, and only then."""
        return sorted(key for key, counts in self.summary(entry).items() if counts.starts > 1)

    def unfinished(self, entry: str | None = None) -> list[WindowKey]:
        """Windows that were begun and have no finish."""
        return sorted(key for key, counts in self.summary(entry).items() if counts.starts and not counts.finishes)
