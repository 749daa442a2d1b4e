"""What really happened, one line an event and only ever appended to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from celery_once_beat.windows import Window, format_instant, parse_instant

__all__ = ("Event", "Ledger", "Lines", "WindowKey")


class WindowKey(NamedTuple):
    """One window; ``start`` is its canonical text, in UTC."""

    entry: str
    start: str

    def __str__(self) -> str:
        """As people name it: the entry, and the time of day in UTC."""
        return f"{self.entry} {self.start[11:19]}"

    @property
    def due(self) -> float:
        """The window's start as Unix time."""
        return parse_instant(self.start).timestamp()


@dataclass(frozen=True)
class Event:
    """One line of the ledger. ``at`` is the Unix time at which ``who`` (a process's name) wrote it.

    ``kind`` is ``claimed`` or ``published`` (by a beat; ``again`` if it had been before), ``start`` or ``finish`` (of
    a body, by a worker), or ``refused`` (by a worker: a copy of the message; ``reason`` says why).
    """

    kind: str
    who: str
    pid: int
    at: float
    entry: str
    start: str
    attempt: int = 1
    again: bool = False
    reason: str = ""

    @property
    def window(self) -> WindowKey:
        """The window that it is about."""
        return WindowKey(self.entry, self.start)

    @property
    def refusal(self) -> str:
        """``closed`` where the window had its outcome, ``busy`` where somebody else had it."""
        return self.reason if self.reason == "closed" else "busy"

    def same_run(self, other: Event) -> bool:
        """Whether both are of one execution."""
        return (self.window, self.who, self.pid, self.attempt) == (other.window, other.who, other.pid, other.attempt)


class Lines:
    """A file of JSON lines, to which any number of processes append."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._read = 0

    def append(self, fields: Mapping[str, Any]) -> None:
        """Append a line. Once this returns it is there as a whole, whatever becomes of the process."""
        # One write to a file opened for appending: the kernel keeps the lines of several writers apart.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, json.dumps(fields).encode() + b"\n")
        finally:
            os.close(file)

    def unread(self) -> list[dict[str, Any]]:
        """The lines since the last call, in the order in which they were written."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]  # a line without its end is still being written
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class Ledger:
    """What the beats and workers of the demo do, in the file at ``path``."""

    def __init__(self, path: str | os.PathLike[str], who: str = "?") -> None:
        self.path = Path(path)
        self.who = who
        self._lines = Lines(path)

    def write(self, kind: str, window: Window, **fields: Any) -> None:
        """Append an event. Once this returns the line is there as a whole, whatever becomes of the process."""
        event = {
            "kind": kind,
            "who": self.who,
            "pid": os.getpid(),
            "at": time.time(),
            "entry": window.entry,
            "start": format_instant(window.start),
            "attempt": window.attempt,
            **fields,
        }
        self._lines.append(event)

    @contextmanager
    def execution(self, window: Window) -> Iterator[None]:
        """Write that a body starts and, if it comes to its end, that it finished."""
        self.write("start", window)
        yield
        self.write("finish", window)

    def news(self) -> list[Event]:
        """The events since the last call, in the order in which they were written."""
        return [Event(**line) for line in self._lines.unread()]
