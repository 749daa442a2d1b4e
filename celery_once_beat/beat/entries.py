"""What a beat knows of each entry, its row: its definition, its cursor, its next start; and which entries are due.

A row is made from an entry of the beat schedule; its cursor is the store's. The heap holds one next start a row,
so that a tick costs what is due, not what exists.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from celery.utils.log import get_logger

from celery_once_beat.errors import OnceError, ScheduleError, SettingError, UndecidedError
from celery_once_beat.logs import about
from celery_once_beat.rules import EntryPolicy, Step, Timing, fingerprint, next_steps, spread_offset
from celery_once_beat.settings import Settings
from celery_once_beat.windows import Window, next_start
from celery_once_beat.wording import shown

__all__ = ("Row", "Rows")

logger = get_logger(__name__)

#: Seconds after which a row that can't go on is looked at again.
RETRY_AFTER = 30.0
_THIRTY_DAYS = 30 * 86_400.0
_MAX_NAME = 64 * 1024
#: What starts more often, again and again, is a mistake: it would fill the queue, and never be worked off.
_LEAST_APART = timedelta(milliseconds=1)
_BEGINNING = datetime.min.replace(tzinfo=timezone.utc)
#: Seconds for which one entry's starts are looked for at a time: the others' turn comes between.
_SLICE = 0.05
#: A plan that is older is made anew: what was on time may be late by now.
_PLAN_LASTS = timedelta(seconds=5)


class Backlog:
    """The starts after a cursor that are due, as far as they have been looked for; each is looked for once."""

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


@dataclass(eq=False)
class Row:
    """One entry. ``cursor`` and ``next`` are aware UTC; a row without a cursor has to be loaded first."""

    name: str
    entry: Any
    policy: EntryPolicy
    fingerprint: str
    tracked: bool
    #: This beat's place for the row in a burst.
    order: int
    #: When its messages may run, and until when.
    timing: Timing = field(default_factory=Timing)
    #: By how much it starts later than its schedule says (``spread``).
    offset: timedelta = timedelta(0)
    cursor: datetime | None = None
    next: datetime | None = None
    #: The last cursor, kept while the row has to be loaded anew.
    known: datetime | None = None
    #: The cursor from which the definition counts, by the store.
    since: datetime | None = None
    #: Only the first window after ``since`` is one.
    one_off: bool = False
    #: From where a definition that is new to the store counts, by the entry; None for now.
    counts_from: datetime | None = None
    #: When this beat's schedule had no such entry: windows up to then don't count. None: it had it from the start, or
    #: the store knows.
    absent_at: datetime | None = None
    #: When it came into the schedule, as exactly as a base knows: it counts from there if no other beat had it by then.
    #: None: ``absent_at``.
    came_at: datetime | None = None
    #: Server ms of this beat's first load, 0 before.
    loaded_at: int = 0
    plan: deque[Step] = field(default_factory=deque)
    #: When the plan was made.
    planned_at: datetime = _BEGINNING
    backlog: Backlog | None = None
    #: What is due hasn't all been looked for yet: :meth:`step` says more when it is asked again.
    looking: bool = False
    #: The cursor and the step of a claim that was sent and not answered: it may have been carried out.
    unanswered: tuple[datetime, Step] | None = None
    #: Given out by :meth:`Rows.due`, and not yet given back.
    out: bool = False
    #: The last start that was looked beyond, and the one after it: a window, its end and the next are one question.
    beyond: tuple[datetime, datetime | None] | None = None
    #: Of a schedule that can only be asked again and again: the start that was looked beyond, and up to when.
    asked: tuple[datetime, datetime] | None = None
    #: Why it can't go on, said once; '' while it can.
    trouble: str = ""
    #: Its messages were found to lose their window's headers or task id: it is untracked since.
    astray: bool = False
    #: Its last claim met a key that isn't ours.
    claim_failed: bool = False
    #: How often a broker that answers has refused its messages, and until when, time.monotonic(), no overdue window of
    #: it is tried for that.
    refusals: int = 0
    refused_until: float = 0.0

    def refused(self, now: float, most: float, *, again: bool) -> None:
        """Note a refusal: overdue windows wait, from a second up to ``most``. New ones don't put off the next try."""
        if again or not self.refusals:
            self.refused_until = now + min(2.0 ** min(self.refusals, 30), most)
            self.refusals += 1

    @property
    def definition(self) -> tuple[object, ...]:
        """All that a beat has to load anew where it has changed."""
        return self.fingerprint, self.policy, self.tracked or self.astray, self.timing

    def go_astray(self) -> None:
        """Take its windows for untracked from now on."""
        self.tracked, self.astray = False, True

    def window(self, start: datetime, attempt: int = 1) -> Window:
        """The window at ``start``."""
        try:
            end = self.after(start)
        except ScheduleError:
            end = None  # the row will rest for it; this window is claimed and has to run
        return Window(self.name, start, end, attempt=attempt, tracked=self.tracked)

    def move(self, cursor: datetime) -> None:
        """Go on from ``cursor``; raises ScheduleError."""
        if self.plan and self.plan[0].start > cursor and self.cursor != cursor:
            self.plan.clear()  # another beat claimed: what was to be passed over is no longer the same
        while self.plan and self.plan[0].start <= cursor:
            self.plan.popleft()
        if self.backlog is not None and not self.backlog.move(cursor):
            self.backlog = None
        try:
            start = self.after(cursor)
        except UndecidedError as exc:
            start = exc.asked + self.offset  # not before: then it is asked on
        else:
            self._check_apart(cursor, start)
        self.cursor = self.known = cursor
        self.unanswered = None
        self.next = start

    def _check_apart(self, cursor: datetime, start: datetime | None) -> None:
        if start is not None and start - cursor < _LEAST_APART:
            after = self._next(start)
            if after is not None and after - start < _LEAST_APART:
                raise ScheduleError(
                    f"{shown(self.entry.schedule)} starts again {(after - start).microseconds} µs after a start, "
                    "expected at least 1 ms"
                )

    def step(self, now: datetime) -> Step | None:
        """What to claim next; None if nothing is due, or with ``looking`` not known yet. Raises ScheduleError."""
        assert self.cursor is not None
        if self.unanswered is None and abs(now - self.planned_at) > _PLAN_LASTS:
            self.plan.clear()
        if not self.plan:
            self.backlog = self.backlog or Backlog(self.cursor)
            self.looking = self._look(self.backlog, now)
            steps = next_steps(self.backlog.starts, now, self.policy, begin=self.backlog.begin, more=self.looking)
            self.plan.extend(steps)
            self.planned_at = now
        return self.plan[0] if self.plan else None

    def _look(self, backlog: Backlog, until: datetime) -> bool:
        """Look for starts up to ``until``, for a short time; returns whether there may be more."""
        if not backlog:
            self.beyond = None  # its schedule may say another thing by now
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
        """Return the entry's first start after ``start``; None where there is none. Raises ScheduleError.

        UndecidedError: it is none of a time for which the schedule was asked; the next call asks on.
        """
        if self.one_off and self.since is not None and start > self.since:
            return None
        if self.beyond is None or self.beyond[0] != start:
            self.beyond = start, self._next(start)
        return self.beyond[1]

    def _next(self, start: datetime) -> datetime | None:
        asked = self.asked[1] if self.asked is not None and self.asked[0] == start else None
        try:
            found = next_start(self.entry.schedule, start - self.offset, anchor=self.policy.anchor, asked=asked)
            return None if found is None else found + self.offset
        except UndecidedError as exc:
            self.asked = start, exc.asked
            raise
        except OverflowError:  # past the last datetime
            return None

    def ttl(self, now: datetime) -> float:
        """Seconds for which the store remembers the entry: 30 days, or three intervals if longer."""
        try:
            first = self._next(now)
            second = first and self._next(first)
        except ScheduleError:
            return _THIRTY_DAYS  # advance() will say so
        if first is None:
            return _THIRTY_DAYS
        interval = max((second or first) - first, first - now)
        return max(_THIRTY_DAYS, 3 * interval.total_seconds())


def _check_names(entry: Any, task: Any) -> None:
    if not isinstance(entry, str) or not 0 < len(entry.encode()) <= _MAX_NAME:
        raise SettingError(f"expected a name of 1 to {_MAX_NAME} bytes")
    if not isinstance(task, str) or not task:
        raise SettingError(f"task: found {shown(task)}, expected the name of a task")


class Rows:
    """All rows of one beat."""

    def __init__(self, beat: str, settings: Settings, tasks: Mapping[str, Any], *, eager: bool = False) -> None:
        self._beat = beat
        self._settings = settings
        self._tasks = tasks
        #: Under ``task_always_eager`` the body runs in beat, and no worker closes its window.
        self._eager = eager
        self._rows: dict[str, Row] = {}
        self._unloaded: set[Row] = set()
        # Names, not rows: they have an order of their own where instants are the same.
        self._heap: list[tuple[datetime, str]] = []
        self._due: deque[Row] = deque()
        self._resting: list[tuple[datetime, str]] = []
        self._size = -1
        #: No cursor is later.
        self._newest = _BEGINNING
        #: How many of the rows are untracked.
        self.untracked = 0
        self._named_untracked: set[str] = set()
        self._named_wrong: dict[str, str] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._rows)

    @property
    def tasks(self) -> set[str]:
        """Names of the tasks that the entries send."""
        return {row.entry.task for row in self._rows.values()}

    def __iter__(self) -> Iterator[Row]:
        """All rows, in the schedule's order."""
        return iter(self._rows.values())

    @property
    def wrong(self) -> dict[str, str]:
        """Entries that are left out, and why."""
        return dict(self._named_wrong)

    def get(self, name: str) -> Row | None:
        """The row of the entry ``name``."""
        return self._rows.get(name)

    def changed(self, schedule: Mapping[str, Any]) -> bool:
        """Whether entries came or went since :meth:`refresh`, as far as a count shows it."""
        return len(schedule) != self._size

    def refresh(self, schedule: Mapping[str, Any], absent_at: datetime | None = None) -> list[Row]:
        """Make the rows those of ``schedule``. One whose definition is the same goes on where it is.

        ``absent_at`` (aware UTC) is when the last schedule was known to be still in force; None: there was none.
        Returns the rows that left.
        """
        kept = self._rows
        self._rows = {}
        self._size = len(schedule)
        for name, entry in list(schedule.items()):
            row = self._make_or_name(name, entry)
            if row is None:
                continue
            old = kept.get(name)
            if old is not None and old.definition == row.definition:
                old.entry = entry
                row = old
            elif old is not None and old.fingerprint == row.fingerprint:
                # Only its limits are others.
                row.loaded_at, row.known, row.since = old.loaded_at, old.known, old.since
                row.absent_at, row.came_at, row.unanswered = old.absent_at, old.came_at, old.unanswered
            elif old is None and row.counts_from is None:
                row.absent_at = absent_at
            self._rows[name] = row
            row.out = False
        self._heap = [(row.next, row.name) for row in self._rows.values() if row.next]
        heapq.heapify(self._heap)
        self._due.clear()
        # A definition that is new here hasn't anything to rest for.
        self._resting = [(until, name) for until, name in self._resting if self._rows.get(name) is kept.get(name)]
        heapq.heapify(self._resting)
        resting = {name for _, name in self._resting}
        self._unloaded = {row for row in self._rows.values() if row.cursor is None and row.name not in resting}
        self._name_untracked()
        return [row for name, row in kept.items() if name not in self._rows]

    def make(self, name: str, entry: Any) -> Row:
        """Return a new row; raises SettingError, or whatever a stranger's name, options or schedule raise."""
        _check_names(name, entry.task)
        name = str.__str__(name)  # without what a subclass, an enum say, makes of it elsewhere
        task = self._tasks.get(entry.task)
        zone = getattr(getattr(entry, "app", None), "timezone", timezone.utc)
        timing = Timing.of(name, entry.options or {}, task, zone)
        policy = EntryPolicy.of(name, (entry.options or {}).get("once"), task, self._settings)
        tracked = policy.tracked
        if tracked is None:
            tracked = getattr(task, "once_closes_windows", False) and not self._eager
        mark = fingerprint(entry.task, entry.schedule, policy.anchor, policy.spread)
        order = int.from_bytes(hashlib.blake2b(f"{self._beat}\x00{name}".encode(), digest_size=8).digest(), "big")
        row = Row(name, entry, policy, mark, tracked, order, timing, spread_offset(name, policy.spread))
        row.one_off = bool(getattr(entry.schedule, "one_off", False))
        row.counts_from = getattr(entry, "counts_from", None)
        return row

    def _make_or_name(self, name: str, entry: Any) -> Row | None:
        try:
            row = self.make(name, entry)
        except Exception as exc:  # noqa: BLE001  # one wrong entry must not stop the others
            why = str(exc) if isinstance(exc, OnceError) else shown(exc)
            if self._named_wrong.get(name) != why:
                self._named_wrong[name] = why
                logger.error("once: entry %s is left out: %s", shown(name), why, extra=about("entry_wrong", entry=name))
            return None
        self._named_wrong.pop(name, None)
        return row

    def _name_untracked(self) -> None:
        self.untracked = sum(not row.tracked for row in self._rows.values())
        # Of those that went astray it has been said why.
        untracked = [row for row in self._rows.values() if not row.tracked and not row.astray]
        names = {row.name for row in untracked if row.policy.tracked is None}
        new = names - self._named_untracked
        self._named_untracked |= names
        if new:
            logger.warning(
                "once: untracked, a window that is lost after its publish isn't recovered: %s. Their tasks are no "
                "OnceTask (task_cls=OnceTask, or base=OnceTask on a task), or this beat's app doesn't know them; "
                "options={'once': {'tracked': False}} accepts it",
                ", ".join(sorted(map(repr, new))),
                extra=about("entries_untracked", entries=sorted(new)),
            )

    # -- which are due ----------------------------------------------------------------------------------------

    def unloaded(self) -> list[Row]:
        """Rows whose cursor this beat doesn't know and that aren't resting."""
        return list(self._unloaded)

    def due(self, now: datetime, most: int) -> list[Row]:
        """Take up to ``most`` rows that are due at ``now``, in this beat's own order; give them back by :meth:`put`."""
        fresh = []
        while self._heap and self._heap[0][0] <= now:
            start, name = heapq.heappop(self._heap)
            row = self._rows.get(name)
            if row is not None and row.next == start and not row.out:
                row.out = True
                fresh.append(row)
        if fresh:
            self._due.extend(sorted(fresh, key=lambda row: row.order))
        found: list[Row] = []
        while self._due and len(found) < most:
            row = self._due.popleft()
            if row.out and row.cursor is not None:
                found.append(row)
            else:
                row.out = False  # it was given back meanwhile, to be loaded anew
        return found

    def put_off(self, rows: Sequence[Row]) -> None:
        """Give back rows for which there was no time: they come first at the next tick."""
        self._due.extendleft(reversed(rows))

    def adopt(self, row: Row, entry: Any) -> bool:
        """Take ``entry`` as the row's, where a base makes a new one at each access; False if it says another thing."""
        if entry is row.entry:
            return True
        same = (
            entry is not None
            and (entry.options or {}) == (row.entry.options or {})
            and fingerprint(entry.task, entry.schedule, row.policy.anchor, row.policy.spread) == row.fingerprint
        )
        if same:
            row.entry = entry
        return same

    def put(self, row: Row) -> None:
        """Give a row back, to be due at its next start."""
        row.out = False
        if row.next is not None and self._current(row):
            heapq.heappush(self._heap, (row.next, row.name))

    def rest(
        self,
        row: Row,
        now: datetime,
        seconds: float,
        reason: object,
        *,
        action: str = "entry_broken",
        level: int = logging.ERROR,
    ) -> None:
        """Look at a row that can't go on again after ``seconds``, from the store's cursor on; say why, once."""
        trouble = str(reason)
        if trouble != row.trouble:
            logger.log(level, "once: entry %r: %s", row.name, trouble, extra=about(action, entry=row.name))
        row.trouble = trouble
        row.cursor = row.next = row.backlog = None
        row.plan.clear()
        row.out = False
        self._unloaded.discard(row)
        heapq.heappush(self._resting, (now + timedelta(seconds=seconds), row.name))

    @contextmanager
    def alone(self, row: Row, now: datetime) -> Iterator[None]:
        """Ask a row something: whatever its entry raises is its trouble alone, and it rests for it."""
        try:
            yield
        except Exception as exc:  # noqa: BLE001  # a stranger's options, schedule or zone
            self.rest(row, now, RETRY_AFTER, exc if isinstance(exc, OnceError) else shown(exc))

    def _say_it_goes_on(self, row: Row) -> None:
        # Where a claim met what it can't read, that the entry could be loaded says nothing.
        if row.claim_failed:
            return
        if row.trouble:
            logger.info("once: entry %r goes on", row.name, extra=about("entry_goes_on", entry=row.name))
        row.trouble = ""

    def wake(self, now: datetime) -> None:
        """End the rest of rows whose time has come."""
        while self._resting and self._resting[0][0] <= now:
            self.wake_up(heapq.heappop(self._resting)[1])

    def reload(self, name: str) -> None:
        """Have one row's cursor loaded anew."""
        row = self._rows.get(name)
        if row is not None:
            self._forget(row)
            self._unloaded.add(row)

    def _forget(self, row: Row) -> None:
        row.cursor = row.next = None
        row.plan.clear()
        row.out = False

    def doubt(self) -> None:
        """The store was away: judge what is due anew, and ask first what became of claims that weren't answered."""
        for row in self._rows.values():
            row.plan.clear()
            if row.unanswered is not None:
                self.reload(row.name)

    def wake_up(self, name: str) -> None:
        """End the rest of one row before its time."""
        row = self._rows.get(name)
        if row is not None and row.cursor is None:
            self._unloaded.add(row)

    def next_due(self) -> datetime | None:
        """When a row is due: aware UTC, None if none will be. Rows that rest are for the next look."""
        while self._due and not self._due[0].out:
            self._due.popleft()
        if self._due:
            return self._due[0].next
        return self._heap[0][0] if self._heap else None

    def _current(self, row: Row) -> bool:
        return self._rows.get(row.name) is row

    def restart(self) -> None:
        """Forget all cursors, so that they are loaded anew: the store lost its data."""
        for row in self._rows.values():
            self._forget(row)
        self._due.clear()
        self._heap.clear()
        self._resting.clear()
        self._unloaded = set(self._rows.values())

    def advance(self, row: Row, cursor: datetime, now: datetime) -> None:
        """Move a row to ``cursor`` and give it back, or let it rest where its schedule fails."""
        try:
            row.move(cursor)
        except ScheduleError as exc:
            self.rest(row, now, RETRY_AFTER, exc)
        else:
            self._newest = max(self._newest, cursor)
            self._unloaded.discard(row)
            self._say_it_goes_on(row)
            self.put(row)

    def beyond(self, until: datetime) -> list[Row]:
        """Rows whose cursor lies after ``until``; looks at none as long as no cursor was that late."""
        if self._newest <= until:
            return []
        self._newest = max((row.cursor for row in self._rows.values() if row.cursor is not None), default=_BEGINNING)
        return [row for row in self._rows.values() if row.cursor is not None and row.cursor > until]
