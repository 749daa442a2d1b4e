"""Which call of a task this code belongs to, also in the threads and event loops to which its context is handed on.

Celery keeps the calls of a thread in that thread. A coroutine that a body runs by ``asgiref.sync.async_to_sync``, or a
function that it runs by ``asyncio.to_thread``, runs in another one.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple

from celery import current_task


class TaskCall(NamedTuple):
    """A task, and Celery's request of one call of it."""

    task: Any
    request: Any


_carried: ContextVar[TaskCall | None] = ContextVar("once_call", default=None)


def carry(call: TaskCall | None) -> TaskCall | None:
    """Let ``call`` be carried to whoever gets this context; return what was carried before, to be carried again."""
    before = _carried.get()
    _carried.set(call)
    return before


def carried_call() -> TaskCall | None:
    """Return the call that this context carries."""
    return _carried.get()


def current_call() -> TaskCall | None:
    """Return the innermost call of this thread, of any task; where there is none, the carried one."""
    task: Any = current_task
    if task:
        return TaskCall(task._get_current_object(), task.request_stack.top)  # noqa: SLF001  # Celery's proxy of it
    return _carried.get()
