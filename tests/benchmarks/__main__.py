"""``make bench``: everything that is compared, in turns, on one machine; medians, ratios, tables and plots.

``python -m benchmarks --rounds 5``, with ``tests`` on the path. Writes docs/reports/benchmarks.md with its plots, and
docs/scaling.md's tables. Give the machine nothing else to do meanwhile. ``--only workers`` measures one part, and
``--only 'burst once'`` what has this in its name; then the table is printed, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.runs import Bench
from benchmarks.stretches import Stretches

ROOT = Path(__file__).resolve().parents[2]
BIG = 10_000
#: Quadratic ones are watched for so many seconds only: a rate needs no more.
PATIENCE = 10.0

Run = Callable[[Bench], dict[str, Any]]


def bursts() -> Iterator[tuple[str, Run, bool]]:
    for count in (100, 1000, BIG):
        for subject in ("loop", "once", "stock", "redbeat", "django"):
            patience = PATIENCE if subject in ("stock", "django") else 1e9
            yield (
                f"burst {subject} {count}",
                lambda bench, s=subject, c=count, p=patience: bench.burst(s, c, p),  # type: ignore[misc]
                subject in ("loop", "once") and count >= 1000,
            )
    for subject in ("loop", "once"):
        yield f"burst {subject} 100000", lambda bench, s=subject: bench.burst(s, 100_000), False  # type: ignore[misc]


def workers(rounds: int) -> Iterator[tuple[str, Run, bool]]:
    """Each has its rounds within one worker: short ones, so that a plain stretch meets the same load as its round's."""
    ours, all_kinds = ("plain", "windows"), ("plain", "windows", "without window")
    for pool, concurrency in report.POOLS.items():
        for name, stretches, away in (
            ("worker", Stretches(all_kinds, 200, 5 * rounds), 0.0),
            ("far", Stretches(ours, 200, 5 * rounds), report.AWAY),
            ("50 ms", Stretches(ours, 30 * concurrency, rounds, ".short"), 0.0),
        ):
            yield (
                f"{name} {pool}",
                lambda bench, p=pool, c=concurrency, s=stretches, a=away: bench.worker(p, c, s, a),  # type: ignore[misc]
                False,
            )
    peers = Stretches(("plain", "celery-once", "celery-singleton"), 200, 5)
    for pool in ("solo", "prefork"):
        yield f"peers {pool}", lambda bench, p=pool: bench.worker(p, report.POOLS[p], peers), False  # type: ignore[misc]
    yield "calls", lambda bench: bench.alone("calls", windows=100 * (rounds * 5 + 1)), False


def beats() -> Iterator[tuple[str, Run, bool]]:
    for subject in ("once", "stock", "redbeat"):
        yield (
            f"idle {subject}",
            lambda bench, s=subject: bench.alone("idle", subject=s, count=BIG, seconds=8),  # type: ignore[misc]
            False,
        )
    for subject in ("once", "stock", "redbeat", "django"):
        yield (
            f"start {subject}",
            lambda bench, s=subject: bench.alone("start", subject=s, count=BIG),  # type: ignore[misc]
            subject == "once",
        )
        yield (
            f"traffic {subject}",
            lambda bench, s=subject: bench.alone("traffic", subject=s, count=100),  # type: ignore[misc]
            False,
        )
    yield "late 10", lambda bench: bench.alone("late", count=10, seconds=12, apart=0.1), False
    yield "late 1000", lambda bench: bench.alone("late", count=1000, seconds=8, apart=0.0), False
    for count in (1, 2, 4):
        yield f"beats {count}", lambda bench, n=count: bench.share(n, BIG), False  # type: ignore[misc]
    for subject in ("once", "redbeat"):
        yield f"memory {subject}", lambda bench, s=subject: bench.memory(s, BIG), False  # type: ignore[misc]
        yield f"paused {subject}", lambda bench, s=subject: bench.paused(s, BIG, 20.0), False  # type: ignore[misc]
    yield "history", lambda bench: bench.alone("history", windows=50), False
    for windows in (100, 1000, BIG):
        yield f"open {windows}", lambda bench, n=windows: bench.alone("backlog", windows=n), False  # type: ignore[misc]
    yield "stored", lambda bench: bench.alone("stored", count=100_000, changes=20), False
    yield "million", lambda bench: bench.alone("many", count=1_000_000, seconds=20), False
    yield "takeover", lambda bench: bench.takeover(8, report.LEASE), False


def measure(rounds: int, only: str) -> dict[str, Any]:
    """Return the median of each figure; what is measured once says so by its flag, or has rounds of its own."""
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="once-bench-") as name, Bench(Path(name)) as bench:
        parts = {"bursts": bursts(), "workers": workers(rounds), "beats": beats()}
        chosen = [*parts[only]] if only in parts else [run for part in parts.values() for run in part if only in run[0]]
        for number in range(rounds):
            for what, run, again in chosen:
                if number and not again:
                    continue
                began = time.monotonic()
                found.setdefault(what, []).append(run(bench))
                figures = ", ".join(f"{key} {value:.4g}" for key, value in found[what][-1].items())
                print(f"{number + 1}/{rounds}  {what:32} {figures}  ({time.monotonic() - began:.0f} s)", flush=True)
        medians = {
            what: {key: statistics.median(one[key] for one in figures) for key in figures[0]}
            for what, figures in found.items()
        }
        return {**report.about(rounds, bench.server.version), "figures": medians}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="a part (bursts, workers, beats), or what has this in its name")
    parser.add_argument("--again", action="store_true", help="measure nothing, write the report of the last time anew")
    given = parser.parse_args()
    file = ROOT / "build/benchmarks.json"
    if given.only:
        print(report.goals(measure(given.rounds, given.only)["figures"]))
        return 0
    if not given.again:
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(measure(given.rounds, "")) + "\n")
    report.write(json.loads(file.read_text()), ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
