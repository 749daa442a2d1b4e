"""A worker's main process records the ends of windows whose task can't: it was killed, or never saw the message.

The main process runs an event loop. So a thread sends this to the store (``errands``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from logging import ERROR, INFO, WARNING
from typing import Any, Literal, NamedTuple

from celery.app.task import Context
from celery.exceptions import TimeLimitExceeded
from celery.signals import task_revoked, task_unknown
from celery.utils.imports import symbol_by_name
from celery.utils.time import maybe_iso8601
from celery.worker import request as base
from celery.worker import state
from celery.worker.request import Request

from celery_once_beat import signals
from celery_once_beat.errors import OnceError, SettingError
from celery_once_beat.identity import delivery_name, execution_name, worker_name
from celery_once_beat.logs import Logged, about, get_logger, log_window
from celery_once_beat.outcomes import OUTCOMES
from celery_once_beat.store import Begun, Closed, Confirmed, Ending, Finished, Stale, Store
from celery_once_beat.windows import Window, WindowKey, check_retry, decode_headers, find_among, key_of
from celery_once_beat.wording import failure_words, printable

from .base import lease_of
from .errands import errands_of
from .message import DELIVERY, RAW, kept_of
from .part import arguments_of, parts_of

logger = get_logger(__name__)

#: Seconds to keep trying while Redis doesn't answer. Later, recovery would be as quick.
_PATIENCE = 30.0
#: The (entry, task) pairs whose discarded messages were logged: each is logged once.
_unknown = Logged()
#: Entries of which it was logged that this machine's clock is ahead: once.
_ahead = Logged()


class OnceRequest(Request):
    """Celery's request in the main process. It names the delivery of a window's message; the child knows the name."""

    def __init__(self, message: Any, **options: Any) -> None:
        headers = message.headers if options.get("headers") is None else options["headers"]
        if find_among(headers, headers.get("headers")) is None:  # most messages have no window
            super().__init__(message, **options)
            return
        kept = kept_of(message)  # before Celery writes into its headers
        super().__init__(message, **options)
        request = self.request_dict
        request[DELIVERY], request[RAW] = delivery_name(self.hostname), kept

    def maybe_expire(self) -> Literal[True] | None:
        """As Celery's, which adds the id of an expired message to the revoked ones, here and in other workers.

        All copies of a window share that id. If this machine's clock is ahead, the next copy would be discarded too.
        """
        revoked: Any = base.revoked_tasks  # type: ignore[attr-defined]
        known = self.id in revoked
        expired = super().maybe_expire()
        if expired and not known and DELIVERY in self.request_dict:
            revoked.discard(self.id)
        return expired

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001  # the base's
        """A hard limit kills the child, and with it the end of the execution; its outcome is failed.

        The execution has ended whatever the base raises: it stores a result, and newer versions call the task's own
        hooks.
        """
        self.task.request_stack.push(Context(self.request_dict, called_directly=False))  # for the hooks' self.window
        try:
            super().on_timeout(soft, timeout)
        finally:
            self.task.request_stack.pop()
            self._end_timed_out(timeout, soft=soft)

    def _end_timed_out(self, timeout: float, *, soft: bool) -> None:
        task = self.task
        keeps = getattr(task, "acks_on_timeout", None)
        if keeps is None:
            keeps = task.acks_on_failure_or_timeout
        if soft or state.should_terminate or (task.acks_late and not keeps):
            return  # if the broker delivers it again, it is for recovery to run it again
        _end(task, self.request_dict, "failed", killed=True, error=TimeLimitExceeded(timeout))


def request_class(task: Any) -> type[OnceRequest]:
    """Return the class of the task's requests: ours, combined with the task's own if it has one.

    Raises SettingError if the two can't be combined.
    """
    theirs = symbol_by_name(task.Request)
    why = "it isn't one"
    if isinstance(theirs, type) and issubclass(theirs, Request):
        if issubclass(theirs, OnceRequest):
            return theirs
        try:
            return type(theirs.__name__, (OnceRequest, theirs), {"__module__": theirs.__module__})
        except TypeError as exc:
            why = str(exc)
    raise SettingError(
        f"task {task.name!r}, Request: found {theirs!r}, expected a subclass of celery.worker.request.Request that can "
        f"be combined with OnceRequest ({why}); derive it from celery_once_beat.worker.request.OnceRequest"
    )


@task_revoked.connect(weak=False)
def _on_revoked(sender: Any, request: Any, *, terminated: bool, expired: bool, **_: Any) -> None:
    if getattr(sender, "once_closes_windows", False):
        _end(sender, vars(request), "expired" if expired else "revoked", killed=terminated)


@task_unknown.connect(weak=False)
def _on_unknown(sender: Any, message: Any, name: str, **_: Any) -> None:
    """A message was discarded since this worker doesn't know its task: beats were deployed before it, for example.

    Its window would wait for ``start_timeout``. Now it is published again soon, and may meet another worker. An
    untracked window isn't; its message is logged as discarded all the same.
    """

    def send(store: Store, delivery: Delivery) -> None:
        store.close_window(delivery.key, worker_name(sender.hostname), "unknown", delivery.retry)

    window = _record(sender.app, message.headers, "discarded", send, 0.0)
    if window is not None and _unknown.is_new((window.entry, name)):
        text = (
            "was discarded: this worker doesn't know the task %r that the queue %r brings; deploy workers before beats"
        )
        queue = (message.delivery_info or {}).get("routing_key")
        log_window(logger, ERROR, "window_discarded", window, text, name, queue)


def _end(task: Any, request: dict[str, Any], outcome: str, *, killed: bool, error: BaseException | None = None) -> None:
    """Record ``outcome`` of the delivery ``request``; if the store doesn't answer, recovery ends the window.

    ``error`` is the reason of a failure.
    """
    expires = _read_expires(request.get("expires"))  # many may wait: the message itself isn't kept

    def send(store: Store, delivery: Delivery) -> None:
        window = delivery.window
        if not window.tracked:
            return
        recorded = _finish_killed(store, task, delivery, outcome, error) if killed else None
        if recorded is None and outcome != "failed":
            recorded = _close(store, delivery, outcome, expires)
        for part in parts_of(task, store, window, delivery.key, delivery.owner):
            part.on_end(over=bool(recorded))
        if recorded:
            more = {"attempt": window.attempt, "owner": delivery.owner}
            log_window(logger, INFO, OUTCOMES[outcome].action, window, "is %s", outcome, **more)
            signals.window_closed.send(sender=task, window=window, outcome=outcome, count=1)

    _record(task.app, request, outcome, send)


def fail_unread(task: Any, message: Any, hostname: str, error: Exception) -> None:
    """Record that the window of a message failed which Celery discards unread: its content isn't accepted, say.

    If the store doesn't answer, a beat publishes the window again.
    """
    owner = execution_name(delivery_name(hostname))

    def send(store: Store, delivery: Delivery) -> None:
        window, key = delivery.window, delivery.key
        length = lease_of(window, store, task)
        arguments = arguments_of(parts_of(task, store, window, key, owner))
        begun = store.begin(key, owner, length, delivery.retry, tracked=window.tracked, **arguments)
        if not isinstance(begun, Begun):
            return
        again_after = (store.settings.of_task("retry_failed_after", task) or 0.0) if window.tracked else None
        failure = failure_words(error, store.settings.failure_text)
        reply = store.finish(Ending(key, owner, begun.fence, "failed", again_after, window.tracked, failure))
        if isinstance(reply, Finished):
            text, more = "is failed, its message can't be read: %s", {"attempt": begun.attempt, "owner": owner}
            log_window(logger, ERROR, OUTCOMES["failed"].action, window, text, printable(failure), **more)
            signals.window_closed.send(sender=task, window=window, outcome="failed", count=1)

    _record(task.app, message.headers, "failed", send)


def _finish_killed(
    store: Store, task: Any, delivery: Delivery, outcome: str, error: BaseException | None
) -> bool | None:
    """Record the end of an execution that was killed; returns whether its window has ended. None: it hadn't begun.

    Nor has it if it was killed after its lease, and another has begun: nothing failed, recovery may run it again.
    """
    again_after = store.settings.of_task("retry_failed_after", task) or 0.0 if outcome == "failed" else None
    failure = failure_words(error, store.settings.failure_text) if error is not None else ""
    # Only the child knows its fence.
    reply = store.finish(Ending(delivery.key, delivery.owner, 0, outcome, again_after, failure=failure))
    return None if isinstance(reply, Stale) else isinstance(reply, Finished)


def _close(store: Store, delivery: Delivery, outcome: str, expires: datetime | None) -> bool:
    """Record that a copy that nobody runs was discarded; returns whether that has ended its window.

    It has expired or was revoked, and this delivery hasn't begun. An older copy ends nothing.
    """
    reply = store.close_window(delivery.key, delivery.owner, outcome, delivery.retry, expires)
    if isinstance(reply, Confirmed) and _ahead.is_new(delivery.window.entry):
        text = (
            "was discarded: it has expired by this machine's clock, which is ahead of the Redis server's. A beat "
            "publishes it again; set this clock right (NTP)"
        )
        log_window(logger, WARNING, "window_discarded", delivery.window, text)
    return isinstance(reply, Closed)


class Delivery(NamedTuple):
    """What the store records of a delivery. It is small, since many may wait."""

    window: Window
    key: WindowKey
    owner: str
    retry: int


def _record(
    app: Any, request: Any, outcome: str, send: Callable[[Store, Delivery], None], seconds: float = _PATIENCE
) -> Window | None:
    """Let a thread ``send`` what became of a window's message, for so many ``seconds``; returns the window.

    None for other messages, and if the headers can't be read.
    """

    def unrecorded(exc: OnceError) -> None:
        logger.error("once: %s not recorded: %s", outcome, exc, extra=about("window_unrecorded", window))

    window = None
    try:
        delivery = delivery_of(request if isinstance(request, dict) else {})
    except OnceError as exc:
        unrecorded(exc)
        return None
    if delivery is not None:
        window = delivery.window
        errands_of.of(app).send(lambda store: send(store, delivery), unrecorded, seconds)
    return window


def delivery_of(request: dict[str, Any]) -> Delivery | None:
    """Read the delivery of a window's message; None for other messages. Raises OnceError for unreadable headers."""
    headers = find_among(request, request.get("headers"))
    window = decode_headers(headers, request.get("id")) if headers else None
    if window is None:
        return None
    owner = request.get(DELIVERY) or delivery_name(request.get("hostname"))
    return Delivery(window, key_of(window, request.get("id")), owner, check_retry(request.get("retries")))


def _read_expires(value: Any) -> datetime | None:
    """Read when a message expires, as Celery reads it; None where it doesn't say so, or can't be read."""
    try:
        at = maybe_iso8601(value)
    except (ValueError, TypeError):
        return None
    return at if isinstance(at, datetime) and at.tzinfo is not None else None
