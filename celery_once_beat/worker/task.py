"""The task base: a task that executes each window once.

Everything happens in ``__call__``: users override ``before_start``, ``on_success`` and their like without
``super()``, and it alone sees every way in which a body can end, the same on all supported versions of Celery.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone, tzinfo
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from celery import Celery, Task, current_task
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import beat_init, celeryd_after_setup
from celery.utils.log import get_logger

from celery_once_beat.errors import NewerVersionError, OnceError, SettingError
from celery_once_beat.logs import about
from celery_once_beat.settings import Settings, check_choice, check_count, check_seconds
from celery_once_beat.store import store_of
from celery_once_beat.windows import PUT_BACK, Window, decode_headers, encode_call, find_call, find_headers
from celery_once_beat.wording import did_you_mean

from .execution import DELIVERY, Execution
from .keyed import Child, Every
from .put_back import put_back

__all__ = ("OnceTask", "check_tasks", "current_window")

logger = get_logger(__name__)

if TYPE_CHECKING:
    _Task = Task[Any, Any]
else:
    _Task = Task  # older releases of Celery can't be subscripted

#: What this process couldn't store last: said once while it lasts.
_unstored: set[str] = set()

#: Checked when a worker or a beat starts: an app is often imported by processes that do neither.
_CHECKS = {
    "once_lease": check_seconds(0.5, optional=True),
    "once_recover": check_choice(True, False),
    "once_retry_failed_after": check_seconds(0.001, optional=True),
    "once_overlap": check_choice("allow", "skip"),
}


class OnceTask(_Task):
    """A task of which each window is executed once; without a window it is a plain task.

    A window's execution is refused (``Ignore``, no trace in the result) while another one runs, and after it has
    its outcome. A direct call, an eager one and a message without window headers just run and don't ask Redis; they
    have a window of their own, which isn't ``scheduled``.
    A subclass may define ``__call__``: it then runs within the window's execution.
    """

    abstract = True
    Request = "celery_once_beat.worker.request:OnceRequest"

    #: Seconds for which an execution owns its window without renewing; None: ``once_beat_lease``.
    once_lease: float | None = None
    #: Whether a window whose execution died runs again; False: it is dropped.
    once_recover: bool = True
    #: Seconds after which a window that failed runs again, up to max_attempts; None: never.
    once_retry_failed_after: float | None = None
    #: What becomes of a window whose turn comes while another of its entry runs, or waits for its retry: "allow", both
    #: run; "skip", it doesn't, and is recorded as skipped.
    once_overlap: str = "allow"
    #: Executions that may begin and die before a window is abandoned; None: ``once_beat_max_attempts``.
    once_max_attempts: int | None = None

    #: Tells the scheduler that workers close this task's windows.
    once_closes_windows = True
    #: ``track_started``, which the tracer would act on before a duplicate is refused.
    _once_track_started = False

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """As Celery's; what the task sets is checked where it counts, see :func:`check_tasks`."""
        super().on_bound(app)
        if cls.__call__ is not OnceTask.__call__ and not hasattr(cls.__call__, "_once_wrapped"):
            cls.__call__ = _begin_first(cls.__call__)  # type: ignore[method-assign]
        if cls.track_started:
            cls._once_track_started, cls.track_started = True, False

    @property
    def window(self) -> Window:
        """The window for which this execution's message was sent; else the call's own, whose ``scheduled`` is False.

        Where nothing was called (``task.run()`` by itself, or outside of any body), each look makes a new one.
        """
        request: Any = self.request_stack.top
        execution: Execution | None = getattr(request, "_once_execution", None)
        if execution is not None:
            return execution.window
        window: Window | None = getattr(request, "_once_window", None)
        if window is None:
            window = _window_of(request)
            if request is not None:
                request._once_window = window
        return window

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body; for a window of its own only if that is this delivery's to execute."""
        request: Any = self.request_stack.top
        if request is not None and request.is_eager and not request._protected:
            # Its own request: Celery 5.4 would put an empty one on top, as on a direct call, and lose the retry.
            request._protected = 1
            request._once_began = time.time()
            return self.run(*args, **kwargs)
        return self._begin_and_call(partial(super().__call__, *args, **kwargs))

    def push_request(self, *args: Any, **kwargs: Any) -> None:
        """As Celery's, which does so for a direct call: that begins now."""
        super().push_request(*args, **kwargs)
        request: Any = self.request_stack.top
        if request.called_directly:
            request._once_began = time.time()

    def _begin_and_call(self, call: Callable[[], Any]) -> Any:
        """Execute the window of the request around ``call``; without one, or within it already, just call."""
        request: Any = self.request_stack.top
        if request is None or request.called_directly or request._protected or hasattr(request, "_once_began"):
            return call()
        request._once_began = time.time()
        if request.is_eager:
            return call()

        def body() -> Any:
            self._store_started(request)
            return call()

        headers = find_headers(vars(request), request.headers)
        try:
            window = decode_headers(headers, request.id) if headers else None
        except NewerVersionError as exc:
            put_back(self, request, exc)
        if window is None:
            if headers:
                _say_copied(self.name)
            return body()
        return Execution(self, request, window, store_of(self.app)).run(request, body)

    def _store_started(self, request: Any) -> None:
        """What the tracer does for ``track_started``, but after begin.

        The body runs whatever the result backend says: it hasn't failed.
        """
        if not self._once_track_started:
            return
        ignored = vars(request).get("ignore_result")
        if self.ignore_result if ignored is None else ignored:
            return
        meta = {"pid": os.getpid(), "hostname": request.hostname}
        try:
            self.backend.store_result(request.id, meta, "STARTED", request=request)
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:  # noqa: BLE001  # every backend has errors of its own
            if not _unstored:
                logger.warning("once: STARTED isn't stored: %s", exc, extra=about("started_unstored"))
            _unstored.add("STARTED")
        else:
            _unstored.clear()

    def start_strategy(self, app: Any, consumer: Any, **options: Any) -> Any:
        """As Celery's, at a worker's start; a ``Request`` of the task's own is combined with ours."""
        from .request import request_class  # noqa: PLC0415  # the worker's: who only sends doesn't need it

        self.Request = request_class(self)  # type: ignore[assignment]  # celery-types knows names only
        return super().start_strategy(app, consumer, **options)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        *more: Any,
        **options: Any,
    ) -> Any:
        """As Celery's; a retry of this execution is given its window first.

        The retry's message can reach another worker before this one has returned.
        """
        request = self.request_stack.top if self.request_stack is not None else None
        execution: Execution | None = getattr(request, "_once_execution", None)
        if execution is not None and task_id == request.id and options.get("retries") == execution.retry + 1:
            publish = partial(super().apply_async, args, kwargs, task_id, *more, **options)
            return execution.hand_over(options, publish)
        return super().apply_async(args, kwargs, task_id, *more, **options)

    def apply_once(
        self,
        args: Any = None,
        kwargs: Any = None,
        *,
        key: object,
        window: Window | None = None,
        every: Every | None = None,
        tz: tzinfo | str | None = None,
        **options: Any,
    ) -> Any:
        """As ``apply_async``, but once for each ``key`` (a user's id, say) and window, whoever asks and how often.

        The window is that of another task, its entry and start (``window=self.window``: its children are sent once,
        also where it runs again after a crash, within ``once_beat_retention``), or the present one of ``every``, as
        ``celery_once_beat.once`` takes it, with ``tz``. Further ``options`` are those of ``apply_async``. Returns
        its AsyncResult, or None where its message is out. While that isn't known, whoever asks publishes it too, since
        the other may be dead; the worker refuses the copy. What is out isn't recovered. Raises StoreUnavailableError
        where Redis doesn't answer, and what ``apply_async`` raises: then the next who asks publishes it.
        """
        return Child(self, key, window, every, tz).publish(args, kwargs, options)

    def signature_from_request(self, request: Any = None, *more: Any, **options: Any) -> Any:
        """As Celery's; the window's headers survive a retry even where another tool nests headers.

        Without a window the retry is told when the call was first begun.
        """
        request = self.request if request is None else request
        signature = super().signature_from_request(request, *more, **options)
        window_headers = find_headers(vars(request), request.headers)
        if window_headers and window_headers.get("once_id", str(request.id)) == str(request.id):
            headers = {**(signature.options.get("headers") or {}), **window_headers}
            for of_this_message in (DELIVERY, PUT_BACK):
                headers.pop(of_this_message, None)
            signature.set(headers=headers)
        elif hasattr(request, "_once_began"):
            signature.set(
                headers={**(signature.options.get("headers") or {}), **encode_call(request.id, _first_begun(request))}
            )
        return signature


#: The attributes that a task may set.
_KNOWN = [name for name in vars(OnceTask) if name.startswith("once_")]


def check_tasks(app: Celery) -> None:
    """Raise SettingError for the first task of ``app`` that sets what can't be: an attribute of ours, or ``window``."""
    for task in app.tasks.values():
        if isinstance(task, OnceTask):
            _check_task(task)


def _check_task(task: OnceTask) -> None:
    for base in type(task).__mro__:
        if base is OnceTask:
            break
        if "window" in vars(base):
            raise SettingError(
                f"task {task.name!r}: {base.__name__} defines 'window', which is where OnceTask puts the window; "
                "rename it"
            )
        for name in vars(base):
            if name.startswith("once_") and name not in _KNOWN:
                raise SettingError(
                    f"task {task.name!r}, {name}: there is no such attribute{did_you_mean(name, _KNOWN)}"
                )
    for name, check in _CHECKS.items():
        check(f"task {task.name!r}, {name}", getattr(task, name))
    if task.once_max_attempts is not None:
        check_count(1)(f"task {task.name!r}, once_max_attempts", task.once_max_attempts)


def _begin_first(override: Callable[..., Any]) -> Callable[..., Any]:
    """A subclass's ``__call__``, within the window's execution.

    Such bases (an application context around ``self.run()``, say) often don't call ``super()``; their windows would
    be executed without a begin.
    """

    @wraps(override)
    def call(self: OnceTask, *args: Any, **kwargs: Any) -> Any:
        return self._begin_and_call(partial(override, self, *args, **kwargs))

    call._once_wrapped = True  # type: ignore[attr-defined]  # noqa: SLF001  # our own function
    return call


def current_window() -> Window | None:
    """The ``window`` of the OnceTask that this thread executes; None outside of one. For tasks that aren't bound."""
    task = current_task
    return task.window if isinstance(task, OnceTask) else None


def _window_of(request: Any) -> Window:
    """Return the window of a call that has no execution: what its message says, before its begin, else its own."""
    if request is not None and not request.called_directly:
        try:
            window = decode_headers(find_headers(vars(request), request.headers), request.id)
        except OnceError:  # it fails for that, and its hooks have a window all the same
            window = None
        if window is not None:
            return replace(window, _held=_always) if request.is_eager else window
    call = request.id if request is not None and request.id else str(uuid.uuid4())
    return Window(call, _first_begun(request), None, tracked=False, scheduled=False, _held=_always)


#: Tasks of which messages came with the headers of another one.
_copied: set[str] = set()


def _say_copied(name: str) -> None:
    if name not in _copied:
        _copied.add(name)
        logger.warning(
            "once: task %s is sent with the headers of another task's window, and runs as a task without one: don't "
            "give children the headers of self.request",
            name,
            extra=about("headers_copied"),
        )


def _first_begun(request: Any) -> datetime:
    """When this call was begun, or the first of those of which it is a retry; a hook may have looked before."""
    first = None if request is None else find_call(request.id, vars(request), request.headers)
    seen: Window | None = getattr(request, "_once_window", None)
    if first is None and seen is not None and not seen.scheduled:
        first = seen.start
    return first or datetime.fromtimestamp(getattr(request, "_once_began", None) or time.time(), timezone.utc)


def _always() -> bool:
    return True


@celeryd_after_setup.connect(weak=False)
def _start_worker(instance: Any, **_: Any) -> None:
    """A worker with a wrong setting or task says so at its start, not at its first window.

    From now on it hears of messages that no task gets to see, even if it has no OnceTask yet.
    """
    from .request import request_class  # noqa: PLC0415  # only a worker needs it

    with _ending_if_wrong():
        Settings.from_app(instance.app)
        check_tasks(instance.app)
        for task in instance.app.tasks.values():
            if isinstance(task, OnceTask):
                request_class(task)


@beat_init.connect(weak=False)
def _start_beat(sender: Any, **_: Any) -> None:
    """A beat with a wrong task says so at its start, and stock beat is warned of.

    A beat that claims nothing sends what the others claim once more: it looks well, and everything is doubled.
    """
    with _ending_if_wrong():
        check_tasks(sender.app)
    scheduler = sender.scheduler
    if not getattr(scheduler, "claims_windows", False):
        logger.warning(
            "once: this beat runs %s, which sends each window once more than the others: start it with -S once, or set "
            "beat_scheduler = 'once'",
            type(scheduler).__name__,
            extra=about("scheduler_stock"),
        )


@contextmanager
def _ending_if_wrong() -> Iterator[None]:
    """End the process with one line and status 78, which supervisors don't restart."""
    try:
        yield
    except SettingError as exc:
        logger.critical("once: %s", exc, extra=about("setting_wrong"))
        raise SystemExit(os.EX_CONFIG) from None
