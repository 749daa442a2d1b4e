"""Overdue windows: what should have happened and didn't is published again, or ended by its limits.

A beat killed between claim and publish, a message lost in the broker, a worker killed with early or late acks and
a purged queue all end the same way. Every beat looks; the deadline that ``take`` moves is the mutex between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from celery.utils.log import get_logger

from . import signals
from .clock import ServerClock
from .errors import OnceError, StoreUnavailableError
from .replies import Closed, Taken
from .requests import WindowKey
from .store import Store
from .windows import Window, format_instant

__all__ = ("Recovery",)

logger = get_logger(__name__)

#: Overdue windows read of each shard at a time.
_MOST = 100
#: Seconds for which an overdue window of an entry that left the schedule is put off.
_PUT_OFF = 3600.0


class Recovery:
    """One beat's look at what is overdue, every ``recovery_interval``; it is its heartbeat too."""

    def __init__(self, store: Store, beat: str, clock: ServerClock, sender: object) -> None:
        self._store = store
        self._beat = beat
        self._clock = clock
        #: Of the signals.
        self._sender = sender
        self._next = 0.0
        self.alive: tuple[str, ...] = ()
        #: The last look found that the store had forgotten this beat: it lost its data, or the beat was frozen.
        self.forgotten = False

    def due_in(self) -> float:
        """Seconds until the next look, at least 0."""
        return max(self._next - time.monotonic(), 0.0)

    def look(self) -> list[WindowKey]:
        """Say that this beat lives, learn the time and who else lives, and return what is overdue."""
        sent = time.monotonic()
        found = self._store.overdue(self._beat, self._clock.now(), _MOST)
        self._clock.measured(found.heartbeat.now, sent, time.monotonic())
        self.forgotten = found.heartbeat.new and bool(self.alive)
        self.alive = found.heartbeat.beats
        self._next = sent + self._store.settings.recovery_interval
        windows = []
        for members in found.shards:
            if isinstance(members, OnceError):
                logger.error("once: %s", members, extra={"action": "shard_unreadable"})
                continue
            windows += [window for window in members if window is not None]
        return windows

    def take(
        self, windows: list[WindowKey], fingerprint_of: Callable[[str], str | None]
    ) -> list[tuple[WindowKey, Taken]]:
        """Take those whose entries this beat knows; returns what it has to publish."""
        known = [(window, mark) for window in windows if (mark := fingerprint_of(window.entry))]
        self._put_off([window for window in windows if not fingerprint_of(window.entry)])
        taken = []
        for (window, _), reply in zip(known, self._store.take_many(self._beat, known), strict=True):
            if isinstance(reply, Taken):
                taken.append((window, reply))
            elif isinstance(reply, Closed):
                self._ended(window, reply.outcome)
            elif isinstance(reply, StoreUnavailableError):
                raise reply
            elif isinstance(reply, OnceError):
                logger.error("once: %s", reply, extra={"action": "window_unreadable", "entry": window.entry})
        return taken

    def _put_off(self, windows: list[WindowKey]) -> None:
        # Its entry left the schedule; a worker may still get to its message.
        others = [beat for beat in self.alive if beat != self._beat]
        for window, reply in zip(windows, self._store.postpone_many(windows, _PUT_OFF, others), strict=True):
            if reply == "postponed":
                logger.warning(
                    "once: window %s of %r is overdue, and no beat's schedule has such an entry",
                    format_instant(window.start),
                    window.entry,
                    extra={"action": "window_unknown", "entry": window.entry},
                )

    def _ended(self, window: WindowKey, outcome: str) -> None:
        start = format_instant(window.start)
        logger.error(
            "once: window %s of %r is %s: a limit was reached",
            start,
            window.entry,
            outcome,
            extra={"action": "window_" + outcome, "entry": window.entry, "start": start},
        )
        ended = Window(window.entry, window.start, None)
        signals.window_abandoned.send(sender=self._sender, window=ended, outcome=outcome)
