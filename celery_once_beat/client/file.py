"""Schedules in a file, for those who keep them in git: written, compared with what is set, and applied.

``schedules.json`` holds a version, and each schedule by its name as :meth:`Definition.as_json` writes it, with
``paused`` where the file decides that::

    {"v": 1, "schedules": {"tenant-42/report": {"task": "proj.report", "schedule": {"type": "interval", "seconds": 9}}}}

Schedules live in 16 shards, which no one script reaches. So applying is all or nothing by these steps: all of the file
is checked before anything is written; each schedule is set only if it has the version with which the file was compared;
and where one has another by then, or Redis fails, what was set before is taken back, again only where it is as it was
set. What can't be taken back is named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_once_beat.errors import NotAppliedError, OnceError, SettingError, VersionConflictError
from celery_once_beat.schedules import Definition, check_name, check_words, naming
from celery_once_beat.wording import expect, shown

from .schedules import Schedules
from .value import Schedule, Wanted

#: Of the file.
_VERSION = 1


@dataclass(frozen=True)
class Edit:
    """A difference between a file and what is set."""

    name: str
    #: What is set; None: nothing.
    before: Schedule | None
    #: What the file has; None: nothing, and it is pruned.
    after: Wanted | None

    @property
    def what(self) -> str:
        """``add``, ``change`` or ``delete``."""
        return "delete" if self.after is None else "add" if self.before is None else "change"

    @property
    def version(self) -> int:
        """The version that was there when the file was compared; 0: there was none."""
        return 0 if self.before is None else self.before.version

    def stands(self, current: Schedule | None) -> bool:
        """Whether ``current``, what is set now, is what this edit makes."""
        if self.after is None or current is None:
            return self.after is None and current is None
        return self.after.is_set(current, self.before)


def write_file(schedules: Sequence[Schedule]) -> str:
    """Return the file's text, the same for the same schedules."""
    found = {
        each.name: Wanted(each.name, each, each.paused or None, each.metadata or None).as_json() for each in schedules
    }
    return json.dumps({"v": _VERSION, "schedules": found}, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def read_file(text: str) -> dict[str, Wanted]:
    """Read a file's text; raises SettingError, which names the first schedule that is wrong."""
    try:
        found = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as exc:
        raise SettingError(f"schedules: the JSON can't be read: {exc}") from exc
    is_file = isinstance(found, dict) and found.keys() == {"v", "schedules"} and found["v"] == _VERSION
    expect("schedules", found, is_file, f"an object with 'v': {_VERSION} and 'schedules'", SettingError)
    named = found["schedules"]
    expect("schedules", named, isinstance(named, dict), "an object: name → schedule", SettingError)
    return {check_name(name): _read_one(name, value) for name, value in named.items()}


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{shown(next(name for name in names if names.count(name) > 1))} stands there twice")
    return found


def _read_one(name: str, value: Any) -> Wanted:
    what, fits = f"schedule {name!r}", isinstance(value, Mapping)
    fields = dict(expect(what, value, fits, "an object with task and schedule", SettingError))
    more = {field: fields.pop(field, None) for field in ("paused", "metadata")}
    try:
        return Wanted(name, Definition.from_json({"v": _VERSION, **fields}), **more)
    except OnceError as exc:
        raise naming(name, exc) from exc


def compare(schedules: Schedules, wanted: Mapping[str, Wanted], prune: str = "") -> list[Edit]:
    """Return how what is set differs from a file, by name, having checked all that would be set.

    What the file doesn't have is kept, unless its name begins with ``prune``. Raises SettingError for what can't be
    set, StoreDataError or NewerVersionError where something that is set can't be read.
    """
    pruned = schedules.names(prune) if prune else ()
    like = {name: each.definition for name, each in wanted.items()}
    known = {each.name: each for each in schedules._read([*{*wanted, *pruned}], like=like)}  # noqa: SLF001  # our own
    edits = []
    for name in sorted(wanted):
        before, after = known.pop(name, None), wanted[name]
        if before is not None and after.is_set(before, before):
            continue
        edits.append(Edit(name, before, after))
    schedules._check(wanted[edit.name] for edit in edits)  # noqa: SLF001
    return edits + [Edit(name, before, None) for name, before in sorted(known.items())]


def apply(schedules: Schedules, edits: Sequence[Edit], by: str = "", note: str = "") -> None:
    """Make all ``edits``, or none; raises NotAppliedError, which names what stays changed all the same."""
    words = check_words(by, note)
    made: list[Edit] = []
    for edit in edits:
        try:
            if edit.after is None:
                schedules.delete(edit.name, by=by, note=note, if_version=edit.version)
            else:
                schedules.put(edit.after, words, if_version=edit.version)
        except OnceError as exc:
            if not isinstance(exc, VersionConflictError):
                made.append(edit)  # it may have been carried out before the answer was lost
            kept = ", ".join(_take_back(schedules, made, by))
            left = f"not all is applied: {exc}; what was set before is taken back, except {kept}"
            raise NotAppliedError(left if kept else f"nothing is applied: {exc}", exc) from exc
        made.append(edit)


def _take_back(schedules: Schedules, made: Sequence[Edit], by: str) -> list[str]:
    """Undo what was made, the last first; returns what stays changed, each name with why."""
    kept = []
    for edit in reversed(made):
        try:
            _undo(schedules, edit, by)
        except VersionConflictError:
            kept.append(f"{edit.name!r} (another has changed it since)")
        except OnceError as exc:
            kept.append(f"{edit.name!r} (perhaps: {exc})")
    return kept


def _undo(schedules: Schedules, edit: Edit, by: str) -> None:
    """Undo one edit; VersionConflictError: nothing is done, since somebody has changed the schedule meanwhile."""
    note = "taken back: not all could be applied"
    current = schedules.get(edit.name)
    version = 0 if current is None else current.version
    if version == edit.version:
        return  # it wasn't made
    if not edit.stands(current):
        raise VersionConflictError("another has changed it", current)
    if edit.before is None:
        schedules.delete(edit.name, by=by, note=note, if_version=version)
    else:
        schedules.put(edit.before.as_wanted(), check_words(by, note), if_version=version)
