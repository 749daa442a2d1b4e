"""What the board shows at one moment, before anybody has chosen a part of it or a time zone. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone, tzinfo
from functools import cached_property

from celery_once_beat.identity import page_id
from celery_once_beat.lookup import WindowSeen
from celery_once_beat.outcomes import OUTCOMES
from celery_once_beat.status import JUDGEMENTS, EntryStatus, Report, Sight, cause_of
from celery_once_beat.windows import format_instant

from . import words
from .axis import ended_late

#: How windows ended that were to run.
_COUNTED = frozenset(name for name, outcome in OUTCOMES.items() if outcome.urgency or name == "done")
_REASONS = [reason.name for reason in JUDGEMENTS]
#: Kinds of what needs attention, each with its reasons of ``status.judgements``. These are counted on each page.
LOOKS = {
    "attention": frozenset(_REASONS),
    "failing": frozenset({"failed", "stopped"}),
    "hung": frozenset({"hung", "silent"}),
    "overdue": frozenset({"overdue", "held up"}),
    "late": frozenset({"late"}),
    "paused": frozenset({"paused", "stopped"}),
    "left out": frozenset({"left out", "broken"}),
}
#: Any other reason is a kind of its own, which is counted where an entry has it.
ALWAYS = frozenset(LOOKS)
LOOKS |= {
    reason: frozenset({reason})
    for reason in _REASONS
    if not any(reason in LOOKS[look] for look in ALWAYS - {"attention"})
}


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
    #: When the day began in the app's time zone.
    midnight: datetime

    @property
    def entry(self) -> str:
        """Its name as the store has it."""
        return self.status.entry

    def attention(self, zone: tzinfo) -> tuple[str, ...]:
        """What somebody should look at, the gravest first."""
        return tuple(words.plain(words.in_zone(text, zone), words.MOST_REASON) for text in self.status.attention)

    def is_of(self, look: str) -> bool:
        """Whether it needs attention in this way, one of LOOKS."""
        return not LOOKS[look].isdisjoint(self.status.reasons)

    @property
    def is_whole(self) -> bool:
        """Whether ``windows`` are all that it ever had; the store keeps no more than the newest."""
        status = self.status
        ended = sum(status.outcomes.values()) + sum(status.backfilled.values()) - status.outcomes.get("untracked", 0)
        return ended <= sum(max(seen.past.missed, 1) for seen in self.windows if seen.past is not None)

    @cached_property
    def today(self) -> tuple[int, int, bool]:
        """How many windows since midnight ended; how many of them as planned; whether the store still has them all.

        What somebody or a policy left out isn't counted.
        """
        ended = planned = 0
        for seen in self.windows:
            if seen.start < self.midnight:
                return ended, planned, True
            if seen.past is not None and seen.state in _COUNTED:
                ended += max(seen.past.missed, 1)
                planned += seen.state == "done" and not ended_late(seen)
        return ended, planned, self.is_whole

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
    """All of it."""

    #: By id, those that need attention first.
    lines: Mapping[str, Line] = field(default_factory=dict)
    #: None before the first look.
    report: Report | None = None
    #: Why it isn't of this moment; '' where it is.
    stale: str = ""
    #: How many entries are of each of LOOKS; of one that isn't here, none.
    looks: Mapping[str, int] = field(default_factory=Counter)
    #: As :attr:`Line.today`, of all.
    today: tuple[int, int, bool] = (0, 0, True)
    #: When that day began.
    midnight: datetime | None = None
    #: What keeps all entries from starting; '' where nothing is known to.
    cause: str = ""

    @property
    def moment(self) -> datetime:
        """When this was so; before the first look, the time of this machine."""
        return self.report.now if self.report else datetime.now(timezone.utc)

    @property
    def is_well(self) -> bool:
        """Whether all windows of the day ran as planned, and nothing speaks against that the next ones do."""
        ended, planned, _ = self.today
        troubled = self.stale or self.looks["attention"] or (self.report and self.report.troubles)
        return 0 < ended == planned and not troubled

    def planned(self, zone: tzinfo) -> str:
        """Say how many windows of the day ran as planned."""
        ended, planned, whole = self.today
        if not ended or self.midnight is None:
            return "No window has ended since midnight" if self.report else "Nothing is known yet"
        there = self.midnight.astimezone(zone)
        since = "midnight" if there.hour == there.minute == 0 else words.day_and_time(self.midnight, zone)
        kept = "" if whole else " that Redis still has"
        if self.is_well:
            return f"Everything ran as planned: {planned:,} of {ended:,} since {since}{kept}"
        return f"{planned:,} of the {ended:,} windows since {since}{kept} ran as planned"

    def trouble(self, zone: tzinfo) -> str:
        """What keeps the page from being of this moment, or concerns all entries."""
        found = [] if self.report is None else [words.in_zone(each.words, zone) for each in self.report.troubles]
        return words.plain("; ".join(filter(None, [self.stale, *found])), words.MOST_TROUBLE)


def make_page(sight: Sight, zone: tzinfo, before: Page) -> Page:
    """Render a snapshot; what is the same as ``before`` is taken from there."""
    report = sight.report
    midnight = report.now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0).astimezone(timezone.utc)
    # By name: an id costs more to make than to keep.
    old = {line.status.entry: line for line in before.lines.values()}
    lines: dict[str, Line] = {}
    for entry in report.entries:
        line = _line(entry, sight.windows.get(entry.entry, ()), old.get(entry.entry), midnight)
        lines.setdefault(line.id, line)  # one that is left out may have overdue windows: the more urgent counts
    days = [line.today for line in lines.values()]
    return Page(
        lines,
        report,
        looks=Counter(look for line in lines.values() if line.status.reasons for look in LOOKS if line.is_of(look)),
        today=(sum(day[0] for day in days), sum(day[1] for day in days), all(day[2] for day in days)),
        midnight=midnight,
        cause=cause_of(report.beats),
    )


def _line(entry: EntryStatus, windows: Sequence[WindowSeen], old: Line | None, midnight: datetime) -> Line:
    if old is None:
        return Line(page_id(entry.entry), words.plain(entry.entry), entry, windows, midnight)
    if (old.status is entry or old.status == entry) and old.windows is windows and old.midnight == midnight:
        return old
    return Line(old.id, old.name, entry, windows, midnight)
