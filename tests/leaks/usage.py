"""What a beat, a worker and their server have in use, as the kernel and the server tell it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """Of one process: resident memory in bytes, threads, open sockets."""

    memory: int
    threads: int
    sockets: int


@dataclass(frozen=True)
class Sample:
    """What was in use when so many windows were done."""

    windows: int
    processes: dict[str, Process]
    #: Of the store: its keys, and what the server has in use for all, in bytes.
    keys: int
    memory: int

    def memories(self) -> dict[str, int]:
        return {name: process.memory for name, process in self.processes.items()}

    def held(self) -> dict[str, tuple[int, int]]:
        """Threads and sockets of each process."""
        return {name: (process.threads, process.sockets) for name, process in self.processes.items()}


def look_at(pid: int) -> Process:
    proc = Path("/proc", str(pid))
    fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    sockets = 0
    for file in (proc / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            sockets += str(file.readlink()).startswith("socket:")
    rollup = dict(line.split(":", 1) for line in (proc / "smaps_rollup").read_text().splitlines()[1:])
    return Process(int(rollup["Rss"].split()[0]) * 1024, int(fields["Threads"]), sockets)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line nearest to the points, by least squares."""
    count = len(points)
    middle_x = sum(x for x, _ in points) / count
    middle_y = sum(y for _, y in points) / count
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / sum((x - middle_x) ** 2 for x, _ in points)
