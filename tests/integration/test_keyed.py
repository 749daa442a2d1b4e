"""``once()`` and ``apply_once``: each window of a key to one caller, in real processes on a real server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import Celery
from celery.schedules import crontab
from processes import wait_until
from servers import free_port
from system import System

from celery_once_beat import OnceTask, Window, once
from celery_once_beat.errors import SettingError, StoreUnavailableError, UncertainWriteError
from celery_once_beat.features.keyed import task as keyed
from celery_once_beat.features.keyed.store import Elsewhen, begin_now, claim_key, confirm_key
from celery_once_beat.features.keyed.task import _app_at, _window_at
from celery_once_beat.settings import Settings
from celery_once_beat.store import Begun, Busy, Claimed, Closed, Ending, Store, Unchanged, store_of
from celery_once_beat.windows import KeyedWindow
from celery_once_beat.worker.leases import leases_of

UTC = timezone.utc
YEARLY = {"every": timedelta(days=366)}  # one window for as long as a test takes


# ---------------------------------------------------------------------------------------------------- in one process


def test_one_caller_gets_the_window(redis_url: str, raw: redis.Redis) -> None:
    """The first runs, the others get None, also after it has ended; the keys expire, none before its window."""
    began = datetime.now(UTC)
    with once("report", **YEARLY, url=redis_url) as window:
        assert isinstance(window, Window)
        assert window.start <= began < window.end
        assert window.held
        assert abs(window.fence / 1000 - began.timestamp()) < 60
        with once("report", **YEARLY, url=redis_url) as other:
            assert other is None
        with once("another", **YEARLY, url=redis_url) as another:
            assert another is not None
    with once("report", **YEARLY, url=redis_url) as again:
        assert again is None
    (key,) = raw.keys("once:*run:report:*")
    assert key.startswith("once:key:{")
    assert raw.get(key).startswith("done:done:")
    assert raw.ttl(key) >= (window.end - datetime.now(UTC)).total_seconds()
    fences = raw.keys("once:key:*:entry:*")
    assert all(raw.hkeys(name) == ["fence", "attempts"] and raw.ttl(name) > 0 for name in fences)
    assert sorted(raw.keys("once:*")) == sorted([*raw.keys("once:key:*run:*"), *fences]), "nothing else"


def test_as_a_decorator(redis_url: str) -> None:
    """The function runs once a window and returns None else; it keeps its name."""
    calls = []

    @once("job", **YEARLY, url=redis_url)
    def job(number: int) -> int:
        """What it does."""
        calls.append(number)
        return number * 2

    assert [job(1), job(2)] == [2, None]
    assert calls == [1]
    assert (job.__name__, job.__doc__) == ("job", "What it does.")


class Job:
    def __call__(self) -> Iterator[None]:
        yield


async def rows() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "name"),
    [(partial(partial(Job())), "Job"), (Job().__call__, r"Job\.__call__"), (rows, "rows")],
    ids=["object", "method", "async generator"],
)
def test_what_runs_after_its_call_is_refused(function: Callable[..., Any], name: str, redis_url: str) -> None:
    """A generator would be done before it has begun; within one, a with block does it."""
    with pytest.raises(SettingError, match=rf"found \S*{name}, whose body runs after its call, expected a plain f"):
        once("later", **YEARLY, url=redis_url)(function)


async def coroutine() -> None:
    pytest.fail("it ran")


@pytest.mark.parametrize("made", [Job(), coroutine], ids=["generator", "coroutine"])
def test_what_only_its_result_shows_to_run_later_has_failed(made: Callable[[], Any], redis_url, raw) -> None:
    """A wrapper that returns a coroutine or a generator: it is closed, and the window isn't done."""
    later = once("later", **YEARLY, url=redis_url)(lambda *_: made())
    with pytest.raises(SettingError, match=r"found .*<lambda>, whose body runs after its call"):
        later()
    assert {raw.get(key).split(":")[1] for key in raw.keys("once:key:*run:*")} == {"failed"}


def in_another_context(call: Callable[[], Any]) -> Any:
    """What ``call`` returns, run in a thread and a context of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, call).result()


def test_a_block_that_is_left_in_another_context(redis_url: str, raw: redis.Redis) -> None:
    """As a web framework does with a dependency that yields: each ends where it is left, and no lease outlives it."""
    store = store_of(_app_at(redis_url))
    shared = once("web", **YEARLY, url=redis_url)

    def dependency() -> Iterator[Window | None]:
        with shared as window:
            yield window

    first, second = dependency(), dependency()
    window = in_another_context(lambda: next(first))
    assert window is not None
    assert in_another_context(lambda: next(second)) is None
    assert in_another_context(lambda: next(second, "left")) == "left"
    assert window.held, "the other was left"
    (run,) = raw.keys("once:key:*run:*")
    assert raw.get(run).startswith("run:")
    assert in_another_context(lambda: next(first, "left")) == "left"
    assert raw.get(run).startswith("done:")
    assert not leases_of.of(store)._held

    raw.delete(run)
    dropped = [dependency()]
    assert in_another_context(lambda: next(dropped[0])) is not None
    dropped.clear()  # by the garbage collector: as where a process ends within the block
    assert not leases_of.of(store)._held
    assert raw.get(run).startswith("run:"), "its lease runs out"
    assert not shared._inside
    with pytest.raises(RuntimeError, match="is left, but wasn't entered"):
        shared.__exit__(None, None, None)


def test_a_failure_is_an_end(redis_url: str, raw: redis.Redis) -> None:
    """What the body raises is the caller's; the window has failed, and runs again only where that is asked for."""
    with pytest.raises(ZeroDivisionError), once("fails", **YEARLY, url=redis_url):
        _ = 1 / 0
    with once("fails", **YEARLY, url=redis_url) as window:
        assert window is None
    (key,) = raw.keys("once:*run:fails:*")
    assert raw.get(key).startswith("done:failed:")

    turn = once("again", **YEARLY, url=redis_url, retry_failed_after=600.0)
    with pytest.raises(ZeroDivisionError), turn as first:
        _ = 1 / 0
    with turn as window:
        assert window is None, "not before its time"
    (key,) = raw.keys("once:*run:again:*")
    assert 590 < raw.ttl(key) <= 600
    raw.delete(key)  # its time has come
    with turn as second:
        assert (second.start, first.attempt, second.attempt) == (first.start, 1, 2)
        assert second.fence >= first.fence
    with turn as window:
        assert window is None, "it is done"


def test_a_stale_end_isnt_recorded(redis_url: str, raw: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    """Who was out of contact and comes back after another began ends nothing, and is told so in the log."""
    turn = once("stale", **YEARLY, url=redis_url)
    with turn as window:
        (key,) = raw.keys("once:*run:stale:*")
        raw.set(key, "run:1:elsewhere:9", px=60_000)
    assert window is not None
    assert raw.get(key) == "run:1:elsewhere:9"
    assert [record.action for record in caplog.records if hasattr(record, "action")] == ["window_stale"]


def test_the_servers_clock_says_which_window(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose clock is hours ahead runs the present window, not one of the future."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(hours=5)

    monkeypatch.setattr("celery_once_beat.features.keyed.task.datetime", Ahead)
    before = datetime.now(UTC)
    with once("clock", every="1h", url=redis_url) as window:
        assert window.start <= datetime.now(UTC)
        assert window.end > before


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"every": "soon"}, "every: found 'soon', expected a timedelta, seconds, a schedule like crontab"),
        ({"every": float("nan")}, "every: found nan, expected a timedelta, seconds"),
        ({"every": "1h", "tz": "Europe/Nowhere"}, "tz: found 'Europe/Nowhere', expected the name of a time zone like"),
        ({"every": "1h", "lease": 0.1}, "lease: found 0.1, expected a number of seconds, at least 0.5"),
        ({"every": "1h", "retry_failed_after": "1h"}, "retry_failed_after: found '1h', expected a number of seconds"),
        ({"every": "1h", "url": None}, "give app= or url=, one of the two"),
        ({"every": "1h", "app": Celery("both", set_as_current=False)}, "give app= or url=, one of the two"),
    ],
)
def test_what_cant_be_is_said_at_once(given: dict[str, Any], text: str) -> None:
    """At import, not when it runs at night; no server is asked."""
    with pytest.raises(SettingError, match=rf"^once\('job'\).*{re.escape(text)}"):
        once("job", **{"url": "redis://127.0.0.1:1/0", **given})


@pytest.mark.parametrize(
    "key",
    [
        "", "a\n", None, True, 1.5, {1}, [1], object(), (), ("a", None), (("a",),), "x" * 2000, ("x" * 600,) * 2,
        (10**5000,),
    ],
)  # fmt: skip
def test_a_wrong_key(key: Any) -> None:
    """What has no text, or another one in another process, is refused by once() and by apply_once alike."""
    task = _app_at("redis://127.0.0.1:1/0").task(wait_until, name="tests.keyed", base=OnceTask, shared=False)
    window = Window("report", datetime(2026, 11, 21, 8, tzinfo=UTC), None)
    for call in (
        lambda: once(key, every="1h", url="redis://127.0.0.1:1/0"),
        lambda: task.apply_once(key=key, window=window),
        lambda: asyncio.run(task.apply_once_async(key=key, every="1h")),
    ):
        with pytest.raises(
            SettingError, match=r"^key: found .*, expected a text of 1 to 1024 bytes, an int, a UUID, or a t"
        ):
            call()


@pytest.mark.parametrize(
    ("every", "tz", "start"),
    [
        ("1d", "Europe/Berlin", datetime(2026, 7, 1, 22, tzinfo=UTC)),
        (timedelta(days=1), None, datetime(2026, 7, 2, tzinfo=UTC)),
        ("15 min", None, datetime(2026, 7, 2, 12, 30, tzinfo=UTC)),
        (0.5, None, datetime(2026, 7, 2, 12, 34, 56, tzinfo=UTC)),
        (86400, "Europe/Berlin", datetime(2026, 7, 1, 22, tzinfo=UTC)),
        (crontab(hour=9, minute=30), "America/New_York", datetime(2026, 7, 1, 13, 30, tzinfo=UTC)),
        (crontab(hour=2, minute=0, day_of_month=1, month_of_year=3), None, datetime(2026, 3, 1, 2, tzinfo=UTC)),
    ],
)
def test_which_window_it_is(every: Any, tz: str | None, start: datetime) -> None:
    """Every way to say when, in the zone that it names."""
    before = dict(getattr(every, "__dict__", {}))
    turn = once("job", every=every, tz=tz, url="redis://127.0.0.1:1/0")
    window = _window_at(turn._schedule, "job", datetime(2026, 7, 2, 12, 34, 56, tzinfo=UTC))
    assert window is not None
    assert window.start == start
    assert getattr(every, "__dict__", {}) == before, "a schedule object may stand in a beat schedule too"


def test_keys_are_told_from_each_other(redis_url: str) -> None:
    """A text, a number, a UUID and a tuple of these each name windows of their own; a number is its text."""

    class Kind(str, Enum):
        MAIL = "mail"

    user = UUID(int=7)
    keys = ["mail", 7, user, ("mail", 7), ("mail", "7,8"), ("mail", "7", "8"), ("mail:7",), "mail:7", (user, -1)]
    for key in [*keys, *keys, Kind.MAIL, "7", str(user), ("mail", "7")]:
        with once(key, **YEARLY, url=redis_url) as window:
            assert (window is None) == (key not in keys), key
        keys = [other for other in keys if other is not key]


def test_children_are_told_from_each_other() -> None:
    """A window is entry and start: each entry's task sends its own, also where a name is long or odd."""
    task = _app_at("redis://127.0.0.1:1/0").task(wait_until, name="tests.child", base=OnceTask, shared=False)
    start = datetime(2026, 11, 21, 8, tzinfo=UTC)
    parents = [
        Window(entry, start, None) for entry in ("news", "bills", "bills:ann", "x" * 5000, "x" * 5001, task.name)
    ]
    names = {keyed.Child(task, user, parent, None, None)._name for parent in parents for user in ("ann", "bob")}
    assert len(names) == 2 * len(parents)
    assert max(map(len, names)) < 100


def test_exit_stacks_that_are_left_in_another_context(redis_url: str, raw: redis.Redis) -> None:
    """None ends a lease early: of several of one object it lasts until the last of them is left."""
    shared = once("stack", **YEARLY, url=redis_url)
    first, second = ExitStack(), ExitStack()
    window = in_another_context(lambda: first.enter_context(shared))
    assert in_another_context(lambda: second.enter_context(shared)) is None
    in_another_context(first.close)
    assert window.held
    in_another_context(second.close)
    assert [raw.get(run).split(":")[0] for run in raw.keys("once:key:*run:*")] == ["done"]
    raw.delete(*raw.keys("once:key:*run:*"))
    outer = ExitStack()
    assert outer.enter_context(shared) is not None
    with ExitStack() as inner:
        assert in_another_context(lambda: inner.enter_context(shared)) is None
        outer.close()  # in the context in which it was entered
        assert [raw.get(run).split(":")[0] for run in raw.keys("once:key:*run:*")] == ["done"]


def test_an_exit_is_no_end(redis_url: str, raw: redis.Redis) -> None:
    """It records nothing: the lease runs out, and the next caller begins."""
    turn = once("exits", **YEARLY, url=redis_url, lease=0.5)
    with pytest.raises(SystemExit), turn:
        raise SystemExit
    wait_until(lambda: not raw.keys("once:*run:exits:*"), "its lease has run out", 60)
    with turn as window:
        assert window.attempt == 2


def test_what_no_replica_has_begun_is_given_back(redis_url, raw, monkeypatch) -> None:
    """It isn't run on, nor without Redis at all; the next caller isn't told that another has it."""
    monkeypatch.setattr("celery_once_beat.store.roundtrip._WAIT_MS", 20)
    app = Celery("lonely", broker=redis_url, set_as_current=False)
    app.conf.once_beat_wait_replicas = 1
    with pytest.raises(UncertainWriteError), once("lonely", **YEARLY, app=app, lease=0.5):
        pytest.fail("it ran")
    wait_until(lambda: not raw.keys("once:*run:lonely:*"), "it is given back", 60)
    with pytest.raises(StoreUnavailableError), once("away", **YEARLY, url=f"redis://127.0.0.1:{free_port()}/0"):
        pytest.fail("it ran")


# -------------------------------------------------------------------------------------------------------- the verbs


def test_begin_and_claim_of_a_key(redis_url: str, raw: redis.Redis) -> None:
    """Each verb answers its owner as the first time, and others that it is taken."""
    store = Store(Settings(redis_url=redis_url))
    now = datetime.now(UTC)
    window = KeyedWindow("key", now - timedelta(minutes=1), now + timedelta(minutes=1))
    past = KeyedWindow("key", now - timedelta(minutes=3), now - timedelta(minutes=2))
    future = KeyedWindow("key", now + timedelta(minutes=3), None)
    begin = lambda window, owner: store.trip.one(begin_now(store, window, owner, 30.0))  # noqa: E731
    for other in (past, future):
        reply = begin(other, "A")
        assert isinstance(reply, Elsewhen)
        assert abs((reply.now - now).total_seconds()) < 30
        assert isinstance(claim_key(store, other, now=True), Elsewhen)
    assert claim_key(store, window) == claim_key(store, window, now=True) == Claimed(0, None), "the first may have died"
    assert not raw.keys("once:key:*claim:*")
    for _ in ("it is out", "its reply was lost"):
        confirm_key(store, window)
    (claim,) = raw.keys("once:key:*claim:*")
    assert raw.ttl(claim) > 20, "remembered for the retention"
    assert claim_key(store, window) == Unchanged("taken")

    begun = begin(window, "A")
    assert isinstance(begun, Begun)
    assert begin(window, "A") == begun
    assert begin(window, "B") == Busy("runs alone")
    store.finish(Ending(window, "A", begun.fence, "failed", 60.0, tracked=False))
    assert store.finish(Ending(window, "A", begun.fence, "failed", 60.0, tracked=False)).after > 50
    assert begin(window, "B") == Busy("waiting to run again")
    assert store.begin(window, "B", 30.0, retry=3, tracked=False) == Busy("waiting to run again")
    raw.delete(*raw.keys("once:key:*run:*"))
    begun = begin(window, "B")
    store.finish(Ending(window, "B", begun.fence, "done", tracked=False))
    assert begin(window, "C") == Closed()
    raw.delete(*raw.keys("once:key:*claim:*"))
    assert claim_key(store, window) == Unchanged("taken"), "it ran: who published it died before the confirm"
    store.close()


# ------------------------------------------------------------------------------------------------ many processes


def test_a_publisher_that_dies_leaves_it_to_the_next(system: System) -> None:
    """Killed between claim and publish: the next who asks publishes, at once; where the publish failed, too."""
    system.check_law = False
    app = Celery("sender", broker=system.broker_url, task_cls=OnceTask, set_as_current=False)
    app.conf.update(once_beat_redis_url=system.store_url, task_default_queue=system.queue, once_beat_publish_timeout=5)

    @app.task(name="mail", shared=False)
    def mail(user: str) -> None: ...

    window = Window("report", datetime(2026, 11, 21, 8, tzinfo=UTC), None)
    assert claim_key(store_of(app), KeyedWindow("mail@report:ann", window.start, None)) == Claimed(0, None), "and dies"
    assert mail.apply_once(("ann",), key="ann", window=window) is not None
    assert mail.apply_once(("ann",), key="ann", window=window) is None
    assert system.waiting() == 1

    broken = app.connection_for_write(f"redis://127.0.0.1:{free_port()}/0", connect_timeout=0.2)
    with pytest.raises(Exception, match=r"Connection|refused"):
        mail.apply_once(("bob",), key="bob", window=window, connection=broken, retry=False)
    assert mail.apply_once(("bob",), key="bob", window=window) is not None, "at once"
    with pytest.raises(SettingError, match="give window= or every="):
        mail.apply_once(("bob",), key="bob")
    with pytest.raises(SettingError, match=r"apply_once, window: found 'report', expected a Window, as self\.window"):
        mail.apply_once(("bob",), key="bob", window=window.entry)  # type: ignore[arg-type]  # the mistake
    result = mail.apply_once((7,), key=7, every="366d")
    assert result is not None
    assert mail.apply_once((7,), key=7, every="366d") is None
    assert asyncio.run(mail.apply_once_async((7,), key=7, every="366d")) is None
    assert asyncio.run(mail.apply_once_async((8,), key=8, every="366d", task_id="mine")).id == "mine"
    assert system.waiting() == 4
