"""Mutants of the pure core, as mutmut makes them: code without I/O and without a clock of its own.

mutmut writes all mutants of a file beside each other, and a function chooses one as it is called. So one import serves
them all. What stands outside of functions and what is decorated mutmut leaves alone. What an error or a finding says is
left alone too: a word of prose more is no fault.
"""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from operator import eq
from pathlib import Path

from mutmut.mutation import trampoline
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name, mangled_name_from_mutant_name

from .trial import Change, Mutant

PURE = ("*/reading.py", "**/reasons.py", "outcomes.py", "rules/*.py", "schedules/*.py", "store/codec.py", "windows.py")
#: Not those whose pytest is a process of its own, those that count lines (the copy has a function for each mutant), nor
#: those that need the alarm clock, by which a trial ends.
TESTS = ["tests/unit", *(f"--ignore=tests/unit/test_{name}.py" for name in ("pytest_plugin", "size", "guard"))]


def mutants(package: Path, folder: Path) -> list[Mutant]:
    """All of them, in a copy of the package, which is imported from then on."""
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    sys.path.insert(0, str(folder))
    made = []
    for path in sorted(path for pattern in PURE for path in package.glob(pattern)):
        name, source = path.relative_to(package.parent), path.read_text()
        mutated = mutate_file_contents(str(name), source)
        (folder / name).write_text(mutated.code)
        lines, copies, originals = mutated.code.splitlines(), _functions(mutated.code), _functions(source)
        for each in mutated.mutant_names:
            called = mangled_name_from_mutant_name(each)
            nodes = copies[f"{called}__mutmut_orig"], copies[each]
            line, gone, come = _differ(*(lines[node.lineno : node.end_lineno] for node in nodes))  # without its name
            at = originals[called].lineno + 1 + line
            made.append(Mutant(str(path.relative_to(package)), at, gone, come, get_mutant_name(name, each)))
    return made


def _functions(code: str) -> dict[str, ast.FunctionDef]:
    """Those that mutmut changes, by the names that it gives to their mutants."""
    found = {}
    for node in ast.parse(code).body:
        within = f"xǁ{node.name}ǁ" if isinstance(node, ast.ClassDef) else "x_"
        for each in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, ast.FunctionDef):
                found[each.name if "__mutmut_" in each.name else within + each.name] = each
    return found


def _differ(was: list[str], now: list[str]) -> tuple[int, str, str]:
    """The first line that differs, and the lines that do: there is one place."""
    first = _alike(was, now)
    same = min(_alike(was[::-1], now[::-1]), len(was) - first, len(now) - first)
    gone, come = ("\n".join(lines[first : len(lines) - same]) for lines in (was, now))
    return min(first, len(was) - 1), gone, come


def _alike(one: list[str], other: list[str]) -> int:
    """With how many equal lines they begin."""
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))


class Python:
    """Which functions a test calls, and which mutant is in place."""

    def __init__(self) -> None:
        self.active = ""
        self._choose()

    def _choose(self) -> None:
        """Each call of a function asks: mutmut's own looks into the environment."""
        trampoline.get_mutant_under_test = lambda: self.active

    def last_test(self) -> list[str]:
        return []

    @contextmanager
    def noting(self) -> Iterator[Callable[[], set[str]]]:
        functions = set()

        def asked() -> str:
            functions.add(sys._getframe(1).f_locals["orig_func"])  # a test counts calls: no more of them
            return ""

        def called() -> set[str]:
            found = {f"{each.__module__}.{mangled_name_from_mutant_name(each.__name__)}" for each in functions}
            functions.clear()
            return found

        trampoline.get_mutant_under_test = asked
        yield called
        self._choose()

    @contextmanager
    def with_it(self, mutant: Mutant) -> Iterator[Change]:
        self.active = mutant.name
        yield Change({mangled_name_from_mutant_name(mutant.name)})
        self.active = ""
