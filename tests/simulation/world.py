"""One run: processes, the store's server, the broker, faults, and the history of what an observer would see."""

from __future__ import annotations

import json
import random
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_once_beat.store.keys import shard_of
from celery_once_beat.windows import format_instant

from .broker import Broker, Channel
from .installed import forget, let_run, on_switch
from .judge_history import QUEUE, Wait
from .kernel import EPOCH, SECOND, Kernel, Process
from .network import Connection, Server, split_wait
from .replay import Line, Replay, line_of, read_requests
from .standing_clock import StandingClock

#: The task that is told of windows that end in anything but done.
TELL = "sim.tell"
#: The task of children that beats recover.
CHILD = "sim.child"
_RUN_KEY = re.compile(rb"\{(\d+)\}:run:([^\r]+):(\d{4}-\S+)\r")


@dataclass
class Books:
    """What an observer, and the simulator, know of a run."""

    #: One line of it is one dict.
    history: list[dict[str, Any]] = field(default_factory=list)
    windows: int = 0
    faults: int = 0
    #: What happened how often: faults, and what came of them.
    counted: Counter[str] = field(default_factory=Counter)
    #: (state, verb, fault) → how often.
    coverage: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    steps: int = 0
    #: Who waited to try again, and when messages waited for a worker.
    waited: list[Wait] = field(default_factory=list)
    #: When messages waited in a worker whose places were all taken.
    busy: list[Wait] = field(default_factory=list)
    #: What the simulator itself found to be wrong.
    wrong: list[str] = field(default_factory=list)
    #: Window → when a message was sent for it, and by whom.
    sent: dict[tuple[str, float], list[tuple[float, str]]] = field(default_factory=dict)
    #: Executions that were told to be stale: entry, start, fence, when.
    stale: list[tuple[str, float, int | None, float]] = field(default_factory=list)
    #: Copies that were refused: entry, start, why, when, where.
    refused: list[tuple[str, float, str, float, tuple[str, ...]]] = field(default_factory=list)
    #: Retries that were sent: entry, start, when, when they are due.
    retries: list[tuple[str, float, float, float]] = field(default_factory=list)
    #: Every entry that there is or was, as it was described last.
    told: dict[str, Any] = field(default_factory=dict)
    #: Children that may be opened: entry, start → since when that is certain. At the end: those that were, unless a
    #: failover has undone it.
    children: dict[tuple[str, float], float] = field(default_factory=dict)
    #: Threads that ended with an error.
    crashes: list[str] = field(default_factory=list)
    #: Seconds for which the store knows who closed a window.
    marker_ttl: float = 600.0

    def lines(self) -> list[str]:
        return [json.dumps(line, sort_keys=True) for line in self.history]


class World(Books):
    """What there is in one run."""

    def __init__(
        self, seed: str, clock: StandingClock, server_clock: StandingClock, server: Server, settings: dict[str, Any]
    ) -> None:
        super().__init__(marker_ttl=settings["once"]["marker_ttl"])
        self.seed = seed
        self.settings = settings
        self.kernel = Kernel(seed, clock, server_clock)
        self.kernel.on_switch = on_switch
        self._latency = random.Random(f"{seed}/latency")
        self.server = server
        visibility = settings["visibility"]
        self.broker = Broker(self, None if visibility is None else round(visibility * SECOND))
        #: Changes each time that the store's connections are lost.
        self.store_era = 0
        #: Store or broker, and a process that is cut off from it; None: nobody reaches it. Until when, and how that
        #: shows: refused or silent.
        self._cut: dict[tuple[str, Process | None], tuple[int, str]] = {}
        #: Faults that wait for their moment: (phase, verb) → what is called with the process and the request.
        self.armed: dict[tuple[str, str], list[Any]] = {}
        #: The replica stands still, and is about to take over: what it has.
        self.replica: Any = None
        #: Window → the retry that has it, as the store said.
        self._retries: dict[tuple[str, float], int] = {}
        #: Windows that people ordered, or gave up.
        self.ordered: set[tuple[str, float]] = set()
        #: When the store lost writes that somebody had acted on; before that: never.
        self.forgot_at = -1.0
        #: The window whose body begins.
        self.beginning: tuple[str, float] = "", 0.0
        #: The protocol's model, which goes along with what the store is asked; None: it doesn't.
        self.model: Replay | None = None
        #: Messages that wait for a place, in the broker and in workers, and since when some do.
        self._waiting: Counter[str] = Counter()
        self._crowded: dict[str, list[list[float]]] = {"broker": [], "worker": []}
        #: No fault comes any more.
        self.healed = False
        self._executions = 0
        #: Place → what ended the last process there.
        self._down: dict[str, dict[str, Any]] = {}
        self.begun: Counter[tuple[str, float]] = Counter()
        #: Process → execution → (entry, start).
        self.bodies: dict[Process, dict[str, tuple[str, float]]] = {}
        #: Called when a process has been killed.
        self.on_death: Callable[[Process], None] = lambda process: None
        Connection.world = Channel.world = self
        let_run(self)
        forget()

    # -- who runs

    @property
    def process(self) -> Process:
        """The process that runs."""
        current = self.kernel.current
        assert current is not None
        return current.process

    @property
    def at(self) -> float:
        return self.kernel.now / SECOND

    def write(self, what: str, **fields: Any) -> dict[str, Any]:
        """Add a line to the history; returns it."""
        line = {"what": what, "at": self.at, **fields}
        self.history.append(line)
        return line

    def struck(self, kind: str, how: str, target: Process | str | None = None, **fields: Any) -> list[dict[str, Any]]:
        """A fault has struck: ``how`` is what it is called here, ``kind`` what it is for the judge.

        A process is known to the judge by the place that it has; a worker with children by those.
        """
        self.happened(how)
        if self.healed:  # a broker's late copy, or an orderly end
            return []
        if not isinstance(target, Process):
            named = {} if target is None else {"target": target}
            return [self.write("fault", kind=kind, how=how, **named, **fields)]
        return [self.write("fault", kind=kind, how=how, target=place, **fields) for place in self.places(target)]

    def wait(self, change: int, where: str = "broker") -> None:
        """So many messages more, or less, wait for a place."""
        before = self._waiting[where]
        self._waiting[where] += change
        if not before and self._waiting[where]:
            self._crowded[where].append([self.at, float("inf")])
        elif before and not self._waiting[where]:
            self._crowded[where][-1][1] = self.at

    def slow(self, since: int, until: int, process: Process | None = None) -> None:
        """Somebody who was away, or anybody, may wait for so long until it tries again."""
        for who in self.places(process) if process else ("",):
            self.waited.append(Wait(since / SECOND, until / SECOND, who))

    def crowd(self, where: str) -> list[Wait]:
        """When messages waited there for longer than it takes to hand them on."""
        return [Wait(begin, end, QUEUE) for begin, end in self._crowded[where] if end - begin > 0.1]

    def window_of(self, text: str) -> tuple[str, float] | None:
        """The entry and the start of the window that a message is sent for."""
        headers = json.loads(text)["headers"]
        if "once_start" not in headers:
            return None
        return headers["once_entry"], start_of(datetime.fromisoformat(headers["once_start"].replace("Z", "+00:00")))

    def notice_of(self, text: str) -> None:
        """The broker has taken a message: if it tells of a window's end, that is told."""
        found = json.loads(text)
        if found["headers"].get("task") == TELL:
            told = json.loads(b64decode(found["body"]))[1]
            start = start_of(datetime.fromisoformat(told["start"].replace("Z", "+00:00")))
            self.write("told", entry=told["entry"], start=start, kind="ended", outcome=told["outcome"])

    def received(self, process: Process, text: str) -> None:
        """The broker hands a message to a worker."""
        window = self.window_of(text)
        if window is not None:
            entry, start = window
            for place in self.places(process):
                self.write("received", entry=entry, start=start, process=place)

    def up(self, places: tuple[str, ...]) -> None:
        """Processes start in these places: what ended the last ones there is over."""
        for place in places:
            line = self._down.pop(place, None)
            if line is not None:
                line["until"] = self.at

    def down(self, process: Process, how: str) -> None:
        """A process has ended; until another starts in its place."""
        for line in self.struck("killed", how, process, until=None):
            self._down[line["target"]] = line

    def not_yet(self, place: str) -> None:
        """Nobody is in this place before somebody starts there."""
        self._down[place] = self.write("fault", kind="killed", how="not yet started", target=place, until=None)

    def places(self, process: Process) -> tuple[str, ...]:
        """The names by which the judge knows a process."""
        places: tuple[str, ...] = process.kept.get("places", ())
        return places

    def happened(self, what: str) -> None:
        self.counted[what] += 1

    # -- time that passes

    def latency(self) -> int:
        """How long something travels."""
        draw = self._latency.getrandbits(6)
        if draw:
            return 300 + 25 * self._latency.getrandbits(5)
        return 1000 * self._latency.randrange(2, 60)

    def step(self, process: Process, point: str) -> None:
        """A process does something that takes a moment; here it may be struck."""
        process.check()
        self._strike("at", point, process, b"")
        self.kernel.sleep(self.latency())

    # -- strikes

    def arm(self, phase: str, verb: str, strike: Any) -> None:
        """Call ``strike(process, request)`` at the next such moment; it returns whether it is over, and what to do."""
        self.armed.setdefault((phase, verb), []).append(strike)

    def _strike(self, phase: str, verb: str, process: Process, request: bytes) -> Any:
        waiting = self.armed.get((phase, verb))
        act = None
        if waiting:
            for strike in list(waiting):
                over, act = strike(process, request)
                if over:
                    waiting.remove(strike)
                    break
            if not waiting:
                self.armed.pop((phase, verb), None)
        process.check()
        return act

    def before(self, process: Process, verbs: list[str], request: bytes = b"") -> Any:
        """A process is about to send; returns None, ``lost``, or how late it arrives."""
        process.check()
        return self._travel("before", process, verbs, request)

    def after(self, process: Process, verbs: list[str], request: bytes = b"") -> Any:
        """Who was asked has carried it out; returns None, ``lost``, or how late the reply arrives."""
        return self._travel("after", process, verbs, request)

    def _travel(self, phase: str, process: Process, verbs: list[str], request: bytes) -> Any:
        for verb in dict.fromkeys(verbs) if self.armed else ():
            act = self._strike(phase, verb, process, request)
            if act is not None:
                return act
        self.kernel.sleep(self.latency())
        return None

    # -- the store

    def carry_out(self, request: bytes) -> list[Any]:
        """Let the server carry out a request now."""
        self.kernel.set_server_clock()
        request, replicas = split_wait(request)
        replies = self.server.carry_out(request)
        if self.model is not None:
            for words, reply in zip(read_requests(request), replies, strict=True):
                self._step_model(line_of(words, reply, EPOCH * 1000 + self.kernel.now // 1000))
        if replicas:
            replies.append(0 if self.replica is not None else replicas)
        return replies

    def _step_model(self, line: Line | None) -> None:
        if self.model is not None and line is not None:
            refused = self.model.step(line)
            if refused is not None:
                self.wrong.append(f"model: at {self.at} {refused}")

    def pause(self, entry: str) -> None:
        """As somebody's order, past all faults: no more windows of the entry are claimed."""
        self.server.pause(entry)
        key = f"once:{{{shard_of(entry)}}}:entry:{entry}"
        self._step_model(
            {"verb": "pause", "entry": key, "start": "", "args": {"paused": True}, "reply": ["paused"], "at": 0}
        )

    def arrives_late(self, request: bytes, era: int) -> None:
        """What was sent long ago arrives, unless its connection is gone."""
        if era == self.store_era:
            self.carry_out(request)

    def link(self, way: str, process: Process) -> str:
        """How the store or the broker can't be reached: refused, silent; '' if it can."""
        for who in (None, process):
            until, how = self._cut.get((way, who), (0, ""))
            if until > self.kernel.now:
                return how
        return ""

    def cut(self, way: str, process: Process | None, until: int, how: str) -> None:
        """Let a process, or nobody, reach it until then."""
        self._cut[way, process] = until, how
        if way == "broker":
            self.kernel.call_at(until, self.broker.push)
        elif process is None:
            self.store_era += 1

    def heal(self) -> None:
        """Every way is open again, and nothing waits for its moment."""
        self.armed.clear()
        self.broker.fates.clear()
        self.replica = None
        self._cut.clear()
        self.broker.push()

    def replica_stops(self) -> None:
        """The replica gets no more writes from now on."""
        self.kernel.set_server_clock()
        self.replica = self.server.snapshot()
        self._step_model({"command": "save", "at": 0})

    def replica_takes_over(self) -> None:
        """The master is lost, and with it what the replica doesn't have."""
        self.kernel.set_server_clock()
        found, self.replica = self.replica, None
        self.store_era += 1
        self.server.restore(found)
        self._step_model({"command": "fail over", "at": 0})
        self.server.raw.script_flush()

    def state_of(self, request: bytes) -> str:
        """The state of the first window of a request."""
        found = _RUN_KEY.search(request)
        if not found:
            return "-"
        shard, entry, start = (part.decode() for part in found.groups())
        self.kernel.set_server_clock()
        return self.server.state(f"once:{{{shard}}}:", entry, start)

    # -- bodies

    def started(self, process: Process, entry: str, start: float, fence: int | None) -> str:
        self._executions += 1
        execution = f"{process.name}#{self._executions}"
        self.bodies.setdefault(process, {})[execution] = entry, start
        more = {} if fence is None else {"fence": fence}
        self.write("started", entry=entry, start=start, process=self.places(process)[0], execution=execution, **more)
        return execution

    def ended(self, process: Process, execution: str, how: str, *, final: bool = False) -> None:
        """A body has ended. ``final``: it failed, and isn't to be retried by itself."""
        entry, start = self.bodies[process].pop(execution)
        more = {"final": True} if final else {}
        self.write("ended", entry=entry, start=start, execution=execution, how=how, **more)

    def handed_over(
        self, process: Process, window: Any, start: float, retry: int, asked: float, countdown: float
    ) -> None:
        """A retry was sent; the store may know that it has the window now, unless a failover is about to undo that."""
        self.retries.append((window.entry, start, asked, asked + countdown))
        if not process.dead and self.replica is None and self._run_key(window).startswith(f"wait:{retry}:"):
            self._retries[window.entry, start] = retry

    def check_retry(self, process: Process, window: Any, start: float, retry: int) -> None:
        """A window that was handed over to a retry is executed by that one, or by a later one."""
        entry = window.entry
        least = self._retries.get((entry, start), 0)
        if self.forgot_at >= 0 or not self.told.get(entry, {}).get("tracked", True):
            return  # of an untracked window nobody knows any more, once its lease has run out
        if retry < least and not self.told[entry].get("retry_failed_after") and (entry, start) not in self.ordered:
            self.wrong.append(
                f"retry: at {self.at} {process.name} runs {start} of {entry} as retry {retry}, after {least}"
            )

    def check_held(self, process: Process, window: Any, since: float, *, begins: bool = False) -> None:
        """Where a body is told that it certainly has its window, the store says so too. When it begins, it has it."""
        if begins and window.fence is not None and not window.held:
            self.wrong.append(
                f"unheld: at {self.at} {process.name} begins {window.start} of {window.entry} without a lease"
            )
        if window.keyed or not window.held or window.fence is None or self.forgot_at >= since - 3.0:
            return
        entry, start = window.entry, format_instant(window.start)
        found = self._run_key(window)
        if not found.startswith("done:") and not found.startswith(f"run:{window.fence}:"):
            self.wrong.append(
                f"held: at {self.at} {process.name} is told that it holds {start} of {entry} by {window.fence}, "
                f"the store says {found or 'nobody'}"
            )

    def _run_key(self, window: Any) -> str:
        self.kernel.set_server_clock()
        start = format_instant(window.start)
        return self.server.runs(f"once:{{{shard_of(window.entry)}}}:run:{window.entry}:{start}")

    # -- what becomes of processes

    def kill(self, process: Process, how: str = "killed", *, noted: bool = False) -> None:
        """End it at once. If it runs, raises Killed in it at its next step. ``noted``: another line says so."""
        if process.dead:
            return
        if not noted:
            self.down(process, how)
        for execution in list(self.bodies.get(process, ())):
            self.ended(process, execution, "killed")
        self.kernel.kill(process)
        self.on_death(process)


def start_of(instant: Any) -> float:
    """An aware datetime as seconds of true time."""
    return round(instant.timestamp() * SECOND - EPOCH * SECOND) / SECOND
