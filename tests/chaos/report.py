"""What a chaos run found, for people: printed, and written where ``--report`` says."""

from __future__ import annotations

from chaos.checker import Verdict
from chaos.entries import LEASE
from chaos.havoc import Havoc
from pages import machine, table, write


def write_report(folder: str | None, verdict: Verdict, havoc: Havoc, seed: int, minutes: float, every: float) -> None:
    """Print it; with ``folder`` it is written to ``chaos.md`` there, with RabbitMQ to ``chaos-rabbitmq.md``."""
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
    store = havoc.cast.store.version.capitalize()
    about = (
        f"Two beats, two workers (prefork and threads), {store} as the store, {broker.about} as "
        f"the broker: {havoc.counts.total()} faults in {minutes:g} minutes. Lease {LEASE:g} s, publish_timeout 1 s, "
        "recovery_interval 0.3 s, start_timeout 5 s."
    )
    name, title = ("chaos", "Chaos") if broker.kind == "redis" else ("chaos-rabbitmq", "Chaos with RabbitMQ")
    command = f"make chaos MINUTES={minutes:g} SEED={seed} EVERY={every:g} BROKER={broker.kind}"
    page = [f"# {title}", f"`{command}`, {machine()}.", about, table(["what", ""], rows)]
    page.append(table(["fault", "times"], sorted(havoc.counts.items())))
    write(folder, f"{name}.md", "\n\n".join(page) + "\n")
