"""The conservation law, by which ``audit`` checks what the store has counted. Pure.

From an entry's first cursor under its present definition to its cursor now, the windows that its schedule defines
= the sum of its outcomes + open + untracked. It needs no history; backfills are counted apart. A polled schedule
defines the windows that were claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from celery.schedules import BaseSchedule

from .starts import count_starts, is_polled

__all__ = ("Balance", "balance")


class Account(Protocol):
    """What the law needs of an entry's account in the store; instants are aware UTC."""

    @property
    def since(self) -> datetime: ...
    @property
    def cursor(self) -> datetime: ...
    @property
    def counts(self) -> dict[str, int]: ...
    @property
    def owed(self) -> int: ...


@dataclass(frozen=True)
class Balance:
    """One entry's account: windows that its schedule defines, against those the store accounts for."""

    entry: str
    defined: int
    outcomes: dict[str, int]
    open: int

    @property
    def accounted(self) -> int:
        """Windows with an outcome, open or untracked."""
        return sum(self.outcomes.values()) + self.open

    @property
    def even(self) -> bool:
        """Whether the law holds."""
        return self.defined == self.accounted


def balance(
    entry: str,
    schedule: BaseSchedule,
    account: Account,
    *,
    anchor: datetime | None = None,
    offset: timedelta = timedelta(0),
) -> Balance:
    """Recompute the left side of the law from ``schedule``, for all windows since the definition came in force.

    ``offset`` is how much later the entry starts than its schedule says (``spread``).
    """
    accounted = dict(account.counts), account.owed
    if is_polled(schedule):  # it has the windows that were claimed
        return Balance(entry, sum(account.counts.values()) + account.owed, *accounted)
    defined = count_starts(schedule, account.since - offset, account.cursor - offset, anchor=anchor)
    return Balance(entry, defined, *accounted)
