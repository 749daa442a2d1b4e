"""Kills of masters under load, and what the ledger says became of the windows.

``Trial(...).run(kills)`` starts Redis with replicas, beats and workers, kills a master, waits until another was made
master, brings the killed one back as its replica, and so on; then everything gets closed and counted.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery.schedules import schedule
from failover.topology import KINDS, Topology
from ledger import Ledger
from processes import Proc, Processes, wait_until
from servers import RedisServer
from system import System

from celery_once_beat.errors import OnceError
from celery_once_beat.windows import format_instant, starts_after

#: When the master is killed: while bodies run, while its replica still copies it.
MOMENTS = ("executions", "attaching")
_ENTRIES = [f"tick-{number}" for number in range(8)]
_WORK = {"task": "apps.once_app.work", "every": 1.0, "args": [0.4]}
_GRID = schedule(timedelta(seconds=1))
_PATIENCE = 90


@dataclass
class Figures:
    """What one trial found; all by the ledger, but for ``uneven``."""

    topology: str
    wait_replicas: int
    moment: str
    kills: int = 0
    #: Windows that the schedules define from the first to the last cursor.
    windows: int = 0
    #: How often somebody was told that a window is his to publish.
    claims: int = 0
    #: How often somebody was told that a write isn't certain.
    uncertain: int = 0
    #: Publishes and bodies without an answer that allows them: on an uncertain one, say.
    acted_on: int = 0
    claimed_twice: int = 0
    #: Kills after which some window was claimed for the second time.
    kills_that_doubled: int = 0
    #: Windows whose body came to its end twice, and whose success was recorded twice.
    finished_twice: int = 0
    recorded_twice: int = 0
    #: Windows whose body never came to its end.
    lost: int = 0
    #: Entries for which the conservation law doesn't hold.
    uneven: int = 0
    #: From each kill until a claim of what lived there was answered.
    seconds: list[float] = field(default_factory=list)
    #: How often a beat said that it can't use the store, that it can again, and how many tracebacks were logged.
    said_away: int = 0
    said_back: int = 0
    tracebacks: int = 0


class Trial:
    """One topology with one setting, and any number of kills of one kind."""

    def __init__(
        self, kind: str, wait_replicas: int, moment: str, *, procs: Processes, directory: Path, binary: Path, seed: int
    ) -> None:
        self.kind, self.wait, self.moment = kind, wait_replicas, moment
        self.procs = procs
        self.binary = binary
        self.seed = seed
        self.directory = directory
        self.ledger = Ledger(directory / "ledger.jsonl")
        self.events: list[dict[str, Any]] = []
        self._read_to = 0
        self.killed_at: list[float] = []
        self.living: list[Proc] = []

    def run(self, kills: int) -> Figures:
        figures = Figures(KINDS[self.kind].name, self.wait, self.moment)
        with RedisServer.start(self.binary) as broker, KINDS[self.kind](self.binary, self.seed) as topology:
            try:
                self._start(topology, broker)
                for _ in range(kills):
                    figures.seconds.append(self._kill(topology))
                    figures.kills += 1
                self._settle(topology, figures)
            finally:
                self.procs.end()
        self._count(figures)
        return figures

    # -- load -------------------------------------------------------------------------------------------------

    def _start(self, topology: Topology, broker: RedisServer) -> None:
        system = System(self.procs, self.ledger, broker.url(), self.directory)
        system.store.close()
        system.app, system.store_url = "failover.watched_app", topology.url
        system.entries = dict.fromkeys(_ENTRIES, _WORK)
        system.settings = {
            "once_beat_redis_options": topology.options,
            "once_beat_wait_replicas": self.wait,
            "once_beat_lease": 15.0,
            "once_beat_claim_lease": 2.0,
            "once_beat_publish_timeout": 2.0,
            "once_beat_start_timeout": 10.0,
            "once_beat_recovery_interval": 0.5,
            "broker_connection_timeout": 4.0,
        }
        workers = [system.worker(f"worker{n}", concurrency=4) for n in (1, 2)]
        beats = [system.beat(f"beat{n}") for n in (1, 2)]
        self.living = [*beats, *workers]
        wait_until(lambda: len(self._told_claimed()) > 20, "windows are claimed", 60)

    # -- a kill -----------------------------------------------------------------------------------------------

    def _kill(self, topology: Topology) -> float:
        """Kill a master at a moment of the kind; returns after how many seconds claims of its entries went on."""
        victim = topology.choose()
        with topology.store() as store:
            concerned = {entry for entry in _ENTRIES if topology.concerns(store.entry_key(entry))}
        time.sleep(topology.random.uniform(0.2, 1.2))  # the phase at which it is killed is what the seed decides
        if self.moment == "attaching":
            topology.attach_slowly(victim)
            # with WAIT late enough for claims that no replica has to be answered before the kill
            time.sleep(topology.random.uniform(1.2, 3.5) if self.wait else topology.random.uniform(0.0, 2.0))
        else:
            wait_until(self._running, "a body runs", 30, every=0.005)
        killed_at = time.time()
        self.killed_at.append(killed_at)
        victim.kill()
        topology.wait_failover(victim)
        topology.restore(victim)

        def went_on() -> float | None:
            later = [e["at"] for e in self._told_claimed() if e["at"] > killed_at + 0.05 and e["entry"] in concerned]
            return min(later, default=None)

        if not concerned:
            return 0.0
        return wait_until(went_on, "claims go on", _PATIENCE) - killed_at

    def _read(self) -> list[dict[str, Any]]:
        """All events so far; reads what is new."""
        if self.ledger.path.exists():
            with self.ledger.path.open("rb") as file:
                file.seek(self._read_to)
                whole, _, _ = file.read().rpartition(b"\n")
            if whole:
                self._read_to += len(whole) + 1
                self.events += [json.loads(line) for line in whole.split(b"\n")]
        return self.events

    def _told_claimed(self) -> list[dict[str, Any]]:
        return [e for e in self._read()[-5000:] if e.get("verb") == "claim" and e["answer"] == "Claimed"]

    def _running(self) -> bool:
        bodies: Counter[tuple[str, str]] = Counter()
        for event in self._read()[-1000:]:
            if event["kind"] in ("start", "finish"):
                bodies[event["entry"], event["start"]] += 1 if event["kind"] == "start" else -1
        return max(bodies.values(), default=0) > 0

    # -- the end ----------------------------------------------------------------------------------------------

    def _settle(self, topology: Topology, figures: Figures) -> None:
        """Stop claiming, and wait until every window has its outcome; the law is recounted."""
        with topology.store() as store:
            for entry in _ENTRIES:
                wait_until(lambda e=entry: _answers(lambda: store.set_paused(e, paused=True)), f"{entry} is paused", 30)

            def still_open() -> list[str]:
                try:
                    return [entry for entry in _ENTRIES if store.account(entry).open]
                except OnceError:  # on a busy machine a master may be taken for dead
                    return _ENTRIES

            wait_until(lambda: not still_open(), "every window has its outcome", _PATIENCE, every=0.3)
            assert all(proc.alive for proc in self.living), self.procs.tails()
            finished = {(e["entry"], e["start"]) for e in self._read() if e["kind"] == "finish"}
            for entry in _ENTRIES:
                account = store.account(entry)
                starts = {(entry, format_instant(s)) for s in starts_after(_GRID, account.since, account.cursor)}
                figures.uneven += account.accounted != len(starts)
                figures.windows += len(starts)
                figures.lost += len(starts - finished)

    def _count(self, figures: Figures) -> None:
        told: dict[tuple[Any, ...], str] = {}
        times: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
        doubled: set[float] = set()
        for event in self._read():
            key = (event.get("entry"), event.get("start"))
            kind = event["kind"]
            if kind == "told":
                kind = event["answer"]
                place = "publish" if event["verb"] in ("claim", "take") else event["verb"]
                told[(event["pid"], place, *key)] = kind
                figures.uncertain += kind == "UncertainWriteError"
            elif kind == "published":
                figures.acted_on += told.get((event["pid"], "publish", *key)) not in ("Claimed", "Taken")
            elif kind == "start":
                figures.acted_on += told.get((event["pid"], "begin", *key)) != "Begun"
            times[kind][key] += 1
            if kind == "Claimed" and times[kind][key] > 1:
                doubled.add(max((at for at in self.killed_at if at < event["at"]), default=0.0))
        figures.kills_that_doubled = len(doubled)
        figures.claims = times["Claimed"].total()
        for name, kind in (("claimed", "Claimed"), ("finished", "finish"), ("recorded", "recorded")):
            setattr(figures, f"{name}_twice", sum(1 for number in times[kind].values() if number > 1))
        for proc in self.procs:
            figures.said_away += proc.log.count("nothing is claimed until")
            figures.said_back += proc.log.count("Redis can be used again, after")
            figures.tracebacks += proc.log.count("Traceback")


def _answers(ask: Any) -> bool:
    try:
        return bool(ask())
    except OnceError:
        return False
