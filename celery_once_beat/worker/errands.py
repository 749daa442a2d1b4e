"""What a worker's main process tells the store. A thread tells it, so that the event loop waits for nothing.

The thread has a store of its own. The pool's children are forked from this process at any moment, and would inherit
the locks that the thread holds then.

If the process dies, what it hasn't told yet is lost; recovery sees to those windows.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from celery.signals import worker_shutdown

from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.settings import Settings
from celery_once_beat.store import Store

from .protocol import see_through

if TYPE_CHECKING:
    from celery import Celery

#: Seconds that an orderly shutdown waits for what isn't told yet.
_AT_END = 5.0
#: At most this many wait: a queue of expired messages must not fill the memory while Redis is away.
_MOST = 10_000


class Errand(NamedTuple):
    """What is sent, for how many seconds it is tried, and who gets the error if that is in vain."""

    send: Callable[[], object]
    seconds: float
    unrecorded: Callable[[OnceError], None]


class Errands:
    """The errands of one process and app."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._store: Store | None = None
        self._waiting: queue.SimpleQueue[Errand | threading.Event] = queue.SimpleQueue()
        self._now: Errand | None = None
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._given_up = False

    def send(
        self, send: Callable[[Store], object], unrecorded: Callable[[OnceError], None], seconds: float = 0.0
    ) -> None:
        """Call ``send`` with a store, soon and in turn; again for that many seconds if the store doesn't answer.

        If it can't be told, ``unrecorded`` gets the error.
        """
        if self._waiting.qsize() >= _MOST:
            unrecorded(StoreUnavailableError(f"Redis is too slow, {_MOST} ends wait to be recorded"))
            return
        self._waiting.put(Errand(lambda: send(self._own_store()), seconds, unrecorded))
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="once-errands", daemon=True)
                self._thread.start()

    def finish(self, seconds: float = _AT_END) -> None:
        """Wait until all is sent, but not for longer; what is left goes to its ``unrecorded``."""
        if self._thread is None or self._given_up:
            return
        done = threading.Event()
        self._waiting.put(done)
        if done.wait(seconds):
            return
        self._given_up = True
        left: list[Errand | threading.Event | None] = [self._now]
        with contextlib.suppress(queue.Empty):
            while True:
                left.append(self._waiting.get_nowait())
        for request in left:
            if isinstance(request, Errand):
                request.unrecorded(StoreUnavailableError("this worker ends, and Redis hasn't answered"))

    def _own_store(self) -> Store:
        self._store = self._store or Store(Settings.from_app(self._app))
        return self._store

    def _run(self) -> None:
        while True:
            request = self._waiting.get()
            if isinstance(request, threading.Event):
                request.set()
                continue
            self._now = request
            try:
                see_through(request.send, request.seconds)
            except OnceError as exc:
                request.unrecorded(exc)
            except Exception as exc:  # noqa: BLE001  # whatever one raises, the others are sent
                request.unrecorded(OnceError(repr(exc)))
            self._now = None


_errands: WeakKeyDictionary[Celery, dict[int, Errands]] = WeakKeyDictionary()


def errands_of(app: Celery) -> Errands:
    """Return this process's errands. A forked child has its own, since threads don't survive a fork."""
    pid, by_process = os.getpid(), _errands.setdefault(app, {})
    return by_process.get(pid) or by_process.setdefault(pid, Errands(app))


@worker_shutdown.connect(weak=False)
@atexit.register
def _finish_all(**_: object) -> None:
    """At an orderly end of the process; a cold shutdown sends no signal."""
    for by_process in list(_errands.values()):
        errands = by_process.get(os.getpid())
        if errands is not None:
            errands.finish()
