"""Entries that people set at run time: a beat reads what changed since its last sweep.

The store counts the changes of each shard. A sweep finds the names that changed since the number that the beat knows;
that number comes with them, unless the store has lost it: then the shard is read anew. It is read anew as well, a
shard at a time, every few minutes: so a beat sees what a failover lost or brought back, however long it was frozen.

What a beat doesn't know yet can do no harm: the store refuses its loads, claims and takes, see ``store``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_once_beat.beat.entries import Entries
from celery_once_beat.beat.entry import BeatEntry
from celery_once_beat.beat.guard import guard
from celery_once_beat.beat.part import BeatPart
from celery_once_beat.beat.schedule import LoadedSchedule, silence
from celery_once_beat.beat.sources import Changes, Source
from celery_once_beat.beat.timetable import Earlier, log_earlier
from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.logs import about, get_logger
from celery_once_beat.schedules import Definition
from celery_once_beat.store import SHARDS, BeatReport, Overdue, Store, raised
from celery_once_beat.windows import WindowKey, format_instant
from celery_once_beat.wording import some

from . import store as definitions
from .store import StoredDefinition

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Definitions that are read in one pipeline.
_CHUNK = 500
#: Seconds of a sweep for reading them.
_READING = 1.0
#: Seconds after which a shard is read anew.
_ANEW = 300.0
#: Most names in one line.
_MOST_NAMED = 10
#: An entry is forgotten after so long: by then no window is owed by an earlier definition.
_OWED_FOR = timedelta(days=30)


def make_defined(
    entries: Entries, app: Celery, known: StoredDefinition, changes: Sequence[definitions.ChangeRecord] = ()
) -> BeatEntry:
    """Return the entry of a definition that the store has; ``changes`` are its last, newest first.

    Raises StoreDataError or NewerVersionError where it can't be read, SettingError where its options are wrong.
    """

    def make(text: str) -> BeatEntry:
        return entries.make_stored(app, known.name, Definition.read(known.name, text), known.at, known.fingerprint)

    def make_earlier(text: str) -> BeatEntry | None:
        if not text:  # there was none
            return None
        with guard(partial(log_earlier, known.name, "can't be read")):  # what it owed is its own trouble
            return make(text)
        return None

    entry = make(known.text)
    if known.deleted:
        # As the store has it, without a zone's rules: no beat loads a deleted one.
        entry = replace(entry, fingerprint=known.fingerprint)
    if not changes:
        return entry
    since = datetime.now(timezone.utc) - _OWED_FOR
    replaced = [change for change in reversed(changes) if change.what in ("set", "delete") and change.at > since]
    if replaced and not replaced[0].replaced:
        del replaced[0]  # the first one may count from before it was set: from where another scheduler stopped
    # So may the present one: the others end there.
    entry.timetable.earlier = [
        Earlier(min(change.at, known.since), partial(make_earlier, change.replaced)) for change in replaced
    ]
    return entry


class Defined(Source):
    """Reads the entries that were set at run time."""

    noun, action = "schedule", "schedule_unreadable"

    def __init__(self, store: Store, entries: Entries, app: Celery) -> None:
        super().__init__(entries)
        entries.sources.append(self)
        self._store = store
        self._app = app
        #: The replies to :meth:`ask`, which the next poll reads.
        self.replies: Sequence[Any] = ()
        #: For each shard the number of the last change that is known; 0: the shard is read anew.
        self._numbers = [0] * SHARDS
        #: For each shard its names, each with the number of its last change.
        self._known: list[dict[str, int]] = [{} for _ in range(SHARDS)]
        #: For each shard the last change that was known when it was asked: for later ones; 0 asks for all.
        self._asked = [0] * SHARDS
        #: When each shard was read anew last (``clock.steady``).
        self._anew_at = [-math.inf] * SHARDS
        #: What has changed and isn't read yet.
        self._to_read: dict[str, None] = {}
        #: All has been read once.
        self._begun = False

    @property
    def all_read(self) -> bool:
        """Whether all that changed up to the last sweep is read."""
        return not self._to_read and min(self._anew_at) > -math.inf

    def ask(self) -> list[tuple[Any, ...]]:
        """Return the commands that ask for what has changed."""
        now = steady()
        asked = [0 if now - anew > 2 * _ANEW else self._numbers[shard] for shard, anew in enumerate(self._anew_at)]
        oldest = min(range(SHARDS), key=self._anew_at.__getitem__)
        if now - self._anew_at[oldest] > _ANEW:
            asked[oldest] = 0
        self._asked = asked
        return definitions.ask_changed(self._store, asked)

    def sweep(self) -> None:
        """Ask and read all that has changed, as long as that takes; raises StoreUnavailableError. No beat does it."""
        self.replies = self._store.trip.read(self.ask())
        self._all.poll(self)
        while self._to_read:
            self._all.poll(self)

    def poll(self) -> Changes:
        """Read what changed, by the replies to :meth:`ask`; what there is no time for is left to the next poll."""
        made: list[BeatEntry] = []
        gone: list[str] = []
        away = None
        try:
            replies, self.replies = self.replies, ()
            gone += self._note(self._readable(replies))
            away = self._read(made, gone)
        except StoreUnavailableError as exc:
            away = exc
        return Changes(made, gone, more=not self.all_read, away=away)

    def _readable(self, replies: Sequence[Any]) -> dict[int, dict[str, int]]:
        """Return for each shard its names, with the numbers of their last changes."""
        readable: dict[int, dict[str, int]] = {}
        for shard, names in enumerate(map(definitions.read_numbers, replies)):
            if isinstance(names, OnceError):
                if not isinstance(names, StoreUnavailableError):  # the sweep says that
                    self.leave_out(f"shard {shard}", str(names))
                continue
            self.wrong.pop(f"shard {shard}", None)
            readable[shard] = names
        return readable

    def _note(self, found: Mapping[int, dict[str, int]]) -> list[str]:
        """Note what is to be read; return what is gone."""
        left: list[str] = []
        asked = self._asked
        moved = {shard: asked[shard] for shard, names in found.items() if 0 < asked[shard] < names.get("", 0)}
        # Asked after the names: what is deleted in between is seen here, and once more at the next sweep.
        gone = dict(zip(moved, definitions.deleted_since(self._store, moved), strict=True))
        missing = [self._known[shard].keys() - names.keys() for shard, names in found.items() if not asked[shard]]
        lost = self._without_trace([*itertools.chain.from_iterable(missing)])
        now = steady()
        for shard, names in found.items():
            last, deleted = names.get("", 0), gone.get(shard, {})
            if isinstance(deleted, OnceError):
                continue  # asked again at the next sweep
            known = self._known[shard]
            if last < asked[shard]:
                if known:
                    self._begin_anew()
                    return left
                self._numbers[shard], self._anew_at[shard] = 0, -math.inf  # it expires once no name is left
                continue
            for name in deleted if asked[shard] else known.keys() - names.keys():
                if known.pop(name, None) is not None:
                    self._drop(name, lost=name in lost)
                    left.append(name)
            for name, number in names.items():
                if name and known.get(name) != number:
                    known[name] = number
                    self._to_read[name] = None
            self._numbers[shard] = last
            if not asked[shard]:
                self._anew_at[shard] = now
        self._log_lost(lost)
        return left

    def _begin_anew(self) -> None:
        """The store has lost what this beat knows, of this shard and perhaps of others: read all of them anew."""
        self._numbers, self._anew_at = [0] * SHARDS, [-math.inf] * SHARDS
        logger.warning(
            "once: Redis has lost changes of schedules that this beat knows, by a failover or without its data: all "
            "schedules are read anew",
            extra=about("schedules_lost"),
        )

    def _without_trace(self, names: Sequence[str]) -> set[str]:
        """Return those of which the store has no definition, not even a deleted one; raises StoreUnavailableError."""
        found = definitions.read_definitions(self._store, names)
        return {name for name, each in zip(names, found, strict=True) if each is None}

    def _log_lost(self, names: Collection[str]) -> None:
        if names:
            lost = sorted(names)
            logger.error(
                "once: Redis has lost %d of the schedules that were set at run time: %s. They don't run until they "
                "are set again",
                len(lost),
                some([*map(repr, lost)], _MOST_NAMED),
                extra=about("schedules_lost", entries=lost[:_MOST_NAMED]),
            )

    def _drop(self, name: str, *, lost: bool) -> None:
        for known in (self._to_read, self.wrong, self.entries):
            known.pop(name, None)
        if not lost:
            logger.info("once: schedule %r is deleted", name, extra=about("schedule_deleted", entry=name))

    def _read(self, made: list[BeatEntry], gone: list[str]) -> StoreUnavailableError | None:
        """Read what has changed, for a while; add what is ``made`` of it, and what is ``gone``.

        Returns why some of it can't be read: a node of a cluster is away. It is read later.
        """
        until = steady() + _READING
        left = list(self._to_read)
        away: StoreUnavailableError | None = None
        for position in range(0, len(left), _CHUNK):
            away = self._read_chunk(left[position : position + _CHUNK], made, gone) or away
            if steady() > until:
                break
        self._begun = self._begun or self.all_read
        return away

    def _read_chunk(self, names: list[str], made: list[BeatEntry], gone: list[str]) -> StoreUnavailableError | None:
        lost: list[str] = []
        away: StoreUnavailableError | None = None
        for name, (known, changes) in definitions.read_with_changes(self._store, names).items():
            del self._to_read[name]
            silent = next((each for each in (known, changes) if isinstance(each, StoreUnavailableError)), None)
            if silent is not None:
                self._to_read[name], away = None, silent
                continue
            gone.append(name)
            if known is None:
                lost.append(name)
            elif not (isinstance(known, StoredDefinition) and known.deleted):  # else a later sweep finds it deleted
                with guard(partial(self.leave_out, name)):
                    made += self._make(raised(known), raised(changes))
                    gone.pop()
        self._log_lost(lost)
        return away

    def _make(self, known: StoredDefinition, changes: Sequence[definitions.ChangeRecord]) -> list[BeatEntry]:
        """Return the entry of a definition; none where that is in force already."""
        entry, old = make_defined(self._all, self._app, known, changes), self.entries.get(known.name)
        self.wrong.pop(known.name, None)
        if self._begun:
            logger.info(
                "once: schedule %r is read, version %d, by %r: its windows count from %s",
                known.name,
                known.version,
                known.by,
                format_instant(known.since),
                extra=about("schedule_read", entry=known.name, start=format_instant(known.since)),
            )
        if old is None:
            return [entry]
        if old.definition == entry.definition:  # it was paused, say
            self._all.wake(known.name)
            return []
        entry.copy_progress_from(old)
        return [entry]

    def find(self, windows: Collection[WindowKey]) -> tuple[dict[WindowKey, BeatEntry], set[WindowKey]]:
        """Look up entries that this beat's schedule doesn't have, and whose windows are overdue.

        Returns those of definitions that were deleted: their open windows go on to an outcome. And the windows of those
        that are there all the same, and are yet to be read. Raises StoreUnavailableError.
        """
        deleted: dict[str, BeatEntry] = {}
        there: set[str] = set()
        read = definitions.read_with_changes(self._store, [*{window.entry for window in windows}])
        for name, (known, changes) in read.items():
            if known is None:
                continue
            there.add(name)  # who reads it says why it can't be read
            if isinstance(known, StoredDefinition) and known.deleted:
                if isinstance(changes, StoreUnavailableError):
                    raise changes
                with guard(partial(self.leave_out, name)):
                    deleted[name] = make_defined(self._all, self._app, known, raised(changes))
        found = {window: deleted[window.entry] for window in windows if window.entry in deleted}
        return found, {window for window in windows if window.entry in there - deleted.keys()}


def add_defined(loaded: LoadedSchedule, app: Celery, store: Store) -> None:
    """Add the entries that people set at run time; raises StoreUnavailableError. Again: what has changed since."""
    known = (source for source in loaded.entries.sources if isinstance(source, Defined))
    defined = next(known, None) or Defined(store, loaded.entries, app)
    with silence():
        defined.sweep()


class Part(BeatPart):
    """A beat's source of these entries."""

    def __init__(self, beat: Any) -> None:
        super().__init__(beat)
        self._defined = Defined(beat.store, beat.entries, beat.app)

    def before_sweep(self, report: BeatReport) -> Sequence[Any]:
        """Ask what has changed."""
        return self._defined.ask()

    def after_sweep(self, found: Overdue, replies: Sequence[Any]) -> Iterable[WindowKey]:
        """Have the next poll read what has changed."""
        self._defined.replies = replies
        return ()
