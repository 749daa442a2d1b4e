"""One daemon thread a process renews the leases of all windows that run in it.

A lease is trusted for its length counted from *before* the request that took or renewed it was sent: the server
can't have begun to count earlier. So ``held`` turns False here before the window can be another's, even when
the reply was slow, or the process was frozen.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from celery.utils.log import get_logger

from .errors import OnceError, StoreUnavailableError
from .logs import about
from .replies import Renewed, Stale
from .requests import Renewal, WindowKey
from .store import Store
from .windows import format_instant

__all__ = ("Lease", "Leases", "leases_of", "tell")

logger = get_logger(__name__)


class Lease:
    """An execution's right to its window. ``length`` is in seconds, ``sent`` is time.monotonic()."""

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
        self._sent = sent

    def held(self) -> bool:
        """Whether the window is certainly this execution's, now."""
        return not self.lost and time.monotonic() < self._sent + self.length

    def renewed(self, sent: float) -> None:
        """Count anew from ``sent``."""
        self._sent = sent

    @property
    def renew_at(self) -> float:
        """When to renew, time.monotonic(): after a third of the length."""
        return self._sent + self.length / 3


class Leases:
    """The leases of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: set[Lease] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        #: When the thread looks next, time.monotonic().
        self._wakes_at = math.inf

    def hold(self, lease: Lease) -> None:
        """Renew ``lease`` from now on."""
        with self._changed:
            self._held.add(lease)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._keep, name="once-leases", daemon=True)
                self._thread.start()
            elif lease.renew_at < self._wakes_at:
                # Not for each lease: waking a thread costs more than a short body.
                self._changed.notify()

    def release(self, lease: Lease) -> None:
        """Don't renew ``lease`` any more."""
        with self._changed:
            self._held.discard(lease)

    def _keep(self) -> None:
        while True:
            with self._changed:
                self._wakes_at = min((lease.renew_at for lease in self._held), default=math.inf)
                wait = self._wakes_at - time.monotonic()
                if wait > 0:
                    self._changed.wait(None if wait == math.inf else wait)
                    continue
                leases = [lease for lease in self._held if not lease.lost]
                self._held.intersection_update(leases)
            if leases and not self._renew(leases):
                time.sleep(min(1.0, *(lease.length / 10 for lease in leases)))

    def _renew(self, leases: list[Lease]) -> bool:
        """Renew all in one round trip; returns False where the store didn't answer for one."""
        sent = time.monotonic()
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
    """Tell the store how an execution ended, for so many seconds if need be: what is lost is a second execution.

    What can't be told is given to ``unrecorded``, and stops nothing: the body's own result or exception stands. A
    foreign key and a newer version don't go away by waiting.
    """
    give_up = time.monotonic() + seconds
    pause = 0.1
    while True:
        try:
            send()
        except OnceError as exc:
            if not isinstance(exc, StoreUnavailableError) or time.monotonic() + pause > give_up:
                unrecorded(exc)
                return
        else:
            return
        time.sleep(pause)
        pause = min(pause * 2, 2.0)


_leases: WeakKeyDictionary[Store, dict[int, Leases]] = WeakKeyDictionary()


def leases_of(store: Store) -> Leases:
    """Return this process's leases; a forked child has its own, since threads don't survive a fork.

    Safe to call from several threads: setdefault is one atomic step. No lock: a child that is forked while another
    thread holds one would wait for ever.
    """
    pid, by_process = os.getpid(), _leases.setdefault(store, {})
    return by_process.get(pid) or by_process.setdefault(pid, Leases(store))
