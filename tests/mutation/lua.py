"""Mutants of the Lua: each is one file of ``store/lua/`` with one small change.

Nothing of the tree is touched: the process that tests them makes its scripts from a folder of its own.

Not changed: comments, words that Python takes for any other, patterns of ``string.match``, texts that an error carries,
and how a piece is declared, since ``scripts`` reads that.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery_once_beat.store import scripts

from .trial import Change, Mutant

__all__ = ("TESTS", "Lua", "mutants")

#: Tests that call verbs in their own process, since those that they start take the scripts of the tree. Not those that
#: try random orders of steps: each takes half a minute, and every mutant that survives would meet them.
TESTS = [
    *(f"tests/integration/test_{name}.py" for name in (
        "store_verbs", "buffers", "limits", "notices", "unconsumed", "definition_verbs", "garbage", "times", "lookup",
        "exchanges", "keyed", "view", "waiting", "execution_steps", "recovery",
    )),
]  # fmt: skip


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
#: A comment, a text, a word, a number, two dots, an operator.
_TOKEN = re.compile(r"--.*|'[^']*'|not |[A-Za-z_][\w.:]*|\d+(?:e\d+)?|\.\.|[=~<>]=|[<>+*/-]")
#: The first line of a call or of an assignment.
_STATEMENT = re.compile(r"^ *(?!local |return\b|if |elseif |for |while |repeat|until |end\b|else\b|break)[\w.]+[^\n]*$")
#: Python reads any other word as these.
_ELSE = {"'no'", "'unchanged'", "'stale'", "'unknown'", "'gone'"}
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
        elif found[0].isdigit():
            changes = [str(int(float(found)) + 1 if float(found) < _SMALL else int(float(found)) * 2)]
        elif found == "-" and re.search(r"[(,=]\s*$", code[: token.start()]):
            changes = []  # a sign
        else:
            changes = _OPERATORS.get(found, []) if "operator" in words else []
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
    """Which verbs a test calls, and which mutant is in place."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder = folder
        shutil.copytree(source, folder / "lua")
        scripts.files = lambda _: folder  # type: ignore[assignment]
        self.scripts = _scripts()

    @contextmanager
    def noting(self, called: set[str]) -> Iterator[None]:
        call_with = scripts.Verb.call_with

        def noted(verb: scripts.Verb[Any], *args: Any) -> Any:
            called.add(verb.name)
            return call_with(verb, *args)

        scripts.Verb.call_with = noted  # type: ignore[method-assign]
        yield
        scripts.Verb.call_with = call_with  # type: ignore[method-assign]

    @contextmanager
    def with_it(self, mutant: Mutant) -> Iterator[Change]:
        file = self.folder / "lua" / mutant.path
        was = file.read_text()
        file.write_text(mutant.name)
        _make_anew()
        now = _scripts()
        changed = {name for name in now if now[name] != self.scripts[name]}
        yield Change(changed, [now[name] for name in changed])
        file.write_text(was)
        _make_anew()


def _verbs() -> list[scripts.Verb[Any]]:
    return [value for value in vars(scripts).values() if isinstance(value, scripts.Verb)]


def _scripts() -> dict[str, str]:
    return {verb.name: verb.script for verb in _verbs()}


def _make_anew() -> None:
    scripts._PIECES = scripts._read_pieces()
    for verb in _verbs():
        for name in ("script", "sha", "_evalsha"):
            vars(verb).pop(name, None)
