"""What the store is asked. Its answers are in ``replies``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from .windows import Window

__all__ = ("ASTRAY", "ClaimRequest", "Confirmation", "KeyedWindow", "LoadRequest", "Renewal", "WindowKey", "key_of")

#: Of a :class:`Confirmation`: its message went out, and no worker will know that it was sent for a window.
ASTRAY = 2


@dataclass(frozen=True)
class WindowKey:
    """Names a window: its entry and its start (aware UTC)."""

    entry: str
    start: datetime


@dataclass(frozen=True)
class KeyedWindow(WindowKey):
    """A window of a user-defined key, ``entry``. Its hash has the fence alone, and it has no place in the open set."""

    #: Aware UTC; None: no other comes.
    end: datetime | None = None


def key_of(window: Window) -> WindowKey:
    """Return how the store is asked about ``window``."""
    if window.keyed:
        return KeyedWindow(window.entry, window.start, window.end)
    return WindowKey(window.entry, window.start)


@dataclass(frozen=True)
class LoadRequest:
    """One entry's definition as a beat has it. Times are seconds, ``loaded_at`` is server ms, 0 the first time."""

    entry: str
    beat: str
    fingerprint: str
    #: How long the entry is remembered after the last contact.
    ttl: float
    max_attempts: int
    recover: bool
    grace: float | None
    #: The beats alive; what vanished beats loaded doesn't count, unless they loaded it since ``asked_at``.
    alive: Collection[str] = ()
    loaded_at: int = 0
    #: The cursor as this beat knew it; used only where the store has lost it. Aware UTC.
    known: datetime | None = None
    #: Seconds after which a window that failed runs again, 0: never; None: as the task says.
    retry_failed_after: float | None = None
    #: ``allow`` or ``skip``; None: as the task says.
    overlap: str | None = None
    #: From where a definition that is new or changed counts; None for now. Aware UTC.
    counts_from: datetime | None = None
    #: Until when the beat knows that the entry was in no schedule: windows up to then don't count. Aware UTC.
    absent_at: datetime | None = None
    #: When the server said who is alive. Aware UTC; None: just now.
    asked_at: datetime | None = None


@dataclass(frozen=True)
class ClaimRequest:
    """One claim of a pipeline: ``window`` next to ``from_cursor``, passing over ``missed``."""

    window: WindowKey
    from_cursor: datetime
    fingerprint: str
    #: ``run``, ``untracked``, or ``pass``: the window itself is missed.
    mode: str = "run"
    #: Seconds from now after which the message expires; None for never.
    expires: float | None = None
    #: The newest of the windows passed over, in order, and how many there are in all.
    missed: Sequence[datetime] = ()
    missed_count: int = 0


class Confirmation(NamedTuple):
    """Whether the message of a window that was claimed or taken went out."""

    window: WindowKey
    #: As the claim or take gave it: it tells this publish from a later one.
    turn: int
    #: 1 it did; 0 no, or perhaps not; -1 it can't be made: the window fails after max_attempts; ASTRAY: it ends as
    #: untracked.
    published: int
    #: Seconds for which it may wait for a worker.
    start_timeout: float


class Renewal(NamedTuple):
    """One lease to be renewed for ``lease`` seconds."""

    window: WindowKey
    owner: str
    fence: int
    lease: float
    tracked: bool
