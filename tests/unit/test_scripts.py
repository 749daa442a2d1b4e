"""What stands between Python and Lua: names of arguments and keys, outcomes, the form of a beat's report."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

import celery_once_beat
from celery_once_beat import features
from celery_once_beat.outcomes import COUNTED, ENDED_BY_RULE
from celery_once_beat.settings import Settings
from celery_once_beat.store import Store, scripts
from celery_once_beat.windows import WindowKey, format_instant

PACKAGE = Path(celery_once_beat.__file__).parent
FILES = {str(path.relative_to(PACKAGE))[:-4]: path.read_text() for path in sorted(PACKAGE.rglob("*.lua"))}
VERBS = {verb.name: verb for verb in scripts.all_verbs()}
#: As celery_once_beat.features lists them.
HOOKS = set(re.findall(r"``(\w+)\(", (features.__doc__ or "").partition("In Python")[0]))


def names(text: str) -> set[str]:
    return set(re.findall(r"\w+", re.sub(r"'[^']*'", "", text)))


def reached(script: str) -> str:
    """Return what a script may carry out: what stands outside of functions, and those that are called from there."""
    function = re.compile(r"^local function (\w+).*?^end$", re.MULTILINE | re.DOTALL)
    functions = {found[1]: found[0] for found in function.finditer(script)}
    code = function.sub("", script)
    while called := functions.keys() & names(code):
        code += "".join("\n" + functions.pop(name) for name in sorted(called))
    return code


@pytest.mark.parametrize("name", VERBS)
def test_each_name_is_declared_and_used(name: str) -> None:
    """A key or argument that the Lua doesn't use, or uses and isn't given, is a mistake."""
    verb = VERBS[name]
    given = [*verb.key_names, *verb.kinds, *filter(None, [verb.more_keys])]
    declared = {given_name.upper() for given_name in given}
    assert len(given) == len(declared)
    code = "\n".join(line for line in reached(verb.script).splitlines() if not re.search(r"\b(KEYS|ARGV)\b", line))
    assert declared <= names(code)
    constants = {made for line in re.findall(r"^local ([A-Z][A-Z_, ]+) =", code, re.MULTILINE) for made in names(line)}
    assert {found for found in names(code) if found.isupper()} <= declared | constants
    assert not re.search(r"\b(KEYS|ARGV)\b", verb.source.parts[-1][1])


def test_each_file_is_a_verbs_or_used_by_one() -> None:
    """What no verb needs is deleted."""
    included = {part for verb in VERBS.values() for part in verb.source.parts}
    names_of_parts = {name for name, _ in included}
    assert names_of_parts - FILES.keys() == HOOKS
    assert FILES.keys() <= names_of_parts
    functions = re.findall(r"^local function (\w+)", code := "\n".join(text for _, text in included), re.MULTILINE)
    assert not [name for name in functions if len(re.findall(rf"\b{name}\b", code)) < 2]


def test_the_head_of_a_command_is_kept() -> None:
    """A window's command is the same byte for byte whether its head is new or kept from a name of the same length."""
    given = {"owner": "A", "lease": 30.0, "retry": 0, "tracked": True, "overlap": "allow", "no_slot": ""}
    kept, new = (Store(Settings(redis_url="redis://", key_prefix="a\x01:", fast=fast)) for fast in (True, False))
    for name in ("a", "b", "\v", "\f", "\v\f", "ü", "ab", "\r\n", "\udcff", "a" * 27, "\f" * 27, "a" * 300, "b" * 300):
        for hours in range(2):
            window = WindowKey(name, datetime(2026, 1, 1, hours, tzinfo=timezone.utc))
            found = kept.of_window(scripts.BEGIN, window, **given)
            assert found.packed == new.of_window(scripts.BEGIN, window, **given).packed
            start = format_instant(window.start)
            assert found.keys == [kept.keys.of_window(window, start)[key] for key in scripts.BEGIN.key_names]
    assert 0 < len(kept._heads) < 20
    assert not new._heads


def test_lua_and_python_know_the_same_outcomes() -> None:
    """Each outcome is recorded by a script, and each that a script records is one that people are shown."""
    lua = "\n".join(re.sub(r"\s*--.*", "", text) for text in FILES.values())
    assert set(COUNTED) <= set(re.findall(r"'(?:c:)?([a-z_]+)'", lua)), "a script records each"
    recorded = r"(?:close_window\([^\n]*, |\boutcome = |\bOUTCOME [=~]= |end_as == |c:)'?([a-z_]+)'"
    assert set(re.findall(recorded, lua)) - {"unknown"} <= set(COUNTED), "each has a row in outcomes.py"
    rules = re.findall(r"(?:return|and|or) '([a-z_]+)'", FILES["store/lua/pieces/end_rules"])
    verdicts = re.findall(r"\boutcome = '([a-z_]+)'", lua)
    assert {*rules, *verdicts} == ENDED_BY_RULE, "ENDED_BY_RULE of outcomes.py: what end_rules.lua or a verdict names"


def test_the_store_has_one_door() -> None:
    """Other boxes import from the store itself, whose names take no raw command; features' verbs and lookup don't."""
    inside = re.compile(r"celery_once_beat\.store\.\w|from celery_once_beat import store\b|import redis\b")
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert not [name for name, text in texts.items() if not re.search("store|lookup", name) and inside.search(text)]


@pytest.mark.parametrize("name", VERBS)
def test_a_piece_stands_once_before_what_names_it(name: str) -> None:
    """Lua would take a local that is declared later for a global, and one that is declared again for another one."""
    lines = [re.sub(r"'[^']*'", "", line) for line in VERBS[name].script.splitlines()]
    declared: dict[str, int] = {}
    for number, line in enumerate(lines):
        for made in re.findall(r"^local (?:function (\w+)|([A-Z][A-Z_, ]+))", line):
            for each in names(" ".join(made)):
                assert each not in declared, f"{each} is declared twice"
                declared[each] = number
    for number, line in enumerate(lines):
        assert not [each for each in names(line) if declared.get(each, -1) > number], line


@pytest.mark.parametrize("name", FILES)
def test_a_file_includes_what_it_uses(name: str) -> None:
    """What no line uses isn't included, and no file of the core names a feature's."""
    text = FILES[name]
    code = re.sub(r"--.*", "", text)
    for piece in (each for line in re.findall(r"^-- include: (.*)$", text, re.MULTILINE) for each in line.split(", ")):
        own = f"{name.rpartition('/')[0]}/{piece}"
        file = FILES.get(own) or FILES[f"store/lua/pieces/{piece}"]
        declared = re.findall(r"^local (?:function )?([\w, ]+)", file, re.MULTILINE)
        names_of = {each for made in declared for each in re.findall(r"\w+", made)}
        assert names_of & names(code) or piece in {"now", "values"}, f"{name} includes {piece}"
    for hook in (each for line in re.findall(r"^-- hooks: (.*)$", text, re.MULTILINE) for each in line.split(", ")):
        assert hook in names(code), f"{name} names the hook {hook}"


def test_without_features_a_script_has_none_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core's scripts need no feature."""
    monkeypatch.setattr(scripts, "FEATURES", ())
    verbs = [replace(verb) for verb in VERBS.values() if not verb.feature]
    assert not [file for verb in verbs for file, _ in verb.source.parts if file.startswith("features/")]
