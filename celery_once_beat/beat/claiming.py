"""Claims: a beat takes the right to publish the windows that are due.

If the process dies, or sleeps for an hour:

- before a claim: another beat claims the window, at once;
- after it: see ``publishing``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.logs import about, get_logger
from celery_once_beat.rules import Step
from celery_once_beat.store import Claimed, ClaimRequest, Moved, Paused, Store, Superseded, Unknown
from celery_once_beat.windows import Window, WindowKey, format_instant

from .entries import Entries
from .entry import BeatEntry
from .publishing import SLICE, Job
from .server_clock import ServerClock

logger = get_logger(__name__)

#: A claim as it was sent. The answers to other claims don't change it.
_Asked = tuple[BeatEntry, Step, ClaimRequest]

#: Windows that one tick claims, slice by slice.
CHUNK = 500
#: Seconds of a tick for finding out what is to be claimed.
_PLANNING = 0.5


@dataclass
class Claims:
    """What became of the claims of one slice."""

    #: When the claims were sent, by ``clock.steady``.
    sent: float
    #: Windows to publish.
    won: list[Job] = field(default_factory=list)
    #: Entries whose window another beat has claimed.
    lost: list[BeatEntry] = field(default_factory=list)
    #: For each entry with missed windows the newest of them, and how many they are.
    missed: list[tuple[Window, int]] = field(default_factory=list)
    #: The schedule holds another definition of some entry: it has to be read again.
    replaced: bool = False
    #: Redis didn't answer all of them.
    away: StoreUnavailableError | None = None


class Claiming:
    """One beat's claims. Its entries advance by the store's replies."""

    def __init__(self, store: Store, entries: Entries, clock: ServerClock, beat: str) -> None:
        self._store = store
        self._entries = entries
        self._clock = clock
        self._beat = beat

    def claim(self, schedule: Mapping[str, Any], now: datetime) -> Claims:
        """Claim a slice of what is due at ``now`` (aware UTC)."""
        asked, replaced = self._plan(schedule, now)
        claims = Claims(sent=steady(), replaced=replaced)
        try:
            replies = self._store.claim_many(self._beat, [request for _, _, request in asked])
        except StoreUnavailableError as exc:
            replies = [exc] * len(asked)
        for (entry, step, request), reply in zip(asked, replies, strict=True):
            if isinstance(reply, StoreUnavailableError):
                claims.away = reply
                self._entries.claim_unanswered(entry, request.from_cursor, step)
            elif isinstance(reply, OnceError):
                entry.unreadable = True
                self._entries.rest(entry, reply, action="entry_unreadable")
            elif isinstance(reply, (Claimed, Moved)):
                self._count(entry, step, reply, claims)
                self._entries.apply_claim(entry, reply.cursor if isinstance(reply, Moved) else step.start)
            elif isinstance(reply, Paused):
                self._entries.pause(entry)
            elif isinstance(reply, Superseded):
                # The load's reply says which beat's definition counts: perhaps this one's, if the other is gone.
                self._entries.reload(entry.name)
        if any(isinstance(reply, Unknown) for reply in replies):
            # The store lost its data: all is loaded again, from the cursors that this beat knew.
            self._entries.restart()
        return claims

    def _plan(self, schedule: Mapping[str, Any], now: datetime) -> tuple[list[_Asked], bool]:
        """Return what to claim, and whether the schedule holds another definition than some entry."""
        asked: list[_Asked] = []
        replaced = False
        began = steady()
        entries = self._entries.due(now, SLICE)
        for position, entry in enumerate(entries):
            if steady() - began > _PLANNING:
                self._entries.requeue_first(entries[position:])  # after a long outage there is much to look through
                break
            with self._entries.isolate(entry):
                if not self._entries.adopt(entry, schedule.get(entry.name)):
                    replaced = True  # the entry is made again at the next tick
                    self._entries.requeue(entry)
                    continue
                assert entry.cursor is not None
                step = entry.step(now)
                if step is None:
                    # The next tick continues the search, or the schedule has changed.
                    self._entries.advance(entry, entry.cursor)
                    continue
                by = entry.as_of(step.start)
                mode = ("run" if by.tracked else "untracked") if step.run else "pass"
                request = ClaimRequest(
                    WindowKey(entry.name, step.start),
                    entry.cursor,
                    entry.fingerprint,
                    mode,
                    by.timing.expires_after(self._clock.now()),
                    step.missed,
                    step.missed_count,
                    entry.timetable.earlier[-1].until if entry.timetable.earlier else None,
                )
                asked.append((entry, step, request))
        return asked, replaced

    def _count(self, entry: BeatEntry, step: Step, reply: Claimed | Moved, claims: Claims) -> None:
        """Add what was won, lost and missed. The store doesn't count as missed what ran all the same."""
        if reply.missed:
            newest = step.missed[-1]
            text = "once: %d windows of %r up to %s are missed"
            extra = about("window_missed", WindowKey(entry.name, newest), count=reply.missed, owner=self._beat)
            logger.warning(text, reply.missed, entry.name, format_instant(newest), extra=extra)
            claims.missed.append((Window(entry.name, newest, None), reply.missed))
        if isinstance(reply, Moved):
            claims.lost.append(entry)
        elif step.run:
            claims.won.append(Job(entry.as_of(step.start), step.start, reply))
