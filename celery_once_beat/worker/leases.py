"""One daemon thread in each process renews the leases of all windows that run in it.

A lease is trusted for its length counted from *before* the request that took or renewed it was sent: the server
can't have begun to count earlier. So ``held`` turns False here before the window can be another's, even if the reply
was slow, the process was frozen or the machine suspended.

A soft time limit is raised in the main thread at any instruction, within this module's functions too. So no lock that
is written in Python guards what the thread needs: an exception raised inside it would leave it locked.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from celery.utils.log import get_logger

from celery_once_beat.clock import steady
from celery_once_beat.logs import about
from celery_once_beat.store import Renewal, Renewed, Stale, Store
from celery_once_beat.windows import format_instant

logger = get_logger(__name__)


class Lease:
    """An execution's right to its window, as ``renewal`` asks for it; ``sent`` is by ``clock.steady``."""

    def __init__(self, renewal: Renewal, attempt: int, sent: float) -> None:
        self.renewal = renewal
        self.attempt = attempt
        self.sent = sent
        self.lost = False
        #: Its end is being told, after which a renewal is answered with Stale.
        self.ending = False
        #: Its execution has ended: it isn't renewed any more.
        self.over = False

    def held(self) -> bool:
        """Whether the window is certainly this execution's, now."""
        return not self.lost and steady() < self.sent + self.renewal.lease

    @property
    def renew_at(self) -> float:
        """When to renew, by ``clock.steady``: after a third of the length."""
        return self.sent + self.renewal.lease / 3


class Leases:
    """The leases of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Changed only by the set's own methods, each of which is atomic.
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
            with self._starting:
                if self._thread is None or not self._thread.is_alive():
                    thread = threading.Thread(target=self._keep, name="once-leases", daemon=True)
                    thread.start()
                    self._thread = thread
        elif lease.renew_at < self._wakes_at:
            # Not for each lease: waking a thread costs more than a short body.
            self._wake.put(None)

    def release(self, lease: Lease) -> None:
        """Don't renew ``lease`` any more. Setting its ``over`` is enough: no exception can cut that short."""
        lease.over = True
        self._held.discard(lease)

    def _keep(self) -> None:
        while True:
            self._wakes_at = math.inf  # a lease that comes after the copy wakes this once more
            held = self._held.copy()
            leases = [lease for lease in held if not (lease.lost or lease.over)]
            self._held.difference_update(held.difference(leases))
            self._wakes_at = min((lease.renew_at for lease in leases), default=math.inf)
            wait = self._wakes_at - steady()
            if wait > 0:
                with contextlib.suppress(queue.Empty):
                    self._wake.get(timeout=None if wait == math.inf else wait)
            elif not self._renew(leases):
                time.sleep(min(1.0, *(lease.renewal.lease / 10 for lease in leases)))

    def _renew(self, leases: list[Lease]) -> bool:
        """Renew all in one round trip; returns False if the store didn't answer for one."""
        sent = steady()
        replies: Sequence[object]
        try:
            replies = self._store.renew_many(lease.renewal for lease in leases)
        except Exception as exc:  # noqa: BLE001  # this thread must not end while bodies run
            replies = [exc] * len(leases)
        answered = True
        for lease, reply in zip(leases, replies, strict=True):
            if isinstance(reply, Renewed):
                lease.sent = sent
            elif isinstance(reply, Stale):
                _lose(lease)
            else:
                answered = False
                logger.debug("once: lease of %s not renewed: %s", lease.renewal.window.entry, reply)
        return answered


def _lose(lease: Lease) -> None:
    lease.lost = True
    if lease.ending:
        return
    window, owner, fence, *_ = lease.renewal
    logger.warning(
        "once: window %s of %r isn't this execution's any more, though its body still runs",
        format_instant(window.start),
        window.entry,
        extra=about("lease_lost", window, attempt=lease.attempt, owner=owner, fence=fence),
    )


_leases: WeakKeyDictionary[Store, dict[int, Leases]] = WeakKeyDictionary()


def leases_of(store: Store) -> Leases:
    """Return this process's leases; a forked child has its own, since threads don't survive a fork.

    Safe to call from several threads: setdefault is one atomic step. No lock: a child that is forked while another
    thread holds one would wait for ever.
    """
    pid, by_process = os.getpid(), _leases.setdefault(store, {})
    return by_process.get(pid) or by_process.setdefault(pid, Leases(store))
