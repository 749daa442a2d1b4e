"""One message on its way to the broker: whether it still carries its window's headers, and its queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery.signals import before_task_publish


class OutgoingMessage:
    """Watches for the message with one task id, and restores a window's headers if a task's own code dropped them.

    An ``apply_async`` that sets ``options["headers"]`` does so, and nothing else would show it: without them a worker
    runs a plain task.
    """

    def __init__(self, task_id: str, headers: Mapping[str, Any]) -> None:
        #: The task id that the message must be published with.
        self.task_id = task_id
        self.headers = dict(headers)
        self._seen: Mapping[str, Any] | None = None
        #: The queue that the message went to; '' before it was sent.
        self.queue = ""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch publishes during the block, after all other receivers."""
        before_task_publish.connect(self._before, weak=False)
        try:
            yield
        finally:
            before_task_publish.disconnect(self._before)

    def _before(self, headers: Any, properties: Any, routing_key: Any, declare: Any = None, **_: Any) -> None:
        if properties.get("correlation_id") == self.task_id:
            headers.update(self.headers)
            self._seen = headers
            self.queue = str(getattr(declare[0], "name", routing_key) if declare else routing_key)

    @property
    def lost(self) -> str:
        """Why a worker can't tell that the message belongs to a window; '' if it can."""
        if self._seen is None:
            return "no message with its task id went out"
        if any(self._seen.get(name) != value for name, value in self.headers.items()):
            return "its headers are gone from the message"
        return ""
