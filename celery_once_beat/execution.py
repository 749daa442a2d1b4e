"""One delivery's execution of a window: begin, the body, and how its end is recorded.

What if the process dies, or sleeps for an hour:

- before begin: the window stays published, and becomes overdue;
- between begin and finish: the lease runs out, a beat publishes the window again, another worker begins;
  who wakes up late is stale: nothing of it is recorded, and its result isn't reported;
- after finish: the window has its outcome; Celery's own result may be missing, as after any such death.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry
from celery.utils.log import get_logger

from . import signals
from .errors import NewerVersionError, StoreUnavailableError, UncertainWriteError
from .leases import Lease, leases_of
from .replies import Again, Begun, Closed, Stale
from .requests import WindowKey
from .store import Store, store_of
from .windows import Window, format_instant

if TYPE_CHECKING:
    from .task import OnceTask

__all__ = ("DELIVERY", "Execution", "new_owner")

logger = get_logger(__name__)

#: Where the worker's main process notes the owner, in the request of one delivery.
DELIVERY = "once_delivery"


def new_owner(hostname: str | None) -> str:
    """Return a name for one delivery of a message; a task id won't do, redelivery and retry reuse it."""
    host = re.sub(r"\s", "_", hostname or "?")[:100]
    return f"{host}:{uuid.uuid4().hex[:12]}"


_said: set[str] = set()


def put_back(task: OnceTask, request: Any, exc: Exception) -> NoReturn:
    """Publish the same message to come again later, the user's retries untouched; raises Ignore.

    Logged once for each reason, since a message may come back many times while a state lasts.
    """
    countdown = 5 * store_of(task.app).settings.recovery_interval
    if str(exc) not in _said:
        _said.add(str(exc))
        logger.warning("once: messages are put back for %s s: %s", countdown, exc, extra={"action": "window_put_back"})
    try:
        task.signature_from_request(request, countdown=countdown, retries=request.retries or 0).apply_async()
    except Exception as publish_error:  # noqa: BLE001  # every transport has errors of its own
        # Neither store nor broker: with late acks the broker has it still, else the window stays open.
        raise Reject(publish_error, requeue=True) from exc
    raise Ignore("put back") from exc


class Execution:
    """From begin to the recorded end. Made for one call of a task's body."""

    def __init__(self, task: OnceTask, request: Any, window: Window, store: Store) -> None:
        self.task = task
        self.request = request
        self.window = window
        self.store = store
        self.key = WindowKey(window.entry, window.start)
        self.owner = getattr(request, DELIVERY, None) or new_owner(request.hostname)
        self.retry = request.retries or 0
        self.length = float(task.once_lease or store.settings.lease)
        self.lease: Lease | None = None
        self.handed_over = False
        self.stale = False

    def run(self, body: Callable[[], Any]) -> Any:
        """Run ``body`` if the window is this delivery's; else raise Ignore, which leaves no trace."""
        try:
            lease = self._begin()
        except NewerVersionError as exc:
            put_back(self.task, self.request, exc)
        except StoreUnavailableError as exc:
            if not self.store.settings.run_without_store:
                put_back(self.task, self.request, exc)
            self._log(logger.warning, "window_unguarded", "runs without the store: %s", exc)
            self.request._once_execution = self
            return body()
        self.lease = lease
        self.request._once_execution = self
        leases = leases_of(self.store)
        leases.hold(lease)
        try:
            return self._run(body)
        finally:
            leases.release(lease)

    # -- begin ------------------------------------------------------------------------------------------------

    def _begin(self) -> Lease:
        sent, reply = self._ask_to_begin()
        if not isinstance(reply, Begun):
            self._refuse(reply)
        _said.clear()
        lease = Lease(self.key, self.owner, reply.fence, self.length, sent, tracked=self.window.tracked)
        self.window = replace(
            self.window, attempt=reply.attempt, fence=reply.fence, last_done=reply.last_done, _held=lease.held
        )
        return lease

    def _ask_to_begin(self) -> tuple[float, Any]:
        """Return when the request was sent that was answered, time.monotonic(), and its answer."""
        give_up = time.monotonic() + self.length / 2
        while True:
            sent = time.monotonic()
            try:
                reply = self.store.begin(self.key, self.owner, self.length, self.retry, tracked=self.window.tracked)
            except UncertainWriteError:
                # It has begun, but a failover could undo it: the same owner asks again, which writes again.
                if time.monotonic() > give_up:
                    self._give_back()
                    raise
                time.sleep(0.1)
            else:
                return sent, reply

    def _give_back(self) -> None:
        # No execution died here: without this the window would be abandoned while a replica is away.
        try:
            self.store.hand_over(
                self.key, self.owner, 0, self.retry, 0.0, self.store.settings.start_timeout, tracked=self.window.tracked
            )
        except StoreUnavailableError as exc:
            self._log(logger.debug, "window_kept", "not given back: %s", exc)

    def _refuse(self, reply: Any) -> NoReturn:
        if isinstance(reply, Closed) and reply.outcome:
            self._log(logger.error, "window_" + reply.outcome, "is %s, a limit was reached", reply.outcome)
            signals.window_abandoned.send(sender=self.task, window=self.window, outcome=reply.outcome)
        reason = "closed" if isinstance(reply, Closed) else reply.reason
        self._log(logger.info, "window_refused", "refused, this copy comes late: %s", reason)
        signals.window_refused.send(sender=self.task, window=self.window, reason=reason)
        raise Ignore(f"window refused: {reason}")

    # -- the body and its end ---------------------------------------------------------------------------------

    def _run(self, body: Callable[[], Any]) -> Any:
        signals.window_started.send(sender=self.task, window=self.window)
        try:
            result = body()
        except Retry:
            # Raised by hand, without retry(), nothing will come again.
            self._finish("failed")
            raise
        except Reject as exc:
            self._end_rejected(exc)
            raise
        except Ignore:
            # The body decided that it is done; replace() ends so too.
            self._finish("done")
            raise
        except Exception as exc:
            if self._finish("failed", self.task.once_retry_failed_after):
                signals.window_failed.send(sender=self.task, window=self.window, exception=exc)
            raise
        if self._finish("done"):
            signals.window_succeeded.send(sender=self.task, window=self.window)
        return result

    def _end_rejected(self, exc: Reject) -> None:
        if not exc.requeue:  # type: ignore[attr-defined]  # celery-types lacks it
            self._finish("failed")
            return
        if self.handed_over:
            return
        # The same message comes again: no death, so it hands over to its own retry number.
        self._patiently(lambda: self._hand_over(self.retry, 0.0))
        if self.stale:
            self._raise_stale()

    def hand_over(self, options: dict[str, Any]) -> None:
        """Give the window to the retry that is about to be published with these ``apply_async`` options."""
        if self.lease is None:
            return  # runs without the store
        self._patiently(lambda: self._hand_over(options["retries"], _delay(options)))
        if self.stale:
            raise Ignore("stale")  # retry() makes a Reject of it, whose end is told to the store and found stale
        # Also where the store didn't answer: the retry goes out, and whoever runs it finishes the window.
        self.handed_over = True

    def _hand_over(self, retry: int, delay: float) -> None:
        assert self.lease is not None
        start_timeout = self.store.settings.start_timeout
        reply = self.store.hand_over(
            self.key, self.owner, self.lease.fence, retry, delay, start_timeout, tracked=self.window.tracked
        )
        self.stale = isinstance(reply, Stale)
        self.handed_over = not self.stale
        leases_of(self.store).release(self.lease)

    def _finish(self, outcome: str, again_after: float | None = None) -> bool:
        """Record the outcome; returns whether it is certain, raises Ignore where this execution is stale.

        A window that was handed over to a retry is the retry's to finish, also if the body goes on after
        ``retry(throw=False)``.
        """
        if self.handed_over:
            return False
        assert self.lease is not None
        fence = self.lease.fence
        recorded = False

        def finish() -> None:
            nonlocal recorded
            reply = self.store.finish(self.key, self.owner, fence, outcome, again_after, tracked=self.window.tracked)
            self.stale = isinstance(reply, Stale)
            if isinstance(reply, Again):
                self._log(logger.warning, "window_again", "failed, runs again in %s s", again_after)
            recorded = True

        self._patiently(finish)
        if self.stale:
            self._raise_stale()
        return recorded

    def _patiently(self, send: Callable[[], None]) -> None:
        """Tell the store, for as long as a lease if need be: an outcome that is lost is a second execution."""
        give_up = time.monotonic() + self.length
        pause = 0.1
        while True:
            try:
                return send()
            except StoreUnavailableError as exc:
                if time.monotonic() + pause > give_up:
                    self._log(logger.error, "window_unrecorded", "end not recorded, it may run again: %s", exc)
                    return None
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _raise_stale(self) -> NoReturn:
        self._log(logger.error, "window_stale", "came back after its lease; its end isn't recorded")
        signals.window_stale.send(sender=self.task, window=self.window)
        raise Ignore("stale: the lease ran out and another execution has the window")

    def _log(self, log: Callable[..., None], action: str, text: str, *arguments: object) -> None:
        window = self.window
        start = format_instant(window.start)
        log(
            "once: window %s of %r " + text,
            start,
            window.entry,
            *arguments,
            extra={
                "action": action,
                "entry": window.entry,
                "start": start,
                "attempt": window.attempt,
                "owner": self.owner,
            },
        )


def _delay(options: dict[str, Any]) -> float:
    """Seconds until a message with these options is due."""
    eta = options.get("eta")
    if isinstance(eta, str):
        eta = datetime.fromisoformat(eta.replace("Z", "+00:00"))
    if isinstance(eta, datetime):
        if eta.tzinfo is None:
            eta = eta.replace(tzinfo=timezone.utc)
        return max((eta - datetime.now(timezone.utc)).total_seconds(), 0.0)
    return max(float(options.get("countdown") or 0), 0.0)
