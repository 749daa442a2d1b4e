"""Celery's own test worker, by which many suites run: it sets up no stack protection, and retries come all the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from celery.app import trace
from celery.contrib.testing.worker import start_worker
from processes import wait_until

from celery_once_beat import OnceTask
from celery_once_beat.settings import WORKER_TTL
from celery_once_beat.store import store_of

RETRY = {"countdown": 0, "max_retries": 3}


def read_queues(app: Celery) -> list[str]:
    workers, _ = store_of(app).workers(datetime.now(timezone.utc), WORKER_TTL)
    return [queue for worker in workers.values() for queue in worker.queues]


@pytest.fixture(autouse=True)
def _logging_of_other_tests() -> Iterator[None]:
    """Celery's worker sets up the process's logging, for good."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.filterwarnings("default")  # of what Celery asks of redis-py
@pytest.mark.parametrize("how", ["retry", "autoretry_for", "of a call within", "with a __call__ of its own"])
@pytest.mark.parametrize("protected", [False, True])
def test_a_task_that_retries(redis_url: str, how: str, protected: bool) -> None:
    """It runs again with its next retry number, as a plain task does; with stack protection it is as in a real worker.

    The worker reports what it consumes. A call within is one of the task itself, whose request Celery makes of that of
    the first one.
    """

    class Called(OnceTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    def body(self: Any, inner: bool = False) -> int:
        if how == "of a call within" and not inner:
            return int(self(inner=True))
        if self.request.retries < 2:
            error = ValueError(self.window.start.isoformat())
            raise error if how == "autoretry_for" else self.retry(exc=error, **RETRY)
        return int(self.request.retries)

    automatic = {"autoretry_for": (ValueError,), "retry_kwargs": RETRY, "retry_backoff": False}
    with Celery("tests", broker=redis_url, backend=redis_url, set_as_current=False) as app:
        app.conf.update(task_default_queue=f"test-worker-{how}-{protected}", once_beat_redis_url=redis_url)
        base = Called if how.endswith("its own") else OnceTask
        options = automatic if how == "autoretry_for" else {}
        task = app.task(body, bind=True, base=base, name="proj.retries", shared=False, **options)
        if protected:
            trace._install_stack_protection()
        try:
            with start_worker(app, perform_ping_check=False, shutdown_timeout=60):
                assert task.delay().get(timeout=20) == 2
                wait_until(lambda: read_queues(app) == [app.conf.task_default_queue], "it reports its queue", 20)
        finally:
            trace.reset_worker_optimizations(app)
