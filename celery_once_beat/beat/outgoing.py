"""One publish of a window: its messages, what became of them, and whether they still carry its headers.

Mostly there is one. A scheduler's ``apply_entry``, or a task's ``apply_async``, may send several, one for each tenant
say: the first is the entry's window; each other one is a window of a key of its own, made of the entry and the
message's number, so that workers execute each of them once, however often the entry's window is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from celery.signals import after_task_publish, before_task_publish

from celery_once_beat.identity import uuid_of
from celery_once_beat.store import Published
from celery_once_beat.windows import HEADERS, Window, encode_headers

#: Who watches for a task id. Two beats of one process may publish a window at once: each counts its own messages.
_watching: dict[str, OutgoingMessages] = {}


def _queue_of(exchange: Any, routing_key: Any, declare: Any) -> str | None:
    """Return the queue to which a message goes; None where its exchange may route it elsewhere."""
    exchange = getattr(exchange, "name", exchange)
    if not exchange:
        return str(routing_key)
    bound = [each for each in declare or () if (each.exchange.name, each.routing_key) == (exchange, routing_key)]
    return str(bound[0].name) if bound else None


class OutgoingMessages:
    """Watches for messages with one task id, and restores a window's headers if a task's own code dropped them.

    An ``apply_async`` that sets ``options["headers"]`` does so, and nothing else would show it: without them a worker
    runs a plain task. ``run`` is the name that keys of further messages begin with: the entry's, or that of an order,
    which runs all of them again.
    """

    def __init__(self, task_id: str, window: Window, run: str) -> None:
        #: The task id that the messages must be published with.
        self.task_id = task_id
        self.headers = encode_headers(window, task_id)
        #: Sends the message that is written here; None: Celery makes it.
        self.prepared: Callable[[], object] | None = None
        self._window = window
        self._run = run
        #: The headers of the first message.
        self._seen: Mapping[str, Any] | None = None
        #: The queue of the first message; None where that isn't known.
        self.queue: str | None = None
        #: How many were seen, and how many of them were handed to the broker.
        self._count = self.sent = 0
        #: A message with any task id was seen meanwhile.
        self.any_seen = False
        #: Celery's result has the task id: if no message was seen, somebody sends it later, from an outbox say.
        self.promised = False
        #: The task ids of those that weren't handed to the broker yet.
        self._left: set[str] = set()
        #: What became of those that Celery's ``apply_async`` sent: noted, since ``apply_entry`` swallows a failure.
        self.results: set[Published] = set()
        #: One of them may be in the broker's socket.
        self.hangs = False
        #: What the last that wasn't sent raised.
        self.trouble = ""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch publishes during the block, after all other receivers."""
        outer = _watching.get(self.task_id)
        _watching[self.task_id] = self
        before_task_publish.connect(self._before, weak=False)
        after_task_publish.connect(self._after, weak=False)
        try:
            yield
        finally:
            before_task_publish.disconnect(self._before)
            if outer is None:
                del _watching[self.task_id]
            else:
                _watching[self.task_id] = outer
            after_task_publish.disconnect(self._after)

    def _before(
        self, headers: Any, properties: Any, body: Any, exchange: Any, routing_key: Any, declare: Any = None, **_: Any
    ) -> None:
        self.any_seen = True
        if properties.get("correlation_id") != self.task_id or _watching.get(self.task_id) is not self:
            return
        self._count += 1
        if self._count == 1:
            headers.update(self.headers)
            for part in (headers, body):  # protocol 1 has its ids in the body
                if isinstance(part, dict) and "id" in part:
                    part["id"] = self.task_id  # by another one a worker takes the headers for copied
            self._left.add(self.task_id)
            self._seen = headers
            self.queue = _queue_of(exchange, routing_key, declare)
            return
        # An id of its own: its result isn't the first one's, and a revoke of one leaves the others.
        sent_as = uuid_of(f"{self.task_id}\x00{self._count}")
        self._left.add(sent_as)
        for part in (headers, body):  # protocol 1 has its ids in the body
            if isinstance(part, dict):
                part.update({name: sent_as for name in ("id", "root_id") if part.get(name) == self.task_id})
        properties["correlation_id"] = sent_as
        for name in HEADERS:
            headers.pop(name, None)
        key = f"{self._run}#{self._count}"
        headers.update(
            encode_headers(replace(self._window, entry=key, attempt=1, tracked=False, keyed=True, limit=None), sent_as)
        )

    def _after(self, headers: Any, **_: Any) -> None:
        sent_as = headers.get("once_id")
        self.sent += sent_as in self._left
        self._left.discard(sent_as)

    @property
    def several(self) -> bool:
        """Whether there was more than one."""
        return self._count > 1

    @property
    def all_sent(self) -> bool:
        """Whether there was a message, and each was handed to the broker."""
        return self._count > 0 and not self._left

    @property
    def published(self) -> Published:
        """Whether the messages went out, as one answer.

        If one is perhaps not out, all are sent again: workers refuse the copies. One that can't be made stops no other.
        """
        if self.all_sent and Published.UNSURE not in self.results:  # whatever was raised behind them
            return Published.SENT
        if not self.results or Published.UNSURE in self.results:
            return Published.UNSURE
        return Published.SENT if Published.SENT in self.results else Published.IMPOSSIBLE

    @property
    def lost(self) -> str:
        """Why a worker can't tell that the first message belongs to a window; '' if it can."""
        if self._seen is None:
            sent_later = self.promised and not self.any_seen
            return "" if sent_later else "no message with its task id went out"
        if any(self._seen.get(name) != value for name, value in self.headers.items()):
            return "its headers are gone from the message"
        return ""
