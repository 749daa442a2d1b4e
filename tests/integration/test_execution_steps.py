"""One execution on a real store, step by step: how it ends where the store goes away, or the window, under it."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.exceptions import Ignore, Reject
from processes import wait_until
from servers import RedisServer

from celery_once_beat import OnceTask
from celery_once_beat.replies import Begun, EntryAccount
from celery_once_beat.requests import ClaimRequest, LoadRequest, WindowKey
from celery_once_beat.store import store_of
from celery_once_beat.windows import Window, encode_headers

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
WINDOW = Window("nightly", T0 + timedelta(hours=1), None)
KEY = WindowKey(WINDOW.entry, WINDOW.start)
LEASE = 1.0
LOGGER = "celery_once_beat.execution"


@dataclass
class Worker:
    """A worker's process as its task sees it, with one window that is claimed and published."""

    app: Celery
    task: OnceTask

    @property
    def account(self) -> EntryAccount:
        account = store_of(self.app).account(WINDOW.entry)
        assert account is not None
        return account

    def begin_elsewhere(self) -> None:
        """Another worker begins, as soon as the lease of this one has run out."""
        other = f"other:{uuid.uuid4().hex[:12]}"
        begin = lambda: store_of(self.app).begin(KEY, other, 60.0)  # noqa: E731
        wait_until(lambda: isinstance(begin(), Begun), "the lease has run out", 10)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """No lease of this process is renewed, as if it stood still."""
        leases = [thread for thread in threading.enumerate() if thread.name == "once-leases"]
        assert leases, "a body runs, so its lease is renewed"
        original = store_of(self.app).renew_many
        store_of(self.app).renew_many = lambda renewals: [RuntimeError("frozen") for _ in renewals]  # type: ignore[method-assign]
        try:
            yield
        finally:
            store_of(self.app).renew_many = original  # type: ignore[method-assign]

    def deliver(self, body: Callable[[], Any], **request: Any) -> Any:
        """What a worker does with a delivery of the window's message; ``body`` is the task's."""
        self.body = body
        headers = encode_headers(WINDOW)
        fields = {"id": "task-id", "args": (), "kwargs": {}, "retries": 0, "is_eager": False, "called_directly": False}
        self.task.push_request(
            **{**fields, **request, "headers": headers, "hostname": "worker", "delivery_info": {"routing_key": QUEUE}}
        )
        try:
            return self.task()
        finally:
            self.task.pop_request()


QUEUE = "execution-steps"


@pytest.fixture
def new_worker() -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(url: str, **settings: Any) -> Worker:
        app = Celery("tests", broker=url, set_as_current=False, task_cls=OnceTask)
        app.conf.update(task_default_queue=QUEUE, once_beat_lease=LEASE, once_beat_recovery_interval=0.2)
        app.conf.update(settings)

        def work() -> Any:
            return worker.body()

        worker = Worker(app, app.task(work, name="proj.work", max_retries=5))
        store = store_of(app)
        store.load_many([LoadRequest(WINDOW.entry, "beat", "mark", 86400.0, 3, True, None, known=T0)])
        store.claim_many("beat", [ClaimRequest(KEY, T0, "mark")])
        made.append(worker)
        return worker

    yield make
    for worker in made:
        store_of(worker.app).close()
        worker.app.close()


@pytest.fixture
def worker(new_worker: Callable[..., Worker], redis_url: str) -> Worker:
    return new_worker(redis_url)


def waiting(url: str) -> int:
    """How many messages wait in the queue."""
    with redis.Redis.from_url(url) as client:
        return int(client.llen(QUEUE))  # type: ignore[arg-type]


def test_a_body_that_returns(worker: Worker) -> None:
    """Its window is done, and a second delivery is refused without a trace."""
    assert worker.deliver(lambda: worker.task.window and worker.task.window.held) is True
    assert worker.account.counts == {"done": 1}
    with pytest.raises(Ignore, match="window refused: closed"):
        worker.deliver(lambda: pytest.fail("a closed window's body ran"))


def test_a_late_success_is_not_recorded(worker: Worker) -> None:
    """Whose lease ran out, and whose window another has begun, is stale: its result isn't reported."""

    def body() -> str:
        with worker.frozen():
            worker.begin_elsewhere()
        assert worker.task.window is not None
        assert not worker.task.window.held
        return "late"

    with pytest.raises(Ignore, match="stale"):
        worker.deliver(body)
    assert worker.account.counts == {}
    assert KEY.start in worker.account.open


@pytest.mark.parametrize("requeue", [True, False])
def test_a_late_rejection_is_not_recorded(worker: Worker, requeue: bool) -> None:
    """Nor is any other end of it; the broker isn't told to deliver again what another executes."""

    def body() -> None:
        with worker.frozen():
            worker.begin_elsewhere()
        raise Reject("no", requeue=requeue)

    with pytest.raises(Ignore, match="stale"):
        worker.deliver(body)
    assert worker.account.counts == {}


def test_a_late_retry_is_not_sent(worker: Worker, redis_url: str) -> None:
    """The window is another's: there is nothing to hand over, and no message goes out."""

    def body() -> None:
        with worker.frozen():
            worker.begin_elsewhere()
        worker.task.retry(countdown=0)

    with pytest.raises(Ignore, match="stale"):
        worker.deliver(body)
    assert waiting(redis_url) == 0
    assert worker.account.counts == {}


def test_a_rejection_after_its_retry_is_the_retrys(worker: Worker, redis_url: str) -> None:
    """The window was handed over: the retry finishes it, whatever this execution says."""

    def body() -> None:
        worker.task.retry(countdown=60, throw=False)
        raise Reject("no", requeue=True)

    with pytest.raises(Reject):
        worker.deliver(body)
    assert waiting(redis_url) == 1
    assert worker.deliver(lambda: "retried", retries=1) == "retried"
    assert worker.account.counts == {"done": 1}


def test_a_store_that_is_away_at_the_end(
    new_worker: Callable[..., Worker], start_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    """The end is told for as long as a lease; then the body's result stands, and one line says what may follow."""
    server = start_redis()
    worker = new_worker(server.url())

    def body() -> str:
        server.kill()
        return "worked"

    with caplog.at_level(logging.INFO, LOGGER):
        assert worker.deliver(body) == "worked"
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.action == "window_unrecorded"  # type: ignore[attr-defined]
    assert record.entry == WINDOW.entry  # type: ignore[attr-defined]


def test_a_store_that_comes_back_at_the_end(
    new_worker: Callable[..., Worker], start_redis: Callable[..., RedisServer]
) -> None:
    """An outage within the lease costs nothing: the end is recorded once the store answers."""
    server = start_redis(appendonly=True)
    worker = new_worker(server.url(), once_beat_lease=20.0)

    def body() -> str:
        server.kill()
        threading.Timer(1.0, server.restart).start()
        return "worked"

    assert worker.deliver(body) == "worked"
    assert worker.account.counts == {"done": 1}


def test_a_store_that_is_away_while_it_runs(
    new_worker: Callable[..., Worker], start_redis: Callable[..., RedisServer]
) -> None:
    """The window isn't held while nobody can renew it, and is again after: nobody else began meanwhile."""
    server = start_redis(appendonly=True)
    worker = new_worker(server.url())

    def body() -> None:
        window = worker.task.window
        assert window is not None
        server.pause()
        wait_until(lambda: not window.held, "the lease isn't trusted any more", 10)
        server.resume()
        wait_until(lambda: window.held, "the lease is renewed again", 10)

    worker.deliver(body)
    assert worker.account.counts == {"done": 1}


def test_a_hash_of_a_newer_version(worker: Worker, redis_url: str) -> None:
    """What it means isn't guessed at: the message is put back, to come again later."""
    with redis.Redis.from_url(redis_url) as client:
        client.hset(store_of(worker.app).entry_key(WINDOW.entry), "v", "2")
    with pytest.raises(Ignore, match="put back"):
        worker.deliver(lambda: pytest.fail("a window that isn't understood was executed"))
    assert waiting(redis_url) == 1
