"""What a run of many windows found, for people."""

from __future__ import annotations

from chaos.report import machine
from leaks.usage import Sample
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
    return "\n".join(
        [
            "# Leaks",
            "",
            f"`pytest tests/leaks --windows {asked} --report docs/reports`, {machine()}, {server.version}.",
            "",
            "One beat, one worker with one child (prefork), 200 entries that are due every second, a body that does",
            f"nothing: {windows:,} windows after a warm-up of {samples[0].windows:,}. Resident memory in KiB; the",
            "server's is what it has allocated, with messages that wait and markers of windows that are just done.",
            "",
            "| windows done | " + " | ".join(names) + " | server | keys |",
            "| ---: " * (len(names) + 3) + "|",
            *map(_row, shown),
            "",
            "At rest, before and after: nothing is claimed, no message waits, no marker is left.",
            "",
            "| | before | after |",
            "| --- | ---: | ---: |",
            *(
                f"| {name}: threads, sockets | {', '.join(map(str, before.held()[name]))} "
                f"| {', '.join(map(str, after.held()[name]))} |"
                for name in names
            ),
            f"| keys | {before.keys:,} | {after.keys:,} |",
            f"| server, KiB | {before.memory // 1024:,} | {after.memory // 1024:,} |",
            "",
            "Growth over the second half, bytes a window, by least squares: "
            + ", ".join(f"{name} {bytes_a_window:+.1f}" for name, bytes_a_window in grown.items())
            + f". The test fails at {limit:.1f}.",
            "",
        ]
    )


def _row(sample: Sample) -> str:
    memory = [f"{value // 1024:,}" for value in (*sample.memories().values(), sample.memory)]
    return f"| {sample.windows:,} | " + " | ".join(memory) + f" | {sample.keys:,} |"
