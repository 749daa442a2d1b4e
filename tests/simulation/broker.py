"""A broker after Celery's rules, and a transport of kombu's that publishes to it.

Messages wait in queues. A consumer gets as many as its prefetch allows, and acknowledges each, early or late. Of what
is unacknowledged

- a broker like RabbitMQ delivers again at once, when it loses the consumer's connection;
- one like Redis delivers again after the visibility timeout, whether the consumer lives or not.

A message may also be lost, come twice, come late, or be overtaken by others.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kombu.transport import TRANSPORT_ALIASES, virtual

from .kernel import SECOND, Process

if TYPE_CHECKING:
    from collections.abc import Callable

    from .world import World

TRANSPORT_ALIASES["simulated"] = "simulation.broker:Transport"

#: Seconds for which a publisher waits for a broker that says nothing.
_TIMEOUT = 4 * SECOND


@dataclass(eq=False)
class Message:
    """One copy in the broker."""

    text: str
    redelivered: bool = False


@dataclass(eq=False)
class Consumer:
    """One worker's connection."""

    process: Process
    prefetch: int
    deliver: Callable[[int, Message], None]
    #: Tag → what it hasn't acknowledged.
    unacked: dict[int, Message] = field(default_factory=dict)
    #: How many of those wait for their ETA: they don't count for the prefetch.
    waiting: int = 0
    gone: bool = False

    @property
    def has_room(self) -> bool:
        return len(self.unacked) - self.waiting < self.prefetch


class Broker:
    """Its queues and consumers. ``visibility`` is in microseconds; None: it is like RabbitMQ."""

    def __init__(self, world: World, visibility: int | None) -> None:
        self._world = world
        self._kernel = world.kernel
        self._visibility = visibility
        self.queue: deque[Message] = deque()
        self._consumers: list[Consumer] = []
        self._tags = 0
        self._turn = 0
        #: What becomes of the next messages: lost, twice, late, overtaken; each with a number of microseconds.
        self.fates: deque[tuple[str, int]] = deque()

    def publish(self, process: Process, payload: dict[str, Any]) -> None:
        """Called by a process: take a message. Raises as a transport does."""
        world = self._world
        text = json.dumps(payload)
        act = world.before(process, ["publish"])
        self._wait_for_link(process)
        if act == "lost":
            world.kernel.sleep(_TIMEOUT)
            raise TimeoutError("simulation: the broker doesn't answer")
        if isinstance(act, int):
            self._kernel.call_at(self._kernel.now + act, lambda: self._take(text, process.name))
            world.kernel.sleep(_TIMEOUT)
            raise TimeoutError("simulation: the broker doesn't answer")
        self._take(text, process.name)
        if world.after(process, ["publish"]) == "lost":
            world.kernel.sleep(_TIMEOUT)
            raise TimeoutError("simulation: the broker's answer is lost")

    def ping(self, process: Process) -> None:
        """Called by a process. Raises where the broker can't be reached."""
        self._world.step(process, "ping")
        self._wait_for_link(process)

    def _wait_for_link(self, process: Process) -> None:
        how = self._world.link("broker", process)
        if how == "refused":
            raise ConnectionError("simulation: the broker refuses")
        if how == "silent":
            self._world.kernel.sleep(_TIMEOUT)
            raise TimeoutError("simulation: the broker says nothing")

    def _take(self, text: str, who: str) -> None:
        message = Message(text)
        window = self._world.window_of(text)
        if window is not None:
            self._world.sent.setdefault(window, []).append((self._world.at, who))
        else:
            self._world.notice_of(text)
        fate, by = self.fates.popleft() if self.fates else ("", 0)
        if fate:
            self._befalls(message, fate, by)
        if fate == "message lost":
            return
        if fate == "message late":
            self._kernel.call_at(self._kernel.now + by, lambda: self._put(message))
            return
        if fate == "message twice":
            self._kernel.call_at(self._kernel.now + by, lambda: self._put(Message(text)))
        self._put(message, first=fate == "message overtakes")

    def _put(self, message: Message, *, first: bool = False) -> None:
        self._queue(message, first=first)
        self.push()

    def _queue(self, message: Message, *, first: bool) -> None:
        self._world.wait(1)
        (self.queue.appendleft if first else self.queue.append)(message)

    def _befalls(self, message: Message, fate: str, by: int = 0) -> None:
        """Tell what happens to a message."""
        kind = {"message lost": "lost", "message twice": "duplicated", "message late": "delayed"}.get(fate)
        window = self._world.window_of(message.text)
        if kind is None or window is None:
            self._world.happened(fate)
            return
        entry, start = window
        more = {"until": self._world.at + by / SECOND} if kind == "delayed" else {}
        self._world.struck(kind, fate, entry=entry, start=start, **more)

    def purge(self) -> None:
        """Lose what is in the queue."""
        for message in self.queue:
            self._befalls(message, "message lost")
        self._world.wait(-len(self.queue))
        self.queue.clear()

    # -- consumers

    def consume(self, process: Process, prefetch: int, deliver: Callable[[int, Message], None]) -> Consumer:
        consumer = Consumer(process, prefetch, deliver)
        self._consumers.append(consumer)
        self.push()
        return consumer

    def lose(self, consumer: Consumer, *, in_order: bool = False) -> None:
        """Its connection is gone; what is unacknowledged goes back, in order at once, else when its time is over."""
        if consumer.gone:
            return
        consumer.gone = True
        self.cancel(consumer)
        if self._visibility is not None and not in_order:
            return
        unacked, consumer.unacked = consumer.unacked, {}
        for message in reversed(unacked.values()):
            self._redeliver(message, first=True)
        self.push()

    def cancel(self, consumer: Consumer) -> None:
        """It gets no more; what it acknowledges counts."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)

    def _redeliver(self, message: Message, *, first: bool = False) -> None:
        self._queue(Message(message.text, redelivered=True), first=first)

    def push(self) -> None:
        """Deliver what there is to whoever has room."""
        while self.queue:
            ready = [
                each for each in self._consumers if each.has_room and self._world.link("broker", each.process) == ""
            ]
            if not ready:
                return
            self._turn += 1
            consumer = ready[self._turn % len(ready)]
            self._world.wait(-1)
            message = self.queue.popleft()
            self._tags += 1
            tag = self._tags
            consumer.unacked[tag] = message
            self._world.received(consumer.process, message.text)
            if self._visibility is not None:
                self._kernel.call_at(self._kernel.now + self._visibility, lambda c=consumer, t=tag: self._visible(c, t))
            self._kernel.call_at(
                self._kernel.now + self._world.latency(), lambda c=consumer, t=tag, m=message: self._arrive(c, t, m)
            )

    def _arrive(self, consumer: Consumer, tag: int, message: Message) -> None:
        if not (consumer.gone or consumer.process.dead):
            consumer.deliver(tag, message)

    def _visible(self, consumer: Consumer, tag: int) -> None:
        message = consumer.unacked.pop(tag, None)
        if message is not None:
            self._befalls(message, "message twice")
            self._world.happened("visibility timeout")
            self._redeliver(message)
            self.push()

    def settle(self, consumer: Consumer, tag: int, *, requeue: bool = False) -> None:
        """A consumer acknowledges a message, or gives it back: it doesn't wait for an answer."""

        def arrives() -> None:
            if (consumer.gone and self._visibility is None) or self._world.link("broker", consumer.process) != "":
                return
            message = consumer.unacked.pop(tag, None)
            if message is not None and requeue:
                self._redeliver(message)
            self.push()

        self._kernel.call_at(self._kernel.now + self._world.latency(), arrives)


class Channel(virtual.Channel):
    """Publishes to the broker of the simulation."""

    world: World

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self.process = self.world.process

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:  # kombu's
        self.world.broker.publish(self.process, message)

    def _has_queue(self, queue: str, **_: Any) -> bool:  # kombu's
        return True

    def _size(self, queue: str) -> int:  # kombu's
        return 0

    @property
    def client(self) -> Channel:
        """As kombu's channels over Redis: what answers a ping."""
        return self

    def ping(self) -> None:
        self.world.broker.ping(self.process)


class Transport(virtual.Transport):
    """Of kombu's, as the URL simulated:// names it."""

    Channel = Channel
    driver_type = driver_name = "simulated"
    default_port = 1
    connection_errors = (*virtual.Transport.connection_errors, OSError)

    def establish_connection(self) -> Any:
        Channel.world.broker.ping(Channel.world.process)
        return super().establish_connection()
