"""Time zones by name and as objects. Pure."""

from __future__ import annotations

import re
from datetime import timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from celery.utils.time import LocalTimezone

from celery_once_beat.errors import SettingError
from celery_once_beat.wording import shown

__all__ = ("find_zone", "plain_zone", "read_zone", "zone_name")

_ZONE = re.compile(r"[A-Za-z0-9_+\-/]{1,64}", re.ASCII)


def zone_name(zone: tzinfo | None) -> str:
    """Return the name by which any machine finds ``zone``; raises SettingError where it has none."""
    if zone is timezone.utc:
        return "UTC"
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)  # pytz has a zone
    try:
        return read_zone(name).key
    except ValueError:
        raise SettingError(
            f"schedule: found the time zone {shown(zone)}, which has no name; expected one like "
            "ZoneInfo('Europe/Berlin'): give timezone=, or set the app's timezone"
        ) from None


def read_zone(name: object) -> ZoneInfo:
    """Return the time zone of that name; raises ValueError."""
    try:
        if isinstance(name, str) and _ZONE.fullmatch(name):
            return ZoneInfo(name)
    except (OSError, KeyError, ValueError):  # a folder, none of that name, a path
        pass
    raise ValueError(f"tz: found {shown(name)}, expected the name of a time zone like 'Europe/Berlin'")


def find_zone(zone: object) -> tzinfo:
    """Return a time zone that is given by name or as itself; raises SettingError where it has no name."""
    try:
        return read_zone(zone) if isinstance(zone, str) else read_zone(zone_name(zone))  # type: ignore[arg-type]
    except ValueError as exc:
        expected = "the name of a time zone like 'Europe/Berlin'"
        hint = "" if isinstance(zone, str) else ", as tz=, or as the app's timezone"
        raise SettingError(f"tz: found {shown(zone)}, expected {expected}{hint}") from exc


def plain_zone(zone: Any) -> tzinfo | None:
    """Return a zone to compute with; None: the system's, for which Celery's class is hours off at a change."""
    if isinstance(zone, LocalTimezone):
        return None
    name = getattr(zone, "zone", None)  # pytz
    known: tzinfo = ZoneInfo(name) if isinstance(name, str) else zone
    return known
