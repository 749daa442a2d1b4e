"""What ``excluding`` is given to leave out, as people write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from os import PathLike, fspath
from typing import Any

from celery.schedules import BaseSchedule

from celery_once_beat.options import wrong

from .calendar_file import CalendarFile
from .periods import Period

#: Of lists within each other.
_MOST_LEVELS = 16
_EXPECTED = (
    "a date, a datetime, a tuple of two, a Period, a schedule, the path of an .ics file, a list of them, or a dict of "
    "dates and names"
)


def read_left_out(given: Any, levels: int = _MOST_LEVELS) -> Iterator[Period | CalendarFile | BaseSchedule]:
    """Yield what is left out, of one thing or of a list; raises SettingError."""
    if isinstance(given, Mapping):
        for day, name in given.items():
            yield Period(day, name=str(name))
    elif levels and isinstance(given, (list, set, frozenset)):
        for each in given if isinstance(given, list) else sorted(given, key=str):
            yield from read_left_out(each, levels - 1)
    elif isinstance(given, (Period, CalendarFile, BaseSchedule)):
        yield given
    elif isinstance(given, PathLike) or (isinstance(given, str) and given.endswith(".ics")):
        yield CalendarFile(fspath(given))
    elif isinstance(given, tuple) and len(given) == len(("start", "end")):
        yield Period(*given)
    elif isinstance(given, (str, date)):
        yield Period(given)
    else:
        raise wrong("excluding", given, _EXPECTED)


def plainest(span: Period | CalendarFile) -> Any:
    """Return the plainest value that :func:`read_left_out` reads as the span."""
    if isinstance(span, CalendarFile):
        return span.path
    fields = span.fields()
    if fields.keys() == {"start"}:
        return fields["start"]
    return (fields["start"], fields["end"]) if fields.keys() == {"start", "end"} else span
