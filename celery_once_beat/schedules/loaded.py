"""What a beat says in the store of an entry that it has loaded: for whoever shows or judges it without the beat's code.

JSON of a few fields. Arguments aren't among them, since they may hold secrets. What is read isn't trusted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from celery.schedules import BaseSchedule

from celery_once_beat.errors import NewerVersionError, SettingError
from celery_once_beat.rules import check_anchor

from .codecs import read_schedule, write_schedule
from .strict_json import MOST_TEXT, expect, number_of, read_object

#: Written where they aren't as usual.
_OPTIONAL = ("lease", "tracked", "one_off", "anchor", "spread", "countdown", "queue", "tz")
#: Most characters of a text, and of the schedule.
_MOST, _MOST_SCHEDULE = 1024, MOST_TEXT - 8 * 1024
_MOST_SECONDS = 1e9


@dataclass(frozen=True, kw_only=True)
class LoadedDefinition:
    """An entry as a beat has loaded it. Times are seconds."""

    task: str
    #: None: it is of a type that can't be written, and ``says`` is all that is known.
    schedule: BaseSchedule | None
    #: The schedule in words, where it can't be written.
    says: str = ""
    #: For how long an execution owns its window without renewing, if the worker has the beat's code. None: the beat
    #: doesn't know the task, and neither its lease.
    lease: float | None = None
    #: Whether workers close its windows.
    tracked: bool = True
    #: Only its first window is one.
    one_off: bool = False
    #: Aware UTC.
    anchor: datetime | None = None
    spread: float = 0.0
    countdown: float | None = None
    #: The queue to which its messages go; None: the beat can't say.
    queue: str | None = None
    #: The time zone that the entry sets; None: none.
    tz: str | None = None

    def text(self) -> str:
        """Return its JSON. What is as usual isn't written; a schedule that is too long for readers is words."""
        said: dict[str, Any] = {"task": self.task[:_MOST]}
        try:
            schedule = write_schedule(self.schedule, any_nowfun=True)
            readable = len(json.dumps(schedule, allow_nan=False)) <= _MOST_SCHEDULE
        except Exception:  # noqa: BLE001  # it can't be written, or a user's codec can't; what it writes isn't JSON
            readable = False
        if readable:
            said["schedule"] = schedule
        else:
            said["says"] = self.says[:_MOST]
        said |= {name: getattr(self, name) for name in _OPTIONAL if getattr(self, name) != getattr(type(self), name)}
        if self.anchor is not None:
            said["anchor"] = self.anchor.isoformat()
        return json.dumps(said, separators=(",", ":"), default=str)

    @classmethod
    @lru_cache(maxsize=4096)  # many entries have the same
    def read(cls, text: str) -> LoadedDefinition:
        """Read its JSON; raises ValueError. What a newer version added is passed over."""
        said = read_object(text)
        try:
            schedule = read_schedule(said["schedule"]) if "schedule" in said else None
        except (ValueError, NewerVersionError):
            schedule = None  # of a type that this process doesn't know
        says = _typed(said, "says", str, "") or ("" if schedule else "a schedule that this process can't read")
        return cls(
            task=_typed(said, "task", str),
            schedule=schedule,
            says=says,
            lease=_seconds(said, "lease"),
            tracked=_typed(said, "tracked", bool, True),
            one_off=_typed(said, "one_off", bool, False),
            anchor=_anchor(said.get("anchor")),
            spread=_seconds(said, "spread") or 0.0,
            countdown=_seconds(said, "countdown"),
            queue=_typed(said, "queue", str) if "queue" in said else None,
            tz=_typed(said, "tz", str) if "tz" in said else None,
        )


def _typed(said: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = said.get(name, default)
    fits = isinstance(value, kind) and not (isinstance(value, str) and len(value) > _MOST)
    return expect(name, value, fits, kind.__name__)


def _seconds(said: dict[str, Any], name: str) -> float | None:
    return float(number_of(said, name, 0, _MOST_SECONDS, "a number of seconds")) if name in said else None


def _anchor(value: object) -> datetime | None:
    try:
        return check_anchor("anchor", value)
    except SettingError as exc:
        raise ValueError(str(exc)) from None
