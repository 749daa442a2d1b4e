"""One daemon thread in each process renews the leases of the windows that run in it, and records their ends.

A lease counts from *before* the request that took or renewed it was sent: the server can't have begun to count
earlier. So ``held`` turns False here before another can have the window, even if the reply was slow, the process was
frozen or the machine suspended.

An end that needn't be recorded at once travels with this process's next begin, before it, in one round trip. No body
starts before each end was sent once: a body may hold the GIL past that lease, or kill the process. So ends are also
sent before a body without a window, and at once while another thread runs a body. If nothing follows within ``WITHIN``
seconds, the thread sends them. Their leases are renewed until they are recorded. Every orderly end of the process
records them all (``record_all``). If the store doesn't answer, the thread tries again, and the next body doesn't wait.

A soft time limit is raised in the main thread at any instruction, also within this module's functions. So the thread
needs no lock that is written in Python: an exception raised inside it would leave it locked. An end is kept until it is
recorded. Two threads may send the same end at once; the store answers both alike.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from logging import WARNING
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import task_postrun, task_prerun, worker_process_shutdown, worker_shutdown

from celery_once_beat.background import OfProcess
from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, StoreUnavailableError, UncertainWriteError
from celery_once_beat.logs import get_logger, log_window
from celery_once_beat.store import Again, Begun, Finished, Renewal, Renewed, Request, Stale, Store, raised

if TYPE_CHECKING:
    from .part import ExecutionPart

T = TypeVar("T")

logger = get_logger(__name__)

#: Seconds that an end waits for the next begin. Killed meanwhile, the window runs again. Much less would wake the
#: thread for each end of a busy worker, and a wake costs more than recording it.
WITHIN = 0.01
#: Seconds after which an end is sent again that the store couldn't record; a tenth of its lease, if that is less.
_AGAIN = 1.0
#: After so many begins whose answer came later than their lease, the window is given back.
_LATE_BEGINS = 3
#: Seconds that an orderly end of the process waits for Redis.
_AT_END = 5.0

Recorded = Finished | Again | Stale | OnceError


class Lease:
    """An execution's right to its window, as ``renewal`` asks for it; ``sent`` is by ``clock.steady``."""

    def __init__(self, renewal: Renewal, attempt: int, sent: float) -> None:
        self.renewal = renewal
        self.attempt = attempt
        self.sent = sent
        #: *ending*: the end is on its way to the store, which answers later renewals with Stale. *lost*: another
        #: execution may have begun. *over*: the execution has ended. The last two aren't renewed.
        self.state: Literal["held", "ending", "lost", "over"] = "held"
        #: Others wait for the end of the execution.
        self.ends_at_once = False
        #: What features keep as long as the lease.
        self.renewed_with: tuple[ExecutionPart, ...] = ()

    def held(self) -> bool:
        """Whether the window is certainly this execution's, now. While its end is being sent, another may begin."""
        return self.state == "held" and steady() < self.sent + self.renewal.lease

    def is_safe_for_long(self) -> bool:
        """Whether no other may begin for another third of the lease, though the end may be on its way."""
        return self.state != "lost" and steady() < self.sent + self.renewal.lease * 2 / 3

    @property
    def renew_at(self) -> float:
        """When to renew, by ``clock.steady``: after a third of the length."""
        return self.sent + self.renewal.lease / 3

    def end(self) -> None:
        """The execution's end is being sent from now on."""
        if self.state == "held":
            self.state = "ending"


class End:
    """The end of an execution, until ``request`` has recorded it; ``answered`` gets the store's reply, or the error."""

    def __init__(self, lease: Lease, request: Request[Any], answered: Callable[[Recorded], None]) -> None:
        self.lease = lease
        self.request = request
        self.answered = answered
        now = steady()
        #: When the thread sends it unless a begin has, and until when it is tried, by ``clock.steady``.
        self.due = now + WITHIN
        self.give_up = now + lease.renewal.lease


class Leases:
    """The leases of one process, and the ends that it hasn't recorded yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Changed only by the set's own methods, each of which is atomic.
        self._held: set[Lease] = set()
        self._ends: set[End] = set()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        #: When the thread looks next, by ``clock.steady``, and what makes it look sooner.
        self._wakes_at = math.inf
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def hold(self, lease: Lease) -> None:
        """Renew ``lease`` from now on."""
        self._held.add(lease)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._keep, name="once-leases", daemon=True)
                    thread.start()
                    self._thread = thread
        elif lease.renew_at < self._wakes_at:
            # Not for each lease: waking a thread costs more than a short body.
            self._wake.put(None)

    def release(self, lease: Lease) -> None:
        """Don't renew ``lease`` any more. Setting its ``state`` is enough: no exception can cut that short."""
        lease.state = "over"
        self._held.discard(lease)

    def begin(self, asked: Request[T], length: float, undo: Callable[[int], object]) -> tuple[T, float]:
        """Send a begin until its answer can be acted on; returns that, and when it was sent. Unsent ends go before it.

        If no answer can be acted on, calls ``undo`` with the fence of the begin, 0 where that isn't known, and raises
        StoreUnavailableError.
        """
        give_up, late_answers = time.monotonic() + length / 2, 0
        while True:
            ends, sent = self._fresh(), steady()
            try:
                *recorded, reply = self._store.trip.send([*map(attrgetter("request"), ends), asked])
            except StoreUnavailableError as exc:
                self._answer(ends, [exc] * len(ends))
                raise
            self._answer(ends, recorded)
            if isinstance(reply, UncertainWriteError):
                if time.monotonic() <= give_up:
                    time.sleep(0.1)  # it has begun, but a failover could undo that: asking again writes again
                    continue
                undo(0)
            if not isinstance(reply, Begun) or steady() < sent + length:
                return raised(reply), sent
            late_answers += 1  # Redis is slow, or this process slept
            if late_answers == _LATE_BEGINS:
                undo(reply.fence)
                raise StoreUnavailableError(
                    f"Redis answers a begin later than the lease of {length:g} s "
                    "(the entry's lease, once_lease, once_beat_lease) runs out"
                )

    def end_soon(self, end: End) -> None:
        """Record ``end`` with the next begin, or within ``WITHIN`` seconds; at once while another body runs."""
        self._ends.add(end)
        _unsent.add(end)
        if _running():  # looked at behind the add: a body that starts in between finds the end, and sends it itself
            self.send_ends()
        if self._ends and end.due < self._wakes_at:
            self._wake.put(None)

    def send_ends(self) -> bool:
        """Record the unsent ends in one round trip; returns False if the store didn't answer for one."""
        ends = self._fresh()
        return not ends or self._record(ends)

    def _fresh(self) -> list[End]:
        """Return the ends that weren't tried yet. One that failed is due later, by the thread: no body waits for it."""
        latest = steady() + WITHIN if self._ends else 0.0
        return [end for end in self._ends.copy() if end.due <= latest]

    def _answer(self, ends: Iterable[End], replies: Iterable[Recorded]) -> None:
        """Take note of the store's replies. An end that it couldn't record is sent again, for as long as a lease."""
        for end, reply in zip(ends, replies, strict=True):
            if isinstance(reply, StoreUnavailableError) and steady() < end.give_up:
                end.due = steady() + min(_AGAIN, end.lease.renewal.lease / 10)
                continue
            try:
                self._ends.remove(end)
            except KeyError:  # another thread had its answer first
                continue
            _unsent.discard(end)
            self.release(end.lease)
            end.answered(reply)

    def record_all(self) -> None:
        """Record every end, as the process ends; what Redis doesn't take in time is logged."""
        until = steady() + _AT_END
        while self._ends and steady() < until:
            if not self._record(list(self._ends)):
                time.sleep(0.1)
        left = list(self._ends)
        for end in left:
            end.give_up = 0.0
        self._answer(left, [StoreUnavailableError("this process ends, and Redis hasn't answered")] * len(left))

    def _record(self, ends: list[End]) -> bool:
        """Record ``ends`` in one round trip; returns False if the store didn't answer for one."""
        try:
            replies: Sequence[Recorded] = self._store.trip.run([end.request for end in ends])
        except StoreUnavailableError as exc:
            replies = [exc] * len(ends)
        except SoftTimeLimitExceeded:
            raise  # a task's: the ends are sent once more
        except Exception as exc:  # noqa: BLE001  # the thread must not end while bodies run
            replies = [OnceError(repr(exc))] * len(ends)
        self._answer(ends, replies)
        return not any(isinstance(reply, StoreUnavailableError) for reply in replies)

    def _keep(self) -> None:
        try:
            self._keep_on()
        finally:
            self._thread = None  # the next lease starts another

    def _keep_on(self) -> None:
        while True:
            self._wakes_at = math.inf  # what comes after the copies wakes this once more
            held, ends = self._held.copy(), self._ends.copy()
            leases = [lease for lease in held if lease.state in ("held", "ending")]
            self._held.difference_update(held.difference(leases))
            renew_at = min((lease.renew_at for lease in leases), default=math.inf)
            self._wakes_at = min(renew_at, *(end.due for end in ends)) if ends else renew_at
            now = steady()
            if now < self._wakes_at:
                with contextlib.suppress(queue.Empty):
                    self._wake.get(timeout=None if self._wakes_at == math.inf else self._wakes_at - now)
                continue
            if any(end.due <= now for end in ends):
                self.send_ends()
            if renew_at <= now and not self._renew(leases):
                time.sleep(min(1.0, *(lease.renewal.lease / 10 for lease in leases)))

    def _renew(self, leases: list[Lease]) -> bool:
        """Renew all in one round trip; returns False if the store didn't answer for one."""
        sent = steady()
        parts = [(lease, part) for lease in leases for part in lease.renewed_with]
        replies: Sequence[object]
        try:
            replies = self._store.renew_many((lease.renewal for lease in leases), [part.renewal() for _, part in parts])
        except Exception as exc:  # noqa: BLE001  # this thread must not end while bodies run
            replies = [exc] * len(leases)
        answered = True
        for lease, reply in zip(leases, replies, strict=False):
            if isinstance(reply, Renewed):
                lease.sent = sent
            elif isinstance(reply, Stale):
                _lose(lease)
            else:
                answered = False
                logger.debug("once: lease of %s not renewed: %s", lease.renewal.window.entry, reply)
        for (lease, part), reply in zip(parts, replies[len(leases) :], strict=False):
            part.on_renewed(lease, reply)
        return answered


def _lose(lease: Lease) -> None:
    if lease.state != "held":
        lease.state = "over"
        return
    lease.state = "lost"
    window, owner, fence, *_ = lease.renewal
    text = "isn't this execution's any more, though its body still runs"
    log_window(logger, WARNING, "lease_lost", window, text, attempt=lease.attempt, owner=owner, fence=fence)


#: This process's leases at a store.
leases_of = OfProcess(Leases)


#: By process id, since a forked child has its own: ids of the tasks that run in it, or are about to.
_tasks: dict[int, list[str]] = {}


def _running() -> list[str]:
    return _tasks.setdefault(os.getpid(), [])


@task_prerun.connect(weak=False)
def _before_body(task: Any, task_id: str, **_: object) -> None:
    """Any task of a worker is about to run. For one that is no OnceTask the unsent ends are sent here.

    An OnceTask sends them itself: only there does an exception that is raised from outside reach the task.
    """
    _running().append(task_id)
    if not getattr(task, "once_closes_windows", False):
        send_ends()


@task_postrun.connect(weak=False)
def _after_body(task_id: str, **_: object) -> None:
    with contextlib.suppress(ValueError):
        _running().remove(task_id)


#: The unsent ends of this process, of all stores. Each body without a window asks whether there are any.
_unsent: set[End] = set()


def send_ends() -> None:
    """Send the unsent ends of this process."""
    if _unsent:
        for leases in leases_of.all():
            leases.send_ends()


@worker_process_shutdown.connect(weak=False)
@worker_shutdown.connect(weak=False)
@atexit.register
def _record_all(**_: object) -> None:
    """At an orderly end of a pool's child, of a worker, of any other process; a cold shutdown sends no signal."""
    for leases in leases_of.all():
        leases.record_all()
