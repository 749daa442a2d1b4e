"""What the page shows at one moment, and what has changed since another. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any

from celery_once_beat.status import EntryStatus, Report, Sight, WindowStatus
from celery_once_beat.store import WindowSeen
from celery_once_beat.windows import format_instant

from . import words

#: Characters of the line that says by what code differs.
_MOST_CODE = 1000


@dataclass(frozen=True)
class Cell:
    """One window."""

    #: The instant's text.
    start: str
    #: A name of ``outcomes.STATES``.
    state: str
    label: str


@dataclass(frozen=True)
class Line:
    """One entry."""

    #: Made from its name: safe in a URL and in an attribute.
    id: str
    name: str
    #: Its schedule and its task.
    about: str
    next: str
    #: What somebody should look at.
    attention: tuple[str, ...]
    cells: tuple[Cell, ...]
    entry: str = field(repr=False)
    task: str | None = field(repr=False)
    #: The windows that the cells stand for, in their order.
    windows: Sequence[WindowSeen] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Page:
    """All of it, texts as they are shown; it holds nothing that isn't to be shown."""

    lines: Mapping[str, Line] = field(default_factory=dict)
    #: Of each beat that lives its name, and what it says.
    beats: tuple[tuple[str, str], ...] = ()
    headline: str = "Nothing is known yet"
    #: How many entries need attention.
    worries: int = 0
    #: When this was so, in the app's time zone; '' before the first look.
    as_of: str = ""
    #: What keeps the page from being of this moment.
    trouble: str = ""
    #: By what the board's own code differs from what the beats run.
    code: str = ""

    def window(self, line: str, start: str) -> WindowStatus | None:
        """Everything that is known of a window; None where it isn't on the page."""
        windows = self.lines[line].windows if line in self.lines else ()
        return next((WindowStatus.of(seen) for seen in windows if format_instant(seen.start) == start), None)


def make_page(sight: Sight, zone: tzinfo, before: Page) -> Page:
    """Say what a look shows; what is the same as ``before`` is taken from there."""
    report = sight.report
    lines: dict[str, Line] = {}
    for entry in report.entries:
        line = _line(entry, sight.windows.get(entry.entry, ()), zone, report.now, before)
        lines.setdefault(line.id, line)  # one that is left out may have overdue windows: the more urgent counts
    worries = sum(bool(line.attention) for line in lines.values())
    return Page(
        lines,
        tuple((words.plain(beat.beat), words.beat_words(beat)) for beat in report.beats),
        _headline(report, worries),
        worries,
        f"{words.clock(report.now, zone)} {zone}",
        code=words.plain(report.code, _MOST_CODE),
    )


def _line(entry: EntryStatus, windows: Sequence[WindowSeen], zone: tzinfo, now: datetime, before: Page) -> Line:
    name, line_id = words.plain(entry.entry), _line_id(entry.entry)
    old = before.lines.get(line_id)
    if old is not None and old.windows is windows:
        cells = old.cells
    else:
        known = {seen.start: (seen, cell) for seen, cell in zip(old.windows, old.cells, strict=True)} if old else {}
        cells = tuple(_cell(name, seen, zone, known.get(seen.start)) for seen in windows)
    about = [words.plain(text) for text in (entry.schedule, entry.task) if text]
    if entry.tracked is False:
        about.append("untracked: sent, and not followed")
    line = Line(
        line_id,
        name,
        " · ".join(about),
        f"next {words.day_and_time(entry.next, zone, now)}" if entry.next else "",
        tuple(words.plain(text) for text in entry.attention),
        cells,
        entry.entry,
        entry.task,
        windows,
    )
    return old if old is not None and old == line and old.cells is cells else line


def _cell(name: str, seen: WindowSeen, zone: tzinfo, known: tuple[WindowSeen, Cell] | None) -> Cell:
    if known is not None and known[0] == seen:
        return known[1]
    window = WindowStatus.of(seen)
    return Cell(format_instant(window.start), words.state_of(window.state).name, words.label(name, window, zone))


def _line_id(entry: str) -> str:
    return hashlib.blake2b(entry.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _headline(report: Report, worries: int) -> str:
    entries = report.entries
    counted = {key: sum(getattr(entry, key) for entry in entries) for key in ("running", "open", "overdue")}
    parts = [
        "1 entry" if len(entries) == 1 else f"{len(entries)} entries",
        f"{worries} need attention" if worries != 1 else "1 needs attention",
    ]
    return ", ".join([*parts, *(f"{number} {name}" for name, number in counted.items() if number)])


def changes(old: Page, new: Page) -> dict[str, Any] | None:
    """What a viewer of ``old`` has to change to see ``new``; None: other entries, the whole page is another."""
    if old.lines.keys() != new.lines.keys():
        return None
    changed: dict[str, Any] = {
        "headline": new.headline,
        "worries": new.worries,
        "as_of": new.as_of,
        "trouble": new.trouble,
        "code": new.code,
    }
    if old.beats != new.beats:
        changed["beats"] = new.beats
    lines = {line_id: _change(old.lines[line_id], line) for line_id, line in new.lines.items()}
    changed["lines"] = {line_id: change for line_id, change in lines.items() if change}
    return changed


def _change(old: Line, new: Line) -> dict[str, Any]:
    if old is new:
        return {}
    changed: dict[str, Any] = {
        key: getattr(new, key) for key in ("about", "next", "attention") if getattr(old, key) != getattr(new, key)
    }
    if old.cells is not new.cells:
        known = {cell.start: cell for cell in old.cells}
        cells = [[c.start, c.state, c.label] for c in new.cells if known.pop(c.start, None) != c]
        if cells:
            changed["cells"] = cells
        if known:
            changed["gone"] = list(known)
    return changed
