"""The base of executions: one execution of a window under its lease, from begin to the recorded end.

Who decides
-----------
The store does, by the server's clock. An execution asks whether it may begin, and reports how it ended. In between it
trusts its lease, which counts from before the request was sent; ``leases`` renews it. ``execution`` derives from this
for tasks, ``features/keyed`` for ``once()``. In asyncio all of it runs in threads (``background``).

The states of an execution
--------------------------
::

    asked ── Begun ──> running ── the body ends ──> ended ── the store knows it ─> recorded
      │                   │                           │
      │                   ├── a retry has the window ─────────────────────────────> recorded
      v                   v                           v
    refused, and         lost <────── it is stale ────┘
    forgotten

- *asked*: the store is asked whether it may begin.
- *running*: the window is its own; its body runs, or a task's hooks before that. Its lease is renewed.
- *ended*: the body has ended, and it is known what to record: done, failed, rejected; nothing, if the process or the
  worker dies.
- *recorded*: nothing is left to do. The store knows the end, or didn't answer, or ``leases`` sends the end with this
  process's next begin. Or a retry has the window, even if the body continues after that.
- *lost*: nothing of it may be reported or recorded.

What each failure does
----------------------
The process dies, or sleeps for an hour and continues:

- Before begin: the window stays published, and becomes overdue.
- Before it reads the reply to begin: a lease that may have run out isn't acted on, begin is asked again.
- While the body runs: the lease runs out, a beat publishes the window again, another worker begins. For a key of
  ``once()`` the next caller begins. An execution that wakes up has the window again, or is stale
  (``store/protocol.py``): then nothing of it is recorded.
- After the body, before the end is recorded: the same. Celery may have stored the result and sent the callbacks by
  then; a stale execution can't take those back.
- After the end is recorded: the window has its outcome, and Celery has finished the task.

The store or the network fails:

- A reply is lost: the same owner asks again, up to three times in one call, and is given the same right. If none of
  them is answered, the message is put back, and is redelivered with another owner. A begin that was carried out then
  counts as an execution that died.
- Too few replicas confirm begin (``once_beat_wait_replicas``): the body doesn't run. Begin is asked again for half a
  lease, then the window is given back.
- The store is away at begin: the body doesn't run. A task's message is put back, ``once()`` raises.
- The store is away at the end: the end is sent for as long as a lease, then logged. The body's result counts.

asyncio cancels a block of ``once()``: the window is given back, since neither the body nor the process has failed.

An exception is raised from outside, at any instruction (a soft time limit, gevent's Timeout):

- Within begin: nobody renews the lease, and nothing has failed. The window runs again.
- After the body: the exception is raised once the end is recorded.
"""

from __future__ import annotations

import inspect
import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal, TypeVar

from celery_once_beat import signals
from celery_once_beat.backoff import Backoff
from celery_once_beat.clock import steady
from celery_once_beat.errors import EXCEPTION_GROUP, OnceError, StoreUnavailableError
from celery_once_beat.features import hooks
from celery_once_beat.logs import log_window
from celery_once_beat.store import Again, Begun, Ending, Finished, Renewal, Stale, Store, raised
from celery_once_beat.windows import BodyContext, Window, changed, key_of
from celery_once_beat.wording import MOST_FAILURE, failure_words, printable

from .leases import Lease, leases_of

T = TypeVar("T")

#: The states of an execution, as described above.
State = Literal["asked", "running", "ended", "recorded", "lost"]


class WindowExecution(ABC):
    """From begin to the recorded end. ``length`` is that of the lease, in seconds."""

    logger: logging.Logger
    #: Its own from its begin on.
    lease: Lease

    def __init__(
        self, sender: Any, store: Store, window: Window, owner: str, length: float, sent_as: str | None = None
    ) -> None:
        #: The ``sender`` of signals: the task, or the ``once`` object.
        self.sender = sender
        self.store = store
        self.leases = leases_of.of(store)
        #: In which the body runs.
        self.context = context_class()(lambda: store.settings)
        #: Once begun, with its attempt, fence and lease.
        self.window = changed(window, _context=self.context)
        self.key = key_of(window, sent_as)
        self.owner = owner
        self.length = length
        self.state: State = "asked"
        #: Until when the end is sent again, once the body has ended; by time.monotonic().
        self._record_until: float | None = None

    @abstractmethod
    def _send_give_back(self, fence: int) -> object:
        """Undo a begin, so that it doesn't count as an execution that died; see :meth:`undo_begin`."""

    # -- begin

    def own(self, reply: Begun, sent: float) -> None:
        """Run from now on: the store has answered so to a begin that was ``sent`` then, by ``clock.steady``."""
        renewal = Renewal(self.key, self.owner, reply.fence, self.length, self.window.tracked)
        self.lease = Lease(renewal, reply.attempt, sent)
        self.window = changed(
            self.window, attempt=reply.attempt, fence=reply.fence, last_done=reply.last_done, _held=self.lease.held
        )
        self.state = "running"

    def undo_begin(self, fence: int) -> None:
        """Give the window back, which has begun in vain. ``fence`` is 0 if it isn't known."""
        try:
            self._send_give_back(fence)
        except OnceError as exc:
            self.log(logging.DEBUG, "window_not_given_back", "not given back: %s", exc)

    # -- the end

    def record(self, outcome: str, error: BaseException | None = None, again_after: float | None = None) -> None:
        """Record how the body ended. Idempotent: the store answers a second call as the first.

        ``error`` is what it failed with; where it ``returned``, what failed after it. ``again_after`` is
        ``again`` of :class:`Ending`.
        """
        returned = outcome == "returned"
        if returned:
            outcome = "failed"
        failure = "" if error is None else failure_words(error, self.store.settings.failure_text)
        if failure and returned:
            failure = f"the body returned; Celery couldn't finish the task: {failure}"[:MOST_FAILURE]
        ending = self.ending(outcome, failure, again_after)._replace(returned=returned)
        match self.ask_until_answered(lambda: self.store.finish(ending)):
            case Finished():
                self.state = "recorded"  # before its signals: a receiver hears them once
                if error is None:
                    signals.window_succeeded.send(sender=self.sender, window=self.window)
                else:
                    signals.window_failed.send(sender=self.sender, window=self.window, exception=error, failure=failure)
                self.signal_closed(outcome)
            case Again(after=after):
                self.state = "recorded"
                why = f" ({printable(failure)})" if failure else ""
                self.log(logging.WARNING, "window_runs_again", "failed%s, runs again in %g s", why, after)
            case Stale():
                self.lose()

    def ending(self, outcome: str, failure: str = "", again_after: float | None = None) -> Ending:
        """Return the end as the store is to record it. From now on another may begin, so the lease isn't held."""
        self.lease.end()
        fence = self.lease.renewal.fence
        return Ending(self.key, self.owner, fence, outcome, again_after, self.window.tracked, failure)

    def signal_closed(self, outcome: str) -> None:
        """Signal that the window has ended."""
        signals.window_closed.send(sender=self.sender, window=self.window, outcome=outcome, count=1)

    def ask_until_answered(self, send: Callable[[], T]) -> T | None:
        """Call ``send`` until the store answers, for as long as a lease. None if it doesn't: nothing is left to do."""
        return ask_until_answered(send, self.seconds_to_record(), self.leave_unrecorded)

    def seconds_to_record(self) -> float:
        """Return for how long the store is still asked; the first call starts that time."""
        now = time.monotonic()
        if self._record_until is None:
            self._record_until = now + self.length
        return max(self._record_until - now, 0.0)

    def check_lease(self) -> None:
        """Ask the store whether another has begun, unless the lease is certainly held, and will be for long enough.

        If the store doesn't answer, the body's end stands.
        """
        lease = self.lease
        if lease.is_safe_for_long():
            return

        def ask() -> None:
            sent = steady()
            (reply,) = self.store.renew_many([lease.renewal])
            if isinstance(raised(reply), Stale):
                self.lose()
            else:
                lease.sent = sent

        ask_until_answered(ask, self.seconds_to_record(), lambda _: None)

    def lose(self) -> None:
        """Another has begun: say so, once, and record nothing."""
        if self.state != "lost":
            self.state = "lost"
            self.log(logging.ERROR, "window_stale", "came back after its lease; its end isn't recorded")
            signals.window_stale.send(sender=self.sender, window=self.window)

    def leave_unrecorded(self, exc: OnceError) -> None:
        """Say that the end can't be recorded, and why."""
        self.state = "recorded"
        self.log(logging.ERROR, "window_unrecorded", "end not recorded, it may run again: %s", exc)

    def log(self, level: int, action: str, text: str, *arguments: object) -> None:
        """Log a line about the window."""
        more = {"attempt": self.window.attempt, "owner": self.owner}
        log_window(self.logger, level, action, self.window, text, *arguments, **more)


def lease_of(window: Window, store: Store, task: Any) -> float:
    """Return for how many seconds the lease of a task's execution lasts."""
    return float(window.lease or store.settings.of_task("lease", task))


def ask_until_answered(send: Callable[[], T], seconds: float, unanswered: Callable[[OnceError], None]) -> T | None:
    """Call ``send`` until the store answers, for ``seconds``: a lost end costs another execution.

    If the store doesn't answer by then, ``unanswered`` gets the error: at once for a foreign key or a newer version. An
    exception that is raised from outside meanwhile is raised when that is settled, and a second one at once.
    """
    give_up, pause, backoff = time.monotonic() + seconds, 0.0, Backoff(0.1, 2.0)
    answer: T | None = None
    failed: OnceError | None = None
    outside: BaseException | None = None
    try:
        while True:
            try:
                if failed is not None:
                    unanswered(failed)
                    break
                if pause:
                    time.sleep(pause)
                answer = send()
                break
            except OnceError as exc:
                pause = backoff.next()
                if not isinstance(exc, StoreUnavailableError) or time.monotonic() + pause > give_up:
                    failed = exc
            except BaseException as exc:
                if outside is not None:
                    raise
                outside, pause = exc, 0.0  # asked again: every verb answers its owner as it did the first time
        if outside is not None:
            raise outside
        return answer
    finally:
        failed = outside = None  # else they and this frame would hold each other


# -- a body


@cache
def context_class() -> type[BodyContext]:
    """Return the class of the contexts in which bodies run, with what features add."""
    return type("BodyContext", (*hooks("task", "AroundBody"), BodyContext), {})


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
