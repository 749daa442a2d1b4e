"""The options of a stored definition: those by which a message can be made in another process."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from celery import Task
from kombu import compression, serialization

from celery_once_beat.errors import SettingError
from celery_once_beat.wording import did_you_mean, shown

__all__ = ("check_options",)

#: What a message takes of Celery's ``apply_async`` and of kombu's ``publish``, and what JSON can say.
_KNOWN = {
    "add_to_parent", "app_id", "compression", "content_encoding", "content_type", "countdown", "delivery_mode", "eta",
    "exchange", "exchange_type", "expiration", "expires", "headers", "ignore_result", "immediate", "link", "link_error",
    "mandatory", "message_id", "priority", "queue", "reply_to", "retry", "retry_policy", "routing_key", "serializer",
    "shadow", "soft_time_limit", "stamped_headers", "time_limit", "timeout", "timestamp", "type", "user_id",
}  # fmt: skip
#: What beat gives to ``apply_async`` itself, or what can't be stored.
_OF_BEAT = {
    "args",
    "kwargs",
    "task_id",
    "producer",
    "publisher",
    "connection",
    "router",
    "result_cls",
    "chain",
    "chord",
}


def check_options(options: Mapping[str, object], task: object = None) -> None:
    """Check that a message can be made with ``options``; raises SettingError.

    ``task`` is the task that is sent, None where this process doesn't know it. Its own ``apply_async`` may take others.
    """
    sends = getattr(type(task), "apply_async", Task.apply_async)
    while (wrapped := getattr(sends, "__wrapped__", None)) is not None:
        sends = wrapped
    own = sends.__module__.partition(".")[0] not in ("celery", "celery_once_beat")
    known = _KNOWN | (inspect.signature(sends).parameters.keys() - {"self", "options"})
    stamped = options.get("stamped_headers")
    known |= set(stamped if isinstance(stamped, list) else ())
    for name in options:
        if name in _OF_BEAT or not (own or name in known):
            raise SettingError(
                f"options: found {shown(name)}, expected an option of apply_async that can be stored"
                f"{did_you_mean(name, _KNOWN)}; arguments are args= and kwargs="
            )
    for name, find in (("compression", compression.get_encoder), ("serializer", _find_serializer)):
        value = options.get(name)
        try:
            if value is not None:
                find(value)
        except Exception:  # noqa: BLE001  # kombu's, or a value that is none
            raise SettingError(
                f"options[{name!r}]: found {shown(value)}, expected one that is registered with kombu in this process"
            ) from None


def _find_serializer(name: str) -> None:
    serialization.dumps({}, serializer=name)
