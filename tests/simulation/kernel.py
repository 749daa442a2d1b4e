"""Time, processes and their threads: one runs at a time, and the seed says which.

A thread is a greenlet. It runs until it waits: for a time, or for another one. Then whatever comes next in time runs;
what comes at the same instant, in an order of the seed's. While a thread runs no time passes, and the clocks of its
process stand still: ``time`` and ``datetime`` read them as they are set here.

A process that is frozen doesn't run before it is thawed; what came for it meanwhile comes then. One that is killed
never runs again: its threads end where they wait, and whatever they would still do on the way out ends at once.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from .standing_clock import StandingClock

#: Time is a whole number of microseconds of true time, from 0.
SECOND = 1_000_000
HOUR = 3600 * SECOND
FOREVER = 10**18
#: True time 0, by the wall clock: 2026-03-02T00:00:00Z, seconds.
EPOCH = 1_772_409_600

Killed = GreenletExit


def ticks(seconds: float) -> int:
    """Seconds as microseconds: never less, since who waits for a time looks at the clock again."""
    return max(math.ceil(seconds * SECOND), 0) + 1


class Thread:
    """A simulated thread."""

    __slots__ = ("greenlet", "name", "process", "token")

    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self.name = name
        self.greenlet: Any = None
        #: Changes each time that it goes on: what would wake it from an earlier wait doesn't any more.
        self.token = 0


class Process:
    """A simulated process: its threads, its clocks, whether it runs."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.random = random.Random(f"{kernel.seed}/{name}")
        kernel.newest_pid += 1
        self.pid = kernel.newest_pid
        self.threads: list[Thread] = []
        self.dead = False
        #: Until when it stands still.
        self.frozen_until = 0
        #: By how much its wall clock is ahead, microseconds.
        self.skew = 0
        #: For how long its machine was suspended: its monotonic clock stood still, the other didn't.
        self.suspended = 0
        #: Where its monotonic clock began.
        self.booted = self.random.randrange(1, 10**6) * SECOND
        #: What a module of the package keeps for its process: module → name → value.
        self.kept: dict[Any, Any] = {}
        kernel.processes.append(self)

    def start(self, name: str, run: Callable[[], object]) -> Thread:
        """Start a thread."""
        thread = Thread(self, name)
        kernel = self.kernel

        def body(_: object) -> None:
            try:
                run()
            except Killed:
                pass
            except BaseException as exc:  # noqa: BLE001  # it is the run's finding
                if not self.dead:
                    kernel.crashes.append((f"{thread.process.name}/{thread.name}", exc))
            if not self.dead:
                self.threads.remove(thread)

        thread.greenlet = greenlet(body, kernel.hub)
        self.threads.append(thread)
        kernel.push(kernel.now, thread, None)
        return thread

    @property
    def frozen(self) -> bool:
        return self.frozen_until > self.kernel.now

    def check(self) -> None:
        """Raise Killed in a process that is dead."""
        if self.dead:
            raise Killed


class Kernel:
    """All of it."""

    def __init__(self, seed: str, clock: StandingClock, server_clock: StandingClock) -> None:
        self.seed = seed
        self.random = random.Random(f"{seed}/kernel")
        self.now = 0
        self.hub = getcurrent()
        self.current: Thread | None = None
        #: When, tie, serial, thread or function, token, value.
        self._heap: list[tuple[int, int, int, Any, int, Any]] = []
        self._serial = 0
        self.newest_pid = 1000
        self._clock, self._server_clock = clock, server_clock
        self._set: Any = None
        self._server_set = -1
        self.steps = 0
        #: What ended a thread that should have gone on.
        self.crashes: list[tuple[str, BaseException]] = []
        #: Called before and after a thread of another process runs.
        self.on_switch: Callable[[Process], None] = lambda process: None
        self._last: Process | None = None
        self.processes: list[Process] = []

    # -- the queue

    def push(self, at: int, what: Any, value: Any) -> None:
        """Let a thread go on at a time, or call a function then."""
        self._serial += 1
        token = what.token if type(what) is Thread else 0
        heapq.heappush(self._heap, (max(at, self.now), self.random.getrandbits(16), self._serial, what, token, value))

    def call_at(self, at: int, function: Callable[[], object]) -> None:
        """Call a function, in no process, at a time."""
        self.push(at, function, None)

    def run(self, until: int) -> None:
        """Let everything go on until a time."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            at, _, _, what, token, value = heapq.heappop(heap)
            if type(what) is not Thread:
                self.now = max(self.now, at)
                what()
                continue
            process = what.process
            if what.token != token or process.dead:
                continue
            if process.frozen_until > at:
                if process.frozen_until < FOREVER:
                    self._serial += 1
                    heapq.heappush(
                        heap, (process.frozen_until, self.random.getrandbits(16), self._serial, what, token, value)
                    )
                else:
                    process.kept.setdefault("asleep", []).append((what, token, value))
                continue
            self.now = max(self.now, at)
            self._resume(what, value)
        self.now = max(self.now, until)

    def _resume(self, thread: Thread, value: Any) -> None:
        process = thread.process
        thread.token += 1
        before, self.current = self.current, thread
        if process is not self._last:
            self.on_switch(process)
            self._last = process
        self.set_clocks(process)
        self.steps += 1
        thread.greenlet.switch(value)
        self.current = before

    def set_clocks(self, process: Process) -> None:
        """Let the clocks be those of a process, now."""
        key = (self.now, process.skew, process.booted, process.suspended)
        if key != self._set:
            self._set = key
            boot = (self.now + process.booted) * 1000
            self._clock.set(EPOCH * 10**9 + (self.now + process.skew) * 1000, boot - process.suspended * 1000, boot)

    def set_server_clock(self) -> None:
        """Let the server's clock be now. It is told in whole milliseconds."""
        now = self.now
        if now != self._server_set:
            self._server_set = now
            self._server_clock.set(EPOCH * 10**9 + now * 1000, now * 1000, now * 1000)

    # -- for threads

    def wait(self, until: int | None = None) -> Any:
        """Wait until a time, or until somebody wakes this thread; returns what that one says, None at the time."""
        thread = self.current
        assert thread is not None, "only a simulated thread waits"
        thread.process.check()
        if until is not None:
            self.push(until, thread, None)
        value = self.hub.switch()
        thread.process.check()
        return value

    def sleep(self, microseconds: int) -> None:
        self.wait(self.now + max(microseconds, 0))

    def wake(self, thread: Thread, value: Any = None) -> None:
        """Let a thread that waits go on now."""
        self.push(self.now, thread, value)

    # -- what becomes of processes

    def freeze(self, process: Process, until: int) -> None:
        """Let a process stand still until a time. If it is the running one, it goes on until it waits."""
        process.frozen_until = max(process.frozen_until, until)

    def thaw(self, process: Process) -> None:
        """Let it go on now."""
        process.frozen_until = min(process.frozen_until, self.now)
        for thread, token, value in process.kept.pop("asleep", []):
            if thread.token == token:
                self.push(self.now, thread, value)

    def kill(self, process: Process) -> None:
        """End a process at once. If it is the running one, its present thread ends where it waits next."""
        if process.dead:
            return
        process.dead = True
        threads, process.threads = process.threads, []
        # In the hub: a thread that ends goes on there.
        self.call_at(self.now, lambda: self._end(threads))

    def kill_all(self) -> None:
        """End all, from the hub."""
        for process in self.processes:
            if not process.dead:
                process.dead = True
                threads, process.threads = process.threads, []
                self._end(threads)
        self._heap.clear()

    def _end(self, threads: list[Thread]) -> None:
        for thread in threads:
            if thread.greenlet:  # else it never ran, or has ended
                self.current = thread
                thread.token += 1
                thread.greenlet.throw(Killed)
                self.current = None


class Gate:
    """``threading.Event``, for simulated threads."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._set = False
        self._waiting: list[Thread] = []

    def set(self) -> None:
        self._set = True
        for thread in self._waiting:
            self._kernel.wake(thread)
        self._waiting = []

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        kernel = self._kernel
        if not self._set:
            assert kernel.current is not None
            self._waiting.append(kernel.current)
            kernel.wait(None if timeout is None else kernel.now + ticks(timeout))
            if kernel.current in self._waiting:
                self._waiting.remove(kernel.current)
        return self._set


class Box:
    """``queue.SimpleQueue``, for simulated threads."""

    def __init__(self, kernel: Kernel, empty: type[Exception]) -> None:
        self._kernel = kernel
        self._empty = empty
        self._items: deque[Any] = deque()
        self._waiting: deque[Thread] = deque()

    def put(self, item: Any, *, first: bool = False) -> None:
        """Behind what is there, or before it."""
        (self._items.appendleft if first else self._items.append)(item)
        if self._waiting:
            self._kernel.wake(self._waiting.popleft())

    def clear(self) -> int:
        """Forget what is in it; returns how much that was."""
        number = len(self._items)
        self._items.clear()
        return number

    def get_nowait(self) -> Any:
        if not self._items:
            raise self._empty
        return self._items.popleft()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        kernel = self._kernel
        until = None if timeout is None else kernel.now + ticks(timeout)
        while not self._items:
            if until is not None and kernel.now >= until:
                raise self._empty
            assert kernel.current is not None
            self._waiting.append(kernel.current)
            kernel.wait(until)
            if kernel.current in self._waiting:
                self._waiting.remove(kernel.current)
        return self._items.popleft()
