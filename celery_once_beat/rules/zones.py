"""Time zones by name and as objects. Pure."""

from __future__ import annotations

import re
from datetime import timezone, tzinfo
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from celery.utils.time import LocalTimezone

from celery_once_beat.errors import ScheduleError, SettingError
from celery_once_beat.wording import shown

_ZONE = re.compile(r"[A-Za-z0-9_+\-/]{1,64}", re.ASCII)
#: Names in a machine's database that mean its own zone, or none, or a clock with leap seconds.
_OF_ONE_MACHINE = re.compile(r"localtime|posixrules|factory|(?:right|posix)/.*", re.ASCII | re.IGNORECASE)
_NOT_EVERYWHERE = "which isn't the same time zone on every machine"


@lru_cache(maxsize=1024)
def _is_of_one_machine(name: str) -> bool:
    return _OF_ONE_MACHINE.fullmatch(name) is not None


def zone_name(zone: Any, what: str = "schedule") -> str:
    """Return the name by which any machine finds ``zone``; raises SettingError, which begins with ``what``."""
    if zone is timezone.utc:
        return "UTC"
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)  # pytz has a zone
    try:
        return read_zone(name).key
    except SettingError:
        wrong = f", {_NOT_EVERYWHERE};" if isinstance(name, str) and _is_of_one_machine(name) else ","
        raise SettingError(
            f"{what}: found {shown(zone)}{wrong} expected a time zone with a name like ZoneInfo('Europe/Berlin'): "
            "give timezone=, or set the app's timezone"
        ) from None


def read_zone(name: object, what: str = "tz") -> ZoneInfo:
    """Return the time zone of that name; raises SettingError, which begins with ``what``."""
    wrong = ""
    try:
        if isinstance(name, str) and _ZONE.fullmatch(name):
            if not _is_of_one_machine(name):
                return ZoneInfo(name)
            wrong = f" {_NOT_EVERYWHERE};"
    except (OSError, KeyError, ValueError):  # a folder, none of that name, a path
        pass
    raise SettingError(f"{what}: found {shown(name)},{wrong} expected the name of a time zone like 'Europe/Berlin'")


def find_zone(zone: object, what: str = "tz") -> tzinfo:
    """Return a time zone that is given by name or as itself; raises SettingError, which begins with ``what``."""
    return read_zone(zone if isinstance(zone, str) else zone_name(zone, what), what)


def plain_zone(zone: Any) -> tzinfo | None:
    """Return a zone to compute with; None: the system's, for which Celery's class is hours off at a change.

    Raises ScheduleError for one that isn't the same on every machine.
    """
    if isinstance(zone, LocalTimezone):
        return None
    name = getattr(zone, "zone", None)  # pytz
    known: tzinfo = ZoneInfo(name) if isinstance(name, str) else zone
    if _is_of_one_machine(getattr(known, "key", None) or ""):
        raise ScheduleError(f"found the time zone {shown(known)}, {_NOT_EVERYWHERE}; expected one like 'Europe/Berlin'")
    return known
