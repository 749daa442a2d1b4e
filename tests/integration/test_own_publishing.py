"""Tasks and schedulers that publish in their own way: they raise behind the message, send it later, or send none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from processes import wait_until

from celery_once_beat import OnceScheduler, OnceTask
from celery_once_beat.store.account import EntryAccount

QUEUE = "own-publishing"


def work() -> None:
    """A task that no worker of these tests runs."""


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    """An app with an entry that is due each 100 ms; the task's base is the test's to say."""
    with Celery("tests", broker=redis_url, backend=redis_url, set_as_current=False) as app:
        app.conf.update(task_default_queue=QUEUE, once_beat_recovery_interval=0.2)
        app.conf.beat_schedule = {
            "tick": {
                "task": "tests.work",
                "schedule": timedelta(milliseconds=100),
                "options": {"once": {"catch_up": "all"}},
            }
        }
        yield app


@pytest.fixture
def beat(app: Celery) -> Iterator[Callable[..., OnceScheduler]]:
    made: list[OnceScheduler] = []

    def make(base: type[OnceTask], cls: type[OnceScheduler] = OnceScheduler) -> OnceScheduler:
        app.task(work, name="tests.work", base=base, shared=False)
        made.append(cls(app))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()


def queued(url: str) -> list[dict[str, Any]]:
    """The headers of what is in the queue."""
    with redis.Redis.from_url(url) as client:
        return [json.loads(message)["headers"] for message in client.lrange(QUEUE, 0, -1)]  # type: ignore[union-attr]


def tick_until(scheduler: OnceScheduler, done: Callable[[], object], what: str) -> None:
    wait_until(lambda: scheduler.tick() is not None and done(), what, 60, every=0.01)


def account_of(scheduler: OnceScheduler) -> EntryAccount:
    account = scheduler.store.account("tick")
    assert account is not None
    return account


class Audited(OnceTask):
    """Writes down what it has sent, in a table that can't be reached."""

    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        super().apply_async(*args, **options)
        raise ConnectionError("the table of what was sent is away")


class Counting(OnceScheduler):
    """Counts what it has sent, by a server that can't be reached."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        super().apply_async(*args, **options)
        raise RuntimeError("the metrics are away")


class CountingEntries(OnceScheduler):
    """The same, where nothing logs what is raised."""

    def apply_entry(self, *args: Any, **options: Any) -> None:
        super().apply_entry(*args, **options)
        raise RuntimeError("the metrics are away")


@pytest.mark.parametrize(
    ("base", "cls"),
    [(Audited, OnceScheduler), (OnceTask, Counting), (OnceTask, CountingEntries)],
    ids=["of the task", "of the scheduler", "of the entry"],
)
def test_what_is_raised_behind_the_message(beat, redis_url, base: type[OnceTask], cls: type[OnceScheduler]) -> None:
    """The message is out: it isn't sent again, and its window doesn't fail before a worker comes to it."""
    scheduler = beat(base, cls)
    tick_until(scheduler, lambda: len(queued(redis_url)) >= 40, "windows of four seconds are published")
    ids = [headers["id"] for headers in queued(redis_url)]
    account = account_of(scheduler)
    assert len(ids) == len(set(ids)) == len(account.open)
    assert account.counts == {}


class Single(OnceTask):
    """Sends nothing while its last message waits, as tasks do that are to be in the queue once."""

    abstract = True
    busy = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        if Single.busy:
            Single.busy = False
            return None
        return super().apply_async(*args, **options)


def test_a_task_that_sends_nothing(beat, redis_url, caplog) -> None:
    """That window ends as untracked. Those that follow are tracked, since no message has lost its window."""
    Single.busy = True
    scheduler = beat(Single)
    tick_until(scheduler, lambda: len(queued(redis_url)) >= 5, "windows are published")
    account = account_of(scheduler)
    assert account.counts == {"untracked": 1}
    assert len(account.open) == len(queued(redis_url))
    said = [record for record in caplog.records if getattr(record, "action", "") == "window_unsent"]
    assert len(said) == 1
    assert "no message" in said[0].getMessage()
