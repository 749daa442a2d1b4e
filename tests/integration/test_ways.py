"""The ways of ``examples/ways``: by its own method each goes wrong, by celery-once-beat none; both are counted."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from processes import environ

from examples.ways.f_one_beat import REDBEAT
from examples.ways.story import OURS, OWN

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("ways")]

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


def processes_in(directory: Path) -> list[str]:
    """The processes that work below this directory, also where it has been removed, as the nodes and servers do."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "cwd").readlink().is_relative_to(directory):
                found.append(path.name)
    return found


# ------------------------------------------------------------------------------------------------ all of them


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str, Path]]:
    """Exit status and output of all ways, and the directory of their temporary files. They take a good minute."""
    directory = tmp_path_factory.mktemp("ways")
    env = environ({"TMPDIR": str(directory), "PYTHONPATH": str(ROOT)})
    with (directory.parent / "ways.log").open("w+") as log:
        ways = subprocess.Popen(
            [sys.executable, "-m", "examples.ways"], env=env, stdout=log, stderr=subprocess.STDOUT, cwd=directory.parent
        )
        try:
            code = ways.wait(timeout=480)
        finally:
            if ways.poll() is None:
                ways.terminate()
                ways.wait(timeout=30)
        log.seek(0)
        yield code, log.read(), directory


def test_all_ways_end_well(played: tuple[int, str, Path]) -> None:
    """The command says so, and leaves neither files nor processes behind."""
    code, text, directory = played
    assert code == 0, text
    assert "celery-once-beat: each window was executed once" in text
    assert "logs and ledgers" not in text
    assert [row[:2] for row in ROW.findall(text)] == [(way, method) for way in "ABCDEF" for method in (OWN, OURS)]
    assert list(directory.iterdir()) == []
    assert processes_in(directory) == []


@pytest.mark.parametrize("letter", list("ABCDEF"))
def test_a_way(played: tuple[int, str, Path], letter: str) -> None:
    """Its own method shows its weakness on three nodes, of which one dies; on the same, here, no window does."""
    _, text, _ = played
    figures = {
        row[1]: dict(zip(("windows", "once", "twice", "lost"), map(int, row[2:]), strict=True))
        for row in ROW.findall(text)
        if row[0] == letter
    }
    ours, own = figures[OURS], figures[OWN]
    assert ours["windows"] == own["windows"] >= 4
    assert ours == {"windows": ours["windows"], "once": ours["windows"], "twice": 0, "lost": 0}
    assert {kind for kind in ("twice", "lost") if own[kind]} == WEAKNESSES[letter]
    assert own["once"] < own["windows"]

    (story,) = re.findall(rf"^{letter}  [^\n]*\n   its own\n(.*?)\n(?=\n|\Z)", text, re.MULTILINE | re.DOTALL)
    for of_method in story.split("\n   celery-once-beat\n"):
        assert ("erin joins, from" in of_method) == (letter == "D")
        assert "node-1, node-2, node-3 are ready" in of_method
        assert len(re.findall(r"node-3 stands still \(SIGSTOP\)", of_method)) == 1
        assert len(re.findall(r"KILLED node-\d \(SIGKILL\)", of_method)) == 1


def test_whose_lock_it_was(played: tuple[int, str, Path]) -> None:
    """Way F: RedBeat's where that is installed."""
    assert f"with a lock of {'RedBeat' if REDBEAT else 'this example'}'s" in played[1]
