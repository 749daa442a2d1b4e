"""Mutants of the Lua: each is one file of the package's with one small change.

Nothing of the tree is touched: the process that tests them makes its scripts from a folder of its own.

Not changed: comments, words that Python takes for any other, patterns of ``string.match``, texts that an error carries,
how a piece is declared, since ``scripts`` reads that, and on which side of a millisecond a time lies.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery_once_beat.store import scripts

from .trial import Change, Mutant

#: Tests that call verbs in their own process, since those that they start take the scripts of the tree. Not those that
#: try random orders of steps: each takes half a minute, and every mutant that survives would meet them.
TESTS = [
    f"tests/integration/test_{name}.py" for name in (
        "store_verbs", "buffers", "limits", "alert_verbs", "unconsumed", "definition_verbs", "garbage", "times",
        "lookup", "exchanges", "keyed", "view", "waiting", "execution_steps", "recovery", "claiming", "defined",
        "failure_words", "costs", "children",
    )
]  # fmt: skip

#: Comparisons whose first change moves the bound alone, and what says that times are compared.
_BOUNDS = {"<", "<=", ">", ">="}
_OF_TIMES = re.compile(r"\bNOW\b|\bdeadline\b|\bat\b|\bPTTL\b")
_BOUND_OF_TIMES = re.compile(r"(?<!#)\b(NOW|deadline|at) [<>]=? $")
_OPERATORS = {
    "==": ["~="],
    "~=": ["=="],
    "<=": ["<", ">"],
    ">=": [">", "<"],
    "<": ["<=", ">="],
    ">": [">=", "<="],
    "+": ["-"],
    "-": ["+"],
    "*": ["/"],
    "/": ["*"],
    "and": ["or"],
    "or": ["and"],
    "not ": [""],
    "true": ["false"],
    "false": ["true"],
}
#: A comment, a text, a word, a number, two dots, an operator; + 0 makes a number of a text, and so would - 0.
_TOKEN = re.compile(r"--.*|'[^']*'|not |[A-Za-z_][\w.:]*|\d+(?:e\d+)?|\.\.|[=~<>]=|[<>*/-]|\+(?! 0)")
#: The first line of a call or of an assignment.
_STATEMENT = re.compile(r"^ *(?!local |return\b|if |elseif |for |while |repeat|until |end\b|else\b|break)[\w.]+[^\n]*$")
#: Python reads any other word as these.
_ELSE = {"'no'", "'unchanged'", "'stale'", "'unknown'", "'gone'", "'busy'"}
#: So many windows are simulated for a mutant that all tests bear.
_SIMULATED = 2000
#: A larger number is a bound, and one more of it is the same bound: those are doubled.
_SMALL = 100


def mutants(folder: Path) -> list[Mutant]:
    """All of them, in the order of files and lines."""
    return [mutant for path in sorted(folder.rglob("*.lua")) for mutant in _of_file(path, path.relative_to(folder))]


def _of_file(path: Path, name: Path) -> Iterator[Mutant]:
    lines = path.read_text().splitlines(keepends=True)
    for number, line in enumerate(lines):
        last, changed = number, list(_of_line(line.rstrip("\n")))
        if _STATEMENT.match(line) and lines[number - 1].strip()[-1:] not in (",", "=", "(", "{"):
            while _depth("".join(lines[number : last + 1])):
                last += 1
            changed.append("")
        elif (condition := re.match(r"^( *(?:else)?if )(.*)( then)\b", line)) and not _is_one(condition[2]):
            changed.append(f"{condition[1]}not ({condition[2]}){condition[3]}")
        for now in changed:
            gone = last if not now else number
            text = "".join([*lines[:number], now and now + "\n", *lines[gone + 1 :]])
            yield Mutant(str(name), number + 1, "".join(lines[number : gone + 1]), now or "(deleted)", text)


def _of_line(line: str) -> Iterator[str]:
    """The line with one token of it changed."""
    code = re.sub(r"--.*", "", line)
    if re.match(r"local (function )?[\w, ]+ = [^\n]*$", code) and not re.search(r"[(<>]", code):
        words: frozenset[str] = frozenset({"number"})
    else:
        words = frozenset({"number", "operator"})
    told = re.match(r" *return\b(?! bad_field)", code) or re.search(r"[=~]= '", code)
    errs = re.search(r"\b(error|error_reply|bad_field)\(", code)
    for token in _TOKEN.finditer(code):
        found = token[0]
        if found.startswith("'"):
            command = code[: token.start()].endswith("call(")
            kept = not told or errs or command or found in _ELSE or "%" in found
            changes = [] if kept else [f"'{found[1:-1]}?'"]
        elif found[0].isdigit() and _BOUND_OF_TIMES.search(code[: token.start()]):
            changes = []
        elif found[0].isdigit():
            changes = [str(int(float(found)) + 1 if float(found) < _SMALL else int(float(found)) * 2)]
        elif found == "-" and re.search(r"[(,=]\s*$", code[: token.start()]):
            changes = []  # a sign
        else:
            changes = _OPERATORS.get(found, []) if "operator" in words else []
            if found in _BOUNDS and _OF_TIMES.search(code):
                changes = changes[1:]
        for change in changes:
            yield line[: token.start()] + change + line[token.end() :]


def _is_one(condition: str) -> bool:
    """Whether it has one operator, which is changed anyway."""
    code = re.sub(r"'[^']*'", "", condition)
    return len(re.findall(r"\b(?:and|or|not)\b|[=~<>]=|[<>]", code)) == 1


def _depth(text: str) -> int:
    """How many brackets are open at its end."""
    code = re.sub(r"'[^']*'|--.*", "", text)
    return sum(code.count(bracket) for bracket in "({") - sum(code.count(bracket) for bracket in ")}")


class Lua:
    """Which scripts a test runs, and which mutant is in place."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder = folder
        no_lua = shutil.ignore_patterns("*.py", "*.pyc", "static", "templates")
        shutil.copytree(source, folder / "lua", ignore=no_lua)
        _read_from(folder)
        self.scripts = _scripts()

    def last_test(self) -> list[str]:
        """What a mutant meets that all tests bear: a run of the simulation, each answer held against the model."""
        size = ("--seed", "1", "--windows", str(_SIMULATED))
        command = (sys.executable, "-m", "simulation", *size, "--until-wrong", "--model", "--lua")
        return [*command, str(self.folder / "lua")]

    @contextmanager
    def noting(self) -> Iterator[Callable[[], set[str]]]:
        verbs: set[str] = set()
        tail = scripts.Verb.tail

        def noted(verb: scripts.Verb[Any], *args: Any) -> Any:
            verbs.add(verb.name)
            return tail(verb, *args)

        def called() -> set[str]:
            found = verbs.copy()
            verbs.clear()
            return found

        scripts.Verb.tail = noted  # type: ignore[method-assign]
        yield called
        scripts.Verb.tail = tail  # type: ignore[method-assign]

    @contextmanager
    def with_it(self, mutant: Mutant) -> Iterator[Change]:
        file = self.folder / "lua" / mutant.path
        was = file.read_text()
        file.write_text(mutant.name)
        _read_from(self.folder)
        now = _scripts()
        changed = {name for name in now if now[name] != self.scripts[name]}
        yield Change(changed, [now[name] for name in changed])
        file.write_text(was)
        _read_from(self.folder)


def _scripts() -> dict[str, str]:
    return {verb.name: verb.script for verb in scripts.all_verbs()}


def _read_from(folder: Path) -> None:
    """Make all scripts anew."""
    scripts._LUA = folder / "lua"
    for verb in scripts.all_verbs():
        for name in ("source", "script", "sha", "_evalsha"):
            vars(verb).pop(name, None)
