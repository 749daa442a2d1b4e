"""Publish windows that waited: it is their turn now, or a slot of their limit is free.

While windows wait, this part of a beat looks every 200 ms, between two sweeps: so one begins within 0.3 s of the end
before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from celery_once_beat.beat.entry import BeatEntry
from celery_once_beat.beat.part import BeatPart
from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.logs import Logged, about, get_logger
from celery_once_beat.options import is_buffer
from celery_once_beat.settings import Settings
from celery_once_beat.store import BeatReport, Overdue, Store
from celery_once_beat.windows import WindowKey

from .store import FreeSlots, ask_free_slots, find_due, make_due

logger = get_logger(__name__)

#: Seconds between two looks while windows wait.
_EVERY = 0.2
#: Overdue windows read of each shard in a look.
_MOST = 100


def may_wait(entry: BeatEntry, settings: Settings, task: object) -> bool:
    """Whether windows of an entry, which sends ``task``, may have to wait for each other, or for a slot."""
    return entry.policy.limit is not None or is_buffer(entry.policy.overlap or settings.of_task("overlap", task))


class Part(BeatPart):
    """The part of one beat."""

    def __init__(self, beat: Any) -> None:
        super().__init__(beat)
        self._store: Store = beat.store
        self._limits = beat.store.settings.limits
        #: Whether windows waited at the last sweep, and until when others may have to that were claimed since.
        self._some_wait = False
        self._some_may_wait_until = 0.0
        self._next = 0.0
        self._logged = Logged(math.inf)

    def on_claimed(self, entries: Iterable[BeatEntry]) -> None:
        """Look between sweeps for a while, if their windows may have to wait."""
        settings, tasks = self._store.settings, self._beat.app.tasks
        if any(may_wait(entry, settings, tasks.get(entry.source.task)) for entry in entries):
            self._some_may_wait_until = steady() + 2 * settings.recovery_interval

    def before_sweep(self, report: BeatReport) -> Sequence[Any]:
        """Ask for free slots."""
        return ask_free_slots(self._store, self._limits)

    def after_sweep(self, found: Overdue, replies: Sequence[Any]) -> Iterable[WindowKey]:
        """Return the windows that get a slot."""
        self._next = steady() + _EVERY
        waiting = any(isinstance(each, FreeSlots) and each.waiting for each in replies)
        self._some_wait = bool(found.with_work("admission")) or waiting
        return self._make_due(replies)

    def due_in(self) -> float:
        """Seconds until the next look; infinite where nothing waits."""
        now = steady()
        return max(self._next - now, 0.0) if self._some_wait or now < self._some_may_wait_until else math.inf

    def find_due(self) -> Iterable[WindowKey]:
        """Return what is overdue of this beat's entries; the rest is left to sweeps."""
        self._next = steady() + _EVERY
        free_slots, overdue = find_due(self._store, self._beat.clock.now(), _MOST, self._limits)
        found = dict.fromkeys([*overdue, *self._make_due(free_slots)])
        return [window for window in found if self._beat.entries.get(window.entry) is not None]

    def _make_due(self, free_slots: Iterable[FreeSlots | OnceError]) -> list[WindowKey]:
        """Make windows overdue whose limit has free slots; return them.

        If one has ended meanwhile, the next tick sweeps, and another one gets the slot.
        """
        due: list[WindowKey] = []
        for limit, found in zip(self._limits, free_slots, strict=True):
            if isinstance(found, OnceError):
                if not isinstance(found, StoreUnavailableError) and self._logged.is_new(limit, str(found)):
                    logger.error("once: %s", found, extra=about("limit_unreadable"))
                continue
            self._logged.end(limit)
            if found.windows:
                try:
                    replies = make_due(self._store, limit, found.windows)
                except OnceError as exc:
                    logger.debug("once: limit %s: %s", limit, exc)
                    continue
                due += [window for window, reply in zip(found.windows, replies, strict=True) if reply == "due"]
                if "over" in replies:
                    self._beat.recovery.hurry()
        return due
