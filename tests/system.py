"""Beats, workers and commands of one app over one store and one broker, and what store and ledger know of them.

Every test that starts Celery starts it here: :class:`System`, or one of its kinds with an app of its own.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from celery.schedules import schedule
from crons import cron
from kombu import Connection
from ledger import Ledger
from processes import Proc, Processes, wait_until

from celery_once_beat.rules import count_starts
from celery_once_beat.schedules import read_schedule
from celery_once_beat.settings import Settings
from celery_once_beat.store import SHARDS, EntryAccount, Store
from celery_once_beat.windows import format_instant, parse_instant, starts_after

#: Settings by which nothing is overdue, and no copy is sent, because the machine is slow.
SLOWLY = {
    "once_beat_start_timeout": 600.0,
    "once_beat_claim_lease": 20.0,
    "once_beat_publish_timeout": 20.0,
    "once_beat_lease": 60.0,
}
EVERY_SECOND = {"tick": {"task": "apps.once_app.work", "every": 1.0}}


def rare(every: float = 20.0) -> dict[str, Any]:
    """An interval with one window a few seconds from now, and no other while a test acts on that one.

    A beat that starts too late begins with the next one: wait for longer than ``every``.
    """
    return {"every": every, "anchor": format_instant(datetime.now(timezone.utc) + timedelta(seconds=5))}


def once_soon() -> dict[str, Any]:
    """An interval with one window soon, however slowly a beat starts, and no other within a test."""
    return {"every": 7 * 86_400.0, "anchor": format_instant(datetime.now(timezone.utc) + timedelta(seconds=12))}


class System:
    """Any number of beats and workers with the same entries and settings."""

    app = "apps.once_app"
    scheduler = "once"
    #: A command that runs theirs, as ``ddtrace-run``.
    run_by: Sequence[str] = ()

    def __init__(self, procs: Processes, ledger: Ledger, store_url: str, directory: Path) -> None:
        self.procs = procs
        self.ledger = ledger
        self.store_url = store_url
        self.broker_url = store_url
        self.directory = directory
        self.marker = directory / "kill-marker"
        self.queue = f"once-{uuid.uuid4().hex[:8]}"
        self.entries: dict[str, Any] = EVERY_SECOND
        self.settings: dict[str, Any] = {}
        self.task: dict[str, Any] = {}
        self.kill_point = ""
        self.result_url: str | None = None
        self.store = Store(Settings(redis_url=store_url))
        self.check_law = True

    def use_store(self, store: Any) -> Any:
        """Coordinate through another server than the one that is the broker; returns what is given, it or its URL."""
        self.store.close()
        self.store_url = store if isinstance(store, str) else store.url()
        self.store = Store(Settings(redis_url=self.store_url))
        return store

    def env(self, **more: Any) -> dict[str, str]:
        env = {
            "BROKER_URL": self.broker_url,
            "STORE_URL": self.store_url,
            "QUEUE": self.queue,
            "LEDGER": str(self.ledger.path),
            "ENTRIES": json.dumps(more.pop("entries", self.entries)),
            "SETTINGS": json.dumps({**self.settings, **more.pop("settings", {})}),
            "TASK": json.dumps(self.task),
            "KILL_POINT": more.pop("kill_point", self.kill_point),
            "KILL_MARKER": str(self.marker),
            **more,
        }
        if self.result_url:
            env["RESULT_URL"] = self.result_url
        return env

    def beat(
        self, name: str = "beat", faketime: Any = None, scheduler: str = "", loglevel: str = "INFO", **env: Any
    ) -> Proc:
        return self.procs.start_beat(
            self.app, name=name, env=self.env(**env), scheduler=scheduler or self.scheduler, faketime=faketime,
            loglevel=loglevel, run_by=self.run_by,
        )  # fmt: skip

    def worker(self, name: str = "worker", *, env: Mapping[str, Any] | None = None, **options: Any) -> Proc:
        options.setdefault("concurrency", 1)
        return self.procs.start_worker(self.app, name=name, env=self.env(**(env or {})), run_by=self.run_by, **options)

    def celery(self, *words: str, name: str = "", **env: Any) -> Proc:
        """Start another command for the app: ``celery("once", "ping")``."""
        command = [sys.executable, "-m", "celery", "-A", self.app, *words]
        return self.procs.start(command, name=name or words[-1], env=self.env(**env))

    def once(self, *words: str, exit_code: int = 0, env: Mapping[str, Any] | None = None) -> str:
        """Run a command of ``celery once`` to its end; returns what it printed."""
        done = self.celery("once", *words, **(env or {}))
        assert done.wait(120) == exit_code, done.log
        return done.log

    def status(self, entry: str = "tick") -> dict[str, Any]:
        """What ``status`` says, and of one entry: ``entry``, and in one line its ``attention``."""
        asked = self.celery("once", "status", "--json")
        assert asked.wait(120) in (0, 1), "1 where no beat lives"
        report = json.loads(asked.log)
        found = next(each for each in report["entries"] if each["entry"] == entry)
        return {**report, "entry": found, "attention": "; ".join(found["attention"])}

    def pair(self, **worker: Any) -> tuple[list[Proc], list[Proc]]:
        """Two beats and two workers, all ready."""
        workers = [self.worker(f"worker{n}", **worker) for n in (1, 2)]
        for proc in workers:
            proc.wait_ready()
        beats = [self.beat(f"beat{n}") for n in (1, 2)]
        for proc in beats:
            proc.wait_ready()
        return beats, workers

    def count_as_gone(self, beat: Proc) -> None:
        """Let the store take a beat that is dead or stands still for gone, as it does after 15 seconds."""
        with self.client() as client:
            (name,) = (name for name in client.zrange("once:beats", 0, -1) if f":{beat.pid}:".encode() in name)
            client.zadd("once:beats", {name: 0}, xx=True)
            for shard in range(SHARDS):
                client.zrem(f"once:{{{shard}}}:beats", name)

    def move_deadlines(self, seconds: float) -> None:
        """Move the deadline of each open window."""
        with self.client() as client:
            for key in client.scan_iter("once:{*}:open"):
                for member in client.zrange(key, 0, -1):
                    client.zincrby(key, seconds * 1000, member)

    # -- what happened ----------------------------------------------------------------------------------------

    def account(self, entry: str = "tick") -> EntryAccount:
        account = self.store.account(entry)
        assert account is not None, f"the store doesn't know {entry!r}"
        return account

    def outcomes(self, entry: str = "tick") -> dict[str, int]:
        account = self.store.account(entry)
        return dict(account.counts) if account else {}

    def recorded(self, entry: str = "tick") -> Counter[str]:
        """How often each window's success was recorded."""
        return Counter(event["start"] for event in self.ledger.read("recorded", entry=entry))

    def wait_done(self, number: int, entry: str = "tick", timeout: float = 60) -> None:
        """Wait until ``number`` more windows are recorded as done."""
        before = len(self.recorded(entry))
        wait_until(lambda: len(self.recorded(entry)) >= before + number, f"{number} more of {entry} done", timeout)

    def wait_fired(self, timeout: float = 60) -> Proc:
        """Wait until a process stood at the kill point; returns which."""
        group = int(wait_until(lambda: self.marker.exists() and self.marker.read_text(), "kill point", timeout))
        return next(proc for proc in self.procs if proc.pid == group)

    def killed_in(self) -> str:
        """Wait until a worker stood at the kill point in a body; returns that window's start."""
        worker = self.wait_fired()
        # Another one may be in a body too.
        begun = [event["start"] for event in self.ledger.read("start") if event["worker"].startswith(f"{worker.name}@")]
        return begun[-1]

    def settle(self, beats: list[Proc], *entries: str, timeout: float = 60) -> None:
        """Stop claiming these, "tick" without any, and wait until every window of theirs has its outcome."""
        for beat in beats[1:]:
            beat.stop()
        for entry in entries or ("tick",):
            self.store.set_paused(entry, paused=True)
        for entry in entries or ("tick",):
            wait_until(lambda of=entry: not self.account(of).open, f"every window of {entry} has its outcome", timeout)
        for beat in beats[:1]:
            beat.stop()

    def starts(self, entry: str = "tick") -> list[str]:
        """The windows that the schedule defines between the first cursor and the present one."""
        account = self.account(entry)
        starts = starts_after(self.schedule(entry), account.since, account.cursor, anchor=self.anchor(entry))
        return [format_instant(start) for start in starts]

    def schedule(self, entry: str) -> Any:
        definition = self.entries[entry]
        if "cron" in definition:
            return cron(definition["cron"])
        if "stored" in definition:
            return read_schedule(definition["stored"])
        return schedule(timedelta(seconds=definition["every"]))

    def anchor(self, entry: str) -> datetime | None:
        text = self.entries[entry].get("anchor")
        return parse_instant(text) if text else None

    def check_each_once(self, entry: str = "tick", *, body_again: int = 0) -> None:
        """Each window that the schedule defines is done, recorded once, and its body came to its end once.

        ``body_again``: how many bodies may have ended twice, or without learning that their end is recorded. Their
        process or their store died or slept after the last line.
        """
        starts = self.starts(entry)
        assert starts, "no window at all"
        assert self.outcomes(entry) == {"done": len(starts)}
        # One that died between its finish and its signal couldn't say that it was recorded; one that lives may still
        # be about to.
        most = max(1 if self.kill_point.startswith("worker.finished") else 0, body_again)
        wait_until(lambda: len(set(starts) - set(self.recorded(entry))) <= most, f"each of {entry} is recorded", 60)
        recorded = self.recorded(entry)
        assert set(recorded) <= set(starts)
        assert max(recorded.values()) == 1, {start: n for start, n in recorded.items() if n > 1}
        ended = self.ledger.finishes(entry)
        assert {event["start"] for event in self.ledger.read(entry=entry) if "start" in event} == set(starts)
        assert set(ended) == set(starts)
        assert sum(ended.values()) - len(ended) <= body_again, ended

    def latest_early(self) -> float:
        """The most seconds by which a body began before its window's start, by the machine's own clock."""
        epoch = time.monotonic() - time.time()
        starts = self.ledger.read("start")
        return max(parse_instant(event["start"]).timestamp() - (event["mono"] - epoch) for event in starts)

    def check_conservation(self) -> None:
        """The law: windows that each schedule defines = outcomes + open + untracked."""
        for entry in self.entries:
            account = self.store.account(entry)
            if account is not None:
                when, anchor = self.schedule(entry), self.anchor(entry)
                assert account.accounted == count_starts(when, account.since, account.cursor, anchor=anchor), account

    @contextmanager
    def procs_paused(self, *paused: Proc) -> Iterator[None]:
        """Freeze processes for the length of a ``with`` block."""
        for proc in paused:
            proc.pause()
        yield
        for proc in paused:
            proc.resume()

    def purge(self) -> int:
        """Lose what waits in the queue; returns how many messages that were."""
        with Connection(self.broker_url) as connection:
            return connection.default_channel.queue_purge(self.queue) or 0

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """A client of the store's server."""
        client = redis.Redis.from_url(self.store_url)
        try:
            yield client
        finally:
            client.close()

    @property
    def _queue_server(self) -> Any:
        return redis.Redis.from_url(self.broker_url)

    def waiting(self) -> int:
        """How many messages wait in the queue (Redis broker)."""
        with self._queue_server as client:
            return client.llen(self.queue)

    def queued(self) -> list[bytes]:
        """All messages that wait, the oldest first (Redis broker)."""
        with self._queue_server as client:
            return client.lrange(self.queue, 0, -1)[::-1]

    def put(self, message: bytes) -> None:
        """Deliver a message once more, as a broker that forgot that it was acknowledged."""
        with self._queue_server as client:
            client.lpush(self.queue, message)

    def copy_waiting(self) -> None:
        """Deliver each message that waits once more."""
        for message in self.queued():
            self.put(message)

    def send(self, task: str, headers: dict[str, Any]) -> None:
        """Publish a message by hand."""
        with Celery(broker=self.broker_url, set_as_current=False) as app:
            app.send_task(task, queue=self.queue, headers=headers)

    def refused(self, entry: str = "tick") -> list[dict[str, Any]]:
        return self.ledger.read("refused", entry=entry)
