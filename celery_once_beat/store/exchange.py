"""The exchange with servers: bytes go out over connections that stay open, replies come back.

redis-py makes the connections: TLS, passwords, timeouts, socket options and health checks are its business, and so is
which node of a cluster has a key. Its pool, pipelines and response callbacks are left out. They take more CPU than all
the rest of a begin, and its pipelines over a cluster can't carry WAIT: that has no key, so it goes to one node for all.
Here each node's commands travel with their WAIT on one connection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from redis import exceptions
from redis.cluster import RedisCluster
from redis.sentinel import SentinelConnectionPool

from celery_once_beat.wording import without_passwords

from .codec import pack
from .scripts import Request

#: What a client raises where it has no answer of the server; the cluster's is no RedisError.
UNREACHABLE = (exceptions.RedisError, exceptions.RedisClusterException, OSError, ValueError)
#: Those of them that may be over in a moment.
_BROKEN = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.RedisClusterException, OSError)
#: The command has to be sent again, here or to another node; AskError is MovedError's base.
_REDIRECTED = (exceptions.AskError, exceptions.ClusterDownError, exceptions.TryAgainError)
#: Seconds before the second and the third try: every verb may be sent again, since it answers its owner as it did
#: the first time.
_PAUSES = (0.1, 0.2)
#: Seconds after which a connection is checked before it is used: servers close those that are idle, and restart.
_IDLE = 0.1
_ASKING = pack("ASKING")


#: What came back for one request: the server's answer, an exception if it refused the command or didn't answer; its
#: answer to the last command of the pipeline; and whether it answered.
Reply = tuple[Any, Any, bool]


class Nodes:
    """The server behind a client of redis-py's, or the nodes of a cluster."""

    def __init__(self, client: Any) -> None:
        self.client = client
        #: By the client of a server; of a cluster's nodes each has one.
        self._connections: WeakKeyDictionary[Any, Connections] = WeakKeyDictionary()
        self._only = None if isinstance(client, RedisCluster) else self.to(client)

    def close(self) -> None:
        """Close the connections, and the client's own."""
        for connections in list(self._connections.values()):
            connections.close()
        self.client.close()

    def send(self, requests: Sequence[Request[Any]], last: bytes | None) -> list[Reply]:
        """Send each request to its server, those of one server together, with ``last`` behind them.

        Raises what the client raises if no server answered; where one of several didn't, that stands in the place of
        its replies.
        """
        replies: list[Reply] = [(None, None, False)] * len(requests)
        left = [*range(len(requests))]
        for pause in (*_PAUSES, None):
            only = {(self._only, False): left} if self._only is not None and left else None
            for (server, asking), positions in (only or self._by_server(requests, left, replies)).items():
                try:
                    found = server.send([requests[position] for position in positions], last, asking=asking)
                except UNREACHABLE as exc:
                    found = [(exc, None, False)] * len(positions)
                for position, reply in zip(positions, found, strict=True):
                    replies[position] = reply
            left = [p for p in left if isinstance(replies[p][0], _REDIRECTED if replies[p][2] else _BROKEN)]
            if not left:
                break
            if self._only is None:
                with suppress(*UNREACHABLE):  # if nobody answers, what was known of the slots stays known
                    self.client.nodes_manager.initialize()
            if pause is not None:
                time.sleep(pause)
        if replies and not (replies[0][2] or any(answered for _, _, answered in replies)):
            raise replies[0][0]
        return replies

    def _by_server(
        self, requests: Sequence[Request[Any]], positions: Sequence[int], replies: list[Reply]
    ) -> dict[tuple[Connections, bool], list[int]]:
        """Return for each server which requests it gets, and whether after ASKING, since their slot is moving there.

        Where no server can be found, the error goes into ``replies``.
        """
        found: dict[tuple[Connections, bool], list[int]] = {}
        for position in positions:
            answer, node = replies[position][0], None
            try:
                if isinstance(answer, exceptions.AskError) and not isinstance(answer, exceptions.MovedError):
                    node = self.client.get_node(answer.host, answer.port)
                to = node or self.client.get_node_from_key(requests[position].key)
                server = self.to(self.client.get_redis_connection(to))
                found.setdefault((server, node is not None), []).append(position)
            except UNREACHABLE as exc:
                replies[position] = exc, None, False
        return found

    def to(self, client: Any) -> Connections:
        """Return the connections to the server of ``client``."""
        made = self._connections
        return made.get(client) or made.setdefault(client, Connections(client.connection_pool))


class Connections:
    """Connections to one server, as ``pool``, one of redis-py's, would make them; the pool itself holds none of these.

    A connection is lent to one exchange at a time, and comes back when all its replies have been read. Whatever ends an
    exchange early closes it: a broken connection, a soft time limit, gevent's Timeout. So no reply is ever read by
    another exchange. Threads and greenlets need no lock: taking from a list and adding to it is one atomic step each.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._of_master = isinstance(pool, SentinelConnectionPool)
        #: Each with when its last exchange ended, monotonic.
        self._free: list[tuple[Any, float]] = []
        #: All that there are: the pool's ``max_connections`` counts here too.
        self._made: WeakSet[Any] = WeakSet()
        self._process = os.getpid()
        self._closed = False

    def send(
        self, requests: Sequence[Request[Any]], last: bytes | None, load: Sequence[bytes] = (), *, asking: bool
    ) -> list[Reply]:
        """Send ``load``, then the requests, each behind ASKING if ``asking``, then ``last``.

        Scripts are sent by their hash. Those that the server doesn't know are loaded, and asked for again: after a
        restart, a failover, a SCRIPT FLUSH.
        """
        sent = [*load]
        for request in requests:
            sent += (_ASKING, request.packed) if asking else (request.packed,)
        if last is not None:
            sent.append(last)
        answers = self.exchange(b"".join(sent), len(sent))
        at_last = None if last is None else answers.pop()
        refused = [answer for answer in answers[: len(load)] if isinstance(answer, Exception)]
        if refused:  # a script may not be loaded
            return [(refused[0], at_last, True)] * len(requests)
        replies: list[Reply] = [(answer, at_last, True) for answer in answers[len(load) + asking :: 1 + asking]]
        unknown = [at for at, (answer, *_) in enumerate(replies) if isinstance(answer, exceptions.NoScriptError)]
        if unknown and not load:
            scripts = sorted({verb.script for at in unknown if (verb := requests[at].verb) is not None})
            loading = [pack("SCRIPT", "LOAD", script) for script in scripts]
            again = self.send([requests[at] for at in unknown], last, loading, asking=asking)
            for at, reply in zip(unknown, again, strict=True):
                replies[at] = reply
        return replies

    def exchange(self, commands: bytes, count: int) -> list[Any]:
        """Send ``count`` commands and return their replies. An error of the server's stands in its reply's place.

        Raises what redis-py raises where the server doesn't answer.
        """
        if self._process != os.getpid():  # forked: those are the parent's
            self._free, self._made, self._process = [], WeakSet(), os.getpid()
        connection, replies = self._take() or self._connect(), []
        try:
            connection.send_packed_command([commands])
            for _ in range(count):
                try:
                    replies.append(connection.read_response())
                except exceptions.ResponseError as answer:
                    replies.append(answer)
        except BaseException:
            self._drop(connection)
            raise
        self._free.append((connection, time.monotonic()))
        if self._closed:
            self.close()  # meanwhile, by another thread
        return replies

    def close(self) -> None:
        """Close those that aren't lent; the others close when they come back."""
        self._closed = True
        with suppress(IndexError):  # until none is left, also where another thread takes the last one
            while True:
                self._drop(self._free.pop()[0])

    def _take(self) -> Any:
        """Return a connection that can be used, or None."""
        while True:
            try:
                connection, since = self._free.pop()
            except IndexError:
                return None
            if self._is_usable(connection, since):
                return connection
            self._drop(connection)

    def _is_usable(self, connection: Any, since: float) -> bool:
        if self._of_master and (connection.host, connection.port) != self._pool.master_address:
            return False  # sentinels have named another one since, to this or to the pool
        try:
            # What is there to be read is its end, or a reply that no exchange waits for.
            return time.monotonic() < since + _IDLE or not connection.can_read()
        except (exceptions.RedisError, OSError):
            return False

    def _connect(self) -> Any:
        if len(self._made) >= self._pool.max_connections:
            raise exceptions.ConnectionError("Too many connections")
        connection = self._pool.connection_class(**self._pool.connection_kwargs)
        self._made.add(connection)
        try:
            connection.connect()
        except BaseException as exc:
            self._drop(connection)
            if not isinstance(exc, Exception) or isinstance(exc, (exceptions.RedisError, OSError)):
                raise
            # A user's credential provider, whose service may be away; or what redis-py doesn't expect of a server.
            raise exceptions.ConnectionError(without_passwords(f"{type(exc).__name__}: {exc}")[:300]) from exc
        return connection

    def _drop(self, connection: Any) -> None:
        self._made.discard(connection)
        connection.disconnect()
