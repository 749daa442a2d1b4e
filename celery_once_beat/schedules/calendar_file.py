"""The events of an .ics file (RFC 5545) as periods that are left out. It needs icalendar, of the extra ``ics``."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from celery_once_beat.errors import ScheduleError, SettingError
from celery_once_beat.rules import budget
from celery_once_beat.wording import shown

from .periods import MOST_LEFT_OUT, Period
from .rrule import MOST_READ

_DAY = timedelta(days=1)
_MOST_BYTES = 10_000_000


class CalendarFile:
    """A file by its path. It is read when it is first needed, and once: a changed file counts in a new process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def periods(self) -> tuple[Period, ...]:
        """Its events; raises ScheduleError. Whoever asks next tries again."""
        try:
            return _read(self.path)
        except ImportError:
            raise ScheduleError(
                f"excluding: {self.path} needs icalendar; pip install 'celery-once-beat[ics]'"
            ) from None
        except SettingError as exc:
            raise ScheduleError(f"excluding: {self.path}: {exc}") from exc
        except Exception as exc:  # no file, no right to read it, or whatever icalendar raises
            raise ScheduleError(f"excluding: {self.path} can't be read: {shown(exc)}") from exc


def _read(path: Path) -> tuple[Period, ...]:
    import icalendar  # noqa: PLC0415  # an extra

    with path.open("rb") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise SettingError(f"found more than {_MOST_BYTES} bytes")
    calendar = icalendar.Calendar.from_ical(text)
    found: list[Any] = calendar.walk("VEVENT")
    events = [event for event in found if str(event.get("STATUS", "")).upper() != "CANCELLED"]
    #: Occurrences that have an event of their own, which says where they moved.
    moved: dict[str, list[Any]] = {}
    for event in found:
        if "RECURRENCE-ID" in event:
            moved.setdefault(str(event.get("UID")), []).append(event["RECURRENCE-ID"].dt)
    if len(events) > MOST_LEFT_OUT:
        raise SettingError(f"found {len(events)} events, expected up to {MOST_LEFT_OUT}")
    with budget(MOST_READ, apart=True):
        return tuple(period for event in events for period in _periods(event, moved))


def _periods(event: Any, moved: dict[str, list[Any]]) -> list[Period]:
    start = event["DTSTART"].dt
    end = event.end if event.end > start else None
    name = str(event.get("SUMMARY", ""))[:200]
    for each in ("DTSTART", "DTEND"):
        zone_of = event.get(each) and event[each].params.get("TZID")
        if zone_of and isinstance(event[each].dt, datetime) and event[each].dt.tzinfo is None:
            raise SettingError(f"event {shown(name)}: found the time zone {shown(str(zone_of))}, expected a known one")
    further = [_period(each, end and each + (end - start), name) for each in _dates(event, "RDATE")]
    if "RRULE" not in event:
        return [_period(start, end, name), *further]
    rule = event["RRULE"]
    if isinstance(rule, list):
        raise SettingError(f"event {shown(name)}: found {len(rule)} rules, expected one")
    without = [*_dates(event, "EXDATE"), *moved.get(str(event.get("UID")), ())]
    zone = start.tzinfo if isinstance(start, datetime) else None
    repeated = Period(
        _local(start, zone),
        _last(start, _local(end, zone)),
        name,
        rule=rule.to_ical().decode().upper(),
        without=tuple(_local(each, zone) for each in without),
        tz=zone,
    )
    return [repeated, *further]


def _period(start: Any, end: Any, name: str) -> Period:
    return Period(start, _last(start, end), name)


def _last(start: Any, end: Any) -> Any:
    """Return the end as a Period has it: the last day, where it is of whole days."""
    if end is None or isinstance(start, datetime):
        return end
    return end - _DAY if end - start > _DAY else None


def _dates(event: Any, name: str) -> list[Any]:
    found = event.get(name, [])
    return [each.dt for group in (found if isinstance(found, list) else [found]) for each in group.dts]


def _local(when: Any, zone: Any) -> Any:
    """Return a time on the wall clock of ``zone``."""
    if zone is None or not isinstance(when, datetime):
        return when
    return when.astimezone(zone).replace(tzinfo=None) if when.tzinfo else when
