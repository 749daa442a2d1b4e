"""``make bench``: everything that is compared, in turns, on one machine; medians, ratios, tables and plots.

``python -m benchmarks --rounds 3``, with ``tests`` on the path. Writes docs/reports/benchmarks.md with its plots, and
docs/scaling.md's tables. Give the machine nothing else to do meanwhile.
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
                patience > PATIENCE or count < BIG,
            )
    for subject in ("loop", "once"):
        yield f"burst {subject} 100000", lambda bench, s=subject: bench.burst(s, 100_000), False  # type: ignore[misc]


def workers() -> Iterator[tuple[str, Run, bool]]:
    for pool, concurrency in (("solo", 1), ("prefork", 2), ("threads", 4)):
        for name, kind, windows in (
            ("plain", "plain", False), ("windows", "once", True), ("without window", "once", False),
            ("celery-once", "celery-once", False), ("celery-singleton", "celery-singleton", False),
        ):  # fmt: skip
            if pool == "threads" and name.startswith("celery"):
                continue
            yield (
                f"worker {pool} {name}",
                lambda bench, k=kind, p=pool, c=concurrency, w=windows: bench.worker(  # type: ignore[misc]
                    k, p, 3000, concurrency=c, windows=w
                ),
                True,
            )
        for name, kind, windows in (("plain", "plain", False), ("windows", "once", True)):
            yield (
                f"50 ms {pool} {name}",
                lambda bench, k=kind, p=pool, c=concurrency, w=windows: bench.worker(  # type: ignore[misc]
                    k, p, 150 * c, concurrency=c, task="short", windows=w
                ),
                True,
            )


def beats() -> Iterator[tuple[str, Run, bool]]:
    for subject in ("once", "stock", "redbeat"):
        kind = "once" if subject == "once" else "plain"
        yield (
            f"idle {subject}",
            lambda bench, s=subject, k=kind: bench.alone("idle", k, subject=s, count=BIG, seconds=12),  # type: ignore[misc]
            True,
        )
    for subject in ("once", "stock", "redbeat", "django"):
        kind = "once" if subject == "once" else "plain"
        yield (
            f"start {subject}",
            lambda bench, s=subject, k=kind: bench.alone("start", k, subject=s, count=BIG),  # type: ignore[misc]
            True,
        )
        yield (
            f"traffic {subject}",
            lambda bench, s=subject, k=kind: bench.alone("traffic", k, subject=s, count=100),  # type: ignore[misc]
            False,
        )
    yield "late 10", lambda bench: bench.alone("late", "once", count=10, seconds=20, apart=0.1), True
    yield "late 1000", lambda bench: bench.alone("late", "once", count=1000, seconds=8, apart=0.0), True
    for count in (1, 2, 4):
        yield f"beats {count}", lambda bench, n=count: bench.share(n, BIG), True  # type: ignore[misc]
    for subject in ("once", "redbeat"):
        yield f"memory {subject}", lambda bench, s=subject: bench.memory(s, BIG), False  # type: ignore[misc]
        yield f"paused {subject}", lambda bench, s=subject: bench.paused(s, BIG, 20.0), False  # type: ignore[misc]
    yield "history", lambda bench: bench.alone("history", "once", windows=50), False
    for windows in (100, 1000, BIG):
        yield f"open {windows}", lambda bench, n=windows: bench.alone("backlog", "once", windows=n), True  # type: ignore[misc]
    yield "takeover", lambda bench: bench.takeover(8, report.LEASE), True


def measure(rounds: int, only: str, file: Path) -> None:
    """Write the median of each figure to ``file``, after each round; what is measured once says so by its flag."""
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="once-bench-") as name, Bench(Path(name)) as bench:
        for number in range(rounds):
            for what, run, again in (*bursts(), *workers(), *beats()):
                if only not in what or (number and not again):
                    continue
                began = time.monotonic()
                found.setdefault(what, []).append(run(bench))
                figures = ", ".join(f"{key} {value:.4g}" for key, value in found[what][-1].items())
                print(f"{number + 1}/{rounds}  {what:32} {figures}  ({time.monotonic() - began:.0f} s)", flush=True)
            medians = {
                what: {key: statistics.median(one[key] for one in figures) for key in figures[0]}
                for what, figures in found.items()
            }
            if not only:
                file.parent.mkdir(exist_ok=True)
                file.write_text(
                    json.dumps({**report.about(number + 1, bench.server.version), "figures": medians}) + "\n"
                )


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="those whose name has this in it; nothing is written then")
    parser.add_argument("--again", action="store_true", help="measure nothing, write the report of the last time anew")
    given = parser.parse_args()
    file = ROOT / "build/benchmarks.json"
    if not given.again:
        measure(given.rounds, given.only, file)
        if given.only:
            return 0
    report.write(json.loads(file.read_text()), ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
