"""What an execution leaves to the garbage collector: nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer

from celery_once_beat import OnceTask
from celery_once_beat.store.verbs import store_of
from celery_once_beat.windows import Window, encode_headers
from celery_once_beat.worker.notes import notes_of

NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only what nobody refers to is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_what_an_execution_made_goes_with_its_request(redis_url: str) -> None:
    """A window's execution and lease are freed as the task ends, without the collector; hooks still have them."""
    seen: list[weakref.ref[Any]] = []

    class Hooked(OnceTask):
        abstract = True

        def after_return(self, *_: object) -> None:
            assert self.window.entry == "tick"
            execution = notes_of(self.request).execution
            seen.extend(map(weakref.ref, (execution, execution.lease, execution.window, self.request)))

    def work() -> None:
        """Does nothing."""

    with Celery("tests", broker=redis_url, set_as_current=False, task_cls=Hooked) as app:
        app.conf.update(once_beat_redis_url=redis_url, once_beat_retention=5.0)
        task = app.task(work, name="proj.task", shared=False)
        trace = build_tracer(task.name, task, app.loader, "host", app=app)
        for number in range(3):
            start = NOON + timedelta(minutes=number)
            headers = encode_headers(Window("tick", start, None, tracked=False))
            request = {"id": str(number), "hostname": "host", "delivery_info": {}, "retries": 0, **headers}
            result, *_ = trace(str(number), (), {}, request)
            assert result is None
        store_of(app).close()
    assert len(seen) == 3 * 4
    # The first is told by the server that it lacks the scripts: an exception holds the frames that it came through.
    assert not [ref() for ref in seen[4:] if ref() is not None]
