"""Text for messages: values, spans of time, and guesses at misspelt names. Also reads spans of time."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from celery_once_beat.errors import from_signal

#: Most characters that are recorded of a failure, of a task's or of a beat's tick.
MOST_FAILURE = 200
#: Most characters of a failure's text that are read: a password in it may be long.
_MOST_READ = 8192
#: A password by its name: in a URL's query, in a database's connection string, or in a dict as Python shows it.
_NAMED_PASSWORD = re.compile(
    r"""(?i)(passw(?:or)?d|pwd)(['"]?\s{0,3}[=:]\s{0,3})('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s&;,'"}]+)"""
)
#: Most characters of a value in a message.
_SHOWN = 80
#: Most characters of a name that somebody else wrote.
_MOST_NAME = 200
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_UNITS = {
    "s sec second seconds": 1,
    "m min minute minutes": _MINUTE,
    "h hour hours": _HOUR,
    "d day days": _DAY,
    "w week weeks": 7 * _DAY,
}
_SECONDS = {word: seconds for words, seconds in _UNITS.items() for word in words.split()}
_SPAN = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(_SECONDS)})", re.ASCII)
_INSTANT = re.compile(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z", re.ASCII)
#: What :func:`read_span` reads, for messages.
A_SPAN = "a text like '30 s', '5 min', '1h', '1d', '1w'"


def shown(value: object) -> str:
    """Return a value for a message: its repr on one line, at most 80 characters of it, without a URL's password."""
    try:
        text = " ".join(repr(value[:_MOST_READ] if isinstance(value, (str, bytes)) else value).split())
        text = without_passwords(text[:_MOST_READ])
    except BaseException as exc:  # a user's __repr__, or an int of too many digits
        if from_signal(exc):
            raise
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def wrong(name: str, value: object, expected: str) -> str:
    """Say what a value is, and what it should be."""
    return f"{name}: found {shown(value)}, expected {expected}"


def expect(name: str, value: Any, fits: object, expected: str, error: type[Exception] = ValueError) -> Any:
    """Return a value; raises ``error`` unless it ``fits``."""
    if not fits:
        raise error(wrong(name, value, expected))
    return value


def printable(text: str) -> str:
    """Return a name from outside on one line: what could move a terminal's cursor is written out."""
    return text if text.isprintable() else repr(text)


def short(name: str) -> str:
    """Return a name from outside, a worker's say, on one line and cut to 200 characters."""
    return printable(name[:_MOST_NAME])


def some(names: Sequence[str], most: int) -> str:
    """Name the first ``most``: ``a, b and 3 more``."""
    named = ", ".join(names[:most])
    return named if len(names) <= most else f"{named} and {len(names) - most} more"


def number_of(number: int, what: str, several: str = "") -> str:
    """Count things: ``1 worker``, ``2 workers``."""
    return f"{number} {what if number == 1 else several or what + 's'}"


def failure_words(error: BaseException, how: str) -> str:
    """Return what is recorded of a failure: its type, and for ``how`` "message" the first line of its text.

    At most 200 characters; '' for "none". It isn't escaped, and has no URL's password.
    """
    if how == "none":
        return ""
    words = type(error).__name__
    if how == "message":
        try:
            lines = str(error).lstrip().splitlines()
        except BaseException as exc:  # a user's __str__
            if from_signal(exc):
                raise
            lines = []
        words = f"{words}: {without_passwords(lines[0][:_MOST_READ])}" if lines else words
    return words[:MOST_FAILURE].encode(errors="replace").decode().rstrip()


def without_passwords(text: str) -> str:
    """Return ``text`` with ``***`` for the passwords of its URLs and connection strings, in linear time.

    A password that isn't quoted may hold "@" and "/": it ends at the last "@" before a blank.
    """
    return _NAMED_PASSWORD.sub(r"\1\2***", re.sub(r"\S+", _without_password, text))


def _without_password(word: re.Match[str]) -> str:
    scheme, separator, rest = word[0].partition("://")
    login, at, host = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{separator}{user}:***@{host}" if at and colon else word[0]


def did_you_mean(found: str, known: Iterable[str], write: Callable[[str], str] = str) -> str:
    """Return `` (did you mean x?)``, where x is the name in ``known`` most like ``found``; '' if none is like it."""
    near = difflib.get_close_matches(found, list(known), n=1)
    return f" (did you mean {write(near[0])}?)" if near else ""


def span(seconds: float | None) -> str:
    """Write a span of time: ``0.4 s``, ``3 min 4 s``, ``2 h 5 min``, ``3 d 4 h``; ``-`` where it isn't known."""
    if seconds is None:
        return "-"
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if round(seconds, 1) < _MINUTE:
        return f"{sign}{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{sign}{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{sign}{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{sign}{whole // _DAY} d {whole % _DAY // _HOUR} h"


def age(seconds: float) -> str:
    """Write for how long something has lasted, in whole minutes from a minute on: ``12 s``, ``47 min``, ``2 h 5 min``.

    So it doesn't change each second where people look.
    """
    if seconds < _MINUTE:
        return f"{max(seconds, 0.0):.0f} s"
    return f"{int(seconds) // _MINUTE} min" if seconds < _HOUR else span(seconds)


def read_span(given: object) -> timedelta | None:
    """Read a span of time: seconds, a timedelta, or a text as people write it, ``90s``, ``1 min``, ``2h``.

    None if it is none, or too long.
    """
    if isinstance(given, timedelta):
        return given
    try:
        if isinstance(given, str):
            match = _SPAN.fullmatch(given.strip())
            return timedelta(seconds=float(match[1]) * _SECONDS[match[2]]) if match else None
        if isinstance(given, (int, float)) and not isinstance(given, bool):
            return timedelta(seconds=given)
    except (OverflowError, ValueError):  # longer than a timedelta, not a number
        pass
    return None


def read_time(text: str, zone: tzinfo) -> datetime | None:
    """Read a time as people write it: ISO 8601, in ``zone`` where it names none. Aware UTC; None if it is none."""
    try:
        instant = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        return (instant if instant.tzinfo else instant.replace(tzinfo=zone)).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def in_zone(text: str, write: Callable[[datetime], str]) -> str:
    """Write the instants of a text, as ``windows.format_instant`` writes them, by ``write``."""

    def written(found: re.Match[str]) -> str:
        instant = read_time(found[0], timezone.utc)
        return write(instant) if instant else found[0]

    return _INSTANT.sub(written, text)


#: Celery has tasks of these names, which raise.
_NO_TASKS = ("celery.chain", "celery.group")


def why_no_task(task: object) -> str:
    """Say why an entry can't send ``task``; '' for a name. Nothing of a signature is shown but its task."""
    of = task.get("task") if isinstance(task, Mapping) else None
    signature = isinstance(of, str)
    name = of if signature else task
    if isinstance(name, str) and (name in _NO_TASKS or (signature and name.startswith("celery."))):
        canvas = name.removeprefix("celery.")
        return (
            f"task: found a {canvas}, which isn't a task, expected the name of a task of yours that builds and sends "
            f"it: def nightly(): {canvas}(…).apply_async()"
        )
    if signature:
        return f"task: found a signature of {shown(name)}, expected that name, with args, kwargs and options beside it"
    return "" if isinstance(task, str) and task else f"task: found {shown(task)}, expected the name of a task"
