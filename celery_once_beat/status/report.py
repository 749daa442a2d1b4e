"""How beats, entries and windows stand: what ``status``, ``history``, the board and the metrics show. Pure.

Instants are aware datetimes in UTC until somebody prints them; durations are seconds. The names of the fields are those
of ``--json``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery_once_beat.beat import CURSOR_AHEAD, LoadedSchedule
from celery_once_beat.errors import ScheduleError, StoreDataError, UndecidedError
from celery_once_beat.features.times.store import Histogram, read_times
from celery_once_beat.identity import host_of
from celery_once_beat.lookup import BeatSeen, EntrySeen, Overview, Past, WindowSeen
from celery_once_beat.outcomes import OUTCOMES
from celery_once_beat.settings import WORKER_TTL
from celery_once_beat.store import EntryAccount, OpenWindow
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import printable, short, shown, some, span

from . import judgements
from .judgements import Judgement
from .lateness import LateWindow, late_now, unclaimed
from .lineup import Lines, Listed, left_out, line_up

#: A deadline lies so much behind the end of a lease (MARGIN in ``store/lua/pieces/values.lua``).
_DEADLINE_LATER = timedelta(seconds=1)
#: What an entry may be: in the schedule, left out of it as wrong, disabled in its database, or not in the schedule.
KINDS = ("scheduled", "left out", "disabled", "stranger")


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
    #: Why its ticks fail, as it was recorded and not escaped; '' where they don't. And for how many seconds they have.
    failing: str = ""
    failing_for: float = 0.0
    #: Entries that it leaves out, each with why, not escaped; a few.
    left_out: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, seen: BeatSeen) -> BeatStatus:
        """Make it of what the store says."""
        known = {f.name: getattr(seen.report, f.name) for f in fields(seen.report)} if seen.report else {}
        return cls(seen.name, round(seen.heard, 3), app=seen.app, **known)

    @property
    def says(self) -> dict[str, str | None]:
        """What it says of itself, as text."""
        return {
            "lag": None if self.lag is None else span(self.lag),
            "clock": None if self.offset is None else f"{self.offset:+.3f} s",
            "entries": None if self.entries is None else str(self.entries),
            "version": self.version,
        }

    @property
    def trouble(self) -> str:
        """That its ticks fail, and why, on one line; '' where they don't."""
        return self.failing and f"its ticks fail, for {span(self.failing_for)}: {printable(self.failing)}"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker that knows windows."""

    worker: str
    #: Seconds since it said that it lives; None: it only runs one.
    heard: float | None
    #: How many windows it runs.
    running: int
    #: The queues that it consumes, or consumed when it was heard of last.
    queues: tuple[str, ...] = ()

    @property
    def lives(self) -> bool:
        """Whether it was heard of lately, or runs a window."""
        return self.running > 0 or (self.heard is not None and self.heard < WORKER_TTL)


@dataclass(frozen=True, slots=True)
class IdleQueue:
    """A queue with stuck windows, which no worker that knows windows says it consumes."""

    queue: str
    #: Windows that were published to it, and wait for too long.
    stuck: int


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
    #: What its last failure said, as it was recorded and not escaped; '' where nothing is known.
    failure: str = ""
    #: For which window of its entry it waits; and of which limit for a slot.
    waits_for: datetime | None = None
    limit: str | None = None
    #: By when it is to be done, as its entry's ``deadline`` is now.
    done_by: datetime | None = None

    def past_deadline(self, now: datetime | None = None) -> float | None:
        """How many seconds after its deadline its execution ended; None: in time, or there is none.

        With ``now`` also how long after it a window is open.
        """
        until = now if self.closed is None else self.closed if self.begun else None
        if self.done_by is None or until is None or until <= self.done_by:
            return None
        return _seconds(until - self.done_by)

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
            failure=seen.failure,
            waits_for=seen.waits_for,
            limit=seen.limit,
            done_by=seen.done_by,
            ordered=known.claimed if known and by_order else None,
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
    #: The last window that ended.
    last: WindowStatus | None = None
    #: The next start.
    next: datetime | None = None
    open: int = 0
    #: Of those, how many wait for their turn, or for a slot of a limit.
    buffered: int = 0
    #: The oldest of these, which says for what.
    first_waiting: WindowStatus | None = None
    running: int = 0
    overdue: int = 0
    #: Running windows whose worker hasn't been heard of for too long, and those that run for far too long.
    silent: int = 0
    hung: int = 0
    #: Published, and not begun for too long.
    stuck: int = 0
    #: Windows that aren't done by their deadline, and haven't ended; the oldest that no beat has claimed is one.
    late: int = 0
    #: How many were said to be late.
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
    #: What somebody should look at, in words; the most urgent first.
    attention: tuple[str, ...] = ()
    #: Those of them that the set-up causes.
    misfit: tuple[str, ...] = ()
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
    idle_queues: tuple[IdleQueue, ...] = ()
    #: By what this process's code differs from what the beats run, in one line; '' where it doesn't.
    code: str = ""
    #: What can't be read in Redis and belongs to no entry of these; not escaped.
    unreadable: tuple[str, ...] = ()


def as_json(value: Any) -> Any:
    """Return a part of a report as JSON has it; instants are texts like ``2026-11-21T05:36:00.000000Z``."""
    if is_dataclass(value):
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

    def entry(self, listed: Listed, now: datetime) -> EntryStatus | None:
        """Return how an entry stands that rests; None where that has to be found."""
        known = self._entries.get(listed.name)
        return known[1] if known is not None and known[0] is listed and now < known[2] else None

    def keep(self, listed: Listed, status: EntryStatus, now: datetime) -> EntryStatus:
        """Keep how an entry stands, if it rests: nothing is open or to be claimed, and its next start lies ahead."""
        account, known = listed.seen.account, self._entries.get(listed.name)
        if known is not None and known[1] == status:
            status = known[1]  # the same object: so who compares is done at once
        rests = account is not None and not account.open and account.cursor <= now and not listed.seen.trouble
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
    before = before or LastStatuses()
    now = overview.now
    listed, differs = line_up(schedule, overview, before.lines)
    looks = [_Judged.at(each, now) for each in listed]
    workers = _workers(overview, looks)
    consumed = {queue for worker in workers if worker.lives for queue in worker.queues}
    stuck = Counter(window.open.queue for look in looks for window in look.stuck if window.open and window.open.queue)
    idle = {queue: IdleQueue(queue, stuck[queue]) for queue in stuck.keys() - consumed}
    entries = [
        before.entry(look.listed, now) or before.keep(look.listed, _entry(look, now, idle), now) for look in looks
    ]
    names = {each.name for each in listed}
    # What is no name is left out too.
    wrong = {n if isinstance(n, str) else shown(n): f"left out: {why}" for n, why in schedule.entries.wrong.items()}
    for name, words in {**left_out(overview), **wrong}.items():
        if name not in names:
            entries.append(EntryStatus(name, "left out", **_attention([(judgements.LEFT_OUT, words)])))
    disabled = [name for name in schedule.disabled if name in overview.entries and name not in names]
    entries += [_disabled(overview.entries[name], overview.now) for name in disabled]
    for name, number in overview.strangers.items():
        worry = judgements.STRANGER, f"{number} overdue, and not in this schedule"
        entries.append(EntryStatus(name, "stranger", overdue=number, **_attention([worry])))
    return Report(
        overview.now,
        _behind(overview),
        round(overview.latency, 6),
        tuple(BeatStatus.of(beat) for beat in overview.beats),
        tuple(sorted(entries, key=lambda entry: (-entry.urgency, entry.entry))),
        workers,
        tuple(idle[queue] for queue in sorted(idle)),
        differs,
        overview.unreadable,
    )


def _workers(overview: Overview, looks: Iterable[_Judged]) -> tuple[WorkerStatus, ...]:
    runs = (window.open for look in looks for window in look.running)
    running = Counter(host_of(each.owner) for each in runs if each and each.owner)
    workers = [WorkerStatus(name, None, running[name]) for name in running.keys() - overview.workers.keys()]
    for name, seen in overview.workers.items():
        heard = max(_seconds(overview.now - seen.heard), 0.0)
        workers.append(WorkerStatus(name, heard, running[name], tuple(sorted(seen.queues))))
    return tuple(sorted(workers, key=lambda each: (-1.0 if each.heard is None else each.heard, each.worker)))


def _disabled(seen: EntrySeen, now: datetime) -> EntryStatus:
    """Say how an entry stands that its database has and that isn't to run: what is open goes on."""
    worries = [(judgements.OVERDUE, f"{len(seen.overdue)} overdue")] if seen.overdue else []
    return EntryStatus(seen.name, "disabled", **_counted(seen, now), **_attention(worries))


def _counted(seen: EntrySeen, now: datetime) -> dict[str, Any]:
    """Return what the store says of an entry."""
    account = seen.account
    known = {
        "last": WindowStatus.of(seen.last) if seen.last else None,
        "running": sum(window.state == "running" for window in seen.windows),
        "overdue": len(seen.overdue),
    }
    if account is None:
        return known
    waiting = [window for window in seen.windows if window.open is not None and window.open.waits]
    return {
        **known,
        "paused": account.paused,
        "open": len(account.open),
        "buffered": len(waiting),
        "first_waiting": WindowStatus.of(waiting[-1]) if waiting else None,
        "refused": account.refused,
        "said_late": account.late,
        "outcomes": account.counts,
        "backfilled": account.apart,
        "oldest_open": max((_seconds(now - each.claimed) for each in account.open.values()), default=None),
        "times": read_times(account),
    }


def _behind(overview: Overview) -> float:
    cursors = [seen.account.cursor for seen in overview.entries.values() if seen.account]
    ahead = max(cursors, default=overview.now) - overview.now
    return _seconds(ahead) if ahead > CURSOR_AHEAD else 0.0


class _Judged(NamedTuple):
    """An entry, and those of its open windows that are judged."""

    listed: Listed
    running: Sequence[WindowSeen]
    silent: Sequence[WindowSeen]
    hung: Sequence[WindowSeen]
    stuck: Sequence[WindowSeen]
    #: The oldest comes first.
    late: Sequence[LateWindow]

    @classmethod
    def at(cls, listed: Listed, now: datetime) -> _Judged:
        account, lease = listed.seen.account, listed.lease
        windows = listed.seen.windows if account is not None and account.open else ()
        running = [window for window in windows if window.state == "running"]
        silent = [
            each for each in running if lease is not None and judgements.is_silent(_unheard(each, listed, now), lease)
        ]
        hung = [each for each in running if each not in silent and _is_hung(each, listed, now)]
        stuck = [each for each in windows if each.state == "published" and _is_stuck(each, listed, now)]
        return cls(listed, running, silent, hung, stuck, late_now(listed, now))


def _unheard(window: WindowSeen, listed: Listed, now: datetime) -> timedelta:
    """Return since when its worker hasn't renewed the lease. Zero where that isn't known."""
    if window.deadline is None or listed.lease is None:
        return timedelta(0)
    return max(now - (window.deadline - _DEADLINE_LATER - timedelta(seconds=listed.lease)), timedelta(0))


def _running_for(window: WindowSeen, now: datetime) -> timedelta:
    begun = window.open.begun if window.open else None
    return now - begun if begun else timedelta(0)


def _is_hung(window: WindowSeen, listed: Listed, now: datetime) -> bool:
    running_for = _running_for(window, now)
    if running_for <= judgements.LEAST_HUNG:
        return False  # until then its entry's records aren't read
    longest = judgements.longest_run(listed.seen.records)
    ends = listed.after(window.start) if longest is None else None
    return judgements.is_hung(running_for, longest, None if ends is None else ends - window.start)


def _is_stuck(window: WindowSeen, listed: Listed, now: datetime) -> bool:
    assert window.open is not None
    if listed.entry is not None and listed.entry.timing.delay(now, window.open.claimed):
        return False  # it isn't to run yet
    return now - window.open.claimed > timedelta(seconds=listed.countdown) + judgements.STUCK_AFTER


def _entry(look: _Judged, now: datetime, idle: Collection[str]) -> EntryStatus:
    listed = look.listed
    entry, seen = listed.entry, listed.seen
    account = seen.account
    known = _counted(seen, now)
    if entry is not None:
        # A one-off whose window is behind it has no next one.
        entry.progress.since = account.since if account and entry.is_in_force(account.fingerprint) else None
        known["next"] = listed.after(max(now, account.cursor) if account else now)
    return EntryStatus(
        listed.name,
        "scheduled",
        task=listed.task,
        schedule=listed.schedule,
        tracked=listed.tracked,
        silent=len(look.silent),
        hung=len(look.hung),
        stuck=len(look.stuck),
        late=len(look.late),
        skipped=judgements.skipped_in_a_row(seen.records),
        oldest_running=max((_seconds(_running_for(each, now)) for each in look.running), default=None),
        **known,
        **_attention([*_worries(listed, now), *_worries_of_windows(look, now, idle)]),
    )


# -- what somebody should look at -------------------------------------------------------------------------------


#: A reason, and what is so, in words.
_Worry = tuple[Judgement, str]


def _attention(worries: Iterable[_Worry]) -> dict[str, Any]:
    ordered = sorted(worries, key=lambda worry: (worry[0].urgency, worry[1]), reverse=True)
    return {
        "attention": tuple(words for _, words in ordered),
        "misfit": tuple(words for judgement, words in ordered if judgement.setup),
        "urgency": ordered[0][0].urgency if ordered else 0,
    }


def _worries(listed: Listed, now: datetime) -> Iterator[_Worry]:
    entry, seen = listed.entry, listed.seen
    account, last = seen.account, seen.last
    if seen.trouble:
        yield judgements.UNREADABLE, seen.trouble
    if listed.left_out:
        yield judgements.BROKEN, listed.left_out
    elif entry is not None:
        try:
            entry.after(now)
        except UndecidedError:
            pass  # it can say later
        except ScheduleError as exc:
            yield judgements.BROKEN, str(exc)
    if last is not None and last.state in OUTCOMES and OUTCOMES[last.state].urgency:
        why = f": {printable(last.failure)}" if last.failure else ""
        failed = replace(judgements.FAILED, urgency=OUTCOMES[last.state].urgency)
        yield failed, f"last window {last.state}{why}"
    if account is not None:
        yield from _worries_of(account, listed, now)
    elif not seen.trouble:
        yield judgements.NOT_LOADED, judgements.NOT_LOADED.meaning


def _worries_of(account: EntryAccount, listed: Listed, now: datetime) -> Iterator[_Worry]:
    entry = listed.entry
    if account.paused:
        yield judgements.PAUSED, paused_words(account)
    elif entry is not None and not entry.is_in_force(account.fingerprint):
        yield judgements.LOADED_OTHERWISE, judgements.LOADED_OTHERWISE.meaning
    elif account.cursor > now + CURSOR_AHEAD:
        ahead = (account.cursor - now).total_seconds()
        since = f"stands still until {format_instant(account.cursor)}: the Redis server's clock is {ahead:.0f} s behind"
        advice = "set it right, or if it was wrong before, delete the key that the beats' log names"
        yield judgements.BEHIND, f"{since}; {advice}"
    else:
        due = unclaimed(listed)
        if due is not None and due < now - judgements.CLAIMED_WITHIN:
            yield judgements.UNCLAIMED, f"no beat claims it: due since {format_instant(due)}"


def _worries_of_windows(look: _Judged, now: datetime, idle: Collection[str]) -> Iterator[_Worry]:
    listed, account = look.listed, look.listed.seen.account
    overdue, skipped = listed.seen.overdue, judgements.skipped_in_a_row(listed.seen.records)
    if overdue:
        yield judgements.OVERDUE, f"{len(overdue)} overdue"
    for window in look.silent[:1]:
        unheard = max(_unheard(each, listed, now) for each in look.silent)
        yield judgements.SILENT, f"{len(look.silent)} running, not heard of for {_span(unheard)}, on {_worker(window)}"
    if look.hung:
        window = max(look.hung, key=lambda each: _running_for(each, now))
        longest = judgements.longest_run(listed.seen.records)
        compared = (
            "too few before are done to compare" if longest is None else f"the longest before took {_span(longest)}"
        )
        running = f"{len(look.hung)} running for {_span(_running_for(window, now))} on {_worker(window)}"
        yield judgements.HUNG, f"{running}, {compared}"
    if look.late:
        first = look.late[0]
        yield judgements.LATE, f"{len(look.late)} late, first that of {format_instant(first.start)}: {first.why}"
    if look.stuck:
        since = min(window.open.claimed for window in look.stuck if window.open)
        words = f"{len(look.stuck)} published, and begun by no worker for {_span(now - since)}"
        queues = sorted({window.open.queue or "" for window in look.stuck if window.open} & set(idle))
        if queues:
            words += f"; no worker consumes the queue {some([shown(queue) for queue in queues], 1)}"
        yield judgements.STUCK, words
    if skipped:
        yield judgements.SKIPPING, f"the last {skipped} windows are skipped"
    if account is not None and account.discarded is not None:
        worker, at = account.discarded
        newest = not listed.tracked and account.cursor < at
        if newest or any(each.begun is None and each.claimed < at for each in account.open.values()):
            limited = listed.entry is not None and listed.entry.policy.limit is not None
            what = f"the task {shown(listed.task)}" + (", or its limit" if limited else "")
            yield judgements.UNKNOWN_TASK, f"{short(worker)} doesn't know {what}: deploy workers first"


def _worker(window: WindowSeen) -> str:
    return short(host_of(window.open.owner)) if window.open else "?"


def _span(duration: timedelta) -> str:
    return span(duration.total_seconds())


def paused_words(account: EntryAccount) -> str:
    """Return who paused an entry, and why: ``paused by anna: the mail server moves``; '' where it isn't paused."""
    if not account.paused:
        return ""
    by = f" by {account.paused_by}" if account.paused_by else ""
    note = f": {account.paused_for}" if account.paused_for else ""
    return f"paused{by}{note}"


def _seconds(duration: timedelta) -> float:
    return round(duration.total_seconds(), 3)
