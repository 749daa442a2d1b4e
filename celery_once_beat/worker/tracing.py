"""Which message this thread traces, and how the end of its window is recorded behind Celery's tracer.

A worker's process calls :func:`traced` in place of a task's tracer. Two places know the :class:`Trace` meanwhile:

- ``here``, of the thread in which the tracer runs: executions that begin there belong to it.
- ``_carried``, of the context: a pool's tracer, as celery-aio-pool's, hands the body and the hooks on to other threads,
  each with a copy of the context. While one of them runs there, that thread has the trace too (:func:`as_traced`).

The end is recorded in the tracer's own thread, after the tracer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

from celery.app.task import Context
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.states import FAILURE

from celery_once_beat.windows import find_among

from .calls import notes_of
from .message import DELIVERY, RAW

if TYPE_CHECKING:
    from .execution import Execution
    from .task import OnceTask


@dataclass
class Trace:
    """A window's message that is traced. Without a message: another tracer than the task's runs the body."""

    message: dict[str, Any] = field(default_factory=dict)
    args: Any = ()
    kwargs: Any = None
    #: What has begun of it.
    executions: list[Execution] = field(default_factory=list)
    #: Whether a pool has handed the body on to this thread: it awaits what that returns.
    handed_on: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """The message's fields without ours: Celery gives a retry what it doesn't know there, as headers.

        A copy: the worker's main process may have the same object.
        """
        fields = self.message.copy()
        for name in (DELIVERY, RAW):
            fields.pop(name, None)
        return fields

    @cached_property
    def request(self) -> Context:
        """Celery's request of it, for other threads than the tracer's."""
        return Context(self.fields, args=self.args, kwargs=self.kwargs, called_directly=False)


class _Here(threading.local):
    trace: Trace | None = None
    #: The id of a message without a window that the tracer has brought, until its body begins.
    plain: str | None = None


#: Of this thread.
here = _Here()
_carried: ContextVar[Trace | None] = ContextVar("once_traced", default=None)


def last_traced(task: OnceTask) -> Execution | None:
    """Return the last execution of ``task`` that the tracer has begun, also once Celery has taken its request."""
    trace = here.trace or _carried.get()
    return next((each for each in reversed(trace.executions) if each.sender is task), None) if trace else None


def is_handed_on(name: str) -> bool:
    """Whether a tracer has handed the body of a window's message on to this thread, and that hasn't begun yet."""
    trace = _carried.get()
    if trace is None or trace.message.get("task") != name:
        return False
    return not trace.executions or notes_of(trace.request).before is not None


@contextmanager
def as_traced(task: OnceTask) -> Iterator[None]:
    """Let the thread to which a pool has handed the body on be as its tracer's."""
    trace, outer = _carried.get(), here.trace
    assert trace is not None
    here.trace = replace(trace, handed_on=True)
    task.request_stack.push(trace.request)
    try:
        yield
    finally:
        task.request_stack.pop()
        here.trace = outer


def is_awaited_by_pool(result: object) -> TypeGuard[Coroutine[Any, Any, Any]]:
    """Whether the pool awaits what a body has returned."""
    return here.trace is not None and here.trace.handed_on and isinstance(result, Coroutine)


def traced(tracer: Callable[..., Any], uuid: str, args: Any, kwargs: Any, request: dict[str, Any] | None = None) -> Any:
    """Trace a task by Celery's ``tracer``, and then record the end of its window, if its message is one's."""
    if not request or (DELIVERY not in request and find_among(request, request.get("headers")) is None):
        here.plain = uuid
        return tracer(uuid, args, kwargs, request)
    trace = Trace(request, args, kwargs)
    return run_and_close(trace, tracer, uuid, args, kwargs, trace.fields)


def run_and_close(trace: Trace, run: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``run``; then record the end of the window that was executed in it, if there was one.

    If Celery fails the task although its body returned, the window has failed too. A soft time limit that is reached
    after the task has ended concerns nobody any more.
    """
    outer, token = here.trace, _carried.set(trace)
    ended, result, raised = False, None, None

    def close() -> None:
        for execution in trace.executions:
            execution.close(_failure(result, raised) if trace.message else None, at_once=not trace.message)

    here.trace, here.plain = trace, None
    try:
        try:
            result = run(*arguments)
            ended = True
        except BaseException as exc:
            raised = exc
            raise
        finally:
            here.trace = outer
            _carried.reset(token)
            close()
    except BaseException as exc:
        close()  # it continues where it was
        if not (ended and trace.message and isinstance(exc, SoftTimeLimitExceeded)):
            raise
    finally:
        raised = None  # else it and this frame would hold each other
    return result


def _failure(ended: Any, raised: BaseException | None) -> BaseException | None:
    """Return what a task failed with, from what its tracer returned or raised."""
    if raised is not None:
        return None if isinstance(raised, Reject) else raised  # a hook's, about the message
    info = getattr(ended, "info", None)
    return info.retval if info is not None and info.state == FAILURE else None
