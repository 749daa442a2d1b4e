"""Real servers for the tests: Redis, Valkey, RabbitMQ, PostgreSQL and MariaDB, each in its own directory.

They listen on free loopback ports.

A server is ended through the handle of the process that was started here, never by a name or a port.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import pytest
import redis
from needs import find, missing, need


class ServerError(AssertionError):
    """A server didn't start or didn't do as it was told; carries the end of its log."""


def find_servers() -> dict[str, Path]:
    """The server programs of this machine by kind, ``"valkey"`` and ``"redis"``; what isn't there is absent.

    ``ONCE_TEST_SERVER``: this Redis, and no other.
    """
    if "ONCE_TEST_SERVER" in os.environ:
        return {"redis": Path(os.environ["ONCE_TEST_SERVER"])}
    found = {kind: find(f"{kind}-server") for kind in ("valkey", "redis")}
    return {kind: binary for kind, binary in found.items() if binary}


def need_server(kind: str | None = None) -> Path:
    """The program of this kind of server, or of the first that there is; else the test is left out."""
    binaries = find_servers()
    kind = kind or next(iter(binaries), "valkey")
    return binaries.get(kind) or missing(f"{kind}-server")


# Outside of the range from which the kernel takes ports for outgoing connections (32768 and up, on Linux), so
# that a server's port is still free when it is started again.
_PORTS = range(15000, 32000)
_BLOCK = 500


@functools.cache
def _own_ports() -> Iterator[int]:
    """A block of ports that no other process of tests gives out, again and again in turn.

    The port of a server that was killed is free, but not forgotten: sentinels and a cluster's nodes would take another
    test's server there for the one that was theirs, and make a replica of it.
    """
    for first in _PORTS[::_BLOCK]:
        lock = Path(tempfile.gettempdir(), f"once-ports-{first}")
        with contextlib.suppress(OSError):  # another process has it, or another user
            _locks.append(lock.open("a"))
            fcntl.flock(_locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            return itertools.cycle(range(first, first + _BLOCK))
    raise ServerError(f"all ports from {_PORTS.start} to {_PORTS.stop} are other tests', by the locks in {lock.parent}")


#: Held until this process ends.
_locks: list[IO[str]] = []


def free_port() -> int:
    """A loopback TCP port that nothing listens on at this moment, and no other test has had lately."""
    for port in _own_ports():
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the ports come in turn, for ever")


# ------------------------------------------------------------------------------------------- a clock to move


class FakeClock:
    """The wall clock of a process (and its children) that libfaketime moves, also while it runs.

    The monotonic clock stays real, so timeouts and event loops go on. Without the library the test is left out.
    """

    def __init__(self, directory: Path, offset: float | str = 0) -> None:
        self._library = need("libfaketime")
        self._file = directory / "faketime"
        self.offset = 0.0
        self.set(offset)

    def set(self, offset: float | str) -> None:
        """From now on the clock is *offset* seconds ahead of the real one (``7``, ``-5.5``, ``"+7s"``)."""
        self.offset = float(offset.removesuffix("s")) if isinstance(offset, str) else float(offset)
        self._write(f"{self.offset:+.6f}")

    def stand(self, at: datetime) -> None:
        """From now on the clock stands still at *at*, an aware datetime, to the millisecond."""
        # Read as local time. What is read as a float is cut off: without the last digits, in the millisecond before.
        self._write(f"{at.astimezone():%Y-%m-%d %H:%M:%S.%f}02")

    def _write(self, text: str) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(text + "\n")
        fresh.replace(self._file)  # in one step: the process may read at any moment

    @property
    def env(self) -> dict[str, str]:
        """What to add to the environment of the process that gets this clock."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # the older name of the same
            # Else, with some glibcs (2.36 is one), waits by the real monotonic clock end at once: of two threads the
            # one that waits for the GIL spins, and each takes up to a hundred times as long.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    @staticmethod
    def forget(pid: int) -> None:
        """Remove what libfaketime leaves in shared memory when the process *pid* was killed."""
        for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
            Path("/dev/shm", name).unlink(missing_ok=True)


# --------------------------------------------------------------------------------------------------- servers


class _Server:
    """One server process in a session of its own: what starting, stopping and pausing have in common."""

    #: Seconds: long, since a busy machine takes a minute for what else takes five seconds.
    start_timeout = 240.0
    stop_timeout = 10.0

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="once-server-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._as_user: dict[str, object] = {}
        self.port = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise ServerError(f"{self!r} isn't running")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is there, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def log(self) -> str:
        """All that the server has printed, over all of its starts."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _spawn(self, command: Sequence[str], env: dict[str, str]) -> None:
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=env, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, **self._as_user,
            )  # fmt: skip
        self._paused = False

    def _wait_until_answers(self) -> None:
        deadline = time.monotonic() + self.start_timeout
        while not self._answers():
            code = self._process.poll() if self._process else None
            if code is not None or time.monotonic() > deadline:
                self.kill()
                why = "didn't answer in time" if code is None else f"ended with {code}"
                raise ServerError(f"{self!r} {why}; its log ends with:\n{self.log[-2000:]}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        raise NotImplementedError

    def _launch(self) -> None:
        raise NotImplementedError

    def _launched(self):
        """Start it for the first time; what fails leaves nothing behind."""
        try:
            self._prepare()
            self._launch()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _prepare(self) -> None:
        """What is done once, before it starts."""
        self.port = free_port()

    def stop(self) -> None:
        """End the server by SIGTERM, by force if that takes too long. Again: does nothing."""
        if self.alive:
            self.resume()
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.stop_timeout)
        self.kill()

    def kill(self) -> None:
        """SIGKILL: the server has no time for anything, as with a lost machine."""
        if self._process is None:
            return
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._after_end(self._process.pid)
        self._process = None
        self._paused = False

    def _after_end(self, pid: int) -> None:
        """For what a server leaves behind."""

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same port and directory; returns once it answers."""
        self.stop()
        self._launch()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, as with a network that is cut."""
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """SIGCONT; does nothing if it isn't paused."""
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def _signal(self, number: int) -> None:
        if self.alive:
            os.kill(self.pid, number)


@functools.cache
def _runs_under_faketime(binary: Path) -> bool:
    """Some builds hang under it: a shared jemalloc asks for the time before the library can answer."""
    with tempfile.TemporaryDirectory(prefix="once-clock-") as directory:
        try:
            subprocess.run(
                [binary, "--version"], env={**os.environ, **FakeClock(Path(directory)).env},
                timeout=5, check=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
            return False
    return True


class RedisServer(_Server):
    """A Redis or Valkey server; :meth:`start` returns once it answers."""

    def __init__(
        self,
        binary: Path | str,
        args: Sequence[str] = (),
        appendonly: bool = False,
        faketime: float | str | None = None,
    ) -> None:
        super().__init__()
        self.binary = Path(binary)
        self.args = tuple(args)
        self.appendonly = appendonly
        self.clock = None if faketime is None else FakeClock(self.directory, faketime)

    def __repr__(self) -> str:
        return f"<{self.binary.name} on port {self.port}>"

    @classmethod
    def start(cls, binary: Path | str, *, faketime: float | str | None = None, **options: Any) -> RedisServer:
        """A running server on a free port.

        *options* are ``args``, which go to its command line and win over ours, and ``appendonly``, with which its data
        survives :meth:`kill` and :meth:`restart`; otherwise both lose it. With *faketime* (seconds or ``"+7s"``; 0 is
        fine) its wall clock can be moved by :meth:`set_clock_offset`; where that can't be, the test is left out.
        """
        if faketime is not None and not _runs_under_faketime(Path(binary)):
            missing("libfaketime", f"doesn't work with {binary}")
        server = cls(binary, faketime=faketime, **options)
        try:
            for attempt in range(3):
                server.port = free_port()
                try:
                    server._launch()
                    return server
                except ServerError:
                    # between our look at the port and the server's, another process may have taken it
                    if attempt == 2 or "ddress already in use" not in server.log:
                        raise
        except BaseException:
            server.__exit__()
            raise
        raise AssertionError("unreachable")

    def _launch(self) -> None:
        command = [
            str(self.binary), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory),
            "--save", "", "--appendonly", "yes" if self.appendonly else "no",
            # By default a write waits while an fsync runs: a kill would lose what was answered.
            "--appendfsync", "always", *self.args,
        ]  # fmt: skip
        env = dict(os.environ)
        if self.clock:
            env.update(self.clock.env)
        self._spawn(command, env)
        self._wait_until_answers()

    def _answers(self) -> bool:
        """Any reply but "loading" will do: a server with a password answers that it wants one."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                reply = connection.recv(100)
        except OSError:
            return False
        return bool(reply) and not reply.startswith(b"-LOADING") and self.alive

    def _after_end(self, pid: int) -> None:
        if self.clock:
            FakeClock.forget(pid)

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    @property
    def version(self) -> str:
        """What the server says that it is."""
        with self.client() as client:
            info = client.info("server")
        return f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}"

    @contextlib.contextmanager
    def client(self, db: int = 0, **options: object) -> Iterator[redis.Redis]:
        """A client that is closed at the end of the block; it gives up after 30 s if the server is paused."""
        options = {"socket_timeout": 30, "decode_responses": True, **options}
        client = redis.Redis(host="127.0.0.1", port=self.port, db=db, **options)
        try:
            yield client
        finally:
            client.close()
            client.connection_pool.disconnect()

    def set_clock_offset(self, seconds: float) -> None:
        """Move the server's wall clock to *seconds* from the real one; returns once its TIME says so."""
        if self.clock is None:
            raise ServerError("start the server with faketime=0 to move its clock")
        self.clock.set(seconds)
        deadline = time.monotonic() + 10
        with self.client() as client:
            while abs((off := _seconds(client.time()) - time.time()) - seconds) >= 1:
                if time.monotonic() > deadline:
                    raise ServerError(f"{self!r}: clock should differ by {seconds} s, differs by {off:.3f} s")
                time.sleep(0.02)


def _seconds(told: tuple[int, int]) -> float:
    return told[0] + told[1] / 1e6


def keys_without_expiry(server: RedisServer, pattern: str = "once:*") -> list[str]:
    """``"db<n> <key>"`` of each key in any database of *server* that matches *pattern* and never expires.

    But for what people have set at run time, which stays.
    """
    found = []
    with server.client() as client:
        databases = [int(name.removeprefix("db")) for name in client.info("keyspace")]
    for db in sorted(databases):
        with server.client(db, decode_responses=False) as client:
            keys = list(client.scan_iter(match=pattern, count=1000))
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.pttl(key)
            for key, ttl in zip(keys, pipeline.execute(), strict=True):
                if ttl == -1 and not re.search(rb"\}:(def:|changes:|defs$)", key):  # -2: it has expired since
                    found.append(f"db{db} {key.decode(errors='backslashreplace')}")
    return found


@contextlib.contextmanager
def without_shard(url: str, shard: int) -> Iterator[str]:
    """URL of a user of the server whom it answers about all but one shard: as where one node of a cluster is away."""
    kept = [f"~once:{{{number}}}:*" for number in range(16) if number != shard]
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", "part", "on", "nopass", "+@all", "~once:*beats*", *kept)
        try:
            yield url.replace("redis://", "redis://part:any@")
        finally:
            client.execute_command("ACL", "DELUSER", "part")


class SentinelServer(RedisServer):
    """One of the processes that watch a master. It writes to its configuration, so each has one of its own."""

    def watch(self, conf: str) -> None:
        """Start with that configuration, in which ``{port}`` stands for its port; returns once it answers."""
        self.port = free_port()
        path = self.directory / "sentinel.conf"
        path.write_text(conf.replace("{port}", str(self.port)))
        self._spawn([str(self.binary), str(path), "--sentinel"], {})
        self._wait_until_answers()


class RabbitServer(_Server):
    """A RabbitMQ node of its own, with its own epmd; nothing of the machine's RabbitMQ is used or touched."""

    def __init__(self, script: Path | str) -> None:
        super().__init__()
        self.script = Path(script)
        self._epmd: subprocess.Popen[bytes] | None = None
        self._dist_port = self._epmd_port = 0
        self._env: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<RabbitMQ on port {self.port}>"

    @classmethod
    def start(cls, script: Path | str | None = None) -> RabbitServer:
        """A running node on free ports; returns once AMQP answers. *script*: where it isn't the machine's own."""
        return cls(script or need("rabbitmq-server"))._launched()

    def _prepare(self) -> None:
        self.port, self._dist_port, self._epmd_port = free_port(), free_port(), free_port()

    def _launch(self) -> None:
        home = self.directory
        (home / "rabbitmq-env.conf").write_text("")  # instead of the machine's
        (home / "enabled_plugins").write_text("[].\n")
        (home / "rabbitmq.conf").write_text("disk_free_limit.absolute = 10MB\n")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        env.update(
            HOME=str(home),
            ERL_EPMD_PORT=str(self._epmd_port),
            ERL_EPMD_ADDRESS="127.0.0.1",
            RABBITMQ_NODENAME=f"once-{self.port}@localhost",
            RABBITMQ_NODE_IP_ADDRESS="127.0.0.1",
            RABBITMQ_NODE_PORT=str(self.port),
            RABBITMQ_DIST_PORT=str(self._dist_port),
            RABBITMQ_MNESIA_BASE=str(home / "data"),
            RABBITMQ_LOG_BASE=str(home / "logs"),
            RABBITMQ_LOGS="-",
            RABBITMQ_CONF_ENV_FILE=str(home / "rabbitmq-env.conf"),
            RABBITMQ_CONFIG_FILE=str(home / "rabbitmq.conf"),
            RABBITMQ_ADVANCED_CONFIG_FILE=str(home / "advanced.config"),
            RABBITMQ_GENERATED_CONFIG_DIR=str(home / "generated"),
            RABBITMQ_SCHEMA_DIR=str(home / "schema"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(home / "enabled_plugins"),
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}",
            # the script then becomes the node: the process that we hold is the node, not a shell around it
            RUNNING_UNDER_SYSTEMD="true",
        )
        env.pop("NOTIFY_SOCKET", None)
        self._env = env
        self._start_epmd(env)
        self._spawn([str(self.script)], env)
        self._wait_until_answers()

    def _start_epmd(self, env: dict[str, str]) -> None:
        """Erlang's port mapper as our child; else the node would start one as a daemon that outlives it."""
        found = shutil.which("epmd")
        epmd = Path(found) if found else next(Path("/usr/lib/erlang").glob("erts-*/bin/epmd"), None)
        if epmd is None:
            raise ServerError("epmd, which comes with Erlang, isn't on PATH")
        with (self.directory / "log").open("ab") as log:
            self._epmd = subprocess.Popen(
                [str(epmd), "-port", str(self._epmd_port), "-address", "127.0.0.1"], env=env,
                cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + self.start_timeout
        while not _accepts(self._epmd_port):
            if self._epmd.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"epmd didn't start:\n{self.log[-2000:]}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        if not _accepts(self.port):
            return False
        from kombu import Connection

        with Connection(self.url(), connect_timeout=5) as connection:
            try:
                connection.connect()
            except connection.connection_errors:
                return False
        return self.alive

    def kill(self) -> None:
        """SIGKILL to the node, and an end to its epmd."""
        super().kill()
        if self._epmd is not None:
            if self._epmd.poll() is None:
                self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def ctl(self, *arguments: str) -> str:
        """What ``rabbitmqctl`` prints when it is asked this of the node."""
        command = [str(self.script.with_name("rabbitmqctl")), "--quiet", *arguments]
        done = subprocess.run(command, check=False, env=self._env, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise ServerError(f"rabbitmqctl {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"


class _DatabaseServer(_Server):
    """A database server whose one user needs no password. What it holds need not survive a crash."""

    name: str
    #: The user of the system as whom it runs, where the tests run as root: it refuses that.
    system_user: str

    def __init__(self, programs: Path) -> None:
        super().__init__()
        self.programs = programs
        if os.geteuid() == 0:
            user = next((user for user in pwd.getpwall() if user.pw_name == self.system_user), pwd.getpwnam("nobody"))
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.directory, user.pw_uid, user.pw_gid)

    def __repr__(self) -> str:
        return f"<{self.name} on port {self.port}>"

    @classmethod
    def start(cls, programs: Path | None = None):
        """A running server on a free port. *programs*: where they are, if not where the machine has its own."""
        return cls(programs or need(cls.name))._launched()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _environment(self) -> dict[str, str]:
        """A folder of its own for temporary files: a MariaDB that starts deletes those of others."""
        return {**os.environ, "TMPDIR": str(self.directory)}

    def _prepare(self) -> None:
        done = subprocess.run(
            self._data_command(), cwd=self.directory, env=self._environment, capture_output=True, text=True,
            check=False, timeout=120, **self._as_user,
        )  # fmt: skip
        if done.returncode:
            raise ServerError(f"{self.name}: {done.stdout}{done.stderr}")
        super()._prepare()

    def _data_command(self) -> Sequence[str | Path]:
        raise NotImplementedError

    def execute(self, statement: str) -> None:
        """One statement, outside of a transaction."""
        raise NotImplementedError

    def new_database(self, more: str = "") -> str:
        """Make a database; returns its name. *more*: what else the statement says."""
        name = f"tests_{uuid.uuid4().hex[:8]}"
        self.execute(f"CREATE DATABASE {name} {more}")
        return name


def databases(*kinds: str) -> list[object]:
    """Parameters ``sqlite``, ``postgres`` or ``mariadb``: tests of one kind share a process of xdist, and a server."""
    return [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in kinds]


class PostgresServer(_DatabaseServer):
    """A PostgreSQL server; its user is ``once``. *programs* is a folder."""

    name, system_user = "postgresql", "postgres"

    def _data_command(self) -> Sequence[str | Path]:
        return (self.programs / "initdb", "-D", self._data, "-U", "once", "-A", "trust", "-E", "UTF8", "--no-sync")

    def _launch(self) -> None:
        settings = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", f"port={self.port}")
        options = [word for setting in settings for word in ("-c", setting)]
        self._spawn([str(self.programs / "postgres"), "-D", str(self._data), *options], self._environment)
        self._wait_until_answers()

    def _answers(self) -> bool:
        import psycopg

        try:
            with psycopg.connect(self.dsn("postgres"), connect_timeout=5):
                return self.alive
        except psycopg.OperationalError:
            return False

    def stop(self) -> None:
        """End the server: fast, sessions that are open are cut."""
        self.resume()
        self._signal(signal.SIGINT)
        super().stop()

    def pause(self) -> None:
        """As the others', with its children: each has a session of its own."""
        super().pause()
        for child in self._children():
            os.kill(child, signal.SIGSTOP)

    def resume(self) -> None:
        """As the others', with its children."""
        for child in self._children() if self._paused and self.alive else []:
            os.kill(child, signal.SIGCONT)
        super().resume()

    def _children(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(child) for child in children.split()]

    def dsn(self, database: str) -> str:
        """How psycopg connects to a database of it."""
        return f"host=127.0.0.1 port={self.port} user=once dbname={database}"

    def execute(self, statement: str) -> None:
        """In the database ``postgres``."""
        import psycopg

        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(statement)


class MariaServer(_DatabaseServer):
    """A MariaDB server; its user is ``root``. *programs* is the server itself."""

    name, system_user = "mariadb", "mysql"

    def _data_command(self) -> Sequence[str | Path]:
        return (
            "mariadb-install-db", "--no-defaults", f"--datadir={self._data}", "--skip-test-db", "--skip-log-bin",
            "--auth-root-authentication-method=normal",
        )  # fmt: skip

    def _launch(self) -> None:
        options = (
            f"--datadir={self._data}", f"--port={self.port}", "--bind-address=127.0.0.1",
            f"--socket={self.directory / 'socket'}", f"--pid-file={self.directory / 'pid'}",
            "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M", "--character-set-server=utf8mb4",
        )  # fmt: skip
        self._spawn([str(self.programs), "--no-defaults", *options], self._environment)
        self._wait_until_answers()

    def _answers(self) -> bool:
        import pymysql

        try:
            pymysql.connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=5).close()
        except pymysql.OperationalError:
            return False
        return self.alive

    def execute(self, statement: str) -> None:
        """In no database."""
        import pymysql

        with pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True) as connection:
            connection.cursor().execute(statement)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
