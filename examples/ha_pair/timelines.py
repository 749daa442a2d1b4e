"""Timelines of real runs, for the docs: what happens when a beat dies, a worker dies, Redis fails over.

``python -m examples.ha_pair.timelines docs`` plays each on the demo's stage, and writes ``beat-dies.svg``,
``worker-dies.svg`` and ``failover.svg``. The processes of these runs have this module as their app.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from celery_once_beat.embedded import find_server
from celery_once_beat.settings import Settings
from celery_once_beat.signals import window_claimed
from celery_once_beat.store.verbs import Store
from celery_once_beat.windows import Window

from .app import app
from .ledger import Event
from .stage import BEATS, WORKERS, Stage
from .telling import Act
from .timeline import draw
from .verdict import Verdict

__all__ = ("app", "main")

MASTER, SENTINELS = "mymaster", 3
MIDDLE = 0.5, 1.0
#: Whoever claims a report while this file is there is killed before it publishes.
DEADLY = os.environ.get("HA_PAIR_DEADLY", "")
SENTINEL = f"""\
bind 127.0.0.1
sentinel monitor {MASTER} 127.0.0.1 {{}} 2
sentinel down-after-milliseconds {MASTER} 1000
sentinel failover-timeout {MASTER} 6000
"""

if os.environ.get("HA_PAIR_URL", "").startswith("sentinel:"):
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "master_name": MASTER}


@window_claimed.connect
def _die(window: Window, **_: Any) -> None:
    if DEADLY and window.entry == "report" and Path(DEADLY).exists():
        os.kill(os.getpid(), signal.SIGKILL)


class Recorder:
    """A view that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Act | Event] = []

    def tell(self, what: Act | Event) -> None:
        """Keep it."""
        self.told.append(what)

    def refresh(self) -> None:
        """Nothing is shown before the end."""

    open = close = refresh

    def conclude(self, verdict: Verdict) -> None:
        """There is none."""


class _Stage(Stage):
    """The demo's stage, on which a beat can be killed at its claim, and Redis can fail over."""

    def _start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        command = [word.replace("ha_pair.app", "ha_pair.timelines") for word in command]
        deadly = {"HA_PAIR_DEADLY": str(self.directory / "deadly")} if name == BEATS[0] else {}
        super()._start(name, command, {**(env or {}), **deadly})

    def kill_at_its_claim(self, name: str) -> None:
        """Kill a process between its next claim of a report and the publish."""
        process = self._expected.pop(name)
        (self.directory / "deadly").touch()
        self.until(lambda: process.exit_code() is not None, f"{name} to claim a report", 60.0)
        self.tell("killed", who=name)

    def open_sentinels(self) -> None:
        """Start a master, a replica and three sentinels, and wait until they know each other."""
        first, second, *sentinels = (_free_port() for _ in range(2 + SENTINELS))
        server = [str(find_server()), "--bind", "127.0.0.1", "--save", "", "--repl-diskless-sync-delay", "0"]
        self._start("redis-1", [*server, "--port", str(first)])
        self._start("redis-2", [*server, "--port", str(second), "--replicaof", "127.0.0.1", str(first)])
        for port in sentinels:
            conf = self.directory / f"sentinel-{port}.conf"
            conf.write_text(f"port {port}\n{SENTINEL.format(first)}")
            self._start(f"sentinel-{port}", [str(find_server()), str(conf), "--sentinel"])
        self._url = ";".join(f"sentinel://127.0.0.1:{port}" for port in sentinels)
        options = {"master_name": MASTER}
        self._settings = Settings(redis_url=self._url, redis_options=options, key_prefix=self._prefix + "once:")
        self._store = Store(self._settings)
        self._replica = redis.Redis(port=second)
        sentinel = redis.Redis(port=sentinels[0], decode_responses=True)
        self.until(lambda: _knows_all(sentinel), "the sentinels to know each other")
        self.until(self._server_answers, "an answer of the master")

    def promoted(self) -> bool:
        """Whether the replica is the master."""
        with contextlib.suppress(redis.RedisError):
            return bool(self._replica.info("replication")["role"] == "master")
        return False

    # -- moments ----------------------------------------------------------------------------------------------

    def middle_of_report(self) -> Event | None:
        """The start of a report that has run for half a second to one."""
        starts = [event for event in self.events if event.entry == "report" and event.kind == "start"]
        return starts[-1] if starts and MIDDLE[0] < time.time() - starts[-1].at < MIDDLE[1] else None

    def settled(self, until: float) -> bool:
        """Whether each window that was claimed until then has finished once."""
        claimed = {event.window for event in self.events if event.kind == "claimed" and event.at < until}
        finished = Counter(event.window for event in self.events if event.kind == "finish")
        return all(finished[window] == 1 for window in claimed)


def _knows_all(sentinel: redis.Redis) -> bool:
    with contextlib.suppress(redis.RedisError):
        state: Any = sentinel.sentinel_master(MASTER)
        return (state["num-slaves"], state["num-other-sentinels"]) == (1, SENTINELS - 1)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _beat_dies(stage: _Stage) -> str:
    stage.kill_at_its_claim(BEATS[0])
    return BEATS[0]


def _worker_dies(stage: _Stage) -> str:
    report = stage.until(stage.middle_of_report, "a worker in the middle of a report")
    stage.kill(report.who, f"in the middle of {report.window}")
    return report.who


def _redis_fails_over(stage: _Stage) -> str:
    stage.until(stage.middle_of_report, "a worker in the middle of a report")
    stage.kill("redis-1", "which is the master")
    stage.until(stage.promoted, "the replica to be promoted", 60.0)
    stage.tell("started", "redis-2 is promoted", "redis-2")
    return "redis-1"


#: For each picture: what happens, the processes it shows, and how many seconds before and after.
STORIES = {
    "beat-dies": (_beat_dies, (*BEATS, *WORKERS), 2.5, 6.5),
    "worker-dies": (_worker_dies, (*BEATS, *WORKERS), 2.5, 7.5),
    "failover": (_redis_fails_over, ("redis-1", "redis-2", *BEATS, *WORKERS), 2.5, 9.5),
}


def play(name: str, directory: Path) -> str:
    """Play a story; return its picture."""
    story, lanes, before, after = STORIES[name]
    recorder = Recorder()
    stage = _Stage(directory, recorder)
    try:
        (stage.open_sentinels if name == "failover" else stage.open_server)()
        stage.start_all()
        began = time.time()
        stage.until(lambda: time.time() > began + 4, "windows before")
        victim = story(stage)
        (at,) = (act.at for act in recorder.told if isinstance(act, Act) and (act.kind, act.who) == ("killed", victim))
        stage.until(lambda: time.time() > at + after + 1, "what follows")
        stage.until(lambda: stage.settled(at + after), "each window to finish once")
    finally:
        stage.end()
    return draw(recorder.told, lanes, victim, at, before, after)


def main() -> None:
    """Write each picture, or those that are named after the folder."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    for name in names or STORIES:
        with tempfile.TemporaryDirectory(prefix="once-timeline-") as directory:
            (folder / f"{name}.svg").write_text(play(name, Path(directory)))
        print(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
