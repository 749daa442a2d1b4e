"""What ``make test`` runs: what shows the most in three minutes on two cores. ``make test-all`` runs all but ``long``.

Its parts:

- pure: the unit tests;
- verbs: every verb of the store in every state;
- simulated: 2,000 windows under faults, each answer held against the model;
- real: for each row of docs/reports/evidence.md the first test that it names, with real beats, workers and
  signals, ``long`` or not. So the shortest one stands first there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import figures
import pytest

#: Where pytest's cache keeps the ids of the tests that the last ``make test`` passed.
PASSED = "once/passed"
PARTS = ("pure", "verbs", "simulated", "real")
#: Seconds from which a test is too long for it, on a machine with two cores.
SLOW = 15.0
_ROOT = Path(__file__).parent.parent
_EVIDENCE = _ROOT / "docs" / "reports" / "evidence.md"
_SIMULATED = ("test_two_thousand_windows_and_the_model", "test_what_was_found_once_stays_mended")


def chosen(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return those that it runs; of a test of the table that has parameters, the first ones."""
    real = figures.first_named(_EVIDENCE.read_text())
    found, seen = [], set()
    for item in items:
        name = getattr(item, "originalname", item.name)
        if part_of(item.nodeid) == "real":
            if name not in real or name in seen:
                continue
            seen.add(name)
        elif part_of(item.nodeid) != "simulated" and item.get_closest_marker("long"):
            continue
        found.append(item)
    # What takes longest begins first, so that nothing is left to wait for at the end.
    return sorted(found, key=lambda item: part_of(item.nodeid) != "simulated")


def rest(items: Iterable[pytest.Item], passed: Iterable[str]) -> list[pytest.Item]:
    """Return those that ``make test`` hasn't passed, and the verbs, which a newer server has to answer, too."""
    known = {re.sub(r"@[^\]]*$", "", nodeid) for nodeid in passed}  # without the group, which xdist puts behind it
    return [item for item in items if item.nodeid not in known or part_of(item.nodeid) == "verbs"]


def may_run(path: Path) -> bool:
    """Whether it runs any test of this file; True for a folder."""
    if path.suffix != ".py" or part_of(path.relative_to(_ROOT).as_posix()) != "real":
        return True
    tests = {*_SIMULATED, *figures.first_named(_EVIDENCE.read_text())}
    return not tests.isdisjoint(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))


def part_of(nodeid: str) -> str:
    """Return the part to which a test belongs; "real" for every other."""
    if nodeid.startswith("tests/unit/"):
        return "pure"
    if nodeid.startswith("tests/integration/test_store_verbs.py"):
        return "verbs"
    return "simulated" if nodeid.partition("::")[2].partition("[")[0] in _SIMULATED else "real"


def times(reports: Sequence[pytest.TestReport]) -> list[str]:
    """Return a line for each part, and one for each test that is too slow for it."""
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        seconds[report.nodeid] += report.duration
    lines = []
    for part in PARTS:
        its = [taken for nodeid, taken in seconds.items() if part_of(nodeid) == part]
        lines.append(f"{part:10}{len(its):6} tests{sum(its):8.0f} s, side by side")
    slow = sorted((taken, name) for name, taken in seconds.items() if taken > SLOW and part_of(name) != "simulated")
    lines += [f"slow for make test: {nodeid}, {taken:.0f} s; see tests/README.md" for taken, nodeid in reversed(slow)]
    return lines
