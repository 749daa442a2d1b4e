"""What the board shows at one moment, before anybody has chosen a part of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone, tzinfo

from celery_once_beat.identity import digest
from celery_once_beat.lookup import WindowSeen
from celery_once_beat.status import EntryStatus, Report, Sight
from celery_once_beat.windows import format_instant

from . import words

#: How many workers are named; the others are counted.
_MOST_WORKERS = 12
#: Characters of the line that says by what code differs.
_MOST_CODE = 1000


@dataclass(frozen=True, eq=False)
class Line:
    """One entry. While nothing of it changes it is the same object, look after look."""

    #: Made from its name: safe in a URL and in an attribute.
    id: str
    #: As it is shown.
    name: str
    status: EntryStatus
    #: Its newest windows, newest first.
    windows: Sequence[WindowSeen]
    #: Of all times that are shown.
    zone: tzinfo

    @property
    def entry(self) -> str:
        """Its name as the store has it."""
        return self.status.entry

    @property
    def attention(self) -> tuple[str, ...]:
        """What somebody should look at."""
        return tuple(words.plain(words.in_zone(text, self.zone)) for text in self.status.attention)

    @property
    def is_whole(self) -> bool:
        """Whether ``windows`` are all that it ever had; the store keeps no more than the newest."""
        status = self.status
        ended = sum(status.outcomes.values()) + sum(status.backfilled.values()) - status.outcomes.get("untracked", 0)
        return ended <= sum(max(seen.past.missed, 1) for seen in self.windows if seen.past is not None)

    @property
    def schedule(self) -> str:
        """Its schedule as it is shown."""
        return words.plain(self.status.schedule or "")

    @property
    def shown_task(self) -> str:
        """Its task's name as it is shown."""
        return words.plain(self.status.task or "")

    def position(self, start: str) -> int | None:
        """Return where in ``windows`` the one with this start is; None where none is."""
        found = (at for at, seen in enumerate(self.windows) if format_instant(seen.start) == start)
        return next(found, None)


@dataclass(frozen=True)
class Page:
    """All of it; it holds nothing that isn't to be shown."""

    #: By id, those that need attention first.
    lines: Mapping[str, Line] = field(default_factory=dict)
    #: Of each beat that lives its name, and what it says.
    beats: tuple[tuple[str, str], ...] = ()
    #: Of each worker that begins windows the same, by name.
    workers: tuple[tuple[str, str], ...] = ()
    headline: str = "Nothing is known yet"
    #: How many entries need attention.
    worries: int = 0
    #: When this was so; None before the first look.
    now: datetime | None = None
    #: The same in the app's time zone, as text; '' before the first look.
    as_of: str = ""
    #: What keeps the page from being of this moment, or concerns all entries.
    trouble: str = ""
    #: By what the board's own code differs from what the beats run.
    code: str = ""

    @property
    def moment(self) -> datetime:
        """When this was so; before the first look, the time of this machine."""
        return self.now or datetime.now(timezone.utc)


def make_page(sight: Sight, zone: tzinfo, before: Page) -> Page:
    """Render a snapshot; what is the same as ``before`` is taken from there."""
    report = sight.report
    # By name: an id costs more to make than to keep.
    old = {line.status.entry: line for line in before.lines.values()}
    lines: dict[str, Line] = {}
    for entry in report.entries:
        line = _line(entry, sight.windows.get(entry.entry, ()), old.get(entry.entry), zone)
        lines.setdefault(line.id, line)  # one that is left out may have overdue windows: the more urgent counts
    worries = sum(bool(line.status.attention) for line in lines.values())
    return Page(
        lines,
        tuple((words.plain(beat.beat), words.beat_words(beat)) for beat in report.beats),
        _workers(report, zone),
        _headline(report, worries),
        worries,
        report.now,
        f"{words.clock(report.now, zone)} {zone}",
        trouble=words.plain(words.in_zone("; ".join(each.words for each in report.troubles), zone), _MOST_CODE),
        code=words.plain(report.code, _MOST_CODE),
    )


def _line(entry: EntryStatus, windows: Sequence[WindowSeen], old: Line | None, zone: tzinfo) -> Line:
    if old is None:
        return Line(_line_id(entry.entry), words.plain(entry.entry), entry, windows, zone)
    if (old.status is entry or old.status == entry) and old.windows is windows:
        return old
    return Line(old.id, old.name, entry, windows, zone)


def _line_id(entry: str) -> str:
    return digest(entry).hex()


def _workers(report: Report, zone: tzinfo) -> tuple[tuple[str, str], ...]:
    workers = sorted(report.workers, key=lambda each: each.worker)
    named = [(words.plain(each.worker), words.worker_words(each, report.now, zone)) for each in workers[:_MOST_WORKERS]]
    more = len(workers) - len(named)
    return (*named, (f"{more} more", "")) if more else tuple(named)


def _headline(report: Report, worries: int) -> str:
    entries = report.entries
    counted = {key: sum(getattr(entry, key) for entry in entries) for key in ("running", "open", "overdue")}
    parts = [
        "1 entry" if len(entries) == 1 else f"{len(entries)} entries",
        f"{worries} need attention" if worries != 1 else "1 needs attention",
    ]
    return ", ".join([*parts, *(f"{number} {name}" for name, number in counted.items() if number)])
