"""What celery_once_beat.testing foretells, against a real scheduler over a real Redis whose clock is pinned."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import redis
from celery import Celery
from processes import wait_until

from celery_once_beat import OnceScheduler, OnceTask, Window
from celery_once_beat.testing import pinned_clock, windows_between
from celery_once_beat.windows import decode_headers

HOUR = timedelta(hours=1)
QUEUE = "pinned"


def hourly() -> None:
    """A task that no worker of these tests runs."""


def published(url: str) -> list[Window | None]:
    """The windows whose messages wait, in the order in which they came."""
    with redis.Redis.from_url(url) as client:
        messages: Any = client.lrange(QUEUE, 0, -1)
    return [decode_headers(json.loads(message)["headers"]) for message in reversed(messages)]


def app_of(url: str, once: dict[str, Any]) -> Celery:
    app = Celery("tests", broker=url, set_as_current=False, task_cls=OnceTask)
    anchor = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(minutes=10)
    options = {"queue": QUEUE, "once": {"anchor": anchor, **once}}
    app.conf.update(
        once_beat_recovery_interval=0.1,
        beat_schedule={"hourly": {"task": "tests.hourly", "schedule": HOUR, "options": options}},
    )
    app.task(hourly, name="tests.hourly", shared=False)
    return app


def tick_until_idle(beat: OnceScheduler) -> None:
    """Until nothing is due by the pinned clock: the next tick is for the look at what is overdue."""
    wait_until(lambda: beat.tick() > 0, "nothing is due any more", 20, every=0.01)


def test_a_beat_publishes_what_is_due_by_a_pinned_clock(redis_url: str) -> None:
    """Hour after hour, what windows_between says, and nothing while the clock stands."""
    app = app_of(redis_url, {})
    began = datetime.now(timezone.utc)
    with app, pinned_clock(began) as clock:
        beat = OnceScheduler(app)
        for hours in range(1, 4):
            tick_until_idle(beat)
            clock.move(HOUR)
            tick_until_idle(beat)
            expected = windows_between(app, began, began + hours * HOUR)
            assert len(expected) == hours
            assert published(redis_url) == expected
        beat.close()
