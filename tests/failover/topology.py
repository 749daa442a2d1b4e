"""Redis with replicas, as real processes: Sentinel and Redis Cluster, of which the master can be killed.

Each can be brought back after a kill: what was killed comes again, empty, as the new master's replica.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from processes import wait_until
from redis.exceptions import RedisError
from servers import RedisServer, SentinelServer, free_port

from celery_once_beat.settings import Settings
from celery_once_beat.store.verbs import Store

MASTER = "m"
#: How long a master may be silent before the others call it dead, ms. Test machines are slow, and busy.
DOWN_AFTER = 1500
#: Keys that make a snapshot slow, and how slow each makes it, microseconds.
FILLER, FILLER_DELAY = 3000, 1500
_QUIET = {"decode_responses": True, "socket_timeout": 5, "socket_connect_timeout": 2}


def ask(server: RedisServer, *command: Any) -> Any:
    """One command on a connection of its own; None where the server doesn't answer."""
    try:
        with redis.Redis(host="127.0.0.1", port=server.port, **_QUIET) as client:
            return client.execute_command(*command)
    except (RedisError, OSError):
        return None


def follows(replica: RedisServer, master: RedisServer) -> bool:
    """Whether a replica has all that its master had, and is told what comes."""
    info = ask(replica, "INFO", "replication") or {}
    return info.get("master_port") == master.port and info.get("master_link_status") == "up"


_CONF = f"""\
port {{port}}
bind 127.0.0.1
sentinel monitor {MASTER} 127.0.0.1 {{master}} 2
sentinel down-after-milliseconds {MASTER} {DOWN_AFTER}
sentinel failover-timeout {MASTER} 3000
"""


class Topology:
    """What the two kinds have in common."""

    name = ""

    def __init__(self, binary: Path, seed: int) -> None:
        self.binary = binary
        self.random = random.Random(seed)
        self.servers: list[RedisServer] = []

    def __enter__(self):
        return self

    def __exit__(self, *exc_info: object) -> None:
        for server in self.servers:
            server.__exit__()

    def start(self, *args: str, appendonly: bool = False) -> RedisServer:
        server = RedisServer.start(
            self.binary,
            args=("--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes", *args),
            appendonly=appendonly,
        )
        self.servers.append(server)
        return server

    @property
    def url(self) -> str:
        raise NotImplementedError

    options: dict[str, Any]

    def settings(self, **more: Any) -> Settings:
        return Settings(redis_url=self.url, redis_options=self.options, **more)

    @contextmanager
    def store(self, **more: Any):
        store = Store(self.settings(**more))
        try:
            yield store
        finally:
            store.close()

    # -- a kill

    def choose(self) -> RedisServer:
        """The master that is to be killed."""
        raise NotImplementedError

    def replica_of(self, master: RedisServer) -> RedisServer:
        raise NotImplementedError

    def concerns(self, key: str) -> bool:
        """Whether ``key`` lived on the server that ``choose`` gave."""
        return True

    def wait_failover(self, killed: RedisServer) -> None:
        raise NotImplementedError

    def restore(self, killed: RedisServer) -> None:
        raise NotImplementedError

    def attach_slowly(self, master: RedisServer) -> None:
        """Cut the replica off, so that it has to copy everything; returns while it is at it.

        Until it has the whole copy it keeps what it had: if its master dies now, it knows nothing of what was written
        since the cut.
        """
        replica = self.replica_of(master)
        with redis.Redis(host="127.0.0.1", port=master.port, **_QUIET) as client:
            with client.pipeline(transaction=False) as pipe:
                for number in range(FILLER):
                    # in the slots of a node, by no tag: what isn't the node's is refused, which does no harm
                    pipe.set(f"filler:{number}", "x" * 10, px=600_000)
                pipe.execute(raise_on_error=False)
            keys = max(client.dbsize(), 1)
            client.config_set("rdb-key-save-delay", FILLER * FILLER_DELAY // keys)
            client.execute_command("DEBUG", "CHANGE-REPL-ID")
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

        def attaching() -> bool:
            info = ask(replica, "INFO", "replication") or {}
            return info.get("master_link_status") == "down" and info.get("master_sync_in_progress") == 1

        wait_until(attaching, "the replica copies its master", 30, every=0.02)


class SentinelSet(Topology):
    """Three sentinels, a master, a replica."""

    name = "Sentinel"

    def __init__(self, binary: Path, seed: int, *, replicas: int = 1) -> None:
        super().__init__(binary, seed)
        self.options = {"master_name": MASTER}
        self.sentinels: list[SentinelServer] = []
        try:
            self.data = [self.start()]
            self.data += [self.start("--replicaof", f"127.0.0.1 {self.data[0].port}") for _ in range(replicas)]
            for _ in range(3):
                sentinel = SentinelServer(binary)
                self.servers.append(sentinel)
                self.sentinels.append(sentinel)
                sentinel.watch(_CONF.replace("{master}", str(self.data[0].port)))
            self._wait_well()
        except BaseException:
            self.__exit__()
            raise

    @property
    def url(self) -> str:
        return ";".join(f"sentinel://127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)

    def _wait_well(self) -> None:
        """Until every sentinel knows the others, and sees the master and its replicas well.

        Who is master is asked each time: a busy machine can make sentinels call a living one dead.
        """

        def well() -> bool:
            master = self.choose_or_none()
            if master is None or not all(follows(server, master) for server in self.data if server is not master):
                return False
            for sentinel in self.sentinels:
                state = self._state(sentinel)
                if state is None or state[0]["flags"] != "master" or state[0]["num-other-sentinels"] != "2":
                    return False
                seen = {int(s["port"]) for s in state[1] if s["flags"] == "slave" and s["master-link-status"] == "ok"}
                if seen != {server.port for server in self.data if server is not master}:
                    return False
            return True

        try:
            wait_until(well, "the sentinels see all well", 90, every=0.1)
        except AssertionError as exc:
            raise AssertionError(f"{exc}; they see {[self._state(sentinel) for sentinel in self.sentinels]}") from None

    def _state(self, sentinel: SentinelServer) -> tuple[dict[str, str], list[dict[str, str]]] | None:
        try:
            with redis.Redis(host="127.0.0.1", port=sentinel.port, protocol=2, **_QUIET) as client:
                client.set_response_callback("SENTINEL MASTER", lambda reply, **_: reply)
                master = client.execute_command("SENTINEL", "master", MASTER)
                slaves = client.execute_command("SENTINEL", "replicas", MASTER)
        except (RedisError, OSError):
            return None
        return _pairs(master), [_pairs(slave) for slave in slaves]

    def choose_or_none(self) -> RedisServer | None:
        """The master, where all sentinels agree and it says so itself."""
        said = set()
        for sentinel in self.sentinels:
            address = ask(sentinel, "SENTINEL", "get-master-addr-by-name", MASTER)
            said.add(int(address[1]) if address else 0)
        found = [server for server in self.data if {server.port} == said]
        return found[0] if found and (ask(found[0], "ROLE") or [""])[0] == "master" else None

    def choose(self) -> RedisServer:
        return wait_until(self.choose_or_none, "there is a master", 90)

    def replica_of(self, master: RedisServer) -> RedisServer:
        return next(server for server in self.data if server is not master)

    def wait_failover(self, killed: RedisServer) -> None:
        wait_until(self.choose_or_none, "a replica was made master", 90)

    def restore(self, killed: RedisServer) -> None:
        kept = [*killed.args]
        if "--replicaof" in kept:
            at = kept.index("--replicaof")
            del kept[at : at + 2]
        killed.args = (*kept, "--replicaof", f"127.0.0.1 {self.choose().port}")
        killed.restart()
        self._wait_well()


class Cluster(Topology):
    """Three masters, each with a replica."""

    name = "Cluster"

    def __init__(self, binary: Path, seed: int) -> None:
        super().__init__(binary, seed)
        self.options = {}
        self._slots: set[int] = set()
        try:
            nodes = [
                self.start(
                    *("--cluster-enabled", "yes", "--cluster-port", str(free_port())),
                    *("--cluster-node-timeout", str(DOWN_AFTER), "--cluster-allow-replica-migration", "no"),
                )
                for _ in range(6)
            ]
            self._build(nodes)
        except BaseException:
            self.__exit__()
            raise

    def _build(self, nodes: list[RedisServer]) -> None:
        for number, first in enumerate((0, 5461, 10923)):
            ask(nodes[number], "CLUSTER", "ADDSLOTSRANGE", first, (5460, 10922, 16383)[number])
        for epoch, node in enumerate(nodes, 1):
            ask(node, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
            bus = node.args[node.args.index("--cluster-port") + 1]
            ask(nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        for node in nodes:
            wait_until(lambda n=node: len(self.view(n)) == 6, "every node knows all", 60)
        for number, node in enumerate(nodes[3:]):
            master = ask(nodes[number], "CLUSTER", "MYID")
            wait_until(lambda n=node, m=master: ask(n, "CLUSTER", "REPLICATE", m), "replicates", 30)
        self._wait_well()

    def view(self, node: RedisServer) -> dict[str, list[str]]:
        """The cluster as a node sees it: node id → its line."""
        try:
            with redis.Redis(host="127.0.0.1", port=node.port, **_QUIET) as client:
                client.set_response_callback("CLUSTER NODES", lambda reply, **_: reply)
                text = client.execute_command("CLUSTER NODES")
        except (RedisError, OSError):
            return {}
        return {line.split()[0]: line.split() for line in str(text).splitlines()}

    def _wait_well(self) -> None:
        def well() -> bool:
            for node in self.servers:
                lines = [*self.view(node).values()]
                flags = [set(line[2].split(",")) - {"myself"} for line in lines]
                if len(lines) != 6 or sorted(map(sorted, flags)) != [["master"]] * 3 + [["slave"]] * 3:
                    return False
                if "cluster_state:ok" not in str(self._info(node)):
                    return False
            return all(self._link_up(node) for node in self.servers)

        wait_until(well, "the cluster is whole", 90, every=0.1)

    def _info(self, node: RedisServer) -> str:
        with redis.Redis(host="127.0.0.1", port=node.port, **_QUIET) as client:
            client.set_response_callback("CLUSTER INFO", lambda reply, **_: reply)
            return str(client.execute_command("CLUSTER INFO"))

    def _link_up(self, node: RedisServer) -> bool:
        role = ask(node, "ROLE")
        return bool(role) and (role[0] == "master" or role[3] == "connected")

    @property
    def url(self) -> str:
        return ";".join(f"redis+cluster://127.0.0.1:{node.port}" for node in self.servers)

    def masters(self) -> list[RedisServer]:
        return [node for node in self.servers if node.alive and (ask(node, "ROLE") or [""])[0] == "master"]

    def choose(self) -> RedisServer:
        chosen = self.random.choice(self.masters())
        ranges = self.view(chosen)[ask(chosen, "CLUSTER", "MYID")][8:]
        self._slots = set()
        for text in ranges:
            first, _, last = text.partition("-")
            self._slots.update(range(int(first), int(last or first) + 1))
        return chosen

    def replica_of(self, master: RedisServer) -> RedisServer:
        replicas = [int(port) for _, port, _ in ask(master, "ROLE")[2]]
        return next(node for node in self.servers if node.port in replicas)

    def concerns(self, key: str) -> bool:
        return redis.cluster.key_slot(key.encode()) in self._slots

    def wait_failover(self, killed: RedisServer) -> None:
        living = [node for node in self.servers if node is not killed]
        slot = min(self._slots)

        def owner(node: RedisServer) -> int:
            for first, last, master, *_ in ask(node, "CLUSTER", "SLOTS") or []:
                if int(first) <= slot <= int(last):
                    return int(master[1])
            return 0

        def promoted() -> bool:
            said = {owner(node) for node in living}
            return len(said) == 1 and said & {node.port for node in living} and all(
                "cluster_state:ok" in self._info(node) for node in living
            )  # fmt: skip

        wait_until(promoted, "a replica was made master", 90)

    def restore(self, killed: RedisServer) -> None:
        killed.restart()
        self._wait_well()


def _pairs(reply: Any) -> dict[str, str]:
    if isinstance(reply, dict):
        return {str(key): str(value) for key, value in reply.items()}
    return {str(key): str(value) for key, value in zip(reply[::2], reply[1::2], strict=True)}


KINDS: dict[str, Callable[..., Topology]] = {"sentinel": SentinelSet, "cluster": Cluster}
