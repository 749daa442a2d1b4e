"""What a beat stores about an entry that it has loaded, for processes that show or judge it without the beat's code.

JSON of a few fields. Arguments aren't among them, since they may hold secrets. What is read isn't trusted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from celery.schedules import BaseSchedule

from celery_once_beat.errors import NewerVersionError
from celery_once_beat.rules import check_anchor
from celery_once_beat.wording import expect

from .codecs import read_schedule, write_schedule
from .strict_json import MOST_JSON, number_of, read_object, typed

#: Written where they aren't as usual.
_OPTIONAL = ("lease", "tracked", "one_off", "anchor", "spread", "countdown", "tz")
#: Most characters of a text, and of the schedule.
_MOST_TEXT, _MOST_SCHEDULE = 1024, MOST_JSON - 8 * 1024
_MOST_SECONDS = 1e9


@dataclass(frozen=True, kw_only=True)
class LoadedDefinition:
    """An entry as a beat has loaded it. Times are seconds."""

    task: str
    #: None: it is of a type that can't be written, and ``description`` is all that is known.
    schedule: BaseSchedule | None
    #: The schedule in words, where it can't be written.
    description: str = ""
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
    #: The time zone that the entry sets; None: none.
    tz: str | None = None

    def text(self) -> str:
        """Return its JSON. What is as usual isn't written; a schedule that is too long for readers is words."""
        fields: dict[str, Any] = {"task": self.task[:_MOST_TEXT]}
        try:
            schedule = write_schedule(self.schedule, any_nowfun=True)
            readable = len(json.dumps(schedule, allow_nan=False)) <= _MOST_SCHEDULE
        except Exception:  # noqa: BLE001  # it can't be written, or a user's codec can't; what it writes isn't JSON
            readable = False
        if readable:
            fields["schedule"] = schedule
        else:
            fields["description"] = self.description[:_MOST_TEXT]
        fields |= {name: getattr(self, name) for name in _OPTIONAL if getattr(self, name) != getattr(type(self), name)}
        if self.anchor is not None:
            fields["anchor"] = self.anchor.isoformat()
        return json.dumps(fields, separators=(",", ":"), default=str)

    @classmethod
    @lru_cache(maxsize=4096)  # many entries have the same
    def read(cls, text: str) -> LoadedDefinition:
        """Read its JSON; raises ValueError. What a newer version added is passed over."""
        fields = read_object(text)
        try:
            schedule = read_schedule(fields["schedule"]) if "schedule" in fields else None
        except (ValueError, NewerVersionError):
            schedule = None  # of a type that this process doesn't know
        values = {name: read(fields, name) for name, read in _READ.items() if name in fields or name == "task"}
        if schedule is None and not values.get("description"):
            values["description"] = "a schedule that this process can't read"
        return cls(schedule=schedule, **values)


def _text(fields: Mapping[str, Any], name: str) -> Any:
    text = fields.get(name)
    return expect(name, text, isinstance(text, str) and len(text) <= _MOST_TEXT, "str")


def _seconds(fields: Mapping[str, Any], name: str) -> float:
    return float(number_of(fields, name, 0, _MOST_SECONDS, "a number of seconds"))


#: How each field is read, but for the schedule.
_READ: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    **dict.fromkeys(("task", "description", "tz"), _text),
    **dict.fromkeys(("tracked", "one_off"), partial(typed, kind=bool, expected="bool")),
    **dict.fromkeys(("lease", "spread", "countdown"), _seconds),
    "anchor": lambda fields, name: check_anchor(name, fields[name]),
}
