"""A broker that answers and refuses an entry's messages: how many of its windows are tried meanwhile. No server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from celery_once_beat import OnceScheduler, OnceTask
from celery_once_beat.beat.publishing import Job
from celery_once_beat.clock import steady
from celery_once_beat.store import Claimed, Published
from celery_once_beat.windows import WindowKey

START = datetime(2026, 11, 21, tzinfo=timezone.utc)
OVERDUE = [WindowKey(entry, START + timedelta(seconds=n)) for n in (2, 0, 1) for entry in ("tick", "other")]


@pytest.fixture
def scheduler() -> Iterator[OnceScheduler]:
    app = Celery(broker="memory://", task_cls=OnceTask, set_as_current=False)
    app.conf.once_beat_redis_url = "redis://127.0.0.1:1"

    @app.task(name="work", shared=False)
    def work() -> None:
        pass

    app.conf.beat_schedule = {entry: {"task": "work", "schedule": 1.0} for entry in ("tick", "other")}
    scheduler = OnceScheduler(app=app)
    scheduler.entries.refresh(scheduler.schedule, None)
    yield scheduler
    scheduler._drop_broker()


def publish(scheduler: OnceScheduler, *, again: bool = False) -> Published:
    row = scheduler.entries.get("tick")
    assert row is not None
    return scheduler._send(row.source, row.window(START), Job(row, START, Claimed(1, None), again=again))[0]


def test_one_window_at_a_time_of_what_is_refused(scheduler: OnceScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """At first none for a second, then the oldest; of other entries all, and all of this one once one went out."""
    clock = [1000.0]
    for module in ("publishing", "recovery"):
        monkeypatch.setattr(f"celery_once_beat.beat.{module}.steady", lambda: clock[0])

    def refuse(*_: object, **__: object) -> None:
        raise OperationalError("(404) NOT_FOUND - no exchange")

    def tried() -> list[WindowKey]:
        return [key for key in scheduler.recovery.not_refused(OVERDUE) if key.entry == "tick"]

    with monkeypatch.context() as broker:
        broker.setattr("kombu.messaging.Producer.publish", refuse)
        assert publish(scheduler) == Published.UNSURE
        assert len(tried()) == 3, "another message of its slice may be to blame"
        assert publish(scheduler, again=True) == Published.UNSURE
        assert tried() == []
        assert len(list(scheduler.recovery.not_refused(OVERDUE))) == 3
        said = scheduler.entries.left_out()["tick"]
        assert said.startswith("its messages can't be published: ")
        assert said.endswith("(404) NOT_FOUND - no exchange")
        for seconds in (1, 2, 4, 8, 10, 10):
            clock[0] += seconds / 2
            assert publish(scheduler) == Published.UNSURE  # a new window doesn't put off the next try
            assert tried() == []
            clock[0] += seconds / 2
            assert tried() == [WindowKey("tick", START)]
            assert publish(scheduler, again=True) == Published.UNSURE
    assert publish(scheduler) == Published.SENT
    assert len(tried()) == 3
    assert scheduler.entries.left_out() == {}


def test_nothing_is_sent_while_the_broker_takes_no_messages(scheduler: OnceScheduler) -> None:
    """It may have said so since it was asked whether it is there: the window is published later."""
    scheduler._alarm.on = True
    assert publish(scheduler) == Published.UNSURE
    scheduler._alarm.on = False
    assert publish(scheduler) == Published.SENT


@pytest.mark.parametrize(("error", "times"), [(ConnectionResetError, 2), (TimeoutError, 1)])
def test_an_untracked_window_is_sent_twice_only_if_the_first_message_is_lost(
    scheduler: OnceScheduler, monkeypatch: pytest.MonkeyPatch, error: type[Exception], times: int
) -> None:
    """No worker would refuse a copy, and no beat would send it later: after a timeout the broker may have it."""
    row = scheduler.entries.get("tick")
    assert row is not None
    sent: list[object] = []

    def publish(*given: object, **_: object) -> None:
        sent.append(given)
        raise error

    monkeypatch.setattr("kombu.messaging.Producer.publish", publish)
    scheduler._publish([Job(row, START, Claimed(0, None))], steady())
    assert len(sent) == times
