"""The network between processes and the store's server: a real server over a socket, each request at a time of ours.

A process sends a request, the server carries it out a moment later, the reply arrives after another moment. In each of
them the process may be killed or frozen, and the request or the reply may be lost or late. ``Connection`` stands where
redis-py's stands; what it is sent goes to the server as it is, but for WAIT: that is answered here, since the replicas
are ours too.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_once_beat.store import SHARDS, scripts
from celery_once_beat.store.codec import pack as packed
from celery_once_beat.store.keys import shard_of

from .kernel import SECOND, Process

if TYPE_CHECKING:
    from .world import World

_END = "simulation: the end of a request"
_SHA = re.compile(rb"EVALSHA\r\n\$40\r\n([0-9a-f]{40})\r\n")
_WAIT = re.compile(rb"\*3\r\n\$4\r\nWAIT\r\n\$\d+\r\n(\d+)\r\n\$\d+\r\n\d+\r\n$")
_WAITS = {b"waits_turn": "waits for its turn", b"waits_slot": "waits for a slot"}
_NAMES = {verb.sha.encode(): verb.name for verb in scripts.all_verbs()}


class Server:
    """One real server, whose clock the kernel sets before each request."""

    def __init__(self, path: str) -> None:
        self._end = packed("ECHO", _END)
        self._link = redis.UnixDomainSocketConnection(
            path=path, decode_responses=True, encoding_errors="surrogateescape", socket_timeout=None, protocol=2
        )
        self.raw = redis.Redis(unix_socket_path=path)
        self._link.connect()

    def close(self) -> None:
        self._link.disconnect()
        self.raw.close()

    def carry_out(self, request: bytes) -> list[Any]:
        """Send it; return its replies, an error in the place of a reply."""
        link = self._link
        link.send_packed_command([request + self._end], check_health=False)
        replies: list[Any] = []
        while True:
            try:
                reply = link.read_response()
            except ResponseError as answer:
                reply = answer
            if reply == _END:
                return replies
            replies.append(reply)

    # -- its data

    def runs(self, key: str) -> str:
        """What a run key says."""
        return self.carry_out(packed("GET", key))[0] or ""

    def count_open(self) -> int:
        """How many windows owe their outcome."""
        with self.raw.pipeline(transaction=False) as pipe:
            for shard in range(SHARDS):
                pipe.zcard(f"once:{{{shard}}}:open")
            return sum(pipe.execute())

    def pause(self, entry: str) -> None:
        """As the verb does, for an entry that a beat has loaded."""
        key = f"once:{{{shard_of(entry)}}}:entry:{entry}"
        if self.raw.exists(key):
            self.raw.hset(key, "paused", "1")

    def state(self, prefix: str, entry: str, start: str) -> str:
        """The state of a window, as ``store/protocol`` names them."""
        with self.raw.pipeline(transaction=False) as pipe:
            pipe.zscore(f"{prefix}open", f"{entry}@{start}")
            pipe.get(f"{prefix}run:{entry}:{start}")
            pipe.hmget(f"{prefix}entry:{entry}", "cursor", f"w:{start}")
            deadline, run, (cursor, account) = pipe.execute()
        kind = (run or b"").partition(b":")[0].decode()
        if deadline is None:
            if kind:
                return {"run": "running", "wait": "waiting"}.get(kind, "closed")
            return "unseen" if cursor is None or start.encode() > cursor else "closed"
        if kind in ("run", "wait"):
            return "running" if kind == "run" else "waiting"
        words = (account or b"").split()
        if words and words[9] in _WAITS:
            return _WAITS[words[9]]
        if not words or words[1] == b"0":
            return "published" if words and words[8] == b"sent" else "claimed"
        return {b"plain": "died"}.get(words[9], "waiting")

    def snapshot(self) -> list[tuple[bytes, int, bytes]]:
        """All keys as they are now, each with when it expires (server ms, 0: never)."""
        keys = sorted(self.raw.keys())
        with self.raw.pipeline(transaction=False) as pipe:
            pipe.time()
            for key in keys:
                pipe.pttl(key)
                pipe.dump(key)
            (seconds, micro), *rest = pipe.execute()
        now = seconds * 1000 + micro // 1000
        return [
            (key, now + ttl if ttl > 0 else 0, value)
            for key, ttl, value in zip(keys, rest[::2], rest[1::2], strict=True)
            if value is not None
        ]

    def restore(self, found: Iterable[tuple[bytes, int, bytes]]) -> None:
        """Put a snapshot back; what would have expired since has."""
        self.raw.flushall()
        seconds, micro = self.raw.time()
        now = seconds * 1000 + micro // 1000
        with self.raw.pipeline(transaction=False) as pipe:
            for key, expires, value in found:
                if not expires or expires > now:
                    pipe.restore(key, expires, value, absttl=True)
            pipe.execute()


class Connection:
    """A connection of one simulated process to the store's server, as the package uses redis-py's."""

    world: World

    def __init__(self, **options: Any) -> None:
        self.timeout = round((options.get("socket_timeout") or 2.0) * SECOND)
        self.process: Process = self.world.process
        self._era = -1
        self._replies: deque[Any] = deque()

    def connect(self) -> None:
        world = self.world
        world.step(self.process, "connect")
        self._wait_for_link("connect")
        self._era = world.store_era

    def disconnect(self, *_: Any) -> None:
        self._era = -1

    def can_read(self, timeout: float = 0) -> bool:  # redis-py's
        return self._era != self.world.store_era

    def _wait_for_link(self, what: str) -> None:
        """Raise if nothing comes through."""
        world = self.world
        how = world.link("store", self.process)
        if how == "refused":
            raise RedisConnectionError(f"simulation: {what} refused")
        if how == "silent":
            world.kernel.sleep(self.timeout)
            raise RedisTimeoutError(f"simulation: {what} timed out")

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        request = command if isinstance(command, bytes) else b"".join(command)
        self._replies = deque(self._exchange(request))

    def read_response(self, *_: Any, **__: Any) -> Any:
        reply = self._replies.popleft()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _exchange(self, request: bytes) -> list[Any]:
        world, process = self.world, self.process
        if self._era != world.store_era:
            raise RedisConnectionError("simulation: connection reset")
        verbs = [_NAMES.get(sha, "?") for sha in _SHA.findall(request)]
        era = self._era
        act = world.before(process, verbs, request)
        self._wait_for_link("request")
        if act == "lost":
            world.kernel.sleep(self.timeout)
            raise RedisTimeoutError("simulation: the request was lost")
        if isinstance(act, int):  # it arrives so much later, when nobody waits for its reply any more
            world.kernel.call_at(world.kernel.now + act, lambda: world.arrives_late(request, era))
            world.kernel.sleep(self.timeout)
            raise RedisTimeoutError("simulation: the request is late")
        if era != world.store_era:
            raise RedisConnectionError("simulation: connection reset")
        replies = world.carry_out(request)
        act = world.after(process, verbs, request)
        if era != world.store_era:
            raise RedisConnectionError("simulation: connection reset")
        if act == "lost" or world.link("store", process) != "":
            world.kernel.sleep(self.timeout)
            raise RedisTimeoutError("simulation: the reply was lost")
        if isinstance(act, int):
            world.kernel.sleep(min(act, self.timeout))
            if act >= self.timeout:
                raise RedisTimeoutError("simulation: the reply is late")
        return replies


def split_wait(request: bytes) -> tuple[bytes, int]:
    """A request without its WAIT, and how many replicas that asks for; 0: it has none."""
    found = _WAIT.search(request)
    return (request[: found.start()], int(found[1])) if found else (request, 0)
