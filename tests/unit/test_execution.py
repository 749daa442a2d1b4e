"""The ends of an execution that need neither worker nor server to be shown."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from celery.exceptions import Reject
from servers import free_port

from celery_once_beat import OnceTask
from celery_once_beat.errors import StoreUnavailableError
from celery_once_beat.execution import _delay
from celery_once_beat.put_back import put_back

NOW = datetime.now(timezone.utc)
HOUR = timedelta(hours=1)


def work() -> None:
    """A task that nobody runs here."""


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 0.0),
        ({"countdown": None}, 0.0),
        ({"countdown": 90}, 90.0),
        ({"countdown": -3}, 0.0),
        ({"eta": NOW + HOUR}, 3600.0),
        ({"eta": (NOW + HOUR).replace(tzinfo=None)}, 3600.0),
        ({"eta": (NOW + HOUR).isoformat()}, 3600.0),
        ({"eta": (NOW + HOUR).strftime("%Y-%m-%dT%H:%M:%SZ")}, 3600.0),
        ({"eta": (NOW + HOUR).astimezone(timezone(timedelta(hours=9)))}, 3600.0),
        ({"eta": NOW - HOUR}, 0.0),
        ({"eta": NOW + HOUR, "countdown": 5}, 3600.0),
    ],
)
def test_when_a_retry_is_due(options: dict[str, Any], seconds: float) -> None:
    """The seconds for which its window waits, however the retry says it; a naive eta is UTC, as for Celery."""

    def expected() -> float:
        age = (datetime.now(timezone.utc) - NOW).total_seconds()
        return max(seconds - age, 0.0) if "eta" in options else seconds

    most = expected()
    found = _delay(options)
    assert expected() - 1.001 <= found <= most + 0.001, "an eta may be in whole seconds"


def test_without_store_and_broker_the_message_stays_with_the_broker() -> None:
    """Nobody takes the copy that should come again later: the message is rejected, to be delivered again."""
    port = free_port()
    with Celery("tests", broker=f"redis://127.0.0.1:{port}/0", set_as_current=False, task_cls=OnceTask) as app:
        once = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
        app.conf.update(task_publish_retry=False, broker_transport_options=once)
        task = app.task(work, name="proj.task", shared=False)
        request = Context(id="1", args=(), kwargs={}, retries=0, delivery_info={}, headers={})
        with pytest.raises(Reject) as caught:
            put_back(task, request, StoreUnavailableError("away"))
    assert caught.value.requeue is True


def test_an_eager_run_has_its_own_request() -> None:
    """With its id and its retries, as a plain task's; a call of the task within it is a direct one."""
    seen: list[tuple[str | None, int]] = []
    with Celery("tests", broker="memory://", set_as_current=False, task_cls=OnceTask) as app:

        @app.task(bind=True, max_retries=3, shared=False)
        def flaky(self, nested: bool = False) -> str:
            if nested:
                return "nested"
            assert self(nested=True) == "nested"
            seen.append((self.request.id, self.request.retries))
            if self.request.retries < 2:
                raise self.retry(countdown=0)
            return "done"

        result = flaky.apply()
    assert (result.state, result.get()) == ("SUCCESS", "done")
    assert seen == [(result.id, 0), (result.id, 1), (result.id, 2)]
