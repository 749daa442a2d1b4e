"""The package stays as small as it is."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import celery_once_beat
from celery_once_beat.store import scripts
from celery_once_beat.store.scripts import BEGIN, Verb

ROOT = Path(__file__).parents[2]
PACKAGE = Path(celery_once_beat.__file__).parent
#: Code lines: neither blank ones, nor comments, nor docstrings.
MOST = {
    "Python": 19_310,
    "Lua": 1_704,
    "the largest module": 380,
    "tests": 37_872,
    "words of README": 900,
    "words of docs": 23_998,
    "characters of a begin without features": 14_223,
}
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def python_lines(path: Path) -> int:
    text = path.read_text()
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            code -= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    return len(code)


def words(page: Path) -> int:
    return len(re.findall(r"\S+", page.read_text()))


def lua_lines(path: Path) -> int:
    return sum(bool(line.strip()) and not line.strip().startswith("--") for line in path.read_text().splitlines())


def _without_features(verb: Verb[Any]) -> Verb[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "FEATURES", ())
        alone = replace(verb)
        assert alone.source
        return alone


FIGURES: dict[str, Callable[[], int]] = {
    "Python": lambda: sum(map(python_lines, PACKAGE.rglob("*.py"))),
    "Lua": lambda: sum(map(lua_lines, PACKAGE.rglob("*.lua"))),
    "the largest module": lambda: max(map(python_lines, PACKAGE.rglob("*.py"))),
    "tests": lambda: sum(map(python_lines, (ROOT / "tests").rglob("*.py"))),
    "words of README": lambda: words(ROOT / "README.md"),
    "words of docs": lambda: sum(words(page) for page in (ROOT / "docs").rglob("*.md") if "reports" not in page.parts),
    "characters of a begin without features": lambda: len(_without_features(BEGIN).script),
}


@pytest.mark.parametrize("what", [pytest.param(what, marks=[pytest.mark.long] * (what == "tests")) for what in MOST])
def test_nothing_grows(what: str) -> None:
    """What is added replaces something; where a figure has fallen, MOST falls with it."""
    found = FIGURES[what]()
    assert found <= MOST[what], f"{what}: found {found:,}, expected at most {MOST[what]:,}"
