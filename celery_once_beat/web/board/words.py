"""The words for names, times and states on the page. Pure.

Names come from outside: what isn't printable (control characters, halves of surrogates, marks that turn the direction
of writing) is written out, and what is very long is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, tzinfo
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from celery_once_beat import wording
from celery_once_beat.outcomes import OTHER, STATES, State
from celery_once_beat.settings import WORKER_TTL
from celery_once_beat.status import BeatStatus, EntryStatus, Report, WindowStatus, WorkerStatus, as_json
from celery_once_beat.windows import task_of_child
from celery_once_beat.wording import printable, some, span

_MOST = 200
#: A reason has a failure's text, and more.
MOST_REASON = 600
#: Queues of a worker that are named.
_MOST_QUEUES = 5
#: Attempts of a window that have links.
_MOST_ATTEMPTS = 20
#: From this many seconds on a beat that says nothing is mentioned, and so is its lag, and how far its clock is off.
_SILENT, _LAG, _OFF = 5, 1.0, 0.5
#: Characters of what concerns all entries.
MOST_TROUBLE = 1000
#: Workers that are named; the others are counted.
_MOST_WORKERS = 12


def plain(text: object, most: int = _MOST) -> str:
    """A text from outside, printable, on one line and at most ``most`` characters long."""
    words = text if isinstance(text, str) else str(text)
    shown = printable(words[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def state_of(state: str) -> State:
    """One of STATES: what Redis says must not become a class of the page."""
    return STATES.get(state, OTHER)


def when(instant: datetime, text: str) -> Markup:
    """What is written for an instant; the page's script says how long ago that is."""
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(
        instant.isoformat(timespec="milliseconds"), text
    )


def clock(instant: datetime, zone: tzinfo) -> Markup:
    """The time of day of an instant, ``02:00:00``, in ``zone``."""
    return when(instant, f"{_there(instant, zone):%H:%M:%S}")


def in_zone(text: str, zone: tzinfo) -> str:
    """A text whose instants, which are UTC, are in ``zone``."""
    return wording.in_zone(text, lambda instant: day_and_time(instant, zone))


def day_and_time(instant: datetime, zone: tzinfo, now: datetime | None = None, month: str = "%B") -> str:
    """An instant as ``21 November 02:00`` in ``zone``.

    With seconds where there are some; without the day where that is the day of ``now``.
    """
    there = _there(instant, zone)
    shown = f"{there:%H:%M}"
    if now is None or there.date() != _there(now, zone).date():
        shown = f"{there.day} {there.strftime(month)} {shown}"
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
    return ", ".join([entry, day_and_time(window.start, zone), in_short(window, zone)])


def in_short(window: WindowStatus, zone: tzinfo) -> str:
    """How a window stands: ``done, 1.2 s late``."""
    parts = [said(window.state)]
    if window.waits_for:
        parts.append(f"for that of {day_and_time(window.waits_for, zone, window.start)}")
    elif window.limit:
        parts.append(f"for a slot of {plain(window.limit)}")
    if window.missed > 1:
        parts.append(f"and {window.missed - 1} before it")
    if window.late is not None:
        late = round(window.late, 1)
        parts.append(f"{span(late)} late" if late > 0 else "on time")
    past = window.past_deadline()
    if past is not None:
        parts.append(f"{span(past)} past its deadline")
    if window.refused:
        parts.append(f"{window.refused} refused")
    return ", ".join(parts)


def stretch(begin: datetime, end: datetime, zone: tzinfo) -> str:
    """A stretch of time: ``21 November 02:00 to 03:00``."""
    return f"{day_and_time(begin, zone)} to {day_and_time(end, zone, begin)}"


def said(state: str) -> str:
    """A state in a word or two."""
    return STATES[state].said if state in STATES else plain(state, 40)


def next_start(entry: EntryStatus, zone: tzinfo, now: datetime, cause: str = "") -> str:
    """Say when an entry starts next, or what (``cause``) keeps it from starting; '' where that isn't known."""
    if entry.paused or entry.kind == "disabled":
        return "paused" if entry.paused else "disabled"
    return (cause or when(entry.next, day_and_time(entry.next, zone, now, "%b"))) if entry.next else ""


def beat_words(beat: BeatStatus) -> str:
    """What a beat that lives says of itself; how it is where all is well says nobody anything, and changes always."""
    well = {"lag": (beat.lag or 0.0) < _LAG, "clock": abs(beat.offset or 0.0) < _OFF}
    parts = [f"{name} {plain(value)}" for name, value in beat.says.items() if value is not None and not well.get(name)]
    if beat.unloaded:
        parts.insert(0, f"has yet to load {beat.unloaded}")
    if beat.trouble:
        parts.insert(0, plain(beat.trouble))
    if beat.heard >= _SILENT:
        parts.append(f"silent for {beat.heard:.0f} s")
    return ", ".join(parts)


def workers(report: Report, zone: tzinfo) -> Iterator[tuple[str, str]]:
    """Yield the workers by name, and how each stands."""
    found = sorted(report.workers, key=lambda each: each.worker)
    for each in found[:_MOST_WORKERS]:
        yield plain(each.worker), worker_words(each, report.now, zone)
    if len(found) > _MOST_WORKERS:
        yield f"{len(found) - _MOST_WORKERS} more", ""


def worker_words(worker: WorkerStatus, now: datetime, zone: tzinfo) -> str:
    """How a worker stands at ``now``: ``2 running, consumes night``, or ``heard of at 14:02``."""
    parts = [f"{worker.running} running"] if worker.running else []
    if worker.heard is not None and worker.heard >= WORKER_TTL:
        heard = (now - timedelta(seconds=worker.heard)).replace(second=0, microsecond=0)
        parts.append(f"heard of at {day_and_time(heard, zone, now)}")
    elif worker.queues:
        parts.append(f"consumes {plain(some(worker.queues, _MOST_QUEUES))}")
    return ", ".join(parts)


def moment(instant: datetime | None, zone: tzinfo) -> Markup:
    """An instant in ``zone``, to the second; a dash for None."""
    if instant is None:
        return Markup("-")
    there = _there(instant, zone)
    return when(instant, f"{there.day} {there:%B %Y %H:%M:%S} {there:%Z}")


def fields_of(window: WindowStatus, entry: str, task: str | None) -> dict[str, Any]:
    """Return by what the links of a window are filled."""
    known = as_json(window)
    return {**known, "ended": known["closed"], "entry": entry, "task": task}


def fields_of_child(name: str, task_id: str) -> dict[str, str]:
    """As :func:`fields_of`, of a child: its name, and its task's id."""
    return {"entry": name, "task": task_of_child(name), "task_id": task_id}


def links_of(templates: Mapping[str, str], known: Mapping[str, Any], attempts: int = 0) -> Iterator[tuple[str, str]]:
    """Yield name and address of each link to another tool, by ``once_beat_board_links``.

    A link that names an attempt is one for each of them.
    What fills a template comes from outside, so each value is percent-encoded: it can't leave its place in the address.
    A link that needs what isn't known of the window is left out.
    """
    texts = {name: value for name, value in known.items() if value and isinstance(value, str)}
    quoted = {name: quote(text, safe="", errors="surrogatepass") for name, text in texts.items()}
    for name, template in templates.items():
        numbers = range(1, min(attempts, _MOST_ATTEMPTS) + 1) if "{attempt}" in template else [0]
        for number in numbers:
            with suppress(KeyError):
                address = template.format_map({**quoted, "attempt": number})
                yield plain(f"{name}, attempt {number}" if number else name, 60), address
