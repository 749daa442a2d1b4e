"""All entries of one beat, and which of them are due.

A heap holds one next start of each entry, so a tick costs what is due, not what exists. An entry is in one of these
states:

======== ========================================================= ====================================================
state    what it is                                                how it leaves it
======== ========================================================= ====================================================
unloaded its cursor isn't known: it is new, or the store was away  a load answers: ``Entries.advance``
waiting  its next start is in the future                           the start has come: ``Entries.due``
out      it was due: its next claim is planned, sent or answered   ``Entries.advance``; ``requeue`` if nothing changed
paused   somebody has paused it: each load asks again              it is resumed: ``Entries.advance``
resting  it can't continue, ``trouble`` is why: superseded, its    after a while it is loaded anew: ``end_rests``
         schedule raises, its key is unreadable; or its cursor is
         in the future
spent    it has no next start                                      another definition
======== ========================================================= ====================================================

Besides, a claim may be ``unanswered``: it may have been carried out, and is repeated. An entry may be ``astray``: its
messages lose their window's headers, so it is untracked from then on. It may be ``refused``: the broker answers and
takes none of its messages, so overdue windows wait. When its schedule changes, or the store loses its data, an entry is
unloaded again.

All of it happens in the beat's own thread.
"""

from __future__ import annotations

import heapq
import logging
import math
import shlex
from collections import ChainMap, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from functools import partial
from itertools import chain, islice
from typing import Any

from celery_once_beat.clock import steady
from celery_once_beat.identity import digest
from celery_once_beat.logs import Logged, about, get_logger
from celery_once_beat.rules import Step
from celery_once_beat.wording import MOST_FAILURE, printable, shown

from .entry import BeatEntry
from .guard import guard
from .making import Alike, Making
from .part import BeatPart
from .sources import Changes, ScheduleSource, Source

logger = get_logger(__name__)

#: Seconds after which an entry that can't continue is tried again.
RETRY_AFTER = 30.0
_BEGINNING = datetime.min.replace(tzinfo=timezone.utc)
#: Most entries that a beat names, of those that don't run.
_MOST_NAMED = 20


class Entries(Making):
    """All entries of one beat."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scheduled = ScheduleSource(self)
        #: The further ones. Of all that have a name the first one counts.
        self.sources: list[Source] = []
        self._entries: dict[str, BeatEntry] = {}
        #: In the order in which they are to be loaded.
        self._unloaded: dict[BeatEntry, None] = {}
        # Names, not entries: a heap compares them where instants are equal.
        self._heap: list[tuple[datetime, str]] = []
        self._due: deque[BeatEntry] = deque()
        #: Given out by :meth:`due`, and not yet given back.
        self._out: set[BeatEntry] = set()
        #: When each rest ends, by ``clock.steady``.
        self._resting: list[tuple[float, str]] = []
        #: The names of what is paused, in the order in which they were asked for.
        self._paused: dict[str, None] = {}
        #: Names of entries that raised or took too long, or whose messages the broker refused; some may be fine by now.
        self.failing: set[str] = set()
        #: No cursor is later.
        self._newest = _BEGINNING
        #: How many are untracked.
        self.untracked = 0
        #: When what is left out is tried again, by ``clock.steady``.
        self._retry_at = steady() + RETRY_AFTER
        #: This beat's parts: the features', and the check of its setup.
        self.parts: Sequence[BeatPart] = ()
        self._logged = Logged(math.inf)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._entries)

    def __iter__(self) -> Iterator[BeatEntry]:
        """All entries, in the schedule's order."""
        return iter(self._entries.values())

    def get(self, name: str) -> BeatEntry | None:
        """The entry ``name``."""
        return self._entries.get(name)

    @property
    def wrong(self) -> dict[str, str]:
        """Entries that are left out, and why."""
        wrong = ChainMap(self.scheduled.wrong, *(source.wrong for source in self.sources))
        return {name: why for name, why in wrong.items() if name not in self._entries}

    def left_out(self) -> dict[str, str]:
        """Return some of the entries that don't run, each with why: for people."""
        failing = {entry.name: entry.failure for name in self.failing if (entry := self.get(name)) and entry.failure}
        self.failing = {*failing}
        first = heapq.nsmallest(_MOST_NAMED, failing.items())
        wrong = ((name if isinstance(name, str) else shown(name), why) for name, why in self.wrong.items())
        with_text = self.settings.failure_text == "message"
        return {
            name[:MOST_FAILURE]: why[:MOST_FAILURE] if with_text else "its log says why"
            for name, why in islice(chain(first, wrong), _MOST_NAMED)
        }

    def drop(self, name: str, why: str) -> None:
        """Leave out an entry that raises, in a process that only displays entries."""
        self._entries.pop(name, None)
        self.scheduled.entries.pop(name, None)
        self.scheduled.wrong[name] = why

    def leases(self) -> Iterator[tuple[str, float]]:
        """Yield who sets a lease, and its seconds: the app, tasks and entries."""
        yield "once_beat_lease", self.settings.lease
        for task in dict.fromkeys(entry.source.task for entry in self):
            with guard(lambda _: None, timed=False):  # it is no number, or a property raises
                if lease := float(getattr(self._tasks.get(task), "once_lease", None) or 0.0):
                    yield f"once_lease of {task}", lease
        for entry in self:
            if entry.policy.lease is not None:
                yield f"lease of {entry.name}", entry.policy.lease

    # -- sources ----------------------------------------------------------------------------------------------

    def changed(self, schedule: Mapping[str, Any]) -> bool:
        """Whether the number of entries has changed since :meth:`refresh`."""
        return len(schedule) != len(self.scheduled.entries) + len(self.scheduled.wrong)

    def refresh(self, schedule: Mapping[str, Any], absent_at: datetime | None = None) -> dict[str, str]:
        """Make the entries those of ``schedule``. One whose definition is the same continues where it is.

        ``absent_at`` (aware UTC) is when the last schedule was known to be still in force; None: there was none.
        Returns the entries that left and that the store has, name → fingerprint.
        """
        source = self.scheduled
        source.schedule, source.absent_at = schedule, absent_at
        left = self.apply(source, self._ask(source))
        others = {name: entry for name, entry in self._entries.items() if name not in source}
        self._entries = {**source.entries, **others}  # in the schedule's order
        self.untracked = sum(not entry.tracked for entry in self)  # some may have gone astray
        self._out.clear()
        self._due.clear()
        self._heap = [(entry.next, entry.name) for entry in self if entry.next]
        heapq.heapify(self._heap)
        return {entry.name: entry.fingerprint for entry in left if entry.progress.loaded_at}

    def retry_wrong(self, schedule: Mapping[str, Any]) -> None:
        """Try again, once in RETRY_AFTER seconds, what :meth:`refresh` has left out of ``schedule``."""
        source = self.scheduled
        if source.wrong and steady() >= self._retry_at:
            self._retry_at = steady() + RETRY_AFTER
            source.schedule = schedule
            self.apply(source, source.poll_wrong())

    def poll(self, source: Source) -> bool:
        """Put in force what a source finds; returns whether there is more. Raises StoreUnavailableError."""
        changes = self._ask(source)
        self.apply(source, changes)
        if changes.away is not None:
            raise changes.away
        return changes.more

    def _ask(self, source: Source) -> Changes:
        self._alike = Alike()
        try:
            return source.poll()
        finally:
            self._alike = None

    def apply(self, source: Source, changes: Changes) -> list[BeatEntry]:
        """Put in force what a source found; returns the entries that left and that no other source has."""
        for name in changes.gone:
            source.entries.pop(name, None)
        for entry in changes.made:
            source.entries[entry.name] = entry
            source.wrong.pop(entry.name, None)
        left = [
            old for name in changes.gone if (old := self._put_in_force(name)) is not None and self.get(name) is None
        ]
        for entry in changes.made:
            self._put_in_force(entry.name)
        self._warn_of_untracked(changes.made)
        for part in self.parts:
            part.on_made(changes.made)
        return left

    def _put_in_force(self, name: str) -> BeatEntry | None:
        """Put the entry in force that the first source has by this name; returns the one that was."""
        having = [source for source in (self.scheduled, *self.sources) if name in source]
        hidden = any(name in source.entries for source in having[1:])
        new = having[0].entries.get(name) if having else None
        old = self.get(name)
        if hidden and self._logged.is_new(("hidden", name)):
            text = "once: schedule %r doesn't run: this beat's own schedule has an entry of that name, which counts"
            logger.warning(text, name, extra=about("schedule_hidden", entry=name))
        elif not hidden:
            self._logged.end(("hidden", name))
        if old is not None and old is not new:
            del self._entries[name]
            self.untracked -= not old.tracked
            self._detach(old)
        if new is not None and old is not new:
            self.untracked += not new.tracked
            self._entries[name] = new
            self._unloaded[new] = None
        return old

    def _warn_of_untracked(self, entries: Iterable[BeatEntry]) -> None:
        # Why an entry is astray was logged when that was found.
        untracked = [e.name for e in entries if not e.tracked and not e.astray and e.policy.tracked is None]
        new = sorted(name for name in untracked if self._logged.is_new(("untracked", name)))
        if new:
            text = (
                "once: these entries are untracked, so a window lost after its publish isn't recovered: %s. Their "
                "tasks are no OnceTask (task_cls=OnceTask, or base=OnceTask on a task), or this beat's app doesn't "
                "know them. options={'once': {'tracked': False}} accepts it"
            )
            logger.warning(text, ", ".join(map(repr, new)), extra=about("entries_untracked", entries=new))

    # -- which are due ----------------------------------------------------------------------------------------

    def due(self, now: datetime, most: int) -> list[BeatEntry]:
        """Take out up to ``most`` entries that are due at ``now``, in this beat's own order.

        Each is out until :meth:`advance` or :meth:`requeue` gives it back, or it is stopped or forgotten.
        """
        fresh = []
        while self._heap and self._heap[0][0] <= now:
            start, name = heapq.heappop(self._heap)
            entry = self.get(name)
            if entry is not None and entry.next == start and entry not in self._out:
                self._out.add(entry)
                fresh.append(entry)
        self._due.extend(sorted(fresh, key=self.order))
        found: list[BeatEntry] = []
        while self._due and len(found) < most:
            entry = self._due.popleft()
            if entry in self._out:
                found.append(entry)
        return found

    def order(self, entry: BeatEntry) -> bytes:
        """The order of entries that are due at once: another one in each beat, so that they claim different ones."""
        return digest(f"{self._beat}\x00{entry.name}")

    def next_due(self) -> datetime | None:
        """When an entry is due: aware UTC, None if none will be. Those that rest are for the next sweep."""
        while self._due and self._due[0] not in self._out:
            self._due.popleft()
        if self._due:
            return self._due[0].next
        return self._heap[0][0] if self._heap else None

    def requeue_first(self, entries: Sequence[BeatEntry]) -> None:
        """Give back entries for which there was no time: they come first at the next tick."""
        self._due.extendleft(reversed(entries))

    def requeue(self, entry: BeatEntry) -> None:
        """Give an entry back, to be due at its next start."""
        self._out.discard(entry)
        if entry.next is not None and self.get(entry.name) is entry:
            heapq.heappush(self._heap, (entry.next, entry.name))

    # -- cursors ----------------------------------------------------------------------------------------------

    def advance(self, entry: BeatEntry, cursor: datetime) -> None:
        """Move an entry to ``cursor`` and give it back, or let it rest where its schedule fails."""
        with self.isolate(entry):
            entry.move(cursor)
            self._newest = max(self._newest, cursor)
            self._unloaded.pop(entry, None)
            self._paused.pop(entry.name, None)
            # A load doesn't clear the trouble of a claim that met a foreign key, nor that of a polled schedule.
            if not entry.unreadable and not entry.is_unasked:
                if entry.trouble:
                    logger.info("once: entry %r continues", entry.name, extra=about("entry_goes_on", entry=entry.name))
                entry.trouble = ""
            self.requeue(entry)

    def continue_from(self, entry: BeatEntry, cursor: datetime) -> None:
        """Continue from the store's ``cursor``.

        A claim that was carried out though no reply came is repeated from its old cursor: an untracked window that
        this beat claimed is published by nobody else.
        """
        unanswered = entry.progress.unanswered
        if unanswered is not None and unanswered[1].start <= cursor:
            self.advance(entry, unanswered[0])
            entry.repeat(*unanswered)
        else:
            self.advance(entry, cursor)

    def apply_claim(self, entry: BeatEntry, cursor: datetime) -> None:
        """Continue from ``cursor``: a claim was answered."""
        entry.unreadable = False
        self.advance(entry, cursor)

    def claim_unanswered(self, entry: BeatEntry, cursor: datetime, step: Step) -> None:
        """A claim was sent and not answered: :meth:`doubt` unloads the entry, and its next load repeats the claim."""
        entry.progress.unanswered = cursor, step
        self.requeue(entry)

    def beyond(self, until: datetime) -> list[BeatEntry]:
        """Entries whose cursor is after ``until``. Takes no time as long as no cursor was that late."""
        if self._newest <= until:
            return []
        cursors = {entry: entry.cursor for entry in self if entry.cursor is not None}
        self._newest = max(cursors.values(), default=_BEGINNING)
        return [entry for entry, cursor in cursors.items() if cursor > until]

    def unloaded(self) -> list[BeatEntry]:
        """Entries whose cursor this beat doesn't know, and that are neither paused nor resting."""
        return list(self._unloaded)

    def load_last(self, entry: BeatEntry) -> None:
        """Load an entry behind all others: its node of a cluster didn't answer, which mustn't use up their time."""
        if entry in self._unloaded:
            del self._unloaded[entry]
            self._unloaded[entry] = None

    def paused(self) -> list[BeatEntry]:
        """Entries that are paused, first those that were asked for longest ago."""
        return [entry for name in self._paused if (entry := self.get(name)) is not None]

    @property
    def all_loaded(self) -> bool:
        """Whether this beat knows the cursors of all that are neither paused nor resting."""
        return not self._unloaded

    def reload(self, name: str) -> None:
        """Load one entry's cursor again."""
        entry = self.get(name)
        if entry is not None:
            self._detach(entry)
            self._unloaded[entry] = None

    def doubt(self) -> None:
        """The store was away: plan again, and first ask for the claims that weren't answered."""
        for entry in self:
            if entry.plan is not None:
                entry.plan.drop()
            if entry.progress.unanswered is not None:
                self.reload(entry.name)

    def restart(self) -> None:
        """Forget all cursors, so that they are loaded again: the store lost its data."""
        for entry in self:
            entry.forget()
        self._out.clear()
        self._due.clear()
        self._heap.clear()
        self._resting.clear()
        self._paused.clear()
        self._unloaded = dict.fromkeys(self)

    def _detach(self, entry: BeatEntry) -> None:
        """Take an entry out of its state, whichever that is."""
        entry.forget()
        self._out.discard(entry)
        self._unloaded.pop(entry, None)
        self._paused.pop(entry.name, None)

    # -- pauses and rests -------------------------------------------------------------------------------------

    def pause(self, entry: BeatEntry) -> None:
        """Stop claiming an entry that somebody has paused; log it once."""
        trouble = f"it is paused, until somebody resumes it: celery once resume {printable(shlex.quote(entry.name))}"
        self._stop(entry, trouble, action="entry_paused", level=logging.INFO)
        self._paused[entry.name] = None

    def rest(
        self, entry: BeatEntry, reason: object = "", *, action: str = "entry_broken", level: int = logging.ERROR
    ) -> None:
        """Let an entry that can't continue rest for RETRY_AFTER; log the reason, once for as long as it lasts.

        '': another line of the log says why.
        """
        self._stop(entry, str(reason), action=action, level=level)
        heapq.heappush(self._resting, (steady() + RETRY_AFTER, entry.name))

    def _stop(self, entry: BeatEntry, trouble: str, *, action: str, level: int) -> None:
        if trouble and trouble != entry.trouble:
            logger.log(level, "once: entry %r: %s", entry.name, trouble, extra=about(action, entry=entry.name))
        entry.trouble = trouble
        if action == "entry_broken":
            self.failing.add(entry.name)
        elif entry.refused is None:
            self.failing.discard(entry.name)
        self._detach(entry)

    def isolate(self, entry: BeatEntry) -> AbstractContextManager[None]:
        """Guard what asks an entry: whatever that raises, or if it takes too long, only this entry rests for it."""
        return guard(partial(self.rest, entry))

    def end_rests(self, now: float) -> None:
        """End the rests that are over at ``now``, by ``clock.steady``."""
        while self._resting and self._resting[0][0] <= now:
            self.wake(heapq.heappop(self._resting)[1])

    def wake(self, name: str) -> None:
        """Have an entry loaded now that is paused or rests."""
        entry = self.get(name)
        if entry is not None and entry.cursor is None:
            self._paused.pop(name, None)
            self._unloaded[entry] = None
