"""How schedules are written as JSON, and read: one codec a type. Another type is registered.

What is read comes from Redis, and isn't trusted. A ``read_…`` raises ValueError or NewerVersionError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, TypeVar

from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_once_beat.errors import NewerVersionError, ScheduleError, SettingError
from celery_once_beat.rules import CRON_FIELDS, budget, is_clocked, is_tz_aware_crontab, read_zone, zone_name
from celery_once_beat.windows import format_instant, parse_instant
from celery_once_beat.wording import did_you_mean, expect, shown

from .composed import MOST_RUNS, CronPart, SolarPart, between, cron_field, excluding, union
from .cron import cron
from .intervals import LEAST_STEP, MOST_MONTHS, MOST_STEP, every
from .local_times import read_instant
from .one_off import OneOff
from .periods import Period
from .rrule import MOST_READ, RULE_FIELDS, RRule
from .strict_json import number_of, typed, whole_of

S = TypeVar("S", bound=BaseSchedule)
#: A schedule's fields, as JSON has them.
Fields = Mapping[str, Any]

_DAY = timedelta(days=1)
#: Of one crontab field, characters or numbers.
_MOST_FIELD = 256
_PERIOD = ("start", "end", "name", "rule", "without", "tz")


@dataclass(frozen=True)
class _Codec:
    """How one type is written and read."""

    name: str
    #: Given the schedule, and the time zone that counts where the schedule has one; None: its own.
    write: Callable[[Any, tzinfo | None], Fields]
    read: Callable[[Fields], BaseSchedule]
    #: The fields that this version knows; None: the codec looks itself.
    fields: tuple[str, ...] | None = None


_BY_TYPE: dict[type, _Codec] = {}
_BY_NAME: dict[str, _Codec] = {}


def register_schedule_codec(
    name: str, cls: type[S], write: Callable[[S], Mapping[str, Any]], read: Callable[[Mapping[str, Any]], S]
) -> None:
    """Let schedules of type ``cls`` be stored as definitions; ``name`` is their type in JSON.

    ``write`` returns all that makes the schedule, as JSON can hold it, ``read`` makes it of that, and raises ValueError
    for what it can't read. Every process that sets or runs such a definition has to register it: put it where the app
    is made. Registering a name again replaces its codec. Raises SettingError for a wrong name, or one of this package.
    """
    fits = isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_.-]{0,63}", name) and not _is_ours(_BY_NAME.get(name))
    expect("schedule codec's name", name, fits, "one like 'acme-tides' that this package doesn't use", SettingError)
    if not isinstance(cls, type) or not issubclass(cls, BaseSchedule) or _is_ours(_BY_TYPE.get(cls)):
        raise SettingError(
            f"schedule codec {name!r}: found the class {shown(cls)}, expected a subclass of "
            "celery.schedules.BaseSchedule that this package doesn't store itself"
        )
    for what, function in (("write", write), ("read", read)):
        expect(f"schedule codec {name!r}, {what}", function, callable(function), "a function", SettingError)
    _register(_Codec(name, lambda when, _zone: write(when), read), cls)
    _made.cache_clear()


def _is_ours(codec: _Codec | None) -> bool:
    return codec is not None and codec.fields is not None


def _register(codec: _Codec, *types: type) -> None:
    _BY_NAME[codec.name] = codec
    _BY_TYPE.update(dict.fromkeys(types, codec))


def write_schedule(when: object, zone: tzinfo | None = None, *, any_nowfun: bool = False) -> dict[str, Any]:
    """Return a schedule as JSON has it; raises SettingError for one that can't be stored.

    A number of seconds or a timedelta is an interval, an aware datetime a one-off. ``zone`` counts for schedules that
    have a time zone; None: their own. With ``any_nowfun`` its ``nowfun`` is ignored: it moves no start.
    """
    if isinstance(when, datetime):
        at = when if when.tzinfo or zone is None else when.replace(tzinfo=zone)
        when = OneOff(read_instant("schedule", at))
    elif isinstance(when, (int, float, timedelta)) and not isinstance(when, bool):
        try:
            when = schedule(when)
        except (OverflowError, ValueError):
            raise SettingError(f"schedule: found {shown(when)}, expected seconds, more than 0") from None
    codec = _codec_of(when)
    if getattr(when, "nowfun", None) is not None and not any_nowfun:
        raise SettingError(f"schedule: {shown(when)} has a nowfun, which can't be stored")
    try:
        fields = dict(codec.write(when, zone))
    except SettingError:
        raise
    except ScheduleError as exc:  # a file of holidays that can't be read
        raise SettingError(str(exc)) from exc
    except Exception as exc:  # whatever a user's codec raises
        raise SettingError(f"schedule: {shown(when)} can't be stored: {shown(exc)}") from exc
    if "type" in fields:
        raise SettingError(f"schedule: the codec {codec.name!r} writes a field 'type', which names the codec")
    return {"type": codec.name, **fields}


def _codec_of(when: object) -> _Codec:
    codec = _BY_TYPE.get(type(when))
    if codec is None and is_tz_aware_crontab(type(when)):
        codec = _BY_NAME["crontab"]
    elif codec is None and is_clocked(type(when)):
        codec = _BY_NAME["one-off"]
    if codec is None:
        raise SettingError(
            f"schedule: found {shown(when)}, of type {type(when).__module__}.{type(when).__qualname__}; expected "
            f"{', '.join(_BY_NAME)}, seconds, a timedelta or a datetime; "
            "celery_once_beat.register_schedule_codec has another type stored"
        )
    return codec


def read_schedule(fields: object) -> BaseSchedule:
    """Return the schedule that :func:`write_schedule` has written; raises ValueError, or NewerVersionError."""
    expect("schedule", fields, isinstance(fields, dict), "an object with a type")
    return _made(_write_sorted(fields))


_write_sorted = json.JSONEncoder(sort_keys=True).encode


@lru_cache(maxsize=4096)  # many definitions have the same
def _made(text: str) -> BaseSchedule:
    fields = json.loads(text)
    name = fields.pop("type", None)
    codec = _BY_NAME.get(name) if isinstance(name, str) else None
    if codec is None:
        hint = did_you_mean(name, _BY_NAME, repr) if isinstance(name, str) else ""
        raise ValueError(
            f"schedule: found the type {shown(name)}{hint}, expected one of {', '.join(_BY_NAME)}; a type of your own "
            "needs celery_once_beat.register_schedule_codec in each process"
        )
    check_known(f"schedule of type {name}", fields, codec.fields)
    try:
        with budget(MOST_READ):
            made = codec.read(fields)
    except (ValueError, NewerVersionError):
        raise
    except Exception as exc:  # whatever a user's codec raises
        raise ValueError(f"schedule of type {name}: {shown(exc)}") from exc
    if not isinstance(made, BaseSchedule):
        raise ValueError(f"schedule of type {name}: its codec made {shown(made)}, expected a schedule")  # noqa: TRY004
    return made


def check_known(what: str, fields: Fields, known: tuple[str, ...] | None) -> None:
    """Raise NewerVersionError for a field that this version doesn't know."""
    for name in fields:
        if known is not None and name not in known:
            hint = did_you_mean(name, known, repr)
            raise NewerVersionError(
                f"{what}: unknown field {name!r:.40}{hint}; if a newer version wrote it, upgrade this process"
            )


def _placed(when: Any, fields: Fields) -> BaseSchedule:
    """Put a new schedule in its time zone."""
    when.tz = read_zone(fields.get("tz"))
    return when  # type: ignore[no-any-return]


# -- Celery's types, and ours


def _seconds(step: timedelta) -> int | float:
    seconds = step.total_seconds()
    return int(seconds) if seconds == int(seconds) else seconds


def _step(fields: Fields) -> timedelta:
    return timedelta(seconds=number_of(fields, "seconds", LEAST_STEP.total_seconds(), MOST_STEP.total_seconds()))


def _write_interval(interval: Any, zone: tzinfo | None) -> Fields:
    fields: dict[str, Any] = {"seconds": _seconds(interval.run_every)}
    if not LEAST_STEP <= interval.run_every <= MOST_STEP:
        raise SettingError(f"schedule: found an interval of {fields['seconds']:g} s, expected 1 ms to 30 years")
    if interval.relative:
        fields["relative"] = True
    if not interval.run_every % _DAY:  # whole days fall on the zone's midnights
        fields["tz"] = zone_name(zone or interval.tz)
    return fields


def _read_interval(fields: Fields) -> BaseSchedule:
    step = _step(fields)
    made: BaseSchedule = schedule(step, relative=typed(fields, "relative", bool, "true or false", default=False))
    return made if step % _DAY else _placed(made, fields)


def _write_crontab(cron: Any, zone: tzinfo | None) -> Fields:
    written = {name: cron_field(getattr(cron, f"_orig_{name}")) for name in CRON_FIELDS}
    fields = {name: value for name, value in written.items() if value != "*"}
    return {**fields, "tz": zone_name(zone or cron.tz)}


def _read_crontab(fields: Fields) -> BaseSchedule:
    found = {name: _read_field(name, fields[name]) for name in CRON_FIELDS if name in fields}
    try:
        made: BaseSchedule = crontab(**found)
    except Exception as exc:  # Celery's parser has errors of its own
        raise ValueError(f"crontab: {shown(exc)}") from exc
    return _placed(made, fields)


def _read_field(name: str, value: Any) -> Any:
    numbers = isinstance(value, list) and all(type(number) is int for number in value)
    fits = type(value) is int or ((numbers or isinstance(value, str)) and len(value) <= _MOST_FIELD)
    return expect(name, value, fits, "a crontab field like '*/5' or [1, 31]")


def _write_solar(sun: Any, _zone: tzinfo | None) -> Fields:
    return {"event": sun.event, "lat": float(sun.lat), "lon": float(sun.lon)}  # of a database they are decimals


def _read_solar(fields: Fields) -> BaseSchedule:
    lat, lon = number_of(fields, "lat", -90, 90), number_of(fields, "lon", -180, 180)
    event = fields.get("event")
    fits = isinstance(event, str) and event.isprintable() and len(event) <= _MOST_FIELD
    expect("event", event, fits, "one like 'sunrise'")
    try:
        return solar(event, lat, lon)  # type: ignore[arg-type]  # it refuses what is no event
    except ImproperlyConfigured as exc:  # without ephem
        raise ValueError(f"solar: {exc}") from exc


def _write_one_off(when: Any, _zone: tzinfo | None) -> Fields:
    at: datetime = when.clocked_time
    if at.utcoffset() is None:
        raise SettingError(f"schedule: found {at!r}, expected a datetime with a time zone")
    return {"at": format_instant(at.astimezone(timezone.utc))}


def _read_one_off(fields: Fields) -> BaseSchedule:
    return OneOff(parse_instant(fields.get("at")))  # type: ignore[arg-type]  # it refuses what is no text


def _read_rrule(fields: Fields) -> BaseSchedule:
    return RRule(**{"freq": None, "dtstart": None, **fields})


def _write_made(*names: str) -> Callable[[Any, tzinfo | None], Fields]:
    """Return what writes the arguments that make a schedule; ``names`` are those of its positional ones."""

    def write(when: Any, zone: tzinfo | None) -> Fields:
        positional, named = when.in_zone(zone or when.tz).made_of()
        written = (write_schedule(each) if isinstance(each, BaseSchedule) else each for each in positional)
        return {**dict(zip(names, written, strict=True)), **named}

    return write


def _read_cron(fields: Fields) -> BaseSchedule:
    return cron(fields.get("line"), tz=read_zone(fields.get("tz")))  # type: ignore[arg-type]  # it refuses what is no text


def _write_every(when: Any, zone: tzinfo | None) -> Fields:
    placed = when.in_zone(zone or when.tz)
    named = placed.made_of()[1]
    if placed.anchor is not None:
        named["anchor"] = format_instant(placed.anchor)
    step = placed.step
    return {"months": step, **named} if isinstance(step, int) else {"seconds": _seconds(step), **named}


def _read_every(fields: Fields) -> BaseSchedule:
    anchor = parse_instant(fields["anchor"]) if "anchor" in fields else None
    months = whole_of(fields, "months", MOST_MONTHS) if "months" in fields else 0
    made = every(f"{months} months" if months else _step(fields), anchor=anchor, tz=_zone(fields))
    if not made.placed:
        raise ValueError("tz: found none, expected the time zone of whole days")
    return made


def _read_between(fields: Fields) -> BaseSchedule:
    given = [name for name in ("start", "end") if name in fields]
    bounds = {name: typed(fields, name, str, "a time like '2026-12-24T18:00'") for name in given}
    runs = whole_of(fields, "runs", MOST_RUNS) if "runs" in fields else None
    return between(read_schedule(fields.get("when")), **bounds, runs=runs, tz=_zone(fields))


def _write_excluding(when: Any, zone: tzinfo | None) -> Fields:
    placed = when.in_zone(zone or when.tz)
    fields: dict[str, Any] = {"when": write_schedule(placed.parts[0])}
    fields["periods"] = [period.fields() for period in placed.periods()]
    fields["schedules"] = [write_schedule(other) for other in placed.others]
    return {**{name: value for name, value in fields.items() if value}, **placed.made_of()[1]}


def _read_excluding(fields: Fields) -> BaseSchedule:
    periods = [_read_period(each) for each in _list(fields, "periods")]
    others = [read_schedule(each) for each in _list(fields, "schedules")]
    return excluding(read_schedule(fields.get("when")), [*periods, *others], tz=_zone(fields))


def _read_period(fields: Any) -> Period:
    check_known("period", expect("periods", fields, isinstance(fields, dict), "an object with a start"), _PERIOD)
    without = tuple(_list(fields, "without"))
    return Period(**{"start": None, **fields, "without": without})


def _write_union(when: Any, zone: tzinfo | None) -> Fields:
    parts, named = when.in_zone(zone or when.tz).made_of()
    return {"of": [write_schedule(part) for part in parts], **named}


def _read_union(fields: Fields) -> BaseSchedule:
    return union(*map(read_schedule, _list(fields, "of")), tz=_zone(fields))


def _zone(fields: Fields) -> tzinfo | None:
    return read_zone(fields["tz"]) if "tz" in fields else None


def _list(fields: Fields, name: str) -> list[Any]:
    return typed(fields, name, list, "a list", [])  # type: ignore[no-any-return]


_register(_Codec("interval", _write_interval, _read_interval, ("seconds", "relative", "tz")), schedule)
_register(_Codec("crontab", _write_crontab, _read_crontab, (*CRON_FIELDS, "tz")), crontab, CronPart)
_register(_Codec("solar", _write_solar, _read_solar, ("event", "lat", "lon")), solar, SolarPart)
_register(_Codec("one-off", _write_one_off, _read_one_off, ("at",)), OneOff)
_register(_Codec("rrule", _write_made("freq", "dtstart"), _read_rrule, RULE_FIELDS), RRule)
_register(_Codec("cron", _write_made("line"), _read_cron, ("line", "tz")), cron)
_register(_Codec("every", _write_every, _read_every, ("seconds", "months", "anchor", "tz")), every)
_register(_Codec("between", _write_made("when"), _read_between, ("when", "start", "end", "runs", "tz")), between)
_register(_Codec("excluding", _write_excluding, _read_excluding, ("when", "periods", "schedules", "tz")), excluding)
_register(_Codec("union", _write_union, _read_union, ("of", "tz")), union)
