"""The verdict: what the ledger says was done, compared with the windows that were owed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import chain, pairwise
from typing import NamedTuple

from celery.schedules import schedule

from celery_once_beat.windows import starts_after

from .ledger import Event

__all__ = ("Owed", "Verdict", "judge", "time_of_day", "windows_of")


class Owed(NamedTuple):
    """A window that is owed; ``since`` is the start of the one before. Unix times."""

    entry: str
    start: float
    since: float

    def __str__(self) -> str:
        """As people name it: the entry, and the time of day in UTC."""
        return f"{self.entry} {time_of_day(self.start)}"


def time_of_day(start: float) -> str:
    """The time of day in UTC, to the second."""
    return f"{datetime.fromtimestamp(start, timezone.utc):%H:%M:%S}"


def windows_of(entry: str, every: float, after: float, until: float) -> Iterator[Owed]:
    """The windows of an entry that starts every so many seconds, after one time and up to another."""
    instants = (datetime.fromtimestamp(second, timezone.utc) for second in (after, until))
    for start in starts_after(schedule(timedelta(seconds=every)), *instants):
        yield Owed(entry, start.timestamp(), start.timestamp() - every)


@dataclass(frozen=True)
class Verdict:
    """What the ledger says of the windows that were owed.

    Of a window whose share of the time was done in parts, one part can be lost and another one done twice.
    """

    windows: int
    once: int
    twice: tuple[Owed, ...]
    lost: tuple[Owed, ...]
    #: Done between the first and the last of them, though the entry has no such window: entry and start.
    unasked: tuple[tuple[str, float], ...]

    @property
    def kept(self) -> bool:
        """Whether each window was executed once, and nothing else was."""
        return self.once == self.windows > 0 and not (self.twice or self.lost or self.unasked)


def judge(events: Iterable[Event], owed: Iterable[Owed]) -> Verdict:
    """Compare what was done with the windows that were owed; what lies before and after them isn't looked at."""
    due = sorted(set(owed), key=lambda window: (window.start, window.entry))
    entries = {window.entry for window in due}
    done = [event for event in events if event.kind == "done" and event.entry in entries]
    times = {window: _times_done(window, [event for event in done if event.entry == window.entry]) for window in due}
    asked = {(window.entry, window.start) for window in due}
    between = [event for event in done if due and due[0].start <= event.start <= due[-1].start]
    return Verdict(
        windows=len(due),
        once=sum(1 for least, most in times.values() if least == most == 1),
        twice=tuple(window for window, (_, most) in times.items() if most > 1),
        lost=tuple(window for window, (least, _) in times.items() if least == 0),
        unasked=tuple(
            sorted(
                (event.entry, event.start)
                for event in between
                if event.since is None and (event.entry, event.start) not in asked
            )
        ),
    )


def _times_done(window: Owed, done: Iterable[Event]) -> tuple[int, int]:
    """How often the window's share of the time was done: the part that was done least, and the one done most."""
    ranges = []
    for event in done:
        if event.since is not None:
            ranges.append((max(event.since, window.since), min(event.start, window.start)))
        elif event.start == window.start:
            ranges.append((window.since, window.start))
    ranges = [(since, until) for since, until in ranges if since < until]
    cuts = sorted({window.since, window.start, *chain.from_iterable(ranges)})
    counts = [sum(since <= left and right <= until for since, until in ranges) for left, right in pairwise(cuts)]
    return min(counts), max(counts)
