"""What a beat stores about an entry that it has loaded, for processes that show or judge it without the beat's code.

JSON of a few fields. Arguments aren't among them, since they may hold secrets. What is read isn't trusted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from celery.schedules import BaseSchedule

from celery_once_beat.errors import NewerVersionError
from celery_once_beat.options import Check, check_choice, check_seconds
from celery_once_beat.rules import check_anchor

from .codecs import read_schedule, write_schedule
from .strict_json import MOST_JSON, read_object

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
        given = {"task": None, **fields}
        values = {name: read(name, given[name]) for name, read in _READ.items() if name in given}
        if schedule is None and not values.get("description"):
            values["description"] = "a schedule that this process can't read"
        return cls(schedule=schedule, **values)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_TEXT


#: How each field is read, but for the schedule.
_READ: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("task", "description", "tz"), Check("a text", _is_text)),
    **dict.fromkeys(("tracked", "one_off"), check_choice(True, False)),
    **dict.fromkeys(("lease", "spread", "countdown"), check_seconds(0, _MOST_SECONDS)),
    "anchor": check_anchor,
}
