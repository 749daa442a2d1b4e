"""Beats, workers and queues, as the store knows them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta

from celery_once_beat.lookup import BeatSeen
from celery_once_beat.settings import WORKER_TTL
from celery_once_beat.wording import number_of, printable, short, shown, some, span


def in_seconds(duration: timedelta) -> float:
    """Return a duration as a report has it."""
    return round(duration.total_seconds(), 3)


@dataclass(frozen=True, slots=True)
class BeatStatus:
    """A living beat; what it hasn't reported is None."""

    beat: str
    #: Seconds since the store heard of it.
    heard: float
    lag: float | None = None
    offset: float | None = None
    entries: int | None = None
    untracked: int | None = None
    version: str | None = None
    #: How many of its entries it has yet to load.
    unloaded: int | None = None
    #: Of which app it is.
    app: str | None = None
    #: Why its ticks fail, as it was recorded and not escaped; '' where they don't. And for how many seconds they have.
    failing: str = ""
    failing_for: float = 0.0
    #: What its broker does, so that it claims nothing; '' where all is well. And for how many seconds.
    broker: str = ""
    broker_for: float = 0.0
    #: Entries that it leaves out, each with why, not escaped; a few.
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: Its limits, each with its slots.
    limits: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, seen: BeatSeen) -> BeatStatus:
        """Make it of what the store says."""
        known = {f.name: getattr(seen.report, f.name) for f in fields(seen.report)} if seen.report else {}
        return cls(seen.name, round(seen.heard, 3), app=seen.app, **known)

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


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker that knows windows."""

    worker: str
    #: Seconds since it last reported; None: it never did, but runs a window.
    heard: float | None
    #: How many windows it runs.
    running: int
    #: The queues that it consumes, or consumed when it was heard of last.
    queues: tuple[str, ...] = ()

    #: Entries whose windows hang there.
    hung: tuple[str, ...] = ()
    #: Windows whose messages wait there, and for how many seconds the first of them has.
    reserved: int = 0
    waited: int = 0
    #: Tasks that it executes, as it reported with these; None: it didn't, or a rate limit holds them back.
    executes: int | None = None
    #: Of its windows those that hang, or don't renew their leases.
    lost: int = 0

    @property
    def lives(self) -> bool:
        """Whether it reported lately; one that never reports lives while it runs a window."""
        return self.running + self.reserved > 0 if self.heard is None else self.heard < WORKER_TTL

    @property
    def does(self) -> str:
        """What it does, where messages wait in it."""
        if self.executes is None:
            return "holds it back by a rate limit"
        tasks = number_of(self.executes, "task") if self.executes else "nothing"
        return f"executes {tasks}" + (f", of which {some([*map(shown, self.hung)], 1)} hangs" if self.hung else "")

    @property
    def why(self) -> str:
        """Why the messages that wait in it do."""
        return f"reserved by {short(self.worker)}, which {self.does}"


@dataclass(frozen=True, slots=True)
class StuckQueue:
    """A queue with windows that were published to it, and wait for too long."""

    queue: str
    #: How many wait.
    stuck: int
    #: Workers that know windows, live and consume it; how many windows they run; and entries whose windows hang there.
    workers: tuple[str, ...] = ()
    running: int = 0
    hung: tuple[str, ...] = ()
    #: A worker that consumed it and has stopped reporting.
    lost: str = ""

    @property
    def why(self) -> str:
        """Why its windows wait."""
        name = f"the queue {shown(self.queue)}"
        if not self.workers:
            gone = f": {short(self.lost)} did, and has stopped reporting" if self.lost else ""
            return f"no worker consumes {name}{gone}"
        busy = f"{name} has {number_of(len(self.workers), 'worker')}, busy with {number_of(self.running, 'window')}"
        return busy + (f", of which {some([*map(shown, self.hung)], 1)} hangs" if self.hung else "")


@dataclass(frozen=True, slots=True)
class Trouble:
    """What concerns all entries."""

    #: The name of a judgement.
    reason: str
    words: str
    #: Nothing is claimed while it lasts.
    stops_all: bool = False
