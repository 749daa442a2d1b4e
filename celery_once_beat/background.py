"""What a process does in the background, so that no event loop waits for Redis: asyncio's, or that of a worker.

The threads aren't those of ``asyncio.to_thread``. Bodies may fill those, and wait in them for other windows to end; no
thread would be left to record these ends. And while Redis hangs, nothing else in the process waits for a thread.
Here no call waits for another one, so a few threads are enough for any number of windows.

A thread ends soon after the last call. It is a daemon: the end of a process doesn't wait for Redis.

A task that is cancelled while it waits for a call waits until the call has ended, and is cancelled then. A second
cancellation continues at once; the thread finishes its call all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.store import Store

Owner = TypeVar("Owner")
T = TypeVar("T")

#: Each takes a connection. More would only help while Redis is away.
_MOST = 16
#: Seconds that a thread waits for another call: to start one costs more than a call.
_IDLE = 0.1


class OfProcess(Generic[Owner, T]):
    """What this process has for each owner, a store or an app; a forked child has its own: no thread survives a fork.

    Safe to use from several threads: setdefault is one atomic step. No lock: a child that is forked while another
    thread holds one would wait for ever.
    """

    def __init__(self, make: Callable[[Owner], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[Owner, dict[int, T]] = WeakKeyDictionary()

    def of(self, owner: Owner) -> T:
        """Return what ``owner`` has, made the first time."""
        pid, by_process = os.getpid(), self._made.setdefault(owner, {})
        return by_process.get(pid) or by_process.setdefault(pid, self._make(owner))

    def all(self) -> list[T]:
        """Return what was made in this process."""
        pid = os.getpid()
        return [by_process[pid] for by_process in list(self._made.values()) if pid in by_process]

    def clear(self) -> None:
        """Forget it all."""
        self._made.clear()


class Threads:
    """At most so many threads, which call what they are given, in turn."""

    def __init__(self, most: int, name: str = "once-awaited") -> None:
        self._most = most
        self._name = name
        #: Guards the rest.
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = 0
        #: How many of those that run wait for a call.
        self._idle = 0

    def start(self, call: Callable[[], T]) -> Future[T]:
        """Call ``call`` in a thread, with this context, as soon as one is free.

        If the machine has no thread left, one of those that run takes it; without any, it is called here, since nobody
        else would record an end.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # from now on nothing cancels it
        with self._changed:
            if len(self._waiting) >= self._idle and self._running < self._most:
                with contextlib.suppress(RuntimeError):
                    threading.Thread(target=self._run, name=self._name, daemon=True).start()
                    self._running += 1
            if self._running:
                self._waiting.append(partial(copy_context().run, _fulfil, future, call))
                self._changed.notify()
                return future
        _fulfil(future, call)
        return future

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        """Return the next call, or None if the thread ends for want of one."""
        with self._changed:
            self._idle += 1
            called = self._changed.wait_for(lambda: self._waiting, _IDLE)
            self._idle -= 1
            if called:
                return self._waiting.popleft()
            self._running -= 1
            return None


def _fulfil(future: Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except BaseException as exc:  # noqa: BLE001  # it is raised where the call is awaited
        future.set_exception(exc)
    else:
        future.set_result(result)


def _threads_for(store: Store) -> Threads:
    most = store.settings.redis_options.get("max_connections")
    return Threads(min(most, _MOST) if isinstance(most, int) and most > 0 else _MOST)


#: The threads that ask a store for asyncio.
threads_of = OfProcess(_threads_for)


async def called(store: Store, call: Callable[[], T]) -> T:
    """Call it in a thread of the store's. If the caller is cancelled meanwhile, nobody gets the result."""
    future = threads_of.of(store).start(call)
    cancelled = await seen_through(future)
    if cancelled is not None:
        raise cancelled
    return future.result()


async def called_within(seconds: float, store: Store, call: Callable[[], T]) -> T:
    """As :func:`called`, for at most ``seconds``, the wait for a thread included. A cancellation is raised at once.

    Raises StoreUnavailableError after that time. A call that no thread has begun by then isn't made.
    """
    until = time.monotonic() + seconds
    late = StoreUnavailableError(f"no answer within {seconds:g} s; what was asked may have been carried out")

    def in_time() -> T:
        if time.monotonic() >= until:
            raise late
        return call()

    try:
        return await asyncio.wait_for(asyncio.wrap_future(threads_of.of(store).start(in_time)), seconds)
    except asyncio.TimeoutError:
        raise late from None


async def seen_through(call: Future[Any]) -> asyncio.CancelledError | None:
    """Wait until ``call`` has ended. Returns the cancellation that came meanwhile; a second one is raised at once."""
    try:
        await _until_done(call)
    except asyncio.CancelledError as cancelled:
        await _until_done(call)
        return cancelled
    return None


async def _until_done(call: Future[Any]) -> None:
    # A cancellation ends this wait alone: a call that runs can't be cancelled.
    await asyncio.gather(asyncio.wrap_future(call), return_exceptions=True)


def check_asyncio(name: str) -> None:
    """Raise OnceError if the caller isn't a task of asyncio's: under trio, its coroutines can't be awaited."""
    try:
        if asyncio.current_task() is not None:
            return
    except RuntimeError:  # no loop runs
        pass
    found = "trio" if "trio" in sys.modules else "no task of asyncio"
    raise OnceError(f"{name}: found {found}, expected asyncio or uvloop; elsewhere use 'with once(…)' in a thread")
