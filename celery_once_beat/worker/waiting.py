"""Windows that wait: for another window of their entry, or for a place of a limit. Their messages are parked.

Where begin answers that a window waits, the worker puts the message, as it came, beside the window in the store, and
this copy is gone. Whoever ends the window before it, or gives a place back, gets the windows that are called, and
publishes their messages. Nobody polls meanwhile.

Who decides
-----------
The store. A script that ends a window or gives a place back names the next window in the same step. That one is overdue
soon, unless its message is published.

What each failure does
----------------------
- Killed between begin and park: the window waits without a message. Once it is called a beat publishes it.
- Killed after it ended a window, before it has published the next: that one is overdue within a second, and a beat
  publishes it. A window that was called for a place and doesn't come within two seconds is named to a beat.
- Killed after it has published it, before it has said so: a beat publishes a second copy, which workers refuse.
- The broker refuses it: logged once; a beat publishes it.
- The message can't be kept (it is too large, of an old protocol, not text in its headers): a beat publishes it.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.log import get_logger

from celery_once_beat.errors import StoreUnavailableError
from celery_once_beat.logs import about, guarded
from celery_once_beat.store import Called, Confirmation, Published, Store, Unchanged, raised
from celery_once_beat.windows import WindowKey, decode_headers, find_among, format_instant
from celery_once_beat.wording import shown

if TYPE_CHECKING:
    from celery import Celery

__all__ = ("RAW", "call", "kept", "kept_of", "log_once", "packed", "publish_kept")

logger = guarded(get_logger(__name__))

#: Where the worker's main process notes the message of a window, in the request of its delivery.
RAW = "_once_raw"
#: Characters of a parked message, at most.
_LONGEST = 1_000_000
#: What a parked message keeps of the properties that its broker gave it; their types.
_PROPERTIES = {
    "correlation_id": str,
    "reply_to": str,
    "priority": int,
    "delivery_mode": int,
    "expiration": str,
    "message_id": str,
    "type": str,
    "app_id": str,
}
_FIELDS = {
    "v": int,
    "body": str,
    "base64": bool,
    "content_type": str,
    "content_encoding": str,
    "compression": str,
    "headers": dict,
    "properties": dict,
    "exchange": str,
    "routing_key": str,
}
#: Headers of this delivery alone: kombu has decompressed the body, and RabbitMQ says how the message came here.
_LEFT_OUT = re.compile(r"(compression|x-(first-|last-)?death|x-delivery-count|x-acquired-count)")
_VERSION = 1
#: Reasons already logged: of what isn't parked, and of what isn't published.
_logged: set[str] = set()
_MOST_LOGGED = 1000


# -- the message


class _Kept(threading.local):
    """The message of the window that this thread executes, as it came; None where it isn't at hand."""

    message: dict[str, Any] | None = None


kept = _Kept()


def kept_of(message: Any) -> dict[str, Any]:
    """Return what is needed to publish a message once more, as it came. Its body isn't copied."""
    delivery, properties = message.delivery_info or {}, message.properties or {}
    return {
        "body": message.body,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "compression": str((message.headers or {}).get("compression") or ""),
        "headers": {name: value for name, value in (message.headers or {}).items() if not _LEFT_OUT.match(str(name))},
        "properties": {name: properties[name] for name in _PROPERTIES if properties.get(name) is not None},
        "exchange": delivery.get("exchange") or "",
        "routing_key": delivery.get("routing_key") or "",
    }


def of_old_protocol(kept: Mapping[str, Any]) -> bool:
    """Whether a message is of Celery's protocol 1, whose body has what the headers have since."""
    return "id" not in kept["headers"]


def publish_kept(producer: Any, kept: Mapping[str, Any], **options: Any) -> None:
    """Publish a message as it came: its body isn't encoded anew. Raises what the transport raises."""
    properties = dict(kept["properties"])
    expiration = str(properties.pop("expiration", ""))
    if expiration.isdecimal():  # milliseconds; kombu takes seconds
        properties["expiration"] = int(expiration) / 1000
    producer.publish(
        kept["body"],
        content_type=kept["content_type"],
        content_encoding=kept["content_encoding"],
        compression=kept["compression"] or None,
        **{"headers": kept["headers"], **properties, **options},
    )


def packed(kept: Mapping[str, Any] | None) -> str:
    """Return the text of a message that is to be parked; raises ValueError where it can't be."""
    if kept is None or of_old_protocol(kept):
        raise ValueError("its worker's main process hasn't kept it, or it is of Celery's protocol 1")
    body = kept["body"]
    as_text = isinstance(body, str)
    try:
        text = json.dumps(
            {
                **kept,
                "v": _VERSION,
                "body": body if as_text else base64.b64encode(bytes(body)).decode(),
                "base64": not as_text,
            }
        )
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueError(f"it can't be written as JSON: {exc}") from exc
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters, at most {_LONGEST} are kept")
    _unpacked(text)
    return text


def _unpacked(text: str) -> dict[str, Any]:
    """Read a parked message. Its body stays as it is: nothing is decoded. Raises ValueError for anything foreign."""
    try:
        found = json.loads(text)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    if not isinstance(found, dict) or found.keys() != _FIELDS.keys() or found["v"] != _VERSION:
        raise ValueError("found other fields than those of a message")
    for name, kind in _FIELDS.items():
        if type(found[name]) is not kind:
            raise ValueError(f"field {name}: found {shown(found[name])}, expected {kind.__name__}")
    for name, value in found["properties"].items():
        if name not in _PROPERTIES or type(value) is not _PROPERTIES[name]:
            raise ValueError(f"property {shown(name)}: found {shown(value)}")
    if not found["exchange"] and not found["routing_key"]:
        raise ValueError("found neither an exchange nor a routing key")
    if found.pop("base64"):
        found["body"] = base64.b64decode(found["body"], validate=True)
    return found


def _publish(app: Celery, window: WindowKey, text: str) -> None:
    """Publish the parked message of ``window``.

    Raises ValueError if ``text`` is no message of that window; else what the transport raises.
    """
    found = _unpacked(text)
    headers = find_among(found["headers"]) or {}
    of_message = decode_headers(headers, found["headers"].get("id"))
    if of_message is None or WindowKey(of_message.entry, of_message.start) != window:
        raise ValueError("found the message of another window")
    # As Celery does: an exchange of kombu's own (over Redis, say) may lead nowhere until this process has declared it.
    queues = app.amqp.queues.values()
    declare = [queue for queue in queues if found["exchange"] and queue.exchange.name == found["exchange"]]
    if found["exchange"] and not declare:
        raise ValueError("found an exchange that no queue of this app has")
    with app.producer_pool.acquire(block=True) as producer:
        publish_kept(
            producer,
            found,
            declare=declare,
            exchange=found["exchange"],
            routing_key=found["routing_key"],
            retry=app.conf.task_publish_retry,
            retry_policy=app.conf.task_publish_retry_policy,
        )


# -- calls


def call(app: Celery, store: Store, windows: Iterable[WindowKey], limit: str | None = None) -> None:
    """Publish the messages of windows whose turn it is, or for which there is a place of ``limit``.

    Raises SoftTimeLimitExceeded alone. What else fails is logged, and the deadlines of these windows see to them.
    """
    left = deque(windows)
    while left:
        window = left.popleft()
        try:
            reply = raised(store.call_many([window], of_limit=limit is not None)[0])
            if isinstance(reply, Called):
                _publish_called(app, store, window, reply)
            elif limit is not None:  # it ended meanwhile, say: its place is the next one's
                most, out = store.settings.limits.get(limit, 0), reply == Unchanged("out")
                left.extend(store.leave_limit(limit, most, window, forget=True, only_late=out))
        except SoftTimeLimitExceeded:
            raise  # it is for the body, which perhaps hasn't begun; whoever ends waits for the rest
        except Exception as exc:  # noqa: BLE001  # every transport has errors of its own, and a task has ended
            reason = StoreUnavailableError.__name__ if isinstance(exc, StoreUnavailableError) else shown(exc)
            log_once(f"call {reason}", "window_not_called", window, f"is called, and can't be published: {shown(exc)}")


def _publish_called(app: Celery, store: Store, window: WindowKey, reply: Called) -> None:
    if not reply.message:
        return
    _publish(app, window, reply.message)
    logger.info(
        "once: window %s of %r is called: its message is published",
        format_instant(window.start),
        window.entry,
        extra=about("window_called", window),
    )
    raised(store.confirm_many([Confirmation(window, reply.turn, Published.SENT, store.settings.start_timeout)])[0])


def log_once(reason: str, action: str, window: WindowKey, why: str) -> None:
    """Warn of what a beat has to see to; each reason once."""
    if reason in _logged:
        return
    if len(_logged) >= _MOST_LOGGED:
        _logged.clear()
    _logged.add(reason)
    logger.warning(
        "once: window %s of %r %s; a beat publishes it",
        format_instant(window.start),
        window.entry,
        why,
        extra=about(action, window),
    )
