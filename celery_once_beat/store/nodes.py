"""Which server a command goes to: the one that there is, or of a cluster's nodes the one that has the command's key.

redis-py's pipelines over a cluster can't carry WAIT: it has no key, so they send it to one node for all, and what was
redirected is sent after it. Here each node's commands travel with their WAIT on one connection.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from redis import Connection, ConnectionPool, Redis, SSLConnection
from redis.cluster import RedisCluster
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .codec import pack
from .connections import Connections

#: What a client raises where it has no answer of the server; the cluster's is no RedisError.
UNREACHABLE = (RedisError, RedisClusterException, OSError, ValueError)
#: Those of them that may be over in a moment.
_BROKEN = (RedisConnectionError, RedisTimeoutError, RedisClusterException, OSError)
#: A node says that the command is to be sent again, here or elsewhere; AskError is MovedError's base.
_REDIRECTED = (AskError, ClusterDownError, TryAgainError)
#: Seconds before the second and the third try: every verb may be sent again, since it answers its owner as it did
#: the first time.
_PAUSES = (0.1, 0.2)
#: How INFO names a replica.
_REPLICA = re.compile(r"slave\d+$")
#: Options of a connection that say which server it is to.
_OF_ONE_SERVER = frozenset({"host", "port", "path", "connection_pool"})
_ASKING = pack("ASKING")


class Command(NamedTuple):
    """A command as it is sent."""

    packed: bytes
    #: By which a cluster's client knows the node.
    key: str


class Reply(NamedTuple):
    """What came back for one command."""

    #: The server's answer; an exception if it refused the command or didn't answer.
    value: Any
    #: What the server said to the last command of the pipeline.
    last: Any = None
    answered: bool = True


_UNSENT = Reply(None, answered=False)


class _Part(NamedTuple):
    """Commands for one server, by their positions."""

    connections: Connections
    positions: list[int]
    #: Their slot is migrating here: each command goes after ASKING.
    asking: bool = False


class Nodes:
    """The servers behind a client of redis-py's."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._cluster = isinstance(client, RedisCluster)
        #: By the client of a server; of a cluster's nodes each has one.
        self._connections: WeakKeyDictionary[Any, Connections] = WeakKeyDictionary()

    def close(self) -> None:
        """Close the connections."""
        for connections in list(self._connections.values()):
            connections.close()

    def send(
        self, commands: Sequence[Command], *, before: Sequence[bytes] = (), last: bytes | None = None
    ) -> list[Reply]:
        """Send each command to its server, those of one server together.

        Each of these begins with ``before`` and ends with ``last``. Raises what the client raises if no server
        answered; where one of several didn't, that stands in the place of its replies.
        """
        replies = [_UNSENT] * len(commands)
        left: Sequence[int] = range(len(commands))
        for pause in (*_PAUSES, None):
            for part in self._parts(commands, left, replies):
                try:
                    found = _send_part(part, [commands[position].packed for position in part.positions], before, last)
                except UNREACHABLE as exc:
                    found = [Reply(exc, answered=False)] * len(part.positions)
                for position, reply in zip(part.positions, found, strict=True):
                    replies[position] = reply
            left = [p for p in left if isinstance(replies[p].value, _REDIRECTED if replies[p].answered else _BROKEN)]
            if not left:
                break
            self._refresh()
            if pause is not None:
                time.sleep(pause)
        if replies and not any(reply.answered for reply in replies):
            raise replies[0].value
        return replies

    def clocks(self) -> dict[str, float]:
        """By name, how many seconds a server's clock is ahead of this machine's: of all that answer, replicas too."""
        found = {}
        for name, client in self._servers():
            with contextlib.suppress(*UNREACHABLE):
                sent = time.time()
                seconds, micro = client.time()
                found[name] = seconds + micro / 1e6 - (sent + time.time()) / 2
        return found

    def _servers(self) -> Iterator[tuple[str, Any]]:
        if self._cluster:
            for node in self.client.get_nodes():
                with contextlib.suppress(*UNREACHABLE):
                    yield node.name, self.client.get_redis_connection(node)
            return
        yield "master", self.client
        pool = self.client.connection_pool
        known = {name: value for name, value in pool.connection_kwargs.items() if name not in _OF_ONE_SERVER}
        kind = SSLConnection if issubclass(pool.connection_class, SSLConnection) else Connection
        replicas: list[Any] = []
        with contextlib.suppress(*UNREACHABLE):  # this user may not ask
            replicas = [value for name, value in self.client.info("replication").items() if _REPLICA.match(name)]
        for replica in replicas:
            host, port = str(replica["ip"]), int(replica["port"])
            with Redis(connection_pool=ConnectionPool(connection_class=kind, **known, host=host, port=port)) as client:
                client.auto_close_connection_pool = True
                yield f"replica {host}:{port}", client

    def _parts(self, commands: Sequence[Command], positions: Sequence[int], replies: list[Reply]) -> Collection[_Part]:
        """Say which server gets the commands at ``positions``. If none can, the error goes into ``replies``."""
        if not self._cluster:
            return [_Part(self._to(self.client), [*positions])] if positions else []
        parts: dict[tuple[str, bool], _Part] = {}
        for position in positions:
            said = replies[position].value
            try:
                node = None
                if isinstance(said, AskError) and not isinstance(said, MovedError):
                    node = self.client.get_node(said.host, said.port)
                asking = node is not None
                node = node or self.client.get_node_from_key(commands[position].key)
                to = self._to(self.client.get_redis_connection(node))
                part = parts.setdefault((node.name, asking), _Part(to, [], asking))
                part.positions.append(position)
            except UNREACHABLE as exc:
                replies[position] = Reply(exc, answered=False)
        return parts.values()

    def _to(self, client: Any) -> Connections:
        """Return the connections to the server of ``client``."""
        found = self._connections.get(client)
        return found if found is not None else self._connections.setdefault(client, Connections(client.connection_pool))

    def _refresh(self) -> None:
        """Ask again which node has which slots: one is gone, or doesn't have a slot any more."""
        if self._cluster:
            # If nobody answers, what was known stays known.
            with contextlib.suppress(*UNREACHABLE):
                self.client.nodes_manager.initialize()


def _send_part(part: _Part, commands: Sequence[bytes], before: Sequence[bytes], last: bytes | None) -> list[Reply]:
    if part.asking:
        commands = [each for command in commands for each in (_ASKING, command)]
    sent = [*before, *commands]
    if last is not None:
        sent.append(last)
    raw = part.connections.exchange(b"".join(sent), len(sent))
    said = raw.pop() if last is not None else None
    values = raw[len(before) :]
    if part.asking:
        values = values[1::2]
    if not before:
        return [Reply(value, said) for value in values]
    # If a script may not be loaded, that is the reason, not NOSCRIPT.
    refused = next((value for value in raw[: len(before)] if isinstance(value, Exception)), None)
    return [Reply(refused if refused and isinstance(value, NoScriptError) else value, said) for value in values]
