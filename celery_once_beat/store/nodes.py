"""Which server a command goes to: the one that there is, or of a cluster's nodes the one that has the command's key.

redis-py's pipelines over a cluster can't carry WAIT: it has no key, so they send it to one node for all, and what was
redirected is sent after it. Here each node's commands travel with their WAIT on one connection.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis import Connection, ConnectionPool, Redis, SSLConnection
from redis.cluster import RedisCluster
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

Command = tuple[Any, ...]

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


@dataclass(frozen=True)
class Reply:
    """What came back for one command."""

    #: The server's answer; an exception if it refused the command or didn't answer.
    value: Any
    #: What the server said to the last command of the pipeline.
    last: Any = None
    answered: bool = True


class _Part(NamedTuple):
    """Commands for one server, by their positions."""

    client: Any
    positions: list[int]
    #: Their slot is migrating here: each command goes after ASKING.
    asking: bool = False


class Nodes:
    """The servers behind a client of redis-py's."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._cluster = isinstance(client, RedisCluster)

    def send(
        self, commands: Sequence[Command], *, before: Sequence[Command] = (), last: Command | None = None
    ) -> list[Reply]:
        """Send each command to its server, those of one server in one pipeline.

        Each of these begins with ``before`` and ends with ``last``. Raises what the client raises if no server
        answered; where one of several didn't, that stands in the place of its replies.
        """
        replies: dict[int, Reply] = {}
        left: Sequence[int] = range(len(commands))
        for pause in (*_PAUSES, None):
            found = self._send_once(commands, left, replies, before, last)
            replies.update(found)
            left = [p for p in left if isinstance(found[p].value, _BROKEN if not found[p].answered else _REDIRECTED)]
            if not left:
                break
            self._refresh()
            if pause is not None:
                time.sleep(pause)
        if replies and not any(reply.answered for reply in replies.values()):
            raise replies[0].value
        return [replies[position] for position in range(len(commands))]

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
            for node in self._client.get_nodes():
                with contextlib.suppress(*UNREACHABLE):
                    yield node.name, self._client.get_redis_connection(node)
            return
        yield "master", self._client
        pool = self._client.connection_pool
        known = {name: value for name, value in pool.connection_kwargs.items() if name not in _OF_ONE_SERVER}
        kind = SSLConnection if issubclass(pool.connection_class, SSLConnection) else Connection
        replicas: list[Any] = []
        with contextlib.suppress(*UNREACHABLE):  # this user may not ask
            replicas = [value for name, value in self._client.info("replication").items() if _REPLICA.match(name)]
        for replica in replicas:
            host, port = str(replica["ip"]), int(replica["port"])
            with Redis(connection_pool=ConnectionPool(connection_class=kind, **known, host=host, port=port)) as client:
                client.auto_close_connection_pool = True
                yield f"replica {host}:{port}", client

    def _send_once(
        self,
        commands: Sequence[Command],
        positions: Sequence[int],
        earlier: dict[int, Reply],
        before: Sequence[Command],
        last: Command | None,
    ) -> dict[int, Reply]:
        replies: dict[int, Reply] = {}
        for part in self._parts(commands, positions, earlier, replies):
            try:
                raw = _send_part(part, [commands[position] for position in part.positions], before, last)
            except UNREACHABLE as exc:
                raw = [Reply(exc, answered=False)] * len(part.positions)
            replies.update(zip(part.positions, raw, strict=True))
        return replies

    def _parts(
        self,
        commands: Sequence[Command],
        positions: Sequence[int],
        earlier: dict[int, Reply],
        replies: dict[int, Reply],
    ) -> list[_Part]:
        """Say which server gets the commands at ``positions``. If none can, the error goes into ``replies``."""
        if not self._cluster:
            return [_Part(self._client, list(positions))] if positions else []
        parts: dict[tuple[str, bool], _Part] = {}
        for position in positions:
            said = earlier[position].value if position in earlier else None
            try:
                node = None
                if isinstance(said, AskError) and not isinstance(said, MovedError):
                    node = self._client.get_node(said.host, said.port)
                asking = node is not None
                node = node or self._client.get_node_from_key(_key(commands[position]))
                part = parts.setdefault((node.name, asking), _Part(self._client.get_redis_connection(node), [], asking))
                part.positions.append(position)
            except UNREACHABLE as exc:
                replies[position] = Reply(exc, answered=False)
        return list(parts.values())

    def _refresh(self) -> None:
        """Ask again which node has which slots: one is gone, or doesn't have a slot any more."""
        if self._cluster:
            # If nobody answers, what was known stays known.
            with contextlib.suppress(*UNREACHABLE):
                self._client.nodes_manager.initialize()


def _send_part(
    part: _Part, commands: Sequence[Command], before: Sequence[Command], last: Command | None
) -> list[Reply]:
    if len(commands) == 1 and not (before or part.asking or last is not None):
        # A pipeline of one costs redis-py half as much again, and a worker waits for two round trips a window.
        try:
            return [Reply(part.client.execute_command(*commands[0]))]
        except ResponseError as answer:
            return [Reply(answer)]
    with part.client.pipeline(transaction=False) as pipe:
        for command in before:
            pipe.execute_command(*command)
        for command in commands:
            if part.asking:
                pipe.execute_command("ASKING")
            pipe.execute_command(*command)
        if last is not None:
            pipe.execute_command(*last)
        raw = pipe.execute(raise_on_error=False)
    said = raw.pop() if last is not None else None
    values = raw[len(before) :]
    # If a script may not be loaded, that is the reason, not NOSCRIPT.
    refused = next((value for value in raw[: len(before)] if isinstance(value, Exception)), None)
    return [
        Reply(refused if refused and isinstance(value, NoScriptError) else value, said)
        for value in (values[1::2] if part.asking else values)
    ]


def _key(command: Command) -> str:
    """The first key of a script, or of a plain command."""
    return str(command[3] if command[0] == "EVALSHA" else command[1])
