"""What a run of many windows found, for people."""

from __future__ import annotations

from leaks.usage import Sample
from pages import machine, table
from servers import RedisServer

ROWS = 10


def report(
    asked: int, before: Sample, samples: list[Sample], after: Sample, grown: dict[str, float], limit: float,
    server: RedisServer,
) -> str:  # fmt: skip
    """The figures as a page."""
    windows = samples[-1].windows - samples[0].windows
    shown = [samples[round(part * (len(samples) - 1) / ROWS)] for part in range(ROWS + 1)]
    names = list(before.processes)
    held = [
        [f"{name}: threads, sockets", *(", ".join(map(str, sample.held()[name])) for sample in (before, after))]
        for name in names
    ]
    grew = ", ".join(f"{name} {bytes_a_window:+.1f}" for name, bytes_a_window in grown.items())
    about = (
        "One beat, one worker with one child (prefork), 200 entries that are due every second, a body that does\n"
        f"nothing: {windows:,} windows after a warm-up of {samples[0].windows:,}. Resident memory in KiB; the\n"
        "server's is what it has allocated, with messages that wait and markers of windows that are just done."
    )
    parts = [
        "# Leaks",
        f"`pytest tests/leaks --windows {asked} --report docs/reports`, {machine()}, {server.version}.",
        about,
        table(["windows done", *names, "server", "keys"], map(_row, shown), 0),
        "At rest, before and after: nothing is claimed, no message waits, no marker is left.",
        table(["", "before", "after"], [
            *held, ["keys", f"{before.keys:,}", f"{after.keys:,}"],
            ["server, KiB", f"{before.memory // 1024:,}", f"{after.memory // 1024:,}"],
        ]),
        f"Growth over the second half, bytes a window, by least squares: {grew}. The test fails at {limit:.1f}.",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _row(sample: Sample) -> list[str]:
    memory = [f"{value // 1024:,}" for value in (*sample.memories().values(), sample.memory)]
    return [f"{sample.windows:,}", *memory, f"{sample.keys:,}"]
