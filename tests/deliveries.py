"""What a worker does with one delivery of a window's message, in this process, on a real store."""

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
from celery.app import trace
from celery.utils.dispatch import Signal
from processes import wait_until

from celery_once_beat import OnceTask, signals
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.store import Begun, ClaimRequest, EntryAccount, LoadRequest, store_of
from celery_once_beat.windows import Window, WindowKey, encode_headers, format_instant
from celery_once_beat.worker.leases import Leases, leases_of

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
WINDOW = Window("nightly", T0 + timedelta(hours=1), None)
KEY = WindowKey(WINDOW.entry, WINDOW.start)
LEASE = 1.0
QUEUE = "execution-steps"


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

    @property
    def run_key(self) -> str:
        shard = store_of(self.app).entry_key(WINDOW.entry).partition("}:")[0]
        return f"{shard}}}:run:{WINDOW.entry}:{format_instant(WINDOW.start)}"

    def begin_elsewhere(self) -> None:
        """Another worker begins, as soon as the lease of this one has run out."""
        other = f"other:{uuid.uuid4().hex[:12]}"
        begin = lambda: store_of(self.app).begin(KEY, other, 60.0)  # noqa: E731
        wait_until(lambda: isinstance(begin(), Begun), "the lease has run out", 60)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """No lease of this process is renewed, as if it stood still."""
        leases = [thread for thread in threading.enumerate() if thread.name == "once-leases"]
        assert leases, "a body runs, so its lease is renewed"
        original = store_of(self.app).renew_many
        store_of(self.app).renew_many = lambda renewals, _=(): [RuntimeError("frozen") for _ in renewals]  # type: ignore[method-assign]
        try:
            yield
        finally:
            store_of(self.app).renew_many = original  # type: ignore[method-assign]

    def next_window(self) -> Window:
        """One more window that is claimed and published."""
        cursor = self.account.cursor
        window = Window(WINDOW.entry, cursor + timedelta(hours=1), None)
        store_of(self.app).claim_many("beat", [ClaimRequest(WindowKey(window.entry, window.start), cursor, "mark")])
        return window

    def deliver(
        self, body: Callable[[], Any], window: Window = WINDOW, *, once_put_back: object = None, **request: Any
    ) -> Any:
        """What a worker does with a delivery of the window's message; ``body`` is the task's."""
        self.body = body
        headers: dict[str, Any] = encode_headers(window)
        if once_put_back is not None:
            headers["once_put_back"] = once_put_back
        fields = {"id": "task-id", "args": (), "kwargs": {}, "retries": 0, "is_eager": False, "called_directly": False}
        self.task.push_request(
            **{**fields, **request, "headers": headers, "hostname": "worker", "delivery_info": {"routing_key": QUEUE}}
        )
        try:
            return self.task()
        finally:
            self.task.pop_request()

    def trace(self, body: Callable[[], Any], window: Window = WINDOW, **request: Any) -> Any:
        """The same with all that Celery does before and after; returns the state, or what was raised."""
        self.body = body
        if self.task.__trace__ is None:
            self.task.__trace__ = trace.build_tracer(self.task.name, self.task, app=self.app)
        fields = {"id": uuid.uuid4().hex, "retries": 0, "hostname": "worker", "delivery_info": {}, "is_eager": False}
        message = {**fields, **encode_headers(window), **request}
        info = self.task.__trace__(message["id"], (), {}, message).info
        return "SUCCESS" if info is None else info.state


def _all_signals() -> list[Signal]:
    return [each for each in vars(signals).values() if isinstance(each, Signal)]


@contextmanager
def without_receivers() -> Iterator[None]:
    """Nobody hears the signals: a module of another test may have receivers, and with them no end waits."""
    all_signals = _all_signals()
    others = [signal.receivers for signal in all_signals]
    for signal in all_signals:
        signal.receivers = []
        signal.sender_receivers_cache.clear()
    try:
        yield
    finally:
        for signal, receivers in zip(all_signals, others, strict=True):
            signal.receivers = receivers
            signal.sender_receivers_cache.clear()


@contextmanager
def workers() -> Iterator[Callable[..., Worker]]:
    """Give a function that makes workers, from a Redis URL and settings."""
    made: list[Worker] = []
    # As in every worker: without it a base's __call__ would run the body under a request of its own.
    trace._install_stack_protection()

    def make(url: str, **settings: Any) -> Worker:
        app = Celery("tests", broker=url, set_as_current=False, task_cls=OnceTask)
        app.conf.update(task_default_queue=QUEUE, once_beat_lease=LEASE, once_beat_recovery_interval=0.2)
        app.conf.update(settings)

        def work() -> Any:
            return worker.body()

        worker = Worker(app, app.task(work, name="proj.work", max_retries=5, shared=False))
        store = store_of(app)
        limits = EntryPolicy()
        store.load_many([LoadRequest(WINDOW.entry, "beat", "mark", 86400.0, limits, known=T0)])
        store.claim_many("beat", [ClaimRequest(KEY, T0, "mark")])
        made.append(worker)
        return worker

    yield make
    for worker in made:
        leases(worker).record_all()  # else an end would close the next test's window, of the same name
        store_of(worker.app).close()
        worker.app.close()
        trace.reset_worker_optimizations(worker.app)


def leases(worker: Worker) -> Leases:
    """The leases of this process, and its ends that wait."""
    return leases_of.of(store_of(worker.app))


def waiting(url: str) -> int:
    """How many messages wait in the queue."""
    with redis.Redis.from_url(url) as client:
        return int(client.llen(QUEUE))  # type: ignore[arg-type]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The actions of what was logged as a warning or worse."""
    return [record.action for record in caplog.records if record.levelno >= logging.WARNING]  # type: ignore[attr-defined]


@contextmanager
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The signals that are sent, in order, with their arguments; receivers of other tests' apps hear nothing."""
    sent: list[tuple[str, dict[str, Any]]] = []

    def hear(signal: Signal, **arguments: Any) -> None:
        sent.append((signal.name, arguments))

    with without_receivers():
        for signal in _all_signals():
            signal.connect(hear, weak=False)
        yield sent
