"""How entries stand, in words that JSON has: what ``status``, ``history``, the board and the metrics show. Pure.

Instants are texts like ``2026-11-21T05:36:00.000000Z``, UTC; durations are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from .errors import ScheduleError
from .lineup import Lineup, describe
from .lookup import BeatSeen, EntrySeen, Overview, Story
from .replies import OpenWindow, Past
from .rows import Row
from .windows import format_instant

__all__ = ("beat_facts", "entry_facts", "status_facts", "story_facts")

#: Seconds after a start within which a beat that lives has claimed it, or something is wrong.
_CLAIMED_WITHIN = 15.0
#: Outcomes after which somebody should look, and how urgent that is: the larger, the further up an entry stands.
_WORRYING = {"abandoned": 5, "dropped": 5, "failed": 4, "missed": 3, "expired": 3}


def status_facts(overview: Overview, lineup: Lineup) -> dict[str, Any]:
    """Everything that ``celery once status`` shows; entries that need attention come first."""
    entries = [entry_facts(row, overview.entries[row.name], overview) for row in lineup.rows]
    entries += [
        {**_no_entry(name), "attention": [f"left out: {why}"], "urgency": 6} for name, why in lineup.rows.wrong.items()
    ]
    entries += [
        {
            **_no_entry(name),
            "overdue": number,
            "attention": [f"{number} overdue, and not in this schedule"],
            "urgency": 2,
        }
        for name, number in overview.strangers.items()
    ]
    return {
        "now": format_instant(overview.now),
        "latency": round(overview.latency, 6),
        "beats": [beat_facts(beat) for beat in overview.beats],
        "entries": sorted(entries, key=lambda entry: (-entry["urgency"], entry["entry"])),
    }


def beat_facts(beat: BeatSeen) -> dict[str, Any]:
    """One beat that lives; what it hasn't said is None."""
    report = beat.report
    return {
        "beat": beat.name,
        "heard": round(beat.heard, 3),
        "lag": report and report.lag,
        "offset": report and report.offset,
        "entries": report and report.entries,
        "untracked": report and report.untracked,
        "version": report and report.version,
    }


def entry_facts(row: Row, seen: EntrySeen, overview: Overview) -> dict[str, Any]:
    """How one entry stands; ``attention`` says in words what somebody should look at."""
    account = seen.account
    last = seen.last
    worries = sorted(_worries(row, seen, overview), reverse=True)
    return {
        "entry": row.name,
        "task": row.entry.task,
        "schedule": describe(row.entry.schedule),
        "tracked": row.tracked,
        "paused": bool(account and account.paused),
        "last": last and story_facts(last),
        "next": _text(_after(row, overview.now)),
        "open": len(account.open) if account else 0,
        "running": sum(story.state == "running" for story in seen.stories),
        "overdue": len(seen.overdue),
        "refused": account.refused if account else 0,
        "outcomes": dict(account.counts) if account else {},
        "backfilled": dict(account.apart) if account else {},
        "attention": [words for _, words in worries],
        "urgency": worries[0][0] if worries else 0,
    }


def story_facts(story: Story) -> dict[str, Any]:
    """One window: what is not known, or not yet, is None."""
    past, still_open = story.past, story.open
    known: Past | OpenWindow | None = past or still_open
    begun = known.begun if known else None
    return {
        "start": format_instant(story.start),
        "state": story.state,
        "claimed": _text(known.claimed if known else None),
        "beat": known.beat if known else None,
        "begun": _text(begun),
        "closed": _text(past.closed if past else None),
        "worker": past.worker if past else _host(still_open.owner if still_open else ""),
        "attempts": known.attempts if known else 0,
        "late": _seconds(begun - story.start if begun else None),
        "took": _seconds(past.took if past else None),
        "missed": past.missed if past else 0,
        "refused": story.refused,
        "backfill": bool(still_open and still_open.backfill),
    }


def _worries(row: Row, seen: EntrySeen, overview: Overview) -> Iterable[tuple[int, str]]:
    account, last = seen.account, seen.last
    if seen.trouble:
        yield 7, seen.trouble
    if seen.overdue:
        yield 5, f"{len(seen.overdue)} overdue"
    if last is not None and last.state in _WORRYING:
        yield _WORRYING[last.state], f"the last window is {last.state}"
    if account is None:
        if not seen.trouble:
            yield 2, "no beat has loaded it yet"
        return
    if account.paused:
        yield 1, "paused"
    elif account.fingerprint not in (None, row.fingerprint):
        yield 2, "the beats that live have another definition of it"
    else:
        due = _after(row, account.cursor)
        if due is not None and due < overview.now - timedelta(seconds=_CLAIMED_WITHIN):
            yield 6, f"no beat claims it: due since {format_instant(due)}"
    if _after(row, overview.now) is None and not _ends(row, overview.now):
        yield 6, "its schedule can't say when it starts next"


def _after(row: Row, start: datetime) -> datetime | None:
    try:
        return row.after(start)
    except ScheduleError:
        return None


def _ends(row: Row, now: datetime) -> bool:
    try:
        return row.after(now) is None
    except ScheduleError:
        return False


def _no_entry(name: str) -> dict[str, Any]:
    return {
        "entry": name,
        "task": None,
        "schedule": None,
        "tracked": None,
        "paused": False,
        "last": None,
        "next": None,
        "open": 0,
        "running": 0,
        "overdue": 0,
        "refused": 0,
        "outcomes": {},
        "backfilled": {},
    }


def _host(owner: str) -> str:
    return owner.partition(":")[0]


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else format_instant(instant)


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else round(duration.total_seconds(), 3)
