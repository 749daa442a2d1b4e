"""Where a way is played: a server, a database and three nodes, real processes that stand for three machines."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from celery_once_beat.errors import OnceError
from celery_once_beat.settings import Settings
from celery_once_beat.store.clients import connect
from celery_once_beat.store.verbs import Store
from examples.ha_pair import server
from examples.ha_pair.processes import Process

from .ledger import Event, Ledger

__all__ = ("NODES", "FailedError", "Stage", "StoppedError")

NODES = ("node-1", "node-2", "node-3")
REPOSITORY = Path(__file__).resolve().parents[2]
T = TypeVar("T")


class StoppedError(Exception):
    """Somebody wants it to end."""


class FailedError(Exception):
    """It can't go on; says why."""


class Stage:
    """One method's nodes, and what has been seen of them. Their files go to ``directory``, which must be new.

    ``say`` is called with each thing that is done to them; nothing goes on once ``stopped`` is set.
    """

    def __init__(self, directory: Path, say: Callable[[str], None], stopped: threading.Event) -> None:
        directory.mkdir()
        self.events: list[Event] = []
        self.killed: list[str] = []
        self._say = say
        self._stopped = stopped
        self._directory = directory
        self._ledger = Ledger(directory / "ledger.jsonl")
        self._began = time.monotonic()
        self._started: list[Process] = []
        self._nodes: dict[str, Process] = {}
        self._url = ""

    def say(self, text: str) -> None:
        """Let people know what is done, now."""
        self._say(f"{time.monotonic() - self._began:7.1f} s  {text}")

    def until(self, predicate: Callable[[], T | None], what: str, timeout: float = 60.0) -> T:
        """Watch until the predicate's value is true, and return it. The story waits nowhere else.

        Raises StoppedError, and FailedError if a process ended by itself, or with ``what`` after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            if self._stopped.is_set():
                raise StoppedError
            self.events += self._ledger.news()
            for process in self._nodes.values():
                code = process.exit_code()
                if code is not None:
                    raise FailedError(f"{process.name} ended by itself, with status {code}")
            value = predicate()
            if value:
                return value
            if time.monotonic() > deadline:
                raise FailedError(f"waited {timeout:g} s in vain for {what}")
            time.sleep(0.03)

    # -- what there is ----------------------------------------------------------------------------------------

    def open_server(self) -> None:
        """Start a server; returns once it answers."""
        command, self._url = server.embedded()
        self._started.append(Process("server", command, self._directory, os.environ))
        self.until(self._server_answers, "the server to answer", 20.0)

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a node."""
        self._nodes[name] = self._python(name, command)

    def run(self, command: Sequence[str]) -> None:
        """Run a program as on a node, to its end; raises FailedError if it fails."""
        name = command[0].rpartition(".")[2]
        process = self._python(f"{name}-{len(self._started)}", command)
        self.until(lambda: process.exit_code() is not None, f"{' '.join(command)} to end")
        if process.exit_code():
            raise FailedError(f"{' '.join(command)} ended with status {process.exit_code()}")

    def _python(self, name: str, command: Sequence[str]) -> Process:
        paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self._directory),  # a killed worker leaves its temporary files
            "WAYS_NODE": name,
            "WAYS_URL": self._url,
            "WAYS_DATABASE": str(self._directory / "database"),
            "WAYS_LEDGER": str(self._directory / "ledger.jsonl"),
        }
        process = Process(name, [sys.executable, "-m", *command], self._directory, env)
        self._started.append(process)
        return process

    def until_printed(self, name: str, signs: Sequence[str]) -> None:
        """Wait until a node has printed each of these."""
        self.until(lambda: all(self._nodes[name].printed(sign) for sign in signs), f"{name} to print {signs}")

    def until_known(self, entries: Sequence[str]) -> None:
        """Wait until the entries are in the store: their windows count from then on."""
        with closing(Store(Settings(redis_url=self._url))) as store:
            self.until(lambda: all(store.account(entry) for entry in entries), f"{', '.join(entries)} in the store")

    def database(self) -> sqlite3.Connection:
        """A connection to the database of the nodes."""
        return sqlite3.connect(self._directory / "database", isolation_level=None, timeout=30)

    def keys(self, pattern: str) -> dict[str, int]:
        """The keys on the server that match, each with the seconds that it has to live, -1 where it never expires."""
        with closing(connect(Settings(redis_url=self._url))) as client:
            return {key: client.ttl(key) for key in client.scan_iter(match=pattern, count=1000)}

    # -- what is done to them ---------------------------------------------------------------------------------

    def pause(self, name: str) -> None:
        """Freeze a node (SIGSTOP)."""
        self._nodes[name].pause()

    def resume(self, name: str) -> None:
        """Let a node go on."""
        self._nodes[name].resume()

    def kill(self, name: str) -> None:
        """SIGKILL to a node and all its children."""
        self._nodes.pop(name).kill()
        self.killed.append(name)

    def end(self) -> None:
        """End every process, whatever its state."""
        for process in reversed(self._started):  # the server last
            process.kill()
        self._nodes.clear()

    def _server_answers(self) -> bool:
        try:
            with closing(Store(Settings(redis_url=self._url))) as store:
                store.account("none")
        except OnceError:
            return False
        return True
