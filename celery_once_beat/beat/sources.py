"""Where a beat's entries come from: Celery's schedule, which Django's tables are too, and what people set at run time.

A poll of a source says what is new or changed, and what is gone. A new entry says from when it counts. ``Entries`` puts
that in force: of two sources that have a name the first one counts. What differs between them is in this file and, for
those that were set at run time, in ``defined``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from celery.utils.log import get_logger

from celery_once_beat.logs import about, guarded
from celery_once_beat.wording import shown

from .entry import BeatEntry
from .guard import guard
from .making import Making

logger = guarded(get_logger(__name__))


class Changes(NamedTuple):
    """What a poll found."""

    #: Entries that are new or changed; each says from when it counts.
    made: Sequence[BeatEntry] = ()
    #: Names that this source has no more: deleted, disabled, renamed, or wrong by now.
    gone: Collection[str] = ()


class Source:
    """One source: the entries that it has, and what it has that can't be one."""

    def __init__(self, noun: str, action: str) -> None:
        #: How the log calls an entry, and the action of a line on one that is left out.
        self._noun = noun
        self._action = action
        self.entries: dict[str, BeatEntry] = {}
        #: Name → why it is left out, as it was logged.
        self.wrong: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        """Whether it has an entry of that name, though perhaps a wrong one."""
        return name in self.entries or name in self.wrong

    def leave_out(self, name: str, why: str) -> None:
        """Note that it has something of that name that can't be an entry; a lasting trouble is logged once."""
        if self.wrong.get(name) != why:
            self.wrong[name] = why
            log_left_out(name, why, self._noun, self._action)


def log_left_out(name: object, why: str, noun: str = "entry", action: str = "entry_wrong") -> None:
    """Log that something can't be an entry, and why."""
    logger.error("once: %s %s is left out: %s", noun, shown(name), why, extra=about(action, entry=name))


class ScheduleSource(Source):
    """The schedule of Celery's scheduler, the base of this beat's. It is polled as a whole."""

    def poll(self, schedule: Mapping[str, Any], absent_at: datetime | None, making: Making) -> Changes:
        """Compare ``schedule`` with what it was. An entry whose definition is the same stays the same object.

        ``absent_at`` (aware UTC) is when the last schedule was known to be still in force: what is new counts from
        there, unless it says itself from when; None: there was none.
        """
        before, self.entries = self.entries, {}
        made = []
        for name, source in list(schedule.items()):
            with guard(partial(self.leave_out, name)):
                entry = making.make(name, source)
                old = before.get(entry.name)  # a plain text, which nobody's own rule compares
                if old is not None and old.definition == entry.definition:
                    old.set_source(source)
                    self.entries[entry.name] = old
                    continue
                if old is None and entry.counts_from is None and name not in self.wrong:
                    entry.set_first_seen(None, absent_at)
                elif old is not None and old.fingerprint == entry.fingerprint:
                    entry.copy_progress_from(old)
                made.append(entry)
                self.entries[entry.name] = entry
        gone = [name for name in {**before, **self.wrong} if name not in self.entries]
        self.wrong = {name: self.wrong[name] for name in gone if name in schedule}
        return Changes(made, gone)

    def poll_wrong(self, schedule: Mapping[str, Any], making: Making) -> Changes:
        """Try again what was left out: the machine was slow, or a file wasn't there yet.

        It was in the schedule all the time, so it counts from where the store knows it.
        """
        made = []
        for name in [name for name in self.wrong if name in schedule]:
            with guard(partial(self.leave_out, name)):
                made.append(making.make(name, schedule[name]))
        return Changes(made)
