"""Schedules in words, for people."""

from __future__ import annotations

import re
from typing import Any

from celery.schedules import schedule

from celery_once_beat.rules import PureSchedule
from celery_once_beat.wording import shown

from .intervals import step_text

#: How Celery's schedules write themselves: ``<crontab: 0 5 * * * (m/h/dM/MY/d)>``.
_REPR = re.compile(r"^<[\w-]+: (.*?)(?:(?: \(m/h/dM/MY/d\))?>|(?<=…))$")
#: The same with its zone, by django-celery-beat and those after it, which name the weekday before the date.
_ZONED = re.compile(r"^<crontab: (\S+ \S+) (\S+) (\S+ \S+) \(m/h/d/dM/MY\), (.*)>$")


def describe(when: Any) -> str:
    """Say in a few words when a schedule starts: ``*/5 * * * *``, ``every 30 s``, else as it writes itself."""
    if type(when) is schedule:
        return f"every {step_text(when.run_every)}"  # type: ignore[attr-defined]  # celery-types lacks it
    if isinstance(when, PureSchedule):
        return when.words()
    kind: Any = type(when)
    if kind.__repr__ is object.__repr__:  # it has an address, another one in each process
        return f"{kind.__module__}.{kind.__qualname__}"
    text = shown(when)
    return _ZONED.sub(r"\1 \3 \2 \4", text) if _ZONED.match(text) else _REPR.sub(r"\1", text)
