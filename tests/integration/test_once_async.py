"""``once()`` in asyncio and uvloop: the rules of ``test_keyed``, and what only coroutines can do."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
import redis
import trio
import uvloop
from celery import Celery
from processes import wait_until
from servers import RedisServer
from system import System

from celery_once_beat import OnceTask, Window, background, current_window, once, signals
from celery_once_beat.errors import OnceError, SettingError
from celery_once_beat.worker.leases import leases_of

YEARLY = {"every": timedelta(days=366)}  # one window for as long as a test takes
LOGGER = "celery_once_beat.features.keyed.task"

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine by either kind of loop."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


@pytest.fixture(autouse=True)
def nothing_is_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No thread of ours, no lease that is renewed, nothing that asyncio complains of."""
    yield
    gc.collect()
    wait_until(lambda: not threads(), "no thread is left", 60)
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    for store in list(background.threads_of._made):
        assert not [lease for lease in leases_of.of(store)._held.copy() if lease.state != "over"]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "once-awaited"]


def calling() -> bool:
    """Whether a thread is in a call, or a call waits for one."""

    def works(threads: background.Threads) -> bool:
        with threads._changed:  # a thread that ends isn't idle for a moment
            return bool(threads._waiting) or threads._running > threads._idle

    return any(map(works, background.threads_of.all()))


def ends(raw: redis.Redis) -> dict[str, str]:
    """How each key's window stands."""
    keys = raw.keys("once:key:*run:*")
    found = {key.split(":")[4]: value.split(":")[:2] for key in keys if (value := raw.get(key))}  # it may have expired
    return {key: state[1] if state[0] == "done" else "runs" for key, state in found.items()}


def actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.action for record in caplog.records if hasattr(record, "action")]


async def until(predicate: Callable[[], object], what: str) -> None:
    """As wait_until, while the loop goes on."""
    for _ in range(6000):
        if predicate():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within a minute: {what}")


# ---------------------------------------------------------------------------------------------------- who gets it


def test_one_caller_gets_the_window(redis_url: str, raw: redis.Redis, run: Run) -> None:
    """The first runs, the others get None, also after it has ended, and also plain code."""

    async def main() -> None:
        async with once("report", **YEARLY, url=redis_url) as window:
            assert isinstance(window, Window)
            assert window.held
            assert current_window() is window
            async with once("report", **YEARLY, url=redis_url) as other:
                assert other is None
                assert current_window() is window
            async with once("inner", **YEARLY, url=redis_url) as inner:
                assert current_window() is inner
            with once("report", **YEARLY, url=redis_url) as plain:
                assert plain is None
            with once("plain", **YEARLY, url=redis_url) as plain:
                assert plain is not None
            assert await asyncio.to_thread(current_window) is window
        assert current_window() is None
        async with once("report", **YEARLY, url=redis_url) as again:
            assert again is None

    run(main())
    assert ends(raw) == {"report": "done", "inner": "done", "plain": "done"}


def test_as_a_decorator(redis_url: str, run: Run) -> None:
    """Of functions, methods, partials and callable objects; it stays an ``async def`` to whoever asks."""

    class Job:
        @once("method", **YEARLY, url=redis_url)
        async def method(self, number: int) -> tuple[int, Window | None]:
            await asyncio.sleep(0)
            return number, current_window()

        async def __call__(self, number: int) -> tuple[int, Window | None]:
            return await asyncio.sleep(0, (number, current_window()))

    @once("function", **YEARLY, url=redis_url)
    async def function(number: int) -> tuple[int, Window | None]:
        """What it does."""
        return await asyncio.sleep(0, (number, current_window()))

    jobs = {
        "function": function,
        "method": Job().method,
        "object": once("object", **YEARLY, url=redis_url)(Job()),
        "partial": once("partial", **YEARLY, url=redis_url)(partial(partial(Job()), number=7)),
    }
    assert (function.__name__, function.__doc__) == ("function", "What it does.")
    for key, job in jobs.items():
        assert inspect.iscoroutinefunction(job)
        arguments = () if key == "partial" else (7,)
        number, window = run(job(*arguments))
        assert (number, window.entry) == (7, key)
        assert run(job(*arguments)) is None


def test_an_async_generator_is_refused(redis_url: str) -> None:
    """Its body would run after its call; it is told what to do."""

    async def rows() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(SettingError, match=r"rows, whose body runs after its call, .*'async with once\(…\)' within"):
        once("rows", **YEARLY, url=redis_url)(rows)


def test_bodies_that_wait_for_each_other(redis_url: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread for the store, and each of asyncio's taken by a body: the ends are recorded all the same."""
    monkeypatch.setattr(background, "_MOST", 1)
    all_wait, last_ended = threading.Barrier(4), threading.Event()

    def wait() -> None:
        all_wait.wait()
        last_ended.wait()

    async def body(number: int) -> None:
        async with once(f"outer-{number}", **YEARLY, url=redis_url), once(f"inner-{number}", **YEARLY, url=redis_url):
            await asyncio.to_thread(wait)

    async def last() -> None:
        async with once("last", **YEARLY, url=redis_url):
            await asyncio.to_thread(all_wait.wait)
        last_ended.set()

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
        await asyncio.gather(*map(body, range(3)), last())

    asyncio.run(main())
    assert len(ends(raw)) == 7
    assert set(ends(raw).values()) == {"done"}


# ------------------------------------------------------------------------------------------------------- blocking


def test_a_loop_doesnt_wait_for_redis(start_redis: Callable[..., RedisServer], run: Run) -> None:
    """While Redis stands still, at begin and at the end, the loop's other tasks go on."""
    server = start_redis()
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        other = asyncio.create_task(tick())

        async def go_on() -> None:
            await until(calling, "it is asked")
            before = turns
            await until(lambda: turns > before + 50, "the loop goes on")
            server.resume()

        server.pause()
        goes_on = asyncio.create_task(go_on())
        async with once("slow", **YEARLY, url=server.url()) as window:
            assert window is not None
            await goes_on
            server.pause()
            goes_on = asyncio.create_task(go_on())
        await goes_on
        other.cancel()

    run(main())


# ---------------------------------------------------------------------------------------------------- cancellation


def given_back(url: str, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The next caller begins, and not after a lease of 30 s."""

    def begins() -> bool:
        with once(key, **YEARLY, url=url) as window:
            return window is not None

    wait_until(begins, "the next caller begins", 20)
    assert actions(caplog) == ["window_given_back"]
    caplog.clear()


def test_a_cancelled_body_gives_its_window_back(redis_url, run, caplog, raw) -> None:
    """However it is cancelled; nothing has failed, and who still works for it sees that it isn't held any more."""
    caplog.set_level(logging.INFO, LOGGER)
    heard: list[str] = []
    seen: list[Window] = []

    def hear(**_: Any) -> None:
        heard.append("failed")

    async def body(key: str) -> None:
        async with once(key, **YEARLY, url=redis_url) as window:
            seen.append(window)
            await asyncio.sleep(3600)

    async def cancelled() -> None:
        task = asyncio.create_task(body("task"))
        await until(lambda: seen, "it runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def timed_out() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(body("timeout"), 0.5)

    async def at_the_loops_end() -> None:
        seen.clear()
        background.append(asyncio.create_task(body("loop")))
        await until(lambda: seen, "it runs")

    background: list[asyncio.Task[None]] = []
    signals.window_failed.connect(hear, weak=False)
    try:
        run(cancelled())
        given_back(redis_url, "task", caplog)
        run(timed_out())
        given_back(redis_url, "timeout", caplog)
        run(at_the_loops_end())
        given_back(redis_url, "loop", caplog)
    finally:
        signals.window_failed.disconnect(hear)
    assert not any(window.held for window in seen)
    assert not heard
    assert set(ends(raw).values()) == {"done"}


async def cancelled(task: asyncio.Task[None], times: int, server: RedisServer) -> None:
    """Once, it ends when Redis answers again; twice, at once."""
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.05)
    assert task.done() == (times == 2)
    server.resume()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_cancelled_while_it_begins(start_redis, run, caplog) -> None:
    """Once: when Redis has answered. Twice: at once. The window is given back either way."""
    caplog.set_level(logging.INFO, LOGGER)
    server = start_redis()

    async def body(key: str) -> None:
        async with once(key, **YEARLY, url=server.url()):
            pytest.fail("it ran")

    async def main(key: str, times: int) -> None:
        server.pause()
        task = asyncio.create_task(body(key))
        await until(calling, "it is asked")
        await cancelled(task, times, server)
        await until(lambda: actions(caplog) == ["window_given_back"], "it is given back")

    for key, times in (("first", 1), ("second", 2)):
        with once(key + "-warm", **YEARLY, url=server.url()):
            pass
        run(main(key, times))
        given_back(server.url(), key, caplog)


def test_cancelled_while_its_end_is_recorded(start_redis, run, caplog) -> None:
    """The body has returned: its end is recorded, whatever becomes of the task."""
    caplog.set_level(logging.INFO, LOGGER)
    server = start_redis()

    async def body(key: str) -> None:
        async with once(key, **YEARLY, url=server.url()):
            server.pause()

    async def main(key: str, times: int) -> None:
        task = asyncio.create_task(body(key))
        await until(lambda: server.paused and calling(), "its end is told")
        await cancelled(task, times, server)
        await until(lambda: not calling(), "its end is recorded")

    with redis.Redis.from_url(server.url(), decode_responses=True) as raw:
        for key, times in (("first", 1), ("second", 2)):
            run(main(key, times))
            assert ends(raw)[key] == "done"
    assert not actions(caplog)


def test_under_trio_it_says_so(redis_url: str) -> None:
    """One clear line, and nothing is asked."""

    async def main() -> None:
        async with once("trio", **YEARLY, url=redis_url):
            pytest.fail("it ran")

    with pytest.raises(OnceError) as caught:
        trio.run(main)
    assert str(caught.value) == (
        "once('trio'): found trio, expected asyncio or uvloop; elsewhere use 'with once(…)' in a thread"
    )


# ---------------------------------------------------------------------------------------------------- child tasks


def test_apply_once_async(system: System, run: Run) -> None:
    """As apply_once: once a window and key, the same results and the same errors."""
    system.check_law = False
    app = Celery("sender", broker=system.broker_url, task_cls=OnceTask, set_as_current=False)
    app.conf.update(once_beat_redis_url=system.store_url, task_default_queue=system.queue)

    def mail(user: str) -> None:
        """No worker runs it."""

    mail = app.task(mail, name="mail", shared=False)
    window = Window("report", datetime(2026, 11, 21, 8, tzinfo=timezone.utc), None)

    async def main() -> None:
        users = ["ann", "bob"] * 50
        results = await asyncio.gather(*(mail.apply_once_async((user,), key=user, window=window) for user in users))
        assert len([result for result in results if result is not None]) >= 2, "until one is confirmed, each publishes"
        assert mail.apply_once(("ann",), key="ann", window=window) is None
        with pytest.raises(SettingError, match="give window= or every="):
            await mail.apply_once_async((7,), key=7)
        assert (await mail.apply_once_async((7,), key=7, every="366d", task_id="mine")).id == "mine"

    run(main())
    assert len({json.loads(message)["headers"]["id"] for message in system.queued()}) == 3


# ------------------------------------------------------------------------------------------------- how a body may end


def test_failures_and_exits(redis_url: str, raw: redis.Redis, run: Run) -> None:
    """What the body raises is the caller's; the window has failed. An exit is no end."""

    @once("fails", **YEARLY, url=redis_url)
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    @once("exits", **YEARLY, url=redis_url, lease=0.5)
    async def exits() -> None:
        raise SystemExit

    with pytest.raises(ZeroDivisionError):
        run(fails())
    with pytest.raises(SystemExit):
        run(exits())
    assert ends(raw)["fails"] == "failed"
    wait_until(lambda: "exits" not in ends(raw), "its lease has run out", 60)


def test_a_coroutine_that_is_closed(redis_url: str, raw: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    """As where somebody stops its loop. It may not wait for anything: its lease runs out, and that is said."""
    caplog.set_level(logging.INFO, LOGGER)
    entered = []

    async def body() -> None:
        async with once("body", **YEARLY, url=redis_url, lease=0.5):
            entered.append(True)
            await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    task = loop.create_task(body())
    while not entered:
        loop.run_until_complete(asyncio.sleep(0.01))
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is, by this test
    loop.close()
    task.get_coro().close()  # type: ignore[union-attr]
    assert actions(caplog) == ["window_left"]
    wait_until(lambda: "body" not in ends(raw), "its lease has run out", 60)


def test_blocks_that_are_left_in_another_task(redis_url: str, raw: redis.Redis, run: Run) -> None:
    """As a web framework does with a dependency that yields: each ends where it is left, and none ends early."""
    shared = once("web", **YEARLY, url=redis_url)

    @asynccontextmanager
    async def dependency() -> AsyncIterator[Window | None]:
        async with shared as window:
            yield window

    async def in_a_task(call: Awaitable[Any]) -> Any:
        async def awaits() -> Any:
            return await call

        return await asyncio.create_task(awaits())

    async def main() -> None:
        first, second = dependency(), dependency()
        window = await in_a_task(first.__aenter__())
        assert window is not None
        assert await in_a_task(second.__aenter__()) is None
        await in_a_task(second.__aexit__(None, None, None))
        assert window.held
        await in_a_task(first.__aexit__(None, None, None))
        assert ends(raw) == {"web": "done"}

    run(main())
    assert not shared._inside


def test_a_machine_without_threads(redis_url: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has none left when a body ends: that is recorded all the same, and no lease is renewed for ever."""
    start = threading.Thread.start

    def none_left(thread: threading.Thread) -> None:
        if thread.name == "once-awaited":
            raise RuntimeError("can't start new thread")
        start(thread)

    async def main() -> None:
        async with once("late", **YEARLY, url=redis_url):
            await until(lambda: not threads(), "those of its begin end")
            monkeypatch.setattr(threading.Thread, "start", none_left)
        async with once("none", **YEARLY, url=redis_url) as window:
            assert window is not None

    asyncio.run(main())
    assert ends(raw) == {"late": "done", "none": "done"}
