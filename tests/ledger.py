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
from typing import Any


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

    def finishes(self, entry: str) -> Counter[str]:
        """How often each window of the entry, by its start, was brought to its end."""
        return Counter(event["start"] for event in self.read("finish", entry=entry))

    def finished_twice(self, entry: str) -> list[str]:
        """Windows with more than one finish: what must never be, unless a test provokes a stale execution."""
        return sorted(start for start, times in self.finishes(entry).items() if times > 1)
