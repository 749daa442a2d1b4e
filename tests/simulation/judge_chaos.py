"""Has the judge judge what ``make chaos`` wrote: python -m simulation.judge_chaos build/chaos/…/ledger.jsonl.

The ledger of a chaos run is written by its bodies and by who caused the faults. It is told to the judge as a history:

- Times are the machine's monotonic clock. The first line says how far the wall clock is from it, when windows are
  due.
- A process of the history is one that executes bodies. What befalls a worker befalls all of its processes.
- A fault's effect is death, out (of contact with the store, until it is over), slow (it reaches the store, late), flush
  or none; of nobody: of all.
- An execution begins when the store said so, which its fence tells: its process may be frozen before its first line.
- An execution without a last line died: when its process was killed, else at once. One with a last line and no record
  was busy with its end until then.
- A window of which no line tells the record, and which ran to its last line, counts as recorded then: who is killed
  between the record and the line that tells of it leaves none. The counts say of how many that was assumed.

What a ledger doesn't tell isn't judged: lateness and what is missed (it says nothing of beats that start, and other
processes on the machine delay everything), whether a window that never began was skipped, where its entry skips some,
and the store's own counters. What is owed: each window from the first fault to the last one, on each entry's grid. When
the run ends, all of it has to be done.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any

from chaos.entries import ENTRIES, LEASE, SKIPS
from simulation.judge import Judge, Judgement
from simulation.judge_times import HistoryError

NOT_JUDGED = ("late", "late-again", "grace", "catch-up", "missed", "short", "law")
STEP = 0.2  # seconds between what happens and its line: as long as a process waits for its turn on a busy machine
ENDS = {"finish": "done", "retry": "retried"}


class Chaos:
    """A ledger, and the history that it tells."""

    def __init__(self, lines: Iterable[str], entries: dict[str, float], lease: float, renew: float) -> None:
        self.entries, self.lease, self.renew = entries, lease, renew
        self.events = sorted(self._read(lines), key=lambda event: event["mono"])
        clocks = [event["epoch"] for event in self.events if event["kind"] == "clock"]
        if not clocks:
            raise HistoryError("no line tells the clock")
        self.epoch: float = clocks[0]
        self.over = {event["number"]: event["mono"] for event in self.events if event["kind"] == "over"}
        self.faults = [event for event in self.events if event["kind"] == "fault"]
        self.processes: dict[int, set[int]] = defaultdict(set)  # of a worker's group
        for event in self.events:
            if "group" in event:
                self.processes[event["group"]].add(event["pid"])
        self.counts: Counter[str] = Counter()
        self.facts: list[tuple[float, int, dict[str, Any]]] = []

    @staticmethod
    def _read(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines, 1):
            if line.endswith("\n"):  # else it was still being written
                try:
                    event = json.loads(line)
                    event["kind"], event["mono"], event["pid"]
                except (ValueError, TypeError, KeyError) as error:
                    raise HistoryError(f"line {number}: {type(error).__name__}: {error}: {line[:200]!r}") from error
                yield event

    def history(self) -> list[dict[str, Any]]:
        """Its facts, in order."""
        if not self.faults:
            raise HistoryError("no fault: nothing says from when to when its windows are owed")
        self._befall()
        self._run()
        names = [name for pids in self.processes.values() for name in map(str, pids)]
        first, last, end = self.events[0]["mono"], self._last_fault(), self.events[-1]["mono"]
        for entry, every in self.entries.items():
            self._tell(self.faults[0]["mono"], 0, "schedule", asked=first, entry=entry, description=self._grid(every))
            self._tell(end, 8, "schedule", asked=last, entry=entry, description=None)
        self._tell(last, 7, "healed")
        self._tell(end, 9, "end")
        settings = {
            "entries": {},
            "beats": ["beat"],
            "workers": sorted(names),
            "concurrency": 1000,
            "lease": self.lease,
            "renew": self.renew,
            "step": STEP,
            "settle": 0,
            # What isn't judged doesn't need these.
            **dict.fromkeys(("start_timeout", "beat_late", "worker_late", "longest"), 1),
        }
        ordered = sorted(self.facts, key=lambda fact: fact[:2])
        return [{"what": "settings", "at": 0, **settings}, *(fact for _, _, fact in ordered)]

    def judge(self) -> Judgement:
        """Judge it by the rules that a ledger is enough for."""
        judge = Judge(without=NOT_JUDGED)
        for fact in self.history():
            judge.take(fact)
        judgement = judge.finish()
        self._let_skip(judgement)
        judgement.counts["told"] = dict(sorted(self.counts.items()))
        return judgement

    def _let_skip(self, judgement: Judgement) -> None:
        """Take back that those are lost that never began, of entries whose windows are skipped: no line tells that."""
        for found in list(judgement.violations):
            if found.rule == "lost" and found.entry in SKIPS and not found.facts["executions"]:
                judgement.violations.remove(found)
                judgement.found -= Counter(["lost"])
                self.counts["skipped, as nothing says otherwise"] += 1
        judgement.counts["violations"] = dict(judgement.found)

    def _tell(self, at: float, order: int, what: str, **fact: Any) -> None:
        self.facts.append((at, order, {"what": what, "at": at, **fact}))

    def _grid(self, every: float) -> dict[str, Any]:
        """All are grids from the epoch."""
        return {"every": every, "from": self.epoch % every, "catch_up": "all"}

    @staticmethod
    def _of(event: dict[str, Any]) -> tuple[Any, ...]:
        """What its lines have in common: an execution's, or those of its own retries in one process."""
        return event["pid"], event["entry"], event["start"], event["fence"]

    def _due(self, event: dict[str, Any]) -> float:
        start: float = datetime.fromisoformat(event["start"].replace("Z", "+00:00")).timestamp()
        return start + self.epoch

    def _begun(self, event: dict[str, Any]) -> float:
        """When the store let it begin, as its fence tells."""
        at, begun = float(event["mono"]), self.epoch + (event["fence"] or 0) / 1000
        return begun if self._due(event) <= begun < at else at

    def _last_fault(self) -> float:
        return max(self._until(fact) for fact in self.faults)

    def _until(self, fault: dict[str, Any]) -> float:
        """When it was over; what nobody ended is over at once, or when the run ends if it takes somebody away."""
        lasting = self.events[-1]["mono"] if fault["effect"] in {"out", "slow"} else fault["mono"]
        return float(self.over.get(fault["number"], lasting))

    def _befall(self) -> None:
        for fault in self.faults:
            at, effect, of = fault["mono"], fault["effect"], fault["of"]
            if effect not in {"death", "out", "slow", "flush", "none"}:
                raise HistoryError(f"effect: found {effect!r}, expected death, out, slow, flush or none")
            self.counts[f"fault: {effect}"] += 1
            # One of its processes, or all of them.
            pids = self.processes.get(of) or ({of} if any(of in pids for pids in self.processes.values()) else set())
            if effect == "flush":
                self._tell(at, 1, "fault", kind="flushed")
            elif effect == "out" and of is None:
                self._tell(at, 1, "fault", kind="away", target="server", until=self._until(fault))
            elif effect in {"out", "slow"}:
                kind = "frozen" if effect == "out" else "slow"
                for pid in sorted(pids):
                    self._tell(at, 1, "fault", kind=kind, target=str(pid), until=self._until(fault))
            elif effect == "death":
                for pid in sorted(pids):
                    self._tell(at, 1, "fault", kind="killed", target=str(pid), until=None)

    def _run(self) -> None:
        died: dict[str, float] = {}
        for at, _, fact in self.facts:
            if fact.get("kind") == "killed":
                died[fact["target"]] = min(at, died.get(fact["target"], inf))
        told = {self._of(event): event["mono"] for event in self.events if event["kind"] == "recorded"}
        running: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
        for event in self.events:
            kind, at = event["kind"], event["mono"]
            self.counts[kind] += 1
            if kind not in {"start", "recorded", *ENDS}:
                continue
            of, process = self._of(event), str(event["pid"])
            window = {"entry": event["entry"], "start": self._due(event)}
            if kind == "start":
                if of in running:
                    self._died(running.pop(of), died)
                at = self._begun(event)
                execution = f"{process}:{event['fence']}:{self.counts['start']}"
                running[of] = execution, {**window, "process": process, "at": at}
                fence = {"fence": event["fence"]} if not event.get("retries") else {}
                self._tell(at, 5, "started", **window, execution=execution, process=process, **fence)
            elif kind == "recorded":
                self._tell(at, 6, "recorded", **window, outcome="done")
            elif of in running:
                execution, _ = running.pop(of)
                until = max(at, told.get(of, died.get(process, at)))
                self._tell(at, 3, "ended", **window, execution=execution, how=ENDS[kind], until=until)
            else:
                raise HistoryError(f"a last line without a first one: {event}")
        for left in running.values():
            self._died(left, died)
        self._untold()

    def _untold(self) -> None:
        """Windows of which no line tells the record, though they ran to their last line."""
        told = {(event["entry"], event["start"]) for event in self.events if event["kind"] == "recorded"}
        ended = {(event["entry"], event["start"]): event for event in self.events if event["kind"] == "finish"}
        for (entry, start), event in ended.items():
            if (entry, start) not in told:
                self.counts["recorded, as nothing says otherwise"] += 1
                self._tell(event["mono"], 6, "recorded", entry=entry, start=self._due(event), outcome="done")

    def _died(self, execution: tuple[str, dict[str, Any]], died: dict[str, float]) -> None:
        name, began = execution
        at = died.get(began["process"], 0.0)
        self.counts["died"] += 1
        window = {"entry": began["entry"], "start": began["start"]}
        self._tell(max(at, began["at"]), 6, "ended", **window, execution=name, how="killed")


def judge_ledger(path: Path, lease: float = LEASE, renew: float | None = None) -> Judgement:
    """Judge the ledger of a chaos run, of which a lease is renewed each so many seconds, by default a third of it."""
    entries = {entry: float(every) for entry, (_, every, _) in ENTRIES.items()}
    with path.open() as lines:
        return Chaos(lines, entries, lease, lease / 3 if renew is None else renew).judge()


def main(arguments: list[str] | None = None) -> int:
    """Print each violation as a line of JSON, the counts last; 1 if there is one, 2 if it isn't a ledger."""
    parser = argparse.ArgumentParser(prog="simulation.judge_chaos", description="Judge the ledger of a chaos run.")
    parser.add_argument("file", type=Path, help="a ledger, build/chaos/…/ledger.jsonl")
    parser.add_argument("--lease", type=float, default=LEASE)
    parser.add_argument("--renew", type=float, help="seconds between two renewals; a third of the lease")
    given = parser.parse_args(arguments)
    try:
        judgement = judge_ledger(given.file, given.lease, given.renew)
    except (HistoryError, OSError) as error:
        print(f"not a ledger: {error}", file=sys.stderr)
        return 2
    for violation in judgement.violations:
        print(json.dumps(asdict(violation), sort_keys=True))
    print(json.dumps(judgement.counts, sort_keys=True))
    return 0 if judgement.clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
