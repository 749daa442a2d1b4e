"""RedBeat's entries, as celery-redbeat 2.4 leaves them in its Redis: read strictly, and made into definitions.

An entry is a hash with two texts of JSON. ``definition`` has name, task, args, kwargs, options, schedule and enabled,
``meta`` has last_run_at. What isn't JSON's own is an object with a ``__type__``: datetime, interval, crontab, rrule and
the weekdays of that. A schedule of another type RedBeat can't store.

RedBeat writes last_run_at right before it sends. So every window up to there has been sent, or passed over by RedBeat,
and every later one is owed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedule
from celery.utils.time import delta_resolution

from celery_once_beat.errors import ScheduleError
from celery_once_beat.rules import check_anchor, find_zone, latest_start, spread_offset
from celery_once_beat.wording import shown

from .composed import CRON_FIELDS
from .definition import Definition, check_name
from .rrule import RULE_FIELDS, RRule
from .strict_json import read_object

__all__ = ("RedBeatEntry", "last_run_of", "read_redbeat", "run_until")

_FIELDS = ("name", "task", "args", "kwargs", "options", "schedule", "enabled")
_DATE_FIELDS = ("year", "month", "day", "hour", "minute", "second", "microsecond")
_SCHEDULES = ("interval", "crontab", "rrule", "weekday")
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class RedBeatEntry:
    """An entry of RedBeat's as a definition."""

    name: str
    definition: Definition
    #: It was disabled.
    paused: bool
    #: Windows up to there don't count, later ones are owed; aware UTC. None: they count from now.
    counts_from: datetime | None
    #: RedBeat has sent it: ``counts_from`` is when it did so last.
    ran: bool


def read_redbeat(name: str, fields: Mapping[str, str | None], zone: tzinfo, now: datetime) -> RedBeatEntry:
    """Read the hash of the entry ``name``; raises ValueError for what can't be carried over.

    ``zone`` is the app's time zone, by which RedBeat runs crontabs, ``now`` the time, aware UTC.
    """
    check_name(name)
    found = _read(fields.get("definition"), "definition")
    unknown = [field for field in found if field not in _FIELDS]
    if unknown:
        raise ValueError(f"definition: found the field {shown(unknown[0])}, which RedBeat 2.4 doesn't know")
    if found.get("name") != name:
        raise ValueError(f"name: found {shown(found.get('name'))}, expected that of its key")
    last = last_run_of(fields, now)
    when, anchor = _read_schedule(found.get("schedule"), last, zone)
    options = _plain("options", found.get("options") or {})
    if not isinstance(options, dict):
        raise ValueError(f"options: found {shown(options)}, expected an object")  # noqa: TRY004
    once = options.pop("once", {})
    if anchor is not None and isinstance(once, dict):
        once = {"anchor": anchor, **once}
    definition = Definition.of(
        found.get("task"),  # type: ignore[arg-type]  # it looks itself
        when,
        zone,
        args=_plain("args", found.get("args") or []),
        kwargs=_plain("kwargs", found.get("kwargs") or {}),
        options=options,
        once=once,
    )
    enabled = found.get("enabled", True)
    if not isinstance(enabled, bool):
        raise ValueError(f"enabled: found {shown(enabled)}, expected true or false")  # noqa: TRY004
    counts_from = None
    if enabled and last is not None:
        counts_from = run_until(last, spread_offset(name, _spread(once)), now)
    elif enabled:
        counts_from = _before_newest(definition, now)
    return RedBeatEntry(name, definition, not enabled, counts_from, last is not None)


def run_until(last: datetime, offset: timedelta, now: datetime) -> datetime:
    """Return up to where the windows of an entry have run, which start by ``offset`` later than RedBeat's.

    Raises ValueError where one of them is to come.
    """
    until = last + offset
    if until > now:
        raise ValueError(f"by its spread what RedBeat has sent would start until {until.isoformat()}: ask again then")
    return until


def _spread(once: Any) -> float:
    spread = once.get("spread") if isinstance(once, dict) else None
    return spread if isinstance(spread, (int, float)) else 0.0


def last_run_of(fields: Mapping[str, str | None], now: datetime) -> datetime | None:
    """Return when RedBeat sent an entry last, aware UTC, None: never; raises ValueError where that can't be."""
    meta = fields.get("meta")
    if not meta:
        return None
    found = _read(meta, "meta").get("last_run_at")
    if found is None:
        return None
    last = _plain("last_run_at", found)
    if not isinstance(last, datetime):
        raise ValueError(f"last_run_at: found {shown(found)}, expected a datetime")  # noqa: TRY004
    last = last.astimezone(timezone.utc)
    if last > now:
        raise ValueError(f"last_run_at: found {last.isoformat()}, which is to come: a clock is wrong; ask again then")
    return last


def _before_newest(definition: Definition, now: datetime) -> datetime | None:
    """Have the newest window owed: RedBeat sends at once what it has never sent."""
    try:
        anchor = check_anchor("anchor", definition.once.get("anchor"))
        newest = latest_start(definition.schedule, now, anchor=anchor)
    except ScheduleError as exc:
        raise ValueError(str(exc)) from exc
    return None if newest is None else newest - _MICROSECOND


def _read(text: str | None, what: str) -> dict[str, Any]:
    if text is None:
        raise ValueError(f"it has no {what}")
    try:
        return read_object(text)
    except ValueError as exc:
        raise ValueError(f"{what}: {exc}") from exc


def _plain(what: str, value: Any) -> Any:
    """Return a value with its datetimes. What RedBeat makes a schedule of is refused; other types it leaves alone."""
    if isinstance(value, list):
        return [_plain(what, each) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("__type__")
    if kind == "datetime":
        return _datetime(what, value)
    if kind in _SCHEDULES:
        raise ValueError(f"{what}: found an object of type {kind}, expected JSON's own types and datetimes")
    return {name: _plain(what, each) for name, each in value.items()}


def _datetime(what: str, value: Mapping[str, Any]) -> datetime:
    numbers = {name: each for name, each in value.items() if name not in ("__type__", "timezone")}
    zone = value.get("timezone", "UTC")
    if not all(name in _DATE_FIELDS and type(each) is int for name, each in numbers.items()):
        raise ValueError(f"{what}: found {shown(dict(value))}, expected the numbers of a datetime")
    try:
        placed = find_zone(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))
        return datetime(tzinfo=placed, **numbers)
    except (TypeError, ValueError, OverflowError) as exc:
        raise ValueError(f"{what}: found {shown(dict(value))}: {exc}") from exc


def _read_schedule(found: Any, last: datetime | None, zone: tzinfo) -> tuple[BaseSchedule, datetime | None]:
    """Return the schedule, and of an interval that ran an instant of its grid: when RedBeat would send it next."""
    kind = found.get("__type__") if isinstance(found, dict) else None
    if kind == "crontab":
        _check_fields(found, CRON_FIELDS)
        try:
            return crontab(**{name: found[name] for name in CRON_FIELDS if name in found}), None
        except Exception as exc:  # Celery's parser has errors of its own
            raise ValueError(f"crontab: {shown(exc)}") from exc
    if kind == "interval":
        _check_fields(found, ("every", "relative"))
        seconds, relative = found.get("every"), bool(found.get("relative"))
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
            raise ValueError(f"interval: found {shown(seconds)}, expected a number of seconds, more than 0")
        try:
            every = timedelta(seconds=seconds)
            due = None if last is None else last.astimezone(zone) + every
        except OverflowError:
            raise ValueError(f"interval: found {shown(seconds)}, expected fewer seconds") from None
        if due is not None and relative:
            due = delta_resolution(due, every).replace(microsecond=0)
        return schedule(every, relative=relative), None if due is None else due.astimezone(timezone.utc)
    if kind == "rrule":
        return _rrule(found), None
    raise ValueError(f"schedule: found {shown(found)}, expected an interval, a crontab or an rrule")


def _rrule(found: Mapping[str, Any]) -> RRule:
    """Its instants are seconds since 1970, each with the minutes of its offset from UTC."""
    _check_fields(found, (*RULE_FIELDS, "dtstart_tz", "until_tz"))
    rule = {name: _weekdays(found[name]) for name in RULE_FIELDS if name in found}
    for name in ("dtstart", "until"):
        seconds, minutes = rule.get(name), found.get(f"{name}_tz", 0)
        if seconds is None:
            continue
        try:
            rule[name] = datetime.fromtimestamp(seconds, timezone(timedelta(minutes=minutes)))
        except (TypeError, ValueError, OverflowError, OSError):
            raise ValueError(
                f"rrule: found {name} {shown(seconds)}, {name}_tz {shown(minutes)}, expected seconds and minutes"
            ) from None
    return RRule(**{"freq": None, "dtstart": None, **rule})


def _weekdays(value: Any) -> Any:
    """Return a field with the numbers of RedBeat's weekdays: of ``MO(2)`` it stores ``MO``."""
    if isinstance(value, list):
        return [_weekdays(each) for each in value]
    is_weekday = isinstance(value, dict) and value.keys() == {"__type__", "wkday"} and value["__type__"] == "weekday"
    return value["wkday"] if is_weekday else value


def _check_fields(found: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in found:
        if name not in (*known, "__type__"):
            raise ValueError(f"{found['__type__']}: found the field {shown(name)}, expected {', '.join(known)}")
