"""How names, times and states are said on the page. Pure.

Names come from outside: what isn't printable (control characters, halves of surrogates, marks that turn the direction
of writing) is written out, and what is very long is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo

from celery_once_beat.outcomes import OTHER, STATES, State
from celery_once_beat.status import BeatStatus, WindowStatus
from celery_once_beat.wording import printable, span

_MOST = 200
#: What is recorded of a failure, and room for what has to be written out.
_MOST_FAILURE = 400
#: From this many seconds on a beat that says nothing is mentioned.
_SILENT = 5


def plain(text: object, most: int = _MOST) -> str:
    """A text from outside, printable, on one line and at most ``most`` characters long."""
    words = text if isinstance(text, str) else str(text)
    shown = printable(words[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def state_of(state: str) -> State:
    """One of STATES: what Redis says must not become a class of the page."""
    return STATES.get(state, OTHER)


def clock(instant: datetime, zone: tzinfo) -> str:
    """The time of day of an instant, ``02:00:00``, in ``zone``."""
    return f"{_there(instant, zone):%H:%M:%S}"


def day_and_time(instant: datetime, zone: tzinfo, now: datetime | None = None) -> str:
    """An instant as ``21 November 02:00`` in ``zone``.

    With seconds where there are some; without the day where that is the day of ``now``.
    """
    there = _there(instant, zone)
    shown = f"{there:%H:%M}"
    if now is None or there.date() != _there(now, zone).date():
        shown = f"{there.day} {there:%B} {shown}"
    if there.microsecond:
        return shown + f":{there:%S}." + f"{there.microsecond:06}".rstrip("0")
    return shown + (f":{there:%S}" if there.second else "")


def _there(instant: datetime, zone: tzinfo) -> datetime:
    try:
        return instant.astimezone(zone)
    except OverflowError:  # at the calendar's ends; a foreign key may say anything
        return instant


def label(entry: str, window: WindowStatus, zone: tzinfo) -> str:
    """What a cell says: ``nightly-report, 21 November 02:00, done, 1.2 s late``."""
    parts = [entry, day_and_time(window.start, zone), _said(window.state)]
    if window.missed > 1:
        parts.append(f"and {window.missed - 1} before it")
    if window.late is not None:
        late = round(window.late, 1)
        parts.append(f"{span(late)} late" if late > 0 else "on time")
    if window.refused:
        parts.append(f"{window.refused} refused")
    return ", ".join(parts)


def _said(state: str) -> str:
    return STATES[state].word or state if state in STATES else plain(state, 40)


def beat_words(beat: BeatStatus) -> str:
    """What a beat that lives says of itself."""
    parts = [f"{name} {plain(value)}" for name, value in beat.says.items() if value is not None]
    if beat.heard >= _SILENT:
        parts.append(f"silent for {beat.heard:.0f} s")
    return ", ".join(parts)


def story_words(window: WindowStatus, zone: tzinfo) -> Iterator[tuple[str, str]]:
    """A window's story, line by line: what it is called, and what is known; times in ``zone``, and in UTC."""
    yield "Window", _moment(window.start, zone)
    yield "Outcome" if window.closed else "State", f"{_said(window.state)}: {state_of(window.state).meaning}"
    if window.failure:
        yield "Failure", plain(window.failure, _MOST_FAILURE)
    if window.missed > 1:
        yield "Missed with it", f"{window.missed - 1} windows before it"
    yield "Claimed", _moment(window.claimed, zone)
    yield "Beat", plain(window.beat or "-")
    yield "Begun", _moment(window.begun, zone) + (f", by worker {plain(window.worker)}" if window.begun else "")
    yield "Attempts", str(window.attempts)
    yield "Late", "-" if window.late is None else span(window.late)
    if window.closed:
        yield "Ended", _moment(window.closed, zone)
        yield "Took", "-" if window.took is None else span(window.took)
    yield "Refused copies", str(window.refused)
    if window.backfill:
        yield "Backfill", "opened once more, by order"


def _moment(instant: datetime | None, zone: tzinfo) -> str:
    if instant is None:
        return "-"
    there = _there(instant, zone)
    fraction = f".{there.microsecond // 1000:03}" if there.microsecond else ""
    local = f"{there.day} {there:%B %Y %H:%M:%S}{fraction} {there:%Z}"
    utc = f"{instant.isoformat(' ')[:19]}{fraction} UTC"
    return local if there.utcoffset() == timedelta(0) else f"{local} ({utc})"
