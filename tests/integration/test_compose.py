"""``docker-compose.yml``: what it promises, and its commands and healthchecks as processes with its environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from kombu import Connection
from needs import find, need
from processes import Proc, Processes, wait_until
from servers import RabbitServer, RedisServer

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


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of the file, merged, as Compose sees them."""
    return unescaped(yaml.safe_load(COMPOSE.read_text()))["services"]


def command_of(service: dict[str, Any]) -> list[str]:
    """What Docker runs: Compose splits a text as a shell would, and starts no shell."""
    return shlex.split(service["command"])


def megabytes(size: str) -> int:
    assert size.endswith("m"), size
    return int(size[:-1])


def test_what_it_says(services: dict[str, Any]) -> None:
    """Redis keeps its claims over a restart and evicts none, and refuses writes before its container lacks memory.

    All run in so much memory, with so many processes, on a root that is read-only, without a right and not as root. The
    password stands in the file: no port is published. Images are built here, of what is there, or have a version.
    """
    command = command_of(services["redis"])
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert (options["--appendonly"], options["--maxmemory-policy"]) == ("yes", "noeviction")
    assert 2 * megabytes(options["--maxmemory"].removesuffix("b")) < megabytes(services["redis"]["mem_limit"])
    (volume,) = services["redis"]["volumes"]
    assert volume.endswith(":/data")
    image = re.findall(r"^(\w+) (.*)$", services["beat-1"]["build"]["dockerfile_inline"], re.MULTILINE)
    assert all((ROOT / path).exists() for word, paths in image if word == "COPY" for path in paths.split()[:-1])
    for name, service in services.items():
        assert not {"ports", "network_mode"} & service.keys(), name
        assert name in BEATS + WORKERS or re.fullmatch(r"(redis|rabbitmq):\d+\.\d+[\w.-]*", service["image"]), name
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert megabytes(service["mem_limit"]) >= 256, name
        assert 64 <= service["pids_limit"] <= 4096, name
        assert service.get("user", dict(image)["USER"]) in ("redis", "rabbitmq", "quickstart"), name


def test_docker_compose_itself_accepts_it() -> None:
    """``docker compose config`` finds no fault, where there is that client."""
    command = [str(need("docker compose")), "compose", "-f", str(COMPOSE), "config", "-q"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


class Composed:
    """The file's services as processes of this machine, in a folder with the app."""

    def __init__(self, services: dict[str, Any], procs: Processes, store: RedisServer, broker: str, run: Path) -> None:
        self.services = services
        self.procs = procs
        self.servers = {"redis": urlsplit(store.url()).netloc, "rabbitmq": urlsplit(broker).netloc}
        self.run = run
        self.running: dict[str, Proc] = {}

    def here(self, name: str, value: str) -> str:
        """The text with the addresses and the folders of this machine."""
        url = urlsplit(value)
        if url.hostname in self.servers:
            return url._replace(netloc=self.servers[url.hostname]).geturl()
        port = self.servers["rabbitmq"].rpartition(":")[2]
        return value.replace(RUN, f"{self.run}/{name}").replace("/127.0.0.1/5672", f"/127.0.0.1/{port}")

    def start(self, command: list[str], name: str, label: str) -> Proc:
        (self.run / name).mkdir(exist_ok=True)
        given = self.services[name].get("environment", {})
        env = {key: self.here(name, value) for key, value in given.items()}
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        words = [self.here(name, word) for word in command]
        return self.procs.start(words, name=label, env=env, cwd=self.run, host=f"c0ffee-{name}")

    def probe(self, name: str) -> int:
        """Exit status of the service's healthcheck: of words after CMD, or of a text after CMD-SHELL by a shell."""
        how, *words = self.services[name]["healthcheck"]["test"]
        proc = self.start(words if how == "CMD" else ["/bin/sh", "-c", *words], name, f"probe of {name}")
        try:
            return proc.wait(60)
        finally:
            proc.end()

    def reports(self) -> Counter[str]:
        """How often each window was reported, by the logs of the workers."""
        logs = "\n".join(self.running[name].log for name in WORKERS)
        return Counter(re.findall(r"\breport for (\S+ \S+)$", logs, re.MULTILINE))


@pytest.fixture
def composed(
    services, procs, start_redis: Callable[..., RedisServer], rabbit_server: RabbitServer, tmp_path
) -> Iterator[Composed]:
    """Redis as the file starts it, and a queue of its name that nobody has left something in."""

    def delete_queue() -> None:
        with Connection(rabbit_server.url()) as connection:
            channel: Any = connection.default_channel
            channel.queue_delete("celery")

    delete_queue()
    shutil.copy(ROOT / "examples" / "quickstart" / "proj.py", tmp_path)
    store = start_redis("redis" if find("redis-server") else None, args=command_of(services["redis"])[1:])
    yield Composed(services, procs, store, rabbit_server.url(), tmp_path)
    procs.end()
    delete_queue()


@pytest.mark.long
@pytest.mark.xdist_group("rabbitmq")
def test_its_commands_run_as_processes(composed: Composed) -> None:
    """Every window is executed once, by beats and workers that are healthy, also when a beat has died.

    The dead beat's healthcheck fails in the end, the other's doesn't. Told to stop, all end.
    """
    for name in BEATS + WORKERS:
        composed.running[name] = composed.start(command_of(composed.services[name]), name, name)
    for name in ["rabbitmq", *composed.running]:
        wait_until(lambda name=name: composed.probe(name) == 0, f"{name} is healthy", 180, every=1)
    wait_until(composed.reports, "a window is reported", 120)
    composed.running.pop("beat-1").kill()
    before = len(composed.reports())
    wait_until(lambda: len(composed.reports()) >= before + 2, "two more reports", 120)
    wait_until(lambda: composed.probe("beat-1"), "the dead beat's healthcheck fails", 120)
    assert composed.probe("beat-2") == 0
    for proc in composed.running.values():
        proc.terminate()
    assert {name: proc.wait(60) for name, proc in composed.running.items()} == dict.fromkeys(composed.running, 0)
    assert set(composed.reports().values()) == {1}
