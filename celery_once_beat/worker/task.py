"""The task base: a task that executes each window once.

A window begins in ``__call__``. Users override ``before_start``, ``on_success`` and their like without ``super()``;
``__call__`` alone sees every way in which a body can end, on all supported versions of Celery. The end is recorded
behind Celery's tracer (``__trace__``), when the result is stored and the callbacks are sent.
"""

from __future__ import annotations

import inspect
import os
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, cast

from celery import Task
from celery.concurrency import ALIASES  # type: ignore[attr-defined]  # celery-types lacks it
from celery.exceptions import InvalidTaskError, SoftTimeLimitExceeded
from celery.signals import before_task_publish
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_once_beat.errors import NewerVersionError, OnceError, RecordError, SettingError
from celery_once_beat.features import hooks
from celery_once_beat.logs import Logged, about, get_logger
from celery_once_beat.options import TaskOptions
from celery_once_beat.settings import Settings
from celery_once_beat.store import store_of
from celery_once_beat.windows import (
    PUT_BACK,
    BodyContext,
    Window,
    decode_headers,
    encode_call,
    find_among,
    find_call,
    find_headers,
    without_window,
)

from .base import close_unrun, context_class
from .calls import NOTES, Notes, Running, carried_call, current_call, may_be_called, notes_of
from .execution import Execution
from .leases import send_ends
from .put_back import put_back
from .tracing import as_traced, here, is_awaited_by_pool, is_handed_on, last_traced, traced

logger = get_logger(__name__)

if TYPE_CHECKING:
    from celery_once_beat.features.keyed.task import TaskMethods

    _Task = Task[Any, Any]
else:
    TaskMethods = type("TaskMethods", (*hooks("task", "TaskMethods"),), {})
    _Task = Task  # older releases of Celery can't be subscripted

#: Logged already: names of tasks that were sent with another task's headers, and "STARTED" while it can't be stored.
_logged = Logged()


class OnceTask(TaskMethods, TaskOptions, _Task):
    """A task that executes each window once; without a window it is a plain task.

    An execution is refused (``Ignore``, no trace in the result) while another one of its window runs, and after the
    window has its outcome. A direct call, an eager one and a message without window headers run without asking Redis;
    they have a window of their own, which isn't ``scheduled``. A subclass may define ``__call__``: it runs within the
    window's execution.
    """

    abstract = True
    Request = "celery_once_beat.worker.request:OnceRequest"

    #: Tells the scheduler that workers close this task's windows.
    once_closes_windows = True
    #: The task's ``track_started``: the tracer would store STARTED before a duplicate is refused.
    _once_track_started = False

    @classmethod
    def bind(cls, app: Any) -> Any:
        """As Celery's. What the task sets is checked when a worker or a beat starts: :func:`check_tasks`.

        Not ``on_bound``, which users override: Celery's own does nothing, so they don't call it.
        """
        bound = super().bind(app)
        _wrap_own(cls, "__call__", OnceTask.__call__, OnceTask._begin_and_call)
        _wrap_own(cls, "before_start", _Task.before_start, OnceTask._begin_before)
        if cls.track_started:
            cls._once_track_started, cls.track_started = True, False
        return bound

    @property
    def __trace__(self) -> Any:
        """The tracer by which a worker runs this task, as Celery sets it; a window's end is recorded behind it."""
        return vars(self).get("__trace__")

    @__trace__.setter
    def __trace__(self, trace: Any) -> None:
        vars(self)["__trace__"] = None if trace is None else partial(traced, trace)

    @property
    def window(self) -> Window:
        """The window for which this execution's message was sent; else the call's own, whose ``scheduled`` is False.

        Also in threads and event loops that have the body's context, as by ``asyncio.to_thread`` or
        ``asgiref.sync.async_to_sync``. A plain thread, as of a ThreadPoolExecutor, has none, nor has a forked process:
        there, and in another task's body, RecordError is raised. If nothing was called (``task.run()`` by itself, or
        outside of any body), each access makes a new one.
        """
        request = self._request_here()
        if request is None:
            traced = last_traced(self)
            if traced is not None:  # a hook, which Celery calls when an earlier one has raised
                return traced.window
            if may_be_called(self):
                raise RecordError(
                    f"task {self.name!r}, window: found a thread, or another task's body, that knows no call of the "
                    "task, expected its body; write 'window = self.window' there and hand that on, or run the thread's "
                    "function by contextvars.copy_context().run"
                )
        if not notes_of(request).is_of_this_process:
            raise RecordError(
                f"task {self.name!r}, window: found a process that was forked for this call or an earlier one, "
                "expected its body; write 'key = self.window.key' there and hand that on"
            )
        return self._window_in(request)

    def _request_here(self) -> Any:
        """Return Celery's request of this call, also in a thread or event loop that carries it; else None."""
        request, carried = self.request_stack.top, carried_call()
        return carried.request if request is None and carried is not None and carried.task is self else request

    def _window_in(self, request: Any) -> Window:
        """Return the window of a call, the same at each access."""
        notes = notes_of(request)
        if notes.execution is not None:
            return notes.execution.window  # type: ignore[no-any-return]
        if notes.window is None:  # of several threads the first decides
            vars(notes).setdefault("window", _window_of(request, self._context_of(request)))
        return cast("Window", notes.window)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body; if it was sent for a window, only if that is this delivery's to execute."""
        return self._begin_and_call(None, *args, **kwargs)

    def push_request(self, *args: Any, **kwargs: Any) -> None:
        """As Celery's. A direct call begins now; one within a message's execution is part of that."""
        outer: Any = self.request_stack.top
        is_direct = kwargs.get("called_directly", outer is None or outer.called_directly)
        if is_direct or outer is None:
            kwargs[NOTES] = Notes()
        super().push_request(*args, **kwargs)
        request: Any = self.request_stack.top
        if request.headers and request.headers.pop(NOTES, None):
            request.headers = request.headers or None
        if is_direct:
            notes = notes_of(request)
            notes.began = time.time()
            notes.running = Running(self, request)

    def pop_request(self) -> None:
        """As Celery's."""
        request: Any = self.request_stack.top
        super().pop_request()
        if request is not None and request.called_directly:
            notes = notes_of(request)
            running, notes.running = notes.running, None
            if running is not None:
                running.end()

    def _begin_and_call(self, body: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
        """Call the body; if its message was sent for a window, begin that, and record its end.

        None: it is run in the request that Celery's tracer made, as that runs a plain task's. The base would push a
        second one, unless the worker has set up "stack protection": Celery's test worker and eager calls have none.
        """
        request: Any = self.request_stack.top
        if request is None and is_handed_on(self.name):
            with as_traced(self):
                return self._begin_and_call(body, *args, **kwargs)
        if body is None and (request is None or request.called_directly or request._protected):
            body = super().__call__
        elif body is None:
            body, request._protected = self.run, 1
        if request is None or request.called_directly:
            return self._run_in_context(request, body, args, kwargs)
        notes = notes_of(request)
        execution, notes.before = notes.before, None
        if execution is None:
            if notes.began is not None:  # within another call of the same request, as by super().__call__()
                return self._run_in_context(request, body, args, kwargs)
            notes.began = time.time()
            plain, here.plain = here.plain, None
            if not request.is_eager and (plain is None or plain != request.id):
                execution = self._execution_of(request)
        if execution is not None:
            return execution.run(request, partial(self._run_body, request, notes, body, args, kwargs))
        if not request.is_eager:
            send_ends()
        return self._run_body(request, notes, body, args, kwargs)

    def _run_body(self, request: Any, notes: Notes, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the body. If that is an ``async def`` after all, it hasn't run: raises SettingError."""
        if self._once_track_started and not request.is_eager:
            self._store_started(request)
        running = Running(self, request)
        notes.entered += 1
        if notes.context is not None:
            notes.context.__enter__()
        try:
            result = body(*args, **kwargs)
        except BaseException as exc:
            notes.entered -= 1
            if notes.context is None or not notes.context.__exit__(type(exc), exc, exc.__traceback__):
                raise
            return notes.context.result
        else:
            notes.entered -= 1
            if notes.context is not None:
                notes.context.__exit__(None, None, None)
        finally:
            running.end()
        if result is not None and isinstance(result, (Coroutine, AsyncGenerator)):
            if is_awaited_by_pool(result):
                return self._await_body(request, result)
            close_unrun(result)
            raise _never_awaited(self)
        return result

    async def _await_body(self, request: Any, body: Coroutine[Any, Any, Any]) -> Any:
        """Await what the body has returned, in the pool's event loop, as :meth:`_run_body` has called it."""
        context = self._context_of(request)
        with Running(self, request):
            with context:
                return await body
            return context.result

    def _run_in_context(self, request: Any, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the body in its context, which may end it, and say with what result."""
        if request is None:  # the request of a direct call is made within it
            return body(*args, **kwargs)
        context = self._context_of(request)
        with context:
            return body(*args, **kwargs)
        return context.result

    def _execution_of(self, request: Any) -> Execution | None:
        """Return the execution, yet to begin, of the window that a message was sent for; None if it is a plain one."""
        headers = find_among(vars(request), request.headers)
        try:
            window = decode_headers(headers, request.id) if headers else None
        except NewerVersionError as exc:
            put_back(self, request, exc)
        if window is not None:
            return Execution(self, request, window, store_of(self.app))
        if headers and _logged.is_new(self.name):
            text = (
                "once: task %s is sent with the headers of another task's window, and runs as a task without one: "
                "don't give children the headers of self.request"
            )
            logger.warning(text, self.name, extra=about("headers_copied"))
        return None

    def _begin_before(self, hook: Callable[[], Any]) -> Any:
        """Call ``before_start`` within the window's execution: Celery fails a task for it before any ``__call__``.

        Returns what that returns: a pool may await it.
        """
        request: Any = self.request_stack.top
        if request is None and is_handed_on(self.name):
            with as_traced(self):
                return self._begin_before(hook)
        notes = notes_of(request)
        execution = None
        # Not where this is the hook of a base, called by the task's own.
        sent = request is not None and not request.is_eager and not request.called_directly
        if sent and here.trace is not None and notes.began is None:
            execution = self._execution_of(request)
        if execution is None:
            send_ends()
            return hook()
        notes.began = time.time()
        execution.begin(request)
        notes.before = execution
        return execution.run_hook(hook)

    def _context_of(self, request: Any) -> BodyContext:
        """Return the context of the body of ``request``, made when somebody looks: most bodies never do."""
        notes = notes_of(request)
        if notes.context is None:
            # A direct call has no hooks, and task.run() no request: where one looks, the body runs.
            running = notes.entered + (request is None or request.called_directly)
            replaced = getattr(request, "replaced_task_nesting", 0)
            settings = partial(Settings.from_app, self.app, connects=False)
            context = context_class()(settings, running=running, replaced=replaced)
            vars(notes).setdefault("context", context)  # of several threads the first decides
        return cast("BodyContext", notes.context)

    def _store_started(self, request: Any) -> None:
        """Do what the tracer does for ``track_started``, but after begin. The body runs even if that fails."""
        ignored = vars(request).get("ignore_result")
        if self.ignore_result if ignored is None else ignored:
            return
        meta = {"pid": os.getpid(), "hostname": request.hostname}
        try:
            self.backend.store_result(request.id, meta, "STARTED", request=request)
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:  # noqa: BLE001  # every backend has errors of its own
            if _logged.is_new("STARTED"):
                logger.warning("once: STARTED isn't stored: %s", exc, extra=about("started_unstored"))
        else:
            _logged.end("STARTED")

    def start_strategy(self, app: Any, consumer: Any, **options: Any) -> Any:
        """As Celery's, at a worker's start; a ``Request`` of the task's own is combined with ours."""
        from .duties import start_duties  # noqa: PLC0415  # only a worker needs it
        from .request import fail_unread, request_class  # noqa: PLC0415

        start_duties(consumer)
        self.Request = request_class(self)  # type: ignore[assignment]  # celery-types knows names only
        receive = super().start_strategy(app, consumer, **options)

        def strategy(message: Any, *more: Any, **options: Any) -> Any:
            try:
                return receive(message, *more, **options)
            except (InvalidTaskError, ContentDisallowed, DecodeError) as exc:
                fail_unread(self, message, consumer.hostname, exc)  # Celery discards it
                raise

        return strategy

    def check_scheduled(self) -> None:
        """Raise SettingError if no schedule may send the task: none of Celery's own pools awaits an ``async def``."""
        body = getattr(self, "_orig_run", self.run)  # autoretry_for wraps it
        if not (inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body)):
            return
        awaited = ALIASES.get("custom") or self.app.conf.worker_pool not in ALIASES  # not a pool of Celery's own
        if not awaited and not hasattr(type(self).__call__, "_once_wrapped"):  # a base's own __call__ may await it
            raise _never_awaited(self)

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, *more: Any, **options: Any
    ) -> Any:
        """As Celery's; a retry of this execution is given its window first. Whatever else it sends has none."""
        request = self._request_here() if self.request_stack is not None else None
        execution: Execution | None = notes_of(request).execution
        publish = partial(super().apply_async, args, kwargs, task_id, *more)
        if execution is None or task_id is None or options.get("retries") != execution.retry + 1:
            return publish(**options)
        # Of what a running execution sends, only the message that is given the window gets its headers.
        options["headers"] = {**(options.get("headers") or {}), **_headers_of(request), "once_id": task_id}
        return execution.hand_over(options, partial(publish, **options))

    def signature_from_request(self, request: Any = None, *more: Any, **options: Any) -> Any:
        """As Celery's, without the window's headers: ``apply_async`` adds them to a retry that is given the window.

        The retry of what doesn't run here keeps them. Without a window, a header has the time of its first begin.
        """
        request = self.request if request is None else request
        signature = super().signature_from_request(request, *more, **options)
        window_headers, notes = _headers_of(request), notes_of(request)
        headers = without_window(signature.options.get("headers"))
        if window_headers and notes.execution is None and options.get("retries") == (request.retries or 0) + 1:
            headers.update(window_headers)  # nobody gives it the window: an eager call, or a child that was killed
        elif not window_headers and notes.began is not None:
            headers.update(encode_call(request.id, _first_begun(request)))
        return signature.set(headers=headers)


@before_task_publish.connect(weak=False)
def _strip_copied_headers(headers: dict[str, Any], body: Any, **_: Any) -> None:
    """Remove the window's headers from what a body sends with them, except from the retry that has the window."""
    if "once_id" not in headers:
        return
    call = current_call()
    execution = None if call is None else notes_of(call.request).execution
    if call is None or execution is None or headers["once_id"] != call.request.id:
        return
    retries = headers.get("retries", body.get("retries") if isinstance(body, dict) else None)  # protocol 1 has it there
    if retries != execution.retry + 1:
        for name in headers.keys() - without_window(headers).keys():
            del headers[name]


def _headers_of(request: Any) -> dict[str, object]:
    """Return the window's headers that a message brought for itself, for its retry; {} if it brought none."""
    headers = find_headers(vars(request), request.headers)
    headers.pop(PUT_BACK, None)  # of that message alone
    return headers if headers.get("once_id", str(request.id)) == str(request.id) else {}


def _never_awaited(task: OnceTask) -> SettingError:
    return SettingError(
        f"task {task.name!r}: found an async def, which Celery doesn't await, expected a plain function; in it call "
        "asgiref.sync.async_to_sync(the async def)(…). Where the workers' pool awaits it, name that in worker_pool, or "
        "in the environment's CELERY_CUSTOM_WORKER_POOL, for beats too"
    )


def _wrap_own(cls: Any, name: str, of_base: object, run: Callable[[OnceTask, Callable[[], Any]], Any]) -> None:
    """Let ``run`` call what a subclass's own ``__call__`` or ``before_start`` is: many don't call ``super()``."""
    own, held = getattr(cls, name), inspect.getattr_static(cls, name)  # what the class holds: mostly a function
    if own is of_base or hasattr(own, "_once_wrapped"):
        return

    @wraps(held)
    def call(self: OnceTask, *args: Any, **kwargs: Any) -> Any:
        bound = held.__get__(self, type(self)) if hasattr(held, "__get__") else held
        return run(self, partial(bound, *args, **kwargs))

    call._once_wrapped = True  # type: ignore[attr-defined]  # noqa: SLF001  # our own function
    setattr(cls, name, call)


def current_window() -> Window | None:
    """Return the window of the OnceTask's body or ``once()`` block that this code runs in; None outside of both.

    The innermost counts. Also in threads and event loops that have the body's context, as by ``asyncio.to_thread`` or
    ``asgiref.sync.async_to_sync``; a plain thread and a forked process have none.
    """
    for hook in hooks("task", "window_of_block"):
        of_block: Window | None = hook()
        if of_block is not None:
            return of_block
    call = current_call()
    if call is None or not isinstance(call.task, OnceTask) or not notes_of(call.request).is_of_this_process:
        return None
    return call.task._window_in(call.request)  # noqa: SLF001  # our own task


def _window_of(request: Any, context: BodyContext) -> Window:
    """Return the window of a call that has no execution: the message's, before its begin, else the call's own."""
    if request is not None and not request.called_directly:
        try:
            window = decode_headers(find_among(vars(request), request.headers) or {}, request.id)
        except OnceError:  # the task fails for it; its hooks have a window all the same
            window = None
        if window is not None:
            return replace(window, _context=context, _held=_always if request.is_eager else window._held)  # noqa: SLF001
    call = request.id if request is not None and request.id else str(uuid.uuid4())
    begun = _first_begun(request)
    return Window(call, begun, None, tracked=False, scheduled=False, _held=_always, _context=context)


def _first_begun(request: Any) -> datetime:
    """Return when this call, or the first one that it retries, began; a hook may have looked before."""
    first = None if request is None else find_call(request.id, vars(request), request.headers)
    notes = notes_of(request)
    if first is None and notes.window is not None and not notes.window.scheduled:
        first = notes.window.start
    return first or datetime.fromtimestamp(notes.began or time.time(), timezone.utc)


def _always() -> bool:
    return True
