"""A queue that nobody consumes for hours: how many copies of its messages there are, and how soon all have run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from processes import wait_until
from servers import RedisServer
from system import System

from celery_once_beat.rules import EntryPolicy
from celery_once_beat.settings import Settings
from celery_once_beat.store import Begun, ClaimRequest, Confirmation, Ending, LoadRequest, Store, Taken
from celery_once_beat.windows import WindowKey

T0 = datetime(2030, 1, 1, tzinfo=timezone.utc)
START_TIMEOUT = 600.0
MARK = "mark"
QUEUE = "night"


class Hours:
    """An entry of every minute, its beat, and its queue; time is the server's, and goes on by whole minutes."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.now = T0
        self.store = Store(Settings(redis_url=server.url()))
        self.go_on(0)
        limits = EntryPolicy()
        (loaded,) = self.store.load_many([LoadRequest("tick", "beat", MARK, 90 * 86_400.0, limits, known=T0)])
        self.cursor = loaded.cursor
        self.queue: deque[WindowKey] = deque()
        self.published = self.windows = self.taken = 0
        #: Whether the worker knows the entry's task.
        self.known = True

    def go_on(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.server.clock.stand(self.now)
        wait_until(lambda: self.store.snapshot().now >= self.now, "the server sees it", 60, 0.001)

    def publish(self, windows: list[tuple[WindowKey, int]]) -> None:
        self.store.confirm_many([Confirmation(key, turn, 1, START_TIMEOUT, QUEUE) for key, turn in windows])
        self.queue.extend(key for key, _ in windows)
        self.published += len(windows)

    def minute(self, consume: int = 0) -> None:
        self.go_on(60)
        key = WindowKey("tick", self.now)
        (claimed,) = self.store.claim_many("beat", [ClaimRequest(key, self.cursor, MARK)])
        self.cursor, self.windows = self.now, self.windows + 1
        self.publish([(key, claimed.revision)])
        for _ in range(30):  # as many looks as there are in a minute
            overdue = self.store.overdue("beat", self.now, 100).shards[self.store.shard_of("tick")]
            self.taken += len(overdue)
            replies = self.store.take_many("beat", [(key, MARK) for key in overdue], [QUEUE] if consume else [])
            self.publish([(k, r.revision) for k, r in zip(overdue, replies, strict=True) if isinstance(r, Taken)])
            self._consume(consume)
            if not overdue and not (consume and self.queue):
                break

    def _consume(self, most: int) -> None:
        for _ in range(min(most, len(self.queue))):
            key = self.queue.popleft()
            if not self.known:
                self.store.discarded(key, 0)
                continue
            begun = self.store.begin(key, f"worker:{self.published}", 30.0)
            if isinstance(begun, Begun):
                self.store.finish(Ending(key, f"worker:{self.published}", begun.fence, "done"))

    @property
    def open(self) -> int:
        return len(self.store.account("tick").open)


@pytest.fixture
def hours(start_redis: Callable[..., RedisServer]) -> Iterator[Hours]:
    hours = Hours(start_redis(faketime=0))
    yield hours
    hours.store.close()


@pytest.mark.parametrize("purged", [True, False])
@pytest.mark.long
def test_copies_stay_in_proportion_to_windows(hours: Hours, purged: bool) -> None:
    """While nobody consumes there are none; once somebody does all run soon, purged queue or not."""
    for _ in range(10 * 60):
        hours.minute()
    assert hours.windows == hours.open == 600
    assert hours.published == hours.windows, "none is published again"
    assert hours.taken <= hours.windows * 10 * 6 / 2 + 6000, "those that wait are looked at every ten minutes"
    if purged:
        hours.queue.clear()
    minutes = 0
    while hours.open and minutes < 60:
        hours.minute(consume=100)
        minutes += 1
    assert not hours.open, "all have run"
    assert minutes <= 20, "each has asked again by then"
    assert hours.published <= 2 * hours.windows
    assert hours.store.account("tick").counts == {"done": hours.windows}


def test_a_few_that_were_lost_come_back_in_time(hours: Hours) -> None:
    """Ten messages lost together, and somebody consumes: within minutes of when they were overdue all have run."""
    for _ in range(10):
        hours.minute()
    hours.queue.clear()
    for _ in range(25):
        hours.minute(consume=100)
    assert not hours.open
    assert hours.published <= 2 * hours.windows


def test_what_was_not_published_goes_out_at_once(hours: Hours) -> None:
    """A beat died between claim and publish, or its publish failed: such a window doesn't wait for others."""
    for _ in range(30):
        hours.minute()
    hours.go_on(60)
    keys = [WindowKey("tick", hours.now), WindowKey("tick", hours.now + timedelta(seconds=1))]
    for key in keys:
        (claimed,) = hours.store.claim_many("beat", [ClaimRequest(key, hours.cursor, MARK)])
        hours.cursor = key.start
    hours.store.confirm_many([Confirmation(keys[1], claimed.revision, 0, START_TIMEOUT)])
    hours.go_on(15)
    assert all(isinstance(reply, Taken) for reply in hours.store.take_many("beat-2", [(key, MARK) for key in keys]))
    hours.go_on(15)  # beat-2 died, too
    again = hours.store.take_many("beat", [(key, MARK) for key in keys])
    assert all(isinstance(reply, Taken) for reply in again), again


def test_copies_of_a_task_that_no_worker_knows_get_rare(hours: Hours) -> None:
    """Each copy is discarded at once, and the next one comes an eighth of the window's age later. Then all run soon."""
    hours.known = False
    for _ in range(60):
        hours.minute(consume=1000)
    assert hours.open == 60
    assert hours.published <= 20 * hours.windows, "no window has more"
    hours.known = True
    for _ in range(15):
        hours.minute(consume=1000)
    assert not hours.open, "all have run"


@pytest.mark.parametrize("purged", [False, True])
def test_a_worker_comes_when_windows_have_waited_for_it(system: System, purged: bool) -> None:
    """Until then each window has one message; then each runs once, though the queue was purged meanwhile."""
    system.entries = {"tick": {"task": "apps.once_app.work", "every": 1.0}}
    system.settings = {"once_beat_start_timeout": 1.0}
    beats = [system.beat(f"beat{number}").wait_ready() for number in (1, 2)]
    waits = "no worker that knows windows consumes its queue"
    wait_until(lambda: any(waits in beat.log for beat in beats), "beats see that", 60)
    wait_until(lambda: len(system.account().open) >= 5, "five wait", 60)
    for beat in beats[1:]:
        beat.stop()
    system.store.set_paused("tick", paused=True)
    number = len(system.account().open)
    wait_until(lambda: system.waiting() == number, "each has one message", 60)
    if purged:
        assert system.purge() == number
    system.worker().wait_ready()
    wait_until(lambda: not system.account().open, "all have ended", 60)
    assert system.recorded() == dict.fromkeys(system.starts(), 1)
    beats[0].stop()


def test_what_a_worker_consumes_may_change(system: System) -> None:
    """It says so by itself; a worker that has ended is heard of no more."""
    system.entries = {"tick": {"task": "apps.once_app.work", "every": 600.0}}
    worker = system.worker().wait_ready()

    def consumed() -> list[set[str]]:
        found, unreadable = system.store.workers(system.store.snapshot().now, 600.0)
        assert not unreadable
        return [each.queues for each in found.values()]

    wait_until(lambda: consumed() == [{system.queue}], "it has said what it consumes", 60)
    with Celery(broker=system.broker_url, set_as_current=False) as app:
        app.control.add_consumer("by night", reply=True, timeout=10, limit=1)
        wait_until(lambda: consumed() == [{system.queue, "by night"}], "it consumes one more", 60)
        app.control.cancel_consumer(system.queue, reply=True, timeout=10, limit=1)
        wait_until(lambda: consumed() == [{"by night"}], "it has given up the first", 90)
    worker.stop()
