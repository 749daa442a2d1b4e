"""Figures of docs/reports/evidence.md: what the tests of its table measured while they ran, by ``make figures``.

Each test that runs the system leaves a line; from all of them come a report, and the last column of the table.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ledger import Ledger

#: Seconds before a test's first line after which its windows may have started.
_MADE_UP = 300.0
_TITLE = "## Which test shows it"
_TEST = re.compile(r"`(\w+)`")


@dataclass
class Figures:
    """Windows done, how many of them were recorded twice, and the most seconds that one began after its start."""

    windows: int = 0
    twice: int = 0
    latest: float = 0.0

    def add(self, other: Figures) -> None:
        self.windows += other.windows
        self.twice += other.twice
        self.latest = max(self.latest, other.latest)

    def __str__(self) -> str:
        twice = f"{self.twice} twice" if self.twice else "none twice"
        return f"{self.windows} windows, {twice}, latest {self.latest:.1f} s" if self.windows else ""


def named(page: str) -> set[str]:
    """Names of the tests that the table names."""
    return {f"test_{name}" for row in _rows(page) for name in _TEST.findall(row[1])}


def first_named(page: str) -> set[str]:
    """Names of the first test of each row."""
    return {f"test_{names[0]}" for row in _rows(page) if (names := _TEST.findall(row[1]))}


def note(path: Path, test: str, ledger: Ledger) -> None:
    """Add a line for what ``ledger`` saw of one test; windows that a message made up aren't any of beat's."""
    epoch = time.monotonic() - time.time()
    begun = min((event["mono"] - epoch for event in ledger.read()), default=0.0)
    events = [event for event in ledger.read("recorded") if _seconds(event["start"]) > begun - _MADE_UP]
    recorded = Counter((event["entry"], event["start"]) for event in events)
    # The execution that was recorded is the one that counts, however many began before it.
    began = {_execution(event): event["mono"] - epoch for event in ledger.read("start") if "entry" in event}
    late = [began[_execution(event)] - _seconds(event["start"]) for event in events if _execution(event) in began]
    figures = Figures(len(recorded), sum(times > 1 for times in recorded.values()), max(late, default=0.0))
    with path.open("a") as file:
        file.write(json.dumps({"test": test, **vars(figures)}) + "\n")


def _seconds(start: str) -> float:
    return datetime.fromisoformat(start.replace("Z", "+00:00")).timestamp()


def _execution(event: Mapping[str, Any]) -> tuple[Any, ...]:
    return event["entry"], event["start"], event.get("fence")


def read(path: Path) -> dict[str, Figures]:
    """Sum up the lines of each test."""
    found: dict[str, Figures] = defaultdict(Figures)
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        found[fields.pop("test")].add(Figures(**fields))
    return found


def report(figures: dict[str, Figures], where: str) -> str:
    """The report, as Markdown."""
    rows = [
        f"| `{test}` | {each.windows} | {each.twice} | {each.latest:.1f} s |"
        for test, each in sorted(figures.items())
        if each.windows
    ]
    return "\n".join(
        [
            "# Failures, measured",
            "",
            f"`make figures`, {where}.",
            "",
            "Settings of these tests: claim_lease 1 s, recovery_interval 0.3 s, lease 1.5 s, start_timeout 3 s,",
            "unless a test says otherwise. Latest: how long after its start the execution began that was recorded.",
            "",
            "| test | windows done | recorded twice | latest |",
            "| --- | ---: | ---: | ---: |",
            *rows,
            "",
        ]
    )


def report_of(text: str) -> dict[str, Figures]:
    """Read a report back."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| ([\d.]+) s \|$", text, re.MULTILINE)
    return {test: Figures(int(windows), int(twice), float(latest)) for test, windows, twice, latest in rows}


def fill(page: str, figures: dict[str, Figures]) -> str:
    """Write the table's last column: the sum over the tests that a row names.

    What stands there is left where none of these runs the system as a whole.
    """
    for _, shown, measured in _rows(page):
        new = _sum(figures, _TEST.findall(shown)) or measured
        page = page.replace(f"| {shown} | {measured} |", f"| {shown} | {new} |")
    return page


def _rows(page: str) -> list[list[str]]:
    """The rows of the table: failure, tests, what was measured."""
    lines = [line for line in page.partition(_TITLE)[2].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def _sum(figures: dict[str, Figures], tests: Iterable[str]) -> str:
    total = Figures()
    for test in tests:
        total.add(figures.get(f"test_{test}", Figures()))
    return str(total)
