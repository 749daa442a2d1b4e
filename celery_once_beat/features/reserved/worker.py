"""Messages that wait in this worker: their windows' deadlines are kept near, so that the worker's death is seen soon.

A reserved message is in no queue any more. If its worker is killed, Redis as a broker delivers it again after an hour
(the visibility timeout), and a beat publishes the window again after ``start_timeout``. So while the message waits, a
duty of the worker's main process keeps the window's deadline a lease away. It does the same for messages that a task's
``rate_limit`` holds back, which Celery hasn't reserved yet.

A copy doesn't run, so it takes no token of a rate limit. A message is a copy if this worker has received it before, or
if the store would refuse it. Otherwise copies would delay the message they are copies of, and beats would publish more.

Messages that begin within a moment are never recorded. Recording stops when a message leaves unexecuted (revoked, or
the connection is lost), and when the worker shuts down: others may have those windows after a lease.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from celery.worker import state

from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError
from celery_once_beat.identity import host_of
from celery_once_beat.logs import get_logger
from celery_once_beat.settings import Settings
from celery_once_beat.store import Confirmed, Store
from celery_once_beat.windows import PUT_BACK, WindowKey, find_among
from celery_once_beat.worker.duties import Duty
from celery_once_beat.worker.message import DELIVERY
from celery_once_beat.worker.request import OnceRequest, delivery_of

from .store import receive_many

logger = get_logger(__name__)

#: Seconds from one check of what is reserved to the next. What is there at two of them is recorded.
_CHECK_EVERY = 0.5
#: Most messages of which it is remembered that they have taken a token.
_MOST_SEEN = 10_000
#: Most windows that are recorded, and most that travel in one pipeline. The others are overdue after ``start_timeout``.
_MOST, _PIPELINE = 1000, 200


@dataclass(slots=True)
class Waiting:
    """A window whose message waits: its retry number, and for how many seconds the store is to believe it."""

    window: WindowKey
    retry: int
    length: float
    worker: str = "?"
    #: Since when it waits, by ``clock.steady``; and whether a rate limit holds it back.
    since: float = field(default_factory=steady, compare=False)
    limited: bool = False
    reported: bool = False
    #: When it is recorded the next time, by ``clock.steady``.
    report_at: float = 0.0


class Reserved:
    """The reserved messages of one worker.

    ``read`` makes a Waiting of a request, or None where the store doesn't record it. ``consumer`` is Celery's, which
    has the buckets of rate limits.
    """

    def __init__(self, read: Callable[[Any, Settings], Waiting | None], consumer: Any = None) -> None:
        self._consumer = consumer
        self._read = read
        #: What was there at two checks; None where the store doesn't record it.
        self._waiting: dict[ref[Any], Waiting | None] = {}
        #: What was there at the last check for the first time.
        self._new: set[ref[Any]] = set()

    def check(self, store: Store) -> float:
        """Check what is reserved, and record what is due; raises StoreUnavailableError."""
        known, new = self._waiting, self._new
        self._waiting, self._new = {}, set()
        limited = dict(self._limited())
        # In one step: the main thread changes the set meanwhile.
        for reference in [*state.reserved_requests.data, *limited]:  # type: ignore[attr-defined]  # a WeakSet
            request = reference()
            if request is None or request.time_start is not None:
                continue
            if reference in known:
                self._waiting[reference] = known[reference]
            elif reference in new:
                self._waiting[reference] = self._read(request, store.settings)
            else:
                self._new.add(reference)
        for reference, waiting in self._waiting.items():
            if waiting is not None:
                waiting.limited = reference in limited
        self._report_all(store, steady())
        for reference, held in limited.items():
            each = self._waiting.get(reference)
            if each is not None and each.report_at == math.inf and isinstance(held, list):
                held[1] = 0
        return _CHECK_EVERY

    def _limited(self) -> Iterator[tuple[ref[Any], Any]]:
        """Yield what rate limits hold back: requests, and what their buckets have of each."""
        buckets = {} if self._consumer is None else self._consumer.task_buckets
        for bucket in list(buckets.values()):
            for held in list(bucket.contents) if bucket else ():
                yield ref(held[0]), held

    def _report_all(self, store: Store, now: float) -> None:
        waiting = [each for each in self._waiting.values() if each is not None and each.report_at < math.inf]
        waiting.sort(key=lambda each: not each.reported)
        due = [each for each in waiting[:_MOST] if each.report_at <= now]
        for place in range(0, len(due), _PIPELINE):
            self._report(store, due[place : place + _PIPELINE], now)

    def _report(self, store: Store, due: list[Waiting], now: float) -> None:
        executes = len(state.active_requests)
        holders = [f"{each.worker}:{'-' if each.limited else executes}:{now - each.since:.0f}" for each in due]
        waiting = [(each.window, each.retry, each.length, holder) for each, holder in zip(due, holders, strict=True)]
        replies = receive_many(store, waiting)
        for each, reply in zip(due, replies, strict=True):
            each.reported = isinstance(reply, Confirmed)
            if isinstance(reply, OnceError):  # it isn't known whether it is a copy
                logger.debug("once: %s", reply)
                each.report_at = now + _CHECK_EVERY
            else:
                each.report_at = now + each.length / 3 if each.reported else math.inf


def limit_windows(consumer: Any, name_of: Callable[[Any], object]) -> None:
    """Let copies of windows' messages take no token of a rate limit, in the worker of this consumer of Celery's.

    ``name_of`` returns what all copies of a request's message have in common; None: it has no window. What a bucket
    holds is a list then, whose second item is the number of tokens; the head may be a tuple of Celery's again.
    """
    # Strategies take them from there. The other one is for messages with a countdown, and for what was put back.
    limit, limit_post_eta = consumer._limit_task, consumer._limit_post_eta  # noqa: SLF001
    seen: OrderedDict[object, None] = OrderedDict()
    connection = None

    def limit_window(request: Any, bucket: Any, tokens: int) -> Any:
        nonlocal connection
        if consumer.connection is not connection:  # Celery has emptied the buckets: what they held comes once more
            connection = consumer.connection
            seen.clear()
        name = name_of(request)
        if name is None:
            return limit(request, bucket, tokens)
        bucket.add([request, 0 if name in seen else tokens])
        seen[name] = None
        if len(seen) > _MOST_SEEN:
            seen.popitem(last=False)
        return consumer._schedule_bucket_request(bucket)  # noqa: SLF001  # as the original does

    def limit_window_post_eta(request: Any, bucket: Any, tokens: int) -> Any:
        if name_of(request) is None:
            return limit_post_eta(request, bucket, tokens)
        consumer.qos.decrement_eventually()  # as the original does
        return limit_window(request, bucket, tokens)

    consumer._limit_task, consumer._limit_post_eta = limit_window, limit_window_post_eta  # noqa: SLF001


def name_of_copies(request: Any) -> object:
    """Return a name that all copies of a window's message share; None where it has no window.

    The window's next attempt has another name. So has a message that was put back: nothing ran for the token it took.
    """
    if not isinstance(request, OnceRequest) or DELIVERY not in request.request_dict:
        return None
    found = find_among(request.request_dict, request.request_dict.get("headers")) or {}
    return str((request.id, request.request_dict.get("retries"), found.get("once_attempt"), found.get(PUT_BACK)))


def read_waiting(request: Any, settings: Settings) -> Waiting | None:
    """What the store records of a message that waits; None if it records nothing."""
    if not isinstance(request, OnceRequest):
        return None
    try:
        delivery = delivery_of(request.request_dict)
    except OnceError:
        return None  # its begin logs that
    if delivery is None or not delivery.window.tracked:
        return None
    lease = float(delivery.window.lease or settings.of_task("lease", request.task))
    return Waiting(delivery.key, delivery.retry, min(lease, settings.start_timeout), host_of(delivery.owner))


def on_consumer(consumer: Any) -> Duty:
    """Check what the worker has reserved every so often, and let copies take no token of a rate limit."""
    limit_windows(consumer, name_of_copies)
    return Reserved(read_waiting, consumer).check
