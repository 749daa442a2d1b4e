"""Every end of a task, each once with early and once with late acks, played by a real beat and real workers at once.

One beat, and a worker that is left alone: it gets all that touches no other task, and whatever comes again when its
first worker is gone. A worker of its own is there for each end that takes the whole worker with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from celery import Celery
from ledger import Ledger
from processes import Proc, Processes, environ, wait_until
from servers import RedisServer
from system import System

from celery_once_beat.store import shard_of
from celery_once_beat.windows import WindowKey, format_instant, task_id

#: Workers, each for the queue of its name: pool and number of bodies at a time.
WORKERS = {
    "calm": ("prefork", 6),
    "lossy": ("prefork", 8),
    "copied": ("prefork", 4),
    "killed": ("prefork", 2),
    "warm": ("prefork", 2),
    "twice": ("prefork", 2),
    "cold": ("prefork", 2),
    "soft": ("prefork", 4),
    "threads": ("threads", 8),
    "gevent": ("gevent", 8),
    "solo-early": ("solo", 1),
    "solo-late": ("solo", 1),
    "threads-cold": ("threads", 2),
}
#: Those of them that end.
COLD = ("cold", "solo-early", "solo-late", "threads-cold")
SHUT_DOWN = ("killed", "warm", "twice", "soft", *COLD)
#: For the tests' sake short: Celery waits 0.5 s instead of 10 s for a lost child's result, and a lease is 8 s long, so
#: that none is lost because the machine is busy. Nothing is sent twice because the broker is slow.
SETTINGS = {
    "worker_lost_wait": 0.5, "broker_connection_timeout": 20.0, "once_beat_lease": 8.0,
    "once_beat_claim_lease": 20.0, "once_beat_publish_timeout": 20.0, "once_beat_start_timeout": 60.0,
}  # fmt: skip
SETTINGS_OF = {"calm": {"once_beat_start_timeout": 8.0}, "soft": {"worker_soft_shutdown_timeout": 8.0}}
#: A copy of these comes before their lease is over; that ends once the copy is refused, however late Celery sends it.
COPIES = ("child killed, rejected/late", "child killed, retried/early")
ENV_OF = {"soft": {"REMAP_SIGTERM": "SIGQUIT"}}
_ASK = """
import json
from apps.ends_app import app
print(json.dumps({name: entry["options"]["queue"] for name, entry in app.conf.beat_schedule.items()}))
"""


class Play:
    """What was done, and what came of it; entries are named as in ``apps.ends_app``."""

    def __init__(self, server: RedisServer, procs: Processes, directory: Path) -> None:
        self.ledger = Ledger(directory / "ledger.jsonl")
        self.system = System(procs, self.ledger, server.url(), directory)
        self.system.app, self.system.queue, self.system.entries = "apps.ends_app", "calm", {}
        self.system.settings = SETTINGS
        self.system.result_url = server.url()
        self.app = Celery("ends", broker=server.url(), backend=server.url(), set_as_current=False)
        self.workers: dict[str, Proc] = {}
        # Asked of a process of its own: here its tasks, receivers and patches would be those of the next tests too.
        asked = subprocess.run(
            [sys.executable, "-c", _ASK], env=environ(self.system.env()), stdout=subprocess.PIPE, check=True, text=True
        )
        #: Which worker gets each first; one of a pool of one body has one kind of acks.
        self.entries: dict[str, str] = json.loads(asked.stdout)
        self.ends = {entry.rpartition("/")[0] for entry in self.entries}

    def close(self) -> None:
        self.system.store.close()
        self.app.close()

    # -- what is done -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """All of it; returns once every window has its outcome, or can't be waited for any longer."""
        for name in set(self.entries.values()) & set(WORKERS):
            pool, concurrency = WORKERS[name]
            self.workers[name] = self.system.worker(
                name, pool=pool, concurrency=concurrency, extra_args=["-Q", name],
                env={"settings": SETTINGS_OF.get(name, {}), **ENV_OF.get(name, {})},
            )  # fmt: skip
        for worker in self.workers.values():
            worker.wait_ready(120)
        self.system.beat()
        left = set(self.entries)
        wait_until(lambda: self._claimed(left), "each entry has one window claimed", 180)
        self._revoke("revoked")
        for end in ("terminated", "threads: terminated", "gevent: terminated"):
            self._wait_for(f"{end}/early", f"{end}/late")
            self._revoke(end, terminate=True)
        for pool in ("threads", "gevent"):
            self.ledger.write("told", worker=pool)
        self._shut_down()
        self._end_leases()
        self._wait_for_expiry()
        for queue in ("waiting", *self.workers):
            self.app.control.add_consumer(queue, destination=self._calm, reply=True, timeout=5, limit=1)
        with contextlib.suppress(AssertionError):  # which one it is, its own test says
            wait_until(lambda: not any(self.account(entry).open for entry in self.entries), "all are closed", 120)

    @property
    def _calm(self) -> list[str]:
        return [f"calm@{os.uname().nodename}"]

    def _claimed(self, left: set[str]) -> bool:
        for entry in sorted(left):
            account = self.system.store.account(entry)
            if account is not None and account.cursor > account.born:
                self.system.store.set_paused(entry, paused=True)
                left.discard(entry)
        return not left

    def _wait_for(self, *entries: str) -> None:
        wait_until(lambda: all(map(self.starts, entries)), f"these run: {entries}", 120)

    def _end_leases(self) -> None:
        """Of the children that were killed, whose message Celery sends again."""
        store, copies = self.system.store, [entry for entry in COPIES if entry in self.entries]
        with contextlib.suppress(AssertionError):  # their own test says what came instead
            wait_until(lambda: all(self.ledger.read("refused", entry=entry) for entry in copies), "are refused", 120)
        for end in {entry.partition("/")[0] for entry in copies}:
            for entry in (f"{end}/early", f"{end}/late"):
                self._wait_for(entry)
                for start in self.account(entry).open:
                    window, text = WindowKey(entry, start), format_instant(start)
                    with self.system.client() as client:
                        client.delete(store.keys.of_window(window, text)["run"])
                        client.zadd(store.keys.of_shard("open", shard_of(entry)), {f"{entry}@{text}": 0}, xx=True)

    def _wait_for_expiry(self) -> None:
        for entry in ("expired/early", "expired/late"):
            (published,) = wait_until(lambda: self.ledger.read("published", entry=entry), "it is published", 60)  # noqa: B023
            wait_until(lambda: time.time() > published["at"] + 1, "its message has expired", 60)  # noqa: B023

    def _revoke(self, end: str, **how: Any) -> None:
        ids = [self.id(f"{end}/{acks}") for acks in ("early", "late")]
        self.app.control.revoke(ids, reply=True, timeout=5, limit=len(self.workers), **how)

    def _shut_down(self) -> None:
        """Each worker that is to go, once all its bodies run."""
        going = {name: self.workers[name] for name in SHUT_DOWN if name in self.workers}
        for name in going:
            self._wait_for(*(entry for entry, worker in self.entries.items() if worker == name))
        going["killed"].kill()
        for name in COLD:
            going[name].signal(signal.SIGQUIT, main_only=True)
        self._tell("soft", signal.SIGTERM, "Initiating Soft Shutdown")
        self._tell("warm", signal.SIGTERM, "worker: Warm shutdown")
        self._tell("twice", signal.SIGTERM, "worker: Warm shutdown", again=True)
        for worker in going.values():
            worker.wait(60)
            worker.end()

    def _tell(self, name: str, number: int, line: str, *, again: bool = False) -> None:
        if name in self.workers:
            self.workers[name].signal(number, main_only=True)
            said = self.workers[name].wait_log(line).end()
            if again:
                self.workers[name].signal(number, main_only=True)
                self.workers[name].wait_log(line, since=said)
            self.ledger.write("told", worker=name)

    # -- what came of it --------------------------------------------------------------------------------------

    def account(self, entry: str) -> Any:
        return self.system.account(entry)

    def id(self, entry: str) -> str:
        return task_id("once:", entry, self.account(entry).cursor)

    def state(self, entry: str) -> str:
        """The state of the result, read anew."""
        return str(self.app.AsyncResult(self.id(entry)).state)

    def starts(self, entry: str) -> list[dict[str, Any]]:
        return self.ledger.read("start", entry=entry)
