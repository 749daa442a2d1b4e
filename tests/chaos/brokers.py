"""The brokers under chaos: one class a kind, with what can be done to what lies in its queue.

A broker is killed, frozen and started again as its server is. ``FAULTS`` of ``chaos/faults.py`` names what befalls each
kind.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any

import redis
from amqp import Message
from amqp.exceptions import AMQPError
from kombu import Connection
from servers import RabbitServer, RedisServer


class _Broker:
    """A server, and its queues. All that it is asked may raise one of its ``errors``.

    ``url`` is where a client reaches it, at a port of a link or at its own; ``about`` its name and version. ``see``
    returns some messages of a queue, which loses none; the same ones may come again. ``put`` delivers once more what
    was seen. ``purge`` loses what waits, again and again until ``stop``, and yields how many messages those were.
    """

    #: What the app has to set, so that messages can be seen.
    settings: Mapping[str, Any] = {}

    def __init__(self, server: Any) -> None:
        self.server = server
        self._starting = False

    @property
    def answers(self) -> bool:
        """Whether it is neither killed nor frozen, nor on its way up: who asks one that is would wait."""
        return self.server.alive and not self.server.paused and not self._starting

    def restart(self) -> None:
        """Return once it answers: a RabbitMQ takes seconds, in which another thread can go on with the rest."""
        self._starting = True
        try:
            self.server.restart()
        finally:
            self._starting = False

    def close(self) -> None:
        """End what is open to it."""


class RedisBroker(_Broker):
    """A list a queue, and a hash of what isn't acknowledged."""

    kind = "redis"
    errors = (redis.RedisError,)

    def url(self, port: int | None = None) -> str:
        return f"redis://127.0.0.1:{port or self.server.port}/0"

    @cached_property
    def about(self) -> str:
        return self.server.version.capitalize()

    def _client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url())

    def see(self, queue: str) -> list[Any]:
        """What isn't acknowledged, and the newest that wait."""
        with self._client() as client:
            unacked = [json.dumps(json.loads(value)[0]).encode() for value in client.hvals("unacked")]
            return [*unacked, *client.lrange(queue, 0, 5)]

    def put(self, queue: str, messages: Sequence[Any]) -> None:
        with self._client() as client:
            client.lpush(queue, *messages)

    def purge(self, queue: str, stop: threading.Event) -> Iterator[int]:
        with self._client() as client:
            while not stop.wait(0.005):
                yield client.pipeline().llen(queue).delete(queue).execute()[0]


class RabbitBroker(_Broker):
    """A queue that is bound to an exchange of its name, and beside it a short one in which copies are seen."""

    kind = "rabbitmq"
    errors = (AMQPError, OSError)
    # A direct one Celery leaves out: its messages go to the queue itself, where nobody else sees them.
    settings: Mapping[str, Any] = {"task_default_exchange_type": "topic"}
    #: Copies that are kept from one look to the next.
    most = 20

    def __init__(self, server: RabbitServer) -> None:
        super().__init__(server)
        self._open: tuple[Connection, Any] | None = None

    def url(self, port: int | None = None) -> str:
        return f"amqp://guest:guest@127.0.0.1:{port or self.server.port}//"

    @cached_property
    def about(self) -> str:
        with self._connection() as connection:
            told = connection.connection.server_properties
            return f"{told['product']} {told['version']}"

    def _connection(self) -> Connection:
        options = {"confirm_publish": True, "read_timeout": 5, "write_timeout": 5}
        return Connection(self.url(), connect_timeout=5, transport_options=options)

    def _ask(self, queue: str, question: Callable[[Any], Any]) -> Any:
        """Ask it on a connection that stays open for as long as nothing goes wrong, with the queues declared."""
        try:
            if self._open is None:
                connection = self._connection()
                channel = connection.channel()
                self._open = connection, channel
                lasts = {"durable": True, "auto_delete": False}
                channel.exchange_declare(queue, "topic", **lasts)
                for name, arguments in ((queue, {}), (_copies(queue), {"x-max-length": self.most})):
                    channel.queue_declare(name, arguments=arguments, **lasts)
                    channel.queue_bind(name, exchange=queue, routing_key=queue)
            return question(self._open[1])
        except self.errors:
            self.close()
            raise

    def close(self) -> None:
        if self._open is not None:
            self._open[0].collect()
            self._open = None

    def see(self, queue: str) -> list[Any]:
        """What was published since the last time; of much of it the newest."""

        def get(channel: Any) -> list[Any]:
            copies = iter(lambda: channel.basic_get(_copies(queue), no_ack=True), None)
            return [copy for copy, _ in zip(copies, range(self.most), strict=False)]

        found: list[Any] = self._ask(queue, get)
        return found

    def put(self, queue: str, messages: Sequence[Any]) -> None:
        """To the queue itself: no copy of it is seen."""

        def publish(channel: Any) -> None:
            for message in messages:
                channel.basic_publish(Message(message.body, **message.properties), exchange="", routing_key=queue)

        self._ask(queue, publish)

    def purge(self, queue: str, stop: threading.Event) -> Iterator[int]:
        with self._connection() as connection:  # of its own: it is asked for by another thread
            channel = connection.channel()
            while not stop.wait(0.005):
                yield channel.queue_purge(queue)


Broker = RedisBroker | RabbitBroker


@contextmanager
def start_broker(kind: str, start_redis: Callable[..., RedisServer]) -> Iterator[Broker]:
    """A broker of that kind, on a server of its own whose messages survive its death."""
    if kind == "redis":
        yield RedisBroker(start_redis(appendonly=True))
    else:
        with RabbitServer.start() as server, closing(RabbitBroker(server)) as broker:
            yield broker


def _copies(queue: str) -> str:
    return f"{queue}.copies"
