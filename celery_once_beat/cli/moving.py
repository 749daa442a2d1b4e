"""What ``schedules import`` does with each entry of another scheduler's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from celery_once_beat.client import Schedules
from celery_once_beat.errors import OnceError, StoreUnavailableError, VersionConflictError
from celery_once_beat.identity import order_name
from celery_once_beat.schedules import Definition, check_words, last_run_of, read_redbeat, run_until
from celery_once_beat.store import Loaded, RedBeatHash, raised
from celery_once_beat.windows import format_instant

from .context import Project

__all__ = ("LEFT_OUT", "Import", "Move")

LEFT_OUT = "left out"
#: In the log of changes. What has it as its last change, another import may change.
_NOTE = "imported from RedBeat"


@dataclass(frozen=True)
class Move:
    """What becomes of one entry."""

    name: str
    #: ``add``, ``change``, ``same``, ``kept`` (it was changed here), ``static`` (beat_schedule has it), or LEFT_OUT.
    what: str
    #: Windows up to there don't count, later ones are owed; aware UTC. None: they count from now.
    counts_from: datetime | None = None
    #: What is set; None: nothing.
    definition: Definition | None = None
    paused: bool = False
    #: Of what is here already; 0: nothing.
    version: int = 0
    #: Who set it and why, JSON.
    words: str = "{}"
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "what": self.what,
            "why": self.why,
            "counts_from": None if self.counts_from is None else format_instant(self.counts_from),
            "paused": self.paused,
            "definition": None if self.definition is None else self.definition.as_json(),
        }


class Import:
    """One import into the store of a project."""

    def __init__(self, project: Project, schedules: Schedules, by: str) -> None:
        self._project = project
        self._schedules = schedules
        self._words = check_words(by, _NOTE)
        self._now = project.store.look().now
        self._beats = project.store.beats()
        #: One that can't be read is missing: to set it is a conflict, which says so.
        self._known = {each.name: each for each in schedules.list(wrong=lambda _: None)}

    def plan(self, found: RedBeatHash) -> Move:
        """Say what is to be done; writes nothing. Raises StoreUnavailableError."""
        try:
            return self._plan(found)
        except StoreUnavailableError:
            raise
        except (OnceError, ValueError) as exc:
            return Move(found.name, LEFT_OUT, why=str(exc))

    def _plan(self, found: RedBeatHash) -> Move:
        name = found.name
        if found.error:
            raise found.error
        entry = self._project.schedule.entries.get(name)
        if entry is not None and not entry.stored:
            last = last_run_of(found.fields, self._now)
            until = None if last is None else run_until(last, entry.offset, self._now)
            return Move(name, "static", until, why="it stays in beat_schedule")
        if found.static:
            raise ValueError("it was in beat_schedule, and has left that: RedBeat would delete it at its next start")
        read = read_redbeat(name, found.fields, self._project.zone, self._now)
        known = self._known.get(name)
        move = Move(name, "add", read.counts_from, read.definition, read.paused or not found.scheduled)
        if known is None:
            self._schedules.check(name, read.definition)
            return replace(move, words=self._words)
        # What RedBeat never sent was due at once when it was imported first, and only then.
        move = replace(move, version=known.version, counts_from=read.counts_from if read.ran else None)
        if (known.text(), known.paused) == (read.definition.text(), move.paused):
            return replace(move, what="same", words=check_words(known.changed_by, known.note))
        if known.note == _NOTE:
            self._schedules.check(name, read.definition)
            return replace(move, what="change", words=self._words)
        # People have changed it here. RedBeat may have run it all the same.
        words, by = check_words(known.changed_by, known.note), f" by {known.changed_by}" if known.changed_by else ""
        why = f"it was changed here{by}, and stays so"
        return replace(move, what="kept", definition=known, paused=known.paused, words=words, why=why)

    def carry(self, move: Move) -> Move:
        """Do as planned; returns what became of it. Raises StoreUnavailableError."""
        try:
            if move.what == "static":
                self._count_from(move)
            elif move.definition is not None:
                self._schedules.put(
                    move.name,
                    move.definition,
                    move.words,
                    if_version=move.version,
                    paused=move.paused,
                    counts_from=move.counts_from,
                )
        except StoreUnavailableError:
            raise
        except VersionConflictError as exc:
            return replace(move, what=LEFT_OUT, why=f"{exc}: ask again")
        except (OnceError, ValueError) as exc:
            return replace(move, what=LEFT_OUT, why=str(exc))
        return move

    def _count_from(self, move: Move) -> None:
        """Have an entry of beat_schedule count from where RedBeat stopped: as a beat that loads it."""
        entry = self._project.schedule.entries.get(move.name)
        if entry is None or move.counts_from is None:
            return
        until = move.counts_from
        request = entry.load_request(order_name(), self._now)._replace(counts_from=until, absent_at=until)
        (reply,) = self._project.store.load_many([request], self._beats)
        if not isinstance(raised(reply), Loaded):
            raise ValueError("the beats that live have another definition of it in beat_schedule")  # noqa: TRY004
