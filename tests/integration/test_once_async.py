"""``once()`` in asyncio and uvloop: the rules of ``test_keyed``, and what only coroutines can do."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import redis
import trio
import uvloop
from deliveries import heard
from processes import wait_until

from celery_once_beat import Window, background, current_window, once
from celery_once_beat.errors import OnceError
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
    """The first runs, the others get None, plain code too, also after it has ended. What raises has failed."""

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
            assert await asyncio.to_thread(current_window) is window
        assert current_window() is None
        async with once("report", **YEARLY, url=redis_url) as again:
            assert again is None
        with pytest.raises(ZeroDivisionError):
            async with once("fails", **YEARLY, url=redis_url):
                raise ZeroDivisionError
        with pytest.raises(KeyboardInterrupt):
            async with once("exits", **YEARLY, url=redis_url, lease=0.5):
                raise KeyboardInterrupt

    run(main())
    assert ends(raw).items() >= {"report": "done", "inner": "done", "fails": "failed"}.items()
    wait_until(lambda: "exits" not in ends(raw), "an exit is no end: its lease has run out", 60)


def test_as_a_decorator(redis_url: str, run: Run) -> None:
    """Of functions, methods, partials and callable objects; it stays an ``async def`` to whoever asks."""

    class Job:
        @once("method", **YEARLY, url=redis_url)
        async def method(self, number: int) -> tuple[int, Window | None]:
            """What it does."""
            return await asyncio.sleep(0, (number, current_window()))

        async def __call__(self, number: int) -> tuple[int, Window | None]:
            return await asyncio.sleep(0, (number, current_window()))

    jobs = {
        "method": Job().method,
        "object": once("object", **YEARLY, url=redis_url)(Job()),
        "partial": once("partial", **YEARLY, url=redis_url)(partial(partial(Job()), number=7)),
    }
    assert (Job.method.__name__, Job.method.__doc__) == ("method", "What it does.")
    for key, job in jobs.items():
        assert inspect.iscoroutinefunction(job)
        arguments = () if key == "partial" else (7,)
        number, window = run(job(*arguments))
        assert (number, window.entry) == (7, key)
        assert run(job(*arguments)) is None


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


def given_back(url: str, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The next caller begins, and not after a lease of 30 s."""

    def begins() -> bool:
        with once(key, **YEARLY, url=url) as window:
            return window is not None

    wait_until(begins, "the next caller begins", 20)
    assert actions(caplog) == ["window_given_back"]
    caplog.clear()


@pytest.mark.parametrize("how", ["cancelled", "timed out", "at the loop's end"])
def test_a_cancelled_body_gives_its_window_back(redis_url, run, caplog, raw, how: str) -> None:
    """However it is cancelled; nothing has failed, and who still works for it sees that it isn't held any more."""
    caplog.set_level(logging.INFO, LOGGER)
    seen: list[Window] = []

    async def body() -> None:
        async with once("key", **YEARLY, url=redis_url) as window:
            seen.append(window)
            await asyncio.sleep(3600)

    async def main() -> None:
        if how == "timed out":
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(body(), 0.5)
            return
        task = asyncio.create_task(body())
        await until(lambda: seen, "it runs")
        if how == "cancelled":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with heard() as sent:
        run(main())
        given_back(redis_url, "key", caplog)
    assert not seen[0].held
    assert "window_failed" not in [name for name, _ in sent]
    assert ends(raw) == {"key": "done"}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("at", ["begin", "end"])
def test_cancelled_while_redis_is_asked(start_redis, run, caplog, at: str, times: int) -> None:
    """The loop goes on meanwhile. Once: when Redis has answered; twice: at once.

    What began is given back; what has returned is recorded.
    """
    caplog.set_level(logging.INFO, LOGGER)
    server = start_redis()
    entered = []

    async def body() -> None:
        async with once("key", **YEARLY, url=server.url()):
            entered.append(True)
            server.pause()

    async def main() -> None:
        if at == "begin":
            server.pause()
        task = asyncio.create_task(body())
        await until(lambda: server.paused and calling(), "it is asked")
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.05)
        assert task.done() == (times == 2)
        server.resume()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: actions(caplog) if at == "begin" else not calling(), "it is told")

    with once("warm", **YEARLY, url=server.url()):
        pass
    run(main())
    assert entered == [True] * (at == "end")
    if at == "begin":
        given_back(server.url(), "key", caplog)
    assert not actions(caplog)
    with redis.Redis.from_url(server.url(), decode_responses=True) as raw:
        assert ends(raw)["key"] == "done"


def test_under_trio_it_says_so(redis_url: str) -> None:
    """One clear line, and nothing is asked."""

    async def main() -> None:
        async with once("trio", **YEARLY, url=redis_url):
            pytest.fail("it ran")

    with pytest.raises(
        OnceError, match=r"^once\('trio'\): found trio, expected asyncio or uvloop; elsewhere use 'with "
    ):
        trio.run(main)


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
