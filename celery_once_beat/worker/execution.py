"""A task's execution of a window, for one delivery of a message; ``base`` describes its states.

A refused copy raises Ignore, which leaves no trace in the result. If the store doesn't answer, the message is put back
and comes again. A window is handed over to a retry before the retry's message is published, since another worker may
get that at once.

The end is recorded after Celery has finished the task: it has stored the result, sent the callbacks, and called hooks
and signals (``tracing``). If the process is killed before that, the window runs again, as with late acks. A stale
execution must report nothing. So if its lease may run out meanwhile, it asks the store as soon as the body has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry, WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_once_beat import signals
from celery_once_beat.errors import NewerVersionError, OnceError, StoreUnavailableError
from celery_once_beat.identity import delivery_name, execution_name
from celery_once_beat.logs import get_logger
from celery_once_beat.outcomes import OUTCOMES, Outcome
from celery_once_beat.store import RUNS_ALONE, Begun, Busy, Closed, Stale, Store, Waits
from celery_once_beat.windows import Window, check_retry

from .base import WindowExecution, is_death, lease_of
from .calls import notes_of
from .leases import End, Lease
from .message import DELIVERY
from .part import arguments_of, parts_of
from .put_back import put_back, send_again, store_answered, times_put_back
from .tracing import Trace, here, is_awaited_by_pool, run_and_close

if TYPE_CHECKING:
    from .task import OnceTask

#: Instead of what the body raised: it hasn't ended yet.
_RUNNING = BaseException()

logger = get_logger(__name__)


class Execution(WindowExecution):
    """From begin to the recorded end. Made for one call of a task's body."""

    logger = logger

    def __init__(self, task: OnceTask, request: Any, window: Window, store: Store) -> None:
        trace = here.trace
        delivery = (trace and trace.message.get(DELIVERY)) or getattr(request, DELIVERY, None)
        owner = execution_name(delivery or delivery_name(request.hostname))
        super().__init__(task, store, window, owner, lease_of(window, store, task), request.id)
        self.retry = check_retry(request.retries)
        self.parts = parts_of(task, store, window, self.key, owner)
        #: How the window ends, and with which exception: done, failed, rejected, or returned (what followed the body
        #: failed); '' while it doesn't.
        self._end: tuple[str, BaseException | None] = ("", None)

    def run(self, request: Any, body: Callable[[], Any]) -> Any:
        """Run ``body`` if the window is this delivery's; else raise Ignore. ``tracing`` records how it ended.

        The request refers to the execution, also for the task's hooks. The execution doesn't refer to the request: a
        cycle would stay in memory until the garbage collector's longest round.
        """
        if here.trace is None:  # not called through the task's tracer, so its end is recorded here
            return run_and_close(Trace(), self.run, request, body)
        if self.state == "asked":  # else it has begun for before_start
            self.begin(request)
        return self.run_body(body)

    def run_hook(self, hook: Callable[[], Any]) -> Any:
        """Run ``before_start``. If it raises, the window ends as if the body had raised."""
        try:
            result = hook()
        except BaseException as exc:
            self._decide(exc)
            raise
        return self._await(result, ends=False) if is_awaited_by_pool(result) else result

    # -- begin

    def begin(self, request: Any) -> None:
        """Begin the window if it is this delivery's; else raise Ignore, or what puts the message back."""
        try:
            for part in self.parts:
                part.before_begin(request)
            arguments = {"tracked": self.window.tracked, **arguments_of(self.parts)}
            asked = self.store.begin_request(self.key, self.owner, self.length, self.retry, **arguments)
            reply, sent = self.leases.begin(asked, self.length, self.undo_begin)
            store_answered()
            if not isinstance(reply, Begun):
                self._refuse(reply, request)
            self.own(reply, sent)
            self._tell_parts(reply)
        except (NewerVersionError, StoreUnavailableError) as exc:
            put_back(self.sender, request, exc)
        trace = here.trace
        assert trace is not None
        trace.executions.append(self)
        notes = notes_of(request)
        notes.execution, notes.context = self, self.context
        self.leases.hold(self.lease)
        signals.window_started.send(sender=self.sender, window=self.window)

    def _tell_parts(self, reply: Begun) -> None:
        """Tell features that it has begun. If one can't do its part, the begin is undone, and no attempt counts."""
        lease = self.lease
        try:
            lease.ends_at_once = reply.end_at_once
            for part in self.parts:
                lease.ends_at_once |= part.on_begin(lease)
        except BaseException:
            self.state = "asked"
            self.undo_begin(lease.renewal.fence)
            raise

    def _refuse(self, reply: Waits | Busy | Closed, request: Any) -> NoReturn:
        """Say why this copy of the message doesn't run."""
        for part in self.parts:
            part.on_refusal(reply)
        match reply:
            case Waits():  # a beat publishes the window again when its turn comes
                raise Ignore("window waits")
            case Busy(reason=reason) if reason == RUNS_ALONE:
                # No beat publishes the window again: if the other execution has died, only this copy is left.
                if not times_put_back(request):
                    text = "another execution runs, or has died: this copy is redelivered"
                    self.log(logging.INFO, "window_comes_again", text)
                send_again(self.sender, request, self.length)
            case Closed(outcome=outcome, why=why) if outcome:
                self._end_by_rule(OUTCOMES[outcome], why)
        reason = reply.reason if isinstance(reply, Busy) else "closed"
        self.log(logging.INFO, "window_refused", "this copy is refused: %s", reason)
        signals.window_refused.send(sender=self.sender, window=self.window, reason=reason)
        raise Ignore(f"window refused: {reason}")

    def _end_by_rule(self, outcome: Outcome, why: str) -> NoReturn:
        """Say that a rule of the entry has ended the window just now."""
        level = logging.ERROR if outcome.urgency else logging.INFO
        self.log(level, outcome.action, "is %s: %s", outcome.name, why or outcome.meaning)
        signals.window_abandoned.send(sender=self.sender, window=self.window, outcome=outcome.name)
        self.signal_closed(outcome.name)
        raise Ignore(f"window is {outcome.name}")

    # -- giving the window away

    def _send_give_back(self, fence: int) -> object:
        return self._send_hand_over(fence, self.retry, 0.0)

    def _send_hand_over(self, fence: int, retry: int, delay: float) -> Any:
        return self.store.hand_over(self.key, self.owner, fence, retry, delay, tracked=self.window.tracked)

    def hand_over(self, options: dict[str, Any], publish: Callable[[], Any]) -> Any:
        """Give the window to the retry that ``publish`` sends with these ``apply_async`` options; return its result."""
        retry, delay = options["retries"], _delay(options)
        try:
            self.ask_until_answered(lambda: self._hand_over(retry, delay))
        except BaseException:
            if self.state == "recorded":  # raised from outside: the retry goes out first
                publish()
            raise
        if self.state == "lost":
            raise Ignore("stale")  # retry() makes a Reject of it, which ends the body
        return publish()  # even if the store didn't answer: the retry finishes the window

    def _hand_over(self, retry: int, delay: float) -> None:
        self.lease.end()
        if isinstance(self._send_hand_over(self.lease.renewal.fence, retry, delay), Stale):
            self.lose()
        else:
            self.state = "recorded"
        self.leases.release(self.lease)

    # -- the body and its end

    def run_body(self, body: Callable[[], Any]) -> Any:
        """Run ``body``, and decide how its window ends.

        A soft time limit may be raised here at any instruction. Once the body has ended, its own end counts.
        """
        error: BaseException | None = _RUNNING
        try:
            try:
                result = body()
                if is_awaited_by_pool(result):
                    return self._await(result, ends=True)
                error = None
            except BaseException as exc:
                error = exc  # before any call
                self._decide(error)
                raise
            self._decide(None)
            return result
        except BaseException:
            if error is not _RUNNING:
                self._decide(error)  # it continues where it was
            raise
        finally:
            error = None  # else it and this frame would hold each other

    async def _await(self, awaited: Coroutine[Any, Any, Any], *, ends: bool) -> Any:
        """Await what the pool awaits, in another thread. ``ends``: when it returns, the body has ended."""
        try:
            result = await awaited
        except BaseException as exc:
            self._decide(exc)
            raise
        if ends:
            self._decide(None)
        return result

    def _decide(self, error: BaseException | None) -> None:
        """The body has ended: decide by what it raised how the window ends. Idempotent: a second call resumes.

        Raises Ignore if another execution has begun. If it was the process or the worker that ended, the window hasn't:
        recovery runs it again, as after any death.
        """
        if self.state == "ended":
            return
        if error is not None and is_death(error):
            if self.state == "running":
                self.state = "ended"
            if isinstance(error, Exception):
                # As when a worker is killed: no failure is stored, and no errback or failure hook is called.
                raise WorkerTerminate(EX_FAILURE) from error
            return
        if self.state == "running":
            match error:
                case None | Ignore():  # Ignore: the body decided that it is done. replace() ends so too.
                    self._end = "done", None
                case Reject() if error.requeue:  # type: ignore[attr-defined]  # celery-types lacks it
                    self._end = "rejected", None
                case _:
                    self._end = "failed", error
            self.check_lease()
        if self.state == "lost":
            raise Ignore("stale: the lease ran out, and the window isn't this execution's any more")
        if self.state == "running":
            self.state = "ended"

    def close(self, error: BaseException | None = None, *, at_once: bool = False) -> None:
        """Record the end, now that Celery has done the rest. Idempotent: a second call resumes.

        ``error`` is what was raised after the body had returned. It ends the window too: the process dies, or Celery
        can't store the result.
        """
        if error is not None and self.state == "ended" and self._end[0] == "done":
            self._end = ("", None) if is_death(error) else ("returned", error)
        outcome, failure = self._end
        later, lease = False, self.lease
        try:
            if self.state == "ended":
                later = not at_once and outcome == "done" and self._may_record_later(lease)
                if later:
                    request = self.store.finish_request(self.ending("done"))
                    self.leases.end_soon(End(lease, request, self._end_answered))
                    self.state = "recorded"
                else:
                    self._record(outcome, failure)
        finally:
            if not later:
                lease.state = "over"  # before any call: whatever may be raised into that one
                self.leases.release(lease)
        self._end = outcome, None  # else a traceback and this would hold each other
        for part in self.parts:
            part.on_end(over=False)

    def _record(self, outcome: str, error: BaseException | None) -> None:
        match outcome:
            case "done":
                self.record("done")
            case "failed" | "returned":
                # Nothing comes again after a Reject, after a Retry that was raised without retry(), or where nobody
                # recovers the window.
                final = isinstance(error, (Retry, Reject)) or not self.window.tracked
                again_after = self.store.settings.of_task("retry_failed_after", self.sender) or 0.0
                self.record(outcome, error, None if final else again_after)
            case "rejected":  # the same message comes again, and nothing died
                self.ask_until_answered(lambda: self._hand_over(self.retry, 0.0))

    def _may_record_later(self, lease: Lease) -> bool:
        """Whether the end may be recorded a little later, together with others.

        Not where somebody waits for it: receivers of signals, other windows, replicas. Nor if another could begin
        meanwhile.
        """
        return (
            not lease.ends_at_once
            and not self.store.settings.wait_replicas
            and not signals.window_succeeded.receivers
            and not signals.window_closed.receivers
            and lease.is_safe_for_long()
        )

    def _end_answered(self, reply: object) -> None:
        if isinstance(reply, OnceError):
            self.leave_unrecorded(reply)
        elif isinstance(reply, Stale):
            self.lose()


def _delay(options: dict[str, Any]) -> float:
    """Seconds until a message with these options is due.

    A naive eta is UTC, as Celery's worker reads it (``celery.worker.request.Request``). Raises as Celery does for what
    no date can be, before the window is given to a retry that can't be published.
    """
    eta, now = maybe_iso8601(options.get("eta")), datetime.now(timezone.utc)
    due = maybe_make_aware(eta) if eta else now + timedelta(seconds=options.get("countdown") or 0)
    return max((due - now).total_seconds(), 0.0)
