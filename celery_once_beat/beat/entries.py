"""One entry in a beat: its definition, its cursor, its next start; and which entries are due.

An entry is made from one of the beat schedule, Celery's ``ScheduleEntry``: its *source*. Its cursor is the store's:
every window up to it is claimed. A heap holds one next start an entry, so a tick costs what is due, not what exists.

An entry is in one of these states:

======== ========================================================== ===================================================
unloaded its cursor isn't known: it is new, or the store was away   ``Entries.advance``, when a load answers
waiting  its next start lies ahead                                  ``Entries.due``, when the start has come
out      it was due: its next claim is planned, sent or answered    ``Entries.advance``, or ``put`` if nothing changed
paused   somebody has paused it: each load asks once more           ``Entries.advance``, when it is resumed
resting  it can't go on, ``trouble`` says why: superseded, its      ``Entries.wake`` after a while: it is loaded anew
         schedule raises, its key is unreadable
spent    it has no next start                                       another definition
======== ========================================================== ===================================================

Beside that it may be ``unanswered`` (a claim may have been carried out, and is repeated), ``astray`` (its messages lose
their window's headers: it is untracked from then on) or refused (the broker answers and takes none of its messages:
overdue windows wait). A change of the schedule, or a store that lost its data, makes any of them unloaded.

Only the methods of this file write to an entry, all from the beat's own thread; others read.
"""

from __future__ import annotations

import heapq
import logging
import shlex
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

from celery.schedules import crontab, schedule
from celery.utils.log import get_logger

from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, ScheduleError, SettingError, UndecidedError
from celery_once_beat.identity import digest
from celery_once_beat.logs import about, guarded
from celery_once_beat.rules import (
    ALERT_OPTIONS,
    EntryPolicy,
    PureSchedule,
    Step,
    Timing,
    count_starts,
    fingerprint,
    in_zone,
    is_polled,
    next_steps,
    spread_offset,
    zone_name,
    zone_rules,
)
from celery_once_beat.schedules import Composed, LoadedDefinition, cron, describe
from celery_once_beat.settings import Settings
from celery_once_beat.store import Loaded, LoadRequest, Superseded
from celery_once_beat.windows import Window, next_start
from celery_once_beat.wording import MOST_FAILURE, printable, shown, why_no_task

from .guard import TookTooLong, guard, within_time

logger = guarded(get_logger(__name__))

#: Seconds after which an entry that can't go on is tried again.
RETRY_AFTER = 30.0
_TEN_DAYS = timedelta(days=10)
_THIRTY_DAYS = 30 * 86_400.0
_THREE_YEARS = 3 * 366 * 86_400.0
#: When a polled schedule is asked again: at the soonest, at the latest, and if it doesn't say, as by Celery's beat.
_LEAST_WAIT, _MOST_WAIT = timedelta(seconds=0.1), timedelta(days=366)
_ANY_WAIT = timedelta(seconds=300)
_MAX_NAME = 64 * 1024
#: A schedule whose starts lie closer together, twice in a row, is a mistake: it would fill the queue for ever.
_LEAST_APART = timedelta(milliseconds=1)
_BEGINNING = datetime.min.replace(tzinfo=timezone.utc)
#: Seconds for which one entry's starts are looked for before it is the others' turn.
_SLICE = 0.05
#: The options that say to which queue a message goes.
_ROUTED_BY = ("queue", "exchange", "routing_key")
#: Most texts that are kept of what readers are shown.
_MOST_SUMMARIES = 1024
#: Most entries that a beat names, of those that don't run.
_MOST_NAMED = 20
#: A plan that is older is made anew: what was on time may be late by now.
_PLAN_LASTS = timedelta(seconds=5)


class Backlog:
    """The starts after a cursor that are due and were found so far; each is looked for once."""

    __slots__ = ("_cursor", "begin", "starts")

    def __init__(self, cursor: datetime) -> None:
        self.starts: list[datetime] = []
        #: Position of the first start after the cursor.
        self.begin = 0
        self._cursor = cursor

    @property
    def newest(self) -> datetime:
        """The last start that is known, else the cursor: from there the next one is looked for."""
        return self.starts[-1] if self else self._cursor

    def __bool__(self) -> bool:
        """Whether it holds a start after the cursor."""
        return self.begin < len(self.starts)

    def move(self, cursor: datetime) -> bool:
        """Go on from ``cursor``; False where that is none of the starts, so that others may follow it."""
        if cursor == self._cursor:
            return True
        position = bisect_right(self.starts, cursor, self.begin)
        if position == self.begin or self.starts[position - 1] != cursor:
            return False
        self.begin, self._cursor = position, cursor
        if self.begin > len(self.starts) // 2:
            del self.starts[: self.begin]
            self.begin = 0
        return True


class Earlier:
    """An earlier definition of an entry that was set at run time. ``until`` (aware UTC) is its last instant."""

    __slots__ = ("_entry", "_logged", "_make", "until")

    def __init__(self, until: datetime, make: Callable[[], BeatEntry | None]) -> None:
        self.until = until
        self._make: Callable[[], BeatEntry | None] | None = make
        self._entry: BeatEntry | None = None
        self._logged = False

    @property
    def entry(self) -> BeatEntry | None:
        """The entry that it makes; None: there was none, or it can't be read.

        Made when it is first asked for, since mostly nothing is owed by it.
        """
        if self._make is not None:
            self._entry, self._make = self._make(), None
        return self._entry

    def next(self, start: datetime) -> datetime | None:
        """Return its first start after ``start``; None where there is none up to ``until``, or it can't say."""
        if self.entry is None:
            return None
        try:
            found = self.entry.after(start)
        except UndecidedError as exc:
            if exc.asked > self.until:
                return None
            raise
        except ScheduleError as exc:  # it must not hold up the definition that took its place
            if not self._logged:
                self._logged, name = True, self.entry.name
                logger.error(
                    "once: schedule %r: an earlier version can't say when it starts, its windows don't run: %s",
                    name,
                    exc,
                    extra=about("schedule_unreadable", entry=name),
                )
            return None
        return found if found is not None and found <= self.until else None


@dataclass(eq=False, slots=True)
class BeatEntry:
    """One entry. Instants are aware UTC. A beat may have a million of them: what most don't need is None."""

    name: str
    #: Celery's entry, from the beat schedule.
    source: Any
    policy: EntryPolicy
    fingerprint: str
    #: Whether workers close its windows, so that a lost one can be recovered.
    tracked: bool
    #: When its messages may run, and until when.
    timing: Timing = Timing()  # noqa: RUF009  # it is frozen
    #: How much later it starts than its schedule says (``spread``).
    offset: timedelta = timedelta(0)
    #: Only the first window after ``since`` is one.
    one_off: bool = False
    #: Its schedule is asked in real time whether it is due; see :meth:`_poll`.
    polled: bool = False
    #: From where a definition that is new to the store counts, by the source; None: from now.
    counts_from: datetime | None = None
    #: Every window up to it is claimed; None: it has to be loaded.
    cursor: datetime | None = None
    next: datetime | None = None
    #: The last cursor, kept while the entry has to be loaded again.
    known: datetime | None = None
    #: The cursor from which the definition counts, by the store.
    since: datetime | None = None
    #: The same as the store said it last; ``since`` may be this beat's guess while the store is away.
    counted_from: datetime | None = None
    #: When this beat's schedule had no such entry: windows up to then don't count. None: it had it from the start, or
    #: the store knows.
    absent_at: datetime | None = None
    #: When it came into the schedule, as exactly as the scheduler knows: it counts from there unless another beat had
    #: it earlier. None: ``absent_at``.
    came_at: datetime | None = None
    #: Of a row that comes from another name: the pause that its load brings along; see :class:`LoadRequest`.
    pause: str = ""
    #: Server ms of this beat's first load, 0 before.
    loaded_at: int = 0
    #: The cursor and the step of a claim that was sent and not answered: it may have been carried out.
    unanswered: tuple[datetime, Step] | None = None
    #: Given out by :meth:`Entries.due`, and not yet given back.
    out: bool = False
    #: Why it can't go on, logged once; '' while it can.
    trouble: str = ""
    #: Its last claim met a key that isn't ours.
    claim_failed: bool = False
    #: It was set at run time: the store has its definition, and the fingerprint is that of the store.
    stored: bool = False
    #: Its earlier definitions, oldest first. Each has the windows up to its ``until``.
    earlier: Sequence[Earlier] = ()
    #: Its messages were found to lose their window's headers or task id.
    astray: bool = False
    #: How often in a row a broker that answers has refused its messages.
    refusals: int = 0
    #: Until then, time.monotonic(), no overdue window of a refused entry is tried.
    refused_until: float = 0.0
    #: What is due hasn't all been looked for yet: :meth:`step` says more when it is asked again.
    searching: bool = False
    #: What is claimed next; None: nothing is planned.
    _plan: deque[Step] | None = None
    _planned_at: datetime = _BEGINNING
    _backlog: Backlog | None = None
    #: What :meth:`after` was asked last, and its answer: a window's start, its end and the next start ask the same.
    _beyond: tuple[datetime, datetime | None] | None = None
    #: When a polled schedule is asked again; None: it hasn't been asked since the entry was loaded.
    _ask_at: datetime | None = None
    #: A start after which the schedule is undecided, and up to when it was asked.
    _asked: tuple[datetime, datetime] | None = None
    #: Its schedule in the time zone of its policy.
    _in_zone: Any = None

    @property
    def when(self) -> Any:
        """Its schedule, in its own time zone if it sets one."""
        if self.policy.tz is None:
            return self.source.schedule
        if self._in_zone is None:
            self._in_zone = _when(self.source, self.policy)
        return self._in_zone

    @property
    def words(self) -> str:
        """When it starts, in a few words."""
        words = describe(self.when)
        says_zone = self.policy.tz is None or isinstance(self.when, PureSchedule)
        return words if says_zone else f"{words} {zone_name(self.policy.tz)}"

    @property
    def definition(self) -> tuple[object, ...]:
        """If a part of it changes, the entry has to be loaded again."""
        return self.fingerprint, self.policy, self.tracked or self.astray, self.timing

    @property
    def is_to_ask(self) -> bool:
        """Whether it is polled, and hasn't been asked since it was loaded."""
        return self.polled and self._ask_at is None

    def is_in_force(self, fingerprint: str | None) -> bool:
        """Whether the store's ``fingerprint`` is that of this definition; None: the store has none.

        One that was set at run time has no zone's rules in the store until a beat has loaded it.
        """
        return fingerprint in (None, self.fingerprint, self.fingerprint.partition("~")[0])

    def load_request(self, beat: str, now: datetime, summary: str = "") -> LoadRequest:
        """Return the request by which ``beat`` loads it; ``summary`` is what readers are shown of it."""
        end_rules, delay, source = self.policy, self.timing.delay(now), self.source
        if end_rules.grace is not None and delay:  # it counts from when a message may run
            end_rules = replace(end_rules, grace=end_rules.grace + delay)
        return LoadRequest(
            entry=self.name,
            beat=beat,
            fingerprint=self.fingerprint,
            ttl=self.ttl(now),
            end_rules=end_rules,
            loaded_at=self.loaded_at,
            known=self.known,
            counted_from=self.counted_from,
            counts_from=self.counts_from or self.came_at or self.absent_at,
            absent_at=max(filter(None, (self.absent_at, self._ran_elsewhere())), default=None),
            stored=self.stored,
            defined=summary,
            row=getattr(source, "row", ""),
            row_at=getattr(source, "edited_at", None),
            pause=self.pause,
        )

    def _ran_elsewhere(self) -> datetime | None:
        """Up to where another scheduler has run it, by the source."""
        ran: datetime | None = getattr(self.source, "ran_elsewhere", None)
        return ran and ran + self.offset

    # -- what happens to it -----------------------------------------------------------------------------------

    def set_earlier(self, earlier: Sequence[Earlier]) -> None:
        """Set the definitions that this one replaced, oldest first."""
        self.earlier = earlier

    def apply_load(self, reply: Loaded) -> None:
        """Take over from where its definition counts: the store has it."""
        self.loaded_at, self.absent_at, self.came_at, self.pause = reply.loaded_at, None, None, ""
        if reply.news != "new" or self.since is None:  # else the store lost its data; what this beat knows counts
            self.since = reply.since
        self.counted_from = self.since

    def apply_superseded(self, reply: Superseded) -> None:
        """Note that another beat's definition counts; the entry is in a schedule all the same."""
        self.loaded_at = self.loaded_at or reply.loaded_at or 0
        self.absent_at = self.came_at = None

    def set_first_seen(self, at: datetime | None, absent_at: datetime | None) -> None:
        """Count its windows from ``at``, when it came into the schedule; None: from ``absent_at``, the sweep before."""
        self.came_at, self.absent_at = at, absent_at

    def set_source(self, source: Any) -> None:
        """Use another object that the base has made of the same entry."""
        self.source = source

    def set_since(self, since: datetime | None) -> None:
        """Let its definition count from ``since``; None: unknown."""
        self.since = since

    def copy_progress_from(self, old: BeatEntry) -> None:
        """Keep what the store said of ``old``, from which only the end rules differ."""
        self.loaded_at, self.known, self.since = old.loaded_at, old.known, old.since
        self.counted_from = old.counted_from
        self.absent_at, self.came_at, self.unanswered = old.absent_at, old.came_at, old.unanswered

    def mark_untracked(self) -> None:
        """Treat its windows as untracked from now on."""
        self.tracked, self.astray = False, True

    def count_refusal(self, now: float, most: float, *, again: bool) -> None:
        """Count a message that the broker refused: overdue windows wait, from a second up to ``most``.

        New ones (not ``again``) don't put off the next try.
        """
        if again or not self.refusals:
            self.refused_until = now + min(2.0 ** min(self.refusals, 30), most)
            self.refusals += 1

    def clear_refusals(self) -> None:
        """Forget refusals: the broker took a message."""
        self.refusals = 0

    def forget(self) -> None:
        """Its cursor isn't known any more."""
        self.cursor = self.next = self._backlog = self._ask_at = None
        self.out = False
        self.drop_plan()

    def drop_plan(self) -> None:
        """Plan again what is due."""
        self._plan = None

    def repeat(self, cursor: datetime, step: Step) -> None:
        """Its next claim is ``step`` once more, from ``cursor``."""
        self._plan = deque([step])
        self.unanswered = cursor, step

    # -- its windows ------------------------------------------------------------------------------------------

    def window(self, start: datetime, attempt: int = 1, *, tracked: bool | None = None) -> Window:
        """The window at ``start``; ``tracked``: None for as the entry is."""
        try:
            end = self.after(start)
        except ScheduleError:
            end = None  # the entry will rest for it; this window is claimed and has to run
        tracked = self.tracked if tracked is None else tracked
        return Window(self.name, start, end, attempt, tracked, lease=self.policy.lease, limit=self.policy.limit)

    def move(self, cursor: datetime) -> None:
        """Go on from ``cursor``; raises ScheduleError."""
        if self._plan and self._plan[0].start > cursor and self.cursor != cursor:
            self.drop_plan()  # another beat claimed: what was to be passed over is no longer the same
        while self._plan and self._plan[0].start <= cursor:
            self._plan.popleft()
        self._plan = self._plan or None
        if self._backlog is not None and not (self._backlog.move(cursor) and self._backlog):
            self._backlog = None
        try:
            start = self.after(cursor)
        except UndecidedError as exc:
            start = exc.asked + self.offset  # not before: then it is asked on
        else:
            self._check_apart(cursor, start)
        if self.polled and not self._is_spent(cursor):
            # A window that another beat began after this one had asked puts off the next question.
            later = max(cursor - self._planned_at, timedelta(0))
            start = cursor if self._ask_at is None else self._ask_at + later
        self.cursor = self.known = cursor
        self.unanswered = None
        self.next = start

    def _check_apart(self, cursor: datetime, start: datetime | None) -> None:
        if start is not None and start - cursor < _LEAST_APART:
            after = self._next(start)
            if after is not None and after - start < _LEAST_APART:
                raise ScheduleError(
                    f"{shown(self.when)} starts again {(after - start).microseconds} µs after a start, "
                    "expected at least 1 ms"
                )

    def step(self, now: datetime) -> Step | None:
        """What to claim next; None if nothing is due, or with ``searching`` not known yet. Raises ScheduleError."""
        assert self.cursor is not None
        if self.unanswered is None and abs(now - self._planned_at) > _PLAN_LASTS:
            self.drop_plan()
        if not self._plan and self.polled:
            self._plan, self._planned_at = self._poll(now), now
        elif not self._plan:
            self._backlog = self._backlog or Backlog(self.cursor)
            self.searching = self._search(self._backlog, now)
            steps = next_steps(self._backlog.starts, now, self.policy, begin=self._backlog.begin, more=self.searching)
            self._plan = deque(steps) if steps else None
            self._planned_at = now
        return self._plan[0] if self._plan else None

    def _poll(self, now: datetime) -> deque[Step] | None:
        """Ask a polled schedule whether it is due; if it is, plan a window that starts ``now``.

        Its last run is the cursor: the newest window of any beat. Two beats that find it due claim from the same
        cursor, so one of them wins, and both ask again when the answer said to. A beat that has just loaded the entry
        doesn't know what the others were told: it leaves the interval of the newest window to them.
        """
        assert self.cursor is not None
        if now <= self.cursor:  # another beat's clock is a little ahead
            self._ask_at = self.cursor + _LEAST_WAIT
            return None
        due, wait = _ask(self.when, self.cursor)
        first, self._ask_at = self._ask_at is None, now + wait
        if due and first and self.cursor != self.since and self.cursor + wait > now:
            due, self._ask_at = False, self.cursor + wait
        return deque([Step(now, True)]) if due else None

    def _search(self, backlog: Backlog, until: datetime) -> bool:
        """Look for starts up to ``until``, for a short time; returns whether there may be more."""
        if not backlog:
            self._beyond = None  # its schedule may say another thing by now
        began = time.monotonic()
        while True:
            try:
                start = self.after(backlog.newest)
            except UndecidedError as exc:
                return exc.asked + self.offset <= until
            if start is None or start > until:
                return False
            backlog.starts.append(start)
            if time.monotonic() - began > _SLICE:
                return True

    def starts(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the starts after ``after`` up to and including ``until``, as long as it takes. Raises ScheduleError."""
        while True:
            try:
                start = self.after(after)
            except UndecidedError as exc:
                if exc.asked + self.offset > until:
                    return
                continue
            if start is None or start > until:
                return
            self._check_apart(after, start)
            yield start
            after = start

    def after(self, start: datetime) -> datetime | None:
        """Return the entry's first start after ``start``; None where there is none, or it is polled.

        Raises ScheduleError.

        UndecidedError: there is none up to where the schedule was asked; the next call asks on.
        """
        if self.polled or self._is_spent(start):
            return None
        if self._beyond is None or self._beyond[0] != start:
            self._beyond = start, self._next(start)
        return self._beyond[1]

    def _is_spent(self, start: datetime) -> bool:
        """Whether a one-off has had its window by ``start``."""
        return self.one_off and self.since is not None and start > self.since

    def by(self, start: datetime) -> BeatEntry:
        """Return the entry by the definition that has the window at ``start``."""
        for old in self.earlier:
            if start <= old.until:
                return old.entry or self
        return self

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many starts there are after ``after`` up to ``until``, by the definitions of their times."""
        number = 0
        for old in self.earlier:
            if after < old.until:
                if old.entry is not None:
                    number += old.entry.count(after, min(until, old.until))
                after = min(until, old.until)
        offset = self.offset
        return number + count_starts(self.when, after - offset, until - offset, anchor=self.policy.anchor)

    def left_out(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, str]]:
        """Yield the instants after ``after`` up to ``until`` that its schedule leaves out, each with why, in order.

        Raises ScheduleError.
        """
        if isinstance(self.when, Composed):
            offset = self.offset
            for start, why in self.when.left_out(after - offset, until - offset):
                yield start + offset, why

    def _next(self, start: datetime) -> datetime | None:
        for old in self.earlier:
            if start < old.until:
                owed = old.next(start)
                if owed is not None:
                    return owed
                start = old.until
        asked = self._asked[1] if self._asked is not None and self._asked[0] == start else None
        try:
            with within_time():
                found = next_start(self.when, start - self.offset, anchor=self.policy.anchor, asked=asked)
            return None if found is None else found + self.offset
        except UndecidedError as exc:
            self._asked = start, exc.asked
            raise
        except TookTooLong as exc:
            raise ScheduleError(f"{describe(self.when)} can't say when it starts next: {exc}") from None
        except OverflowError:  # past the last datetime
            return None

    def ttl(self, now: datetime) -> float:
        """Seconds for which the store remembers the entry: 30 days, or three intervals if longer.

        Three years where it is polled: nobody knows its intervals.
        """
        if self.polled:
            return _THREE_YEARS
        if _starts_each_ten_days(self.when):
            return _THIRTY_DAYS
        try:
            first = self._next(now)
            second = first and self._next(first)
        except ScheduleError:
            return _THIRTY_DAYS  # advance() will say so
        if first is None:
            return _THIRTY_DAYS
        interval = max((second or first) - first, first - now)
        return max(_THIRTY_DAYS, 3 * interval.total_seconds())


def _refuse_untracked(name: str, source: Any, policy: EntryPolicy) -> None:
    """Raise SettingError where an untracked entry sets what takes the ends of its windows, which nobody learns."""
    once = (source.options or {}).get("once") or {}
    asked = {f"once[{key!r}]": once.get(key) for key in ALERT_OPTIONS}
    asked["once['overlap']"] = policy.overlap if policy.waits else None
    asked["once['limit']" if "limit" in once else "once_limit of its task"] = policy.limit
    for where, found in asked.items():
        if found is not None:
            raise SettingError(
                f"beat entry {name!r}, {where}: found {shown(found)} on an untracked entry, expected one whose windows "
                f"workers close: make its task {source.task!r} an OnceTask, let this beat's app know it, and don't set "
                "once['tracked'] to False"
            )


def _when(source: Any, policy: EntryPolicy) -> Any:
    return source.schedule if policy.tz is None else in_zone(source.schedule, policy.tz)


def _fingerprint_of(source: Any, policy: EntryPolicy, stored_fingerprint: str = "") -> str:
    when = _when(source, policy)
    return (stored_fingerprint or fingerprint(source.task, when, policy.anchor, policy.spread)) + zone_rules(when)


def _ask(when: Any, last: datetime) -> tuple[bool, timedelta]:
    """Ask a polled schedule that ran at ``last``: whether it is due, and how long to wait before it is asked again."""
    answer = when.is_due(last.astimezone(getattr(when, "tz", timezone.utc)))
    try:
        due, seconds = answer
        wait = _ANY_WAIT if seconds is None else timedelta(seconds=min(seconds, _MOST_WAIT.total_seconds()))
    except (TypeError, ValueError, OverflowError):  # ValueError: NaN
        raise ScheduleError(
            f"{shown(when)}, is_due: found {shown(answer)}, expected whether it is due, and seconds to wait"
        ) from None
    return bool(due), max(wait, _LEAST_WAIT)


def _starts_each_ten_days(when: Any) -> bool:
    """Whether that is plain to see, as of most; any other schedule has to be asked when it starts."""
    kind: Any = type(when)
    if kind is schedule:
        return bool(when.run_every < _TEN_DAYS)
    # On every date, so on each of its days of the week.
    return kind is crontab and len(when.month_of_year) == 12 and len(when.day_of_month) == 31  # noqa: PLR2004


class Entries:
    """All entries of one beat."""

    def __init__(
        self,
        beat: str,
        settings: Settings,
        tasks: Mapping[str, Any],
        *,
        eager: bool = False,
        queue_of: Callable[[str, Mapping[str, Any]], str | None] = lambda _task, _options: None,
    ) -> None:
        self._beat = beat
        #: Returns the queue of a task's messages, by its name and the entry's options.
        self._queue_of = queue_of
        #: What it said, by what it was asked.
        self._queues: dict[tuple[str, ...], str | None] = {}
        self._settings = settings
        self._tasks = tasks
        #: Under ``task_always_eager`` the body runs in beat, and no worker closes its window.
        self._eager = eager
        self._entries: dict[str, BeatEntry] = {}
        self._unloaded: set[BeatEntry] = set()
        # Names, not entries: they have an order of their own where instants are the same.
        self._heap: list[tuple[datetime, str]] = []
        self._due: deque[BeatEntry] = deque()
        #: When each rest ends, by ``clock.steady``.
        self._resting: list[tuple[float, str]] = []
        #: The names of what is paused, in the order in which they were asked for.
        self._paused: dict[str, None] = {}
        #: The names of what rests since it raised, or took too long.
        self._broken: set[str] = set()
        self._size = -1
        #: No cursor is later.
        self._newest = _BEGINNING
        #: How many are untracked.
        self.untracked = 0
        #: Tasks of on_failure that this app doesn't know, as it was logged.
        self._logged_on_failure: set[str] = set()
        self._logged_untracked: set[str] = set()
        #: Those that were set at run time; one of the schedule with the same name hides them.
        self._stored: dict[str, BeatEntry] = {}
        self._logged_hidden: set[str] = set()
        #: Entries of the schedule that are left out, and why.
        self._wrong: dict[str, str] = {}
        #: The same of those that were set at run time.
        self.wrong_stored: dict[str, str] = {}
        #: What readers are shown of entries, by all that it says: many say the same.
        self._summaries: dict[tuple[object, ...], str] = {}

    def leave_out(self, name: str, why: str) -> None:
        """Drop an entry that raises, for who only looks."""
        self._entries.pop(name, None)
        self._wrong[name] = why

    def left_out(self) -> dict[str, str]:
        """Return some of the entries that don't run, each with why: for people."""
        self._broken = {name for name in self._broken if (entry := self.get(name)) is not None and entry.trouble}
        broken = ((name, self._entries[name].trouble) for name in heapq.nsmallest(_MOST_NAMED, self._broken))
        wrong = ((name if isinstance(name, str) else shown(name), why) for name, why in self.wrong.items())
        says = self._settings.failure_text == "message"
        return {
            name[:MOST_FAILURE]: why[:MOST_FAILURE] if says else "its log says why"
            for name, why in islice(chain(broken, wrong), _MOST_NAMED)
        }

    @property
    def settings(self) -> Settings:
        """The app's."""
        return self._settings

    @property
    def wrong(self) -> dict[str, str]:
        """Entries that are left out, and why."""
        stored = {name: why for name, why in self.wrong_stored.items() if name not in self._entries}
        return {**stored, **self._wrong}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._entries)

    def __iter__(self) -> Iterator[BeatEntry]:
        """All entries, in the schedule's order."""
        return iter(self._entries.values())

    def get(self, name: str) -> BeatEntry | None:
        """The entry ``name``."""
        return self._entries.get(name)

    def summary(self, entry: BeatEntry) -> str:
        """Return what readers are shown of ``entry``; '' for one that was set at run time: the store has it."""
        if entry.stored:
            return ""
        source, policy, countdown = entry.source, entry.policy, entry.timing.countdown
        lease, queue = self.lease_of(entry), self._queue_name(source)
        said = (entry.fingerprint, entry.tracked, lease, countdown, queue)
        if said not in self._summaries:
            if len(self._summaries) >= _MOST_SUMMARIES:
                self._summaries.clear()
            definition = LoadedDefinition(
                task=source.task,
                schedule=entry.when,
                says=entry.words,
                tz=None if policy.tz is None else zone_name(policy.tz),
                lease=lease,
                tracked=entry.tracked,
                one_off=entry.one_off,
                anchor=policy.anchor,
                spread=policy.spread,
                countdown=countdown,
                queue=queue,
            )
            self._summaries[said] = definition.text()
        return self._summaries[said]

    def queue(self, entry: BeatEntry) -> str | None:
        """Return the queue into which an entry's messages go; None where that isn't known."""
        return self._queue_name(entry.source)

    def _queue_name(self, source: Any) -> str | None:
        options = source.options or {}
        routed = {name: options[name] for name in _ROUTED_BY if options.get(name) is not None} if options else {}
        asked = (source.task, *map(str, routed.items()))
        if asked not in self._queues:
            if len(self._queues) >= _MOST_SUMMARIES:
                self._queues.clear()
            self._queues[asked] = self._queue_of(source.task, routed)
        return self._queues[asked]

    def lease_of(self, entry: BeatEntry) -> float | None:
        """Return for how long an execution of ``entry`` owns its window without renewing, in seconds.

        None: this app doesn't know the task, which may have a lease of its own.
        """
        task = self._tasks.get(entry.source.task)
        default = None if task is None else self._settings.of_task("lease", task)
        lease: float | None = entry.policy.lease or default
        return lease

    def make_loaded(self, name: str, definition: LoadedDefinition, known: str) -> BeatEntry:
        """Return the entry ``name`` as a beat has loaded it, by what that said; ``known`` is its fingerprint.

        For who only looks: it has no arguments. Raises SettingError. The definition has to have a schedule.
        """
        once = {name: getattr(definition, name) for name in ("anchor", "tz", "spread", "tracked")}
        if definition.lease is not None:
            once["lease"] = definition.lease
        options: dict[str, Any] = {"once": once, "queue": definition.queue}
        source = SimpleNamespace(task=definition.task, schedule=definition.schedule, options=options)
        if definition.countdown is not None:
            options["countdown"] = definition.countdown
        return replace(self.make(name, source), fingerprint=known, one_off=definition.one_off)

    def leases(self) -> Iterator[tuple[str, float]]:
        """Yield who sets a lease, and its seconds: the app, tasks and entries."""
        yield "once_beat_lease", self._settings.lease
        for task in dict.fromkeys(entry.source.task for entry in self):
            with guard(lambda _: None, timed=False):  # it is no number, or a property raises
                if lease := float(getattr(self._tasks.get(task), "once_lease", None) or 0.0):
                    yield f"once_lease of {task}", lease
        for entry in self:
            if entry.policy.lease is not None:
                yield f"lease of {entry.name}", entry.policy.lease

    # -- the schedule -----------------------------------------------------------------------------------------

    def changed(self, schedule: Mapping[str, Any]) -> bool:
        """Whether the number of entries has changed since :meth:`refresh`."""
        return len(schedule) != self._size

    def refresh(self, schedule: Mapping[str, Any], absent_at: datetime | None = None) -> list[BeatEntry]:
        """Make the entries those of ``schedule``. One whose definition is the same continues where it is.

        ``absent_at`` (aware UTC) is when the last schedule was known to be still in force; None: there was none.
        Returns the entries that left.
        """
        kept, self._entries = self._entries, {}
        known, self._wrong = self._wrong, {}
        self._size = len(schedule)
        for name, source in list(schedule.items()):
            with guard(partial(self._leave_out, name, known.get(name))):
                entry = self.make(name, source)
                old = kept.get(name)
                if old is not None and old.definition == entry.definition:
                    old.source = source
                    entry = old
                elif old is not None and old.fingerprint == entry.fingerprint:
                    entry.copy_progress_from(old)
                elif old is None and entry.counts_from is None:
                    entry.absent_at = absent_at
                self._entries[name] = entry
                entry.out = False
        self._add_stored(schedule, kept)
        self._heap = [(entry.next, entry.name) for entry in self if entry.next]
        heapq.heapify(self._heap)
        self._due.clear()
        # A new definition has no reason to rest.
        self._resting = [(until, name) for until, name in self._resting if self.get(name) is kept.get(name)]
        heapq.heapify(self._resting)
        self._paused = {name: None for name in self._paused if self.get(name) is kept.get(name)}
        stopped = {name for _, name in self._resting} | self._paused.keys()
        self._unloaded = {entry for entry in self if entry.cursor is None and entry.name not in stopped}
        self._warn_of_untracked()
        return [entry for name, entry in kept.items() if name not in self._entries]

    # -- entries that were set at run time --------------------------------------------------------------------

    def put_in(self, entries: Sequence[BeatEntry]) -> None:
        """Take in entries that were set at run time; each replaces that of its old definition."""
        for entry in entries:
            name = entry.name
            self._stored[name] = entry
            old = self._entries.get(name)
            if old is not None and not old.stored:
                self._warn_hidden(name)
                continue
            if old is not None:
                if old.definition == entry.definition:  # it was paused, say
                    self._stored[name] = old
                    self.wake_up(name)
                    continue
                entry.copy_progress_from(old)
                self._leave(old)
            self._entries[name] = entry
            self.untracked += not entry.tracked
            self._unloaded.add(entry)
        self._name_untracked(entries)
        self._warn_of_unknown_on_failure(entries)

    def take_out(self, name: str) -> None:
        """Drop an entry that was set at run time."""
        self._stored.pop(name, None)
        old = self._entries.get(name)
        if old is not None and old.stored:
            del self._entries[name]
            self._leave(old)

    def _leave(self, old: BeatEntry) -> None:
        self.untracked -= not old.tracked
        old.forget()
        self._unloaded.discard(old)
        self._paused.pop(old.name, None)

    def _add_stored(self, schedule: Mapping[str, Any], kept: Mapping[str, BeatEntry]) -> None:
        """Add what was set at run time to the entries of ``schedule``, which go before it."""
        for name, entry in self._stored.items():
            if name in schedule:
                self._warn_hidden(name)
                continue
            if kept.get(name) is not entry:
                entry.forget()
            self._entries[name] = entry
            entry.out = False
            self._logged_hidden.discard(name)

    def _warn_hidden(self, name: str) -> None:
        if name not in self._logged_hidden:
            self._logged_hidden.add(name)
            logger.warning(
                "once: schedule %r doesn't run: this beat's own schedule has an entry of that name, which counts",
                name,
                extra=about("schedule_hidden", entry=name),
            )

    def make(self, name: str, source: Any, stored_fingerprint: str = "") -> BeatEntry:
        """Return a new entry; raises SettingError, or whatever a user's name, options or schedule raise.

        ``stored_fingerprint`` is that of an entry that was set at run time, as the store has it.
        """
        if not isinstance(name, str) or not 0 < len(name.encode()) <= _MAX_NAME:
            raise SettingError(f"expected a name of 1 to {_MAX_NAME} bytes")
        why = why_no_task(source.task)
        if why:
            raise SettingError(why)
        name = str.__str__(name)  # a subclass, an enum say, may write itself otherwise
        task: Any = self._tasks.get(source.task)
        if getattr(task, "once_closes_windows", False):
            task.check_scheduled()
        zone = getattr(getattr(source, "app", None), "timezone", timezone.utc)
        timing = Timing.of(name, source.options or {}, task, zone)
        is_cron = isinstance(source.schedule, (crontab, cron))
        policy = EntryPolicy.of(name, (source.options or {}).get("once"), task, self._settings, cron=is_cron)
        tracked = policy.tracked
        if tracked is None:
            tracked = getattr(task, "once_closes_windows", False) and not self._eager
        if not tracked and (self._beat or task is not None or policy.tracked is False):
            _refuse_untracked(name, source, policy)
        return BeatEntry(
            name,
            source,
            policy,
            _fingerprint_of(source, policy, stored_fingerprint),
            tracked,
            timing,
            spread_offset(name, policy.spread),
            one_off=bool(getattr(source.schedule, "one_off", False)),
            polled=is_polled(source.schedule),
            counts_from=getattr(source, "counts_from", None),
            stored=bool(stored_fingerprint),
        )

    def _leave_out(self, name: str, known: str | None, why: str) -> None:
        """Leave an entry of the schedule out; ``known`` is why it was before, which was logged."""
        self._wrong[name] = why
        if known != why:
            logger.error("once: entry %s is left out: %s", shown(name), why, extra=about("entry_wrong", entry=name))

    def _warn_of_untracked(self) -> None:
        self.untracked = sum(not entry.tracked for entry in self)
        self._name_untracked(self)
        self._warn_of_unknown_on_failure(self)

    def _name_untracked(self, entries: Iterable[BeatEntry]) -> None:
        # Why an entry went astray was logged then.
        names = {e.name for e in entries if not e.tracked and not e.astray and e.policy.tracked is None}
        new = names - self._logged_untracked
        self._logged_untracked |= names
        if new:
            logger.warning(
                "once: these entries are untracked, so a window lost after its publish isn't recovered: %s. Their "
                "tasks are no OnceTask (task_cls=OnceTask, or base=OnceTask on a task), or this beat's app doesn't "
                "know them. options={'once': {'tracked': False}} accepts it",
                ", ".join(sorted(map(repr, new))),
                extra=about("entries_untracked", entries=sorted(new)),
            )

    def _warn_of_unknown_on_failure(self, entries: Iterable[BeatEntry]) -> None:
        """Warn of tasks of ``on_failure`` that this app doesn't know: a worker has to."""
        for entry in entries:
            task = entry.policy.on_failure
            if task is not None and task not in self._tasks and task not in self._logged_on_failure:
                self._logged_on_failure.add(task)
                logger.warning(
                    "once: entry %r, on_failure: this app doesn't know the task %r; it is sent all the same, by the "
                    "app's routes, so a worker has to know it",
                    entry.name,
                    task,
                    extra=about("on_failure_unknown", entry=entry.name, task=task),
                )

    def adopt(self, entry: BeatEntry, source: Any) -> bool:
        """Use ``source`` from now on, since a base may make a new one at each access.

        Returns False if its definition is another.
        Options aren't compared: a value in them may be of the moment, or have no equality.
        """
        if entry.stored or source is entry.source:  # no base has one that is stored
            return True
        if source is None:
            return False
        new = self.make(entry.name, source)
        if new.timing.countdown == entry.timing.countdown:
            entry.timing = new.timing  # eta and expires are often of the moment
        if new.definition != entry.definition:
            return False
        entry.set_source(source)
        return True

    # -- which are due ----------------------------------------------------------------------------------------

    def due(self, now: datetime, most: int) -> list[BeatEntry]:
        """Take up to ``most`` entries that are due at ``now``, in this beat's own order.

        Each is given back by :meth:`advance`, :meth:`put`, :meth:`put_off` or :meth:`rest`.
        """
        fresh = []
        while self._heap and self._heap[0][0] <= now:
            start, name = heapq.heappop(self._heap)
            entry = self.get(name)
            if entry is not None and entry.next == start and not entry.out:
                entry.out = True
                fresh.append(entry)
        self._due.extend(sorted(fresh, key=self.order))
        found: list[BeatEntry] = []
        while self._due and len(found) < most:
            entry = self._due.popleft()
            if entry.out and entry.cursor is not None:
                found.append(entry)
            else:
                entry.out = False  # meanwhile it was given back, to be loaded again
        return found

    def order(self, entry: BeatEntry) -> bytes:
        """Where an entry stands among those that are due at once, in an order that differs from beat to beat."""
        return digest(f"{self._beat}\x00{entry.name}")

    def next_due(self) -> datetime | None:
        """When an entry is due: aware UTC, None if none will be. Those that rest are for the next sweep."""
        while self._due and not self._due[0].out:
            self._due.popleft()
        if self._due:
            return self._due[0].next
        return self._heap[0][0] if self._heap else None

    def put_off(self, entries: Sequence[BeatEntry]) -> None:
        """Give back entries for which there was no time: they come first at the next tick."""
        self._due.extendleft(reversed(entries))

    def put(self, entry: BeatEntry) -> None:
        """Give an entry back, to be due at its next start."""
        entry.out = False
        if entry.next is not None and self.get(entry.name) is entry:
            heapq.heappush(self._heap, (entry.next, entry.name))

    # -- cursors ----------------------------------------------------------------------------------------------

    def advance(self, entry: BeatEntry, cursor: datetime) -> None:
        """Move an entry to ``cursor`` and give it back, or let it rest where its schedule fails."""
        with self.alone(entry):
            entry.move(cursor)
            self._newest = max(self._newest, cursor)
            self._unloaded.discard(entry)
            self._paused.pop(entry.name, None)
            # After a claim met what it can't read, a load that works says nothing; nor of a schedule yet to be asked.
            if not entry.claim_failed and not entry.is_to_ask:
                if entry.trouble:
                    logger.info("once: entry %r continues", entry.name, extra=about("entry_goes_on", entry=entry.name))
                entry.trouble = ""
            self.put(entry)

    def continue_from(self, entry: BeatEntry, cursor: datetime) -> None:
        """Continue from the store's ``cursor``.

        A claim that wasn't answered and was carried out is repeated, from its old cursor. If it was this beat's, nobody
        else publishes an untracked window.
        """
        unanswered = entry.unanswered
        if unanswered is not None and unanswered[1].start <= cursor:
            self.advance(entry, unanswered[0])
            entry.repeat(*unanswered)
        else:
            self.advance(entry, cursor)

    def apply_claim(self, entry: BeatEntry, cursor: datetime) -> None:
        """Continue from ``cursor``: a claim was answered."""
        entry.claim_failed = False
        self.advance(entry, cursor)

    def claim_failed(self, entry: BeatEntry, error: OnceError) -> None:
        """A claim met a key that isn't ours: say so until one succeeds."""
        entry.claim_failed = True
        self.rest(entry, error, action="entry_unreadable")

    def claim_unanswered(self, entry: BeatEntry, cursor: datetime, step: Step) -> None:
        """A claim was sent and not answered: :meth:`doubt` has it repeated."""
        entry.unanswered = cursor, step
        self.put(entry)

    def beyond(self, until: datetime) -> list[BeatEntry]:
        """Entries whose cursor lies after ``until``; looks at none as long as no cursor was that late."""
        if self._newest <= until:
            return []
        cursors = {entry: entry.cursor for entry in self if entry.cursor is not None}
        self._newest = max(cursors.values(), default=_BEGINNING)
        return [entry for entry, cursor in cursors.items() if cursor > until]

    def unloaded(self) -> list[BeatEntry]:
        """Entries whose cursor this beat doesn't know, and that are neither paused nor resting."""
        return list(self._unloaded)

    def paused(self) -> list[BeatEntry]:
        """Entries that are paused, first those that were asked for longest ago."""
        return [entry for name in self._paused if (entry := self.get(name)) is not None]

    @property
    def still_unloaded(self) -> int:
        """How many these are."""
        return len(self._unloaded)

    @property
    def all_loaded(self) -> bool:
        """Whether there are none of these."""
        return not self._unloaded

    def reload(self, name: str) -> None:
        """Load one entry's cursor again."""
        entry = self.get(name)
        if entry is not None:
            entry.forget()
            self.wake_up(name)

    def doubt(self) -> None:
        """The store was away: plan again, and first ask for the claims that weren't answered."""
        for entry in self:
            entry.drop_plan()
            if entry.unanswered is not None:
                self.reload(entry.name)

    def restart(self) -> None:
        """Forget all cursors, so that they are loaded again: the store lost its data."""
        for entry in self:
            entry.forget()
        self._due.clear()
        self._heap.clear()
        self._resting.clear()
        self._paused.clear()
        self._unloaded = set(self)

    # -- pauses and rests -------------------------------------------------------------------------------------

    def pause(self, entry: BeatEntry) -> None:
        """Leave an entry alone that somebody has paused; said once."""
        words = f"it is paused, until somebody resumes it: celery once resume {printable(shlex.quote(entry.name))}"
        self._stop(entry, words, action="entry_paused", level=logging.INFO)
        self._paused[entry.name] = None

    def rest(
        self,
        entry: BeatEntry,
        reason: object,
        *,
        seconds: float = RETRY_AFTER,
        action: str = "entry_broken",
        level: int = logging.ERROR,
    ) -> None:
        """Let an entry that can't go on rest for ``seconds``; log the reason, once for as long as it lasts."""
        self._stop(entry, str(reason), action=action, level=level)
        heapq.heappush(self._resting, (steady() + seconds, entry.name))

    def _stop(self, entry: BeatEntry, trouble: str, *, action: str, level: int) -> None:
        if trouble and trouble != entry.trouble:
            logger.log(level, "once: entry %r: %s", entry.name, trouble, extra=about(action, entry=entry.name))
        entry.trouble = trouble
        self._broken.discard(entry.name)
        entry.forget()
        self._unloaded.discard(entry)
        self._paused.pop(entry.name, None)

    def alone(self, entry: BeatEntry) -> AbstractContextManager[None]:
        """Guard what asks an entry: whatever that raises, or if it takes too long, only this entry rests for it."""
        return guard(partial(self._leave_alone, entry))

    def _leave_alone(self, entry: BeatEntry, why: str) -> None:
        self.rest(entry, why)
        self._broken.add(entry.name)

    def wake(self, now: float) -> None:
        """End the rests that are over at ``now``, by ``clock.steady``."""
        while self._resting and self._resting[0][0] <= now:
            self.wake_up(heapq.heappop(self._resting)[1])

    def wake_up(self, name: str) -> None:
        """Have an entry loaded now that is paused or rests."""
        entry = self.get(name)
        if entry is not None and entry.cursor is None:
            self._paused.pop(name, None)
            self._unloaded.add(entry)
