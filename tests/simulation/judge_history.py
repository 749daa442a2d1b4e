"""A history: which facts it may hold, and what the judge remembers of entries and their windows.

A line is a fact: ``what`` it is, ``at`` which time, and

==============  =========================================================================================
``settings``    ``entries`` and the fields of :class:`Settings`: the first line, and no other
``schedule``    ``entry``, ``description``; ``asked``, ``how``: by a deploy, or an edit
``paused``      ``entry``, ``asked``; so ``resumed``
``asked``       ``entry``, ``start``: its window is to run once more; ``revoked``: it is given up
``received``    ``entry``, ``start``, ``process``; several at one time: one of them has the message
``started``     ``entry``, ``start``, ``process``, ``execution``, ``fence``
``told``        ``entry``, ``start``, ``kind``: late or ended; ``outcome``
``ended``       ``entry``, ``start``, ``execution``, ``how``: done, failed, retried, killed or stale
``recorded``    ``entry``, ``start``, ``outcome``: these come last
``counted``     ``entry``, ``outcomes``
``fault``       ``kind``: ``killed``, ``frozen`` (``target``, ``until``), ``cut`` (``from`` server or broker, too),
                ``away`` (``target`` server or broker, ``until``), ``failover`` (``lose``), ``clock`` (``target``,
                ``by``); of a message (``entry``, ``start``): ``lost``, ``duplicated``, ``delayed`` (``until``)
``healed``      no fault comes after it
``end``         the last line
==============  =========================================================================================
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from simulation.judge_times import Grid, HistoryError, Spans, key_of

TEN_MINUTES = 600.0  # docs/failures.md: of lost messages, the last ones follow within ten minutes


QUEUE = "queue"


class Wait(NamedTuple):
    """A wait that no fact shows, in seconds: of a process, until it tries again; of messages, for a place to run.

    ``who`` is a process of the settings, ``""`` for any of them, or ``QUEUE``.
    """

    since: float
    until: float
    who: str


@dataclass(frozen=True)
class Settings:
    """What the promise depends on, in seconds."""

    lease: float
    renew: float
    start_timeout: float
    beat_late: float
    worker_late: float
    longest: float
    place_late: float  # a window may wait so long for the place of one that died
    told_late: float
    beats: tuple[str, ...]
    workers: tuple[str, ...]
    concurrency: int = 1
    tolerance: float = 60.0
    recovery_interval: float = 0.0
    wait_replicas: int = 0
    step: float = 1.0
    renew_noise: float = 1.0  # by how much a renewal may be late
    limits: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, fact: dict[str, Any]) -> Settings:
        """The settings of a history's first line."""
        known = {name: fact[name] for name in cls.__dataclass_fields__ if fact.get(name) is not None}
        for name in ("beats", "workers"):
            known[name] = tuple(known[name])
        settings = cls(**known)
        if settings.lapse <= 0:
            raise HistoryError(f"lease: found {settings.lease}, expected more than renew and its noise together")
        return settings

    @property
    def slow(self) -> float:
        """How long a window whose message is lost may take to begin."""
        return self.start_timeout + TEN_MINUTES + self.worker_late

    @property
    def put_back(self) -> float:
        """How long a window may take to begin after the server was away."""
        return max(self.worker_late, self.recovery_interval)

    @property
    def lapse(self) -> float:
        """Out of contact for so long, an execution may have lost its lease: it was renewed up to ``renew`` before."""
        return self.lease - self.renew - self.renew_noise


def settling(settings: Settings) -> float:
    """Within so many seconds after the last fault, and what the backlog takes, everything owed has ended."""
    return settings.slow + settings.worker_late + 2 * settings.longest + 4 * settings.step


class Run:
    """From when to when an entry had the same windows. Its options may change meanwhile."""

    def __init__(self, grid: Grid, asked: float, at: float, description: dict[str, Any]) -> None:
        self.grid, self.asked, self.at = grid, asked, at
        self.end: tuple[float, float] | None = None  # asked, at
        self.left: tuple[float, float] | None = None  # … if a deploy left it out
        self.described = [(asked, description)]
        self.surely_out, self.maybe_out = Spans(), Spans()  # when a deploy had left it out
        self.set_at: tuple[float, float] | None = None  # asked, at: when it was set or resumed, if by no deploy
        self.deployed = False  # by a deploy: it counts from when a beat has loaded it
        self.paused_since = inf  # before it was resumed; what was due in the pause is caught up on

    def options(self, since: float, until: float) -> list[dict[str, Any]]:
        """The descriptions that were in force in these times."""
        i = max(0, bisect_right(self.described, since, key=lambda pair: pair[0]) - 1)
        j = bisect_right(self.described, until, key=lambda pair: pair[0])
        return [description for _, description in self.described[i : max(j, i + 1)]]


@dataclass(slots=True)
class Window:
    """What happened to a window so far."""

    start: float
    executions: int = 0
    failed: int = 0
    asked: int = 0
    retries: int = 0  # executions of its own retries, which are no attempts
    first: float | None = None  # when its first execution began
    last: float | None = None  # when its last one did
    since: float | None = None  # when its only execution was killed
    fence: float | None = None
    open: dict[str, tuple[str, float]] | None = None
    # Of the execution that ended it: its begin, its end, its process, how.
    final: tuple[float, float, str, str] | None = None
    events: list[tuple[float, float, str]] | None = None  # of its messages: when, until when it may be late, what
    receipts: list[tuple[str, float]] | None = None
    outcome: str | None = None
    recorded: float | None = None
    revoked: float | None = None
    stale: set[str] | None = None
    told: dict[tuple[str, str | None], float] | None = None  # what was said of it, late or how it ended, and when last


@dataclass
class Entry:
    """An entry with its definitions over time and its windows."""

    name: str
    runs: list[Run] = field(default_factory=list)
    windows: dict[int, Window] = field(default_factory=dict)
    open: dict[str, tuple[Window, str, float]] = field(default_factory=dict)  # its executions
    received: dict[int, Window] = field(default_factory=dict)  # that came to a worker, and no execution of them began
    freed: float = -inf  # when an execution ended
    counted: dict[str, int] | None = None
    paused: bool = False
    paused_at: float = inf
    description: dict[str, Any] | None = None

    def window(self, start: float) -> Window:
        key = key_of(start)
        if key not in self.windows:
            self.windows[key] = Window(start)
        return self.windows[key]

    def _begin(self, asked: float, at: float, description: dict[str, Any]) -> None:
        grid = Grid(description)
        last = self.runs[-1] if self.runs else None
        task = description.get("task")
        same = last is not None and last.grid.same == grid.same and last.described[-1][1].get("task") == task
        if same and last is not None and last.end is None:
            if last.described[-1][1] != description:
                last.described.append((asked, description))
            return
        if same and last is not None and last.left is not None:
            last.surely_out.add(last.left[1], max(asked, last.left[1]))
            last.maybe_out.add(last.left[0], at)
            last.end = last.left = None
            last.described.append((asked, description))
            return
        self._finish(asked, at)
        self.runs.append(Run(grid, asked, at, description))

    def _finish(self, asked: float, at: float, *, deploy: bool = False) -> None:
        if self.runs and self.runs[-1].end is None:
            self.runs[-1].end = (asked, at)
            self.runs[-1].left = (asked, at) if deploy else None
        elif self.runs and not deploy:
            self.runs[-1].left = None

    def change(self, asked: float, at: float, description: dict[str, Any] | None, how: str) -> None:
        self.description = description
        if description is None:
            self._finish(asked, at, deploy=how == "deploy")
        elif self.paused:
            Grid(description)
        else:
            self._begin(asked, at, description)
            if how == "deploy":
                self.runs[-1].deployed |= self.runs[-1].asked == asked
            elif self.runs[-1].asked == asked:
                self.runs[-1].set_at = asked, at

    def pause(self, asked: float, at: float) -> None:
        self.paused, self.paused_at = True, asked
        self._finish(asked, at)

    def resume(self, asked: float, at: float) -> None:
        self.paused = False
        if self.description is not None:
            self._begin(asked, at, self.description)
            self.runs[-1].paused_since = self.paused_at
            self.runs[-1].set_at = asked, at
