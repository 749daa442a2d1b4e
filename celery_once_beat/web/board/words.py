"""How names, times and states are said on the page. Pure.

Names come from outside: what isn't printable (control characters, halves of surrogates, marks that turn the direction
of writing) is written out, and what is very long is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from typing import Any

from celery_once_beat.windows import parse_instant

__all__ = ("STATES", "beat_words", "clock", "day_and_time", "duration", "label", "plain", "state_of", "story_words")

#: How a window can stand: the page's own word for each, and what it means. Shapes and colours: ``board.css``.
STATES = {
    "done": ("done", "executed, and recorded as that"),
    "running": ("running", "a worker executes it"),
    "published": ("waits", "no worker has begun it yet"),
    "waiting": ("waits again", "for a retry, or to run again"),
    "overdue": ("overdue", "it should have happened, and didn't: a beat publishes it again"),
    "failed": ("failed", "its task failed, after its own retries"),
    "abandoned": ("abandoned", "its executions died too often"),
    "dropped": ("dropped", "its execution died, and it isn't to be recovered"),
    "missed": ("missed", "it was too late for catch_up or grace"),
    "expired": ("expired", "its message expired before a worker took it"),
    "revoked": ("revoked", "its task was revoked"),
    "skipped": ("skipped", "another window of its entry was still running"),
    "other": ("other", "what this version doesn't know"),
}

_MOST = 200
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
#: From this many seconds on a beat that says nothing is mentioned.
_SILENT = 5


def plain(text: object, most: int = _MOST) -> str:
    """A text from outside, printable, on one line and at most ``most`` characters long."""
    words = text if isinstance(text, str) else str(text)
    cut = words[: most + 1]
    shown = cut if cut.isprintable() else repr(cut)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def state_of(state: str) -> str:
    """One of STATES: what Redis says must not become a class of the page."""
    return state if state in STATES else "other"


def duration(seconds: float) -> str:
    """A span of time: ``0.4 s``, ``3 min 4 s``, ``2 h 5 min``, ``3 d 4 h``."""
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    tenths = round(seconds, 1)
    if tenths < _MINUTE:
        return f"{sign}{tenths:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{sign}{whole // 60} min {whole % 60} s"
    if whole < _DAY:
        return f"{sign}{whole // _HOUR} h {whole % _HOUR // 60} min"
    return f"{sign}{whole // _DAY} d {whole % _DAY // _HOUR} h"


def clock(text: str, zone: tzinfo) -> str:
    """The time of day of an instant's text, ``02:00:00``, in ``zone``."""
    return f"{_there(text, zone):%H:%M:%S}"


def day_and_time(text: str, zone: tzinfo, now: str = "") -> str:
    """An instant's text as ``21 November 02:00`` in ``zone``.

    With seconds where there are some; without the day where that is the day of ``now``.
    """
    there = _there(text, zone)
    shown = f"{there:%H:%M}"
    if not now or there.date() != _there(now, zone).date():
        shown = f"{there.day} {there:%B} {shown}"
    if there.microsecond:
        return shown + f":{there:%S}." + f"{there.microsecond:06}".rstrip("0")
    return shown + (f":{there:%S}" if there.second else "")


def _there(text: str, zone: tzinfo) -> datetime:
    instant = parse_instant(text)
    try:
        return instant.astimezone(zone)
    except OverflowError:  # at the calendar's ends; a foreign key may say anything
        return instant


def label(entry: str, story: dict[str, Any], zone: tzinfo) -> str:
    """What a cell says: ``nightly-report, 21 November 02:00, done, 1.2 s late``."""
    parts = [entry, day_and_time(story["start"], zone), _said(story["state"])]
    if story["missed"] > 1:
        parts.append(f"and {story['missed'] - 1} before it")
    if story["late"] is not None:
        late = round(story["late"], 1)
        parts.append(f"{duration(late)} late" if late > 0 else "on time")
    if story["refused"]:
        parts.append(f"{story['refused']} refused")
    return ", ".join(parts)


def _said(state: str) -> str:
    return STATES[state][0] if state in STATES else plain(state, 40)


def beat_words(beat: dict[str, Any]) -> str:
    """What a beat that lives says of itself."""
    parts = []
    if beat["lag"] is not None:
        parts.append(f"lag {duration(beat['lag'])}")
    if beat["offset"] is not None:
        parts.append(f"clock {beat['offset']:+.3f} s")
    if beat["entries"] is not None:
        parts.append(f"{beat['entries']} entries")
    if beat["heard"] >= _SILENT:
        parts.append(f"silent for {beat['heard']:.0f} s")
    return ", ".join(parts)


def story_words(window: dict[str, Any], zone: tzinfo) -> Iterator[tuple[str, str]]:
    """A window's story, line by line: what it is called, and what is known; times in ``zone``, and in UTC."""
    state = window["state"]
    yield "Window", _moment(window["start"], zone)
    yield "Outcome" if window["closed"] else "State", f"{_said(state)}: {STATES[state_of(state)][1]}"
    if window["missed"] > 1:
        yield "Missed with it", f"{window['missed'] - 1} windows before it"
    yield "Claimed", _done_by(window["claimed"], window["beat"], "beat", zone)
    yield "Begun", _done_by(window["begun"], window["worker"], "worker", zone)
    yield "Attempts", str(window["attempts"])
    yield "Late", "-" if window["late"] is None else duration(window["late"])
    if window["closed"]:
        yield "Ended", _moment(window["closed"], zone)
        yield "Took", "-" if window["took"] is None else duration(window["took"])
    yield "Refused copies", str(window["refused"])
    if window["backfill"]:
        yield "Backfill", "opened once more, by order"
    yield "Task", plain(window["task"])
    yield "Task id", window["task_id"]


def _done_by(instant: str | None, who: str | None, what: str, zone: tzinfo) -> str:
    if instant is None:
        return "-"
    return _moment(instant, zone) + (f", by {what} {plain(who)}" if who else "")


def _moment(text: str, zone: tzinfo) -> str:
    there = _there(text, zone)
    fraction = f".{there.microsecond // 1000:03}" if there.microsecond else ""
    local = f"{there.day} {there:%B %Y %H:%M:%S}{fraction} {there:%Z}"
    utc = f"{text[:10]} {text[11:19]}{fraction} UTC"
    return local if there.utcoffset() == timedelta(0) else f"{local} ({utc})"
