"""One delivery's execution of a window: begin, the body, and how its end is recorded.

What if the process dies, or sleeps for an hour:

- before begin: the window stays published, and becomes overdue;
- between begin and finish: the lease runs out, a beat publishes the window again, another worker begins;
  who wakes up late is stale: nothing of it is recorded, and its result isn't reported;
- a soft time limit before the body, within begin: the same; nobody renews, and nothing has failed;
- before the reply to begin is read: a lease that has run out by then isn't acted on, it is asked for again;
- a soft time limit after the body, while its end is told: it waits until that is done, and goes on then;
- after finish: the window has its outcome; Celery's own result may be missing, as after any such death.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry, WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger

from celery_once_beat import signals
from celery_once_beat.clock import steady
from celery_once_beat.errors import NewerVersionError, OnceError, StoreUnavailableError, UncertainWriteError
from celery_once_beat.identity import delivery_name, execution_name
from celery_once_beat.logs import about
from celery_once_beat.store import RUNS_ALONE, Again, Begun, Busy, Closed, Finished, Stale, Store
from celery_once_beat.windows import Window, check_retry, format_instant, key_of

from .leases import Lease, is_death, leases_of, tell
from .put_back import come_again, put_back, store_answered, times_put_back

if TYPE_CHECKING:
    from .task import OnceTask

__all__ = ("DELIVERY", "Execution")

logger = get_logger(__name__)

#: Where the worker's main process notes the owner, in the request of one delivery.
DELIVERY = "once_delivery"
#: Stands for "the body hasn't ended yet", in the place of what it raised.
_RUNNING = BaseException()
#: How often a begin may be answered only after the lease that it asked for, before the message is put back.
_LATE_BEGINS = 3


class Execution:
    """From begin to the recorded end. Made for one call of a task's body."""

    def __init__(self, task: OnceTask, request: Any, window: Window, store: Store) -> None:
        self.task = task
        self.window = window
        self.store = store
        self.key = key_of(window)
        self.owner = execution_name(getattr(request, DELIVERY, None) or delivery_name(request.hostname))
        self.retry = check_retry(request.retries)
        self.lease_seconds = float(task.once_lease or store.settings.lease)
        #: None while the body runs without the store.
        self.lease: Lease | None = None
        self.without_store = False
        self.handed_over = False
        self.stale = False
        #: The store's answer to the end. ``_told`` is True also where the store couldn't be reached.
        self._answer: Finished | Again | Stale | None = None
        self._told = False
        #: Nothing is left to do for the end.
        self._recorded = False

    def run(self, request: Any, body: Callable[[], Any]) -> Any:
        """Run ``body`` if the window is this delivery's; else raise Ignore, which leaves no trace.

        The request holds the execution, for the task's hooks too, and not the other way round: so both go as soon as
        the task has ended. In a cycle they would stay until the garbage collector's longest round.
        """
        try:
            lease = self._begin(request)
        except NewerVersionError as exc:
            put_back(self.task, request, exc)
        except StoreUnavailableError as exc:
            if not self.store.settings.run_without_store:
                put_back(self.task, request, exc)
            self._log(logger.warning, "window_unguarded", "runs without the store: %s", exc)
            self.without_store = True
            request._once_execution = self
            return self._run(body)
        leases = leases_of(self.store)
        try:
            request._once_execution = self
            leases.hold(lease)
            return self._run(body)
        finally:
            lease.over = True  # before any call: whatever may be raised into that one
            leases.release(lease)

    # -- begin ------------------------------------------------------------------------------------------------

    def _begin(self, request: Any) -> Lease:
        sent, reply = self._ask_to_begin()
        store_answered()
        if isinstance(reply, Busy) and reply.reason == RUNS_ALONE:
            # No beat publishes it again: this copy is all that is left of it if the other has died.
            if not times_put_back(request):
                self._log(logger.info, "window_comes_again", "runs, or has died: this copy comes again")
            come_again(self.task, request, self.lease_seconds)
        if not isinstance(reply, Begun):
            self._refuse(reply)
        return self._own(sent, reply)

    def _own(self, sent: float, reply: Begun) -> Lease:
        lease = Lease(
            self.key,
            self.owner,
            reply.fence,
            self.lease_seconds,
            sent,
            tracked=self.window.tracked,
            attempt=reply.attempt,
        )
        self.window = replace(
            self.window, attempt=reply.attempt, fence=reply.fence, last_done=reply.last_done, _held=lease.held
        )
        self.lease = lease
        return lease

    def _send_begin(self) -> Any:
        skip = self.task.once_overlap == "skip"
        return self.store.begin(
            self.key, self.owner, self.lease_seconds, self.retry, tracked=self.window.tracked, skip=skip
        )

    def _ask_to_begin(self) -> tuple[float, Any]:
        """Return when the request was sent that was answered, by ``clock.steady``, and its answer.

        Raises StoreUnavailableError, with the window given back, where no answer could be acted on. The same owner
        may ask again: it has begun once all the same.
        """
        give_up = time.monotonic() + self.lease_seconds / 2
        late = 0
        while True:
            sent = steady()
            try:
                reply = self._send_begin()
            except UncertainWriteError:
                # It has begun, but a failover could undo it: asking again writes again.
                if time.monotonic() > give_up:
                    self._give_back(0)
                    raise
                time.sleep(0.1)
                continue
            if not isinstance(reply, Begun) or steady() < sent + self.lease_seconds:
                return sent, reply
            # The reply was slow, or this process slept: the lease has run out, or may have.
            late += 1
            if late == _LATE_BEGINS:
                self._give_back(reply.fence)
                raise StoreUnavailableError(
                    f"Redis answers a begin later than the lease of {self.lease_seconds:g} s "
                    "(once_lease, once_beat_lease) runs out"
                )

    def _give_back(self, fence: int) -> None:
        # No execution died here: without this the window would be abandoned while a replica is away.
        try:
            self._send_hand_over(fence, self.retry, 0.0)
        except OnceError as exc:
            self._log(logger.debug, "window_not_given_back", "not given back: %s", exc)

    def _send_hand_over(self, fence: int, retry: int, delay: float) -> Any:
        start_timeout = self.store.settings.start_timeout
        return self.store.hand_over(
            self.key, self.owner, fence, retry, delay, start_timeout, tracked=self.window.tracked
        )

    def _begin_afterwards(self) -> bool:
        """Take the window of a body that ran without the store; returns whether it is this execution's to end.

        Asked once: the body has ended, and its task shall too.
        """
        sent = steady()
        try:
            reply = self._send_begin()
        except UncertainWriteError:
            # It has begun, under a fence that isn't known.
            reply = Begun(0, self.window.attempt, self.window.last_done)
        except OnceError as exc:
            self._log_unrecorded(exc)
            return False
        if not isinstance(reply, Begun):
            reason = "closed" if isinstance(reply, Closed) else reply.reason
            self._log(logger.warning, "window_unrecorded", "ran without the store, its end isn't recorded: %s", reason)
            return False
        self._own(sent, reply)
        return True

    def _refuse(self, reply: Any) -> NoReturn:
        if isinstance(reply, Closed) and reply.outcome:
            # No copy that comes late: the window ends here.
            if reply.outcome == "skipped":
                self._log(logger.info, "window_skipped", "is skipped: another window of its entry runs")
            else:
                self._log(logger.error, "window_" + reply.outcome, "is %s, a limit was reached", reply.outcome)
            signals.window_abandoned.send(sender=self.task, window=self.window, outcome=reply.outcome)
            raise Ignore(f"window is {reply.outcome}")
        reason = "closed" if isinstance(reply, Closed) else reply.reason
        self._log(logger.info, "window_refused", "refused, this copy comes late: %s", reason)
        signals.window_refused.send(sender=self.task, window=self.window, reason=reason)
        raise Ignore(f"window refused: {reason}")

    # -- the body and its end ---------------------------------------------------------------------------------

    def _run(self, body: Callable[[], Any]) -> Any:
        """Run ``body``, and record how it ended, whatever it raises of an Exception.

        Something may be raised into this at any instruction, as a soft time limit is. Once the body has ended, its own
        end is what is recorded, and the rest goes on.
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
        """Record how the body ended, by what it raised; called once more, it goes on where it was.

        What ends the process or the worker is no end of the window's: nothing is recorded, so that recovery runs it
        again, as after any other death.
        """
        if self._recorded:
            return
        if error is None or isinstance(error, Ignore):
            # The body decided that it is done; replace() ends so too.
            self._succeed()
        elif is_death(error):
            self._recorded = True
            if isinstance(error, Exception):
                # As in a worker's harder ends: no failure is stored, and no errback or hook for one is called.
                raise WorkerTerminate(EX_FAILURE) from error
        elif isinstance(error, Reject):
            self._end_rejected(error)
        else:
            # A Retry that was raised by hand, without retry(): nothing will come again. Nor is a key's window published
            # again.
            final = isinstance(error, Retry) or self.window.keyed
            self._fail(error, None if final else self.task.once_retry_failed_after)
        self._recorded = True

    def _succeed(self) -> None:
        if self._finish("done"):
            self._recorded = True  # before its signal: a receiver hears it once
            signals.window_succeeded.send(sender=self.task, window=self.window)

    def _fail(self, exc: BaseException, again_after: float | None = None) -> None:
        if self._finish("failed", again_after):
            self._recorded = True
            signals.window_failed.send(sender=self.task, window=self.window, exception=exc)

    def _end_rejected(self, exc: Reject) -> None:
        if not exc.requeue:  # type: ignore[attr-defined]  # celery-types lacks it
            self._fail(exc)
            return
        if self.handed_over or self.lease is None:
            return
        # The same message comes again: no death, so it hands over to its own retry number.
        if not (self.stale or self._told):
            self._patiently(lambda: self._hand_over(self.retry, 0.0))
        if self.stale:
            self._raise_stale()

    def hand_over(self, options: dict[str, Any], publish: Callable[[], Any]) -> Any:
        """Give the window to the retry that ``publish`` sends with these ``apply_async`` options; return its result."""
        try:
            if self.lease is not None or self._begin_afterwards():
                self._patiently(lambda: self._hand_over(options["retries"], _delay(options)))
        except BaseException:
            if self.handed_over:  # something was raised into it, and goes on once the retry is out
                publish()
            raise
        if self.stale:
            raise Ignore("stale")  # retry() makes a Reject of it, whose end is told to the store and found stale
        # Also where it couldn't be told: the retry goes out, and whoever runs it finishes the window.
        self.handed_over = True
        return publish()

    def _hand_over(self, retry: int, delay: float) -> None:
        assert self.lease is not None
        self.lease.ending = True
        reply = self._send_hand_over(self.lease.fence, retry, delay)
        self.stale = isinstance(reply, Stale)
        self.handed_over = not self.stale
        leases_of(self.store).release(self.lease)

    def _finish(self, outcome: str, again_after: float | None = None) -> bool:
        """Record the outcome; returns whether it is recorded and final.

        False where it will run again (``again_after`` seconds later), where it couldn't be recorded, and where the
        window was handed over to a retry, which is to finish it, also if the body goes on after
        ``retry(throw=False)``. Raises Ignore where this execution is stale.
        """
        if self.handed_over:
            return False
        if not self._told and (self.lease is not None or self._begin_afterwards()):
            self._patiently(lambda: self._send_finish(outcome, again_after))
        self._told = True
        if self.stale:
            self._raise_stale()
        if isinstance(self._answer, Again):
            self._log(logger.warning, "window_runs_again", "failed, runs again in %g s", self._answer.after)
        return isinstance(self._answer, Finished)

    def _send_finish(self, outcome: str, again_after: float | None) -> None:
        assert self.lease is not None
        self.lease.ending = True
        self._answer = self.store.finish(
            self.key, self.owner, self.lease.fence, outcome, again_after, tracked=self.window.tracked
        )
        self.stale, self._told = isinstance(self._answer, Stale), True

    def _patiently(self, send: Callable[[], None]) -> None:
        """Tell the store, for as long as a lease; a body that ran without the store has had its try."""
        tell(send, 0.0 if self.without_store else self.lease_seconds, self._log_unrecorded)

    def _log_unrecorded(self, exc: OnceError) -> None:
        log = logger.warning if self.without_store else logger.error
        self._log(log, "window_unrecorded", "end not recorded, it may run again: %s", exc)

    def _raise_stale(self) -> NoReturn:
        self._recorded = True
        self._log(logger.error, "window_stale", "came back after its lease; its end isn't recorded")
        signals.window_stale.send(sender=self.task, window=self.window)
        raise Ignore("stale: the lease ran out and another execution has the window")

    def _log(self, log: Callable[..., None], action: str, text: str, *arguments: object) -> None:
        window = self.window
        log(
            "once: window %s of %r " + text,
            format_instant(window.start),
            window.entry,
            *arguments,
            extra=about(action, window, attempt=window.attempt, owner=self.owner),
        )


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
