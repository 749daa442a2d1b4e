"""Workers and queues, as the store knows them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from celery_once_beat.settings import WORKER_TTL
from celery_once_beat.wording import number_of, short, shown, some


def in_seconds(duration: timedelta) -> float:
    """Return a duration as a report has it."""
    return round(duration.total_seconds(), 3)


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
        unheld = self.executes and (not self.running or self.executes <= self.lost)
        hangs = f", of which {some([*map(shown, self.hung)], 1)} hangs" if self.hung else ""
        return f"executes {tasks}{hangs or (', and none renews a lease' if unheld else '')}"

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
