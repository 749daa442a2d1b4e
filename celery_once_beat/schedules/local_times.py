"""Local times as people write them, read strictly. Pure."""

from __future__ import annotations

import re
from datetime import date, datetime, timezone, tzinfo

from celery_once_beat.errors import SettingError
from celery_once_beat.options import wrong
from celery_once_beat.rules import find_zone, first_instant
from celery_once_beat.wording import shown

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def read_time(what: str, when: object) -> date | datetime:
    """Return a date or a datetime that is given as itself or as its text in ISO 8601; raises SettingError."""
    if isinstance(when, date):  # a datetime is one
        return when
    if isinstance(when, str):
        try:
            if _DATE.fullmatch(when):
                return date.fromisoformat(when)
            return datetime.fromisoformat(when.strip().replace("Z", "+00:00"))
        except ValueError:
            pass
    raise wrong(what, when, "a time like '2026-12-24T18:00', or a date")


def names_zone(when: date | datetime) -> bool:
    """Whether it is an instant by itself; else it is a local time."""
    return isinstance(when, datetime) and when.utcoffset() is not None


def read_instant(what: str, when: object, tz: str | tzinfo | None = None) -> datetime:
    """Return the instant, aware UTC, of a datetime or its text; raises SettingError.

    ``tz`` is the time zone of one that names none. A local time that the clock skips is the first instant after the
    gap, one that it shows twice is the first of the two.
    """
    zone = None if tz is None else find_zone(tz)
    found = read_time(what, when)
    try:
        if not isinstance(found, datetime):
            found = datetime(found.year, found.month, found.day)
        if found.utcoffset() is not None:
            return found.astimezone(timezone.utc)
        if zone is not None:
            return first_instant(found, zone).replace(tzinfo=timezone.utc)
    except Exception as exc:  # it is past the calendar's end, or whatever a time zone of a user's raises
        raise wrong(what, when, "a time within the calendar") from exc
    raise SettingError(f"{what}: found {shown(when)}, which names no time zone; give tz='Europe/Berlin', say")
