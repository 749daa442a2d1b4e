"""A definition: what is to run, when, and how, as people set it at run time; and its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from functools import cached_property, partial
from typing import Any

from celery.schedules import BaseSchedule
from kombu import compression, serialization
from kombu.utils import json as celery_json

from celery_once_beat.errors import NewerVersionError, OnceError, SettingError, StoreDataError
from celery_once_beat.options import Check, check_choice, check_count, check_seconds, wrong
from celery_once_beat.rules import EntryPolicy, Timing, check_zone, zone_name
from celery_once_beat.settings import Settings
from celery_once_beat.windows import CHILD, is_child
from celery_once_beat.wording import expect, shown, why_no_task

from .codecs import check_known, read_schedule, write_schedule
from .strict_json import MOST_JSON, read_object, typed

#: Of the JSON.
_VERSION = 1
_MOST_NAME = 1024
#: Most characters of who changed something, and of why.
_MOST_BY, _MOST_NOTE = 200, 1000
_TEXT = Check("a text", lambda value: isinstance(value, str))
_DICT = Check("a dict", lambda value: isinstance(value, dict))
_FLAG = check_choice(True, False)
#: What a definition may say of its message; None: checked by :meth:`Definition.check`. An exchange, a connection, a
#: callback or a task's id are the app's to say.
_OPTIONS: dict[str, Check | None] = {
    "compression": None, "countdown": None, "eta": None, "expires": None, "serializer": None,
    "delivery_mode": check_choice(1, 2, "transient", "persistent"), "headers": _DICT, "ignore_result": _FLAG,
    "priority": check_count(0), "queue": _TEXT, "retry": _FLAG, "retry_policy": _DICT, "routing_key": _TEXT,
    "shadow": _TEXT, "soft_time_limit": check_seconds(0), "time_limit": check_seconds(0),
}  # fmt: skip
#: The headers by which Celery and kombu say what a message is: which task it is for, say. They are the app's too.
_OWN_HEADERS = frozenset({
    "argsrepr", "compression", "eta", "expires", "group", "group_index", "id", "ignore_result", "kwargsrepr", "lang",
    "origin", "parent_id", "replaced_task_nesting", "retries", "root_id", "shadow", "stamped_headers", "stamps", "task",
    "timelimit",
})  # fmt: skip
_FIELDS = ("v", "task", "schedule", "args", "kwargs", "options", "once")
#: What isn't written, of ``args`` and of the other fields.
_NOTHING: tuple[tuple[Any, ...], ...] = ((None, (), []), (None, {}))
#: By it Celery's JSON knows a value that isn't JSON's own.
_MARK = '"__type__"'
_ENCODER = celery_json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What a schedule runs, when and how. Made by :meth:`of`, or read from JSON; both check it.

    ``args``, ``kwargs`` and ``options`` hold what Celery's JSON serializer can write: JSON's own types, bytes, dates
    and times, Decimal and UUID. Any other value is refused.
    """

    task: str
    schedule: BaseSchedule
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    #: As for ``apply_async``.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: The entry's ``once`` settings.
    once: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, task: str, schedule: object, zone: tzinfo | None = None, **more: Any) -> Definition:
        """Make a definition of what a caller gives; raises SettingError for the first thing that can't be stored.

        ``zone`` counts for schedules that have a time zone; None: their own. ``more`` are the other fields.
        """
        given = {name: value for name, value in more.items() if value not in _NOTHING[name != "args"]}
        if isinstance(given.get("once"), Mapping):
            given["once"] = once = dict(given["once"])
            own = check_zone("once['tz']", once.get("tz"))
            if own is not None:
                zone, once["tz"] = own, zone_name(own)
            if isinstance(once.get("anchor"), datetime):
                once["anchor"] = once["anchor"].isoformat()
        try:
            return _read_back(_text(task, write_schedule(schedule, zone), given))
        except ValueError as exc:
            raise SettingError(str(exc)) from exc

    @classmethod
    def read(cls, name: str, text: str) -> Definition:
        """Read the JSON of the entry ``name``; raises StoreDataError, or NewerVersionError."""
        try:
            return _read_back(text)
        except NewerVersionError as exc:
            raise NewerVersionError(f"schedule {name!r}: {exc}") from exc
        except ValueError as exc:
            raise StoreDataError(f"schedule {name!r}: {exc}; set it again, or delete it") from exc

    @classmethod
    def from_json(cls, value: object) -> Definition:
        """Make a definition of what :meth:`as_json` returned; raises SettingError, or NewerVersionError."""
        try:
            return _read(_write(value))
        except ValueError as exc:
            raise SettingError(str(exc)) from exc

    def text(self) -> str:
        """Return its JSON, the same for the same definition."""
        return self._text

    @cached_property
    def _text(self) -> str:
        more = {name: getattr(self, name) for name in _FIELDS[3:] if getattr(self, name)}
        return _text(self.task, write_schedule(self.schedule), more)

    def as_json(self) -> dict[str, Any]:
        """Return its JSON as a dict of JSON's own types, for files."""
        return json.loads(self.text())  # type: ignore[no-any-return]

    def check_tasks(self, settings: Settings) -> None:
        """Raise SettingError if ``once_beat_runtime_tasks`` doesn't allow what it sends."""
        settings.check_runtime_task("task", self.task)
        on_failure = self.once.get("on_failure")
        if isinstance(on_failure, str):
            settings.check_runtime_task("once['on_failure']", on_failure)

    def check(self, name: str, settings: Settings, task: object = None, zone: tzinfo | None = None) -> None:
        """Check the options as a beat does that loads the entry ``name``; raises SettingError.

        ``task`` is the task that it sends, or None if this process doesn't know it; ``zone`` is that of naive
        datetimes, None: they are refused.
        """
        self.check_tasks(settings)
        EntryPolicy.of(name, dict(self.once), task, settings)
        Timing.of(name, dict(self.options), task, zone)
        _check_encoders(name, self.options)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of a schedule."""

    #: The version that it made.
    version: int
    #: By the server, aware UTC.
    at: datetime
    #: ``set``, ``pause``, ``resume`` or ``delete``.
    what: str
    by: str = ""
    note: str = ""
    #: What was in force from then on; None: what was before, or after a deletion nothing.
    definition: Definition | None = None


def check_name(name: object) -> str:
    """Return the name of a schedule; raises SettingError."""
    try:
        if isinstance(name, str) and 0 < len(name.encode()) <= _MOST_NAME and name.isprintable() and not is_child(name):
            return str.__str__(name)
    except UnicodeEncodeError:  # half of a surrogate pair
        pass
    raise wrong("name of a schedule", name, f"1 to {_MOST_NAME} bytes of printable text, not beginning with {CHILD}:")


def naming(name: str, error: OnceError) -> SettingError:
    """Return the error of the schedule ``name``, which it names."""
    named = str(error).startswith((f"schedule {name!r}", f"beat entry {name!r}"))
    return SettingError(str(error) if named else f"schedule {name!r}: {error}")


def check_words(by: object, note: object) -> str:
    """Return who changed something, and why, as JSON; raises SettingError."""
    for what, value, most in (("by", by, _MOST_BY), ("note", note, _MOST_NOTE)):
        fits = isinstance(value, str) and len(value) <= most
        expect(what, value, fits, f"a text of up to {most} characters", SettingError)
    return _write({"by": by, "note": note})


def _check_encoders(entry: str, options: Mapping[str, Any]) -> None:
    """Check that kombu can make a message; raises SettingError."""
    encoders: dict[str, Any] = {"compression": compression.get_encoder, "serializer": partial(serialization.dumps, {})}
    for name, find in encoders.items():
        try:
            if name in options:
                find(options[name])
        except Exception:  # noqa: BLE001  # kombu's, or a value that is no name
            expected = "one that is registered with kombu in this process"
            raise wrong(f"beat entry {entry!r}, options[{name!r}]", options[name], expected) from None


# -- JSON


def _text(task: object, schedule: Mapping[str, Any], more: Mapping[str, Any]) -> str:
    plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in more.items()}
    return _write({"v": _VERSION, "task": task, "schedule": schedule, **plain})


def _write(value: object) -> str:
    """Write as Celery's JSON serializer does; raises SettingError for what that can't write."""
    try:
        text = _ENCODER.encode(value)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise SettingError("a schedule's definition: found half of a surrogate pair, expected text") from None
    except Exception as exc:  # whatever a user's value raises
        raise SettingError(
            f"a schedule's definition can't be written as JSON: {shown(exc)}; expected JSON's own types, bytes, dates "
            "and times, Decimal or UUID"
        ) from exc
    if size > MOST_JSON:
        raise SettingError(f"a schedule's definition: found {size} bytes of JSON, expected up to {MOST_JSON}")
    return text


def _read(text: str) -> Definition:
    """Read a definition strictly; raises ValueError or NewerVersionError."""
    found = read_object(text)
    version: Any = found.get("v")
    expect("v", version, type(version) is int and version > 0, str(_VERSION))
    if version > _VERSION:
        raise NewerVersionError(f"its JSON is of version {version!s:.20}, this is {_VERSION}; upgrade this process")
    check_known("definition", found, _FIELDS)
    task: Any = found.get("task")
    why = why_no_task(task)
    if why:
        raise ValueError(why)
    expect("task", task, len(task) <= _MOST_NAME, f"a name of at most {_MOST_NAME} characters")
    restored = partial(_restored, marked=_MARK in text)
    options = restored("options", found, dict)
    if "once" in options:
        raise ValueError("options: found 'once', expected it beside options, as once=")
    for name, value in options.items():
        check = _OPTIONS[expect("options", name, name in _OPTIONS, ", ".join(sorted(_OPTIONS)))]
        if check is not None and value is not None:
            check(f"options[{name!r}]", value)
    for name in options.get("headers") or ():
        expect("options['headers']", name, name not in _OWN_HEADERS, "none of Celery's own headers")
    return Definition(
        task=task,
        schedule=read_schedule(found.get("schedule")),
        args=tuple(restored("args", found, list)),
        kwargs=restored("kwargs", found, dict),
        options=options,
        once=restored("once", found, dict),
    )


def _read_back(text: str) -> Definition:
    """As :func:`_read`, of what this module has written: so it would be written again."""
    found = _read(text)
    if _MARK not in text:  # a date, say, may be written in several ways
        vars(found)["_text"] = text
    return found


def _restored(name: str, found: Mapping[str, Any], kind: type, *, marked: bool) -> Any:
    """Return a part with Celery's own types, dates say, as a task gets them; not ``marked``: there are none."""
    value = typed(found, name, kind, f"a {kind.__name__}") if name in found else kind()
    if not value or not marked:
        return value
    try:
        restored = celery_json.loads(json.dumps(value))
    except Exception as exc:  # a date that is none, say
        raise ValueError(f"{name}: {shown(exc)}") from exc
    return expect(name, restored, isinstance(restored, kind), kind.__name__)
