"""What really ran, one line an event and only ever appended to, and the verdict on it.

The verdict compares the ledger with the schedule. What the store believes is looked at beside it, never instead.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from celery_once_beat.audit import Balance
from celery_once_beat.windows import Window, format_instant, parse_instant

__all__ = ("Event", "Kill", "Ledger", "Verdict", "WindowKey", "judge")


class WindowKey(NamedTuple):
    """One window; ``start`` is its canonical text, in UTC."""

    entry: str
    start: str

    def __str__(self) -> str:
        return f"{self.entry} {self.start[11:19]}"


@dataclass(frozen=True)
class Event:
    """One line of the ledger. ``at`` is the Unix time at which ``who`` (a process's name) wrote it.

    ``kind`` is ``published`` (by a beat; ``again`` if it had been before), ``start`` or ``finish`` (of a body).
    """

    kind: str
    who: str
    pid: int
    at: float
    entry: str
    start: str
    attempt: int = 1
    again: bool = False

    @property
    def window(self) -> WindowKey:
        return WindowKey(self.entry, self.start)


class Ledger:
    """A file of JSON lines, to which any number of processes append."""

    def __init__(self, path: str | os.PathLike[str], who: str = "?") -> None:
        self.path = Path(path)
        self.who = who
        self._read = 0

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
        # One write to a file opened for appending: the kernel keeps the lines of several writers apart.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, json.dumps(event).encode() + b"\n")
        finally:
            os.close(file)

    @contextmanager
    def execution(self, window: Window) -> Iterator[None]:
        """Write that a body starts and, if it comes to its end, that it finished."""
        self.write("start", window)
        yield
        self.write("finish", window)

    def news(self) -> list[Event]:
        """The events since the last call, in the order in which they were written."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]  # a line without its end is still being written
        self._read += len(whole)
        return [Event(**json.loads(line)) for line in whole.splitlines()]


@dataclass(frozen=True)
class Kill:
    """A process that the demo killed, with all its children, and when (Unix time)."""

    who: str
    at: float


@dataclass(frozen=True)
class Verdict:
    """What the ledger says of the windows that were owed; it was right if ``faults`` is empty."""

    windows: int
    finished_once: int
    lost: tuple[WindowKey, ...]
    finished_twice: tuple[WindowKey, ...]
    #: Executed, though the schedule has no such window.
    unscheduled: tuple[WindowKey, ...]
    #: Starts after the first, where the execution before was killed.
    extra_starts: int
    #: Starts after the first, where it wasn't.
    unexplained: tuple[WindowKey, ...]
    #: Seconds from a window's start to that of the execution that finished it; the windows that were due and
    #: not finished when something was killed, and all others.
    late_touched: float
    late_others: float
    balances: tuple[Balance, ...] = ()

    @property
    def faults(self) -> list[str]:
        """Each thing that is wrong, in words."""
        found = [
            *(f"{window} is lost: due, and not finished" for window in self.lost),
            *(f"{window} finished more than once" for window in self.finished_twice),
            *(f"{window} ran, and the schedule has no such window" for window in self.unscheduled),
            *(f"{window} started again, though nobody killed its execution" for window in self.unexplained),
        ]
        for balance in self.balances:
            if balance.outcomes.get("done", 0) != balance.defined or not balance.even:
                found.append(
                    f"the store's account of {balance.entry} doesn't balance: "
                    f"{balance.defined} windows, {balance.outcomes}, {balance.open} open"
                )
        return found

    def lines(self) -> list[str]:
        """The verdict as a table."""
        rows = [
            ("windows", str(self.windows), "owed by the schedule while the beats ran"),
            ("finished once", str(self.finished_once), ""),
            ("finished twice", str(len(self.finished_twice)), ""),
            ("lost", str(len(self.lost)), ""),
            ("unscheduled", str(len(self.unscheduled)), ""),
            ("extra starts", str(self.extra_starts), "each after an execution that was killed"),
            ("unexplained starts", str(len(self.unexplained)), ""),
            ("longest lateness", f"{self.late_touched:.2f} s", "of windows that a kill touched"),
            ("", f"{self.late_others:.2f} s", "of all others"),
        ]
        if self.balances:
            outcomes: Counter[str] = Counter()
            for balance in self.balances:
                outcomes.update(balance.outcomes)
            said = " + ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
            still_open = sum(balance.open for balance in self.balances)
            defined = sum(balance.defined for balance in self.balances)
            rows.append(("store's account", str(defined), f"= {said} + {still_open} open"))
        lines = ["verdict: " + ("wrong" if self.faults else "as promised")]
        lines += [f"  {name:<20}{figure:>7}  {words}".rstrip() for name, figure, words in rows]
        lines += [f"  fault: {fault}" for fault in self.faults]
        return lines


def judge(
    events: Sequence[Event],
    owed: Iterable[WindowKey],
    kills: Sequence[Kill],
    balances: Iterable[Balance] = (),
) -> Verdict:
    """Compare what ran with the windows that the schedule owed.

    A start after the first one of a window is excused only if the execution before it hadn't finished and its
    process was killed in between.
    """
    due = set(owed)
    starts: dict[WindowKey, list[Event]] = {}
    finishes: dict[WindowKey, list[Event]] = {}
    for event in events:
        if event.kind in ("start", "finish"):
            by_window = starts if event.kind == "start" else finishes
            by_window.setdefault(event.window, []).append(event)

    excused, unexplained = 0, []
    for window, runs in starts.items():
        for before, after in pairwise(runs):
            killed = any(kill.who == before.who and before.at <= kill.at <= after.at for kill in kills)
            ended = any(_same_run(before, finish) for finish in finishes.get(window, ()))
            if killed and not ended:
                excused += 1
            else:
                unexplained.append(window)

    late = {True: 0.0, False: 0.0}
    for window, ends in finishes.items():
        begun = [start for start in starts.get(window, ()) if _same_run(start, ends[0])]
        if begun:
            due_at = parse_instant(window.start).timestamp()
            touched = any(due_at <= kill.at < ends[0].at for kill in kills)
            late[touched] = max(late[touched], begun[-1].at - due_at)

    return Verdict(
        windows=len(due),
        finished_once=sum(1 for window in due if len(finishes.get(window, ())) == 1),
        lost=tuple(sorted(due - finishes.keys())),
        finished_twice=tuple(sorted(window for window, ends in finishes.items() if len(ends) > 1)),
        unscheduled=tuple(sorted((starts.keys() | finishes.keys()) - due)),
        extra_starts=excused,
        unexplained=tuple(sorted(unexplained)),
        late_touched=late[True],
        late_others=late[False],
        balances=tuple(balances),
    )


def _same_run(start: Event, finish: Event) -> bool:
    return (start.who, start.pid, start.attempt) == (finish.who, finish.pid, finish.attempt)
