"""The judge reads what a chaos run wrote: what is wrong in a ledger is found, what a fault allowed isn't."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from chaos.entries import ENTRIES
from simulation.judge_chaos import judge_ledger, main
from simulation.judge_times import HistoryError

WALL = 1_795_426_720.0  # what the wall clock shows at 0 of the monotonic clock; a whole number of seconds
FIRST, LAST, END = 20.0, 60.0, 80.0  # the faults, and the end of the run
WORKER, OTHER = 100, 200  # groups; their processes are 101 and 201


class Written:
    """A ledger of a run in which every window is done, and what is changed of it."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.number = 0
        self.line("clock", 1, pid=1, epoch=-WALL)
        self.fault("none", FIRST).fault("none", LAST)
        for entry, (_, every, seconds) in ENTRIES.items():
            first = -WALL % every
            for step in range(3, int(END / every)):
                self.run(entry, first + step * every, seconds=seconds)
        self.line("waits", END, pid=101)

    def line(self, kind: str, mono: float, **fields: Any) -> Written:
        self.lines.append({"kind": kind, "mono": mono, "at": WALL + mono, **fields})
        return self

    def fault(self, effect: str, at: float, of: int | None = None, until: float | None = None) -> Written:
        self.number += 1
        self.line("fault", at, pid=1, name="…", number=self.number, effect=effect, of=of)
        return self if until is None else self.line("over", until, pid=1, number=self.number)

    def run(self, entry: str, due: float, at: float | None = None, seconds: float = 0.02, **told: Any) -> Written:
        """An execution with all of its lines, or without some of them."""
        at = due + 0.1 if at is None else at
        group = told.get("group", OTHER)
        start = datetime.fromtimestamp(WALL + due, timezone.utc).isoformat(timespec="microseconds")
        fence = round((WALL + told["begun"]) * 1000 if "begun" in told else at * 1e6)
        who = {"pid": group + 1, "entry": entry, "start": start.replace("+00:00", "Z"), "fence": fence}
        self.line("start", at, **who, group=group, retries=0)
        for kind in told.get("kinds", ("finish", "recorded")):
            seconds += 0.01 * (kind == "recorded")
            self.line(
                kind, at + seconds, **who, **({"group": group, "retries": 0} if kind in {"finish", "retry"} else {})
            )
        return self

    def without(self, due: float, *kinds: str, entry: str = "short0") -> Written:
        """Without these lines of a window."""
        text = (
            datetime.fromtimestamp(WALL + due, timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
        )
        self.lines = [
            line
            for line in self.lines
            if (line.get("entry"), line.get("start")) != (entry, text) or (kinds and line["kind"] not in kinds)
        ]
        return self

    def to(self, path: Path) -> Path:
        path.write_text("".join(json.dumps(line) + "\n" for line in sorted(self.lines, key=lambda line: line["mono"])))
        return path


def killed(*, at: float = 30.5, kinds: tuple[str, ...] = ()) -> Written:
    """The worker that executes the window of 30 is killed, and the window runs again."""
    made = Written().without(30).run("short0", 30, group=WORKER, kinds=kinds)
    return made.fault("death", at, WORKER).run("short0", 30, 35)


def frozen(until: float, of: int | None = WORKER) -> Written:
    """Who executes the window of 30 is out of contact; another one runs from 32 on; then the first one ends."""
    made = Written().without(30).run("short0", 30, 30.1, group=WORKER, seconds=6, kinds=("finish",))
    return made.fault("out", 30.2, of, until).run("short0", 30, 32)


def begun_long_before(until: float) -> Written:
    """An execution of 30 begins, and is frozen before its first line; another one runs from 33 on."""
    made = Written().without(30).run("short0", 30, 34.5, group=WORKER, begun=30.2, kinds=("finish",))
    return made.fault("out", 30.3, WORKER, until).run("short0", 30, 33, begun=32.9, seconds=2)


def backwards() -> Written:
    """The execution that follows has a smaller fence."""
    made = killed()
    for line in made.lines:
        if line["pid"] == WORKER + 1:
            line["fence"] = 35 * 10**6 + 1
    return made


KEPT: dict[str, Callable[[], Written]] = {
    "nothing happens": Written,
    "it was skipped, since newer ones waited": lambda: Written().without(30, entry="newest waits"),
    "its worker is killed in the body": lambda: killed(at=30.11),
    "its worker is killed before the record": lambda: killed(kinds=("finish",)),
    "its worker's link is slow, and then it is frozen": lambda: (
        frozen(39).fault("slow", 35, WORKER, 38).fault("out", 37, WORKER, 40)
    ),
    "killed long after the last line, and no record": lambda: killed(at=33, kinds=("finish",)),
    "its worker is frozen for longer than its lease": lambda: frozen(34),
    "it is frozen before its first line": lambda: begun_long_before(33.5),
    "the store is away for longer": lambda: frozen(33, None),
    "the store loses its data": lambda: Written().fault("flush", 33).run("short0", 30, 40),
    "the store loses its data, and the window with it": lambda: Written().without(30).fault("flush", 30.05),
    "its own retries": lambda: Written().without(30).run("short0", 30, kinds=("retry",))
    .run("short0", 30, 31, kinds=("retry",)).run("short0", 30, 32),
    "recorded, but the line of it is missing": lambda: Written().without(30, "recorded"),
}  # fmt: skip
BROKEN: dict[str, tuple[str, Callable[[], Written]]] = {
    "lost": ("lost", lambda: Written().without(30)),
    "begun and never ended": ("lost", lambda: Written().without(30, "finish", "recorded")),
    "done twice": ("repeat", lambda: Written().run("short0", 30, 40)),
    "done twice, and another worker was killed": (
        "repeat",
        lambda: Written().run("short0", 30, 40).run("short0", 90, group=WORKER, kinds=()).fault("death", 30.12, WORKER),
    ),
    "recorded twice": ("records", lambda: Written().run("short0", 30, 40)),
    "begun after its record": ("again", lambda: Written().run("short0", 30, 40, kinds=())),
    "frozen before its first line, for less than its lease": ("overlap", lambda: begun_long_before(30.6)),
    "two at once": ("overlap", lambda: frozen(30.5)),
    "begun and not done, where others are skipped": (
        "lost",
        lambda: Written().without(30, entry="newest waits").run("newest waits", 30, group=WORKER, kinds=()),
    ),
    "early": ("early", lambda: Written().without(30).run("short0", 30, 29.9)),
    "on no grid": ("not-owed", lambda: Written().run("short0", 30.5, 30.6)),
    "done twice long after a flush": ("repeat", lambda: Written().fault("flush", 25).run("short0", 30, 40)),
    "killed long after its record": ("repeat", lambda: killed(at=33, kinds=("finish", "recorded"))),
    "its record was forgotten, and its worker is killed much later": (
        "repeat",
        lambda: (
            Written()
            .without(30)
            .run("short0", 30, group=WORKER, kinds=("finish",))
            .run("short0", 30, 35)
            .fault("death", 50, WORKER)
        ),
    ),
    "a smaller fence": ("fence", backwards),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_a_fault_allowed_is_clean(case, tmp_path):
    """A ledger of a system that keeps the promise is clean, and all of it was judged."""
    judgement = judge_ledger(KEPT[case]().to(tmp_path / "ledger"))
    assert judgement.clean, judgement.violations
    assert judgement.counts["owed"] > 200
    assert judgement.counts["executions"] > 300


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_in_a_ledger_is_found(case, tmp_path):
    """What breaks the promise is found by its rule."""
    rule, made = BROKEN[case]
    assert rule in judge_ledger(made().to(tmp_path / "ledger")).found


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "no line tells the clock"),
        ([{"kind": "clock", "mono": 1, "pid": 1, "epoch": 0}], "no fault"),
        ([{"kind": "clock"}], "line 1: KeyError: 'mono'"),
        (["…"], "line 1: TypeError"),
    ],
)
def test_what_is_no_ledger_is_refused(lines, expected, tmp_path, capsys):
    """It ends with one line that says what was missing."""
    file = tmp_path / "ledger"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(HistoryError, match=expected):
        judge_ledger(file)
    assert main([str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"not a ledger: {expected}")


def test_the_command_prints_what_it_found(tmp_path, capsys):
    """Each violation is a line, the counts come last; a line that is still being written isn't read."""
    file = Written().to(tmp_path / "ledger")
    with file.open("a") as more:
        more.write('{"kind": "sta')
    assert main([str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["violations"] == {}
    assert main([str(Written().without(30).to(file))]) == 1
    violation, counts = map(json.loads, capsys.readouterr().out.splitlines())
    assert (violation["rule"], violation["entry"], violation["start"]) == ("lost", "short0", 30.0)
    assert counts["violations"] == {"lost": 1}
