"""Claims in bursts, and executions, through the store alone: many more a second than real beats have due.

``python -m failover.driver claim`` does what a beat does: it claims the next window of all its entries in one
pipeline, publishes what it was told is its own, and takes what is overdue. ``execute`` does what a worker does.
Windows lie in the past, a second apart, so that there is always a next one. The broker is a list of a plain Redis.
Each writes to the ledger what it was told.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import redis
from failover.told import tell
from ledger import Ledger

from celery_once_beat.errors import OnceError, StoreUnavailableError, UncertainWriteError
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.settings import Settings
from celery_once_beat.store import Ending, Store
from celery_once_beat.store import model as r
from celery_once_beat.windows import WindowKey, format_instant, parse_instant

ENTRIES = [f"driven-{number}" for number in range(30)]
JOBS = "driven-jobs"
#: Messages that may wait until no more is claimed.
_MOST_JOBS = 200
#: Seconds for which a message may wait for a worker.
_START_TIMEOUT = 5.0
_MARK = "driven"
_LEASE = 15.0


class Driver:
    """What both kinds of process have."""

    def __init__(self) -> None:
        given = json.loads(os.environ["DRIVER"])
        self.ledger = Ledger(given["ledger"])
        self.store = Store(Settings(**given["settings"]))
        self.broker = redis.Redis.from_url(given["broker"], decode_responses=True)
        self.born = parse_instant(given["born"])
        #: Seconds between two bursts.
        self.pause: float = given["pause"]
        self.random = random.Random(f"{given['seed']} {given['name']}")
        self.name = f"{given['name']}:{os.getpid()}"


class Claimer(Driver):
    """One beat."""

    def __init__(self) -> None:
        super().__init__()
        self.cursors: dict[str, datetime] = {}
        self.looked = 0.0

    def run(self) -> None:
        while True:
            try:
                if time.monotonic() - self.looked > self.store.settings.recovery_interval:
                    self._recover()
                    self.looked = time.monotonic()
                self._load()
                if self.broker.llen(JOBS) < _MOST_JOBS:
                    self._claim()
            except StoreUnavailableError:
                self.cursors.clear()  # as a beat does: how far it is, is for the store to say
                self.looked = 0.0
                time.sleep(0.1)
            time.sleep(self.pause)

    def _load(self) -> None:
        missing = [entry for entry in ENTRIES if entry not in self.cursors]
        requests = [
            r.LoadRequest(
                entry,
                self.name,
                _MARK,
                86_400.0,
                EntryPolicy(max_attempts=1000),
                known=self.born,
            )
            for entry in missing
        ]
        for entry, reply in zip(missing, self.store.load_many(requests) if requests else (), strict=True):
            if isinstance(reply, r.Loaded) and not reply.pause:
                self.cursors[entry] = reply.cursor

    def _claim(self) -> None:
        entries = self.random.sample(sorted(self.cursors), len(self.cursors))
        requests = [
            r.ClaimRequest(WindowKey(entry, self.cursors[entry] + timedelta(seconds=1)), self.cursors[entry], _MARK)
            for entry in entries
        ]
        if not requests:
            return
        away = None
        jobs = []
        for request, reply in zip(requests, self.store.claim_many(self.name, requests), strict=True):
            tell(self.ledger, "claim", request.window, reply)
            if isinstance(reply, r.Claimed):
                self.cursors[request.window.entry] = request.window.start
                jobs.append((request.window, reply.revision))
            elif isinstance(reply, r.Moved):
                self.cursors[request.window.entry] = reply.cursor
            elif isinstance(reply, StoreUnavailableError):
                away = reply
            else:
                self.cursors.pop(request.window.entry)
        self._publish(jobs)
        if away is not None:
            raise away

    def _publish(self, jobs: list[tuple[WindowKey, int]]) -> None:
        if jobs:
            self.broker.lpush(JOBS, *(json.dumps([w.entry, format_instant(w.start)]) for w, _ in jobs))
            self.store.confirm_many([r.Confirmation(window, turn, 1, _START_TIMEOUT) for window, turn in jobs])

    def _recover(self) -> None:
        found = self.store.overdue(self.name, datetime.now(timezone.utc), 100)
        windows = [
            window
            for shard in found.shards
            if not isinstance(shard, OnceError)
            for window in shard
            if window is not None and window.entry in ENTRIES
        ]
        if not windows:
            return
        jobs = []
        replies = self.store.take_many(self.name, [(window, _MARK) for window in windows])
        for window, reply in zip(windows, replies, strict=True):
            tell(self.ledger, "take", window, reply)
            if isinstance(reply, r.Taken):
                jobs.append((window, reply.revision))
        self._publish(jobs)


class Executor(Driver):
    """One worker."""

    def run(self) -> None:
        while True:
            job = self.broker.brpop(JOBS, timeout=1)
            if job is not None:
                entry, start = json.loads(job[1])
                self._execute(WindowKey(entry, parse_instant(start)))

    def _execute(self, window: WindowKey) -> None:
        owner = f"{self.name}:{uuid.uuid4().hex[:8]}"
        begun = self._patiently("begin", window, lambda: self.store.begin(window, owner, _LEASE))
        if not isinstance(begun, r.Begun):
            return
        fields = {"entry": window.entry, "start": format_instant(window.start), "fence": begun.fence}
        self.ledger.write("start", **fields)
        self.ledger.write("finish", **fields)
        done = self._patiently("finish", window, lambda: self.store.finish(Ending(window, owner, begun.fence, "done")))
        if isinstance(done, r.Finished):
            self.ledger.write("recorded", **fields)

    def _patiently(self, verb: str, window: WindowKey, send: Any) -> Any:
        """As a worker does; gives up after a lease, and leaves the window to recovery."""
        give_up = time.monotonic() + _LEASE
        while True:
            try:
                reply = send()
            except (StoreUnavailableError, UncertainWriteError) as exc:
                tell(self.ledger, verb, window, exc)
                if time.monotonic() > give_up:
                    return None
                time.sleep(0.1)
            else:
                tell(self.ledger, verb, window, reply)
                return reply


if __name__ == "__main__":
    {"claim": Claimer, "execute": Executor}[sys.argv[1]]().run()
