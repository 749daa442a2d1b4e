"""Windows of user-defined keys: plain code that many machines start, and child tasks that are sent once.

``once("key", every="1h")`` gives each window of the key to one caller; ``task.apply_once(key=…)`` publishes a task
once a window. A key has no entry and no cursor, and nobody recovers it. Two strings in Redis decide, its claim and its
run key. Each lives for ``once_beat_retention``, or as long as the window if that is longer. Within another task's
window, ``apply_once`` names the key after that window's entry and the user's key. A ``tracked`` child is recovered: see
``children``.

What ``once()`` does if its process dies or sleeps is in ``worker/base``. A process that dies in ``apply_once``:

- between claim and publish: the next caller publishes, since a claim stops nobody before its confirm;
- between publish and confirm: the same, and the worker refuses the second copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import json
import logging
import re
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from celery import Celery
from celery.schedules import BaseSchedule, schedule

from celery_once_beat import signals
from celery_once_beat.background import called, check_asyncio, seen_through, threads_of
from celery_once_beat.errors import OnceError, SettingError, StoreUnavailableError
from celery_once_beat.identity import caller_name, digest
from celery_once_beat.logs import guarded
from celery_once_beat.options import check_seconds
from celery_once_beat.rules import latest_start, read_zone
from celery_once_beat.settings import Settings
from celery_once_beat.store import Again, Begun, Claimed, Ending, store_of
from celery_once_beat.windows import KeyedWindow, Window, next_start, task_id, with_window
from celery_once_beat.wording import A_SPAN, expect, read_span, shown
from celery_once_beat.worker.base import WindowExecution, close_unrun, is_awaited, is_death
from celery_once_beat.worker.calls import TaskCall, current_call

from .store import Elsewhen, begin_now, claim_key, confirm_key, note_child

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from celery_once_beat.worker import OnceTask

    from .children import TrackedChild

logger = guarded(logging.getLogger(__name__))  # not Celery's: plain code has not set that up

P = ParamSpec("P")
T = TypeVar("T")

Every = timedelta | float | str | BaseSchedule
Key = str | int | uuid.UUID | tuple[str | int | uuid.UUID, ...]

_AN_EVERY = f"a timedelta, seconds, a schedule like crontab(hour=2, minute=0), or {A_SPAN}, at least 1 ms"
_MAX_KEY = 1024
_PLAIN = re.compile(r"[\w./-]{1,100}")
#: Seconds: the server counts in milliseconds.
_TICK = 0.001
#: How often the server may answer that its time lies in another window.
_TRIES = 3


class once:  # noqa: N801  # read as a verb: @once(…), with once(…)
    """Give each window of ``key`` to one of the callers: a decorator, and a context manager, also for asyncio.

    ``key`` is a text, an int, a UUID, or a tuple of these.
    ``every`` says when windows start: a timedelta, seconds, a schedule, or a text like ``"90s"``, ``"5m"``, ``"1h"``,
    ``"1d"``. Whole days begin at midnight in ``tz`` (default: the app's time zone, UTC with ``url``). Windows are
    coordinated through the Redis of ``app``, or at ``url``; give one of the two. ``lease`` is in seconds (default:
    ``once_beat_lease``) and is renewed while the body runs. A body that raises has failed, and isn't run again in this
    window; with ``retry_failed_after`` the next caller may run it again that many seconds later.

    As a context manager it yields the ``Window``, or None if another caller has it. A decorated function returns None
    then. Raises SettingError at once for wrong arguments; raises StoreUnavailableError when entered while Redis doesn't
    answer. SystemExit, KeyboardInterrupt and GeneratorExit aren't an end: the lease runs out, and the next caller
    begins. Nor is asyncio's CancelledError: the window is given back, and the next caller begins at once.

    In asyncio use ``async with``, or decorate an ``async def``: Redis is asked in a thread, where receivers of signals
    run too. A task that is cancelled while Redis is asked is cancelled once Redis has answered.

    An object may be used again and again, and from several threads and event loops. A block may be left in another
    thread or context than it was entered in, as a web framework does with a dependency that yields. Blocks of one
    object that overlap need ``with`` or ``async with``: an ExitStack doesn't tell which of them is left.
    """

    def __init__(
        self,
        key: Key,
        *,
        every: Every,
        tz: tzinfo | str | None = None,
        app: Celery[Any] | None = None,
        url: str | None = None,
        lease: float | None = None,
        retry_failed_after: float | None = None,
    ) -> None:
        self._key = _check_key(key)
        name = f"once({key!r})"
        if (app is None) == (url is None):
            raise SettingError(f"{name}: give app= or url=, one of the two: where windows are coordinated")
        self._app = app if app is not None else _app_at(str(url))
        self._schedule = _schedule(name, every, tz, self._app)
        self._inside: list[_Entered] = []
        self._lease: float | None = check_seconds(0.5, optional=True)(f"{name}, lease", lease)
        again = check_seconds(0.001, optional=True)
        self._again: float | None = again(f"{name}, retry_failed_after", retry_failed_after)
        if url is not None:
            Settings.from_app(self._app)  # raises for a wrong URL now, not at night

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T | None]]: ...

    @overload
    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]: ...

    def __call__(self, function: Callable[P, Any]) -> Callable[P, Any]:
        """Run ``function``, plain or ``async def``, only if the window is this caller's; else return None.

        Raises SettingError for a generator, whose body runs after its call. If only its result shows that, or that it
        is to be awaited, the window has failed.
        """
        if _is(function, inspect.isgeneratorfunction) or _is(function, inspect.isasyncgenfunction):
            raise self._refused(function)
        if _is(function, inspect.iscoroutinefunction):

            @wraps(function)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with self as window:
                    return None if window is None else await function(*args, **kwargs)
                return _recorded(window)

            return awaited

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            with self as window:
                if window is None:
                    return None
                result = function(*args, **kwargs)
                if inspect.isgenerator(result) or is_awaited(result):
                    close_unrun(result)
                    raise self._refused(function)
                return result
            return _recorded(window)

        return call

    def _refused(self, function: Callable[..., object]) -> SettingError:
        return SettingError(
            f"once({self._key!r}): found {_name_of(function)}, whose body runs after its call, expected a plain "
            "function or an async def; use 'with once(…)' or 'async with once(…)' within it"
        )

    def __enter__(self) -> Window | None:
        """Return the window if it is this caller's to run, else None."""
        return self._enter(self._begin(), sys._getframe(1))  # noqa: SLF001  # nothing else tells one block from another

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Record how the body ended. One whose window is recorded already ends here, as done."""
        execution = self._leave(sys._getframe(1))  # noqa: SLF001
        return None if execution is None else execution.end(error, self._again)

    def __aenter__(self) -> Coroutine[Any, Any, Window | None]:
        """As ``__enter__``, without blocking the event loop."""
        return self._begin_awaited(sys._getframe(1))  # noqa: SLF001  # a coroutine's own would be another

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[Any, Any, bool | None]:
        """As ``__exit__``, without blocking the event loop."""
        return self._end_awaited(self._leave(sys._getframe(1)), error)  # noqa: SLF001

    async def _begin_awaited(self, frame: FrameType) -> Window | None:
        check_asyncio(f"once({self._key!r})")
        threads = threads_of.of(store_of(self._app))
        begun = threads.start(self._begin)
        try:
            cancelled = await seen_through(begun)
            execution = None if begun.exception() else begun.result()
            if cancelled is not None and execution is not None:
                await seen_through(threads.start(execution.give_back))
        except BaseException:
            begun.add_done_callback(_give_back)  # it may still be asked
            raise
        if cancelled is not None:
            raise cancelled
        return self._enter(begun.result(), frame)

    async def _end_awaited(self, execution: KeyedExecution | None, error: BaseException | None) -> bool | None:
        if execution is None:
            return None
        if isinstance(error, (GeneratorExit, KeyboardInterrupt, SystemExit)):
            return execution.end(error, self._again)  # asks nothing; a coroutine that is closed may not wait
        execution.seconds_to_record()  # counted from now, however long its end waits for a thread
        return await called(execution.store, partial(execution.end, error, self._again))

    def _enter(self, execution: KeyedExecution | None, frame: FrameType) -> Window | None:
        entered = _Entered(execution, frame)
        self._inside.append(entered)
        _entered.set((*_still_inside(), entered))
        return None if execution is None else execution.window

    def _leave(self, frame: FrameType) -> KeyedExecution | None:
        """Find the block that is being left, by its frame, else by its context; return its execution.

        If neither is known (an ExitStack that is left elsewhere), blocks without a window go first. So a lease may
        last until the last of them is left, but none ends early.
        """
        innermost_first, here = self._inside[::-1], _still_inside()

        def rank(entered: _Entered) -> int:
            return 0 if entered.frame is frame else 1 if entered in here else 2 if entered.execution is None else 3

        for entered in sorted(innermost_first, key=rank):
            with contextlib.suppress(ValueError):  # another thread has left it meanwhile
                self._inside.remove(entered)
                entered.frame = None
                _entered.set(_still_inside())
                return entered.execution
        raise RuntimeError(f"once({self._key!r}) is left, but wasn't entered")

    def _begin(self) -> KeyedExecution | None:
        store = store_of(self._app)
        length = self._lease or store.settings.lease
        owner, now = caller_name(), datetime.now(timezone.utc)
        for _ in range(_TRIES):
            window = _window_at(self._schedule, self._key, now)
            if window is None:
                return None
            execution = KeyedExecution(self, store, window, owner, length)
            asked = begin_now(store, _keyed(window), owner, length)
            reply, sent = execution.leases.begin(asked, length, execution.undo_begin)
            if not isinstance(reply, Elsewhen):
                return execution.start(reply, sent) if isinstance(reply, Begun) else None
            now = reply.now  # the server's clock counts
        raise StoreUnavailableError(f"once({self._key!r}): Redis answers too late, in another window")


class KeyedExecution(WindowExecution):
    """A caller's execution of a window. A key has no retry to hand over to."""

    logger = logger

    def _send_give_back(self, fence: int) -> object:
        # It has failed and runs again at once: the next caller may begin.
        return self.store.finish(Ending(self.key, self.owner, fence, "failed", 0.001, tracked=False))

    def start(self, reply: Begun, sent: float) -> KeyedExecution:
        """Return itself, its lease held."""
        self.own(reply, sent)
        try:
            self.leases.hold(self.lease)
            self.context.__enter__()
            signals.window_started.send(sender=self.sender, window=self.window)
        except BaseException:  # its block is never entered
            self.release()
            raise
        return self

    def end(self, error: BaseException | None, again_after: float | None) -> bool:
        """Record how its body ended: by what it raised. Returns whether that says that it was recorded already."""
        self.state = "ended"
        recorded = self.context.__exit__(None, error, None)
        try:
            if error is None or recorded:
                self.record("done")
            elif isinstance(error, asyncio.CancelledError):
                self.give_back()
            elif is_death(error):
                text = "cut short by %s: the next caller begins once its lease has run out"
                self.log(logging.INFO, "window_left", text, type(error).__name__)
            else:
                self.record("failed", error, again_after)
        finally:
            self.release()
        return recorded

    def give_back(self) -> None:
        """Let the next caller begin at once: its body was cancelled. Asked again, it is answered alike."""
        self.lease.end()  # its threads, if it left any, see this before another begins
        try:
            given = self._send_give_back(self.lease.renewal.fence)
            if isinstance(given, Again):
                time.sleep(given.after + _TICK)  # who asks next may be this caller
            self.log(logging.INFO, "window_given_back", "cancelled and given back: the next caller begins")
        except OnceError as exc:
            text = "cancelled, and not given back: the next caller begins once its lease has run out: %s"
            self.log(logging.WARNING, "window_left", text, exc)
        finally:
            self.release()

    def release(self) -> None:
        """Don't renew its lease any more."""
        self.leases.release(self.lease)


def _give_back(begun: Future[KeyedExecution | None]) -> None:
    """Give back what has begun for nobody: its caller was cancelled twice, or closed."""
    execution = None if begun.exception() else begun.result()
    if execution is not None:
        threads_of.of(execution.store).start(execution.give_back)


class _Entered:
    """A block that was entered. ``frame`` is None once it was left, ``execution`` if another caller has the window."""

    def __init__(self, execution: KeyedExecution | None, frame: FrameType) -> None:
        self.execution = execution
        self.frame: FrameType | None = frame
        #: The task's call within which it was entered.
        self.call: TaskCall | None = current_call()


#: The blocks that were entered in this context: a thread's, or an asyncio task's.
_entered: ContextVar[tuple[_Entered, ...]] = ContextVar("once_entered", default=())


def _still_inside() -> tuple[_Entered, ...]:
    return tuple(entered for entered in _entered.get() if entered.frame is not None)


def window_of_block() -> Window | None:
    """Return the window of the innermost block that this context is in, unless a task was called within that block."""
    for entered in reversed(_still_inside()):
        if entered.execution is not None:
            return entered.execution.window if entered.call == current_call() else None
    return None


def _recorded(window: Window | None) -> Any:
    """Return the result of before, for a block that has ended since its window is recorded already."""
    return window._context.result if window is not None and window._context is not None else None


def _is(function: Callable[..., object], kind: Callable[[object], bool]) -> bool:
    """Whether ``function``, what a partial of it calls, or its type's ``__call__`` is of this kind."""
    itself = _of_partial(function)
    return kind(itself) or kind(getattr(type(itself), "__call__", None))  # noqa: B004


def _of_partial(function: Any) -> Any:
    return _of_partial(function.func) if isinstance(function, partial) else function


def _name_of(function: Callable[..., object]) -> str:
    itself = _of_partial(function)
    return str(getattr(itself, "__qualname__", None) or type(itself).__qualname__)


# -- child tasks


class Child:
    """A task's message that is sent once for a key and window; see :meth:`OnceTask.apply_once`."""

    def __init__(
        self,
        task: OnceTask,
        key: Key,
        window: Window | None,
        every: Every | None,
        tz: tzinfo | str | None,
        *,
        tracked: bool = False,
    ) -> None:
        of_task = window is None or isinstance(window, Window)
        expect(f"task {task.name!r}, apply_once, window", window, of_task, "a Window, as self.window", SettingError)
        within = task.name if window is None else f"{task.name}@{_short(window.entry)}"
        name = f"{within}:{_check_key(key)}"
        if (window is None) == (every is None):
            raise SettingError(f"{name}: give window= or every=, one of the two")
        if tracked and window is None:
            raise SettingError(f"{name}, tracked: found every=, expected window=self.window")
        self._task = task
        self._name = name
        self._within = window
        self._tracked = tracked
        self._schedule = None if every is None else _schedule(name, every, tz, task.app)

    def _window(self, now: datetime) -> Window | None:
        if self._schedule is not None:
            return _window_at(self._schedule, self._name, now)
        assert self._within is not None
        return Window(self._name, self._within.start, self._within.end, tracked=False, keyed=True)

    def tracked(self, args: Any, kwargs: Any, options: dict[str, Any]) -> TrackedChild:
        """Return it as a window that beats recover; raises SettingError for what can't be kept."""
        from .children import TrackedChild  # noqa: PLC0415  # it imports beat's part of publishing

        assert self._within is not None
        return TrackedChild(self._task, self._name, self._within, args, kwargs, options)

    def _sent_as(self, options: Mapping[str, Any], window: Window) -> str:
        prefix = store_of(self._task.app).settings.key_prefix
        return str(options.get("task_id") or task_id(prefix, f"key:{self._name}", window.start))

    def publish(self, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        """Send it; returns its result, or None if its message is out or it has no window now."""
        if self._tracked and not self._task.app.conf.task_always_eager:
            child = self.tracked(args, kwargs, options)
            return child.publish() if child.open() else None
        store = store_of(self._task.app)
        window = self._window(datetime.now(timezone.utc))
        note = []
        if self._within and window:
            note = note_child(store, self._within, self._name, self._sent_as(options, window))
        reply = claim_key(store, _keyed(window), now=self._within is None, note=note) if window else None
        if isinstance(reply, Elsewhen):  # the server's clock counts
            window = self._window(reply.now)
            reply = claim_key(store, _keyed(window)) if window else None
        if window is None or not isinstance(reply, Claimed):
            return None
        sent_as = self._sent_as(options, window)
        options = {**options, "task_id": sent_as, "headers": with_window(options.get("headers"), window, sent_as)}
        result = self._task.apply_async(args, kwargs, **options)
        try:
            confirm_key(store, _keyed(window))
        except OnceError as exc:
            # The next caller publishes it again; the worker refuses that copy.
            logger.debug("once: %s not confirmed: %s", window.entry, exc)
        return result


class TaskMethods:
    """Methods of every OnceTask."""

    def apply_once(
        self: Any,
        args: Any = None,
        kwargs: Any = None,
        *,
        key: Key,
        window: Window | None = None,
        every: Every | None = None,
        tz: tzinfo | str | None = None,
        tracked: bool = False,
        **options: Any,
    ) -> Any:
        """As ``apply_async``, but once for each ``key`` (a user's id, for example) and window, however many ask.

        A key is a text, an int, a UUID, or a tuple of these. Anything else raises SettingError: its text may differ.
        Give one of two: ``window=self.window``, then a task's children are sent once, also if it runs again after a
        crash within ``once_beat_retention``; or ``every`` (and ``tz``), as ``celery_once_beat.once`` takes it, for its
        present window. Further ``options`` are those of ``apply_async``. Returns the AsyncResult, or None if the
        message is out already. Until that is certain every caller publishes it, since the other may be dead; the
        worker refuses the copies. What is out isn't recovered. Raises StoreUnavailableError while Redis doesn't
        answer, and what ``apply_async`` raises: the next caller publishes it then.

        With ``window`` and ``tracked`` beats recover it as an entry's window, from this call on: whoever is killed, it
        is executed, and ends once. Redis keeps its message until then, as JSON of up to 64 KiB. Raises SettingError
        for what can't be kept so. A broker that is away raises nothing: a beat publishes it later.
        """
        return Child(self, key, window, every, tz, tracked=tracked).publish(args, kwargs, options)

    async def apply_once_async(
        self: Any,
        args: Any = None,
        kwargs: Any = None,
        *,
        key: Key,
        window: Window | None = None,
        every: Every | None = None,
        tz: tzinfo | str | None = None,
        tracked: bool = False,
        **options: Any,
    ) -> Any:
        """As ``apply_once``, for asyncio: Redis and the broker are asked in a thread.

        If it is cancelled, it is sent or not sent; the next caller's ``apply_once`` sees which.
        """
        check_asyncio(f"task {self.name!r}, apply_once_async")
        child = Child(self, key, window, every, tz, tracked=tracked)
        return await called(store_of(self.app), partial(child.publish, args, kwargs, options))


# -- what a key and its windows are


def _check_key(key: object) -> str:
    """Return a key's text, the same in every process; raises SettingError for what has none."""
    text = json.dumps([*map(_word, key)], ensure_ascii=False) if isinstance(key, tuple) and key else _word(key)
    if len(text.encode()) > _MAX_KEY:
        raise _wrong_key(key)
    return text


def _word(key: object) -> str:
    if isinstance(key, str):
        text = str.__str__(key)  # an enum's member is its value
    elif isinstance(key, uuid.UUID):
        text = str(key)
    elif isinstance(key, int) and not isinstance(key, bool) and key.bit_length() < _MAX_KEY:
        text = int.__repr__(key)
    else:
        raise _wrong_key(key)
    if not text or not text.isprintable():
        raise _wrong_key(key)
    return text


def _wrong_key(key: object) -> SettingError:
    return SettingError(
        f"key: found {shown(key)}, expected a text of 1 to {_MAX_KEY} bytes, an int, a UUID, or a tuple of these"
    )


def _short(entry: str) -> str:
    """An entry's name within another: itself, or a digest if it is long or could be mistaken for another."""
    if _PLAIN.fullmatch(entry):
        return entry
    return "#" + digest(entry, 16).hex()


def _schedule(name: str, every: Every, tz: tzinfo | str | None, app: Celery) -> BaseSchedule:
    zone = tz if tz is None or isinstance(tz, tzinfo) else read_zone(tz, f"{name}, tz")
    carrier = app if zone is None else _app_in(zone)
    if isinstance(every, BaseSchedule):
        every = copy.copy(every)  # the caller's may be in a beat schedule too
        every.__dict__.pop("tz", None)
        if tz is not None or every._app is None:  # type: ignore[attr-defined]  # noqa: SLF001  # .app: whichever is current
            every.app = carrier
        return every
    span = read_span(every)
    if span is None or span < timedelta(milliseconds=1):
        raise SettingError(f"{name}, every: found {shown(every)}, expected {_AN_EVERY}")
    return schedule(span, app=carrier)


@lru_cache(maxsize=64)
def _app_in(zone: tzinfo) -> Celery:
    """An app that only has this time zone: Celery's schedules ask their app for it."""
    app = Celery("once", set_as_current=False)
    app.conf.timezone = zone  # type: ignore[misc]  # celery-types has it as read-only
    return app


@lru_cache(maxsize=64)
def _app_at(url: str) -> Celery:
    """An app that only has its windows coordinated at ``url``."""
    app = Celery("once", set_as_current=False)
    app.conf.once_beat_redis_url = url
    return app


def _window_at(when: BaseSchedule, name: str, now: datetime) -> Window | None:
    start = latest_start(when, now)
    return None if start is None else Window(name, start, next_start(when, start), tracked=False, keyed=True)


def _keyed(window: Window) -> KeyedWindow:
    return KeyedWindow(window.entry, window.start, window.end)
