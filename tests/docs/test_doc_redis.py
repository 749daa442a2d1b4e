"""docs/redis.md: its users have the rights that they need, and its master, replica and sentinels run by its files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import the_block
from doc_runner import start_with
from processes import Processes, wait_until
from servers import RedisServer, SentinelServer

pytestmark = pytest.mark.long

PAGE = "docs/redis.md"


class Watched:
    """A master and its replica by redis.conf and replica.conf, three sentinels by sentinel.conf."""

    def __init__(self, folder: Path) -> None:
        self.servers: list[RedisServer] = []
        (folder / "redis.conf").write_text(the_block(PAGE, "redis.conf").text)
        (password,) = re.findall(r"^requirepass (\S+)$", the_block(PAGE, "redis.conf").text, re.MULTILINE)
        self.password = password
        self.master = self._keep(start_with(folder / "redis.conf"))
        replica = the_block(PAGE, "replica.conf").text.replace(" 6379", f" {self.master.port}")
        (folder / "replica.conf").write_text(replica)
        more = ("--include", str(folder / "replica.conf"), "--repl-diskless-sync-delay", "0")
        self.replica = self._keep(start_with(folder / "redis.conf", *more))
        self.sentinels = [self._start_sentinel() for _ in range(3)]

    def _keep(self, server: RedisServer) -> RedisServer:
        self.servers.append(server)
        return server

    def _start_sentinel(self) -> RedisServer:
        sentinel = SentinelServer(self.master.binary)
        conf = the_block(PAGE, "sentinel.conf").text
        assert conf.count("port 26379\n") == conf.count(" 6379 ") == 1
        self._keep(sentinel)
        conf = conf.replace("port 26379\n", "port {port}\nbind 127.0.0.1\n")
        sentinel.watch(conf.replace(" 6379 ", f" {self.master.port} "))
        return sentinel

    def all_is_well(self) -> bool:
        """Whether the replica follows, and each sentinel sees it and the two others."""
        with self.master.client(password=self.password) as client:
            if client.info("replication")["connected_slaves"] != 1:
                return False
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                state = client.sentinel_master("mymaster")
                if state["num-slaves"] != 1 or state["num-other-sentinels"] != 2 or not state["is_master"]:
                    return False
        return True


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched.__new__(Watched)
    try:
        watched.__init__(tmp_path)
        yield watched
    finally:
        for server in watched.servers:
            server.__exit__()


def test_sentinel(watched: Watched, procs: Processes, tmp_path: Path) -> None:
    """A beat and a worker of the page's app find the master through its sentinels, and wait for its replica."""
    wait_until(watched.all_is_well, "the sentinels see all well", 90)
    text = the_block(PAGE, "proj.py", 1).text
    for port, sentinel in zip((26379, 26380, 26381), watched.sentinels, strict=True):
        assert text.count(f"@localhost:{port}") == 1
        text = text.replace(f"@localhost:{port}", f"@127.0.0.1:{sentinel.port}")
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "proj.py").write_text(text)

    def start(command: str, ready: str):
        words = [sys.executable, "-m", "celery", "-A", "proj", command, "-l", "info"]
        return procs.start(words, name=command, env={"PYTHONPATH": str(folder)}, ready=ready)

    worker = start("worker", r" ready\.$").wait_ready()
    beat = start("beat", "beat: Starting").wait_ready()
    worker.wait_log(r"Task proj\.tick\[\S+\] succeeded", 60)
    assert "can't be used" not in beat.log
    with watched.replica.client(password=watched.password) as client:
        assert client.exists("once:beats"), "the replica has what the master has"
    for proc in (beat, worker):
        proc.terminate()
        assert proc.wait(60) == 0
        assert "Traceback" not in proc.log
        assert watched.password not in proc.log


LOOKS = {"status": [], "history": ["tick"], "audit": [], "doctor": [], "ping": [], "orders": [], "metrics": []}
#: For each right of the page's a command that can't do without.
NEEDED = {"+lrange": "history", "+info": "doctor", "+hscan": "status", "+hlen": "metrics"}


def test_commands_that_look(procs: Processes, tmp_path: Path, beat_by_acl: RedisServer) -> None:
    """As the page's user each of them works; without any one of these rights, one of them says what it may not."""

    def refused(*names: str) -> list[str]:
        found = {}
        for name in names:
            command = [sys.executable, "-m", "celery", "-A", "proj", "once", name, *LOOKS[name]]
            found[name] = procs.start(command, name=name, env={"PYTHONPATH": str(tmp_path)})
        return [name for name in names if found[name].wait(60) not in (0, 1) or "permission" in found[name].log.lower()]

    with beat_by_acl.client(password="change-me-admin") as client:
        assert refused(*LOOKS) == []
        for right, name in NEEDED.items():
            client.execute_command("ACL", "SETUSER", "once", *NEEDED, right.replace("+", "-"))
            assert refused(name) == [name], f"{right} isn't needed"


@pytest.fixture
def beat_by_acl(procs: Processes, tmp_path: Path) -> Iterator[RedisServer]:
    """The page's server with a beat and a worker of the page's first app, of which a window is done."""
    (tmp_path / "redis.conf").write_text(the_block(PAGE, "redis.conf").text)
    with start_with(tmp_path / "redis.conf") as server:
        text = the_block(PAGE, "proj.py").text
        assert text.count('@localhost"') == 2
        (tmp_path / "proj.py").write_text(text.replace('@localhost"', f'@127.0.0.1:{server.port}"'))
        env = {"PYTHONPATH": str(tmp_path)}
        worker = procs.start_worker("proj", env=env).wait_ready()
        procs.start_beat("proj", env=env).wait_ready()
        worker.wait_log("succeeded", 60)
        yield server
        procs.end()
