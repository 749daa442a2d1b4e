"""What somebody should look at: of each entry, and of all of them. The reasons are those of ``judgements``. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery_once_beat.beat import CURSOR_AHEAD
from celery_once_beat.errors import ScheduleError, UndecidedError
from celery_once_beat.features.alerts.reasons import BY_FAILURES
from celery_once_beat.identity import host_of
from celery_once_beat.lookup import EntrySeen, Overview, WindowSeen
from celery_once_beat.outcomes import OUTCOMES
from celery_once_beat.store import EntryAccount
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import age, printable, short, shown, span

from . import judgements
from .actors import BeatStatus, StuckQueue, WorkerStatus, in_seconds
from .judgements import Judgement
from .lateness import LateWindow, late_now, unclaimed
from .lineup import Listed

#: A deadline lies so much behind the end of a lease (MARGIN in ``store/lua/pieces/values.lua``).
_DEADLINE_LATER = timedelta(seconds=1)
#: A reason, and what is so, in words.
Worry = tuple[Judgement, str]


class Judged(NamedTuple):
    """An entry, and those of its open windows that are judged."""

    listed: Listed
    running: Sequence[WindowSeen]
    silent: Sequence[WindowSeen]
    hung: Sequence[WindowSeen]
    stuck: Sequence[WindowSeen]
    #: The oldest comes first.
    late: Sequence[LateWindow]

    @classmethod
    def at(cls, listed: Listed, now: datetime) -> Judged:
        """Judge the windows of an entry."""
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


def _is_stuck(window: WindowSeen, listed: Listed, now: datetime) -> bool:
    assert window.open is not None
    if listed.entry is not None and listed.entry.timing.delay(now, window.open.claimed):
        return False  # it isn't to run yet
    return now - window.open.claimed > timedelta(seconds=listed.countdown) + judgements.STUCK_AFTER


class Scene(NamedTuple):
    """What an entry is judged by beside itself."""

    now: datetime
    #: Queues with stuck windows.
    queues: Mapping[str, StuckQueue]
    #: What keeps all beats from claiming; '' where one claims.
    cause: str
    #: Of the keys.
    prefix: str

    def is_consumed(self, window: WindowSeen) -> bool:
        """Whether a worker consumes the queue of a stuck window, or that isn't known."""
        queue = self.queues.get(window.open.queue or "") if window.open else None
        return queue is None or bool(queue.workers)


def find_workers(overview: Overview, looks: Iterable[Judged]) -> tuple[WorkerStatus, ...]:
    """Return the workers, those that were heard of last first."""
    running: Counter[str] = Counter()
    hung: dict[str, list[str]] = {}
    for look in looks:
        for window in look.running:
            if window.open and window.open.owner:
                running[host_of(window.open.owner)] += 1
                if window in look.hung:
                    hung.setdefault(host_of(window.open.owner), []).append(look.listed.name)
    workers = []
    for name in running.keys() | overview.workers.keys():
        seen = overview.workers.get(name)
        heard = max(in_seconds(overview.now - seen.heard), 0.0) if seen else None
        queues = tuple(sorted(seen.queues)) if seen else ()
        workers.append(WorkerStatus(name, heard, running[name], queues, tuple(hung.get(name, ()))))
    return tuple(sorted(workers, key=lambda each: (-1.0 if each.heard is None else each.heard, each.worker)))


def find_stuck_queues(looks: Iterable[Judged], workers: Sequence[WorkerStatus]) -> dict[str, StuckQueue]:
    """Return the queues with stuck windows, by name."""
    stuck = Counter(window.open.queue for look in looks for window in look.stuck if window.open and window.open.queue)
    found = {}
    for queue, number in stuck.items():
        consumers = [worker for worker in workers if queue in worker.queues]
        alive = [worker for worker in consumers if worker.lives]
        found[queue] = StuckQueue(
            queue,
            number,
            tuple(worker.worker for worker in alive),
            sum(worker.running for worker in alive),
            tuple(name for worker in alive for name in worker.hung),
            next((worker.worker for worker in consumers), "") if not alive else "",
        )
    return found


def cause_of(beats: Sequence[BeatStatus]) -> str:
    """Return what keeps all beats from claiming; '' where one claims."""
    if not beats:
        return "no beat lives"
    if not all(beat.trouble for beat in beats):
        return ""
    return "the ticks of the beats fail" if any(beat.failing for beat in beats) else "beats can't use the broker"


def troubles_of(overview: Overview, beats: Sequence[BeatStatus], behind: float) -> Iterator[Worry]:
    """Yield what concerns all entries."""
    if not beats:
        yield (
            judgements.NO_BEAT,
            "no beat lives, so nothing is claimed: start one with -S once (Django's tables: -S once-django)",
        )
    if behind:
        yield judgements.BEHIND, f"the server's clock is {span(behind)} behind the latest window: it went back"
    for beat in beats:
        if beat.trouble:
            judgement = judgements.TICKS_FAIL if beat.failing else judgements.BROKER_AWAY
            yield judgement, f"beat {short(beat.beat)} claims nothing: {beat.trouble}"
    lost = max(beats, key=lambda beat: (bool(beat.lost), -beat.lost_for), default=None)
    if lost is not None and lost.lost and lost.lost_for < judgements.LOST_SHOWN:
        at = format_instant((overview.now - timedelta(seconds=lost.lost_for)).replace(microsecond=0))
        words = f"Redis lost its data at {at}, or evicts keys: it didn't know {lost.lost} entries"
        yield judgements.DATA_LOST, f"{words}. What was open, pauses that no beat knew, and orders are gone"
    if overview.memory >= judgements.NEARLY_FULL:
        yield judgements.MEMORY, f"Redis has used {overview.memory:.0%} of its maxmemory; a full one loads no new entry"


def attention_of(worries: Iterable[Worry]) -> dict[str, Any]:
    """Return the fields of an entry's status that say what somebody should look at."""
    ordered = sorted(worries, key=lambda worry: (worry[0].urgency, worry[1]), reverse=True)
    return {
        "attention": tuple(words for _, words in ordered),
        "reasons": tuple(judgement.name for judgement, _ in ordered),
        "misconfigured": tuple(words for judgement, words in ordered if judgement.setup),
        "urgency": ordered[0][0].urgency if ordered else 0,
    }


def worries_of(look: Judged, scene: Scene) -> Iterator[Worry]:
    """Yield why somebody should look at an entry."""
    yield from _worries_of_entry(look.listed, scene)
    yield from _worries_of_windows(look, scene)


def failure_of(seen: EntrySeen) -> Iterator[Worry]:
    """Yield that the last window failed, if it did."""
    last = seen.last
    if last is not None and last.state in OUTCOMES and OUTCOMES[last.state].urgency:
        why = f": {printable(last.failure)}" if last.failure else ""
        failed = replace(judgements.FAILED, urgency=OUTCOMES[last.state].urgency)
        yield failed, f"last window {last.state}{why}"


def _worries_of_entry(listed: Listed, scene: Scene) -> Iterator[Worry]:
    entry, seen = listed.entry, listed.seen
    account = seen.account
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
    if account is not None:
        yield from _worries_of_account(account, listed, scene)
    elif not seen.trouble:
        yield judgements.NOT_LOADED, judgements.NOT_LOADED.meaning


def _worries_of_account(account: EntryAccount, listed: Listed, scene: Scene) -> Iterator[Worry]:
    entry, now = listed.entry, scene.now
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


def _worries_of_windows(look: Judged, scene: Scene) -> Iterator[Worry]:
    listed, account, now = look.listed, look.listed.seen.account, scene.now
    overdue, skipped = listed.seen.overdue, judgements.skipped_in_a_row(listed.seen.records)
    if overdue and scene.cause:
        yield judgements.HELD_UP, f"{len(overdue)} overdue, and {scene.cause}"
    elif overdue:
        yield judgements.OVERDUE, f"{len(overdue)} overdue"
    for window in look.silent[:1]:
        unheard = max(_unheard(each, listed, now) for each in look.silent)
        yield judgements.SILENT, f"{len(look.silent)} running, not heard of for {_age(unheard)}, on {_worker(window)}"
    if look.hung:
        window = max(look.hung, key=lambda each: running_for(each, now))
        longest = judgements.longest_run(listed.seen.records)
        compared = (
            "too few before are done to compare"
            if longest is None
            else f"the longest before took {span(longest.total_seconds())}"
        )
        running = f"{len(look.hung)} running for {_age(running_for(window, now))} on {_worker(window)}"
        yield judgements.HUNG, f"{running}, {compared}"
    if look.late:
        first = look.late[0]
        yield judgements.LATE, f"{len(look.late)} late, first that of {format_instant(first.start)}: {first.why}"
    if look.stuck:
        since = min(window.open.claimed for window in look.stuck if window.open)
        words = f"{len(look.stuck)} published, and begun by no worker for {_age(now - since)}"
        window = min(look.stuck, key=scene.is_consumed)
        queue = scene.queues.get(window.open.queue or "") if window.open else None
        judgement = judgements.STUCK if scene.is_consumed(window) else judgements.UNCONSUMED
        yield judgement, words + (f"; {queue.why}" if queue else "")
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
