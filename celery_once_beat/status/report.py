"""How beats, entries and windows stand: what ``status``, ``history``, the board and the metrics show. Pure.

Instants are aware datetimes in UTC until somebody prints them; durations are seconds. The names of the fields are those
of ``--json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery_once_beat.beat import CURSOR_AHEAD, BeatEntry, LoadedSchedule
from celery_once_beat.errors import ScheduleError, UndecidedError
from celery_once_beat.identity import host_of
from celery_once_beat.outcomes import OUTCOMES
from celery_once_beat.store import BeatSeen, EntryAccount, OpenWindow, Overview, Past, WindowSeen
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import shown, span

from .lineup import Listed, line_up

#: After a start, the time within which a beat that lives has claimed it, or something is wrong.
_CLAIMED_WITHIN = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class BeatStatus:
    """A beat that lives; what it hasn't said is None."""

    beat: str
    #: Seconds since the store heard of it.
    heard: float
    lag: float | None = None
    offset: float | None = None
    entries: int | None = None
    untracked: int | None = None
    version: str | None = None
    #: How many of its entries it has yet to load.
    unloaded: int | None = None
    #: Of which app it is.
    app: str | None = None

    @classmethod
    def of(cls, seen: BeatSeen) -> BeatStatus:
        """Make it of what the store says."""
        told = {f.name: getattr(seen.report, f.name) for f in fields(seen.report)} if seen.report else {}
        return cls(seen.name, round(seen.heard, 3), app=seen.app, **told)

    @property
    def says(self) -> dict[str, str | None]:
        """What it says of itself, as text."""
        return {
            "lag": None if self.lag is None else span(self.lag),
            "clock": None if self.offset is None else f"{self.offset:+.3f} s",
            "entries": None if self.entries is None else str(self.entries),
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """One window; what isn't known, or not yet, is None."""

    start: datetime
    #: A name of ``outcomes.STATES``, or what a newer version wrote.
    state: str
    claimed: datetime | None
    #: The beat that claimed it, or took it over last when it was overdue.
    beat: str | None
    begun: datetime | None
    closed: datetime | None
    worker: str
    attempts: int
    #: From the start to the begin of the last execution.
    late: float | None
    #: From there to the end.
    took: float | None
    missed: int
    refused: int
    backfill: bool | None
    #: When a person ordered it.
    ordered: datetime | None = field(metadata={"json": False})

    @classmethod
    def of(cls, seen: WindowSeen) -> WindowStatus:
        """Make it of what the store says."""
        past, still_open = seen.past, seen.open
        known: Past | OpenWindow | None = past or still_open
        begun = known.begun if known else None
        by_order = past.ordered if past else still_open is not None and still_open.backfill
        return cls(
            start=seen.start,
            state=seen.state,
            claimed=known.claimed if known else None,
            beat=known.beat if known else None,
            begun=begun,
            closed=past.closed if past else None,
            worker=past.worker if past else host_of(still_open.owner if still_open else ""),
            attempts=known.attempts if known else 0,
            late=_seconds(begun - seen.start) if begun else None,
            took=_seconds(past.took) if past and past.took is not None else None,
            missed=past.missed if past else 0,
            refused=seen.refused,
            backfill=still_open.backfill if still_open else None,
            ordered=known.claimed if known and by_order else None,
        )


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """How one entry stands."""

    entry: str
    #: ``scheduled``, ``left out`` (as wrong), or ``stranger`` (not in the schedule).
    kind: str
    task: str | None = None
    schedule: str | None = None
    tracked: bool | None = None
    paused: bool = False
    #: The last window that ended.
    last: WindowStatus | None = None
    #: The next start.
    next: datetime | None = None
    open: int = 0
    running: int = 0
    overdue: int = 0
    refused: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    #: Outcomes of backfills, and of windows of earlier definitions.
    backfilled: Mapping[str, int] = field(default_factory=dict)
    #: What somebody should look at, in words; the most urgent first.
    attention: tuple[str, ...] = ()
    #: Those of them that the set-up causes.
    misfit: tuple[str, ...] = ()
    #: Entries with a larger one are shown first.
    urgency: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """All that one look shows."""

    now: datetime
    #: Seconds by which the server's clock is behind the latest window that was claimed; 0: it isn't.
    behind: float
    #: Seconds of one round trip to Redis.
    latency: float
    beats: tuple[BeatStatus, ...]
    #: Those that need attention come first.
    entries: tuple[EntryStatus, ...]
    #: By what this process's code differs from what the beats run, in one line; '' where it doesn't.
    code: str = ""


def as_json(value: Any) -> Any:
    """Return a part of a report as JSON has it; instants are texts like ``2026-11-21T05:36:00.000000Z``."""
    if is_dataclass(value):
        known = (f for f in fields(value) if f.metadata.get("json", True))
        return {f.name: as_json(getattr(value, f.name)) for f in known}
    if isinstance(value, (list, tuple)):
        return [as_json(part) for part in value]
    return format_instant(value) if isinstance(value, datetime) else value


def make_report(overview: Overview, schedule: LoadedSchedule) -> Report:
    """Say how everything stands, by one look at the store; ``schedule`` is what this process has, see ``lineup``."""
    listed, differs = line_up(schedule, overview)
    entries = [_entry(each, overview) for each in listed]
    names = {each.name for each in listed}
    for found, why in schedule.entries.wrong.items():
        name = found if isinstance(found, str) else shown(found)  # what is no name is left out too
        if name not in names:
            worry = _Worry(8, f"left out: {why}", setup=True)
            entries.append(EntryStatus(name, "left out", **_attention([worry])))
    for name, number in overview.strangers.items():
        worry = _Worry(2, f"{number} overdue, and not in this schedule", setup=True)
        entries.append(EntryStatus(name, "stranger", overdue=number, **_attention([worry])))
    return Report(
        overview.now,
        _behind(overview),
        round(overview.latency, 6),
        tuple(BeatStatus.of(beat) for beat in overview.beats),
        tuple(sorted(entries, key=lambda entry: (-entry.urgency, entry.entry))),
        str(differs),
    )


def _behind(overview: Overview) -> float:
    cursors = [seen.account.cursor for seen in overview.entries.values() if seen.account]
    ahead = max(cursors, default=overview.now) - overview.now
    return _seconds(ahead) if ahead > CURSOR_AHEAD else 0.0


def _entry(listed: Listed, overview: Overview) -> EntryStatus:
    entry, seen = listed.entry, listed.seen
    account = seen.account
    known: dict[str, Any] = {}
    if account is not None:
        known = {
            "paused": account.paused,
            "open": len(account.open),
            "refused": account.refused,
            "outcomes": account.counts,
            "backfilled": account.apart,
        }
    if entry is not None:
        # A one-off whose window is behind it has no next one.
        entry.counts_since(account.since if account and account.fingerprint == entry.fingerprint else None)
        known["next"] = _after(entry, max(overview.now, account.cursor) if account else overview.now)
    return EntryStatus(
        listed.name,
        "scheduled",
        task=listed.task,
        schedule=listed.schedule,
        tracked=listed.tracked,
        last=WindowStatus.of(seen.last) if seen.last else None,
        running=sum(window.state == "running" for window in seen.windows),
        overdue=len(seen.overdue),
        **known,
        **_attention(_worries(listed, overview.now)),
    )


# -- what somebody should look at -------------------------------------------------------------------------------


class _Worry(NamedTuple):
    urgency: int
    words: str
    #: It is set up wrongly; else it ran badly.
    setup: bool = False


def _attention(worries: Iterable[_Worry]) -> dict[str, Any]:
    ordered = sorted(worries, reverse=True)
    return {
        "attention": tuple(worry.words for worry in ordered),
        "misfit": tuple(worry.words for worry in ordered if worry.setup),
        "urgency": max((worry.urgency for worry in ordered), default=0),
    }


def _worries(listed: Listed, now: datetime) -> Iterator[_Worry]:
    entry, seen = listed.entry, listed.seen
    account, last = seen.account, seen.last
    if seen.trouble:
        yield _Worry(7, seen.trouble, setup=True)
    if entry is not None:
        try:
            entry.after(now)
        except UndecidedError:
            pass  # it is asked on
        except ScheduleError as exc:
            yield _Worry(6, str(exc), setup=True)
    if seen.overdue:
        yield _Worry(5, f"{len(seen.overdue)} overdue")
    if last is not None and last.state in OUTCOMES and OUTCOMES[last.state].urgency:
        yield _Worry(OUTCOMES[last.state].urgency, f"the last window is {last.state}")
    if account is not None:
        yield from _worries_of(account, entry, now)
    elif not seen.trouble:
        yield _Worry(2, "no beat has loaded it yet", setup=True)


def _worries_of(account: EntryAccount, entry: BeatEntry | None, now: datetime) -> Iterator[_Worry]:
    if account.paused:
        by = f" by {account.paused_by}" if account.paused_by else ""
        why = f": {account.paused_for}" if account.paused_for else ""
        yield _Worry(1, f"paused{by}{why}")
    elif entry is not None and account.fingerprint not in (None, entry.fingerprint):
        yield _Worry(2, "the beats that live have another definition of it", setup=True)
    elif account.cursor > now + CURSOR_AHEAD:
        ahead = (account.cursor - now).total_seconds()
        yield _Worry(
            9,
            f"stands still until {format_instant(account.cursor)}: the Redis server's clock is {ahead:.0f} s behind; "
            "set it right, or if it was wrong before, delete the key that the beats' log names",
            setup=True,
        )
    elif entry is not None:
        due = _after(entry, account.cursor)
        if due is not None and due < now - _CLAIMED_WITHIN:
            yield _Worry(6, f"no beat claims it: due since {format_instant(due)}", setup=True)


def _after(entry: BeatEntry, start: datetime) -> datetime | None:
    try:
        return entry.after(start)
    except ScheduleError:
        return None


def _seconds(duration: timedelta) -> float:
    return round(duration.total_seconds(), 3)
