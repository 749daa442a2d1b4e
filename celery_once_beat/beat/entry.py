"""One entry in a beat: its definition, its cursor, its next start.

An entry is made of one of the beat schedule, Celery's ``ScheduleEntry``: its *source*. Its cursor is the store's: every
window up to it is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from celery_once_beat.backoff import backoff_step
from celery_once_beat.errors import ScheduleError, UndecidedError
from celery_once_beat.rules import EntryPolicy, PureSchedule, Step, Timing, in_zone, zone_name
from celery_once_beat.schedules import describe
from celery_once_beat.store import Loaded, LoadRequest, Superseded
from celery_once_beat.windows import Window

from .plan import Plan, Polling
from .timetable import Timetable


class Refused(NamedTuple):
    """A broker that answers refuses an entry's messages."""

    #: How often in a row.
    number: int
    #: Until then, by ``clock.steady``, no overdue window of the entry is tried.
    until: float
    #: What the last publish raised.
    why: str


@dataclass(slots=True)
class Progress:
    """What is known of an entry, apart from its definition. It outlives a change of the end rules."""

    #: Server ms of this beat's first load, 0 before.
    loaded_at: int = 0
    #: The cursor from which the definition counts, by the store.
    since: datetime | None = None
    #: The last cursor, kept while the entry has to be loaded again.
    known: datetime | None = None
    #: The cursor and the step of a claim that was sent and not answered: it may have been carried out.
    unanswered: tuple[datetime, Step] | None = None
    #: When it came into the schedule, as exactly as the scheduler knows: it counts from there unless another beat had
    #: it earlier. None: ``absent_at``.
    came_at: datetime | None = None
    #: When this beat's schedule had no such entry: windows up to then don't count. None: it had it from the start, or
    #: the store knows.
    absent_at: datetime | None = None
    #: The pause that its load brings along, if the store has lost it, or a row's; see :class:`LoadRequest`.
    pause: str = ""


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
    timing: Timing
    #: When it starts.
    timetable: Timetable
    #: It was set at run time: the store has its definition, and the fingerprint is that of the store.
    stored: bool = False
    progress: Progress = field(default_factory=Progress)
    #: Every window up to it is claimed; None: it has to be loaded.
    cursor: datetime | None = None
    #: When it is due; None: it has no next start, or isn't loaded.
    next: datetime | None = None
    #: What is claimed next; None: nothing is planned.
    plan: Plan | None = None
    #: Why it can't continue, logged once; '' while it can.
    trouble: str = ""
    #: Its last claim met a key that isn't ours.
    unreadable: bool = False
    #: Its messages were found to lose their window's headers or task id.
    astray: bool = False
    refused: Refused | None = None

    # -- what it is -------------------------------------------------------------------------------------------

    #: Its schedule, in its own time zone if it sets one; see :class:`Timetable` for these.
    when = property(attrgetter("timetable.when"))
    offset = property(attrgetter("timetable.offset"))
    one_off = property(attrgetter("timetable.one_off"))
    #: See :class:`Progress`.
    since = property(attrgetter("progress.since"))

    @property
    def description(self) -> str:
        """When it starts, in a few words."""
        description = describe(self.when)
        names_zone = self.policy.tz is None or isinstance(self.when, PureSchedule)
        return description if names_zone else f"{description} {zone_name(self.policy.tz)}"

    @property
    def failure(self) -> str:
        """Why it doesn't run, for people; '' if it does. If the broker answers, its own arguments may be the reason."""
        return f"its messages can't be published: {self.refused.why}" if self.refused else self.trouble

    @property
    def definition(self) -> tuple[object, ...]:
        """If a part of it changes, the entry has to be loaded again."""
        return self.fingerprint, self.policy, self.tracked or self.astray, self.timing

    @property
    def counts_from(self) -> datetime | None:
        """From where a definition that is new to the store counts, by the source; None: from now."""
        return getattr(self.source, "counts_from", None)

    def is_in_force(self, fingerprint: str | None) -> bool:
        """Whether the store's ``fingerprint`` is that of this definition; None: the store has none.

        One that was set at run time has no zone's rules in the store until a beat has loaded it.
        """
        return fingerprint in (None, self.fingerprint, self.fingerprint.partition("~")[0])

    def as_of(self, start: datetime) -> BeatEntry:
        """Return the entry by the definition that has the window at ``start``."""
        for old in self.timetable.earlier:
            if start <= old.until:
                return old.entry or self
        return self

    def load_request(self, beat: str, now: datetime, summary: str = "") -> LoadRequest:
        """Return the request by which ``beat`` loads it; ``summary`` is what readers are shown of it."""
        policy, delay, source, known = self.policy, self.timing.delay(now), self.source, self.progress
        if policy.grace is not None and delay:  # it counts from when a message may run
            policy = replace(policy, grace=policy.grace + delay)
        ran_elsewhere = getattr(source, "ran_elsewhere", None)  # up to where another scheduler has run it
        absent_at = known.absent_at, ran_elsewhere and ran_elsewhere + self.offset
        return LoadRequest(
            entry=self.name,
            beat=beat,
            fingerprint=self.fingerprint,
            ttl=self.timetable.ttl(now),
            policy=policy,
            loaded_at=known.loaded_at,
            known=known.known,
            counted_from=known.since,
            counts_from=self.counts_from or known.came_at or known.absent_at,
            absent_at=max(filter(None, absent_at), default=None),
            stored=self.stored,
            defined=summary,
            row=getattr(source, "row", ""),
            row_at=getattr(source, "edited_at", None),
            pause=known.pause,
        )

    # -- what happens to it -----------------------------------------------------------------------------------

    def apply_load(self, reply: Loaded) -> None:
        """Note from where its definition counts, as the store says."""
        # If the store lost its data, what this beat knows counts.
        keep = self.since if reply.news == "new" else None
        known = self.progress
        self.progress = Progress(reply.loaded_at, keep or reply.since, known.known, known.unanswered, pause=reply.pause)

    def apply_superseded(self, reply: Superseded) -> None:
        """Note that another beat's definition counts. The entry isn't new any more: some beat has it."""
        self.progress.loaded_at = self.progress.loaded_at or reply.loaded_at or 0
        self.set_first_seen(None, None)

    def set_first_seen(self, at: datetime | None, absent_at: datetime | None) -> None:
        """Count its windows from ``at``, when it came into the schedule; None: from ``absent_at``, the sweep before."""
        self.progress.came_at, self.progress.absent_at = at, absent_at

    def set_source(self, source: Any) -> None:
        """Use another object that the base has made of the same entry."""
        self.source = source
        if self.policy.tz is None:  # else it was placed in its zone once, with what was read of files
            self.timetable.when = source.schedule

    def copy_progress_from(self, old: BeatEntry) -> None:
        """Take over the progress of ``old``, which differs in its end rules only."""
        self.progress = replace(old.progress)

    def mark_untracked(self) -> None:
        """Treat its windows as untracked from now on."""
        self.tracked, self.astray = False, True

    def count_refusal(self, now: float, most: float, why: str, *, again: bool) -> None:
        """Count a message that the broker refused, or may have: overdue windows wait, for a second up to ``most``.

        A window's first message (not ``again``) doesn't put off the next try.
        """
        number = self.refused.number if self.refused else 0
        if again or not number:
            self.refused = Refused(number + 1, now + backoff_step(1.0, most, number), why)

    def forget(self) -> None:
        """Its cursor isn't known any more."""
        self.cursor = self.next = self.plan = None

    # -- its windows ------------------------------------------------------------------------------------------

    @property
    def is_unasked(self) -> bool:
        """Whether it is polled, and hasn't been asked since it was loaded."""
        return self.timetable.polled and not (isinstance(self.plan, Polling) and self.plan.ask_at)

    @property
    def searching(self) -> bool:
        """Whether not all that is due has been found yet: the next :meth:`step` continues the search."""
        return self.plan is not None and self.plan.searching

    def window(self, start: datetime, attempt: int = 1, *, tracked: bool | None = None) -> Window:
        """The window at ``start``; ``tracked``: None for as the entry is."""
        try:
            end = self.after(start)
        except ScheduleError:
            end = None  # the entry will rest; this window is claimed and has to run
        tracked = self.tracked if tracked is None else tracked
        return Window(self.name, start, end, attempt, tracked, lease=self.policy.lease, limit=self.policy.limit)

    def move(self, cursor: datetime) -> None:
        """Continue from ``cursor``; raises ScheduleError."""
        if self.plan is not None and not self.plan.move(cursor):
            self.plan = None
        self.next = self._due_after(cursor)
        self.cursor = self.progress.known = cursor
        self.progress.unanswered = None

    def _due_after(self, cursor: datetime) -> datetime | None:
        if self.timetable.polled and not self._is_spent(cursor):
            return self.plan.next if isinstance(self.plan, Polling) else cursor
        try:
            start = self.after(cursor)
        except UndecidedError as exc:
            return exc.asked + self.timetable.offset  # not before: then it is asked on
        self.timetable.check_apart(cursor, start)
        return start

    def step(self, now: datetime) -> Step | None:
        """What to claim next; None if nothing is due, or with ``searching`` not known yet. Raises ScheduleError."""
        assert self.cursor is not None
        return self._planned(self.cursor).step(self, now)

    def repeat(self, cursor: datetime, step: Step) -> None:
        """Its next claim is ``step`` once more, from ``cursor``."""
        self._planned(cursor).repeat(step)
        self.progress.unanswered = cursor, step

    def _planned(self, cursor: datetime) -> Plan:
        if self.plan is None:
            self.plan = (Polling if self.timetable.polled else Plan)(cursor)
        return self.plan

    def after(self, start: datetime) -> datetime | None:
        """Return the entry's first start after ``start``; None where there is none, or it is polled.

        Raises ScheduleError. UndecidedError: there is none up to where the schedule was asked; the next call asks on.
        """
        return None if self._is_spent(start) else self.timetable.after(start)

    def _is_spent(self, start: datetime) -> bool:
        """Whether a one-off has had its window by ``start``."""
        since = self.progress.since
        return self.timetable.one_off and since is not None and start > since

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
            self.timetable.check_apart(after, start)
            yield start
            after = start


def placed(source: Any, policy: EntryPolicy) -> Any:
    """Return the schedule of a source, in the time zone that its policy sets."""
    return source.schedule if policy.tz is None else in_zone(source.schedule, policy.tz)
