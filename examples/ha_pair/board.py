"""What is known of every process and window, put together from what was told; without any terminal."""

from __future__ import annotations

from dataclasses import dataclass, field

from .ledger import Event, WindowKey
from .telling import Act, News, news_of

__all__ = ("Board", "Execution", "ProcessState", "Row")


@dataclass
class Execution:
    """One execution of a window; ``state`` is ``running``, ``finished`` or ``killed``."""

    begun: Event
    state: str = "running"

    @property
    def who(self) -> str:
        """The worker."""
        return self.begun.who


@dataclass
class Row:
    """One window: which beat claimed it (empty if it was killed before it could say so), and what became of it."""

    window: WindowKey
    claimed_by: str = ""
    #: Published again, and nobody has begun since.
    again: bool = False
    executions: list[Execution] = field(default_factory=list)
    #: Why copies were refused: ``busy`` or ``closed``.
    refused: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        """``waiting``, ``running``, ``interrupted`` (its worker was killed), ``again`` or ``done``."""
        states = [execution.state for execution in self.executions]
        if "finished" in states:
            return "done"
        if "running" in states:
            return "running"
        if self.again:
            return "again"
        return "interrupted" if states else "waiting"

    @property
    def notable(self) -> bool:
        """Whether one delivery of its message was not all."""
        return len(self.executions) > 1 or bool(self.refused)

    @property
    def late(self) -> float | None:
        """Seconds from its start to that of its last execution; None while none that lives has begun."""
        if self.state in ("done", "running"):
            return max(self.executions[-1].begun.at - self.window.due, 0.0)
        return None


@dataclass
class ProcessState:
    """One beat or worker: ``starting``, ``running``, ``killed`` or ``stopped``; windows claimed or executed."""

    name: str
    state: str = "starting"
    count: int = 0

    @property
    def claims(self) -> bool:
        """Whether it is a beat."""
        return self.name.startswith("beat")


class Board:
    """The present state of the demo."""

    def __init__(self) -> None:
        self.processes = {name: ProcessState(name) for name in ("beat-1", "beat-2", "worker-1", "worker-2")}
        self.rows: dict[WindowKey, Row] = {}
        self.news: list[News] = []
        self._killed: set[str] = set()

    def newest(self, number: int) -> list[Row]:
        """So many rows, the newest window last.

        What isn't done yet stays; a third is for what was taken over or refused, the rest for what is newest.
        """
        by_age = sorted(self.rows.values(), key=lambda row: (row.window.start, row.window.entry))
        kept = _last(number, [row.window for row in by_age if row.state != "done"])
        kept += _last(
            min(number // 3, number - len(kept)), [row.window for row in by_age if row.state == "done" and row.notable]
        )
        kept += _last(number - len(kept), [row.window for row in by_age if row.window not in kept])
        return [row for row in by_age if row.window in kept]

    def tell(self, what: Act | Event) -> None:
        """Take note of what happened."""
        news = news_of(what)
        if news is not None:
            self.news.append(news)
        if isinstance(what, Event):
            self._tell_event(what)
        elif what.who in self.processes:
            self.processes[what.who].state = {"started": "running"}.get(what.kind, what.kind)
            if what.kind == "killed":
                self._killed.add(what.who)
                for row in self.rows.values():
                    self._mark_killed(row)

    def _tell_event(self, event: Event) -> None:
        row = self.rows.setdefault(event.window, Row(event.window))
        if event.kind == "claimed":
            row.claimed_by = event.who
            self._count(event)
        elif event.kind == "published":
            row.again = row.again or event.again
        elif event.kind == "start":
            row.again = False
            row.executions.append(Execution(event))
            self._mark_killed(row)  # what a killed process had written may be read after its death
        elif event.kind == "finish":
            self._count(event)
            for execution in row.executions:
                if execution.begun.same_run(event):
                    execution.state = "finished"
        elif event.kind == "refused":
            row.refused.append(event.refusal)

    def _count(self, event: Event) -> None:
        if event.who in self.processes:
            self.processes[event.who].count += 1

    def _mark_killed(self, row: Row) -> None:
        for execution in row.executions:
            if execution.state == "running" and execution.who in self._killed:
                execution.state = "killed"


def _last(number: int, windows: list[WindowKey]) -> list[WindowKey]:
    return windows[max(len(windows) - number, 0) :]
