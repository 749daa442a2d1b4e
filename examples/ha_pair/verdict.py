"""The verdict: the ledger compared with the schedule.

What the store believes is looked at beside it, never instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from .ledger import Event, WindowKey

__all__ = ("Balance", "Copy", "Kill", "Verdict", "judge", "not_refused")


@dataclass(frozen=True)
class Kill:
    """A process that the demo killed, with all its children, and when (Unix time)."""

    who: str
    at: float


@dataclass(frozen=True)
class Copy:
    """A message that the demo sent once more, and when (Unix time)."""

    window: WindowKey
    at: float


class Balance(NamedTuple):
    """The store's account of one entry: how many windows its schedule defines, and what became of them."""

    entry: str
    defined: int
    outcomes: Mapping[str, int]
    open: int


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
    copies_sent: int = 0
    #: Sent once more, and never refused.
    copies_taken: tuple[WindowKey, ...] = ()
    #: Who claimed and who executed how many windows.
    claimed_by: tuple[tuple[str, int], ...] = ()
    executed_by: tuple[tuple[str, int], ...] = ()

    @property
    def faults(self) -> list[str]:
        """Each thing that is wrong, in words."""
        found = [
            *(f"{window} is lost: due, and not finished" for window in self.lost),
            *(f"{window} finished more than once" for window in self.finished_twice),
            *(f"{window} ran, and the schedule has no such window" for window in self.unscheduled),
            *(f"{window} started again, though nobody killed its execution" for window in self.unexplained),
            *(f"{window}: the copy of its message was not refused" for window in self.copies_taken),
        ]
        found += [
            f"the store's account of {balance.entry} doesn't balance: "
            f"{balance.defined} windows, {balance.outcomes}, {balance.open} open"
            for balance in self.balances
            if balance.outcomes != {"done": balance.defined} or balance.open
        ]
        return found

    @property
    def headline(self) -> str:
        """The verdict in a word."""
        return "verdict: " + ("wrong" if self.faults else "as promised")

    def rows(self) -> list[tuple[str, str, str]]:
        """The verdict as a table: what, its figure, and what to know of it."""
        rows = [
            ("windows", str(self.windows), "owed by the schedule while the beats ran"),
            ("finished once", str(self.finished_once), _shares(self.executed_by)),
            ("finished twice", str(len(self.finished_twice)), ""),
            ("lost", str(len(self.lost)), ""),
            ("unscheduled", str(len(self.unscheduled)), ""),
            ("extra starts", str(self.extra_starts), "each after an execution that was killed"),
            ("unexplained starts", str(len(self.unexplained)), ""),
            ("copies sent", str(self.copies_sent), "as by a broker that delivers a message twice"),
            ("copies refused", str(self.copies_sent - len(self.copies_taken)), ""),
            ("longest lateness", f"{self.late_touched:.2f} s", "of windows that a kill touched"),
            ("", f"{self.late_others:.2f} s", "of all others"),
        ]
        if self.claimed_by:
            rows.insert(1, ("claimed", str(sum(number for _, number in self.claimed_by)), _shares(self.claimed_by)))
        if self.balances:
            outcomes: Counter[str] = Counter()
            for balance in self.balances:
                outcomes.update(balance.outcomes)
            said = " + ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
            still_open = sum(balance.open for balance in self.balances)
            defined = sum(balance.defined for balance in self.balances)
            rows.append(("store's account", str(defined), f"= {said} + {still_open} open"))
        return rows


def _shares(by: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{number} by {who}" for who, number in by)


def judge(
    events: Sequence[Event],
    owed: Iterable[WindowKey],
    kills: Sequence[Kill],
    balances: Iterable[Balance] = (),
    copies: Sequence[Copy] = (),
) -> Verdict:
    """Compare what ran with the windows that the schedule owed.

    A start after the first one of a window is excused only if the execution before it hadn't finished and its
    process was killed in between; no copy excuses one.
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
            ended = any(before.same_run(finish) for finish in finishes.get(window, ()))
            if killed and not ended:
                excused += 1
            else:
                unexplained.append(window)

    late = {True: 0.0, False: 0.0}
    for window, ends in finishes.items():
        begun = [start for start in starts.get(window, ()) if start.same_run(ends[0])]
        if begun:
            touched = any(window.due <= kill.at < ends[0].at for kill in kills)
            late[touched] = max(late[touched], begun[-1].at - window.due)

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
        copies_sent=len(copies),
        copies_taken=not_refused(events, copies),
        claimed_by=_count(events, "claimed"),
        executed_by=_count(events, "finish"),
    )


def not_refused(events: Sequence[Event], copies: Sequence[Copy]) -> tuple[WindowKey, ...]:
    """The copies for which no refusal after their sending is left; a refusal answers for one copy only."""
    refusals = [event for event in events if event.kind == "refused"]
    taken = []
    for copy in sorted(copies, key=lambda copy: copy.at):
        for refusal in refusals:
            if refusal.window == copy.window and refusal.at >= copy.at:
                refusals.remove(refusal)
                break
        else:
            taken.append(copy.window)
    return tuple(sorted(taken))


def _count(events: Sequence[Event], kind: str) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(event.who for event in events if event.kind == kind).items()))
