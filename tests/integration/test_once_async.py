"""``once()`` in asyncio and uvloop: the rules of ``test_keyed``, and what only coroutines can do."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
import redis
import trio
import uvloop
from celery import Celery
from processes import Proc, wait_until
from servers import RedisServer, free_port
from system import System

from celery_once_beat import OnceTask, Window, background, current_window, once, signals
from celery_once_beat.errors import OnceError, SettingError, StoreUnavailableError
from celery_once_beat.store.verbs import store_of
from celery_once_beat.worker.keyed import _app_at
from celery_once_beat.worker.leases import leases_of

YEARLY = {"every": timedelta(days=366)}  # one window for as long as a test takes
LOGGER = "celery_once_beat.worker.keyed"

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine by either kind of loop."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


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


@pytest.mark.long
def test_many_at_once(redis_url: str, raw: redis.Redis, run: Run) -> None:
    """A thousand windows and a thousand callers of one, in one loop: each window runs once, by a few threads."""
    ran: list[str] = []
    most = 0

    async def call(key: str) -> None:
        nonlocal most
        async with once(key, **YEARLY, url=redis_url) as window:
            most = max(most, len(threads()))
            if window is not None:
                ran.append(key)
                await asyncio.sleep(0)

    async def main() -> None:
        keys = [f"key-{number}" for number in range(1000)]
        await asyncio.gather(*map(call, keys), *map(call, ["one"] * 1000))

    run(main())
    assert len(ran) == len(set(ran)) == 1001
    assert set(ends(raw).values()) == {"done"}
    assert most <= background._MOST


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


def test_loops_in_several_threads(redis_url: str, raw: redis.Redis, run: Run) -> None:
    """They share the object, and one of them gets each window."""
    shared = [once(f"key-{number}", **YEARLY, url=redis_url) for number in range(20)]

    async def call(each: once) -> bool:
        async with each as window:
            await asyncio.sleep(0.001)
            return window is not None

    async def main() -> int:
        return sum(await asyncio.gather(*map(call, shared)))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda _: run(main()), range(4))) == 20
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


@pytest.mark.long
def test_a_loop_that_is_blocked_keeps_its_window(redis_url: str) -> None:
    """A body that blocks its loop for longer than its lease is renewed all the same."""

    async def main() -> None:
        async with once("blocks", **YEARLY, url=redis_url, lease=4.0) as window:
            over = time.monotonic() + 5.0
            while time.monotonic() < over:
                time.sleep(0.1)  # noqa: ASYNC251  # that is what it is about
            assert window.held

    asyncio.run(main())


def test_redis_away(redis_url: str, run: Run) -> None:
    """Nothing runs, and it is said."""
    away = f"redis://127.0.0.1:{free_port()}/0"

    async def main() -> None:
        with pytest.raises(StoreUnavailableError):
            async with once("away", **YEARLY, url=away):
                pytest.fail("it ran")

    run(main())


def test_ends_that_wait_for_a_thread_arent_told_for_longer(
    start_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis goes away within many bodies: an end is told for a lease from then on, not from its turn on."""
    monkeypatch.setattr(background, "_MOST", 1)
    server = start_redis()
    tries = []
    store = store_of(_app_at(server.url()))
    finish = store.finish
    monkeypatch.setattr(store, "finish", lambda ending: (tries.append(ending.window.entry), finish(ending))[1])

    async def main() -> None:
        async with AsyncExitStack() as stack:
            for number in range(5):
                await stack.enter_async_context(once(f"key-{number}", **YEARLY, url=server.url(), lease=0.5))
            server.kill()

            async def leave(each: AsyncExitStack) -> None:
                await each.aclose()

            stacks = [AsyncExitStack() for _ in range(5)]
            for each in stacks:
                each._exit_callbacks.append(stack._exit_callbacks.pop())
            await asyncio.gather(*map(leave, stacks))

    asyncio.run(main())
    assert actions(caplog).count("window_unrecorded") == 5
    assert sorted(tries.count(key) for key in set(tries))[:4] == [1, 1, 1, 1]


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


# ---------------------------------------------------------------------------------------------------- cancellation


def given_back(url: str, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The next caller begins, and not after a lease of 30 s."""

    def begins() -> bool:
        with once(key, **YEARLY, url=url) as window:
            return window is not None

    wait_until(begins, "the next caller begins", 20)
    assert actions(caplog) == ["window_given_back"]
    caplog.clear()


def test_a_cancelled_body_gives_its_window_back(
    redis_url: str, run: Run, caplog: pytest.LogCaptureFixture, raw: redis.Redis
) -> None:
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


def test_who_was_cancelled_may_begin_again_at_once(redis_url: str, run: Run) -> None:
    """A loop that tries again after a timeout gets the window, and doesn't wait for the next one."""

    async def main() -> None:
        for number in range(20):
            block = once(f"again {number}", **YEARLY, url=redis_url)

            async def body(block: once = block) -> None:
                async with block:
                    await asyncio.sleep(3600)

            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(body(), 0.05)
            async with block as window:
                assert window is not None

    run(main())


def test_a_timeout_within_the_block_is_a_failure(redis_url: str, run: Run, raw: redis.Redis) -> None:
    """It is an exception like any other."""

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            async with once("within", **YEARLY, url=redis_url):
                await asyncio.wait_for(asyncio.sleep(3600), 0.01)

    run(main())
    assert ends(raw) == {"within": "failed"}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no asyncio.timeout")
def test_an_asyncio_timeout_while_redis_stands_still(
    start_redis: Callable[..., RedisServer], run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a TimeoutError to its block, once Redis has answered; the window is the next caller's."""
    caplog.set_level(logging.INFO, LOGGER)
    server = start_redis()
    with once("warm", **YEARLY, url=server.url()):
        pass

    async def main() -> None:
        server.pause()
        asyncio.get_running_loop().call_later(0.5, server.resume)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), once("timeout", **YEARLY, url=server.url()):
                pytest.fail("it ran")

    run(main())
    given_back(server.url(), "timeout", caplog)


def test_cancelled_while_it_begins(
    start_redis: Callable[..., RedisServer], run: Run, caplog: pytest.LogCaptureFixture
) -> None:
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
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.05)
        assert task.done() == (times == 2)
        server.resume()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: actions(caplog) == ["window_given_back"], "it is given back")

    for key, times in (("first", 1), ("second", 2)):
        with once(key + "-warm", **YEARLY, url=server.url()):
            pass
        run(main(key, times))
        given_back(server.url(), key, caplog)


def test_cancelled_while_its_end_is_recorded(
    start_redis: Callable[..., RedisServer], run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The body has returned: its end is recorded, whatever becomes of the task."""
    caplog.set_level(logging.INFO, LOGGER)
    server = start_redis()

    async def body(key: str) -> None:
        async with once(key, **YEARLY, url=server.url()):
            server.pause()

    async def main(key: str, times: int) -> None:
        task = asyncio.create_task(body(key))
        await until(lambda: server.paused and calling(), "its end is told")
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.05)
        assert task.done() == (times == 2)
        server.resume()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not calling(), "its end is recorded")

    with redis.Redis.from_url(server.url(), decode_responses=True) as raw:
        for key, times in (("first", 1), ("second", 2)):
            run(main(key, times))
            assert ends(raw)[key] == "done"
    assert not actions(caplog)


def test_a_coroutine_that_is_closed(
    redis_url: str, raw: redis.Redis, caplog: pytest.LogCaptureFixture, start_redis: Callable[..., RedisServer]
) -> None:
    """It may not wait for anything: in its body its lease runs out, and that is said; before it, it is given back."""
    caplog.set_level(logging.INFO, LOGGER)

    entered = []

    async def body(url: str, key: str) -> None:
        async with once(key, **YEARLY, url=url, lease=0.5):
            entered.append(key)
            await asyncio.Event().wait()

    def closed(url: str, key: str, reached: Callable[[], object]) -> None:
        """Close its loop, as who stops a loop without asyncio.run does, and throw it away."""
        loop = asyncio.new_event_loop()
        task = loop.create_task(body(url, key))
        loop.run_until_complete(asyncio.sleep(0))
        while not reached():
            loop.run_until_complete(asyncio.sleep(0.01))
        coroutine = task.get_coro()
        task._log_destroy_pending = False  # it is, by this test
        loop.close()
        coroutine.close()

    closed(redis_url, "body", lambda: entered)
    assert actions(caplog) == ["window_left"]
    wait_until(lambda: "body" not in ends(raw), "its lease has run out", 60)
    caplog.clear()

    server = start_redis()
    with once("warm", **YEARLY, url=server.url()):
        pass
    server.pause()
    closed(server.url(), "begin", calling)
    server.resume()
    wait_until(lambda: actions(caplog) == ["window_given_back"], "it is given back", 60)


def test_a_block_that_is_left_in_another_task(redis_url: str, raw: redis.Redis, run: Run) -> None:
    """As a web framework does with a dependency that yields, and as an exit stack may be."""
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

        stack = AsyncExitStack()
        assert await in_a_task(stack.enter_async_context(once("stack", **YEARLY, url=redis_url))) is not None
        await in_a_task(stack.aclose())
        assert ends(raw) == {"web": "done", "stack": "done"}

    run(main())
    assert not shared._inside


def test_an_async_generator_that_isnt_read_to_its_end(redis_url: str, raw: redis.Redis, run: Run) -> None:
    """Read to its end it is done; else it is closed, and its lease runs out, as a generator's does."""

    async def rows(key: str) -> AsyncIterator[int]:
        async with once(key, **YEARLY, url=redis_url, lease=0.5):
            for number in range(3):
                yield number

    async def main() -> None:
        assert [number async for number in rows("read")] == [0, 1, 2]
        async for _ in rows("left"):
            break

    run(main())
    assert ends(raw)["read"] == "done"
    wait_until(lambda: "left" not in ends(raw), "its lease has run out", 60)


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


# ------------------------------------------------------------------------------------------------ many processes


@pytest.fixture
def node(system: System) -> Callable[..., Proc]:
    """Start one more machine's process, which asks for the window until it has run or is refused."""
    numbers = iter(range(1000))
    system.check_law = False

    def start(*arguments: str) -> Proc:
        command = [sys.executable, "-m", "apps.async_app", *arguments]
        return system.procs.start(command, name=f"node{next(numbers)}", env=system.env())

    return start


@pytest.mark.long
def test_a_process_that_dies_leaves_the_window_to_the_next(system: System, node: Callable[..., Proc]) -> None:
    """Four start: one runs. It is killed: the next that asks after its lease runs the window."""
    first = [node("nightly", "60") for _ in range(4)]
    wait_until(lambda: sum(not proc.alive for proc in first) == 3, "three are refused", 60)
    (runner,) = [proc for proc in first if proc.alive]
    runner.kill()
    wait_until(lambda: (node("nightly", "0").wait(60), system.ledger.read("finish"))[1], "another ran", 60)
    started = system.ledger.read("start")
    assert len(started) == 2
    assert len({event["start"] for event in started}) == 1, "the same window"
    assert started[0]["fence"] < started[1]["fence"]


@pytest.mark.long
def test_a_process_that_is_frozen_comes_back_stale(system: System, node: Callable[..., Proc]) -> None:
    """It sleeps past its lease, another runs the window: its end is not recorded, and it says so."""
    slow = node("frozen", "5")
    wait_until(lambda: system.ledger.read("start"), "it runs", 60)
    slow.pause()
    wait_until(lambda: (node("frozen", "0").wait(60), system.ledger.read("finish"))[1], "another ran", 60)
    slow.resume()
    assert slow.wait(60) == 0
    slow.wait_log("came back after its lease; its end isn't recorded", 60)
    assert [event["held"] for event in system.ledger.read("finish")] == [True, False]


@pytest.mark.long
def test_ctrl_c_gives_the_window_back(system: System, node: Callable[..., Proc]) -> None:
    """asyncio.run cancels its tasks: the next caller doesn't wait for a lease."""
    runner = node("interrupted", "60")
    wait_until(lambda: system.ledger.read("start"), "it runs", 60)
    runner.signal(signal.SIGINT)
    assert runner.wait(60) != 0
    runner.wait_log("cancelled and given back", 60)
    for noise in ("Task was destroyed", "never retrieved"):
        assert noise not in runner.log
    node("interrupted", "0").wait(60)
    assert len(system.ledger.read("finish")) == 1
