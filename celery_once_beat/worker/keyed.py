"""Windows of keys of the user's own: plain code that many machines start, and child tasks that are sent once.

``once("key", every="1h")`` gives each window of the key to one caller; ``task.apply_once(key=…)`` publishes a task
once a window. A key has no entry, no cursor and nobody who recovers it: two strings decide, and each lives for
``once_beat_retention`` or as long as the window, if that is longer. The key of a child within another task's window is
that window's entry and the user's key.

What if the process dies, or sleeps for an hour:

- between begin and the end of the body: the lease runs out, and the next caller begins; who wakes up late is stale;
- between claim and publish: the next caller publishes, since a claim stops nobody before its confirm;
- between publish and confirm: the same, and the worker refuses the second copy.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import logging
import re
import sys
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from functools import cached_property, lru_cache, partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery import Celery
from celery.schedules import BaseSchedule, schedule

from celery_once_beat import signals
from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, SettingError, StoreUnavailableError, UncertainWriteError
from celery_once_beat.identity import caller_name
from celery_once_beat.logs import about
from celery_once_beat.rules import latest_start
from celery_once_beat.settings import Settings, check_seconds
from celery_once_beat.store import Begun, Busy, Claimed, Closed, Elsewhen, Stale, Store, store_of
from celery_once_beat.windows import KeyedWindow, Window, format_instant, next_start, task_id, with_window
from celery_once_beat.wording import A_SPAN, read_span, shown

from .leases import Lease, is_death, leases_of, tell

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from .task import OnceTask

__all__ = ("Once", "once", "publish_once")

logger = logging.getLogger(__name__)  # in plain code nobody has set up Celery's

P = ParamSpec("P")
T = TypeVar("T")

_AN_EVERY = f"a timedelta, a schedule like crontab(hour=2, minute=0), or {A_SPAN}"
_MAX_KEY = 1024
_PLAIN = re.compile(r"[\w.-]{1,100}")
#: How often a begin may be answered too late, or with another time than this machine's, before it is given up.
_TRIES = 3


def once(
    key: str,
    *,
    every: timedelta | str | BaseSchedule,
    tz: tzinfo | str | None = None,
    app: Celery | None = None,
    url: str | None = None,
    lease: float | None = None,
    retry_failed_after: float | None = None,
) -> Once:
    """Give each window of ``key`` to one of the callers: a decorator, and a context manager.

    ``every`` says when windows start: a timedelta, a schedule, or a text like ``"1h"``; whole days begin at midnight in
    ``tz`` (default: the app's time zone, UTC with ``url``). Windows are coordinated through the Redis of ``app``, or at
    ``url``; one of the two is needed. ``lease`` is in seconds (default: ``once_beat_lease``) and is renewed while the
    body runs. A body that raises has failed, and isn't run again in this window, unless ``retry_failed_after`` says
    after how many seconds the next caller may.

    As a context manager it yields the ``Window``, or None where another has it; a decorated function returns None
    then. Raises SettingError at once for what can't be; StoreUnavailableError when entered while Redis doesn't answer,
    unless ``once_beat_run_without_store`` is set. SystemExit and KeyboardInterrupt aren't an end: the lease runs out,
    and the next caller begins.
    """
    return Once(key, every=every, tz=tz, app=app, url=url, lease=lease, retry_failed_after=retry_failed_after)


class Once:
    """See :func:`once`. May be used again and again, and from several threads.

    A block may be left in another thread or context than it was entered in, as a web framework does with a dependency
    that yields. Blocks that overlap share one object by ``with`` only: an ExitStack doesn't tell which of them is left.
    """

    def __init__(
        self,
        key: str,
        *,
        every: timedelta | str | BaseSchedule,
        tz: tzinfo | str | None,
        app: Celery | None,
        url: str | None,
        lease: float | None,
        retry_failed_after: float | None,
    ) -> None:
        self._key = _check_key(key)
        if (app is None) == (url is None):
            raise SettingError(f"once({key!r}): give app= or url=, one of the two: where windows are coordinated")
        carrier = app if app is not None else _app_at(str(url))
        self._app = carrier
        self._schedule = _schedule(f"once({key!r})", every, tz, carrier)
        self._inside: list[_Entered] = []
        seconds = check_seconds(0.5, optional=True)
        self._lease: float | None = seconds(f"once({key!r}), lease", lease)
        self._again: float | None = check_seconds(0.001, optional=True)(
            f"once({key!r}), retry_failed_after", retry_failed_after
        )
        if url is not None:
            Settings.from_app(carrier)  # what is wrong with it is said here, not at night

    @cached_property
    def _store(self) -> Store:
        return store_of(self._app)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Run ``function`` only where the window is this caller's; else return None.

        Raises SettingError for one whose body runs after its call: a coroutine, a generator. One that only its result
        shows as that has failed.
        """
        if _runs_later(function):
            raise self._refused(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
            with self as window:
                if window is None:
                    return None
                result = function(*args, **kwargs)
                if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
                    if hasattr(result, "close"):
                        result.close()
                    raise self._refused(function)
                return result

        return call

    def _refused(self, function: Callable[..., object]) -> SettingError:
        return SettingError(
            f"once({self._key!r}): found {_name_of(function)}, whose body runs after its call, expected a plain "
            "function; use 'with once(…)' within it"
        )

    def __enter__(self) -> Window | None:
        """Return the window if it is this caller's to run, else None."""
        turn = self._begin()
        entered = _Entered(turn, sys._getframe(1))  # noqa: SLF001  # nothing else tells one block from another
        self._inside.append(entered)
        _entered.set((*_still_inside(), entered))
        return None if turn is None else turn.window

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Record how the body ended."""
        turn = self._leave(sys._getframe(1))  # noqa: SLF001
        if turn is None or (error is not None and is_death(error)):
            if turn is not None and turn.lease is not None:
                leases_of(self._store).release(turn.lease)
            return
        lease = turn.lease or self._begin_afterwards(turn)
        if lease is None:
            return
        try:
            self._end(turn, lease, error)
        finally:
            leases_of(self._store).release(lease)

    def _leave(self, frame: FrameType) -> _Turn | None:
        """Find the block that is left now, by its frame, else by its context; return what it has.

        Where neither is known (an ExitStack that is left elsewhere), blocks without a window go first. So a lease may
        last until the last of them is left, but none ends early.
        """
        inside, here = self._inside[::-1], _still_inside()
        for candidates in (
            [entered for entered in inside if entered.frame is frame],
            [entered for entered in inside if entered in here],
            [entered for entered in inside if entered.turn is None],
            inside,
        ):
            for entered in candidates:
                with contextlib.suppress(ValueError):  # another thread has left it meanwhile
                    self._inside.remove(entered)
                    entered.frame = None
                    _entered.set(_still_inside())
                    return entered.turn
        raise RuntimeError(f"once({self._key!r}) is left, but wasn't entered")

    def _begin(self) -> _Turn | None:
        settings = self._store.settings
        length = self._lease or settings.lease
        owner = caller_name()
        now = datetime.now(timezone.utc)
        for _ in range(_TRIES):
            window = _window_at(self._schedule, self._key, now)
            if window is None:
                return None
            sent = steady()
            try:
                reply = self._ask(window, owner, length)
            except StoreUnavailableError as exc:
                if not settings.run_without_store:
                    raise
                logger.warning("once: %r runs without the store: %s", self._key, exc, extra=about("window_unguarded"))
                return _Turn(window, None)
            if isinstance(reply, Elsewhen):
                now = reply.now  # the server's clock counts
            elif not isinstance(reply, Begun):
                return None
            elif steady() < sent + length:
                return self._own(window, owner, reply, length, sent)
        raise StoreUnavailableError(
            f"once({self._key!r}): Redis answers too late: after the lease of {length:g} s, or in another window"
        )

    def _ask(self, window: Window, owner: str, length: float) -> Begun | Busy | Closed | Elsewhen:
        """Begin; where too few replicas have it, ask again for half the lease, then give the window back."""
        give_up = time.monotonic() + length / 2
        while True:
            try:
                return self._store.begin_now(_keyed(window), owner, length)
            except UncertainWriteError:
                if time.monotonic() > give_up:
                    with contextlib.suppress(OnceError):
                        # Failed, to run again at once: the next caller may begin.
                        self._store.finish(_keyed(window), owner, 0, "failed", 0.001, tracked=False)
                    raise
            time.sleep(0.1)

    def _begin_afterwards(self, turn: _Turn) -> Lease | None:
        """Take the window of a body that ran without the store, if Redis answers by now and nobody else has it."""
        length, owner = self._lease or self._store.settings.lease, caller_name()
        keyed, sent = _keyed(turn.window), steady()
        try:
            reply = self._store.begin(keyed, owner, length, tracked=False)
        except OnceError as exc:
            self._log(logger.warning, "window_unrecorded", turn, f"ran without the store, end not recorded: {exc}")
            return None
        if not isinstance(reply, Begun):
            self._log(logger.warning, "window_unrecorded", turn, "ran without the store, and another ran it too")
            return None
        return Lease(keyed, owner, reply.fence, length, sent, tracked=False, attempt=1)

    def _own(self, window: Window, owner: str, reply: Begun, length: float, sent: float) -> _Turn:
        lease = Lease(_keyed(window), owner, reply.fence, length, sent, tracked=False, attempt=1)
        held = replace(window, fence=reply.fence, _held=lease.held)
        leases_of(self._store).hold(lease)
        try:
            signals.window_started.send(sender=self, window=held)
        except BaseException:  # its block is never entered
            leases_of(self._store).release(lease)
            raise
        return _Turn(held, lease)

    def _end(self, turn: _Turn, lease: Lease, error: BaseException | None) -> None:
        lease.ending = True
        outcome = "done" if error is None else "failed"
        replies: list[object] = []

        def finish() -> None:
            again = None if error is None else self._again
            reply = self._store.finish(lease.window, lease.owner, lease.fence, outcome, again, tracked=False)
            replies.append(reply)

        def unrecorded(exc: OnceError) -> None:
            self._log(logger.error, "window_unrecorded", turn, f"end not recorded, it may run again: {exc}")

        tell(finish, lease.length, unrecorded)
        if not replies:
            return
        if isinstance(replies[-1], Stale):
            self._log(logger.error, "window_stale", turn, "came back after its lease; its end isn't recorded")
            signals.window_stale.send(sender=self, window=turn.window)
        elif error is None:
            signals.window_succeeded.send(sender=self, window=turn.window)
        else:
            signals.window_failed.send(sender=self, window=turn.window, exception=error)

    def _log(self, log: Callable[..., None], action: str, turn: _Turn, text: str) -> None:
        log("once: window %s of key %r %s", format_instant(turn.window.start), self._key, text, extra=about(action))


class _Turn:
    """One execution of a window; without a lease where it runs without the store."""

    def __init__(self, window: Window, lease: Lease | None) -> None:
        self.window = window
        self.lease = lease


class _Entered:
    """A block that was entered. ``frame`` is None once it was left, ``turn`` where another caller has the window."""

    def __init__(self, turn: _Turn | None, frame: FrameType) -> None:
        self.turn = turn
        self.frame: FrameType | None = frame


#: What was entered in this context: a thread's, or a task's of asyncio.
_entered: ContextVar[tuple[_Entered, ...]] = ContextVar("once_entered", default=())


def _still_inside() -> tuple[_Entered, ...]:
    return tuple(entered for entered in _entered.get() if entered.frame is not None)


def _runs_later(function: Callable[..., object]) -> bool:
    """Whether the body of ``function`` runs after its call: it, or the ``__call__`` of what it is an object of."""
    itself = _of_partial(function)
    later = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_so(of) for is_so in later for of in (itself, getattr(type(itself), "__call__", None)))  # noqa: B004


def _of_partial(function: Any) -> Any:
    return _of_partial(function.func) if isinstance(function, partial) else function


def _name_of(function: Callable[..., object]) -> str:
    itself = _of_partial(function)
    return str(getattr(itself, "__qualname__", None) or type(itself).__qualname__)


# -- child tasks


def publish_once(  # noqa: PLR0913  # apply_once tells it all that it was told
    task: OnceTask,
    args: Any,
    kwargs: Any,
    *,
    key: object,
    window: Window | None,
    every: timedelta | str | BaseSchedule | None,
    tz: tzinfo | str | None,
    options: dict[str, Any],
) -> Any:
    """Publish ``task`` once for ``key`` and window; see :meth:`OnceTask.apply_once`."""
    within = task.name if window is None else f"{task.name}@{_short(window.entry)}"
    name = f"{within}:{_check_key(key if isinstance(key, str) else str(key))}"
    if (window is None) == (every is None):
        raise SettingError(f"{name}: give window= or every=, one of the two")
    store, claimant = store_of(task.app), uuid.uuid4().hex
    child: Window | None
    if window is not None:
        child = Window(name, window.start, window.end, tracked=False, keyed=True)
    else:
        assert every is not None
        when = _schedule(name, every, tz, task.app)
        child = _window_at(when, name, datetime.now(timezone.utc))
    try:
        reply = store.claim_key(_keyed(child), claimant, now=window is None) if child else None
        if isinstance(reply, Elsewhen):  # the server's clock counts
            child = _window_at(when, name, reply.now)
            reply = store.claim_key(_keyed(child), claimant) if child else None
    except StoreUnavailableError:
        if not store.settings.publish_without_store:
            raise
        reply = Claimed(0, None)
    if child is None or not isinstance(reply, Claimed):
        return None
    keyed = _keyed(child)
    sent_as = str(options.get("task_id") or "") or task_id(store.settings.key_prefix, f"key:{name}", child.start)
    options = {**options, "task_id": sent_as, "headers": with_window(options.get("headers"), child, sent_as)}
    try:
        result = task.apply_async(args, kwargs, **options)
    except Exception:
        _confirm(store, keyed, claimant, published=False)
        raise
    _confirm(store, keyed, claimant, published=True)
    return result


def _confirm(store: Store, window: KeyedWindow, claimant: str, *, published: bool) -> None:
    try:
        store.confirm_key(window, claimant, published=published)
    except OnceError as exc:
        # The next who asks publishes it again; that copy is refused.
        logger.debug("once: claim of %s not confirmed: %s", window.entry, exc)


# -- what a key and its windows are


def _check_key(key: object) -> str:
    # Half of a surrogate pair is no text, and has no bytes.
    if not isinstance(key, str) or not 0 < len(key.encode(errors="ignore")) <= _MAX_KEY or not key.isprintable():
        raise SettingError(f"key: found {shown(key)}, expected a text of 1 to {_MAX_KEY} bytes")
    return key


def _short(entry: str) -> str:
    """An entry's name within another: itself, or a digest where it is long or another could read the same."""
    if _PLAIN.fullmatch(entry):
        return entry
    return "#" + hashlib.blake2b(entry.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _schedule(name: str, every: timedelta | str | BaseSchedule, tz: tzinfo | str | None, app: Celery) -> BaseSchedule:
    carrier = app if tz is None else _app_in(_zone(name, tz))
    if isinstance(every, BaseSchedule):
        every = copy.copy(every)  # the caller's may stand in a beat schedule too
        every.__dict__.pop("tz", None)
        if tz is not None or every._app is None:  # type: ignore[attr-defined]  # noqa: SLF001  # .app: whichever is current
            every.app = carrier
        return every
    if isinstance(every, str):
        every = read_span(every) or every
    if not isinstance(every, timedelta) or every < timedelta(milliseconds=1):
        raise SettingError(f"{name}, every: found {shown(every)}, expected {_AN_EVERY}")
    return schedule(every, app=carrier)


def _zone(name: str, tz: tzinfo | str) -> tzinfo:
    if isinstance(tz, tzinfo):
        return tz
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise SettingError(f"{name}, tz: found {shown(tz)}, expected a name like 'Europe/Berlin'") from None


@lru_cache(maxsize=64)
def _app_in(zone: tzinfo) -> Celery:
    """An app that is only there to have this time zone: Celery's schedules ask theirs."""
    app = Celery("once", set_as_current=False)
    app.conf.timezone = zone  # type: ignore[misc]  # celery-types has it as read-only
    return app


@lru_cache(maxsize=64)
def _app_at(url: str) -> Celery:
    """An app that is only there to have its windows coordinated at ``url``."""
    app = Celery("once", set_as_current=False)
    app.conf.once_beat_redis_url = url
    return app


def _window_at(when: BaseSchedule, name: str, now: datetime) -> Window | None:
    start = latest_start(when, now)
    return None if start is None else Window(name, start, next_start(when, start), tracked=False, keyed=True)


def _keyed(window: Window) -> KeyedWindow:
    return KeyedWindow(window.entry, window.start, window.end)
