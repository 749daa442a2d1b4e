"""What the store is asked, and what it tells of an entry. Its answers to the verbs are in ``replies``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from .errors import OnceError

__all__ = ("ClaimRequest", "EntryAccount", "Heartbeat", "LoadRequest", "Overdue", "WindowKey")


@dataclass(frozen=True)
class WindowKey:
    """Names a window: its entry and its start (aware UTC)."""

    entry: str
    start: datetime


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
    #: The beats alive; what vanished beats loaded doesn't count.
    alive: Sequence[str] = ()
    loaded_at: int = 0
    #: The cursor as this beat knew it; used only where the store has lost it. Aware UTC.
    known: datetime | None = None


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


@dataclass(frozen=True)
class Heartbeat:
    """The server's time (aware UTC), the beats alive, and whether the server hadn't known of this one."""

    now: datetime
    beats: tuple[str, ...]
    new: bool


@dataclass(frozen=True)
class Overdue:
    """Windows past their deadline, as far as one look shows them: for each shard a list, or its error."""

    shards: list[list[WindowKey | None] | OnceError]
    heartbeat: Heartbeat


@dataclass(frozen=True)
class EntryAccount:
    """What the store knows of an entry; instants are aware UTC."""

    cursor: datetime
    born: datetime
    since: datetime
    last_done: datetime | None
    paused: bool
    fence: int
    #: Copies of messages that begin has refused.
    refused: int
    #: By outcome, for the windows with ``since < start <= cursor``; ``untracked`` is one of them.
    counts: dict[str, int]
    #: By outcome: backfills, and windows of an earlier definition.
    apart: dict[str, int]
    #: Start of each open window → whether it is a backfill.
    open: dict[datetime, bool] = field(default_factory=dict)
