"""What stands between Python and Lua: names of arguments and keys, outcomes, the form of a beat's report."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import celery_once_beat
from celery_once_beat.outcomes import COUNTED, LIMITS
from celery_once_beat.store import codec, scripts
from celery_once_beat.store.model import BeatReport

PACKAGE = Path(celery_once_beat.__file__).parent
LUA = PACKAGE / "store" / "lua"
VERBS = {name: verb for name, verb in vars(scripts).items() if isinstance(verb, scripts.Verb)}
REPORT = BeatReport(offset=0.25, lag=1.5, entries=3, untracked=1, version="1.0")


def names(text: str) -> set[str]:
    return set(re.findall(r"\w+", re.sub(r"'[^']*'", "", text)))


@pytest.mark.parametrize("name", VERBS)
def test_each_name_is_declared_and_used(name: str) -> None:
    """A key or argument that the Lua doesn't use, or uses and isn't given, is a mistake."""
    verb = VERBS[name]
    given = [*verb.keys.split(), *verb.arguments, *filter(None, [verb.more_keys])]
    declared = {given_name.upper() for given_name in given}
    assert len(given) == len(declared)
    code = "\n".join(line for line in verb.script.splitlines() if not re.search(r"\b(KEYS|ARGV)\b", line))
    assert declared <= names(code)
    constants = {made for line in re.findall(r"^local ([A-Z][A-Z_, ]+) =", code, re.MULTILINE) for made in names(line)}
    assert {found for found in names(code) if found.isupper()} <= declared | constants
    assert not re.search(r"\b(KEYS|ARGV)\b", (LUA / f"{verb.name}.lua").read_text())


def test_each_file_is_a_verbs_and_each_piece_is_used() -> None:
    """What no verb needs is deleted."""
    assert {path.stem for path in LUA.glob("*.lua")} == {verb.name for verb in VERBS.values()}
    used = "\n".join(verb.script for verb in VERBS.values())
    assert not [name for name, piece in scripts._PIECES.items() if piece.splitlines()[0] not in used]


@pytest.mark.parametrize("given", [{}, {"paused": True, "until": 5}, {"until": 5}])
def test_arguments_are_given_by_name(given: dict[str, Any]) -> None:
    """A missing or an unknown one is an error, not another's place."""
    with pytest.raises(TypeError, match="pause: found the arguments"):
        scripts.PAUSE.call({"entry": "once:{1}:entry:a"}, **given)


def test_lua_and_python_know_the_same_outcomes() -> None:
    """Each outcome is recorded by a script, and each that a script records is one that people are shown."""
    lua = "\n".join(scripts._code(path.read_text()) for path in LUA.rglob("*.lua"))
    assert set(COUNTED) <= set(re.findall(r"'(?:c:)?([a-z]+)'", lua))
    recorded = r"(?:close_window\([^\n]*, |\boutcome = |\bOUTCOME [=~]= |end_as == |c:)'?([a-z]+)'"
    assert set(re.findall(recorded, lua)) - {"unknown"} <= set(COUNTED)
    limits = scripts._PIECES["limit_reached"] + scripts._PIECES["too_late"]
    assert set(re.findall(r"return '([a-z]+)'", limits)) | {"skipped"} == LIMITS


def test_a_report_may_gain_a_field() -> None:
    """Of a newer version's report this one reads what it knows."""
    newer = json.dumps({**json.loads(codec.write_report(REPORT, "")), "mood": [1, 2]})
    assert codec.read_report(newer) == REPORT


@pytest.mark.parametrize("wrong", [{"lag": "soon"}, {"entries": float("inf")}, {"version": 7}, {"offset": None}])
def test_a_report_that_is_no_report(wrong: dict[str, Any]) -> None:
    """What a stranger wrote is nothing, and no error."""
    told = json.dumps({**asdict(REPORT), **wrong})
    assert codec.read_report(told) is codec.read_report("[" * 9999) is None


def test_the_store_has_one_door() -> None:
    """Other boxes import from the store itself, whose names take no raw command."""
    inside = re.compile(r"celery_once_beat\.store\.\w|from celery_once_beat import store\b|import redis\b")
    others = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "store" not in path.parents]
    assert not [str(path) for path in others if re.search(inside, path.read_text())]


def test_a_branch_that_is_not_taken_makes_no_functions() -> None:
    """A piece stands right before what uses it, in the branch of an if where only that branch does."""
    pieces = {
        "A": "local A, B = 1, 2",
        "rare": "local function rare()\n  if A > B then\n    return deep()\n  end\n  return A\nend",
        "deep": "local function deep()\n  return 'A'\nend",
        "often": "local function often()\n  return B\nend",
    }
    pieces["B"] = pieces["A"]
    body = "local x = 1\nif x then\n  return rare()\nelseif often() then\n  return {'rare'}\nend\nreturn often()"
    rare, deep = pieces["rare"].splitlines(), pieces["deep"].splitlines()
    assert scripts._with_pieces(body, pieces).splitlines() == [
        "local x = 1",
        pieces["A"],
        *pieces["often"].splitlines(),
        "if x then",
        *[*rare[:2], *deep, *rare[2:]],
        "  return rare()",
        "elseif often() then",
        "  return {'rare'}",
        "end",
        "return often()",
    ]


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("shared", ["entry", "NOW"])
def test_what_pieces_share_is_read_before_they_stand(name: str, shared: str) -> None:
    """A verb whose pieces use the entry or the time reads it first."""
    first = next((line for line in VERBS[name].script.splitlines() if re.search(rf"\b{shared}\b(?!')", line)), None)
    assert first is None or re.match(rf"local {shared}\b", first)
