"""Claims: a beat says which definitions it has, and takes the right to publish the windows that are due.

What if the process dies, or sleeps for an hour:

- before a claim: another beat claims the window, at once;
- after it: see ``publishing``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from .clock import ServerClock
from .errors import OnceError, ScheduleError, StoreUnavailableError
from .policy import Step
from .publishing import Job
from .replies import Claimed, ClaimReply, Loaded, Moved, Paused, Superseded, Unknown
from .requests import ClaimRequest, LoadRequest, WindowKey
from .rows import RETRY_AFTER, Row, Rows
from .store import Store
from .windows import Window, format_instant

if TYPE_CHECKING:
    from celery import Celery

__all__ = ("CHUNK", "Claiming", "Claims")

logger = get_logger(__name__)

#: Entries that travel in one pipeline.
CHUNK = 500
#: Seconds of a tick for finding out what is to be claimed.
_PLANNING = 0.5
#: A cursor is the start of a window that was claimed: one that lies further ahead than clocks differ is wrong.
_AHEAD = timedelta(seconds=60)


@dataclass
class Claims:
    """What became of one chunk."""

    #: When the claims were sent, time.monotonic().
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


class Claiming:
    """One beat's claims; rows move on by what the store answers."""

    def __init__(self, store: Store, rows: Rows, clock: ServerClock, beat: str, app: Celery) -> None:
        self._store = store
        self._rows = rows
        self._clock = clock
        self._beat = beat
        self._app = app

    # -- definitions ------------------------------------------------------------------------------------------

    def load(self, alive: Sequence[str]) -> None:
        """Say which definitions this beat has, and learn the cursors; ``alive`` are the beats that live.

        Raises StoreUnavailableError.
        """
        rows = self._rows.unloaded()
        for position in range(0, len(rows), CHUNK):
            chunk = rows[position : position + CHUNK]
            replies = self._store.load_many(self._load_request(row, alive) for row in chunk)
            now = self._clock.now()
            for row, reply in zip(chunk, replies, strict=True):
                if isinstance(reply, Loaded):
                    self._loaded(row, reply, now)
                elif isinstance(reply, Superseded):
                    row.loaded_at = row.loaded_at or reply.loaded_at or 0
                    self._superseded(row, reply, now)
                else:
                    self._troubled(row, reply, now)

    def _load_request(self, row: Row, alive: Sequence[str]) -> LoadRequest:
        return LoadRequest(
            entry=row.name,
            beat=self._beat,
            fingerprint=row.fingerprint,
            ttl=row.ttl(self._clock.now()),
            max_attempts=row.policy.max_attempts,
            recover=row.policy.recover,
            grace=row.policy.grace,
            alive=alive,
            loaded_at=row.loaded_at,
            known=row.known,
        )

    def _loaded(self, row: Row, reply: Loaded, now: datetime) -> None:
        row.loaded_at = reply.loaded_at
        if reply.news != "same":
            logger.info(
                "once: entry %r is %s, its windows count from %s",
                row.name,
                reply.news,
                format_instant(reply.cursor),
                extra={"action": "entry_" + reply.news, "entry": row.name},
            )
        if reply.cursor > now + _AHEAD:
            logger.error(
                "once: the cursor of entry %r stands at %s, in the future: nothing of it is claimed until then. Was "
                "the Redis server's clock wrong? Delete the key %s to go on from now",
                row.name,
                format_instant(reply.cursor),
                self._store.entry_key(row.name),
                extra={"action": "cursor_ahead", "entry": row.name},
            )
        self._rows.advance(row, reply.cursor, now)

    def _superseded(self, row: Row, reply: Superseded, now: datetime) -> None:
        reason = f"beat {reply.beat} loaded another definition of it later; that one counts while its beat lives"
        self._rows.rest(row, now, self._store.settings.recovery_interval, reason)

    def _troubled(self, row: Row, error: OnceError, now: datetime) -> None:
        """Let one row rest for an error that concerns it alone; raise what concerns all."""
        if isinstance(error, StoreUnavailableError):
            raise error
        self._rows.rest(row, now, RETRY_AFTER, error)

    # -- claims -----------------------------------------------------------------------------------------------

    def claim(self, schedule: Mapping[str, Any], now: datetime) -> Claims:
        """Claim a chunk of what is due at ``now`` (aware UTC); raises StoreUnavailableError if nothing came through."""
        steps, replaced = self._plan(schedule, now)
        claims = Claims(sent=time.monotonic(), replaced=replaced)
        try:
            replies = self._store.claim_many(self._beat, [self._claim_request(row, step) for row, step in steps])
        except StoreUnavailableError:
            for row, _ in steps:
                self._rows.put(row)
            raise
        for (row, step), reply in zip(steps, replies, strict=True):
            if isinstance(reply, StoreUnavailableError):
                claims.away = reply
                self._rows.put(row)
                continue
            if isinstance(reply, Claimed):
                self._note_missed(row, step, claims)
                if step.run:
                    claims.won.append(Job(row, step.start, reply.turn, reply.expires))
            elif isinstance(reply, Moved):
                claims.lost.append(row)
            self._go_on(row, step, reply, now)
        return claims

    def _plan(self, schedule: Mapping[str, Any], now: datetime) -> tuple[list[tuple[Row, Step]], bool]:
        """Return what to claim, and whether the schedule holds another definition than some row."""
        steps = []
        replaced = False
        began = time.monotonic()
        for row in self._rows.due(now, CHUNK):
            if not self._rows.adopt(row, schedule.get(row.name)):
                replaced = True  # behind our back: made anew at the next tick
                self._rows.put(row)
            elif time.monotonic() - began > _PLANNING:
                self._rows.put(row)  # after a long outage there is much to look through
            else:
                step = self._next_step(row, now)
                if step is not None:
                    steps.append((row, step))
        return steps, replaced

    def _next_step(self, row: Row, now: datetime) -> Step | None:
        assert row.cursor is not None
        try:
            step = row.step(now)
        except ScheduleError as exc:
            self._rows.rest(row, now, reason=exc)
            return None
        if step is None:
            self._rows.advance(row, row.cursor, now)  # its schedule says another thing than before
        return step

    def _claim_request(self, row: Row, step: Step) -> ClaimRequest:
        assert row.cursor is not None
        mode = ("run" if row.tracked else "untracked") if step.run else "pass"
        return ClaimRequest(
            WindowKey(row.name, step.start),
            row.cursor,
            row.fingerprint,
            mode,
            self._expires_after(row),
            step.all_missed,
            step.all_missed_count,
        )

    def _expires_after(self, row: Row) -> float | None:
        """Seconds after the claim at which the entry's messages expire; None for never."""
        options = row.entry.options or {}
        expires = options.get("expires", getattr(self._app.tasks.get(row.entry.task), "expires", None))
        if isinstance(expires, datetime):
            if expires.tzinfo is None:
                expires = expires.replace(tzinfo=self._app.timezone)
            return max((expires - self._clock.now()).total_seconds(), 0.0)
        return float(expires) if isinstance(expires, (int, float)) else None

    def _go_on(self, row: Row, step: Step, reply: ClaimReply | OnceError, now: datetime) -> None:
        """Move a row on by what the store answered to its claim."""
        if isinstance(reply, Claimed):
            self._rows.advance(row, step.start, now)
        elif isinstance(reply, Moved):
            self._rows.advance(row, reply.cursor, now)
        elif isinstance(reply, Paused):
            self._rows.rest(row, now, self._store.settings.recovery_interval)
        elif isinstance(reply, Superseded):
            self._superseded(row, reply, now)
        elif isinstance(reply, Unknown):
            # The store lost its data: all is loaded again, from the cursors that this beat knew.
            self._rows.restart()
        else:
            self._troubled(row, reply, now)

    def _note_missed(self, row: Row, step: Step, claims: Claims) -> None:
        if not step.all_missed_count:
            return
        newest = step.all_missed[-1]
        logger.warning(
            "once: %d windows of %r up to %s are missed",
            step.all_missed_count,
            row.name,
            format_instant(newest),
            extra={"action": "window_missed", "entry": row.name, "count": step.all_missed_count},
        )
        claims.missed.append((Window(row.name, newest, None), step.all_missed_count))
