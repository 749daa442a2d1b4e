"""Bursts over Redis: messages travel together, and what becomes of those that perhaps didn't."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
import pytest
import redis
from celery import Celery
from processes import wait_until
from proxy import Proxy
from servers import RedisServer

from celery_once_beat import OnceScheduler, OnceTask
from celery_once_beat.beat.publishing import SLICE

QUEUE = "bursts"
COUNT = SLICE + 50

pytestmark = pytest.mark.skipif(not hasattr(kombu.Producer, "batch"), reason="this kombu publishes one by one")


def work(_number: int) -> None:
    """A task that no worker of these tests runs."""


@pytest.fixture
def broker(redis_server: RedisServer) -> Iterator[Proxy]:
    """The way to the broker; the store has one of its own."""
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def burst(broker: Proxy, redis_url: str) -> Iterator[Callable[..., OnceScheduler]]:
    """Make a scheduler whose entries are all about to be due, and wait until they are."""
    app = Celery("tests", broker=broker.url(), set_as_current=False, task_cls=OnceTask)
    app.task(work, name="tests.work", shared=False)
    made: list[OnceScheduler] = []

    def loaded(due: datetime, once: dict[str, Any]) -> OnceScheduler:
        app.conf.update(
            task_default_queue=QUEUE,
            once_beat_redis_url=redis_url,
            once_beat_claim_lease=20.0,
            once_beat_publish_timeout=20.0,
            once_beat_recovery_interval=0.2,
            beat_schedule={
                f"entry-{number}": {
                    "task": "tests.work", "schedule": timedelta(hours=1), "args": (number,),
                    "options": {"once": {"anchor": due, **once}},
                }
                for number in range(COUNT)
            },
        )  # fmt: skip
        made.append(OnceScheduler(app))
        made[-1].tick()
        made[-1].broker_ready()
        return made[-1]

    def make(**once: Any) -> OnceScheduler:
        for seconds in (3, 10, 30, 60):
            due = datetime.now(timezone.utc) + timedelta(seconds=seconds)
            scheduler = loaded(due, once)
            left = (due - datetime.now(timezone.utc)).total_seconds()
            if left > 0:
                time.sleep(left)
                return scheduler
            with redis.Redis.from_url(redis_url) as client:
                client.flushall()  # it was due before it was loaded: once more, with more time
        pytest.fail("it takes a minute to load")

    yield make
    for scheduler in made:
        scheduler.close()
    app.close()


def sent(url: str) -> Counter[int]:
    """How often each entry's message is in the queue."""
    with redis.Redis.from_url(url) as client:
        messages: Any = client.lrange(QUEUE, 0, -1)
    bodies = [json.loads(base64.b64decode(json.loads(message)["body"])) for message in messages]
    return Counter(args[0] for args, _, _ in bodies)


def reads(url: str) -> int:
    """How often the server has found something to read from a client: of a round trip at least once."""
    with redis.Redis.from_url(url) as client:
        return int(client.info("stats")["total_reads_processed"])  # type: ignore[index]


@pytest.mark.long
def test_messages_travel_together(burst: Callable[..., OnceScheduler], redis_url: str) -> None:
    """All that a burst asks of store and broker takes fewer round trips than there are messages."""
    scheduler = burst()
    before = reads(redis_url)
    scheduler.tick()
    assert reads(redis_url) - before < COUNT
    assert sent(redis_url) == Counter(range(COUNT))


@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.long
def test_a_batch_that_is_cut(
    burst: Callable[..., OnceScheduler], broker: Proxy, redis_url: str, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    """Perhaps none of it went out: all of it is published again, and nothing of the rest is lost."""
    scheduler = burst()
    with caplog.at_level(logging.WARNING):
        if lost == "reply":
            broker.lose_reply(of=b"LPUSH")
        else:
            broker.cut_before(b"LPUSH")
        scheduler.tick()
        assert broker.lost == 1
        assert [r.action for r in caplog.records if hasattr(r, "action")].count("batch_failed") == 1
        # What had arrived when the connection went will be there twice; a worker refuses the second copy.
        least = COUNT + (lost == "reply")

        def all_sent() -> bool:
            scheduler.tick()
            return len(sent(redis_url)) == COUNT and sent(redis_url).total() >= least

        wait_until(all_sent, "each is sent", 60, 0.1)
    twice = sent(redis_url).total() - COUNT
    assert twice <= SLICE if lost == "reply" else twice == 0, twice
