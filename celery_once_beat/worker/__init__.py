"""A worker: begins windows, runs their bodies under a lease, and records how they ended.

What a begin passes, from Celery's tracer to the server::

    worker/tracing.py traced          Celery traces a task's message: has it a window?
    worker/tracing.py run_and_close   behind Celery's tracer the end is recorded of what begins in it
    worker/task.py __call__           Celery calls the task
    worker/task.py _begin_and_call    a call with a window, a plain or a direct one?
    worker/execution.py run           begin, then the body
    worker/execution.py begin         what features ask for goes along; a refused copy of the message ends here
    worker/leases.py begin            unsent ends go before it; it is asked again until the answer can be acted on
    store/roundtrip.py send           requests out, answers and our own errors back
    store/exchange.py send            to which server; again if that doesn't answer
    store/exchange.py send            scripts that this server doesn't know are loaded
    store/exchange.py exchange        bytes out, replies back, over a connection that stays open

``execution.begin`` makes the request by ``Store.begin_request`` (``store/verbs``), as ``store/scripts`` declares it.
"""

from __future__ import annotations

from .calls import Running, notes_of
from .starting import check_tasks
from .task import OnceTask, current_window

__all__ = ("OnceTask", "Running", "check_tasks", "current_window", "notes_of")
