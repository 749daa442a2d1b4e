"""The public face of "when": what a window is, and how it is written in keys, logs and message headers.

Pure: nothing here does I/O or reads a clock. ``rules.starts`` computes when windows start. ``Window.key`` and
``Window.record`` ask the context in which a worker runs the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import Any, Protocol

from .errors import HeaderError, NewerVersionError, RecordError
from .identity import uuid_of
from .options import check_lease, check_limit_name
from .rules import naive_utc, next_start, starts_after  # noqa: F401  # others know them from here
from .settings import Settings
from .wording import shown

#: Length of an instant's text.
INSTANT_WIDTH = 27
#: Each of them alone makes a message one that was sent for a window.
_WINDOW_HEADERS = ("once_entry", "once_start", "once_v")
#: The header that counts how often a message for a window was put back.
PUT_BACK = "once_put_back"

_VERSION = 1
_MAX_ENTRY_BYTES = 64 * 1024
_MAX_ID = 1024
#: Attempts, and retries.
_MAX_NUMBER = 10**9
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT([01]\d|2[0-3]):\d\d:\d\d\.\d{6}Z", re.ASCII)
_AN_INSTANT = "an instant like 2026-11-21T05:36:00.000000Z"


def _not_held() -> bool:
    return False


class Database(Protocol):
    """What ``record`` takes of SQLAlchemy: a Session or a Connection."""

    def execute(self, statement: Any, /, *more: Any, **options: Any) -> Any:
        """Execute a statement in the transaction that it is in."""


@dataclass(frozen=True)
class Window:
    """One window of an entry, as the execution that was sent for it sees it.

    ``start`` and ``end`` are aware datetimes in UTC: the scheduled instant and the next one (None after a
    one-off). ``attempt`` counts the window's executions from 1. ``tracked`` is False if nothing recovers the window.
    ``keyed`` is True if ``entry`` is a key of ``once`` or ``apply_once`` that isn't tracked. ``fence`` grows with every
    execution of the entry's windows (None before one has begun). ``last_done`` is the start of the entry's last window
    that ended as done, in UTC (None if there is none). ``lease`` is the entry's own, in seconds (None: as the task
    says). ``limit`` is the name of the limit that it shares with other entries (None: none).

    ``scheduled`` is False if a task was called without a window, by ``delay()`` for example. The window is then the
    call's own: ``entry`` is its task id, ``start`` is when it first began, the same over its retries. It is always
    held.
    """

    entry: str
    start: datetime
    end: datetime | None
    attempt: int = 1
    tracked: bool = True
    fence: int | None = None
    last_done: datetime | None = None
    keyed: bool = False
    scheduled: bool = True
    lease: float | None = None
    limit: str | None = None
    _held: Callable[[], bool] = field(default=_not_held, repr=False, compare=False, hash=False)
    _context: BodyContext | None = field(default=None, repr=False, compare=False, hash=False)

    @property
    def held(self) -> bool:
        """True while this execution's lease is certain to be its own."""
        return self._held()

    @property
    def key(self) -> str:
        """An idempotency key, for mails and HTTP calls: a UUID, the same in every execution of this window.

        Where a body makes several calls, add a name to each: ``f"{self.window.key}:charge"``. Raises RecordError for a
        window that no execution has, as signals of beats bring them.
        """
        return self._executed().key(self)

    def record(
        self,
        database: Database | None = None,
        step: str = "",
        *,
        result: Any = None,
        skip: bool = False,
        using: str = "default",
    ) -> bool:
        """Record this window in the caller's own transaction, so that what else is written there is written once.

        ``database`` is an SQLAlchemy Session or Connection. Without it, Django's connection ``using`` counts, within
        ``transaction.atomic()``. Call it first: the row commits with the rest of the transaction, or not at all.
        Several transactions of one body need a ``step`` each. Called again in the same transaction, it adds the
        ``result``.

        Returns True if the transaction is the first. If an earlier one has committed this window and step, raises
        ``errors.WindowRecorded``, by which the execution ends as done, with the ``result`` (what
        JSON can hold) that was recorded; with ``skip`` returns False. The transaction stays usable. Waits for another
        transaction that has recorded the same and is still open.

        Raises RecordError for what wouldn't be part of a transaction, or can't be told from what this execution has
        recorded before. Errors of the database are its own: after a deadlock or a serialization failure, retry the
        transaction, or the task.
        """
        return self._executed().record(self, database, step, result, skip=skip, using=using)

    def _executed(self) -> BodyContext:
        if self._context is None:
            raise RecordError(
                f"window {format_instant(self.start)} of {shown(self.entry)}: found outside of an execution, expected "
                "self.window in a task's body, or what once() gives"
            )
        return self._context


class BodyContext:
    """The context in which a body runs for its window, or for a call without one. Features add to it: ``AroundBody``.

    A body may call itself, as by ``super().__call__()``: then the context is entered again.
    """

    #: What the call returns if a feature has ended the body.
    result: Any = None

    def __init__(self, settings: Callable[[], Settings], *, running: int = 0, replaced: int = 0) -> None:
        #: Asked when it is needed: most bodies need none of it.
        self._settings = settings
        #: How often the body has been entered, and not been left.
        self.running = running
        #: How many tasks have replaced each other, by ``self.replace()``, up to this one: they have one id.
        self._replaced = replaced

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of its window in another process is of no execution."""
        return type(None), ()

    def __enter__(self) -> None:
        """The body begins."""
        self.running += 1

    def __exit__(self, *raised: object) -> bool:  # type: ignore[exit-return]  # a feature's may return True
        """Return whether a feature has ended the body: the call returns ``result`` then."""
        self.running -= 1
        return False

    def key(self, window: Window) -> str:
        """Return the window's idempotency key: its task id, but for runs that were ordered.

        A call that wasn't sent for a window is known by its own task id: when it began differs in each delivery.
        """
        if not window.scheduled:
            return uuid_of(f"call\x00{self._call(window)}")
        entry = f"key:{window.entry}" if window.keyed else window.entry
        return task_id(self._settings().key_prefix, entry, window.start)

    def record(self, *_: Any, **__: Any) -> bool:
        """See :meth:`celery_once_beat.Window.record`."""
        raise RecordError("record: found without the feature effects, which does it")

    def _call(self, window: Window) -> str:
        """Name a call that wasn't sent for a window."""
        return f"{window.entry}\x00{self._replaced}" if self._replaced else window.entry


@dataclass(frozen=True)
class WindowKey:
    """Names a window: its entry and its start (aware UTC)."""

    entry: str
    start: datetime
    #: The task id of the message that names it; None: no message does.
    sent_as: str | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True)
class KeyedWindow(WindowKey):
    """A window of a user-defined key, ``entry``. Its hash holds fence and attempts, and it isn't in the open set."""

    #: Aware UTC; None: no window follows.
    end: datetime | None = None


#: The name of each tracked child begins so, and that of no entry. A child's hash has it as its fingerprint.
CHILD = "child"


def is_child(entry: str) -> bool:
    """Whether this is the name of a child that beats recover, not of an entry."""
    return entry.startswith(f"{CHILD}:")


def task_of_child(name: str) -> str:
    """Return the task of a child by its name, ``proj.mail@report:ann``."""
    return name.removeprefix(f"{CHILD}:").partition("@")[0]


def changed(window: Window, **fields: Any) -> Window:
    """As ``dataclasses.replace``, which takes five times as long: each execution changes its window twice."""
    other = object.__new__(Window)
    vars(other).update(vars(window), **fields)
    return other


def key_of(window: Window, sent_as: str | None = None) -> WindowKey:
    """Return the key by which the store knows ``window``; ``sent_as`` is the task id of its message."""
    if window.keyed:
        return KeyedWindow(window.entry, window.start, window.end)
    return WindowKey(window.entry, window.start, sent_as=sent_as)


# -- instants as text


@lru_cache(maxsize=1024)  # each verb of a window writes its start
def format_instant(instant: datetime) -> str:
    """Return the canonical text of an aware datetime, in UTC: ``2026-11-21T05:36:00.000000Z``.

    Its length is fixed, so that the order of texts is the order of time. Raises ValueError for a naive datetime.
    """
    if instant.tzinfo is timezone.utc:  # most are
        return instant.isoformat(timespec="microseconds")[:26] + "Z"
    return naive_utc(instant).isoformat(timespec="microseconds") + "Z"


def parse_instant(text: str) -> datetime:
    """Return the instant, aware, in UTC, of a text by :func:`format_instant`; else raise ValueError."""
    try:
        if _INSTANT.fullmatch(text):
            return datetime.fromisoformat(f"{text[:-1]}+00:00")  # its zone is timezone.utc itself
    except (TypeError, ValueError):
        pass
    raise ValueError(f"found {shown(text)}, expected {_AN_INSTANT}")


def task_id(prefix: str, entry: str, start: datetime, ordered: datetime | None = None) -> str:
    """Return the id of a window's task. Duplicates share it, and anyone can look up a window's result.

    ``prefix`` is ``once_beat_key_prefix``. ``ordered`` is when a person ordered the window to run (again), in whole ms.
    That run has an id of its own, since workers keep discarding a revoked one. A UUID.
    """
    name = f"window\x00{prefix}\x00{entry}\x00{format_instant(start)}"
    return uuid_of(name if ordered is None else f"{name}\x00{format_instant(ordered)}")


def alert_id(prefix: str, entry: str, start: datetime, what: str) -> str:
    """Return the id of an alert of a window, the same for each repeat of the alert. Else as :func:`task_id`."""
    return uuid_of(f"window\x00{prefix}\x00{entry}\x00{format_instant(start)}\x00told\x00{what}")


# -- windows as message headers


def encode_headers(window: Window, sent_as: str | None = None) -> dict[str, str | int]:
    """Return the flat message headers of ``window``, without its fence, its lease and its last success.

    ``sent_as`` is the task id of the message that they are for. None: any message.
    """
    headers: dict[str, str | int | None] = {
        "once_entry": window.entry,
        "once_start": format_instant(window.start),
        "once_end": None if window.end is None else format_instant(window.end),
        "once_attempt": window.attempt,
        "once_tracked": 1 if window.tracked else None,
        "once_keyed": 1 if window.keyed else None,
        "once_lease": None if window.lease is None else round(window.lease * 1000),
        "once_limit": window.limit,
        "once_id": sent_as,
        "once_v": _VERSION,
    }
    return {name: value for name, value in headers.items() if value is not None}


def with_window(headers: Mapping[str, Any] | None, window: Window, sent_as: str) -> dict[str, Any]:
    """Return ``headers`` with those of ``window``, and without those of any other."""
    return {**without_window(headers), **encode_headers(window, sent_as)}


def without_window(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``headers`` without those of any window."""
    return {name: value for name, value in (headers or {}).items() if name not in HEADERS and name != PUT_BACK}


def decode_headers(headers: Mapping[str, object], task: object = None) -> Window | None:
    """Return the window that a message was sent for, or None if it wasn't sent for one.

    ``task`` is the message's task id. Headers with another id were copied from another message, and don't count; None
    isn't compared. Raises HeaderError, naming the header, if they aren't what :func:`encode_headers` writes, and
    NewerVersionError if a newer version wrote them.
    """
    if headers.keys().isdisjoint(_WINDOW_HEADERS):
        return None
    found: dict[str, Any] = dict.fromkeys(_MAY_LACK)
    for name, (read, expected) in _READ.items():
        if name in headers or name not in found:
            try:
                value = found[name] = read(headers.get(name))
            except ValueError:  # a SettingError is one
                raise _wrong(headers, name, expected) from None
            if name == "once_v" and value > _VERSION:
                raise NewerVersionError(
                    f"message header once_v: found {shown(value)}, expected at most {_VERSION}; upgrade this process"
                )
            if name == "once_id" and value != str(task) and task is not None:
                return None
    start, end, tracked, keyed = found["once_start"], found["once_end"], found["once_tracked"], found["once_keyed"]
    if end is not None and end <= start:
        raise _wrong(headers, "once_end", f"one after once_start, {format_instant(start)}")
    if tracked and keyed:
        raise HeaderError("message header once_keyed: found beside once_tracked, expected one of the two")
    more = {"lease": found["once_lease"], "limit": found["once_limit"]}
    return Window(found["once_entry"], start, end, found["once_attempt"], bool(tracked), keyed=bool(keyed), **more)


def find_headers(*mappings: object) -> dict[str, object]:
    """Return the ``once_…`` headers alone of the mapping that :func:`find_among` finds; {} if there is none."""
    found = find_among(*mappings) or {}
    return {name: value for name, value in found.items() if isinstance(name, str) and name.startswith("once_")}


def find_among(*mappings: object) -> Mapping[Any, object] | None:
    """Return the first mapping that holds a window's headers, perhaps among others; None if none does.

    It is one of ``mappings``, which may be anything, or stands below its ``headers``: Celery nests them if a message's
    headers were given as ``apply(headers=…)``. Headers without an entry count if they have a start or a version: that
    message has lost a part of its headers, and must not run as if it had no window.
    """
    # Every message of an OnceTask passes here, three times, and most have no window. Whether something is a dict is
    # known sooner than whether it is any mapping.
    found: Mapping[Any, object] | None = None
    for mapping in mappings:
        if mapping is None or not isinstance(mapping, (dict, Mapping)):
            continue
        for level in (mapping, mapping.get("headers")):
            if level is None or not isinstance(level, (dict, Mapping)) or level.keys().isdisjoint(_WINDOW_HEADERS):
                continue
            if found is None or ("once_entry" in level and "once_entry" not in found):
                found = level
    return found


# -- calls without a window

#: When such a call first began, and its task id. Its retries carry it.
_CALL = "once_call"


def encode_call(call: str, start: datetime) -> dict[str, str]:
    """Return the message header that tells a retry of ``call``, a task id, when that first began."""
    return {_CALL: f"{format_instant(start)} {call}"}


def find_call(call: object, *mappings: object) -> datetime | None:
    """Return when ``call``, a task id, first began, as its header in one of ``mappings`` says; else None."""
    for mapping in mappings:
        text = mapping.get(_CALL) if isinstance(mapping, Mapping) else None
        if isinstance(text, str) and text[INSTANT_WIDTH:] == f" {call}":
            try:
                return parse_instant(text[:INSTANT_WIDTH])
            except ValueError:
                return None
    return None


def check_retry(retries: object) -> int:
    """Return a message's retry number; raises HeaderError for one that the store couldn't keep."""
    if retries is None:
        return 0
    if type(retries) is int and 0 <= retries <= _MAX_NUMBER:
        return retries
    raise _wrong({"retries": retries}, "retries", f"a whole number from 0 to {_MAX_NUMBER}")


def _name(value: Any) -> str:
    if isinstance(value, str) and 0 < len(value.encode()) <= _MAX_ENTRY_BYTES:
        return value
    raise ValueError


def _id(value: Any) -> str:
    if isinstance(value, str) and 0 < len(value) <= _MAX_ID:
        return value
    raise ValueError


def _whole(value: Any, least: int = 1, most: int | None = None) -> int:
    if type(value) is int and value >= least and (most is None or value <= most):  # a bool is an int too
        return value
    raise ValueError


def _lease(value: Any) -> Any:
    return check_lease("", _whole(value, most=10**12) / 1000)


#: How each header's value is read, in this order, and what is expected. Half of a surrogate pair is a ValueError, too.
_READ: dict[str, tuple[Callable[[Any], Any], str]] = {
    "once_v": (_whole, "a whole number from 1"),
    "once_id": (_id, f"a task id of 1 to {_MAX_ID} characters"),
    "once_entry": (_name, f"an entry's name of 1 to {_MAX_ENTRY_BYTES} bytes"),
    "once_start": (parse_instant, _AN_INSTANT),
    "once_end": (parse_instant, _AN_INSTANT),
    "once_attempt": (partial(_whole, most=_MAX_NUMBER), f"a whole number from 1 to {_MAX_NUMBER}"),
    "once_tracked": (partial(_whole, most=1), "1 or no such header"),
    "once_keyed": (partial(_whole, most=1), "1 or no such header"),
    "once_lease": (_lease, "whole milliseconds, from 500 to ten years"),
    "once_limit": (partial(check_limit_name, ""), "the name of a limit"),
}
#: The message headers that say for which window a message was sent. ``once_id`` is the message's own task id: a child
#: that was given its parent's headers is no copy of the parent's window.
HEADERS = frozenset(_READ)
#: Those that a message of a window may lack.
_MAY_LACK = ("once_id", "once_end", "once_tracked", "once_keyed", "once_lease", "once_limit")


def _wrong(headers: Mapping[str, object], name: str, expected: str) -> HeaderError:
    found = shown(headers[name]) if name in headers else "none beside others of a window"
    return HeaderError(f"message header {name}: found {found}, expected {expected}")
