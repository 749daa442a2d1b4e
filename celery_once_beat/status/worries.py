"""What somebody should look at: of each entry, and of all of them. The reasons are those of ``judgements``. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery_once_beat.beat import CURSOR_AHEAD
from celery_once_beat.errors import ScheduleError, UndecidedError
from celery_once_beat.features.alerts.reasons import BY_FAILURES
from celery_once_beat.identity import host_of
from celery_once_beat.lookup import BeatStatus, EntrySeen, Overview, WindowSeen
from celery_once_beat.outcomes import OUTCOMES
from celery_once_beat.settings import WORKER_TTL
from celery_once_beat.store import EntryAccount, OpenWindow
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import age, number_of, printable, short, shown, some, span

from . import judgements
from .judgements import STUCK_AFTER, Judgement
from .lineup import LateWindow, Listed, late_now, unclaimed

#: A deadline lies so much behind the end of a lease (MARGIN in ``store/lua/pieces/values.lua``).
_DEADLINE_LATER = timedelta(seconds=1)
#: Workers that are named.
_NAMED = 3
#: A reason, and what is so, in words.
Worry = tuple[Judgement, str]


def in_seconds(duration: timedelta) -> float:
    """Return a duration as a report has it."""
    return round(duration.total_seconds(), 3)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker that knows windows."""

    worker: str
    #: Seconds since it last reported; None: it never did, but runs a window.
    heard: float | None
    #: How many windows it runs.
    running: int
    #: The queues that it consumes, or consumed when it was heard of last.
    queues: tuple[str, ...] = ()

    #: Entries whose windows hang there.
    hung: tuple[str, ...] = ()
    #: Windows whose messages wait there, and for how many seconds the first of them has.
    reserved: int = 0
    waited: int = 0
    #: Tasks that it executes, as it reported with these; None: it didn't, or a rate limit holds them back.
    executes: int | None = None
    #: Of its windows those that hang, or don't renew their leases.
    lost: int = 0

    @property
    def lives(self) -> bool:
        """Whether it reported lately; one that never reports lives while it runs a window."""
        return self.running + self.reserved > 0 if self.heard is None else self.heard < WORKER_TTL

    @property
    def does(self) -> str:
        """What it does, where messages wait in it."""
        if self.executes is None:
            return "holds it back by a rate limit"
        tasks = number_of(self.executes, "task") if self.executes else "nothing"
        unheld = self.executes and (not self.running or self.executes <= self.lost)
        hangs = f", of which {some([*map(shown, self.hung)], 1)} hangs" if self.hung else ""
        return f"executes {tasks}{hangs or (', and none renews a lease' if unheld else '')}"

    @property
    def why(self) -> str:
        """Why the messages that wait in it do."""
        return f"reserved by {short(self.worker)}, which {self.does}"


@dataclass(frozen=True, slots=True)
class StuckQueue:
    """A queue with windows that were published to it, and wait for too long."""

    queue: str
    #: How many wait.
    stuck: int
    #: Workers that know windows, live and consume it; how many windows they run; and entries whose windows hang there.
    workers: tuple[str, ...] = ()
    running: int = 0
    hung: tuple[str, ...] = ()
    #: A worker that consumed it and has stopped reporting.
    lost: str = ""

    @property
    def why(self) -> str:
        """Why its windows wait."""
        name = f"the queue {shown(self.queue)}"
        if not self.workers:
            gone = f": {short(self.lost)} did, and has stopped reporting" if self.lost else ""
            return f"no worker consumes {name}{gone}"
        busy = f"{name} has {number_of(len(self.workers), 'worker')}, busy with {number_of(self.running, 'window')}"
        return busy + (f", of which {some([*map(shown, self.hung)], 1)} hangs" if self.hung else "")


@dataclass(frozen=True, slots=True)
class Trouble:
    """What concerns all entries."""

    #: The name of a judgement.
    reason: str
    words: str
    #: Nothing is claimed while it lasts.
    stops_all: bool = False


class Judged(NamedTuple):
    """An entry, and those of its open windows that are judged."""

    listed: Listed
    #: All that are open.
    open: Sequence[WindowSeen] = ()
    running: Sequence[WindowSeen] = ()
    silent: Sequence[WindowSeen] = ()
    hung: Sequence[WindowSeen] = ()
    stuck: Sequence[WindowSeen] = ()
    #: The oldest comes first.
    late: Sequence[LateWindow] = ()

    @classmethod
    def at(cls, listed: Listed, now: datetime) -> Judged:
        """Judge the windows of an entry."""
        windows = [each for each in listed.seen.windows if each.open is not None]
        if not windows:
            return cls(listed, late=late_now(listed, now))
        running = [window for window in windows if window.state == "running"]
        lease = listed.lease or 0.0
        silent = [each for each in running if judgements.is_silent(_unheard(each, listed, now), lease)]
        hung = [each for each in running if each not in silent and _is_hung(each, listed, now)]
        stuck = [each for each in windows if _waited(each, listed, now) > STUCK_AFTER]
        return cls(listed, windows, running, silent, hung, stuck, late_now(listed, now))


def _unheard(window: WindowSeen, listed: Listed, now: datetime) -> timedelta:
    """Return since when its worker hasn't renewed the lease. Zero where that isn't known."""
    if window.deadline is None or listed.lease is None:
        return timedelta(0)
    return max(now - (window.deadline - _DEADLINE_LATER - timedelta(seconds=listed.lease)), timedelta(0))


def running_for(window: WindowSeen, now: datetime) -> timedelta:
    """Return since when it runs; zero where it doesn't."""
    begun = window.open.begun if window.open else None
    return now - begun if begun else timedelta(0)


def _is_hung(window: WindowSeen, listed: Listed, now: datetime) -> bool:
    runs_for = running_for(window, now)
    if runs_for <= judgements.LEAST_HUNG:
        return False  # until then its entry's records aren't read
    longest = judgements.longest_run(listed.seen.records)
    ends = listed.after(window.start) if longest is None else None
    return judgements.is_hung(runs_for, longest, None if ends is None else ends - window.start)


def _waited(window: WindowSeen, listed: Listed, now: datetime) -> timedelta:
    """Return for how long its message has waited for a worker, beyond its countdown; zero or less where it doesn't."""
    assert window.open is not None
    if window.state == "waiting" and window.open.holder is not None:  # its last execution died
        return timedelta(seconds=window.open.holder.waited)
    if window.state != "published" or (listed.entry and listed.entry.timing.delay(now, window.open.claimed)):
        return timedelta(0)
    return now - window.open.claimed - timedelta(seconds=listed.countdown)


class Scene(NamedTuple):
    """What an entry is judged by beside itself."""

    now: datetime
    #: Queues with stuck windows; and workers.
    queues: Mapping[str, StuckQueue]
    workers: Mapping[str, WorkerStatus]
    #: What keeps all beats from claiming; '' where one claims. And the names of those that live.
    cause: str
    beats: frozenset[str]
    #: Of the keys.
    prefix: str

    def place_of(self, window: WindowSeen) -> WorkerStatus | StuckQueue | None:
        """Return where the message of a stuck window waits; None where that isn't known."""
        assert window.open is not None
        holder = window.open.holder
        return self.workers[holder.worker] if holder else self.queues.get(window.open.queue or "")

    def is_consumed(self, window: WindowSeen) -> bool:
        """Whether a worker has reserved a stuck window, or consumes its queue; or that isn't known."""
        place = self.place_of(window)
        return not isinstance(place, StuckQueue) or bool(place.workers)


def find_workers(overview: Overview, looks: Iterable[Judged]) -> tuple[WorkerStatus, ...]:
    """Return the workers, those that were heard of last first."""
    of: dict[str, list[tuple[Judged, WindowSeen, OpenWindow]]] = {name: [] for name in overview.workers}
    for look in looks:
        for window in look.open:
            assert window.open is not None
            name = window.open.holder.worker if window.open.holder else host_of(window.open.owner)
            if window.open.holder or window in look.running:
                of.setdefault(name, []).append((look, window, window.open))
    workers = []
    for name, windows in of.items():
        seen = overview.workers.get(name)
        hung = tuple(look.listed.name for look, window, _ in windows if window in look.hung)
        died = sum(each.state == "plain" and host_of(each.owner) == name for _, _, each in windows if each.holder)
        lost = len(hung) + died + sum(window in look.silent for look, window, _ in windows)
        holders = [opened.holder for _, _, opened in windows if opened.holder]
        waited = max((each.waited for each in holders), default=0)
        executes = max((each.executes for each in holders if each.executes is not None), default=None)
        heard = max(in_seconds(overview.now - seen.heard), 0.0) if seen else None
        queues, runs = tuple(sorted(seen.queues)) if seen else (), len(windows) - len(holders)
        workers.append(WorkerStatus(name, heard, runs, queues, hung, len(holders), waited, executes, lost))
    return tuple(sorted(workers, key=lambda each: (-1.0 if each.heard is None else each.heard, each.worker)))


def find_stuck_queues(looks: Iterable[Judged], workers: Sequence[WorkerStatus]) -> dict[str, StuckQueue]:
    """Return the queues with stuck windows, by name."""
    waits = (window.open for look in looks for window in look.stuck if window.open)
    stuck = Counter(each.queue for each in waits if each.queue and not each.holder)
    found = {}
    for queue, number in stuck.items():
        consumers = [worker for worker in workers if queue in worker.queues]
        alive = [worker for worker in consumers if worker.lives]
        running, hung = sum(worker.running for worker in alive), tuple(name for each in alive for name in each.hung)
        lost = next((worker.worker for worker in consumers), "") if not alive else ""
        found[queue] = StuckQueue(queue, number, tuple(each.worker for each in alive), running, hung, lost)
    return found


def cause_of(beats: Sequence[BeatStatus]) -> str:
    """Return what keeps all beats from claiming; '' where one claims."""
    if not beats:
        return "no beat lives"
    if not all(beat.trouble for beat in beats):
        return ""
    return "the ticks of the beats fail" if any(beat.failing for beat in beats) else "beats can't use the broker"


def _hangs(worker: WorkerStatus, now: datetime, consumed: set[str]) -> str:
    """Say how a worker hangs; '' where it doesn't, or nothing depends on it."""
    name, number = f"worker {short(worker.worker)}", number_of(worker.reserved, "window")
    if worker.lives or worker.heard is None:
        if worker.executes is None or worker.executes > worker.lost or worker.waited <= STUCK_AFTER.total_seconds():
            return ""
        return f"{name} begins nothing, and has {number} reserved, one for {age(worker.waited)}; it {worker.does}"
    alone = [short(queue) for queue in worker.queues if queue not in consumed]
    why = [f"it executes {number_of(worker.running, 'window')}"] if worker.running else []
    why += [f"it has {number} reserved"] if worker.reserved else []
    why += [f"no other worker consumes {some(alone, _NAMED)}"] if alone else []
    since = format_instant((now - timedelta(seconds=worker.heard)).replace(microsecond=0))
    return f"{name} hasn't reported since {since}, and didn't shut down: {', '.join(why)}" if why else ""


def troubles_of(overview: Overview, workers: Sequence[WorkerStatus], behind: float) -> Iterator[Worry]:
    """Yield what concerns all entries."""
    if not overview.beats and overview.memory >= 1:
        yield judgements.NO_BEAT, "no beat is heard of, and Redis is full: it may refuse what beats report"
    elif not overview.beats:
        how = "start one with -S once (Django's tables: -S once-django)"
        yield judgements.NO_BEAT, f"no beat lives, so nothing is claimed: {how}"
    if behind:
        yield judgements.BEHIND, f"the server's clock is {span(behind)} behind the latest window: it went back"
    for beat in overview.beats:
        if beat.trouble:
            judgement = judgements.TICKS_FAIL if beat.failing else judgements.BROKER_AWAY
            yield judgement, f"beat {short(beat.beat)} claims nothing: {beat.trouble}"
    if overview.lost:
        at, number = format_instant(overview.lost.at.replace(microsecond=0)), overview.lost.entries
        words = f"Redis lost its data at {at}, or evicts keys: it didn't know {number} entries"
        yield judgements.DATA_LOST, f"{words}. What was open, pauses that no beat knew, and orders are gone"
    if overview.memory >= judgements.NEARLY_FULL:
        yield judgements.MEMORY, f"Redis has used {overview.memory:.0%} of its maxmemory; a full one loads no new entry"
    consumed = {queue for worker in workers if worker.lives for queue in worker.queues}
    hang = [words for words in (_hangs(worker, overview.now, consumed) for worker in workers) if words]
    if hang:
        yield judgements.WORKER_HANGS, some(hang, _NAMED)


def attention_of(worries: Iterable[Worry]) -> dict[str, Any]:
    """Return the fields of an entry's status that say what somebody should look at."""
    ordered = sorted(worries, key=lambda worry: (worry[0].urgency, worry[1]), reverse=True)
    return {
        "attention": tuple(words for _, words in ordered),
        "reasons": tuple(judgement.name for judgement, _ in ordered),
        "misconfigured": tuple(words for judgement, words in ordered if judgement.setup),
        "urgency": ordered[0][0].urgency if ordered else 0,
    }


def failure_of(seen: EntrySeen) -> Iterator[Worry]:
    """Yield that the last window failed, if it did."""
    last = seen.last
    if last is not None and last.state in OUTCOMES and OUTCOMES[last.state].urgency:
        why = f": {printable(last.failure)}" if last.failure else ""
        yield replace(judgements.FAILED, urgency=OUTCOMES[last.state].urgency), f"last window {last.state}{why}"


def worries_of_entry(listed: Listed, scene: Scene) -> Iterator[Worry]:
    """Yield why somebody should look at an entry, but for its open windows."""
    entry, seen = listed.entry, listed.seen
    account = seen.account
    if account is not None:
        yield from _worries_of_account(account, listed, scene)  # the timetable is asked from the cursor on: once
    elif not seen.trouble:
        yield judgements.NOT_LOADED, judgements.NOT_LOADED.meaning
    if seen.trouble:
        yield judgements.UNREADABLE, seen.trouble
    if listed.left_out:
        yield judgements.BROKEN, listed.left_out
    elif entry is not None:
        try:
            entry.after(scene.now)
        except UndecidedError:
            pass  # it can say later
        except ScheduleError as exc:
            yield judgements.BROKEN, str(exc)
    yield from failure_of(seen)


def overdue_words(overdue: Mapping[datetime, datetime]) -> str:
    """Say how many windows are overdue, which is the first and since when; ``overdue``: start to deadline."""
    start = min(overdue)
    since = format_instant(overdue[start].replace(microsecond=0))
    return f"{len(overdue)} overdue, first that of {format_instant(start)}, since {since}"


def _worries_of_account(account: EntryAccount, listed: Listed, scene: Scene) -> Iterator[Worry]:
    entry, now, in_force = listed.entry, scene.now, (account.fingerprint or "").partition("~")[0]
    old = [beat for beat in scene.beats & account.loaders.keys() if account.loaders[beat].partition("~")[0] != in_force]
    if old and in_force and account.since < now - judgements.CLAIMED_WITHIN:
        yield judgements.LOADED_OTHERWISE, f"beat {short(min(old))} has loaded another definition of it"
    if account.paused:
        judgement = judgements.STOPPED if is_stopped(account) else judgements.PAUSED
        yield judgement, paused_words(account, now)
    elif entry is not None and not entry.is_in_force(account.fingerprint):
        yield judgements.LOADED_OTHERWISE, judgements.LOADED_OTHERWISE.meaning
    elif account.cursor > now + CURSOR_AHEAD:
        ahead = (account.cursor - now).total_seconds()
        since = f"isn't claimed until {format_instant(account.cursor)}: the Redis clock is {ahead:.0f} s behind"
        advice = "set it right, or if it was wrong before, delete the key that the beats' log names"
        yield judgements.BEHIND, f"{since}; {advice}"
    else:
        due = unclaimed(listed)
        if due is not None and due < now - judgements.CLAIMED_WITHIN:
            since = f"due since {format_instant(due)}"
            if scene.cause:
                yield judgements.HELD_UP, f"{since}, and {scene.cause}"
            else:
                yield judgements.UNCLAIMED, f"no beat claims it: {since}"


def worries_of_windows(look: Judged, scene: Scene) -> Iterator[Worry]:
    """Yield why somebody should look at an entry's windows."""
    listed, account, now = look.listed, look.listed.seen.account, scene.now
    overdue, skipped = listed.seen.overdue, judgements.skipped_in_a_row(listed.seen.records)
    if overdue and scene.cause:
        yield judgements.HELD_UP, f"{overdue_words(overdue)}, and {scene.cause}"
    elif overdue:
        yield judgements.OVERDUE, overdue_words(overdue)
    for window in look.silent[:1]:
        unheard = max(_unheard(each, listed, now) for each in look.silent)
        yield judgements.SILENT, f"{len(look.silent)} running, not heard of for {_age(unheard)}, on {_worker(window)}"
    if look.hung:
        window = max(look.hung, key=lambda each: running_for(each, now))
        longest = judgements.longest_run(listed.seen.records)
        took = longest and f"the longest before took {span(longest.total_seconds())}"
        running = f"{len(look.hung)} running for {_age(running_for(window, now))} on {_worker(window)}"
        yield judgements.HUNG, f"{running}, {took or 'too few before are done to compare'}"
    if look.late:
        first = look.late[0]
        yield judgements.LATE, f"{len(look.late)} late, first that of {format_instant(first.start)}: {first.why}"
    if look.stuck:
        waited = _age(max(_waited(each, listed, now) for each in look.stuck))
        why = dict.fromkeys(place.why for place in map(scene.place_of, look.stuck) if place)
        judgement = judgements.STUCK if all(map(scene.is_consumed, look.stuck)) else judgements.UNCONSUMED
        yield judgement, "; ".join([f"{len(look.stuck)} published, and begun by no worker for {waited}", *why])
    if skipped:
        yield judgements.SKIPPING, f"the last {skipped} windows are skipped"
    if account is not None and account.discarded is not None:
        worker, at = account.discarded
        newest = not listed.tracked and account.cursor < at
        if newest or any(each.begun is None and each.claimed < at for each in account.open.values()):
            limited = listed.entry is not None and listed.entry.policy.limit is not None
            what = f"the task {shown(listed.task)}" + (", or its limit" if limited else "")
            yield judgements.UNKNOWN_TASK, f"the worker {short(worker)} doesn't know {what}: deploy workers first"


def _worker(window: WindowSeen) -> str:
    return short(host_of(window.open.owner)) if window.open else "?"


def _age(duration: timedelta) -> str:
    return age(duration.total_seconds())


def is_stopped(account: EntryAccount) -> bool:
    """Whether ``pause_after_failures`` has paused an entry."""
    return account.paused and account.paused_by == BY_FAILURES


def paused_words(account: EntryAccount, now: datetime) -> str:
    """Return since when an entry is paused, who did it, and why; '' where it isn't paused.

    ``paused 3 d 4 h ago by anna: the mail server moves``.
    """
    if not account.paused:
        return ""
    since = ""
    if account.paused_at:
        ago = now - account.paused_at
        since = f" {'less than a minute' if ago < timedelta(minutes=1) else _age(ago)} ago"
    by = f" by {account.paused_by}" if account.paused_by else ""
    note = f": {account.paused_for}" if account.paused_for else ""
    return f"paused{since}{by}{note}"
