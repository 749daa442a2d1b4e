"""The ways of ``examples/ways``: by its own method each goes wrong, by celery-once-beat none; both are counted."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from processes import Processes

from examples.ways.story import OURS, OWN

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^([A-F])  \S.*?  (its own|celery-once-beat) +(\d+) +(\d+) +(\d+) +(\d+)$", re.MULTILINE)
#: What each way's own method does wrong.
WEAKNESSES = {
    "A": {"twice", "lost"},
    "B": {"lost"},
    "C": {"twice", "lost"},
    "D": {"twice", "lost"},
    "E": {"lost"},
    "F": {"lost"},
}


@pytest.mark.long
def test_each_way(procs: Processes, tmp_path: Path) -> None:
    """Its own method shows its weakness on three nodes, of which one dies; on the same, here, no window does."""
    directory = tmp_path / "ways"
    directory.mkdir()
    env = {"TMPDIR": str(directory), "PYTHONPATH": str(ROOT)}
    ways = procs.start([sys.executable, "-m", "examples.ways"], name="ways", env=env)
    assert ways.wait(480) == 0
    assert "celery-once-beat: each window was executed once" in ways.log
    assert "logs and ledgers" not in ways.log
    assert list(directory.iterdir()) == []
    figures = {
        row[:2]: dict(zip(("windows", "once", "twice", "lost"), map(int, row[2:]), strict=True))
        for row in ROW.findall(ways.log)
    }
    for letter, weaknesses in WEAKNESSES.items():
        ours, own = figures[letter, OURS], figures[letter, OWN]
        assert ours["windows"] == own["windows"] >= 4
        assert ours == {"windows": ours["windows"], "once": ours["windows"], "twice": 0, "lost": 0}
        assert {kind for kind in ("twice", "lost") if own[kind]} == weaknesses
        (story,) = re.findall(rf"^{letter}  [^\n]*\n   its own\n(.*?)\n(?=\n|\Z)", ways.log, re.MULTILINE | re.DOTALL)
        for of_method in story.split("\n   celery-once-beat\n"):
            assert ("erin joins, from" in of_method) == (letter == "D")
            assert len(re.findall(r"node-3 stands still \(SIGSTOP\)", of_method)) == 1
            assert len(re.findall(r"KILLED node-\d \(SIGKILL\)", of_method)) == 1
