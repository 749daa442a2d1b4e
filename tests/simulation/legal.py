"""Legal histories: what an ideal system, which keeps the promise to the letter, would do under any faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

LEASE, RENEW, BEAT_LATE, WORKER_LATE, START_TIMEOUT, TOLERANCE = 30.0, 10.0, 4.0, 34.0, 60.0, 60.0
BEATS = ("beat-1", "beat-2")
WORKERS = ("worker-1", "worker-2", "worker-3")
LAST = 1500.0  # no window and no fault begins later
HEALED, END = 2500.0, 8000.0


@dataclass
class Ideal:
    """Plans what becomes of each window, knowing all faults before; then writes the history."""

    seed: int
    faults: int = 6
    facts: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.away: dict[str, list[tuple[float, float, str]]] = {}
        self.failovers: list[tuple[float, float]] = []
        self.lost: set[tuple[str, float]] = set()
        self.executions = 0
        self.entries = {
            name: {
                "every": self.random.choice([20, 35, 60, 90]),
                "from": self.random.choice([0, 5, 12.5]),
                "catch_up": self.random.choice(["latest", "all", "none"]),
            }
            for name in "abc"[: self.random.randint(1, 3)]
        }
        self.paused: dict[str, tuple[float, float]] = {}
        for _ in range(self.faults):
            self._fault()
        for name in self.entries:
            self._entry(name)

    # Faults

    def _fault(self) -> None:
        kind = self.random.choice(["killed", "frozen", "cut", "server", "failover", "lost", "beats", "paused"])
        # Aimed: about when a window is due.
        at = self.random.choice(self._starts(self.random.choice(list(self.entries)))[1:]) + self.random.uniform(-1, 8)
        if kind == "server":
            self._away("server", at, at + self.random.uniform(1, 10), {"kind": "away", "target": "server"})
        elif kind == "failover":
            lose = self.random.choice([0, 1, 5])
            self.failovers.append((at, lose))
            self._write("fault", at, kind="failover", lose=lose)
        elif kind == "lost":
            name = self.random.choice(list(self.entries))
            start = self._starts(name)[self.random.randrange(10)]
            self.lost.add((name, start))
            self._write("fault", start + 0.01, kind="lost", entry=name, start=start)
        elif kind == "beats":
            until = at + self.random.choice([5, 50, 200])
            for beat in BEATS:
                self._away(beat, at, until, {"kind": self.random.choice(["killed", "frozen"]), "target": beat})
        elif kind == "paused":
            name = self.random.choice(list(self.entries))
            if name not in self.paused:
                self.paused[name] = (at, at + 100)
                self._write("paused", at, entry=name)
                self._write("resumed", at + 100, entry=name)
        else:
            target = self.random.choice([*BEATS, *WORKERS])
            short, long = self.random.uniform(1, 12), self.random.uniform(LEASE + 6, 100)
            until = at + self.random.choice([short, long])
            fault = {"kind": kind, "target": target, **({"from": "server"} if kind == "cut" else {})}
            self._away(target, at, until, fault)

    def _away(self, target: str, at: float, until: float, fault: dict[str, Any]) -> None:
        clear = all(until + 60 < begin or end + 60 < at for begin, end, _ in self.away.get(target, []))
        # One worker is always there, and no outage of the server makes a short cut a long one.
        others = [spans for name, spans in self.away.items() if name in {*WORKERS, "server"}]
        if target in {*WORKERS, "server"}:
            clear = clear and all(until + 60 < begin or end + 60 < at for spans in others for begin, end, _ in spans)
        if clear:
            self.away.setdefault(target, []).append((at, until, fault["kind"]))
            self._write("fault", at, until=until, **fault)

    def _up(self, target: str, at: float) -> bool:
        return not any(begin - 0.2 <= at <= end for begin, end, _ in self.away.get(target, []))

    # Windows

    def _starts(self, name: str) -> list[float]:
        every, first = self.entries[name]["every"], self.entries[name]["from"]
        return [start for n in range(200) if 0 < (start := first + n * every) < LAST]

    def _entry(self, name: str) -> None:
        self._write("schedule", LAST, entry=name, description=None)
        begin, end = self.paused.get(name, (LAST * 9, LAST * 9))
        starts = [start for start in self._starts(name) if not begin < start <= end]
        while starts:
            at = starts[0]
            while not (any(self._up(beat, at) for beat in BEATS) and self._up("server", at)):
                at += 0.1
            together = [start for start in starts if start <= at]
            starts = starts[len(together) :]
            if at > begin:  # it was paused before a beat could claim these
                together = [start for start in together if start > end]
            if not together:
                continue
            policy, run = self.entries[name]["catch_up"], together
            if at - together[0] > TOLERANCE:
                on_time = [start for start in together if at - start <= TOLERANCE]
                run = {"latest": together[-1:], "all": together, "none": on_time}[policy]
            for start in together:
                if start in run:
                    self._window(name, start, at + self.random.uniform(0, 0.3))
                else:
                    self._record(name, start, at + 0.1, "missed")

    def _window(self, name: str, start: float, at: float) -> None:
        if (name, start) in self.lost and self.random.random() < 0.9:
            at += self.random.uniform(START_TIMEOUT, START_TIMEOUT + 500)
        elif any(start <= begin <= at for beat in BEATS for begin, _, _ in self.away.get(beat, [])):
            at += self.random.uniform(0, BEAT_LATE - 1)  # its beat had claimed it, and is gone
        attempts = 0
        while True:
            attempts += 1
            took = self.random.uniform(0.1, 8)
            at, worker = self._worker_at(at)
            execution = self._begin(name, start, at, worker)
            hits = [hit for hit in self.away.get(worker, []) if at <= hit[0] <= at + took]
            if hits and hits[0][2] == "killed":
                self._end(name, start, hits[0][0], execution, "killed")
                at = hits[0][0] + self.random.uniform(0, WORKER_LATE - 1)
                continue
            if hits and hits[0][1] - hits[0][0] > LEASE:  # another one takes over
                self._end(name, start, max(hits[0][1], at + took) + 0.1, execution, "stale")
                at = hits[0][0] + self.random.uniform(LEASE, WORKER_LATE)
                continue
            end = at + took + sum(until - begin for begin, until, kind in hits if kind == "frozen")
            self._end(name, start, end, execution, "done")
            recorded = end + 0.01
            while not (self._up("server", recorded) and self._up(worker, recorded)):
                recorded += 0.1
            self._record(name, start, recorded, "done", execution)
            lost = [f for f, lose in self.failovers if f - lose <= recorded <= f]
            if not lost or self.random.random() < 0.5:
                return
            self.failovers = [(f, lose) for f, lose in self.failovers if f != lost[0]]
            at = lost[0] + self.random.uniform(1, WORKER_LATE)

    def _worker_at(self, at: float) -> tuple[float, str]:
        while True:
            for worker in self.random.sample(WORKERS, len(WORKERS)):
                if self._up(worker, at) and self._up("server", at):
                    return at, worker
            at += 0.1

    # Facts

    def _write(self, what: str, at: float, **fact: Any) -> None:
        self.facts.append({"what": what, "at": at, **fact})

    def _begin(self, name: str, start: float, at: float, worker: str) -> str:
        self.executions += 1
        execution = f"x{self.executions}"
        self._write("received", at, entry=name, start=start, process=worker)
        self._write("started", at, entry=name, start=start, process=worker, execution=execution)
        return execution

    def _end(self, name: str, start: float, at: float, execution: str, how: str) -> None:
        self._write("ended", at, entry=name, start=start, execution=execution, how=how)

    def _record(self, name: str, start: float, at: float, outcome: str, execution: str | None = None) -> None:
        fact = {"entry": name, "start": start, "outcome": outcome, "execution": execution}
        self.records.append({"what": "recorded", "at": at, **fact})

    def history(self) -> list[dict[str, Any]]:
        """Its facts, in order."""
        settings = {
            "lease": LEASE,
            "renew": RENEW,
            "beat_late": BEAT_LATE,
            "worker_late": WORKER_LATE,
            "start_timeout": START_TIMEOUT,
            "tolerance": TOLERANCE,
            "longest": 10,
            "received": True,
            "beats": BEATS,
            "workers": WORKERS,
            "entries": self.entries,
            "concurrency": 50,
        }
        facts = [*self.facts, {"what": "healed", "at": HEALED}]
        order = {"fault": 1, "ended": 0, "received": 2, "started": 3}
        return [
            {"what": "settings", "at": 0.0, **settings},
            *sorted(facts, key=lambda fact: (fact["at"], order.get(fact["what"], 2))),
            *sorted(self.records, key=lambda fact: fact["at"]),
            {"what": "end", "at": END},
        ]
