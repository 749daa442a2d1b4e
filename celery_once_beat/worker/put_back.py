"""Messages that can't be executed now are put back: published once more, to come again later.

The reason may be that Redis is away, that a newer version wrote the message, or that another execution has a window
that nobody recovers. The delay grows each time; the message counts how often it was put back (``once_put_back``).
Delays are a little random, so that the messages of an outage don't all come at once. A process puts back at most RATE
messages a second, so that thousands of them don't keep the broker busy.

If the process dies before the message is published again, the window becomes overdue, as after any worker's death.
"""

from __future__ import annotations

import random
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import Ignore, Reject
from kombu.serialization import registry  # type: ignore[attr-defined]  # celery-types lacks it

from celery_once_beat.backoff import backoff_step
from celery_once_beat.errors import StoreUnavailableError
from celery_once_beat.logs import Logged, about, get_logger
from celery_once_beat.store import store_of
from celery_once_beat.windows import PUT_BACK, find_among, find_headers

from .message import RAW, compression_of, of_old_protocol, publish_kept
from .tracing import here

if TYPE_CHECKING:
    from .task import OnceTask

logger = get_logger(__name__)

#: A process puts back at most this many messages a second.
RATE = 50.0
#: RATE delays a message by at most so many seconds.
_LONGEST_QUEUE = 30.0
#: Seconds until a message comes again the first time.
_FIRST = 0.1
#: A message comes again within this many recovery intervals; if the store is away, within one.
_INTERVALS = 5
#: ``once_put_back`` counts no further.
_MOST_TIMES = 100
#: Reasons already logged. An unreachable store counts as one, since its error text varies.
_reasons = Logged()
_AWAY = StoreUnavailableError.__name__
#: Options of a publish that say where the message goes, and how it is sent.
_ROUTED = ("exchange", "routing_key", "declare", "retry", "retry_policy", "timeout", "confirm_timeout")
#: When this process may put back the next message, at RATE; by time.monotonic().
_free_at = 0.0


def put_back(task: OnceTask, request: Any, exc: Exception) -> NoReturn:
    """Publish the same message to come again later, its own retries untouched. Logs each reason once.

    Raises as :func:`send_again`.
    """
    away = isinstance(exc, StoreUnavailableError)
    reason = _AWAY if away else str(exc)
    longest = store_of(task.app).settings.recovery_interval * (1 if away else _INTERVALS)
    if _reasons.is_new(reason):
        logger.warning("once: messages are put back for up to %g s: %s", longest, exc, extra=about("window_put_back"))
    send_again(task, request, longest, exc)


def send_again(task: OnceTask, request: Any, longest: float, cause: Exception | None = None) -> NoReturn:
    """Publish the same message once more, to come within ``longest`` seconds, or later if many wait.

    Raises Ignore; or Reject, to have it delivered again, if it can't be published.
    """
    times = times_put_back(request)
    countdown = _seconds(times, longest)
    note = {PUT_BACK: min(times + 1, _MOST_TIMES)}
    try:
        try:
            _send(task, request, countdown, note)
        except ValueError:
            if countdown >= 1:
                raise
            # Celery's delayed delivery, which quorum queues need, knows whole seconds only.
            _send(task, request, 1, note)
    except Exception as publish_error:  # noqa: BLE001  # every transport has errors of its own
        # Neither store nor broker answers: with late acks the broker has it still, else the window stays open.
        raise Reject(publish_error, requeue=True) from cause
    raise Ignore("put back") from cause


def _send(task: OnceTask, request: Any, countdown: float, note: dict[str, int]) -> None:
    """Send the message as it came, where that is at hand; else one that is made of the request.

    A message of Celery's protocol 1 has its eta within the body. So its body is encoded anew, by the same serializer.
    """
    signature = task.signature_from_request(request, countdown=countdown, retries=request.retries or 0)
    window_headers = find_headers(vars(request), request.headers)
    signature.set(headers={**signature.options["headers"], **window_headers, **note})
    trace = here.trace
    came = None if trace is None else trace.message.get(RAW)
    if came is None or of_old_protocol(came):
        if came is not None:
            name = registry.type_to_name.get(came["content_type"])
            signature.set(serializer=name, compression=compression_of(came))
        signature.apply_async()
        return
    due = datetime.now(timezone.utc) + timedelta(seconds=countdown)
    headers = {**came["headers"], **note, "eta": due.isoformat()}
    with task.app.producer_pool.acquire(block=True) as producer:
        signature.apply_async(producer=_AsItCame(producer, {**came, "headers": headers}))


class _AsItCame:
    """A producer whose first message is one that came. Celery decides where it goes, and how it is delayed."""

    def __init__(self, producer: Any, message: dict[str, Any]) -> None:
        self._producer = producer
        self._message: dict[str, Any] | None = message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Publish ``body``, the event of a sent task say, or in place of the first one the message that came."""
        message, self._message = self._message, None
        if message is None:
            return self._producer.publish(body, **options)
        routed = {name: options[name] for name in _ROUTED if options.get(name) is not None}
        return publish_kept(self._producer, message, **routed)


def times_put_back(request: Any) -> int:
    """Return how often this message was put back; 0 if the header has no such number."""
    times = (find_among(vars(request), request.headers) or {}).get(PUT_BACK)
    return times if type(times) is int and 0 <= times <= _MOST_TIMES else 0


def _seconds(times: int, longest: float) -> float:
    """Return the seconds until a message comes again that was put back ``times`` times before."""
    global _free_at  # noqa: PLW0603  # of this process
    now = time.monotonic()
    _free_at = max(_free_at, now) + 1 / RATE
    share = random.uniform(0.5, 1.0)  # noqa: S311  # no secret
    if _free_at > now + _LONGEST_QUEUE:
        _free_at = now + _LONGEST_QUEUE
        return share * _LONGEST_QUEUE
    return max(share * backoff_step(_FIRST, longest, times), _free_at - now)


def store_answered() -> None:
    """Log that the store is back, if this process put messages back because of it; the next outage is logged again."""
    if _reasons.knows(_AWAY):
        _reasons.end(_AWAY)
        logger.warning("once: Redis can be used again, messages are executed", extra=about("store_back"))
