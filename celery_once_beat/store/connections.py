"""Connections to one server that stay open from one exchange to the next.

redis-py makes them: TLS, passwords, timeouts, socket options and health checks are its business. Its pool, pipelines
and response callbacks are left out, since they take more CPU than all the rest of a begin.

A connection is lent to one exchange at a time, and comes back when all its replies have been read. Whatever ends an
exchange early closes it: a broken connection, a soft time limit, gevent's Timeout. So no reply is ever read by another
call. Threads and greenlets need no lock: taking from a list and adding to it is one atomic step each.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import SentinelConnectionPool

from celery_once_beat.wording import without_passwords

#: Seconds after which a connection is checked before it is used: servers close those that are idle, and restart.
_IDLE = 0.1


class Connections:
    """Connections as ``pool``, one of redis-py's, would make them; the pool itself holds none of these."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._of_master = isinstance(pool, SentinelConnectionPool)
        #: Each with when its last exchange ended, monotonic.
        self._free: list[tuple[Any, float]] = []
        #: All that there are: the pool's ``max_connections`` counts here too.
        self._made: WeakSet[Any] = WeakSet()
        self._process = os.getpid()
        self._closed = False

    def exchange(self, commands: bytes, count: int) -> list[Any]:
        """Send ``count`` commands and return their replies. An error of the server's stands in its reply's place.

        Raises what redis-py raises where the server doesn't answer.
        """
        if self._process != os.getpid():  # forked: those are the parent's
            self._free, self._made, self._process = [], WeakSet(), os.getpid()
        connection = self._take() or self._connect()
        replies: list[Any] = []
        try:
            connection.send_packed_command([commands])
            for _ in range(count):
                try:
                    replies.append(connection.read_response())
                except ResponseError as answer:
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
        while self._free:
            with suppress(IndexError):  # another thread has taken the last one
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
        if time.monotonic() < since + _IDLE:
            return True
        try:
            return not connection.can_read()  # what is there to be read is its end, or nobody's reply
        except (RedisConnectionError, RedisTimeoutError, OSError):
            return False

    def _connect(self) -> Any:
        if len(self._made) >= self._pool.max_connections:
            raise RedisConnectionError("Too many connections")
        connection = self._pool.connection_class(**self._pool.connection_kwargs)
        self._made.add(connection)
        try:
            connection.connect()
        except BaseException as exc:
            self._drop(connection)
            if not isinstance(exc, Exception) or isinstance(exc, (RedisError, OSError)):
                raise
            # A user's credential provider, whose service may be away; or what redis-py doesn't expect of a server.
            raise RedisConnectionError(without_passwords(f"{type(exc).__name__}: {exc}")[:300]) from exc
        return connection

    def _drop(self, connection: Any) -> None:
        self._made.discard(connection)
        connection.disconnect()
