"""How an execution ends whose window is recorded already: as done, with what was recorded, in every way to run it."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from databases import Base, notes
from deliveries import WINDOW, Worker, heard
from processes import wait_until
from sqlalchemy.orm import Session
from system import System

from celery_once_beat import OnceTask, Window, current_window, once
from celery_once_beat.errors import RecordError
from celery_once_beat.testing import executing, window
from celery_once_beat.windows import format_instant, parse_instant, task_id

RESULT = {"invoices": 12}


def record_elsewhere(base: Base, of: Window = WINDOW, **more: Any) -> None:
    """As an execution does that dies behind its commit."""
    other = replace(window(of.entry, of.start), keyed=of.keyed, scheduled=of.scheduled)
    with Session(base.engine) as session, session.begin():
        other.record(session, result=RESULT, **more)


def invoice(base: Base, worker: Worker) -> Callable[[], str]:
    def body() -> str:
        with Session(base.engine) as session, session.begin():
            worker.task.window.record(session)
            session.execute(notes.insert().values(text="invoice"))
        return "written"

    return body


@pytest.fixture
def body(sqlite: Base, worker: Worker) -> Callable[[], str]:
    return invoice(sqlite, worker)


def with_base(worker: Worker, **methods: Any) -> None:
    """Let its task have a base with these."""
    base = type("Base", (OnceTask,), {"abstract": True, **methods})

    def work() -> Any:
        return worker.body()

    worker.task = worker.app.task(work, name="proj.based", base=base, shared=False)


# -- a window of an entry


def test_a_recorded_window_is_done(
    worker: Worker, sqlite: Base, body: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its outcome is done, its result what was recorded; nothing is written, and one line says so.

    One of which nothing is recorded yet writes, and returns its own result; its row says which execution it is.
    """
    caplog.set_level("INFO")
    record_elsewhere(sqlite)
    with heard() as sent:
        assert worker.deliver(body) == RESULT
    assert worker.account.counts == {"done": 1}
    assert not sqlite.written()
    fences: list[int] = []
    assert worker.deliver(lambda: fences.append(worker.task.window.fence) or body(), worker.next_window()) == "written"
    assert [(row.attempt, row.fence) for row in sqlite.rows()[1:]] == [(1, fences[0])]
    assert sqlite.written() == ["invoice"]
    assert [name for name, _ in sent] == ["window_started", "window_succeeded", "window_closed"]
    (line,) = [record for record in caplog.records if record.action == "window_recorded"]
    assert (line.levelname, line.entry, line.start) == ("INFO", "nightly", format_instant(WINDOW.start))


def test_it_goes_on_as_a_success(new_worker: Callable[..., Worker], redis_url: str, sqlite: Base) -> None:
    """Celery stores the recorded result, calls on_success with it, and sends the links with it."""
    worker = new_worker(redis_url, result_backend=redis_url, result_expires=None)
    seen: list[Any] = []
    with_base(
        worker,
        on_success=lambda _, result, *more: seen.append(result),
        on_failure=lambda *_: seen.append("failed"),
        on_retry=lambda *_: seen.append("retried"),
    )
    record_elsewhere(sqlite)
    id_ = uuid.uuid4().hex
    link = worker.app.signature("proj.after", queue="links")
    with worker.app.connection_for_write():
        assert worker.trace(invoice(sqlite, worker), id=id_, callbacks=[link], chain=[dict(link)]) == "SUCCESS"
    result = worker.app.AsyncResult(id_)
    assert (result.state, result.result, seen) == ("SUCCESS", RESULT, [RESULT])
    with redis.Redis.from_url(redis_url) as client:
        sent = [json.loads(message) for message in client.lrange("links", 0, -1)]
        client.delete("links")
    assert len(sent) == 2
    assert all("{'invoices': 12}" in message["headers"]["argsrepr"] for message in sent)
    result.forget()


@pytest.mark.parametrize("how", ["except", "autoretry"])
def test_no_retry_takes_it(worker: Worker, sqlite: Base, body: Callable[[], str], how: str) -> None:
    """It is no Exception: what catches those, as Celery's own retries do, doesn't see it."""
    record_elsewhere(sqlite)

    def retrying() -> Any:
        try:
            return body()
        except Exception as exc:
            raise worker.task.retry(exc=exc, countdown=0) from exc

    if how == "autoretry":
        with_base(worker, autoretry_for=(Exception,), retry_backoff=True)
    assert worker.deliver(body if how == "autoretry" else retrying) == RESULT
    assert worker.account.counts == {"done": 1}
    assert not sqlite.written()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no task groups")
@pytest.mark.parametrize("beside", [None, OSError])
def test_a_task_group_wraps_it(
    worker: Worker, sqlite: Base, body: Callable[[], str], beside: type[Exception] | None
) -> None:
    """It ends as done all the same, unless something else failed in the group."""
    record_elsewhere(sqlite)

    async def record() -> None:
        body()

    async def fail() -> None:
        if beside is not None:
            raise beside("beside it")

    async def groups() -> None:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            outer.create_task(fail())
            inner.create_task(record())
            inner.create_task(record())

    run = lambda: asyncio.run(groups())  # noqa: E731
    if beside is None:
        assert worker.deliver(run) == RESULT
        assert worker.account.counts == {"done": 1}
    else:
        with pytest.raises(BaseException, match="TaskGroup"):
            worker.deliver(run)
        assert worker.account.counts == {}
    assert not sqlite.written()


# -- other ways to run


def test_a_child(worker: Worker, sqlite: Base, body: Callable[[], str]) -> None:
    """One of apply_once has a window of its own key, apart from its parent's."""
    child = Window(f"{worker.task.name}@nightly:42", WINDOW.start, None, tracked=False, keyed=True)
    record_elsewhere(sqlite, WINDOW)
    assert worker.deliver(body, child) == "written"
    record_elsewhere(sqlite, replace(child, entry=f"{worker.task.name}@nightly:43"))
    assert worker.deliver(body, replace(child, entry=f"{worker.task.name}@nightly:43")) == RESULT


def test_a_call_without_a_window(worker: Worker, sqlite: Base, body: Callable[[], str]) -> None:
    """It is known by its task id, whenever it begins: a message that is redelivered writes once."""
    worker.body = body
    record_elsewhere(sqlite, Window("c", WINDOW.start, None, scheduled=False))
    results = [worker.task.apply(task_id=id_).get() for id_ in "abca"]
    assert results == ["written", "written", RESULT, None]  # None was recorded
    assert sqlite.written() == ["invoice"] * 2


def test_each_run_of_a_test_is_an_execution(worker: Worker, sqlite: Base, body: Callable[[], str]) -> None:
    """What the first has recorded refuses the second, by the prefix and in the schema of the task's app."""
    worker.body = body
    with executing(worker.task, window("nightly", WINDOW.start)) as current:
        assert [worker.task(), worker.task(), worker.task.apply().get()] == ["written", None, None]
        assert current.key == task_id("once:", "nightly", WINDOW.start)
    worker.app.conf.update(once_beat_key_prefix="other:", once_beat_effects_schema="jobs")
    with executing(worker.task, window("nightly", WINDOW.start)) as current:
        assert current.key == task_id("other:", "nightly", WINDOW.start)
        with pytest.raises(RecordError, match=r"found no table jobs\.once_effects"):
            worker.task()
    assert sqlite.written() == ["invoice"]


def test_once(redis_url: str, sqlite: Base) -> None:
    """A block ends at ``record`` and is done; a function returns what was recorded, async or not."""
    every = {"every": timedelta(days=366), "url": redis_url}

    def forget() -> None:
        with redis.Redis.from_url(redis_url) as client:
            client.flushall()

    @once("nightly", **every)
    def plain() -> str:
        with sqlite.engine.begin() as connection:
            current_window().record(connection)
        return "not reached"

    @once("nightly", **every)
    async def awaited() -> str:
        with sqlite.engine.begin() as connection:
            current_window().record(connection)
        return await asyncio.sleep(0, "not reached")

    with once("nightly", **every) as current, sqlite.engine.begin() as connection:
        current.record(connection, result=RESULT)
    forget()
    with once("nightly", **every) as window, sqlite.engine.begin() as connection:
        window.record(connection)
        pytest.fail("it goes on")
    assert plain() is None  # it is done
    for function in (plain, lambda: asyncio.run(awaited())):
        forget()
        assert [function(), function()] == [RESULT, None]
    with sqlite.engine.begin() as connection, pytest.raises(RecordError, match="found where its body doesn't run"):
        current.record(connection)


def test_a_window_in_another_process(redis_url: str) -> None:
    """It can be pickled, as for a pool of processes; it is of no execution there."""
    with once("nightly", every=timedelta(days=366), url=redis_url) as current:
        other = pickle.loads(pickle.dumps(current))
    assert other == current
    with pytest.raises(RecordError, match="found outside of an execution"):
        other.record(None)


def test_another_windows_end_passes(redis_url: str, worker: Worker, sqlite: Base) -> None:
    """A block within a task doesn't take the task's end for its own, nor does a task that it calls."""
    record_elsewhere(sqlite)

    def record(of: Window) -> None:
        with sqlite.engine.begin() as connection:
            of.record(connection)

    inner = worker.app.task(record, name="proj.inner", shared=False, base=OnceTask)

    def body() -> Any:
        outer = worker.task.window
        with once("inner", every=timedelta(days=366), url=redis_url):
            inner(outer)
        return "not reached"

    assert worker.deliver(body) == RESULT


# -- misuse


def test_hooks_cannot_record(worker: Worker, sqlite: Base, body: Callable[[], str]) -> None:
    """Nobody would end the execution for them; a window that was kept after its body can't either."""
    refused: list[str] = []

    def hook(*_: Any) -> None:
        with Session(sqlite.engine) as session, session.begin():
            try:
                worker.task.window.record(session)
            except RecordError as exc:
                refused.append(str(exc))

    with_base(worker, before_start=hook, on_success=hook)
    assert worker.trace(body) == "SUCCESS"
    assert worker.task.apply().state == "SUCCESS"
    assert len(refused) == 4
    assert all("found where its body doesn't run, expected a call within the body" in each for each in refused)
    assert sqlite.written() == ["invoice"] * 2


def test_a_window_without_an_execution() -> None:
    """As a beat's signals bring it: it has no key, and records nothing."""
    for ask in (lambda: WINDOW.key, lambda: WINDOW.record(None)):
        with pytest.raises(RecordError, match="found outside of an execution, expected self"):
            ask()


# -- in processes


@pytest.fixture
def invoices(system: System, sqlite: Base, monkeypatch: pytest.MonkeyPatch) -> System:
    system.app, system.result_url = "apps.effects_app", system.store_url
    system.entries = {"tick": {"task": "effects.invoice", "every": 1.0}}
    system.settings = {"once_beat_lease": 4.0}
    monkeypatch.setenv("DATABASE", sqlite.url)
    return system


@pytest.mark.parametrize("point", ["worker.body", "worker.committed", "worker.traced"])
@pytest.mark.long
def test_a_worker_that_is_killed(invoices: System, sqlite: Base, point: str) -> None:
    """Before its commit, behind it, or before its end is recorded: the window is written once."""
    invoices.kill_point = f"{point}:KILL"
    beats, _ = invoices.pair(pool="solo")
    invoices.wait_fired()
    invoices.wait_done(2)
    invoices.settle(beats)
    keys = [task_id("once:", "tick", start) for start in map(parse_instant, invoices.starts())]
    assert sorted(sqlite.written()) == sorted(keys)
    assert sum(1 for event in invoices.ledger.read("finish")) <= len(keys)


def test_a_task_that_replaces_itself(invoices: System, sqlite: Base) -> None:
    """All of them have one task id, and each is a call of its own; sent again, none of them writes again."""
    invoices.worker(pool="solo").wait_ready()
    with Celery(broker=invoices.broker_url, set_as_current=False) as app:
        app.conf.task_default_queue = invoices.queue
        for sent in (1, 2):
            app.send_task("effects.pages", args=(1, 3), task_id="one-id")
            wait_until(lambda sent=sent: len(invoices.ledger.read("told")) == sent, "the last page", 60)
    written = [text.split() for text in sqlite.written()]
    assert [number for _, number, _ in written] == ["1", "2", "3"]
    assert len({key for *_, key in written}) == 3
