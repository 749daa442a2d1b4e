"""The message of a window as it came, so that it can be put back with its body unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Where the worker's main process notes the name of a delivery, in its request.
DELIVERY = "once_delivery"
#: And where the message of a window as it came.
RAW = "_once_raw"
#: Message properties that are kept.
_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode", "expiration", "message_id", "type", "app_id")
#: Headers of this delivery alone: kombu has decompressed the body, and RabbitMQ adds how the message came here.
_LEFT_OUT = re.compile(r"(compression|x-(first-|last-)?death|x-delivery-count|x-acquired-count)")


def kept_of(message: Any) -> dict[str, Any]:
    """Return a message as it came. Its body isn't copied, and nothing is picked out: few are published once more."""
    delivery, properties = message.delivery_info or {}, message.properties or {}
    return {
        "body": message.body,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "headers": dict(message.headers or {}),
        "properties": dict(properties),
        "exchange": delivery.get("exchange") or "",
        "routing_key": delivery.get("routing_key") or "",
    }


def of_old_protocol(kept: Mapping[str, Any]) -> bool:
    """Whether a message is of Celery's protocol 1, whose body has what the headers have since."""
    return "id" not in kept["headers"]


def compression_of(kept: Mapping[str, Any]) -> str | None:
    """Return how a message's body was compressed; None if it wasn't. kombu has decompressed it."""
    return str(kept["headers"].get("compression") or "") or None


def publish_kept(producer: Any, kept: Mapping[str, Any], **options: Any) -> None:
    """Publish a message as it came: its body isn't encoded anew. Raises what the transport raises."""
    properties = {name: kept["properties"][name] for name in _PROPERTIES if kept["properties"].get(name) is not None}
    headers = {name: value for name, value in kept["headers"].items() if not _LEFT_OUT.match(str(name))}
    expiration = str(properties.pop("expiration", ""))
    if expiration.isdecimal():  # milliseconds; kombu takes seconds
        properties["expiration"] = int(expiration) / 1000
    producer.publish(
        kept["body"],
        content_type=kept["content_type"],
        content_encoding=kept["content_encoding"],
        compression=compression_of(kept),
        **{"headers": headers, **properties, **options},
    )
