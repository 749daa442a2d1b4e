"""Mutants of the pure core, as mutmut makes them: code without I/O and without a clock of its own.

mutmut writes all mutants of a file beside each other, and a function chooses one as it is called. So one import serves
them all. What stands outside of functions and what is decorated mutmut leaves alone. What an error or a finding says is
left alone too: a word of prose more is no fault.
"""

from __future__ import annotations

import ast
import difflib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mutmut.mutation import trampoline
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name, mangled_name_from_mutant_name

from .trial import Change, Mutant

__all__ = ("PURE", "TESTS", "Python", "mutants")

PURE = ("beat/reasons.py", "outcomes.py", "rules/*.py", "schedules/*.py", "store/codec.py", "windows.py")
TESTS = ["tests/unit", "tests/integration/test_import_redbeat.py"]


def mutants(package: Path, folder: Path, at: list[str]) -> list[Mutant]:
    """All of them, or those of the files ``at``, in a copy of the package, which is imported from then on."""
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    sys.path.insert(0, str(folder))
    made = []
    wanted = {each.partition(":")[0] for each in at}
    for path in sorted(path for pattern in PURE for path in package.glob(pattern)):
        name, source = path.relative_to(package.parent), path.read_text()
        if wanted and str(path.relative_to(package)) not in wanted:
            continue
        mutated = mutate_file_contents(str(name), source)
        (folder / name).write_text(mutated.code)
        lines = mutated.code.splitlines()
        lines_at = {line: number for number, line in enumerate(source.splitlines(), 1)}
        functions = {
            node.name: lines[node.lineno - 1 : node.end_lineno]
            for node in ast.walk(ast.parse(mutated.code))
            if isinstance(node, ast.FunctionDef) and "__mutmut" in node.name
        }
        for each in mutated.mutant_names:
            lines_of = functions[f"{mangled_name_from_mutant_name(each)}__mutmut_orig"], functions[each]
            was, now = _differ(*lines_of)
            line = lines_at.get(was.partition("\n")[0], 0)
            made.append(Mutant(str(path.relative_to(package)), line, was, now, get_mutant_name(name, each)))
    return made


def _differ(was: list[str], now: list[str]) -> tuple[str, str]:
    lines = [*difflib.ndiff(was[1:], now[1:])]  # the first names the function
    gone, come = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
    return gone, come


class Python:
    """Which functions a test calls, and which mutant is in place."""

    def __init__(self) -> None:
        self.active = ""
        self.called: set[str] = set()
        # Each call of a function asks: mutmut's own looks into the environment, and at who called.
        trampoline.get_mutant_under_test = lambda: self.active
        trampoline.record_trampoline_hit = lambda name, **_: self.called.add(name)

    @contextmanager
    def noting(self, called: set[str]) -> Iterator[None]:
        self.called, self.active = called, "stats"
        yield
        self.active = ""

    @contextmanager
    def with_it(self, mutant: Mutant) -> Iterator[Change]:
        self.active = mutant.name
        yield Change({mangled_name_from_mutant_name(mutant.name)})
        self.active = ""
