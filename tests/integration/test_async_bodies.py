"""Tasks whose bodies await: what works in each pool, and what is refused."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from functools import wraps
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from celery import Celery
from processes import wait_until
from system import System

from celery_once_beat import OnceScheduler, OnceTask, Window, current_window, once
from celery_once_beat.errors import RecordError, SettingError
from celery_once_beat.testing import executing, window
from celery_once_beat.worker import check_tasks

TWO = window("report", "2026-11-21T02:00Z", "2026-11-22T02:00Z")
SAYS = (
    r"found an async def, which Celery doesn't await, expected a plain function; in it call asgiref\.sync\.async_to_s"
    r".* Where the workers' pool awaits it, name that in worker_pool"
)


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose broker and Redis aren't there: what asks for them fails."""
    with Celery("tests", broker="redis://127.0.0.1:1/0", set_as_current=False, task_cls=OnceTask) as app:
        yield app


async def body(*_: Any) -> None:
    pytest.fail("it ran")


async def rows(*_: Any) -> Any:
    yield 1


def plainly(function: Any) -> Any:
    """Decorate without a thought of coroutines."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


CALLS = {"call": lambda task: task(), "apply": lambda task: task.apply(throw=True).get()}
CALLED = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.mark.parametrize("options", [{}, {"bind": True}, {"autoretry_for": (ValueError,)}], ids=["", "bound", "retry"])
@pytest.mark.parametrize("function", [body, rows])
def test_an_entry_with_an_async_body_is_left_out(app: Celery, function: Any, options: dict[str, Any]) -> None:
    """However it is declared. Other entries go on, and so do beats and workers: it may be sent without a window."""
    app.task(function, name="tests.body", shared=False, **options)
    app.conf.beat_schedule = {
        name: {"task": f"tests.{name}", "schedule": 60, "options": {}} for name in ("body", "other")
    }
    check_tasks(app)
    scheduler = OnceScheduler(app)
    scheduler.entries.refresh(scheduler.schedule)
    assert [entry.name for entry in scheduler.entries] == ["other"]
    with pytest.raises(SettingError, match=rf"^task 'tests\.body': {SAYS}"):
        raise SettingError(scheduler.entries.wrong["body"])
    scheduler.close()


def test_an_async_body_for_a_pool_that_awaits(app: Celery) -> None:
    """An app whose pool isn't one of Celery's own may schedule it."""
    app.conf.worker_pool = "celery_aio_pool.pool:AsyncIOPool"
    app.task(body, name="tests.body", shared=False).check_scheduled()


def test_what_hides_it_fails_as_it_runs(app: Celery) -> None:
    """A decorator that knows nothing of it: the call fails with the same words, and nothing is left unawaited."""
    hidden = app.task(plainly(body), name="tests.hidden", shared=False)
    lost = app.task(plainly(rows), name="tests.lost", shared=False)
    check_tasks(app)
    for task in (hidden, lost):
        with pytest.raises(SettingError, match=SAYS):
            task.apply(throw=True)


def test_a_base_that_awaits_is_left_alone(app: Celery) -> None:
    """Its own ``__call__`` runs the coroutine; a direct call gives its caller the coroutine."""

    class Awaiting(OnceTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return asyncio.run(super().__call__(*args, **kwargs))

    async def seven() -> int:
        return await asyncio.sleep(0, 7)

    awaits = app.task(seven, name="tests.awaits", shared=False, base=Awaiting)
    awaits.check_scheduled()
    assert awaits.apply(throw=True).get() == awaits() == 7
    plain = app.task(seven, name="tests.plain", shared=False)
    assert asyncio.run(plain()) == 7


@CALLED
def test_the_window_is_carried(app: Celery, call: Any) -> None:
    """Into coroutines and threads that run for the body; not into a thread of one's own, nor after it."""
    seen: list[Any] = []

    async def look(task: Any) -> list[Window | None]:
        return [task.window, current_window(), await asyncio.to_thread(current_window)]

    @app.task(bind=True, shared=False)
    def report(self) -> Any:
        own = threading.Thread(target=lambda: seen.append(current_window()))
        own.start()
        own.join()
        return async_to_sync(look)(self) + asyncio.run(look(self))

    with executing(report, TWO):
        assert call(report) == [TWO] * 6
    assert seen == [None]
    first, *others = call(report)
    assert not first.scheduled
    assert others == [first] * 5
    assert current_window() is None
    assert asyncio.run(asyncio.to_thread(current_window)) is None


@CALLED
@pytest.mark.parametrize("within", [True, False], ids=["window", "none"])
def test_a_plain_thread_knows_no_window(app: Celery, call: Any, within: bool) -> None:
    """Nor does another task's body: there self.window raises and says what to write, rather than make one up."""

    @app.task(bind=True, shared=False)
    def other(self) -> Any:
        return self.window

    @app.task(bind=True, shared=False)
    def report(self) -> list[Any]:
        with ThreadPoolExecutor() as pool:
            context = copy_context()
            refused = pool.submit(lambda: self.window)
            knows = [pool.submit(context.run, lambda: self.window), pool.submit(lambda window=self.window: window)]
        for run in (refused.result, other.run):
            with pytest.raises(RecordError, match=r"write 'window = self\.window' there .*copy_context\(\)\.run"):
                run()
        assert other().entry != self.window.entry, "a call has one of its own"
        return [self.window, *(future.result() for future in knows)]

    with executing(report, TWO) if within else nullcontext():
        first, *others = call(report)
    assert others == [first] * 2
    assert report.window != report.window, "nothing runs"
    assert asyncio.run(asyncio.to_thread(lambda: report.window)) is not None


# ---------------------------------------------------------------------------------------------------- real workers


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
@pytest.mark.long
def test_bodies_that_await(system: System, pool: str) -> None:
    """In a real worker of each pool: each runs in its window."""
    system.check_law = False
    system.app = "apps.awaiting_app"
    app = Celery("sender", broker=system.broker_url, task_cls=OnceTask, set_as_current=False)
    app.conf.update(once_beat_redis_url=system.store_url, task_default_queue=system.queue)
    system.worker(pool=pool, concurrency=1 if pool == "gevent" else 4)  # asyncio has one loop a thread
    for name in ("synced", "run", "unbound", "own_base"):
        task = app.task(plainly(int), name=f"apps.awaiting_app.{name}", shared=False, typing=False)
        for number in range(3):
            assert task.apply_once(key=number, every="366d") is not None
    wait_until(lambda: len(system.ledger.read("ran")) == 12, "they ran", 60)
    for event in system.ledger.read("ran"):
        assert event["entry"].startswith(f"apps.awaiting_app.{event['how']}:")
        assert event["held"]
        assert event["same"]


def test_windows_in_a_pool_that_awaits(system: System) -> None:
    """The pool runs bodies and hooks in other threads than messages: each window runs there, and retries, once.

    A task that no schedule sends, and whose body is an ``async def``, keeps the worker from nothing.
    """
    system.app = "apps.awaiting_app"
    system.run_by = ["/usr/bin/env", "CELERY_CUSTOM_WORKER_POOL=celery_aio_pool.pool:AsyncIOPool"]  # before Celery
    worker = system.worker(pool="custom", env={"BROKEN": "1"})
    worker.wait_ready()
    system.send("apps.awaiting_app.broken", {})
    worker.wait_log("Task apps.awaiting_app.broken.* succeeded", 60)
    beats = [system.beat(f"beat{number}", SENT="run awaited") for number in range(2)]
    done = lambda name: system.outcomes(name).get("done", 0)  # noqa: E731
    wait_until(lambda: done("run") >= 2 and done("awaited") >= 2, "two windows of each are done", 60)
    for beat in beats:
        beat.stop()
    worker.stop()
    ran = Counter((event["how"], event["start"]) for event in system.ledger.read("ran"))
    assert set(ran.values()) == {1}
    assert {how for how, _ in ran} == {"run", "awaited 0", "awaited 1"}
    for hook, how in {"before": "awaited", "after": "awaited 1"}.items():
        heard = Counter(event["start"] for event in system.ledger.read(hook))
        assert heard == Counter(start for of, start in ran if of.startswith(how)), hook
    assert all(event["held"] and event["same"] for event in system.ledger.read("ran"))


@CALLED
@pytest.mark.parametrize("within", [True, False], ids=["window", "none"])
def test_a_forked_process_knows_no_window(app: Celery, call: Any, within: bool) -> None:
    """A process of a pool outlives the body that forked it, and would take its window for that of each later one."""

    @app.task(bind=True, shared=False)
    def report(self) -> list[bool]:
        window = self.window
        looks = [lambda: self.window, lambda: copy_context().run(lambda: self.window)]
        return [*map(refused, looks), in_child(lambda: current_window() is None), in_child(lambda: bool(window.key))]

    def refused(look: Any) -> bool:
        def raises() -> bool:
            with pytest.raises(RecordError, match=r"found a process that .*write 'key = self\.window\.key' there"):
                look()
            return True

        return in_child(raises)

    with executing(report, TWO) if within else nullcontext():
        assert call(report) == [True] * 4


def in_child(look: Any) -> bool:
    """Whether ``look`` returns True in a forked process."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if look() else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def test_the_innermost_counts(app: Celery, redis_url: str) -> None:
    """A block in a body, and a body that a block calls."""

    @app.task(shared=False)
    def inner() -> Any:
        return current_window()

    @app.task(shared=False)
    def outer() -> Any:
        with once("block", every="366d", url=redis_url) as block:
            with once("block", every="366d", url=redis_url):
                assert current_window() is block
            assert inner() not in (block, TWO)
            assert async_to_sync(asyncio.to_thread)(current_window) is block
        return current_window()

    with executing(outer, TWO):
        assert outer() is TWO
