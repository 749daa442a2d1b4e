"""The clocks of servers, for readers: a failover to a server whose clock is behind holds entries back."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from redis import Connection, ConnectionPool, Redis, SSLConnection
from redis.cluster import RedisCluster

from .exchange import UNREACHABLE

#: How INFO names a replica.
_REPLICA = re.compile(r"slave\d+$")
#: Options of a connection that name its server.
_OF_ONE_SERVER = frozenset({"host", "port", "path", "connection_pool"})


def clocks(client: Any) -> dict[str, float]:
    """By name, how many seconds a server's clock is ahead of this machine's: of all that answer, replicas too."""
    found = {}
    for name, each in _servers(client):
        with suppress(*UNREACHABLE):
            sent = time.time()
            seconds, micro = each.time()
            found[name] = seconds + micro / 1e6 - (sent + time.time()) / 2
    return found


def _servers(client: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(client, RedisCluster):
        for node in client.get_nodes():  # type: ignore[no-untyped-call]
            with suppress(*UNREACHABLE):
                yield node.name, client.get_redis_connection(node)
        return
    yield "master", client
    pool = client.connection_pool
    known = {name: value for name, value in pool.connection_kwargs.items() if name not in _OF_ONE_SERVER}
    kind = SSLConnection if issubclass(pool.connection_class, SSLConnection) else Connection
    replicas: list[Any] = []
    with suppress(*UNREACHABLE):  # this user may not ask
        replicas = [value for name, value in client.info("replication").items() if _REPLICA.match(name)]
    for replica in replicas:
        host, port = str(replica["ip"]), int(replica["port"])
        with Redis(connection_pool=ConnectionPool(connection_class=kind, **known, host=host, port=port)) as to:
            to.auto_close_connection_pool = True
            yield f"replica {host}:{port}", to
