"""What is known of one call of a task, beside Celery's request.

Nothing is written into the request: if a task calls itself, Celery copies the request's attributes into a second one,
and a retry gets those that Celery doesn't know as headers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from celery_once_beat.windows import BodyContext, Window

    from .current import Running


class Notes:
    """Of one call. Nothing in it may refer to the request, which would never be freed."""

    __slots__ = ("before", "began", "context", "execution", "process_id", "running", "windows")

    def __init__(self) -> None:
        #: When the body began, in seconds since the epoch; None before.
        self.began: float | None = None
        #: Its execution, if its message is a window's and has begun.
        self.execution: Any = None
        #: Without an execution: its window, the first of these, and the context of its body.
        self.windows: list[Window] = []
        self.context: BodyContext | None = None
        #: Its execution, if that began for ``before_start``, until the body runs.
        self.before: Any = None
        #: Of a direct call, while it runs.
        self.running: Running | None = None
        #: Of the process that has the call. A forked one has a copy, and may outlive the call.
        self.process_id = os.getpid()

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked during the call."""
        return self.process_id == os.getpid()


_notes: WeakKeyDictionary[Any, Notes] = WeakKeyDictionary()


def notes_of(request: Any, within: Any = None) -> Notes:
    """Return the notes of a request. A new one gets new notes; or those of ``within``, if it is made of that request.

    Without a request they are kept nowhere.
    """
    if request is None:
        return Notes()
    found = _notes.get(request)
    if found is None:
        # One atomic step: threads of a body may ask at once.
        found = _notes.setdefault(request, Notes() if within is None else notes_of(within))
    return found
