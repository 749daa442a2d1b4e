"""One delivery's execution of a window: the protocol of ``turn``, as a Celery task needs it.

A refused copy raises Ignore, which leaves no trace in the result. Where the store can't be asked, the message is put
back to come again. A retry is given the window before its message is published, since the message can reach another
worker before this execution has returned. ``turn`` says what else can go wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry, WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger

from celery_once_beat import signals
from celery_once_beat.errors import NewerVersionError, StoreUnavailableError
from celery_once_beat.identity import delivery_name, execution_name
from celery_once_beat.outcomes import OUTCOMES
from celery_once_beat.store import RUNS_ALONE, Begun, Busy, Closed, Stale, Store
from celery_once_beat.windows import Window, check_retry

from .leases import leases_of
from .put_back import come_again, put_back, store_answered, times_put_back
from .turn import Turn, WindowTask, is_death, reason_of, wait_for

#: Where the worker's main process notes the owner, in the request of one delivery.
DELIVERY = "once_delivery"
#: In the place of what the body raised: it hasn't ended yet.
_RUNNING = BaseException()


class Execution(Turn):
    """From begin to the recorded end. Made for one call of a task's body."""

    logger = get_logger(__name__)

    def __init__(self, task: WindowTask, request: Any, window: Window, store: Store) -> None:
        owner = execution_name(getattr(request, DELIVERY, None) or delivery_name(request.hostname))
        super().__init__(task, store, window, owner, float(window.lease or store.settings.of_task("lease", task)))
        self.task = task
        self.retry = check_retry(request.retries)

    def run(self, request: Any, body: Callable[[], Any]) -> Any:
        """Run ``body`` if the window is this delivery's; else raise Ignore.

        The request holds the execution, for the task's hooks too, and not the other way round: so both are freed as
        soon as the task has ended. A cycle would stay until the garbage collector's longest round.
        """
        try:
            self._begin(request)
        except NewerVersionError as exc:
            put_back(self.task, request, exc)
        except StoreUnavailableError as exc:
            if not self.store.settings.run_without_store:
                put_back(self.task, request, exc)
            self.run_without_store(exc)
        lease = self.lease
        try:
            request._once_execution = self
            if lease is not None:
                leases_of(self.store).hold(lease)
            return self._run(body)
        finally:
            if lease is not None:
                lease.over = True  # before any call: whatever may be raised into that one
                leases_of(self.store).release(lease)

    # -- begin

    def _begin(self, request: Any) -> None:
        wait_for(self.begin)
        store_answered()
        reply = self.reply
        if isinstance(reply, Begun):
            return
        if isinstance(reply, Busy) and reply.reason == RUNS_ALONE:
            # No beat publishes it again: if the other execution has died, only this copy is left.
            if not times_put_back(request):
                self.log(
                    logging.INFO, "window_comes_again", "another execution runs, or has died: this copy comes again"
                )
            come_again(self.task, request, self.length)
        if isinstance(reply, Closed) and reply.outcome:
            # A limit ended the window just now.
            outcome = OUTCOMES[reply.outcome]
            level = logging.ERROR if outcome.urgency else logging.INFO
            self.log(level, outcome.action, "is %s: %s", outcome.name, outcome.meaning)
            signals.window_abandoned.send(sender=self.task, window=self.window, outcome=outcome.name)
            self.tell_closed(outcome.name)
            raise Ignore(f"window is {outcome.name}")
        reason = reason_of(reply)
        self.log(logging.INFO, "window_refused", "refused, this copy comes late: %s", reason)
        signals.window_refused.send(sender=self.task, window=self.window, reason=reason)
        raise Ignore(f"window refused: {reason}")

    def _send_begin(self) -> Any:
        overlap = self.store.settings.of_task("overlap", self.task)
        return self.store.begin(
            self.key, self.owner, self.length, self.retry, tracked=self.window.tracked, overlap=overlap
        )

    def _send_give_back(self, fence: int) -> object:
        return self._send_hand_over(fence, self.retry, 0.0)

    def _send_hand_over(self, fence: int, retry: int, delay: float) -> Any:
        start_timeout = self.store.settings.start_timeout
        return self.store.hand_over(
            self.key, self.owner, fence, retry, delay, start_timeout, tracked=self.window.tracked
        )

    # -- the body and its end

    def _run(self, body: Callable[[], Any]) -> Any:
        """Run ``body``, and record how it ended.

        An exception may be raised into this at any instruction, as a soft time limit is. If the body has ended, its
        own end is recorded first.
        """
        signals.window_started.send(sender=self.task, window=self.window)
        error: BaseException | None = _RUNNING
        try:
            try:
                result = body()
                error = None
            except BaseException as exc:
                error = exc  # before any call
                self._record(error)
                raise
            self._record(None)
            return result
        except BaseException:
            if error is not _RUNNING:
                self._record(error)  # it goes on where it was
            raise
        finally:
            error = None  # else it and this frame would hold each other

    def _record(self, error: BaseException | None) -> None:
        """Record how the body ended, by what it raised; called again, it goes on where it was.

        If the process or the worker ends, the window doesn't: recovery runs it again, as after any death.
        """
        if self._recorded:
            return
        if error is None or isinstance(error, Ignore):
            # Ignore: the body decided that it is done. replace() ends so too.
            self.succeed()
        elif is_death(error):
            self._recorded = True
            if isinstance(error, Exception):
                # As when a worker is killed: no failure is stored, and no errback or failure hook is called.
                raise WorkerTerminate(EX_FAILURE) from error
        elif isinstance(error, Reject) and error.requeue:  # type: ignore[attr-defined]  # celery-types lacks it
            self._give_back_rejected()
        else:
            # Nothing comes again after a Reject, after a Retry that was raised without retry(), or for a key.
            final = isinstance(error, (Retry, Reject)) or self.window.keyed
            again_after = self.store.settings.of_task("retry_failed_after", self.task) or None
            self.fail(error, None if final else again_after)
        self._recorded = True

    def _give_back_rejected(self) -> None:
        """Hand the window over to its own retry number: the same message comes again, and nothing died."""
        if self.handed_over or self.lease is None:
            return
        if not (self.stale or self._told):
            self.tell(lambda: self._hand_over(self.retry, 0.0))
        if self.stale:
            self.end_stale()

    def end_stale(self) -> NoReturn:
        """As a turn's; then raise Ignore, so that its result isn't reported."""
        super().end_stale()
        raise Ignore("stale: the lease ran out and another execution has the window")

    def hand_over(self, options: dict[str, Any], publish: Callable[[], Any]) -> Any:
        """Give the window to the retry that ``publish`` sends with these ``apply_async`` options; return its result."""
        try:
            if self.lease is not None or self.begin_afterwards():
                self.tell(lambda: self._hand_over(options["retries"], _delay(options)))
        except BaseException:
            if self.handed_over:  # raised from outside: the retry goes out first
                publish()
            raise
        if self.stale:
            raise Ignore("stale")  # retry() makes a Reject of it; when that end is told, it is found stale
        # Even if the store couldn't be told: the retry goes out, and finishes the window.
        self.handed_over = True
        return publish()

    def _hand_over(self, retry: int, delay: float) -> None:
        assert self.lease is not None
        self.lease.ending = True
        reply = self._send_hand_over(self.lease.renewal.fence, retry, delay)
        self.stale = isinstance(reply, Stale)
        self.handed_over = not self.stale
        leases_of(self.store).release(self.lease)


def _delay(options: dict[str, Any]) -> float:
    """Seconds until a message with these options is due.

    A naive eta is UTC, as Celery's worker reads it (``celery.worker.request.Request``, ``maybe_make_aware``). Raises as
    Celery does for what no date can be, before the window is given to a retry that can't be published.
    """
    eta = options.get("eta")
    if isinstance(eta, str):
        eta = datetime.fromisoformat(eta.replace("Z", "+00:00"))
    if isinstance(eta, datetime):
        if eta.tzinfo is None:
            eta = eta.replace(tzinfo=timezone.utc)
        return max((eta - datetime.now(timezone.utc)).total_seconds(), 0.0)
    now = datetime.now(timezone.utc)
    return max((now + timedelta(seconds=options.get("countdown") or 0) - now).total_seconds(), 0.0)
