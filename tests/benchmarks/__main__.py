"""``make bench``: everything that is compared, in turns, on one machine; medians, ratios, tables and plots.

``python -m benchmarks --rounds 5``, with ``tests`` on the path. Writes docs/reports/benchmarks.md with its plots, and
docs/scaling.md's table. Give the machine nothing else to do meanwhile. ``--only workers`` measures one part, and
``--only 'burst once'`` what has this in its name; then the table is printed, and nothing is written.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.runs import Bench
from benchmarks.stretches import LASTING, Stretches
from needs import find

ROOT = Path(__file__).resolve().parents[2]
BIG = 10_000
#: Quadratic ones are watched for so many seconds only: a rate needs no more.
PATIENCE = 10.0

#: What it is called, what is called of a Bench, and whether each round measures it again.
Row = tuple[str, Callable[[Bench], dict[str, Any]], bool]


def bursts() -> Iterator[Row]:
    for count in (100, 1000, BIG):
        for subject in ("loop", "once", "stock", "redbeat", "django"):
            patience = PATIENCE if subject in ("stock", "django") else 1e9
            again = subject in ("loop", "once") and count >= 1000
            yield f"burst {subject} {count}", methodcaller("burst", subject, count, patience), again
    for subject in ("loop", "once"):
        yield f"burst {subject} 100000", methodcaller("burst", subject, 100_000), False
        if find("rabbitmq-server"):
            yield f"rabbitmq {subject} {BIG}", methodcaller("over_rabbitmq", subject, BIG), True


def feelings() -> Iterator[Row]:
    """What people feel: from due to the body. Those that are quadratic aren't asked for 10,000."""
    for count in report.FELT:
        for subject, beats in report.FEELERS:
            if count < BIG or subject in ("once", "redbeat"):
                yield f"felt {subject} {beats} {count}", methodcaller("felt", subject, beats, count), count < BIG


def workers(rounds: int) -> Iterator[Row]:
    """Each has its rounds within one worker: short ones, so that a plain stretch meets the same load as its round's."""
    ours, all_kinds = ("plain", "windows"), ("plain", "windows", "without window")
    for pool, concurrency in report.POOLS.items():
        for name, stretches, away in (
            ("worker", Stretches(all_kinds, 200, 5 * rounds), 0.0),
            ("far", Stretches(ours, 200, 5 * rounds), report.AWAY),
            *((f"{ms} ms", Stretches(ours, 30 * concurrency, rounds, f".{ms} ms"), 0.0) for ms in LASTING),
        ):
            yield f"{name} {pool}", methodcaller("worker", pool, concurrency, stretches, away), False
    yield "sampled", methodcaller("sampled", Stretches(ours, 200, 10 * rounds)), False
    peers = Stretches(("plain", "celery-once", "celery-singleton"), 200, 5)
    for pool in ("solo", "prefork"):
        yield f"peers {pool}", methodcaller("worker", pool, report.POOLS[pool], peers), False
    yield "calls", methodcaller("alone", "calls", windows=100 * (rounds * 5 + 1)), False


def beats() -> Iterator[Row]:
    for subject in ("once", "stock", "redbeat"):
        yield f"idle {subject}", methodcaller("alone", "idle", subject=subject, count=BIG, seconds=8), False
    for subject in ("once", "stock", "redbeat", "django"):
        yield f"start {subject}", methodcaller("alone", "start", subject=subject, count=BIG), subject == "once"
    yield "late 10", methodcaller("alone", "late", count=10, seconds=12, apart=0.1), False
    yield "late 1000", methodcaller("alone", "late", count=1000, seconds=8, apart=0.0), False
    for count in (1, 2, 4):
        yield f"beats {count}", methodcaller("share", count, BIG), False
    for subject in ("once", "redbeat"):
        yield f"memory {subject}", methodcaller("memory", subject, BIG), False
        yield f"paused {subject}", methodcaller("paused", subject, BIG, 20.0), False
    yield "history", methodcaller("alone", "history", windows=50), False
    yield "stored", methodcaller("alone", "stored", count=100_000, changes=20), False
    yield "managed", methodcaller("alone", "managed", count=20_000), False
    yield "million", methodcaller("alone", "many", count=1_000_000, seconds=20), False
    yield "takeover", methodcaller("takeover", 8, report.LEASE), False


def measure(rounds: int, only: str) -> dict[str, Any]:
    """Return the median of each figure; what is measured once says so by its flag, or has rounds of its own."""
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="once-bench-") as name, Bench(Path(name)) as bench:
        parts = {"felt": feelings(), "bursts": bursts(), "workers": workers(rounds), "beats": beats()}
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", default="", help="a part (felt, bursts, workers, beats), or what has this in its name"
    )
    given = parser.parse_args()
    found = measure(given.rounds, given.only)
    if given.only:
        print(report.goals(found["figures"]))
    else:
        report.write(found, ROOT)


if __name__ == "__main__":
    main()
