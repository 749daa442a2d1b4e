"""A part of a beat, mostly a feature's; ``celery_once_beat.features`` says when each hook is called."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from celery_once_beat.store import BeatReport, Overdue
from celery_once_beat.windows import WindowKey

from .entry import BeatEntry

if TYPE_CHECKING:
    from .scheduler import OnceSchedulerMixin


class BeatPart:
    """Its hooks do nothing. All run in beat's thread, so none may wait for long."""

    def __init__(self, beat: OnceSchedulerMixin) -> None:
        self._beat = beat

    def on_made(self, entries: Iterable[BeatEntry]) -> None:
        """See features."""

    def on_claimed(self, entries: Iterable[BeatEntry]) -> None:
        """See features."""

    def before_sweep(self, report: BeatReport) -> Sequence[Any]:
        """See features."""
        return ()

    def after_sweep(self, found: Overdue, replies: Sequence[Any]) -> Iterable[WindowKey]:
        """See features."""
        return ()

    def due_in(self) -> float:
        """See features."""
        return math.inf

    def find_due(self) -> Iterable[WindowKey]:
        """See features."""
        return ()

    def work(self) -> None:
        """See features."""

    def on_close(self) -> None:
        """See features."""
