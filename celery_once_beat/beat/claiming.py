"""Claims: a beat says which definitions it has, and takes the right to publish the windows that are due.

What if the process dies, or sleeps for an hour:

- before a claim: another beat claims the window, at once;
- after it: see ``publishing``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import compress
from operator import itemgetter
from typing import Any, NamedTuple

from celery.utils.log import get_logger

from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.logs import about
from celery_once_beat.rules import Step
from celery_once_beat.store import (
    Claimed,
    ClaimReply,
    ClaimRequest,
    Loaded,
    LoadRequest,
    Moved,
    Paused,
    Store,
    Superseded,
    Unknown,
)
from celery_once_beat.windows import Window, WindowKey, format_instant

from .entries import RETRY_AFTER, Row, Rows
from .publishing import SLICE, Job
from .server_clock import CURSOR_AHEAD, ServerClock

__all__ = ("CHUNK", "Claiming", "Claims")

logger = get_logger(__name__)

#: What is logged where a load tells this beat something new of an entry.
_NEWS = {"new": "entry_new", "changed": "entry_changed", "back": "entry_back"}

#: Entries that are loaded in one pipeline, and windows that one tick claims, slice by slice.
CHUNK = 500
#: Seconds of a tick for finding out what is to be claimed.
_PLANNING = 0.5
#: Seconds of a tick for loading entries.
_LOADING = 1.0
#: Entries that one line names.
_MOST_NAMED = 10


@dataclass
class Claims:
    """What became of one slice."""

    #: When the claims were sent, by ``clock.steady``.
    sent: float
    #: Windows to publish.
    won: list[Job] = field(default_factory=list)
    #: Rows whose window another beat has.
    lost: list[Row] = field(default_factory=list)
    #: The newest window of each row's that were passed over, and how many those were.
    missed: list[tuple[Window, int]] = field(default_factory=list)
    #: The schedule holds another definition than some row: it has to be read anew.
    replaced: bool = False
    #: Redis didn't answer all of them.
    away: StoreUnavailableError | None = None


class _Asked(NamedTuple):
    """A claim as it was sent. The answers to other claims don't change it."""

    row: Row
    step: Step
    request: ClaimRequest


class Claiming:
    """One beat's claims; rows move on by what the store answers."""

    def __init__(self, store: Store, rows: Rows, clock: ServerClock, beat: str) -> None:
        self._store = store
        self._rows = rows
        self._clock = clock
        self._beat = beat
        #: Entry → the beat whose definition of it counts.
        self._superseded_by: dict[str, str] = {}
        #: Entry → the definition with which it left the schedule, until the store knows.
        self._left: dict[str, str] = {}
        #: Entries whose node of a cluster didn't answer when they were to be loaded.
        self._silent: set[str] = set()
        #: Seconds by which the server's clock is behind the latest cursor, beyond what clocks differ; else 0.
        self.behind = 0.0
        #: The cursors that lie so far ahead.
        self._ahead: dict[str, datetime] = {}

    # -- definitions ------------------------------------------------------------------------------------------

    def left(self, rows: Iterable[Row]) -> None:
        """Note that entries have left the schedule: :meth:`load` says so."""
        self._left.update((row.name, row.fingerprint) for row in rows if row.loaded_at)

    def load(self, beats: Iterable[str], asked_at: datetime | None = None) -> None:
        """Say which definitions this beat has, and learn the cursors, as far as there is time for.

        The rest is left to the next call: a beat that loads for long says meanwhile that it lives, and claims.
        ``beats`` are those that lived at ``asked_at``, by the server's time (aware UTC; None: just now).
        Raises StoreUnavailableError, if not for all then once all others are loaded.
        """
        away: StoreUnavailableError | None = None
        alive = frozenset(beats)  # asked of each entry
        began = time.monotonic()
        self._unload(alive, asked_at)
        gone = [name for name, beat in self._superseded_by.items() if beat not in alive]
        for name in gone:
            del self._superseded_by[name]
            self._rows.wake_up(name)
        rows = self._rows.unloaded()
        if self._silent:  # those last: they mustn't take up all the time each time
            rows.sort(key=lambda row: row.name not in self._silent)
        while rows:
            requests: list[tuple[Row, LoadRequest]] = []
            while rows and len(requests) < CHUNK:
                requests.append((rows[-1], self._load_request(rows.pop(), alive, asked_at)))
                if time.monotonic() - began > _LOADING:
                    break
            replies = self._store.load_many(request for _, request in requests)
            now = self._clock.now()
            for (row, _), reply in zip(requests, replies, strict=True):
                if isinstance(reply, StoreUnavailableError):
                    away = reply
                    self._silent.add(row.name)
                else:
                    self._silent.discard(row.name)
                    self._load_answered(row, reply, now)
            if time.monotonic() - began > _LOADING:
                break
        self._say_what_stands_still()
        if away is not None:
            raise away

    def _load_answered(self, row: Row, reply: Loaded | Superseded | OnceError, now: datetime) -> None:
        if isinstance(reply, Loaded):
            self._loaded(row, reply, now)
        elif isinstance(reply, Superseded):
            row.loaded_at = row.loaded_at or reply.loaded_at or 0
            row.absent_at = row.came_at = None  # the entry is in a schedule; another beat's
            self._superseded(row, reply, now)
        else:
            self._troubled(row, reply, now)

    def _unload(self, alive: Collection[str], asked_at: datetime | None) -> None:
        left = [(name, mark) for name, mark in self._left.items() if self._rows.get(name) is None]
        replies = self._store.unload_many(self._beat, left, alive, asked_at) if left else []
        # Of a cluster one node may be away: it is told later.
        away = [isinstance(reply, StoreUnavailableError) for reply in replies]
        self._left = dict(compress(left, away))

    def _load_request(self, row: Row, alive: Collection[str], asked_at: datetime | None) -> LoadRequest:
        return LoadRequest(
            entry=row.name,
            beat=self._beat,
            fingerprint=row.fingerprint,
            ttl=row.ttl(self._clock.now()),
            max_attempts=row.policy.max_attempts,
            recover=row.policy.recover,
            # It counts from when a message may run.
            grace=None if row.policy.grace is None else row.policy.grace + row.timing.delay(self._clock.now()),
            retry_failed_after=row.policy.retry_failed_after,
            overlap=row.policy.overlap,
            alive=alive,
            asked_at=asked_at,
            loaded_at=row.loaded_at,
            known=row.known,
            counts_from=row.counts_from or row.came_at or row.absent_at,
            absent_at=row.absent_at,
        )

    def _loaded(self, row: Row, reply: Loaded, now: datetime) -> None:
        row.loaded_at, row.absent_at, row.came_at = reply.loaded_at, None, None
        if reply.news != "new" or row.since is None:  # else the store lost its data; what this beat knows counts
            row.since = reply.since
        if reply.news != "same":
            logger.info(
                "once: entry %r is %s, its windows count from %s",
                row.name,
                reply.news,
                format_instant(reply.cursor),
                extra=about(_NEWS[reply.news], entry=row.name, start=format_instant(reply.cursor), owner=self._beat),
            )
        self._ahead.pop(row.name, None)
        if reply.cursor > now + CURSOR_AHEAD:
            self._stand_still(row, reply.cursor, now)
        elif reply.paused:
            self._pause(row, now)
        elif row.unanswered is not None and row.unanswered[1].start <= reply.cursor:
            # Carried out, and if by this beat, then nobody else publishes it where it is untracked: it is asked
            # again, with its old cursor, so that it can't be claimed anew.
            cursor, step = row.unanswered
            self._rows.advance(row, cursor, now)
            row.plan.append(step)
            row.unanswered = cursor, step
        else:
            self._rows.advance(row, reply.cursor, now)

    def _stand_still(self, row: Row, cursor: datetime, now: datetime) -> None:
        """Wait: its windows are claimed up to ``cursor``, in the future. Somebody may delete its key meanwhile."""
        self._ahead[row.name] = cursor
        row.trouble = ""  # one line speaks of all
        self._rows.rest(row, now, RETRY_AFTER, "")

    def _say_what_stands_still(self) -> None:
        """Say once, for as long as it lasts, that the server's clock is behind what has been claimed."""
        now = self._clock.now()
        for row in self._rows.beyond(now + CURSOR_AHEAD):
            assert row.cursor is not None
            self._stand_still(row, row.cursor, now)
        ahead = {name: cursor for name, cursor in self._ahead.items() if self._rows.get(name) is not None}
        if ahead and not self.behind:
            name, cursor = max(ahead.items(), key=itemgetter(1))
            logger.error(
                "once: entry %r and %d others stand still: their cursors lie in the future, up to %s, as if the Redis "
                "server's clock had gone back. Set that clock right. If it was wrong before: delete the key %s, and "
                "those of the others, to go on at once; windows up to there may then run once more",
                name,
                len(ahead) - 1,
                format_instant(cursor),
                self._store.entry_key(name),
                extra=about("entry_cursor_ahead", entry=name, entries=sorted(ahead)[:_MOST_NAMED], owner=self._beat),
            )
        elif self.behind and not ahead:
            logger.info("once: no entry stands still any more", extra=about("entry_cursors_reached", owner=self._beat))
        self._ahead = ahead
        self.behind = (max(ahead.values()) - now).total_seconds() if ahead else 0.0

    def _superseded(self, row: Row, reply: Superseded, now: datetime) -> None:
        reason = f"beat {reply.beat} loaded another definition of it later; that one counts while its beat lives"
        # Each of its looks finds out whether that beat lives; all entries needn't be asked for at each.
        self._superseded_by[row.name] = reply.beat
        self._rows.rest(row, now, RETRY_AFTER, reason, action="entry_superseded", level=logging.WARNING)

    def _pause(self, row: Row, now: datetime) -> None:
        interval = self._store.settings.recovery_interval
        self._rows.rest(row, now, interval, "it is paused", action="entry_paused", level=logging.INFO)

    def _troubled(self, row: Row, error: OnceError, now: datetime) -> None:
        """Let one row rest for an error that concerns it alone; raise what concerns all."""
        if isinstance(error, StoreUnavailableError):
            raise error
        self._rows.rest(row, now, RETRY_AFTER, error, action="entry_unreadable")

    # -- claims -----------------------------------------------------------------------------------------------

    def claim(self, schedule: Mapping[str, Any], now: datetime) -> Claims:
        """Claim a slice of what is due at ``now`` (aware UTC); raises StoreUnavailableError if nothing came through."""
        asked, replaced = self._plan(schedule, now)
        claims = Claims(sent=steady(), replaced=replaced)
        try:
            replies = self._store.claim_many(self._beat, [request for _, _, request in asked])
        except StoreUnavailableError:
            for each in asked:
                self._not_answered(each)
            raise
        for each, reply in zip(asked, replies, strict=True):
            row, step, _ = each
            if isinstance(reply, StoreUnavailableError):
                claims.away = reply
                self._not_answered(each)
                continue
            if isinstance(reply, (Claimed, Moved)) and reply.missed:
                self._note_missed(row, step, reply.missed, claims)
            if isinstance(reply, Claimed) and step.run:
                claims.won.append(Job(row, step.start, reply.turn, reply.expires))
            elif isinstance(reply, Moved):
                claims.lost.append(row)
            self._go_on(row, step, reply, now)
        if any(isinstance(reply, Unknown) for reply in replies):
            # The store lost its data: all is loaded again, from the cursors that this beat knew.
            self._rows.restart()
        return claims

    def _not_answered(self, asked: _Asked) -> None:
        asked.row.unanswered = asked.request.from_cursor, asked.step
        self._rows.put(asked.row)

    def _plan(self, schedule: Mapping[str, Any], now: datetime) -> tuple[list[_Asked], bool]:
        """Return what to claim, and whether the schedule holds another definition than some row."""
        asked: list[_Asked] = []
        replaced = False
        began = time.monotonic()
        rows = self._rows.due(now, SLICE)
        for position, row in enumerate(rows):
            if time.monotonic() - began > _PLANNING:
                self._rows.put_off(rows[position:])  # after a long outage there is much to look through
                break
            with self._rows.alone(row, now):
                if not self._rows.adopt(row, schedule.get(row.name)):
                    replaced = True  # behind our back: made anew at the next tick
                    self._rows.put(row)
                else:
                    asked += self._next(row, now)
        return asked, replaced

    def _next(self, row: Row, now: datetime) -> list[_Asked]:
        """Return the row's next claim, if it has one; raises ScheduleError."""
        assert row.cursor is not None
        step = row.step(now)
        if step is None:
            # The next tick goes on looking; or the schedule has changed its mind.
            self._rows.advance(row, row.cursor, now)
            return []
        mode = ("run" if row.tracked else "untracked") if step.run else "pass"
        request = ClaimRequest(
            WindowKey(row.name, step.start),
            row.cursor,
            row.fingerprint,
            mode,
            row.timing.expires_after(self._clock.now()),
            step.all_missed,
            step.all_missed_count,
        )
        return [_Asked(row, step, request)]

    def _go_on(self, row: Row, step: Step, reply: ClaimReply | OnceError, now: datetime) -> None:
        """Move a row on by what the store answered to its claim."""
        if isinstance(reply, (Claimed, Moved)):
            row.claim_failed = False
            self._rows.advance(row, reply.cursor if isinstance(reply, Moved) else step.start, now)
        elif isinstance(reply, Paused):
            self._pause(row, now)
        elif isinstance(reply, Superseded):
            # Loading says which beat won; or takes the entry back if that beat is gone, or loaded earlier.
            self._rows.reload(row.name)
        elif isinstance(reply, OnceError):
            row.claim_failed = True
            self._troubled(row, reply, now)

    def _note_missed(self, row: Row, step: Step, count: int, claims: Claims) -> None:
        """Tell of the windows that the store counted as missed: those that ran all the same aren't among them."""
        newest = step.all_missed[-1]
        logger.warning(
            "once: %d windows of %r up to %s are missed",
            count,
            row.name,
            format_instant(newest),
            extra=about("window_missed", WindowKey(row.name, newest), count=count, owner=self._beat),
        )
        claims.missed.append((Window(row.name, newest, None), count))
