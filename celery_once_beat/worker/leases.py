"""One daemon thread a process renews the leases of all windows that run in it.

A lease is trusted for its length counted from *before* the request that took or renewed it was sent: the server
can't have begun to count earlier. So ``held`` turns False here before the window can be another's, even when
the reply was slow, or the process was frozen, or the machine suspended.

A soft time limit is raised in the main thread at any instruction, within this module's functions too. So nothing that
the thread needs is kept under a lock that is written in Python: what is raised inside of such a one leaves it locked.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from celery.utils.log import get_logger

from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.logs import about
from celery_once_beat.store import Renewal, Renewed, Stale, Store
from celery_once_beat.windows import WindowKey, format_instant

__all__ = ("Lease", "Leases", "is_death", "leases_of", "tell")

logger = get_logger(__name__)


#: Python 3.10 has none.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())


class Lease:
    """An execution's right to its window. ``length`` is in seconds, ``sent`` is by ``clock.steady``."""

    def __init__(
        self,
        window: WindowKey,
        owner: str,
        fence: int,
        length: float,
        sent: float,
        *,
        tracked: bool = True,
        attempt: int | None = None,
    ) -> None:
        self.window = window
        self.owner = owner
        self.fence = fence
        self.length = length
        self.tracked = tracked
        self.attempt = attempt
        self.lost = False
        #: Its end is being told to the store, which then answers a renewal with Stale.
        self.ending = False
        #: Its execution has ended, in whatever way: it isn't renewed any more.
        self.over = False
        self._sent = sent

    def held(self) -> bool:
        """Whether the window is certainly this execution's, now."""
        return not self.lost and steady() < self._sent + self.length

    def renewed(self, sent: float) -> None:
        """Count anew from ``sent``."""
        self._sent = sent

    @property
    def renew_at(self) -> float:
        """When to renew, by ``clock.steady``: after a third of the length."""
        return self._sent + self.length / 3


class Leases:
    """The leases of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Changed by single steps of the set's own, each of which is atomic.
        self._held: set[Lease] = set()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        #: When the thread looks next, by ``clock.steady``, and what makes it look sooner.
        self._wakes_at = math.inf
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def hold(self, lease: Lease) -> None:
        """Renew ``lease`` from now on."""
        self._held.add(lease)
        if self._thread is None or not self._thread.is_alive():
            self._start()
        elif lease.renew_at < self._wakes_at:
            # Not for each lease: waking a thread costs more than a short body.
            self._wake.put(None)

    def release(self, lease: Lease) -> None:
        """Don't renew ``lease`` any more. Its ``over`` alone says so too, without a call that could be cut short."""
        lease.over = True
        self._held.discard(lease)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._keep, name="once-leases", daemon=True)
                thread.start()
                self._thread = thread

    def _keep(self) -> None:
        while True:
            self._wakes_at = math.inf  # a lease that comes behind the copy wakes this once more
            held = self._held.copy()
            leases = [lease for lease in held if not (lease.lost or lease.over)]
            self._held.difference_update(held.difference(leases))
            self._wakes_at = min((lease.renew_at for lease in leases), default=math.inf)
            wait = self._wakes_at - steady()
            if wait > 0:
                with contextlib.suppress(queue.Empty):
                    self._wake.get(timeout=None if wait == math.inf else wait)
            elif not self._renew(leases):
                time.sleep(min(1.0, *(lease.length / 10 for lease in leases)))

    def _renew(self, leases: list[Lease]) -> bool:
        """Renew all in one round trip; returns False where the store didn't answer for one."""
        sent = steady()
        replies: Sequence[object]
        try:
            replies = self._store.renew_many(
                Renewal(lease.window, lease.owner, lease.fence, lease.length, lease.tracked) for lease in leases
            )
        except Exception as exc:  # noqa: BLE001  # this thread must not end while bodies run
            replies = [exc] * len(leases)
        answered = True
        for lease, reply in zip(leases, replies, strict=True):
            if isinstance(reply, Renewed):
                lease.renewed(sent)
            elif isinstance(reply, Stale):
                self._lose(lease)
            else:
                answered = False
                logger.debug("once: lease of %s not renewed: %s", lease.window.entry, reply)
        return answered

    def _lose(self, lease: Lease) -> None:
        lease.lost = True
        if lease.ending:
            return
        logger.warning(
            "once: window %s of %r isn't this execution's any more, though its body still runs",
            format_instant(lease.window.start),
            lease.window.entry,
            extra=about("lease_lost", lease.window, attempt=lease.attempt, owner=lease.owner, fence=lease.fence),
        )


def tell(send: Callable[[], object], seconds: float, unrecorded: Callable[[OnceError], None]) -> None:
    """Tell the store how an execution ended, for so many seconds if need be: an end that is lost costs a second one.

    What can't be told is given to ``unrecorded``, and stops nothing: the body's own result or exception stands. A
    foreign key and a newer version don't go away by waiting.

    The body has ended. So what is raised into this (a soft time limit, gevent's Timeout, KeyboardInterrupt) waits until
    the end is told, and goes on then; a second one goes on at once.
    """
    give_up = time.monotonic() + seconds
    pause, wait = 0.1, 0.0
    raised: BaseException | None = None
    try:
        while True:
            try:
                if wait:
                    time.sleep(wait)
                send()
                break
            except OnceError as exc:
                if not isinstance(exc, StoreUnavailableError) or time.monotonic() + pause > give_up:
                    unrecorded(exc)
                    break
                wait, pause = pause, min(pause * 2, 2.0)
            except BaseException as exc:
                if raised is not None:
                    raise
                raised, wait = exc, 0.0  # asked again: every verb answers its owner as it did the first time
        if raised is not None:
            raise raised
    finally:
        raised = None  # else it and this frame would hold each other


def is_death(error: BaseException) -> bool:
    """Whether what came out of a body is the end of its process or worker, and not the body's own.

    SystemExit and KeyboardInterrupt are. So is what Celery's handler of a signal raises, at a cold shutdown say, where
    the body runs in the worker's main thread (solo): any Exception, known by the frame that it comes from.
    """
    if not isinstance(error, Exception):
        return True
    return any(
        frame.f_globals.get("__name__") == "celery.apps.worker"
        for each in _all_of(error)
        for frame, _ in traceback.walk_tb(each.__traceback__)
    )


def _all_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception with its causes, its contexts and the members of groups. A loop: a chain may be long."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            left += each.__cause__, each.__context__
            if isinstance(each, _GROUP):  # not whatever else has something of that name
                left += each.exceptions


_leases: WeakKeyDictionary[Store, dict[int, Leases]] = WeakKeyDictionary()


def leases_of(store: Store) -> Leases:
    """Return this process's leases; a forked child has its own, since threads don't survive a fork.

    Safe to call from several threads: setdefault is one atomic step. No lock: a child that is forked while another
    thread holds one would wait for ever.
    """
    pid, by_process = os.getpid(), _leases.setdefault(store, {})
    return by_process.get(pid) or by_process.setdefault(pid, Leases(store))
