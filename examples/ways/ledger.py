"""What the jobs on the nodes really did, one line an event and only ever appended to."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from examples.ha_pair.ledger import Lines

__all__ = ("Event", "Ledger")


@dataclass(frozen=True)
class Event:
    """A job on the node ``who`` started, is done or failed (``kind``). All times are Unix times.

    ``entry`` and ``start`` name the window that the job took itself to run. Where it worked on a range of time that
    range is the one from ``since`` up to ``start``.
    """

    kind: str
    who: str
    at: float
    entry: str
    start: float
    since: float | None = None

    @property
    def over(self) -> bool:
        """Whether it says how a job ended."""
        return self.kind != "start"


class Ledger:
    """The file at ``path``, to which all nodes append."""

    def __init__(self, path: str | os.PathLike[str], who: str = "?") -> None:
        self._lines = Lines(path)
        self._who = who

    def write(self, kind: str, entry: str, start: float, since: float | None) -> None:
        """Append an event. Once this returns the line is there as a whole, whatever becomes of the process."""
        now = time.time()
        self._lines.append(vars(Event(kind, self._who, now, entry, start, since)))

    def news(self) -> list[Event]:
        """The events since the last call, in the order in which they were written."""
        return [Event(**line) for line in self._lines.unread()]
