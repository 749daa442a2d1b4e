"""Where a beat's entries come from: Celery's schedule, or in its place Django's tables, and what is set at run time.

A poll of a source says what is new or changed, and what is gone. Each new entry says from when it counts. ``Entries``
puts that in force: where two sources have a name, the first one counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_once_beat.errors import StoreUnavailableError
from celery_once_beat.logs import about, get_logger
from celery_once_beat.windows import WindowKey
from celery_once_beat.wording import shown

from .entry import BeatEntry
from .guard import guard

if TYPE_CHECKING:
    from .entries import Entries

logger = get_logger(__name__)


class Changes(NamedTuple):
    """What a poll found."""

    #: Entries that are new or changed; each says from when it counts.
    made: Sequence[BeatEntry] = ()
    #: Names that this source has no more: deleted, disabled, renamed, or wrong by now.
    gone: Collection[str] = ()
    #: There is more, for which there wasn't time; the next poll says it.
    more: bool = False
    #: Why some of it isn't known: the store, or a node of it, is away.
    away: StoreUnavailableError | None = None


class Source:
    """One source: the entries that it has, and what it has that can't be one."""

    #: How the log calls an entry, and the action of a line on one that is left out.
    noun, action = "entry", "entry_wrong"

    def __init__(self, all_entries: Entries) -> None:
        self._all = all_entries
        self.entries: dict[str, BeatEntry] = {}
        #: Name → why it is left out, as it was logged.
        self.wrong: dict[str, str] = {}

    def poll(self) -> Changes:
        """Return what has changed since the last poll."""
        raise NotImplementedError

    def find(self, _windows: Collection[WindowKey]) -> tuple[dict[WindowKey, BeatEntry], set[WindowKey]]:
        """Find entries of overdue windows which no source has in force.

        Returns those that this source can make all the same, and the windows whose entries it has yet to read.
        """
        return {}, set()

    def __contains__(self, name: str) -> bool:
        """Whether it has an entry of that name, though perhaps a wrong one."""
        return name in self.entries or name in self.wrong

    def leave_out(self, name: str, why: str) -> None:
        """Note that it has something of that name that can't be an entry; a lasting trouble is logged once."""
        if self.wrong.get(name) != why:
            self.wrong[name] = why
            log_left_out(name, why, self.noun, self.action)


def log_left_out(name: object, why: str, noun: str = "entry", action: str = "entry_wrong") -> None:
    """Log that something can't be an entry, and why."""
    logger.error("once: %s %s is left out: %s", noun, shown(name), why, extra=about(action, entry=name))


class ScheduleSource(Source):
    """The schedule of Celery's scheduler, the base of this beat's. A poll compares all of it with what it was."""

    #: As it is now.
    schedule: Mapping[str, Any] = MappingProxyType({})
    #: When the schedule before was known to be still in force (aware UTC); None: there was none.
    absent_at: datetime | None = None

    def poll(self) -> Changes:
        """As the base's. An entry whose definition is the same stays the same object."""
        before, self.entries = self.entries, {}
        made = []
        for name, source in list(self.schedule.items()):
            with guard(partial(self.leave_out, name)):
                entry = self._all.make(name, source)
                old = before.get(entry.name)  # a plain text: a subclass of str may compare otherwise
                if old is not None and old.definition == entry.definition and not self.is_replaced(entry):
                    old.set_source(source)
                    self.entries[entry.name] = old
                    continue
                self.set_first_seen(entry, old)
                made.append(entry)
                self.entries[entry.name] = entry
        gone = [name for name in {**before, **self.wrong} if name not in self.entries]
        self.wrong = {name: self.wrong[name] for name in gone if name in self.schedule}
        return Changes(made, gone)

    def is_replaced(self, _entry: BeatEntry) -> bool:
        """Whether the entry isn't the one that had its name before, even if the two say the same."""
        return False

    def set_first_seen(self, entry: BeatEntry, old: BeatEntry | None) -> None:
        """Say from when an entry counts that is new or changed: ``old`` is the one before.

        One that was left out was in the schedule all the time, so it counts from where the store knows it.
        """
        if old is None and entry.counts_from is None and entry.name not in self.wrong:
            entry.set_first_seen(None, self.absent_at)
        elif old is not None and old.fingerprint == entry.fingerprint:
            entry.copy_progress_from(old)

    def poll_wrong(self) -> Changes:
        """Try again what was left out: the machine was slow, or a file wasn't there yet."""
        made = []
        for name in [name for name in self.wrong if name in self.schedule]:
            with guard(partial(self.leave_out, name)):
                made.append(self._all.make(name, self.schedule[name]))
        return Changes(made)
