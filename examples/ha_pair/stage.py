"""Where the demo plays: a server, beats and workers that are started, watched and killed."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from celery.schedules import maybe_schedule
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import RedisError

from celery_once_beat.errors import StoreUnavailableError
from celery_once_beat.settings import Settings
from celery_once_beat.store.account import EntryAccount
from celery_once_beat.store.clients import connect
from celery_once_beat.store.verbs import Store
from celery_once_beat.windows import Window, encode_headers, next_start, parse_instant, task_id

from . import server
from .app import app
from .ledger import Event, Ledger, WindowKey
from .processes import Process
from .telling import Act, View
from .verdict import Copy, Kill

__all__ = ("BEATS", "SCHEDULES", "WORKERS", "FailedError", "Stage", "StoppedError", "or_after")

BEATS, WORKERS = ("beat-1", "beat-2"), ("worker-1", "worker-2")
SCHEDULES: dict[str, Any] = {name: maybe_schedule(entry["schedule"]) for name, entry in app.conf.beat_schedule.items()}
REPOSITORY = Path(__file__).resolve().parents[2]
T = TypeVar("T")


class StoppedError(Exception):
    """Somebody wants the demo to end."""


class FailedError(Exception):
    """The demo can't go on; says why."""


class Stage:
    """The processes of one run, and what has been seen of them. Their files go to ``directory``."""

    def __init__(self, directory: Path, view: View) -> None:
        self.directory = directory
        self.ledger = Ledger(directory / "ledger.jsonl")
        self.events: list[Event] = []
        self.kills: list[Kill] = []
        self.copies: list[Copy] = []
        self.interrupted = False
        #: Where each entry's windows begin to be owed.
        self.born: dict[str, datetime] = {}
        self._view = view
        self._started: list[Process] = []
        self._expected: dict[str, Process] = {}
        self._url = ""
        self._answered = False
        # Also on a server that others use, keys and queues are the demo's own.
        self._prefix = f"ha-pair-{uuid.uuid4().hex[:12]}:"
        self._settings = Settings()

    def tell(self, kind: str, text: str = "", who: str = "", window: WindowKey | None = None) -> None:
        """Let the view know what is done, now."""
        self._view.tell(Act(kind, time.time(), text, who, window))

    def until(self, predicate: Callable[[], T | None], what: str, timeout: float = 30.0) -> T:
        """Watch until the predicate's value is true, and return it. The demo waits nowhere else.

        Raises StoppedError, and FailedError if a process ended by itself, or with ``what`` after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            if self.interrupted:
                raise StoppedError
            for event in self.ledger.news():
                self.events.append(event)
                self._view.tell(event)
            self._view.refresh()
            for process in self._expected.values():
                code = process.exit_code()
                if code is not None:
                    raise FailedError(f"{process.name} ended by itself, with status {code}")
            value = predicate()
            if value:
                return value
            if time.monotonic() > deadline:
                raise FailedError(f"waited {timeout:g} s in vain for {what}")
            time.sleep(0.02)

    # -- starting ---------------------------------------------------------------------------------------------

    def open_server(self) -> None:
        """Start a server, or find the one that the user names; returns once it answers."""
        url = server.given()
        if url is None:
            command, url = server.embedded()
            self._start("server", command)
            self.tell("told", f"{Path(command[0]).name} on {url.removeprefix('redis://').removesuffix('/0')}")
        else:
            self.tell("told", "the server of ONCE_BEAT_REDIS_URL")  # unnamed: a recording may be shown to others
        self._url = url
        self._settings = Settings(redis_url=url, key_prefix=self._prefix + "once:")
        self._store = Store(self._settings)
        self.until(self._server_answers, f"an answer of {maybe_sanitize_url(url)}", 10.0)
        self._answered = True

    def start_all(self) -> None:
        """Start the workers, then the beats; returns once all run and every entry is in the store."""
        paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.directory),  # a killed worker leaves its temporary files
            "HA_PAIR_URL": self._url,
            "HA_PAIR_PREFIX": self._prefix,
            "HA_PAIR_LEDGER": str(self.ledger.path),
        }
        celery = [sys.executable, "-m", "celery", "-A", "examples.ha_pair.app"]
        for name in WORKERS:
            command = [*celery, "worker", "-n", f"{name}@%h", "-c", "3", "-l", "INFO"]
            self._start(name, command, {**env, "HA_PAIR_NAME": name})
        for name in WORKERS:
            self._until_printed(name, r" ready\.$")
        for name in BEATS:
            command = [*celery, "beat", "-S", "once", "--pidfile=", "-l", "INFO"]
            self._start(name, command, {**env, "HA_PAIR_NAME": name})
        self.until(self._schedule_loaded, "the schedule in the store")
        for name in BEATS:
            self._until_printed(name, "beat: Starting")

    def _start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        process = Process(name, command, self.directory, {**os.environ, **(env or {})})
        self._started.append(process)
        self._expected[name] = process

    def _until_printed(self, name: str, sign: str) -> None:
        process = self._expected[name]
        self.until(lambda: process.printed(sign), f"{name} to print {sign!r}")
        self.tell("started", who=name)

    # -- what is done to them ---------------------------------------------------------------------------------

    def kill(self, name: str, remark: str) -> None:
        """SIGKILL to a process and all its children."""
        self._expected.pop(name).kill()
        self.kills.append(Kill(name, time.time()))
        self.tell("killed", f"KILLED {name} (SIGKILL) {remark}", name)

    def stop(self, name: str) -> None:
        """Ask a process to end, and wait until it has; raises FailedError if it did not end well."""
        process = self._expected.pop(name)
        process.terminate()
        self.until(lambda: process.exit_code() is not None, f"{name} to end after SIGTERM")
        if process.exit_code():
            raise FailedError(f"{name} ended with status {process.exit_code()} after SIGTERM")
        self.tell("stopped", f"{name} has stopped", name)

    def send_copy(self, key: WindowKey, remark: str) -> None:
        """Send the message of a window once more: the same task id, the same headers, the same queue."""
        start = parse_instant(key.start)
        window = Window(key.entry, start, next_start(SCHEDULES[key.entry], start))
        self.copies.append(Copy(key, time.time()))
        self.tell("copied", f"a copy of {key} is sent {remark}", window=key)
        options = {"global_keyprefix": self._prefix}
        try:
            with app.connection_for_write(self._url, transport_options=options) as connection:
                app.send_task(
                    app.conf.beat_schedule[key.entry]["task"],
                    task_id=task_id(self._settings.key_prefix, key.entry, start),
                    headers=encode_headers(window),
                    connection=connection,
                )
        except OperationalError as exc:
            raise FailedError(f"the copy of {key} couldn't be sent: {exc}") from exc

    def end(self) -> None:
        """End every process, whatever its state; leave no key on a server that isn't the demo's."""
        for process in reversed(self._started):  # the server last
            process.kill()
        if server.given() and self._answered:
            with contextlib.suppress(RedisError):  # it may be gone meanwhile
                _delete_keys(self._url, self._prefix)

    # -- what the store knows ---------------------------------------------------------------------------------

    def accounts(self) -> dict[str, EntryAccount | None]:
        """The store's account of each entry, None where it has none."""
        return {name: self._store.account(name) for name in SCHEDULES}

    def account(self, name: str) -> EntryAccount:
        """The store's account of the entry; raises FailedError if it has none."""
        account = self.accounts()[name]
        if account is None:
            raise FailedError(f"the store knows nothing of {name} any more")
        return account

    def _server_answers(self) -> bool:
        try:
            self.accounts()
        except StoreUnavailableError:
            return False
        return True

    def _schedule_loaded(self) -> bool:
        # Noted now: a store that forgot it later would show.
        for name, account in self.accounts().items():
            if account is not None:
                self.born.setdefault(name, account.born)
        return len(self.born) == len(SCHEDULES)


def or_after(seconds: float, predicate: Callable[[], bool]) -> Callable[[], bool]:
    """True once the predicate is, or after so many seconds: then the verdict says what is amiss."""
    deadline = time.monotonic() + seconds
    return lambda: predicate() or time.monotonic() > deadline


def _delete_keys(url: str, prefix: str) -> None:
    client = connect(Settings(redis_url=url))
    for key in client.scan_iter(match=prefix + "*", count=1000):
        client.delete(key)
    client.close()
