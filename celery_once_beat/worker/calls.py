"""A call of a task: what is known of it beside Celery's request, and to which one this code belongs.

The notes hang on the request, by a name that Celery doesn't know. If a task calls itself, Celery copies the request's
attributes into a second one, and what it doesn't know into that one's headers: see ``OnceTask.push_request``.

Celery keeps the calls of a thread in that thread. A body may run a coroutine by ``asgiref.sync.async_to_sync``, or a
function by ``asyncio.to_thread``: these run in another thread, with the body's context. A plain thread has none.
"""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from typing import Any, NamedTuple

from celery import current_task

from celery_once_beat.windows import BodyContext, Window

NOTES = "_notes_of_once"


class Notes:
    """Of one call. Nothing in it may refer to the request: a cycle would stay until the garbage collector comes."""

    #: When the body began, in seconds since the epoch; None before.
    began: float | None = None
    #: Its execution, if its message is a window's and has begun.
    execution: Any = None
    #: The context of its body, if its message is a window's, or somebody has looked at it.
    context: BodyContext | None = None
    #: How often its body has been entered, and not been left.
    entered = 0
    #: Its execution, if that began for ``before_start``, until the body runs.
    before: Any = None
    #: Of a direct call, while it runs.
    running: Running | None = None
    #: Its window if it has no execution, once somebody has looked at it.
    window: Window | None = None

    def __init__(self) -> None:
        #: Of the process that has the call. A forked one has a copy, and may outlive the call.
        self.process_id = os.getpid()

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked during the call."""
        return self.process_id == os.getpid()


def notes_of(request: Any) -> Notes:
    """Return the notes of an OnceTask's request, made at the first look. Without a request they are kept nowhere."""
    if request is None:
        return Notes()
    found: Notes | None = vars(request).get(NOTES)
    # One atomic step: threads of a body may ask at once.
    return found or vars(request).setdefault(NOTES, Notes())


class TaskCall(NamedTuple):
    """A task, and Celery's request of one call of it."""

    task: Any
    request: Any


_carried: ContextVar[Running | None] = ContextVar("once_call", default=None)


class Running:
    """A call that runs until its end. Until then this context, and its copies, carry it."""

    def __init__(self, task: Any, request: Any) -> None:
        self.task = task
        self.request = request
        self._outer = _carried.get()
        _carried.set(self)
        _running.add(self)

    def __enter__(self) -> None:
        """It runs already."""

    def __exit__(self, *_: object) -> None:
        """Carry again what was carried before."""
        _running.discard(self)
        _carried.set(self._outer)

    end = __exit__


#: The calls that run in this process, in any thread.
_running: set[Running] = set()


def may_be_called(task: Any) -> bool:
    """Whether this code, which knows no call of ``task``, may work for one all the same.

    It may if it is in a call of another task, or in a thread of a process in which ``task`` runs now, or of a worker.
    Nobody starts a main thread to work for a body.
    """
    if current_call() is not None:
        return True
    if threading.get_ident() == threading.main_thread().ident:
        return False
    return task.__trace__ is not None or any(running.task is task for running in tuple(_running))


def carried_call() -> TaskCall | None:
    """Return the call that this context carries."""
    running = _carried.get()
    return None if running is None else TaskCall(running.task, running.request)


def current_call() -> TaskCall | None:
    """Return the innermost call of this thread, of any task; where there is none, the carried one."""
    task: Any = current_task
    if task:
        return TaskCall(task._get_current_object(), task.request_stack.top)  # noqa: SLF001  # Celery's proxy of it
    return carried_call()
