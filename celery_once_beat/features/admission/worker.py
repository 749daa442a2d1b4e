"""An execution's slot of its window's limit: taken before it begins, renewed with its lease, given back at its end.

An execution that dies loses its slot as it loses its lease.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, NoReturn

from celery.exceptions import Ignore

from celery_once_beat import signals
from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, SettingError, StoreUnavailableError
from celery_once_beat.identity import host_of
from celery_once_beat.logs import get_logger, log_window
from celery_once_beat.outcomes import OUTCOMES
from celery_once_beat.store import Busy, Closed, Waits
from celery_once_beat.windows import Window, format_instant
from celery_once_beat.worker.base import lease_of
from celery_once_beat.worker.leases import Lease
from celery_once_beat.worker.part import ExecutionPart
from celery_once_beat.worker.put_back import put_back, send_again, times_put_back

from .store import Acquired, Full, acquire_slot, release_slot, slot_renewal

logger = get_logger(__name__)

#: Times that a message with an unknown limit is put back, within about a minute.
_MOST_UNKNOWN = 12


class Part(ExecutionPart):
    """Whether windows of an entry run one by one, and the slot of a limit."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        #: The limit of which the window needs a slot; None: of none.
        self._limit = (self.window.limit or getattr(self.task, "once_limit", None)) if self.window.tracked else None
        #: What the store has answered, and when it was asked, by ``clock.steady``.
        self._slot: Acquired | Full | None = None
        self._asked_at = 0.0
        self._released = False

    def arguments(self) -> dict[str, Any]:
        """Give the task's ``overlap``, and the limit of which no slot is free."""
        no_slot = self._limit if isinstance(self._slot, Full) else None
        return {"overlap": self.store.settings.of_task("overlap", self.task), "no_slot": no_slot or ""}

    def before_begin(self, request: Any) -> None:
        """Ask for a slot."""
        if self._limit is None:
            return
        most = self.store.settings.limits.get(self._limit)
        if most is None:
            self._leave_to_others(request)
        self._asked_at = steady()
        length = _length(lease_of(self.window, self.store, self.task))
        self._slot = acquire_slot(self.store, self._limit, most, self.key, self.owner, length)
        if isinstance(self._slot, Full) and request.retries:  # a beat can't rebuild a retry's message
            send_again(self.task, request, self.store.settings.recovery_interval)

    def _leave_to_others(self, request: Any) -> NoReturn:
        """Put the message back for workers that know its limit.

        After _MOST_UNKNOWN times discard it: the limit may be gone, and while the message waits in workers no beat
        publishes the window anew.
        """
        if times_put_back(request) >= _MOST_UNKNOWN:
            self.store.close_window(self.key, host_of(self.owner), "unknown", request.retries or 0)
            why = "discarded, no worker that knows its limit %r has taken it"
            self._log(logging.WARNING, "window_discarded", self.window, why, self._limit)
            raise Ignore("limit unknown")
        put_back(
            self.task,
            request,
            SettingError(
                f"limit {self._limit!r}: found in a message, expected in once_beat_limits of this worker; messages "
                "with it are left to workers that know it"
            ),
        )

    def on_begin(self, lease: Lease) -> bool:
        """Let the slot outlast the lease that has just begun.

        It was acquired first, perhaps long ago: this process slept, or Redis was slow. If it may end first, or belonged
        to an execution that has died, renew it. Raises StoreUnavailableError where that can't be done in time.
        """
        if not isinstance(self._slot, Acquired):
            return False
        assert self._limit is not None
        length = _length(lease.renewal.lease)
        if self._slot.shared or lease.sent + lease.renewal.lease >= self._asked_at + length:
            renewal = slot_renewal(self.store, self._limit, self.key, self.owner, length, takes_over=True)
            if self.store.trip.one(renewal) == "lost" or not lease.held():
                raise StoreUnavailableError(f"Redis answers later than a slot of the limit {self._limit!r} is held")
        lease.renewed_with = (*lease.renewed_with, self)
        return True  # others wait for the slot

    def on_refusal(self, reply: Waits | Busy | Closed) -> None:
        """Give the slot back; an older copy doesn't remove its window from those that wait for one."""
        if isinstance(reply, Waits):
            self._log_wait(reply)
            if reply.waits_for is None:  # it is in line for a slot
                return
        # One that was closed may have been ordered since, and that run waits.
        older = reply.reason != "running" if isinstance(reply, Busy) else reply == Closed("")
        self._release(forget=not older)

    def _log_wait(self, reply: Waits) -> None:
        """Say for what the window waits, and which others its begin has passed over."""
        for start in reply.skipped:
            skipped, outcome = replace(self.window, start=start, end=None), OUTCOMES["skipped"]
            self._log(logging.INFO, outcome.action, skipped, "is skipped: another one waits instead")
            signals.window_abandoned.send(sender=self.task, window=skipped, outcome="skipped")
            signals.window_closed.send(sender=self.task, window=skipped, outcome="skipped", count=1)
        what = format_instant(reply.waits_for) if reply.waits_for else f"a slot of the limit {self._limit!r}"
        self._log(logging.INFO, "window_waits", self.window, "waits for %s", what)

    def renewal(self) -> Any:
        """Renew the slot with the lease."""
        assert self._limit is not None
        length = _length(lease_of(self.window, self.store, self.task))
        return slot_renewal(self.store, self._limit, self.key, self.owner, length)

    def on_renewed(self, lease: Lease, reply: object) -> None:
        """Say that the slot is lost, once."""
        if reply == "lost" and lease.state == "held":
            lease.renewed_with = tuple(each for each in lease.renewed_with if each is not self)
            text = "has lost its slot of the limit %r: it wasn't renewed in time. Its body continues"
            self._log(logging.WARNING, "slot_lost", replace(self.window, attempt=lease.attempt), text, self._limit)

    def on_end(self, *, over: bool) -> None:
        """Give the slot back."""
        if self._limit is not None:
            self._release(forget=over)

    def _release(self, *, forget: bool) -> None:
        """Give the slot back. If Redis doesn't answer, it ends as a lease does."""
        if self._limit is None or self._released:
            return
        try:
            release_slot(self.store, self._limit, self.key, self.owner, forget=forget)
        except OnceError as exc:
            logger.debug("once: slot of %r not released: %s", self._limit, exc)
        self._released = True  # last: an exception raised from outside during the release tries it again

    def _log(self, level: int, action: str, window: Window, text: str, *arguments: object) -> None:
        log_window(logger, level, action, window, text, *arguments, attempt=window.attempt, owner=self.owner)


def _length(lease: float) -> float:
    """Seconds for which a slot is held with a lease: it is acquired before that, and must outlast it."""
    return lease * 1.5 + 1.0
