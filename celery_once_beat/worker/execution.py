"""One delivery's execution of a window: the steps of ``protocol``, as a Celery task needs it.

A refused copy raises Ignore, which leaves no trace in the result. Where the store can't be asked, the message is put
back to come again. The window is handed to a retry before its message is published, since another worker may get it
at once. ``protocol`` says what else can go wrong.

The end is recorded after Celery has finished the task: callbacks sent, result stored, hooks and signals run
(``traced``). If the process is killed before that, the window runs again, as with late acks. A stale execution must
report nothing: if its lease may run out meanwhile, it asks the store as soon as the body ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded, WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.states import FAILURE
from celery.utils.log import get_logger

from celery_once_beat import signals
from celery_once_beat.clock import steady
from celery_once_beat.errors import NewerVersionError, OnceError, SettingError, StoreUnavailableError
from celery_once_beat.identity import delivery_name, execution_name, host_of
from celery_once_beat.logs import guarded, log_window
from celery_once_beat.outcomes import OUTCOMES, Outcome
from celery_once_beat.store import (
    RUNS_ALONE,
    Acquired,
    Begun,
    Busy,
    Closed,
    Full,
    Stale,
    Store,
    Waits,
    slot_length,
)
from celery_once_beat.windows import Window, check_retry, find_among, format_instant

from .leases import End
from .message import RAW, kept
from .notes import notes_of
from .protocol import WindowExecution, is_death
from .put_back import come_again, put_back, store_answered, times_put_back

if TYPE_CHECKING:
    from .task import OnceTask

#: Where the worker's main process notes the owner, in the request of one delivery.
DELIVERY = "once_delivery"
_OURS = frozenset((DELIVERY, RAW))
#: Times that a message with an unknown limit is put back, within about a minute.
_MOST_UNKNOWN = 12
#: In the place of what the body raised: it hasn't ended yet.
_RUNNING = BaseException()

logger = guarded(get_logger(__name__))


class Execution(WindowExecution):
    """From begin to the recorded end. Made for one call of a task's body."""

    logger = logger

    def __init__(self, task: OnceTask, request: Any, window: Window, store: Store) -> None:
        owner = execution_name(_tracing.delivery or getattr(request, DELIVERY, None) or delivery_name(request.hostname))
        length = float(window.lease or store.settings.of_task("lease", task))
        super().__init__(task, store, window, owner, length, request.id)
        self.retry = check_retry(request.retries)
        #: How the window ends, once its body has: done, failed or rejected; '' if it doesn't.
        self._outcome = ""
        #: What it failed with.
        self._error: BaseException | None = None
        #: Others wait for its end, as its begin was told.
        self._end_at_once = False

    def run(self, request: Any, body: Callable[[], Any]) -> Any:
        """Run ``body`` if the window is this delivery's; else raise Ignore. :func:`traced` records how it ended.

        The request holds the execution, for the task's hooks too, and not the other way round: so both are freed as
        soon as the task has ended. A cycle would stay until the garbage collector's longest round.
        """
        if _tracing.executions is None:  # another tracer than the task's called it, and nobody comes behind it
            return _then_close(lambda: self.run(request, body))
        if self.state == "asked":  # else it has begun for before_start
            self.start(request)
        return self.run_body(body)

    def start(self, request: Any) -> None:
        """Begin the window if it is this delivery's; else raise Ignore, or what puts the message back."""
        try:
            self._begin(request)
        except (NewerVersionError, StoreUnavailableError) as exc:
            put_back(self.sender, request, exc)
        assert _tracing.executions is not None
        _tracing.executions.append(self)
        notes_of(request).execution = self
        assert self.lease is not None
        self.leases.hold(self.lease)
        signals.window_started.send(sender=self.sender, window=self.window)

    def run_hook(self, hook: Callable[[], Any]) -> Any:
        """Run ``before_start``: what it raises ends the window, as what the body raises does."""
        try:
            result = hook()
        except BaseException as exc:
            self._decide(exc)
            raise
        return self._await(result) if is_awaited_by_pool(result) else result

    # -- begin

    def _begin(self, request: Any) -> None:
        """Begin, with a slot if the window has a limit; else raise Ignore, or what :meth:`start` puts it back for."""
        asked_at = steady()
        slot = self._acquire_slot(request)
        if self.retry and isinstance(slot, Full):  # a beat can't rebuild this retry's message: it comes again
            come_again(self.sender, request, self.store.settings.recovery_interval)
        reply = self.begin((self._limit or "") if isinstance(slot, Full) else "")
        store_answered()
        match reply:
            case Begun(end_at_once=end_at_once):
                self._end_at_once = end_at_once
                if self.limit is not None:
                    self._keep_slot(slot, asked_at)
            case Waits():
                self._wait(reply)
            case Busy(reason=reason):
                # An older copy doesn't remove its window from those that wait.
                self._release_slot(forget=reason == "running")
                if reason == RUNS_ALONE:
                    self._come_again_alone(request)
                self._refuse(reason)
            case Closed(outcome=outcome, why=why) if outcome:
                self._release_slot(forget=True)
                self._end_by_rule(OUTCOMES[outcome], why)
            case _:
                self._release_slot(forget=True)
                self._refuse("closed")

    def _send_begin(self, no_slot: str) -> Any:
        overlap = self.store.settings.of_task("overlap", self.sender)
        return self.leases.begin(
            self.key,
            self.owner,
            self.length,
            self.retry,
            tracked=self.window.tracked,
            overlap=overlap,
            no_slot=no_slot,
        )

    def _wait(self, reply: Waits) -> NoReturn:
        """A beat publishes the window again when its turn comes. Says which others this begin has passed over."""
        if reply.waits_for is not None:
            self._release_slot(forget=True)
        for start in reply.skipped:
            skipped, outcome = replace(self.window, start=start, end=None), OUTCOMES["skipped"]
            text = "is skipped: another one waits instead"
            log_window(logger, logging.INFO, outcome.action, skipped, text, owner=self.owner)
            signals.window_abandoned.send(sender=self.sender, window=skipped, outcome="skipped")
            signals.window_closed.send(sender=self.sender, window=skipped, outcome="skipped", count=1)
        what = format_instant(reply.waits_for) if reply.waits_for else f"a slot of the limit {self._limit!r}"
        self.log(logging.INFO, "window_waits", "waits for %s", what)
        raise Ignore("window waits")

    def _come_again_alone(self, request: Any) -> NoReturn:
        """No beat publishes the window again: if the other execution has died, only this copy is left."""
        if not times_put_back(request):
            self.log(logging.INFO, "window_comes_again", "another execution runs, or has died: this copy comes again")
        come_again(self.sender, request, self.length)

    def _end_by_rule(self, outcome: Outcome, why: str) -> NoReturn:
        """A rule that limits windows ended this one just now."""
        level = logging.ERROR if outcome.urgency else logging.INFO
        self.log(level, outcome.action, "is %s: %s", outcome.name, why or outcome.meaning)
        signals.window_abandoned.send(sender=self.sender, window=self.window, outcome=outcome.name)
        self.signal_closed(outcome.name)
        raise Ignore(f"window is {outcome.name}")

    def _refuse(self, reason: str) -> NoReturn:
        """Say why this copy of the message doesn't run."""
        self.log(logging.INFO, "window_refused", "refused, this copy comes late: %s", reason)
        signals.window_refused.send(sender=self.sender, window=self.window, reason=reason)
        raise Ignore(f"window refused: {reason}")

    # -- slots of limits

    @property
    def _limit(self) -> str | None:
        """The limit of which the window needs a slot."""
        return (self.window.limit or self.sender.once_limit) if self.window.tracked else None

    def _acquire_slot(self, request: Any) -> Acquired | Full | None:
        """Ask for a slot of the window's limit; None if it has none."""
        limit = self._limit
        if limit is None:
            return None
        most = self.store.settings.limits.get(limit)
        if most is None:
            self._leave_to_others(request, limit)
        slot = self.store.acquire_slot(limit, most, self.key, self.owner, slot_length(self.length))
        self.limit = limit if isinstance(slot, Acquired) else None
        return slot

    def _leave_to_others(self, request: Any, limit: str) -> NoReturn:
        """Put the message back for workers that know its limit.

        After _MOST_UNKNOWN times discard it: the limit may be gone, and while the message waits in workers no beat
        publishes the window anew.
        """
        if times_put_back(request) >= _MOST_UNKNOWN:
            self.store.discarded(self.key, self.retry, host_of(self.owner))
            why = "discarded, no worker that knows its limit %r has taken it"
            self.log(logging.WARNING, "window_discarded", why, limit)
            raise Ignore("limit unknown")
        put_back(
            self.sender,
            request,
            SettingError(
                f"limit {limit!r}: found in a message, expected in once_beat_limits of this worker; messages with "
                "it are left to workers that know it"
            ),
        )

    def _keep_slot(self, slot: Acquired | Full | None, asked_at: float) -> None:
        """Let its slot outlast the lease that it has just begun; else undo the begin, and raise StoreUnavailableError.

        The slot was acquired first, perhaps long ago: this process slept, or Redis was slow. If it may end first, or
        belonged to an execution that has died, renew it.
        """
        assert self.lease is not None
        assert self.limit is not None
        length = slot_length(self.length)
        if slot == Acquired() and self.lease.sent + self.length < asked_at + length:
            return
        try:
            if self.store.renew_slot(self.limit, self.key, self.owner, length, takes_over=True) and self.lease.held():
                return
        except OnceError:
            self._undo_begin(self.lease.renewal.fence)
            raise
        self._undo_begin(self.lease.renewal.fence)
        raise StoreUnavailableError(f"Redis answers later than a slot of the limit {self._limit!r} is held")

    def _undo_begin(self, fence: int) -> None:
        """Its body doesn't run, and no attempt counts."""
        self.lease, self.limit, self.state = None, None, "asked"
        self._give_back(fence)

    def _release_slot(self, *, forget: bool = False) -> None:
        """Give the slot back. If Redis doesn't answer, it ends as a lease does."""
        limit = self._limit
        if limit is None:
            return
        try:
            self.store.release_slot(limit, self.key, self.owner, forget=forget)
        except OnceError as exc:
            logger.debug("once: slot of %r not released: %s", limit, exc)
        self.limit = None  # last: an exception raised from outside during the release tries it again

    # -- giving back

    def _send_give_back(self, fence: int) -> object:
        return self._send_hand_over(fence, self.retry, 0.0)

    def _send_hand_over(self, fence: int, retry: int, delay: float) -> Any:
        start_timeout = self.store.settings.start_timeout
        return self.store.hand_over(
            self.key, self.owner, fence, retry, delay, start_timeout, tracked=self.window.tracked
        )

    # -- the body and its end

    def run_body(self, body: Callable[[], Any]) -> Any:
        """Run ``body``, and decide how its window ends.

        An exception may be raised into this at any instruction, as a soft time limit is. If the body has ended, its
        own end counts.
        """
        error: BaseException | None = _RUNNING
        try:
            try:
                result = body()
                if is_awaited_by_pool(result):
                    return self._await_body(result)
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

    async def _await_body(self, body: Coroutine[Any, Any, Any]) -> Any:
        """The same for a body that the pool awaits, in another thread."""
        result = await self._await(body)
        self._decide(None)
        return result

    async def _await(self, awaited: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await awaited
        except BaseException as exc:
            self._decide(exc)
            raise

    def _decide(self, error: BaseException | None) -> None:
        """The body has ended: decide by what it raised how the window ends. Called again, it continues where it was.

        Raises Ignore if another has begun. If the process or the worker ends, the window doesn't: recovery runs it
        again, as after any death.
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
                    self._outcome = "done"
                case Reject() if error.requeue:  # type: ignore[attr-defined]  # celery-types lacks it
                    self._outcome = "rejected"
                case _:
                    self._outcome, self._error = "failed", error
            self.check_lease()
        if self.state == "lost":
            raise Ignore("stale: the lease ran out and another execution has the window")
        if self.state == "running":
            self.state = "ended"

    def close(self, error: BaseException | None = None, *, at_once: bool = False) -> None:
        """Record the end, now that Celery has done the rest. Called again, it continues where it was.

        ``error`` is what was raised after the body had returned. It ends the window too: the process dies, or Celery
        can't store the result.
        """
        if error is not None and self.state == "ended" and self._outcome == "done":
            self._outcome, self._error = ("", None) if is_death(error) else ("failed", error)
        waits = False
        try:
            if self.state == "ended":
                waits = not at_once and self._outcome == "done" and self._end_may_wait()
                if waits:
                    self._end_soon()
                else:
                    self._record()
        finally:
            if self.lease is not None and not waits:
                self.lease.state = "over"  # before any call: whatever may be raised into that one
                self.leases.release(self.lease)
        self._error = None  # else its traceback and this would hold each other
        if self.limit is not None:
            self._release_slot()

    def _record(self) -> None:
        match self._outcome:
            case "done":
                self.record("done")
            case "failed":
                # Nothing comes again after a Reject, after a Retry that was raised without retry(), or for a key.
                final = isinstance(self._error, (Retry, Reject)) or self.window.keyed
                again_after = self.store.settings.of_task("retry_failed_after", self.sender) or 0.0
                self.record("failed", self._error, None if final else again_after)
            case "rejected":  # the same message comes again, and nothing died
                self.tell(lambda: self._hand_over(self.retry, 0.0))

    def _end_may_wait(self) -> bool:
        """Whether the end may be recorded a little later, together with others.

        Not where somebody waits for it: receivers of signals, windows of an entry that run one by one, replicas. Nor if
        another could begin meanwhile.
        """
        return (
            self.lease is not None
            and not self._end_at_once
            and self.limit is None
            and not self.store.settings.wait_replicas
            and not signals.window_succeeded.receivers
            and not signals.window_closed.receivers
            and self.lease.held_for_long()
        )

    def _end_soon(self) -> None:
        assert self.lease is not None
        self.leases.end_soon(End(self.lease, self.ending("done"), self._end_answered))
        self.state = "recorded"

    def _end_answered(self, reply: object) -> None:
        if isinstance(reply, OnceError):
            self.leave_unrecorded(reply)
        elif isinstance(reply, Stale):
            self.lose()

    def hand_over(self, options: dict[str, Any], publish: Callable[[], Any]) -> Any:
        """Give the window to the retry that ``publish`` sends with these ``apply_async`` options; return its result."""
        retry, delay = options["retries"], _delay(options)
        try:
            self.tell(lambda: self._hand_over(retry, delay))
        except BaseException:
            if self.state == "recorded":  # raised from outside: the retry goes out first
                publish()
            raise
        if self.state == "lost":
            raise Ignore("stale")  # retry() makes a Reject of it, which ends the body
        return publish()  # even if the store couldn't be told: the retry finishes the window

    def _hand_over(self, retry: int, delay: float) -> None:
        assert self.lease is not None
        self.lease.end()
        if isinstance(self._send_hand_over(self.lease.renewal.fence, retry, delay), Stale):
            self.lose()
        else:
            self.state = "recorded"
        self.leases.release(self.lease)


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


# -- the tracer


class _Tracing(threading.local):
    """What the tracer of this thread runs."""

    #: The execution of its task, once it has begun; None outside of any tracer.
    executions: list[Execution] | None = None
    #: The name of its delivery.
    delivery: str | None = None
    #: Whether this is a thread to which a pool has handed the body on: it awaits what that returns.
    handed_on: bool = False


_tracing = _Tracing()


@dataclass
class _Traced:
    """A window's message that is traced, and what has begun of it."""

    message: dict[str, Any]
    args: Any
    kwargs: Any
    executions: list[Execution]

    @cached_property
    def request(self) -> Context:
        """Celery's request of it, for other threads than the tracer's."""
        return Context(_without_ours(self.message), args=self.args, kwargs=self.kwargs, called_directly=False)


#: Also in the threads to which a pool's tracer hands the body on, as celery-aio-pool's does.
_traced: ContextVar[_Traced | None] = ContextVar("once_traced", default=None)


def _without_ours(message: dict[str, Any]) -> dict[str, Any]:
    """Return a request's fields without ours: Celery gives a retry what it doesn't know there, as headers.

    A copy: the worker's main process may have the same object.
    """
    return {name: value for name, value in message.items() if name not in _OURS}


def is_handed_on(name: str) -> bool:
    """Whether a tracer has handed the body of a window's message on to this thread, and that hasn't begun yet."""
    carried = _traced.get()
    if carried is None or carried.message.get("task") != name:
        return False
    return not carried.executions or notes_of(carried.request).before is not None


@contextmanager
def as_traced(task: OnceTask) -> Iterator[None]:
    """Let the thread to which a pool has handed the body on be as its tracer's: that records the end behind it."""
    carried = _traced.get()
    assert carried is not None
    message = carried.message
    outer = vars(_tracing).copy(), kept.message
    vars(_tracing).update(executions=carried.executions, delivery=message.get(DELIVERY), handed_on=True)
    kept.message = message.get(RAW)
    task.request_stack.push(carried.request)
    try:
        yield
    finally:
        task.request_stack.pop()
        vars(_tracing).clear()
        before, kept.message = outer
        vars(_tracing).update(before)


def is_awaited_by_pool(result: object) -> TypeGuard[Coroutine[Any, Any, Any]]:
    """Whether the pool awaits what a body has returned."""
    return _tracing.handed_on and isinstance(result, Coroutine)


def last_traced(task: OnceTask) -> Execution | None:
    """Return the execution of ``task`` that this thread's tracer has begun, also once Celery has taken its request.

    Where a pool's tracer hands hooks on, that tracer is another thread's.
    """
    carried = _traced.get()
    executions = _tracing.executions or (carried.executions if carried else ())
    return next((each for each in reversed(executions) if each.sender is task), None)


def is_traced() -> bool:
    """Whether the task's own tracer runs in this thread."""
    return _tracing.executions is not None


def traced(trace: Callable[..., Any], uuid: str, args: Any, kwargs: Any, request: dict[str, Any] | None = None) -> Any:
    """Trace a task by Celery's ``trace``, and then record the end of its window, if its message is one's.

    If Celery fails the task although its body returned, the window has failed too. A soft time limit that is reached
    when the task has ended concerns nobody any more.
    """
    if not request or find_among(request, request.get("headers")) is None:
        return trace(uuid, args, kwargs, request)
    ended: list[Any] = []
    message, outer = request, (_tracing.delivery, kept.message)
    _tracing.delivery, kept.message = request.get(DELIVERY), request.get(RAW)
    request = _without_ours(message)

    def run() -> Any:
        assert _tracing.executions is not None
        token = _traced.set(_Traced(message, args, kwargs, _tracing.executions))
        try:
            ended.append(trace(uuid, args, kwargs, request))
        finally:
            _traced.reset(token)
        return ended[0]

    try:
        return _then_close(run, _failure)
    except SoftTimeLimitExceeded:
        if not ended:
            raise
        return ended[0]
    finally:
        _tracing.delivery, kept.message = outer


def _failure(traced: Any, raised: BaseException | None) -> BaseException | None:
    """Return what a task failed with, from what its tracer returned or raised."""
    if raised is not None:
        return None if isinstance(raised, Reject) else raised  # a hook's, about the message
    info = getattr(traced, "info", None)
    return info.retval if info is not None and info.state == FAILURE else None


def _then_close(
    run: Callable[[], Any], failure: Callable[[Any, BaseException | None], BaseException | None] | None = None
) -> Any:
    """Call ``run``; then record the end of the window that was executed in it, if there was one.

    ``failure`` says from what ``run`` returned, or raised, whether something failed after the body. Without it the end
    is recorded at once.
    """
    outer = _tracing.executions
    executions: list[Execution] = []
    result, raised = None, None

    def close() -> None:
        for execution in executions:
            execution.close(failure(result, raised) if failure else None, at_once=not failure)

    _tracing.executions = executions
    try:
        try:
            result = run()
        except BaseException as exc:
            raised = exc
            raise
        finally:
            _tracing.executions = outer
            close()
    except BaseException:
        close()  # it continues where it was
        raise
    finally:
        raised = None  # else it and this frame would hold each other
    return result
