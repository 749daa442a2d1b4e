"""The story of a way, played twice on the same three nodes: by the way's own method, then by celery-once-beat.

In each one node stands still as a window falls due, and a later window's node is killed while it runs it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from .ledger import Event
from .stage import NODES, FailedError, Stage
from .verdict import Owed, Verdict, judge, time_of_day, windows_of

__all__ = ("OURS", "OWN", "Join", "Kill", "StandStill", "Way", "celery", "plain", "play")

OWN, OURS = "its own", "celery-once-beat"
#: Seconds for which what is still owed is waited for, at the end.
PATIENCE = 30.0
#: Seconds before a window falls due at which a node is frozen or killed.
JUST_BEFORE = 0.3


class Starter(NamedTuple):
    """How a node is started: the arguments of ``python -m``, and what the node prints once it is ready."""

    command: Sequence[str]
    signs: Sequence[str]


def plain(module: str, _: str) -> Starter:
    """A node that runs plain code."""
    return Starter([module], [r" ready\.$"])


def celery(module: str, node: str) -> Starter:
    """A node with a worker and a beat."""
    command = ["celery", "-A", module, "worker", "-B", "-P", "solo", "-n", f"{node}@%h", "-l", "INFO"]
    return Starter([*command, "--without-gossip", "--without-mingle"], [r" ready\.$", "beat: Starting"])


@dataclass(frozen=True)
class StandStill:
    """A node is frozen (SIGSTOP) as a window falls due, and goes on (SIGCONT) so many seconds after that."""

    window: int
    seconds: float
    node: str = NODES[-1]

    def act(self, stage: Stage, starts: Sequence[float], program: str) -> None:  # noqa: ARG002
        """Do it; returns when it is over."""
        start = starts[self.window]
        stage.until(lambda: time.time() >= start - JUST_BEFORE, "its time")
        stage.pause(self.node)
        stage.say(f"{self.node} stands still (SIGSTOP) while {time_of_day(start)} falls due")
        stage.until(lambda: time.time() >= start + self.seconds, "its time")
        stage.resume(self.node)
        stage.say(f"{self.node} goes on, {self.seconds:g} s late")


@dataclass(frozen=True)
class Kill:
    """The node that runs a window is killed (SIGKILL) in the middle of it; or ``node``, just before it falls due.

    The middle is so many seconds ``after`` the job's start; of several entries' jobs it is that of ``entry``, if given.
    A job that is over by then, on a machine that is busy, is left alone, and the next window's counts.
    """

    window: int
    after: float = 0.5
    entry: str = ""
    node: str = ""

    def act(self, stage: Stage, starts: Sequence[float], program: str) -> None:  # noqa: ARG002
        """Do it; returns when it is done."""
        if self.node:
            start = starts[self.window]
            stage.until(lambda: time.time() >= start - JUST_BEFORE, "its time")
            stage.kill(self.node)
            stage.say(f"KILLED {self.node} (SIGKILL) just before {time_of_day(start)} falls due")
            return
        for start in starts[self.window :]:
            if self._kill_in_the_middle(stage, start):
                return
        raise FailedError("each job was over before its node could be killed in the middle of it")

    def _kill_in_the_middle(self, stage: Stage, start: float) -> bool:
        run = stage.until(lambda: self._run(stage.events, start), f"a node that runs {time_of_day(start)}")
        stage.until(lambda: time.time() >= run.at + self.after, "its time")
        stage.pause(run.who)  # so that nothing comes to its end between the look and the kill
        events = stage.until(lambda: stage.events, "the ledger")
        if any((event.who, event.entry, event.start) == (run.who, run.entry, start) for event in events if event.over):
            stage.resume(run.who)
            return False
        stage.kill(run.who)
        stage.say(f"KILLED {run.who} (SIGKILL) in the middle of {run.entry} {time_of_day(start)}")
        return True

    def _run(self, events: Sequence[Event], start: float) -> Event | None:
        for event in events:
            if not event.over and event.start == start and self.entry in ("", event.entry):
                return event
        return None


@dataclass(frozen=True)
class Join:
    """A user joins while the nodes run, for the windows from this one on: the program is run with both."""

    window: int
    user: str

    def act(self, stage: Stage, starts: Sequence[float], program: str) -> None:
        """Do it; returns when it is done."""
        start = starts[self.window]
        stage.run([program, self.user, str(start)])
        stage.say(f"{self.user} joins, from {time_of_day(start)} on")


@dataclass(frozen=True)
class Way:
    """One way: its two programs, ``naive`` and ``once`` of ``package``, and what happens to the nodes that run them."""

    letter: str
    name: str
    package: str
    #: Seconds from a window of the story to the next; it has so many.
    every: int
    acts: Sequence[StandStill | Kill | Join]
    windows: int = 4
    #: The entries, each with the seconds from one window of it to the next.
    entries: Sequence[tuple[str, int]] = ()
    #: The windows that are owed, where it isn't all of the entries'.
    owed: Callable[[float, float], list[Owed]] | None = None
    #: The entries that its app has; () where it has none, as in plain code.
    scheduled: Sequence[str] = ()
    naive: Callable[[str, str], Starter] = plain
    once: Callable[[str, str], Starter] = celery
    #: Makes the tables.
    prepare: Callable[[sqlite3.Connection], None] | None = None
    #: What ``once`` is run with before its nodes start; () where there is nothing to do.
    first: Sequence[str] = ()
    #: What else there is to tell of a method once it has been played, given the windows that were owed.
    remark: Callable[[Stage, str, Sequence[Owed]], str] | None = None
    #: Whether node-1 has to be ready before the others start.
    in_order: bool = False

    def windows_between(self, after: float, until: float) -> list[Owed]:
        """The windows that are owed after one time and up to another."""
        if self.owed is not None:
            return self.owed(after, until)
        return [window for entry, every in self.entries for window in windows_of(entry, every, after, until)]


def play(way: Way, method: str, stage: Stage) -> Verdict:
    """The whole story by one method, on a new stage; raises what :meth:`Stage.until` raises."""
    stage.open_server()
    if way.prepare is not None:
        with closing(stage.database()) as db:
            way.prepare(db)
    starter, module = (way.naive, "naive") if method == OWN else (way.once, "once")
    program = f"{way.package}.{module}"
    if method == OURS and way.first:
        stage.run([program, *way.first])
    nodes = {name: starter(program, name) for name in NODES}
    for name, node in nodes.items():
        stage.start(name, node.command)
        if way.in_order:
            stage.until_printed(name, node.signs)
    for name, node in nodes.items():
        stage.until_printed(name, node.signs)
    if method == OURS and way.scheduled:
        stage.until_known(way.scheduled)
    stage.say(f"{', '.join(NODES)} are ready; windows are named by their start, in UTC")

    before = (time.time() + 1) // way.every * way.every
    starts = [before + way.every * number for number in range(1, way.windows + 1)]
    end = before + way.every * (way.windows + 1)
    owed = way.windows_between(starts[0] - 0.5, end - 0.5)
    for act in way.acts:
        act.act(stage, starts, program)
    stage.until(lambda: time.time() > end + 1, "the end")
    if method == OURS:
        give_up = time.time() + PATIENCE
        stage.until(lambda: not judge(stage.events, owed).lost or time.time() > give_up, "what is still owed")
    verdict = judge(stage.events, owed)
    if way.remark is not None:
        stage.say(way.remark(stage, method, owed))
    return verdict
