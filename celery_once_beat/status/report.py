"""How entries stand, in words that JSON has: what ``status``, ``history``, the board and the metrics show. Pure.

Instants are texts like ``2026-11-21T05:36:00.000000Z``, UTC; durations are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery_once_beat.beat import CURSOR_AHEAD, Lineup, Row, describe
from celery_once_beat.errors import ScheduleError, UndecidedError
from celery_once_beat.identity import host_of
from celery_once_beat.store import BeatSeen, EntryAccount, EntrySeen, OpenWindow, Overview, Past, Story
from celery_once_beat.windows import format_instant, task_id
from celery_once_beat.wording import shown

__all__ = ("beat_facts", "entry_facts", "status_facts", "story_facts", "window_facts")

#: After a start, the time within which a beat that lives has claimed it, or something is wrong.
_CLAIMED_WITHIN = timedelta(seconds=15)
#: Outcomes after which somebody should look, and how urgent that is: the larger, the further up an entry stands.
_WORRYING = {"abandoned": 5, "dropped": 5, "failed": 4, "missed": 3, "expired": 3}
#: What is said of an entry that no schedule of ours has.
_NO_ENTRY: dict[str, Any] = {
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


class _Worry(NamedTuple):
    """Something that somebody should look at."""

    #: The larger, the further up the entry stands.
    urgency: int
    words: str
    #: It is set up wrongly; else it ran badly.
    setup: bool = False


def status_facts(overview: Overview, lineup: Lineup) -> dict[str, Any]:
    """Everything that ``celery once status`` shows; entries that need attention come first.

    An entry's ``kind`` is ``scheduled``, ``left out`` (as wrong) or ``stranger`` (in no schedule of ours).
    """
    entries = [entry_facts(row, overview.entries[row.name], overview) for row in lineup.rows]
    entries += [
        {
            **_NO_ENTRY,
            "entry": name if isinstance(name, str) else shown(name),  # what is no name is left out too
            "kind": "left out",
            **_attention([_Worry(8, f"left out: {why}", setup=True)]),
        }
        for name, why in lineup.rows.wrong.items()
    ]
    entries += [
        {
            **_NO_ENTRY,
            "entry": name,
            "kind": "stranger",
            "overdue": number,
            **_attention([_Worry(2, f"{number} overdue, and not in this schedule", setup=True)]),
        }
        for name, number in overview.strangers.items()
    ]
    return {
        "now": format_instant(overview.now),
        "behind": _behind(overview),
        "latency": round(overview.latency, 6),
        "beats": [beat_facts(beat) for beat in overview.beats],
        "entries": sorted(entries, key=lambda entry: (-entry["urgency"], entry["entry"])),
    }


def _behind(overview: Overview) -> float:
    """Seconds by which the server's clock is behind the latest window that was claimed, 0 where that is none."""
    cursors = [seen.account.cursor for seen in overview.entries.values() if seen.account]
    ahead = max(cursors, default=overview.now) - overview.now
    return round(ahead.total_seconds(), 3) if ahead > CURSOR_AHEAD else 0.0


def _attention(worries: Iterable[_Worry]) -> dict[str, Any]:
    ordered = sorted(worries, reverse=True)
    return {
        "attention": [worry.words for worry in ordered],
        "misfit": [worry.words for worry in ordered if worry.setup],
        "urgency": max((worry.urgency for worry in ordered), default=0),
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
        "app": beat.app,
    }


def entry_facts(row: Row, seen: EntrySeen, overview: Overview) -> dict[str, Any]:
    """How one entry stands.

    ``attention`` says in words what somebody should look at; ``misfit`` what of it is a matter of the set-up.
    """
    account = seen.account
    last = seen.last
    # A one-off whose window is behind it has no next one.
    row.since = account.since if account and account.fingerprint == row.fingerprint else None
    return {
        "entry": row.name,
        "kind": "scheduled",
        "task": row.entry.task,
        "schedule": describe(row.entry.schedule),
        "tracked": row.tracked,
        "paused": bool(account and account.paused),
        "last": last and story_facts(last),
        "next": _text(_after(row, max(overview.now, account.cursor) if account else overview.now)),
        "open": len(account.open) if account else 0,
        "running": sum(story.state == "running" for story in seen.stories),
        "overdue": len(seen.overdue),
        "refused": account.refused if account else 0,
        "outcomes": dict(account.counts) if account else {},
        "backfilled": dict(account.apart) if account else {},
        **_attention(_worries(row, seen, overview)),
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
        "worker": past.worker if past else host_of(still_open.owner if still_open else ""),
        "attempts": known.attempts if known else 0,
        "late": _seconds(begun - story.start if begun else None),
        "took": _seconds(past.took if past else None),
        "missed": past.missed if past else 0,
        "refused": story.refused,
        "backfill": still_open.backfill if still_open else None,
    }


def window_facts(prefix: str, entry: str, story: Story) -> dict[str, Any]:
    """As :func:`story_facts`, and whose window it is; ``task_id`` is that of its task, by ``prefix``, the keys'."""
    known: Past | OpenWindow | None = story.past or story.open
    by_order = story.past.ordered if story.past else story.open is not None and story.open.backfill
    ordered = known.claimed if known and by_order else None
    return {"entry": entry, **story_facts(story), "task_id": task_id(prefix, entry, story.start, ordered)}


def _worries(row: Row, seen: EntrySeen, overview: Overview) -> Iterator[_Worry]:
    account, last = seen.account, seen.last
    if seen.trouble:
        yield _Worry(7, seen.trouble, setup=True)
    try:
        row.after(overview.now)
    except UndecidedError:
        pass  # it is asked on
    except ScheduleError as exc:
        yield _Worry(6, str(exc), setup=True)
    if seen.overdue:
        yield _Worry(5, f"{len(seen.overdue)} overdue")
    if last is not None and last.state in _WORRYING:
        yield _Worry(_WORRYING[last.state], f"the last window is {last.state}")
    if account is not None:
        yield from _worries_of(account, row, overview.now)
    elif not seen.trouble:
        yield _Worry(2, "no beat has loaded it yet", setup=True)


def _worries_of(account: EntryAccount, row: Row, now: datetime) -> Iterator[_Worry]:
    if account.paused:
        yield _Worry(1, "paused")
    elif account.fingerprint not in (None, row.fingerprint):
        yield _Worry(2, "the beats that live have another definition of it", setup=True)
    elif account.cursor > now + CURSOR_AHEAD:
        ahead = (account.cursor - now).total_seconds()
        yield _Worry(
            9,
            f"stands still until {format_instant(account.cursor)}: the Redis server's clock is {ahead:.0f} s behind; "
            "set it right, or if it was wrong before, delete the key that the beats' log names",
            setup=True,
        )
    else:
        due = _after(row, account.cursor)
        if due is not None and due < now - _CLAIMED_WITHIN:
            yield _Worry(6, f"no beat claims it: due since {format_instant(due)}", setup=True)


def _after(row: Row, start: datetime) -> datetime | None:
    try:
        return row.after(start)
    except ScheduleError:
        return None


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else format_instant(instant)


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else round(duration.total_seconds(), 3)
