"""A feature's part of a window's execution; ``celery_once_beat.features`` says when each hook is called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_once_beat.features import hooks
from celery_once_beat.store import Busy, Closed, Store, Waits
from celery_once_beat.windows import Window, WindowKey

from .leases import Lease


class ExecutionPart:
    """Its hooks do nothing. A worker's main process makes one too, for an execution that it ends."""

    def __init__(self, task: Any, store: Store, window: Window, key: WindowKey, owner: str) -> None:
        self.task = task
        self.store = store
        self.window = window
        self.key = key
        self.owner = owner

    def before_begin(self, request: Any) -> None:
        """See features."""

    def arguments(self) -> dict[str, Any]:
        """See features."""
        return {}

    def on_begin(self, lease: Lease) -> bool:
        """See features."""
        return False

    def on_refusal(self, reply: Waits | Busy | Closed) -> None:
        """See features."""

    def renewal(self) -> Any:
        """See features."""
        raise NotImplementedError

    def on_renewed(self, lease: Lease, reply: object) -> None:
        """See features."""

    def on_end(self, *, over: bool) -> None:
        """See features."""


def parts_of(task: Any, store: Store, window: Window, key: WindowKey, owner: str) -> list[ExecutionPart]:
    """Make the parts of an execution."""
    return [make(task, store, window, key, owner) for make in hooks("worker", "Part")]


def arguments_of(parts: Iterable[ExecutionPart]) -> dict[str, Any]:
    """Return what the features' Lua takes of a begin."""
    arguments: dict[str, Any] = {}
    for part in parts:
        arguments |= part.arguments()
    return arguments
