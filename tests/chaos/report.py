"""What a chaos run found, for people: printed, and written where ``--report`` says."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.brokers import version_of
from chaos.checker import Verdict
from chaos.entries import LEASE

if TYPE_CHECKING:
    from chaos.havoc import Havoc


def machine() -> str:
    """Where and with what something was measured."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("celery", "kombu", "redis"))
    return (
        f"{datetime.now(timezone.utc):%Y-%m-%d}, {os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}, {packages}"
    )


def write_report(folder: str | None, verdict: Verdict, havoc: Havoc, seed: int, minutes: float, every: float) -> None:
    """Print it; with ``folder`` it is written to ``chaos.md`` there, with RabbitMQ to ``chaos-rabbitmq.md``."""
    name = "chaos.md" if havoc.cast.broker.kind == "redis" else f"chaos-{havoc.cast.broker.kind}.md"
    _write(_text(verdict, havoc, seed, minutes, every), folder, name)


def _write(text: str, folder: str | None, name: str) -> None:
    print(text)
    if folder:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _text(verdict: Verdict, havoc: Havoc, seed: int, minutes: float, every: float) -> str:
    broker = havoc.cast.broker
    rows = [
        ("windows", verdict.windows),
        ("executions that began", verdict.executions),
        ("duplicates refused", verdict.refused),
        ("**lost**", len(verdict.lost)),
        ("**finished twice**", len(verdict.finished_twice)),
        ("**recorded twice**", len(verdict.recorded_twice)),
        ("**overlapped**", len(verdict.overlapped)),
        ("**early**", len(verdict.early)),
        ("**beside another window of an entry that runs one at a time**", len(verdict.beside)),
        ("**above their limit**", len(verdict.above_limit)),
        *((f"excused, {excuse}", count) for excuse, count in sorted(verdict.excused.items())),
        ("skipped, since a newer one waited", verdict.skipped),
        ("begun after a newer one", verdict.overtaken),
        ("messages delivered once more", havoc.messages["doubled"]),
        ("messages purged", havoc.messages["purged"]),
        ("beats and workers that ended by themselves", len(havoc.cast.ended_alone)),
        ("lateness, p50", f"{verdict.late(0.5):.3f} s"),
        ("lateness, p99", f"{verdict.late(0.99):.3f} s"),
        ("lateness, the most", f"{verdict.late(1):.3f} s"),
    ]
    about = (
        f"Two beats, two workers (prefork and threads), {version_of(havoc.cast.store)} as the store, {broker.about} as "
        f"the broker: {havoc.counts.total()} faults in {minutes:g} minutes. Lease {LEASE:g} s, publish_timeout 1 s, "
        "recovery_interval 0.3 s, start_timeout 5 s."
    )
    title = "Chaos" if broker.kind == "redis" else "Chaos with RabbitMQ"
    command = f"make chaos MINUTES={minutes:g} SEED={seed} EVERY={every:g} BROKER={broker.kind}"
    return _page(title, command, about, rows, havoc.counts)


def _page(title: str, command: str, about: str, rows: list[tuple[str, Any]], faults: Counter[str]) -> str:
    return "\n".join(
        [
            f"# {title}",
            "",
            f"`{command}`, {machine()}.",
            "",
            about,
            "",
            *_table("what", rows),
            *_table("fault", sorted(faults.items()), "times"),
        ]
    )


def _table(left: str, rows: Iterable[tuple[str, Any]], right: str = "") -> list[str]:
    """Its lines, and an empty one."""
    heads = [f"| {left} | {right} |".replace("|  |", "| |"), "| --- | ---: |"]
    return [*heads, *(f"| {what} | {value} |" for what, value in rows), ""]
