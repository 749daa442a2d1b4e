"""What a chaos run found, for people: printed, and written where ``--report`` says."""

from __future__ import annotations

import os
import platform
from collections import Counter
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.checker import Verdict
from chaos.entries import LEASE

if TYPE_CHECKING:
    from chaos.cast import Cast

__all__ = ("machine", "write_report")


def machine() -> str:
    """Where and with what something was measured."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("celery", "kombu", "redis"))
    return (
        f"{datetime.now(timezone.utc):%Y-%m-%d}, {os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}, {packages}"
    )


def write_report(
    folder: str | None, verdict: Verdict, cast: Cast, faults: Counter[str], seed: int, minutes: float
) -> None:
    """Print it; with ``folder`` it is written to ``chaos.md`` there."""
    text = _text(verdict, cast, faults, seed, minutes)
    print(text)
    if folder:
        path = Path(folder, "chaos.md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _text(verdict: Verdict, cast: Cast, faults: Counter[str], seed: int, minutes: float) -> str:
    rows = [
        ("windows", verdict.windows),
        ("executions that began", verdict.executions),
        ("duplicates refused", verdict.refused),
        ("**lost**", len(verdict.lost)),
        ("**finished twice**", len(verdict.finished_twice)),
        ("**recorded twice**", len(verdict.recorded_twice)),
        ("**overlapped**", len(verdict.overlapped)),
        ("**early**", len(verdict.early)),
        *((f"excused, {excuse}", count) for excuse, count in sorted(verdict.excused.items())),
        ("beats and workers that ended by themselves", len(cast.ended_alone)),
        ("lateness, p50", f"{verdict.late(0.5):.3f} s"),
        ("lateness, p99", f"{verdict.late(0.99):.3f} s"),
        ("lateness, the most", f"{verdict.late(1):.3f} s"),
    ]
    kinds = [f"| {name} | {count} |" for name, count in sorted(faults.items())]
    about = (
        f"Two beats, two workers (prefork and threads), store and broker on {cast.store.binary.name}: "
        f"{faults.total()} faults in {minutes:g} minutes. Lease {LEASE:g} s, publish_timeout 1 s, "
        "recovery_interval 0.3 s, start_timeout 5 s."
    )
    return "\n".join(
        [
            "# Chaos",
            "",
            f"`make chaos MINUTES={minutes:g} SEED={seed}`, {machine()}.",
            "",
            about,
            "",
            "| what | |",
            "| --- | ---: |",
            *(f"| {what} | {value} |" for what, value in rows),
            "",
            "| fault | times |",
            "| --- | ---: |",
            *kinds,
            "",
        ]
    )
