"""What readers are shown: beats, entries, windows, records. Instants are aware UTC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from celery_once_beat.store import BeatReport, EntryAccount, Loss, OpenWindow, WorkerSeen
from celery_once_beat.wording import printable, span


@dataclass(frozen=True)
class Past:
    """One record of an entry's history: a window that has its outcome. Instants are aware UTC."""

    start: datetime
    outcome: str
    claimed: datetime
    #: When its last execution began; None where none did.
    begun: datetime | None
    closed: datetime
    attempts: int
    #: How many windows were missed, of which this is the newest; 0 for any other outcome.
    missed: int
    #: Host and process of the beat that claimed it.
    beat: str
    #: Host of its last execution; '' where there was none.
    worker: str
    #: A person ordered it: it was claimed then.
    ordered: bool = False

    @property
    def took(self) -> timedelta | None:
        """From the begin of the last execution to the end."""
        return None if self.begun is None else self.closed - self.begun


@dataclass(frozen=True, kw_only=True)
class BeatStatus(BeatReport):
    """A living beat, with its report as it was recorded: texts aren't escaped."""

    beat: str
    #: Seconds since the store heard of it.
    heard: float
    #: Of which app it is.
    app: str | None = None

    @property
    def says(self) -> dict[str, str | None]:
        """What it says of itself, as text."""
        return {
            "lag": None if self.lag is None else span(self.lag),
            "clock": None if self.offset is None else f"{self.offset:+.3f} s",
            "entries": None if self.entries is None else str(self.entries),
            "version": self.version,
        }

    @property
    def trouble(self) -> str:
        """What keeps it from claiming, and why, on one line; '' where nothing does."""
        if self.failing:
            return f"its ticks fail, for {span(self.failing_for)}: {printable(self.failing)}"
        return self.broker and f"for {span(self.broker_for)} the broker {printable(self.broker)}"


@dataclass(frozen=True)
class WindowSeen:
    """A window that is open or has its outcome."""

    start: datetime
    #: Its outcome, or how it stands: ``overdue``, ``running``, ``waiting`` (for a retry, or to run again),
    #: ``buffered`` (for its turn, or for a slot of a limit), ``published``.
    state: str
    past: Past | None = None
    open: OpenWindow | None = None
    #: Copies of its message that were refused.
    refused: int = 0
    #: When it becomes overdue, aware UTC; known of windows that run or wait, if asked for. Each renewal moves it.
    deadline: datetime | None = None
    #: For which window of its entry it waits, or for a slot of which limit; both None: for neither.
    waits_for: datetime | None = None
    limit: str | None = None
    #: By when it is to be done, as its entry's ``deadline`` is now, aware UTC. None: there is none, or it was ordered.
    done_by: datetime | None = None
    #: The recorded text of its last failure; '' where there is none.
    failure: str = ""


class Due(NamedTuple):
    """What is overdue."""

    #: By entry: start → deadline of each window, aware UTC.
    windows: dict[str, dict[datetime, datetime]]
    #: Why some of it can't be read, by a shard's number or an entry's name.
    trouble: dict[int | str, str]


@dataclass(frozen=True)
class EntrySeen:
    """How one entry stands."""

    name: str
    #: None: the store has never heard of it, or can't read it.
    account: EntryAccount | None
    #: The newest windows that have an outcome, and all that are open; newest first.
    windows: Sequence[WindowSeen] = ()
    #: Start → deadline of its overdue windows, aware UTC.
    overdue: dict[datetime, datetime] = field(default_factory=dict)
    #: Why something of it can't be read; '' where all can.
    trouble: str = ""
    #: All of its history that can be read, newest first; () unless it was asked for.
    records: Sequence[Past] = ()

    @property
    def last(self) -> WindowSeen | None:
        """The newest window that has its outcome."""
        return next((window for window in self.windows if window.past is not None), None)


@dataclass(frozen=True)
class Overview:
    """All that one look shows."""

    #: The server's time, aware UTC.
    now: datetime
    #: Seconds of the round trip.
    latency: float
    beats: list[BeatStatus]
    entries: dict[str, EntrySeen]
    #: How many overdue windows each entry has that wasn't asked for: it has left the schedule.
    strangers: dict[str, int]
    #: Descriptions of loaded entries, see ``lua/pieces/entries.lua``; if they were asked for.
    loaded: dict[str, str] = field(default_factory=dict)
    #: Workers that know windows, of the last day.
    workers: dict[str, WorkerSeen] = field(default_factory=dict)
    #: What can't be read and belongs to no entry that is shown.
    unreadable: tuple[str, ...] = ()
    #: The share of its maxmemory that the server has used; 0 where it has none, or doesn't say.
    memory: float = 0.0
    #: What the store has lost of late.
    lost: Loss | None = None


def each_window(seen: EntrySeen) -> list[WindowSeen]:
    """Return each window once, as it is now: a backfill's record replaces the one before it."""
    latest: dict[datetime, WindowSeen] = {}
    for window in seen.windows:
        if window.start not in latest or window.open is not None:
            latest[window.start] = window
    return list(latest.values())
