"""How beats, entries and windows stand: what ``status``, ``history``, the board and the metrics show. Pure.

Instants are aware datetimes in UTC until somebody prints them; durations are seconds. The names of the fields are those
of ``--json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from typing import Any

from celery_once_beat.beat import CURSOR_AHEAD, LoadedSchedule
from celery_once_beat.errors import StoreDataError
from celery_once_beat.features.times.store import Histogram, read_times
from celery_once_beat.identity import host_of
from celery_once_beat.lookup import BeatStatus, EntrySeen, Overview, Past, WindowSeen
from celery_once_beat.store import Loss, OpenWindow
from celery_once_beat.windows import format_instant, is_child, task_id
from celery_once_beat.wording import shown

from . import judgements, worries
from .lineup import Lines, Listed, left_out, line_up, unclaimed
from .worries import Judged, Scene, StuckQueue, Trouble, WorkerStatus, in_seconds

#: What an entry may be: in the schedule, left out of it as wrong, disabled in its database, or not in the schedule.
KINDS = ("scheduled", "left out", "disabled", "stranger")


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
    #: The text of its last failure, as recorded and not escaped; '' where none is known.
    failure: str = ""
    #: For which window of its entry it waits; and of which limit for a slot.
    waits_for: datetime | None = None
    limit: str | None = None
    #: By when it is to be done, as its entry's ``deadline`` is now.
    done_by: datetime | None = None
    #: Of its task; '' where nobody asked for it.
    task_id: str = ""
    #: The worker in which its message waits; '' where none has said so.
    reserved_by: str = ""

    def past_deadline(self, now: datetime | None = None) -> float | None:
        """How many seconds after its deadline its execution ended; None: in time, or there is none.

        With ``now`` also how long after it a window is open.
        """
        until = now if self.closed is None else self.closed if self.begun else None
        if self.done_by is None or until is None or until <= self.done_by:
            return None
        return in_seconds(until - self.done_by)

    @classmethod
    def of(cls, seen: WindowSeen, entry: str = "", prefix: str = "") -> WindowStatus:
        """Make it of what the store says; the entry's name and the keys' prefix are for its task's id."""
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
            late=in_seconds(begun - seen.start) if begun else None,
            took=in_seconds(past.took) if past and past.took is not None else None,
            missed=past.missed if past else 0,
            refused=seen.refused,
            backfill=still_open.backfill if still_open else None,
            failure=seen.failure,
            waits_for=seen.waits_for,
            limit=seen.limit,
            done_by=seen.done_by,
            ordered=(ordered := known.claimed if known and by_order else None),
            task_id=task_id(prefix, entry, seen.start, ordered) if prefix else "",
            reserved_by=still_open.holder.worker if still_open and still_open.holder else "",
        )


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """How one entry stands."""

    entry: str
    #: One of KINDS.
    kind: str
    task: str | None = None
    schedule: str | None = None
    tracked: bool | None = None
    paused: bool = False
    #: For how many seconds, where that is known; and whether ``pause_after_failures`` did it.
    paused_for: float | None = None
    stopped: bool = False
    #: The last window that ended.
    last: WindowStatus | None = None
    #: The next start; None also while it is paused.
    next: datetime | None = None
    open: int = 0
    #: The queues that have their messages.
    queues: tuple[str, ...] = ()
    #: Of those, how many wait for their turn, or for a slot of a limit.
    buffered: int = 0
    #: The oldest of these, which says for what.
    first_waiting: WindowStatus | None = None
    running: int = 0
    overdue: int = 0
    #: Running windows whose worker hasn't been heard of for too long, and those that run for far too long.
    silent: int = 0
    hung: int = 0
    #: Published, and not begun for too long: workers consume the queue; and nobody does.
    stuck: int = 0
    unconsumed: int = 0
    #: Windows that aren't done by their deadline, and haven't ended; the oldest that no beat has claimed is one.
    late: int = 0
    #: How many were reported as late.
    said_late: int = 0
    #: How many of the newest windows were skipped, if too many; else 0.
    skipped: int = 0
    #: Seconds since the oldest open window was claimed, and since the oldest that runs began.
    oldest_open: float | None = None
    oldest_running: float | None = None
    refused: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    #: Outcomes of backfills, and of windows of earlier definitions.
    backfilled: Mapping[str, int] = field(default_factory=dict)
    #: What somebody should look at, in words, and the name of the judgement of each; the most urgent first.
    attention: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    #: Those of ``attention`` that the set-up causes.
    misconfigured: tuple[str, ...] = ()
    #: Entries with a larger one are shown first.
    urgency: int = 0
    #: How late its windows began, how long they were queued and ran; or why that can't be read.
    times: Mapping[str, Histogram] | StoreDataError = field(default_factory=dict, metadata={"json": False})


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
    #: Workers that were heard of within the last day, or run a window; those that were so last come first.
    workers: tuple[WorkerStatus, ...] = ()
    #: Those that nobody consumes come first.
    stuck_queues: tuple[StuckQueue, ...] = ()
    #: What concerns all entries: reasons of ``judgements``, the most urgent first.
    troubles: tuple[Trouble, ...] = ()
    #: By what this process's code differs from what the beats run, in one line; '' where it doesn't.
    code: str = ""
    #: What can't be read in Redis and belongs to no entry of these; not escaped.
    unreadable: tuple[str, ...] = ()
    #: The share of its maxmemory that Redis has used; 0 where it has none, or doesn't say.
    memory: float = 0.0
    #: What Redis has lost of late.
    lost: Loss | None = None


def as_json(value: Any) -> Any:
    """Return part of a report, or a schedule, as JSON has it; instants are like ``2026-11-21T05:36:00.000000Z``."""
    if is_dataclass(value):
        if hasattr(value, "as_json"):
            return value.as_json()
        known = (f for f in fields(value) if f.metadata.get("json", True))
        return {f.name: as_json(getattr(value, f.name)) for f in known}
    if isinstance(value, (list, tuple)):
        return [as_json(part) for part in value]
    return format_instant(value) if isinstance(value, datetime) else value


class LastStatuses:
    """Entry statuses of the last report, reused while nothing about an entry can have changed."""

    def __init__(self) -> None:
        self.lines: Lines = {}
        #: By name.
        self._entries: dict[str, tuple[Listed, EntryStatus, datetime]] = {}

    def entry(self, look: Judged, scene: Scene) -> EntryStatus:
        """Return how an entry stands, found anew unless it rests.

        It rests while nothing is open or to be claimed, and its next start lies ahead.
        """
        listed, now, known = look.listed, scene.now, self._entries.get(look.listed.name)
        if known is not None and known[0] is listed and now < known[2]:
            return known[1]
        account, status = listed.seen.account, _entry(look, scene)
        if known is not None and known[1] == status:
            status = known[1]  # the same object: so who compares is done at once
        settled = now - judgements.CLAIMED_WITHIN
        rests = account is not None and not account.open and account.cursor <= now and account.since <= settled
        rests &= not status.paused and not listed.seen.trouble
        due = unclaimed(listed)
        if rests and (due is None or due > now) and status.next is not None and now < status.next:
            self._entries[listed.name] = (listed, status, status.next)
        else:
            self._entries.pop(listed.name, None)
        return status


def make_report(overview: Overview, schedule: LoadedSchedule, before: LastStatuses | None = None) -> Report:
    """Say how everything stands, by one look at the store; ``schedule`` is what this process has, see ``lineup``.

    ``before``: what hasn't changed since the last report is returned as the same objects.
    """
    now = overview.now
    listed, differs = line_up(schedule, overview, before.lines if before else None)
    looks = [Judged.at(each, now) for each in listed]
    workers = worries.find_workers(overview, looks)
    prefix = schedule.entries.settings.key_prefix
    by_name, alive = {each.worker: each for each in workers}, frozenset(beat.beat for beat in overview.beats)
    stuck = worries.find_stuck_queues(looks, workers)
    scene = Scene(now, stuck, by_name, worries.cause_of(overview.beats), alive, prefix)
    entries = [before.entry(look, scene) if before else _entry(look, scene) for look in looks]
    names = {each.name for each in listed}
    # What is no name is left out too.
    wrong = {n if isinstance(n, str) else shown(n): f"can't run: {why}" for n, why in schedule.entries.wrong.items()}
    for name, words in {**left_out(overview), **wrong}.items():
        if name not in names:
            entries.append(EntryStatus(name, "left out", **worries.attention_of([(judgements.LEFT_OUT, words)])))
    disabled = [name for name in schedule.disabled if name in overview.entries and name not in names]
    entries += [_disabled(overview.entries[name], scene) for name in disabled]
    for name, number in overview.strangers.items():
        why = "a child that no beat has sent again" if is_child(name) else "and not in this schedule"
        worry = judgements.STRANGER, f"{number} overdue, {why}"
        entries.append(EntryStatus(name, "stranger", overdue=number, **worries.attention_of([worry])))
    behind = _behind(overview)
    troubles = tuple(
        Trouble(judgement.name, words, judgement.urgency == judgements.STOPS_ALL)
        for judgement, words in worries.troubles_of(overview, workers, behind)
    )
    return Report(
        now,
        behind,
        round(overview.latency, 6),
        tuple(overview.beats),
        tuple(sorted(entries, key=lambda entry: (-entry.urgency, entry.entry))),
        workers,
        tuple(sorted(stuck.values(), key=lambda each: (bool(each.workers), each.queue))),
        troubles,
        differs,
        overview.unreadable,
        round(overview.memory, 3),
        overview.lost,
    )


def _disabled(seen: EntrySeen, scene: Scene) -> EntryStatus:
    """Give the status of an entry that is disabled in its database: open windows continue."""
    found = [(judgements.OVERDUE, worries.overdue_words(seen.overdue))] if seen.overdue else []
    if seen.account is not None and seen.account.spent:  # a one-off is disabled with its outcome
        found += worries.failure_of(seen)
    return EntryStatus(seen.name, "disabled", **_counted(seen, scene.now, scene.prefix), **worries.attention_of(found))


def _counted(seen: EntrySeen, now: datetime, prefix: str) -> dict[str, Any]:
    """Return what the store says of an entry."""
    account = seen.account
    last = seen.last
    known: dict[str, Any] = {"last": last and WindowStatus.of(last, seen.name, prefix), "overdue": len(seen.overdue)}
    if account is None:
        return known
    known |= {
        "paused": account.paused,
        "paused_for": in_seconds(now - account.paused_at) if account.paused and account.paused_at else None,
        "stopped": worries.is_stopped(account),
        "refused": account.refused,
        "said_late": account.late,
        "outcomes": account.counts,
        "backfilled": account.apart,
        "times": read_times(account),
    }
    if not account.open:
        return known
    waiting = [window for window in seen.windows if window.open is not None and window.open.waits]
    return {
        **known,
        "open": len(account.open),
        "queues": tuple(sorted({window.queue for window in account.open.values() if window.queue})),
        "buffered": len(waiting),
        "first_waiting": WindowStatus.of(waiting[-1], seen.name, prefix) if waiting else None,
        "running": sum(window.state == "running" for window in seen.windows),
        "oldest_open": max(in_seconds(now - each.claimed) for each in account.open.values()),
    }


def _behind(overview: Overview) -> float:
    cursors = [seen.account.cursor for seen in overview.entries.values() if seen.account]
    ahead = max(cursors, default=overview.now) - overview.now
    return in_seconds(ahead) if ahead > CURSOR_AHEAD else 0.0


def _entry(look: Judged, scene: Scene) -> EntryStatus:
    listed, now = look.listed, scene.now
    entry, seen = listed.entry, listed.seen
    account = seen.account
    known = _counted(seen, now, scene.prefix)
    if entry is not None:
        # A one-off whose window is behind it has no next one.
        had_it = account is not None and entry.is_in_force(account.fingerprint) and account.cursor > account.since
        entry.progress.since = account.since if account and had_it else None
    # The first ask from the cursor on: the timetable then knows the next start.
    found = [*worries.worries_of_entry(listed, scene), *worries.worries_of_windows(look, scene)]
    if not known.get("paused"):
        known["next"] = listed.after(max(now, account.cursor) if account else now)
    return EntryStatus(
        listed.name,
        "scheduled",
        task=listed.task,
        schedule=listed.schedule,
        tracked=listed.tracked,
        silent=len(look.silent),
        hung=len(look.hung),
        stuck=sum(scene.is_consumed(window) for window in look.stuck),
        unconsumed=sum(not scene.is_consumed(window) for window in look.stuck),
        late=len(look.late),
        skipped=judgements.skipped_in_a_row(seen.records),
        oldest_running=max((in_seconds(worries.running_for(each, now)) for each in look.running), default=None),
        **known,
        **(worries.attention_of(found) if found else {}),
    )
