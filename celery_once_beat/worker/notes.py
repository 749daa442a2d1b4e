"""What is known of one call of a task, beside Celery's request.

It hangs on the request, by a name that Celery doesn't know. If a task calls itself, Celery copies the request's
attributes into a second one, and what it doesn't know into that one's headers: see ``OnceTask.push_request``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_once_beat.windows import BodyContext, Window

    from .current import Running

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

    def __init__(self) -> None:
        #: Without an execution: its window, the first of these.
        self.windows: list[Window] = []
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
