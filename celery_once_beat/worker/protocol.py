"""One execution of a window under its lease: begin, own, end. Written once, for tasks and for ``once()``.

Who decides
-----------
The store does, by the server's clock. An execution asks whether it may begin, and reports how it ended. In between it
trusts its lease, counted from before the request was sent, and ``leases`` renews that.

``begin`` and ``StoreRequest.step`` are steps: each asks the store once and returns how many seconds to wait before it
is called again, or None when it is settled. Only ``wait_for`` and ``see_through`` sleep. ``execution`` is for
tasks, ``keyed`` for ``once()``. In asyncio all of it runs in threads: ``awaited``.

What each failure does
----------------------
The process dies, or sleeps for an hour and continues:

- Before begin: the window stays published, and becomes overdue.
- Before it reads the reply to begin: a lease that may have run out isn't acted on, begin is asked again.
- While the body runs: the lease runs out, a beat publishes the window again, another worker begins. Nobody publishes a
  key of ``once()``: its next caller begins. Whoever wakes up late is stale, and nothing of it is recorded.
- After the body, before the end is recorded: the same, though Celery may have stored the result and sent callbacks. If
  it slept, and another has begun since, it can't take that result back.
- After the end is recorded: the window has its outcome, and of a task Celery has done all that it does.

The store or the network fails:

- A reply is lost: the same owner asks again. Every verb answers its owner as it did the first time.
- Too few replicas confirm begin (``once_beat_wait_replicas``): the body doesn't run. Begin is asked again for half a
  lease, then the window is given back.
- The store is away at begin: the body doesn't run. A task's message is put back, ``once()`` raises.
- The store is away at the end: the end is sent for as long as a lease, then logged. The body's result counts.

A block of ``once()`` is cancelled by asyncio: it is given back, since neither its body nor its process has failed.

An exception is raised into it from outside, at any instruction (a soft time limit, gevent's Timeout):

- Within begin: nobody renews the lease, and nothing has failed. The window runs again.
- After the body: it waits until the end is recorded, and continues then.
"""

from __future__ import annotations

import inspect
import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from celery import Celery

from celery_once_beat import signals
from celery_once_beat.clock import steady
from celery_once_beat.effects import Effects
from celery_once_beat.errors import EXCEPTION_GROUP, OnceError, StoreUnavailableError, UncertainWriteError
from celery_once_beat.logs import about
from celery_once_beat.store import (
    Again,
    Begun,
    Busy,
    Closed,
    Elsewhen,
    Ending,
    Finished,
    Renewal,
    Stale,
    Store,
    Waits,
    raised,
)
from celery_once_beat.windows import Window, format_instant, key_of
from celery_once_beat.wording import failure_words, printable

from .leases import Lease

#: After so many begins whose answer came later than their lease, the window is given back.
_LATE_BEGINS = 3

BeginReply = Begun | Waits | Busy | Closed | Elsewhen


class WindowTask(Protocol):
    """What executions need of a task; ``task.OnceTask`` is one."""

    name: str
    once_lease: float | None
    once_overlap: str | None
    once_limit: str | None
    once_retry_failed_after: float | None

    @property
    def app(self) -> Celery[Any]:
        """The task's app."""

    def signature_from_request(self, request: Any = None, *more: Any, **options: Any) -> Any:
        """Return the signature that sends the message of ``request`` once more."""

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """Send the task."""


class WindowExecution(ABC):
    """From begin to the recorded end. ``length`` is that of the lease, in seconds."""

    logger: logging.Logger

    def __init__(self, sender: object, store: Store, window: Window, owner: str, length: float) -> None:
        #: The ``sender`` of signals.
        self.sender = sender
        self.store = store
        self.effects = Effects(lambda: store.settings)
        #: Once begun, with its attempt, fence and lease.
        self.window = replace(window, _effects=self.effects)
        self.key = key_of(window)
        self.owner = owner
        self.length = length
        #: The answer to begin; None while there is none.
        self.reply: BeginReply | None = None
        #: None before begin.
        self.lease: Lease | None = None
        #: The limit of which it has a slot.
        self.limit: str | None = None
        self.handed_over = False
        self.stale = False
        self._begin_until = time.monotonic() + length / 2
        self._late_begins = 0
        self._answer: Finished | Again | Stale | None = None
        #: Its failure, as alerts and readers show it.
        self._failure = ""
        #: Until when requests to the store are repeated, once the body has ended; by time.monotonic().
        self._record_until: float | None = None
        #: True also if the store couldn't be reached.
        self._end_sent = False
        #: Nothing is left to do for the end.
        self._recorded = False

    @abstractmethod
    def _send_begin(self) -> BeginReply: ...

    @abstractmethod
    def _send_give_back(self, fence: int) -> object:
        """Undo a begin, so that it doesn't count as an execution that died. ``fence`` is 0 if it isn't known."""

    # -- begin

    def begin(self) -> float | None:
        """Ask once; a step. If no answer can be acted on, gives the window back and raises StoreUnavailableError."""
        sent = steady()
        try:
            reply = self._send_begin()
        except UncertainWriteError:
            # It has begun, but a failover could undo that. Asking again writes again.
            if time.monotonic() > self._begin_until:
                self._give_back(0)
                raise
            return 0.1
        if isinstance(reply, Begun):
            if steady() >= sent + self.length:  # a slow reply, or this process slept
                self._late_begins += 1
                if self._late_begins < _LATE_BEGINS:
                    return 0.0
                self._give_back(reply.fence)
                raise StoreUnavailableError(
                    f"Redis answers a begin later than the lease of {self.length:g} s "
                    "(the entry's lease, once_lease, once_beat_lease) runs out"
                )
            self._own(sent, reply)
        self.reply = reply
        return None

    def _own(self, sent: float, reply: Begun) -> None:
        renewal = Renewal(self.key, self.owner, reply.fence, self.length, self.window.tracked, self.limit)
        self.lease = Lease(renewal, reply.attempt, sent)
        self.window = replace(
            self.window, attempt=reply.attempt, fence=reply.fence, last_done=reply.last_done, _held=self.lease.held
        )

    def _give_back(self, fence: int) -> None:
        try:
            self._send_give_back(fence)
        except OnceError as exc:
            self.log(logging.DEBUG, "window_not_given_back", "not given back: %s", exc)

    # -- the end

    def succeed(self) -> None:
        """Record that the body is done."""
        if self._finish("done"):
            self._recorded = True  # before its signal: a receiver hears it once
            signals.window_succeeded.send(sender=self.sender, window=self.window)
            self.signal_closed("done")

    def fail(self, exc: BaseException, again_after: float | None) -> None:
        """Record that the body failed; with ``again_after`` the window may run again so many seconds later."""
        self._failure = failure_words(exc, self.store.settings.failure_text)
        if self._finish("failed", again_after):
            self._recorded = True
            failure = self._failure
            signals.window_failed.send(sender=self.sender, window=self.window, exception=exc, failure=failure)
            self.signal_closed("failed")

    def signal_closed(self, outcome: str) -> None:
        """Signal that the window has ended."""
        signals.window_closed.send(sender=self.sender, window=self.window, outcome=outcome, count=1)

    def _finish(self, outcome: str, again_after: float | None = None) -> bool:
        """Record ``outcome``; returns whether it is recorded and final. Called again, it continues where it was.

        A window that was handed over to a retry is for that to finish, also if the body continues after
        ``retry(throw=False)``.
        """
        if self.handed_over:
            return False
        if not self._end_sent:
            self.send_end(lambda: self._send_finish(outcome, again_after))
        self._end_sent = True
        if self.stale:
            self.end_stale()
        if isinstance(self._answer, Again):
            why = f" ({printable(self._failure)})" if self._failure else ""
            self.log(logging.WARNING, "window_runs_again", "failed%s, runs again in %g s", why, self._answer.after)
        return isinstance(self._answer, Finished)

    def _send_finish(self, outcome: str, again_after: float | None) -> None:
        assert self.lease is not None
        self.lease.ending = True
        fence = self.lease.renewal.fence
        tracked, failure = self.window.tracked, self._failure
        self._answer = self.store.finish(Ending(self.key, self.owner, fence, outcome, again_after, tracked, failure))
        self.stale, self._end_sent = isinstance(self._answer, Stale), True

    def send_end(self, send: Callable[[], object]) -> None:
        """Tell the store for as long as a lease."""
        see_through(StoreRequest(send, self._seconds_to_record(), self.log_unrecorded))

    def _seconds_to_record(self) -> float:
        now = time.monotonic()
        if self._record_until is None:
            self._record_until = now + self.length
        return max(self._record_until - now, 0.0)

    def check_lease(self) -> None:
        """Ask the store whether another has begun, unless the lease is certainly held, and will be for long enough.

        If the store doesn't answer, the body's end stands.
        """
        lease = self.lease
        if lease is None or lease.over or lease.held_for_long():
            return

        def ask() -> None:
            sent = steady()
            (reply,) = self.store.renew_many([lease.renewal])
            if isinstance(raised(reply), Stale):
                self.stale = True
            else:
                lease.sent = sent

        see_through(StoreRequest(ask, self._seconds_to_record(), lambda _: None))

    def end_stale(self) -> None:
        """Another has begun: say so, and record nothing."""
        self._recorded = True
        self.log(logging.ERROR, "window_stale", "came back after its lease; its end isn't recorded")
        signals.window_stale.send(sender=self.sender, window=self.window)

    def log_unrecorded(self, exc: OnceError) -> None:
        """Say that the end isn't recorded, and why."""
        self.log(logging.ERROR, "window_unrecorded", "end not recorded, it may run again: %s", exc)

    def log(self, level: int, action: str, text: str, *arguments: object) -> None:
        """Log a line about the window."""
        window, text = self.window, "once: window %s of %r " + text
        extra = about(action, window, attempt=window.attempt, owner=self.owner)
        self.logger.log(level, text, format_instant(window.start), window.entry, *arguments, extra=extra)


def reason_of(reply: object) -> str:
    """Say why a begin was refused."""
    if isinstance(reply, Waits):
        return "it waits"
    return reply.reason if isinstance(reply, Busy) else "closed"


# -- waiting


def wait_for(step: Callable[[], float | None]) -> None:
    """Call ``step`` until it is settled."""
    while (seconds := step()) is not None:
        time.sleep(seconds)


class StoreRequest:
    """A request to the store that is sent again for ``seconds``: a lost end costs another execution.

    If the store doesn't answer by then, ``unrecorded`` gets the error: at once for a foreign key or a newer version.
    """

    def __init__(self, send: Callable[[], object], seconds: float, unrecorded: Callable[[OnceError], None]) -> None:
        self._send = send
        self.unrecorded = unrecorded
        self._give_up = time.monotonic() + seconds
        self._pause = 0.1

    def step(self) -> float | None:
        """Send it once; a step."""
        try:
            self._send()
        except OnceError as exc:
            pause = self._pause
            if isinstance(exc, StoreUnavailableError) and time.monotonic() + pause <= self._give_up:
                self._pause = min(pause * 2, 2.0)
                return pause
            self.unrecorded(exc)
        return None


def see_through(request: StoreRequest) -> None:
    """Call its step until it is settled. An exception raised from outside meanwhile is raised then.

    A second exception from outside is raised at once.
    """
    seconds: float | None = 0.0
    raised: BaseException | None = None
    try:
        while seconds is not None:
            try:
                if seconds:
                    time.sleep(seconds)
                seconds = request.step()
            except BaseException as exc:
                if raised is not None:
                    raise
                raised, seconds = exc, 0.0  # asked again: every verb answers its owner as it did the first time
        if raised is not None:
            raise raised
    finally:
        raised = None  # else it and this frame would hold each other


# -- what came out of a body


def is_awaited(result: object) -> bool:
    """Whether what a body returned is to be awaited: then nothing of an ``async def`` has run."""
    return inspect.isawaitable(result) or inspect.isasyncgen(result)


def close_unrun(result: object) -> None:
    """Close what a body returned and nobody runs, a coroutine say: else Python warns of it, at any time."""
    if hasattr(result, "close"):
        result.close()


def is_death(error: BaseException) -> bool:
    """Whether what a body raised is the end of its process or worker.

    SystemExit and KeyboardInterrupt are. So is what Celery's signal handler raises, at a cold shutdown for example, if
    the body runs in the worker's main thread (solo). That can be any Exception, known by the frame that raised it.
    """
    if not isinstance(error, Exception):
        return True
    return any(
        frame.f_globals.get("__name__") == "celery.apps.worker"
        for each in _all_of(error)
        for frame, _ in traceback.walk_tb(each.__traceback__)
    )


def _all_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception with its causes, its contexts and the members of groups. A loop: a chain may be long."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            left += each.__cause__, each.__context__
            if isinstance(each, EXCEPTION_GROUP):  # not whatever else has something of that name
                left += each.exceptions
