"""Mutants of the pure core, as mutmut makes them: code without I/O and without a clock of its own.

mutmut writes all mutants of a file beside each other, and a function chooses one as it is called. So one import serves
them all. What stands outside of functions and what is decorated mutmut leaves alone. What an error or a finding says is
left alone too: a word of prose more is no fault.
"""

from __future__ import annotations

import ast
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from operator import eq
from pathlib import Path

from coverage import Coverage
from mutmut.mutation import trampoline
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name, mangled_name_from_mutant_name

from .trial import Change, Mutant

PURE = ("*/reading.py", "**/reasons.py", "outcomes.py", "rules/*.py", "schedules/*.py", "store/codec.py", "windows.py")
#: Not those whose pytest is a process of its own, those that count lines (the copy has a function for each mutant), nor
#: those that need the alarm clock, by which a trial ends.
TESTS = ["tests/unit", *(f"--ignore=tests/unit/test_{name}.py" for name in ("pytest_plugin", "size", "guard"))]


def mutants(package: Path, folder: Path, at: list[str]) -> tuple[list[Mutant], Places]:
    """All of them, or those of the files ``at``, in a copy of the package, which is imported from then on."""
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    sys.path.insert(0, str(folder))
    made, places = [], Places()
    wanted = {each.partition(":")[0] for each in at}
    for path in sorted(path for pattern in PURE for path in package.glob(pattern)):
        name, source, short = path.relative_to(package.parent), path.read_text(), str(path.relative_to(package))
        if wanted and short not in wanted:
            places.add(folder / name, short, source, {})
            continue
        mutated = mutate_file_contents(str(name), source)
        (folder / name).write_text(mutated.code)
        lines, copies, originals = mutated.code.splitlines(), _functions(mutated.code), _functions(source)
        moved = {}  # the lines of the functions as they are, in the copy: by which they are in the source
        for called, copy in copies.items():
            if called.endswith("__mutmut_orig"):
                first = originals[called.removesuffix("__mutmut_orig")].lineno
                moved |= {line: line - copy.lineno + first for line in range(copy.lineno, (copy.end_lineno or 0) + 1)}
        places.add(folder / name, short, source, moved)
        for each in mutated.mutant_names:
            was, now = copies[f"{mangled_name_from_mutant_name(each)}__mutmut_orig"], copies[each]
            texts = (lines[node.lineno : node.end_lineno] for node in (was, now))  # the first line names the function
            line, gone, come = _differ(*texts)
            made.append(Mutant(short, moved[was.lineno + 1 + line], gone, come, get_mutant_name(name, each)))
    return made, places


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


class Places:
    """Where statements begin: a test that runs any line of one may find its mutants."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._moved: dict[str, dict[int, int]] = {}
        self._first: dict[str, dict[int, int]] = {}

    def add(self, file: Path, name: str, source: str, moved: dict[int, int]) -> None:
        """``moved``: which line of the source a line of the file is; none if they are the same."""
        first = self._first[name] = {}
        for node in ast.walk(ast.parse(source)):  # from outside to inside
            if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
                begun = getattr(node, "lineno", None) or node.pattern.lineno  # type: ignore[union-attr]
                end = getattr(node, "end_lineno", None) or begun
                first.update(dict.fromkeys(range(begun, end + 1), begun))
        self.names[str(file)], self._moved[str(file)] = name, moved or {line: line for line in first}

    def of(self, file: str, lines: Iterable[int]) -> set[str]:
        moved = self._moved[file]
        return {self.place(self.names[file], moved[line]) for line in lines if line in moved}

    def place(self, name: str, line: int) -> str:
        return f"{name}:{self._first[name].get(line, line)}"


class Python:
    """Which statements a test runs, and which mutant is in place."""

    def __init__(self, places: Places) -> None:
        self.places, self.active = places, ""
        # Each call of a function asks: mutmut's own looks into the environment.
        trampoline.get_mutant_under_test = lambda: self.active

    def last_test(self) -> list[str]:
        return []

    @contextmanager
    def noting(self) -> Iterator[Callable[[], set[str]]]:
        watched = Coverage(data_file=None, config_file=False, include=[*self.places.names], messages=False)
        watched.start()

        def called() -> set[str]:
            watched.stop()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some tests run none of it
                data = watched.get_data()
            found = {place for file in data.measured_files() for place in self.places.of(file, data.lines(file) or ())}
            watched.erase()
            watched.start()
            return found

        yield called
        watched.stop()

    @contextmanager
    def with_it(self, mutant: Mutant) -> Iterator[Change]:
        self.active = mutant.name
        yield Change({self.places.place(mutant.path, mutant.line)})
        self.active = ""
