"""What a worker's main process sends to the store. A thread sends it, so that the event loop waits for nothing.

The thread has a store of its own: the pool's children are forked from this process at any moment, and would inherit
the locks that the thread holds then.

If the process dies, what isn't sent yet is lost; recovery sees to those windows.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from concurrent.futures import Future, wait

from celery import Celery
from celery.signals import worker_shutdown

from celery_once_beat.background import OfProcess, Threads
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.settings import Settings
from celery_once_beat.store import Store

from .base import ask_until_answered

#: Seconds that an orderly shutdown waits for what isn't sent yet.
_AT_END = 5.0
#: At most this many are kept: a queue of expired messages must not fill the memory while Redis is away.
_MOST = 10_000

Unrecorded = Callable[[OnceError], None]


class Errands:
    """The errands of one process and app."""

    def __init__(self, app: Celery) -> None:
        self._store = Store(Settings.from_app(app))
        self._threads = Threads(1, "once-errands")
        #: What isn't sent yet, each with the function that gets the error if it can't be sent.
        self._unsent: dict[Future[None], Unrecorded] = {}

    def send(self, send: Callable[[Store], object], unrecorded: Unrecorded, seconds: float = 0.0) -> None:
        """Call ``send`` with a store, soon and in order; again for that many seconds if the store doesn't answer.

        If that is in vain, ``unrecorded`` gets the error.
        """
        if len(self._unsent) >= _MOST:
            unrecorded(StoreUnavailableError(f"Redis is too slow, {_MOST} ends wait to be recorded"))
            return
        future = self._threads.start(lambda: self._send(send, unrecorded, seconds))
        self._unsent[future] = unrecorded
        future.add_done_callback(lambda sent: self._unsent.pop(sent, None))

    def finish(self, seconds: float = _AT_END) -> None:
        """Wait until all is sent, but not for longer; what is left goes to its ``unrecorded``."""
        # What has been sent may not have left _unsent yet: a future wakes who waits before it calls back.
        for future in wait(self._unsent.copy(), seconds).not_done:
            unrecorded = self._unsent.pop(future, None)
            if unrecorded is not None:
                unrecorded(StoreUnavailableError("this worker ends, and Redis hasn't answered"))

    def _send(self, send: Callable[[Store], object], unrecorded: Unrecorded, seconds: float) -> None:
        try:
            ask_until_answered(lambda: send(self._store), seconds, unrecorded)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is logged
            unrecorded(OnceError(repr(exc)))


#: This process's errands for an app.
errands_of = OfProcess(Errands)


@worker_shutdown.connect(weak=False)
@atexit.register
def _finish_all(**_: object) -> None:
    """At an orderly end of the process; a cold shutdown sends no signal."""
    for errands in errands_of.all():
        errands.finish()
