"""A queue that nobody consumes for hours: how many copies of its messages there are, and how soon all have run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone

import pytest
from processes import wait_until
from servers import RedisServer

from celery_once_beat.rules import EndRules
from celery_once_beat.settings import Settings
from celery_once_beat.store import Ending
from celery_once_beat.store.model import Begun, Claimed, ClaimRequest, Confirmation, LoadRequest, Taken
from celery_once_beat.store.verbs import Store
from celery_once_beat.windows import WindowKey

T0 = datetime(2030, 1, 1, tzinfo=timezone.utc)
START_TIMEOUT = 600.0
MARK = "mark"


class Hours:
    """An entry of every minute, its beat, and its queue; time is the server's, and goes on by whole minutes."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.now = T0
        self.store = Store(Settings(redis_url=server.url()))
        self.go_on(0)
        limits = EndRules(max_attempts=3, recover=True, grace=None)
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
        self.store.confirm_many([Confirmation(key, turn, 1, START_TIMEOUT) for key, turn in windows])
        self.queue.extend(key for key, _ in windows)
        self.published += len(windows)

    def minute(self, consume: int = 0) -> None:
        self.go_on(60)
        key = WindowKey("tick", self.now)
        (claimed,) = self.store.claim_many("beat", [ClaimRequest(key, self.cursor, MARK)])
        assert isinstance(claimed, Claimed)
        self.cursor, self.windows = self.now, self.windows + 1
        self.publish([(key, claimed.turn)])
        for _ in range(30):  # as many looks as there are in a minute
            overdue = self.store.overdue("beat", self.now, 100).shards[self.store.shard_of("tick")]
            self.taken += len(overdue)
            replies = self.store.take_many("beat", [(key, MARK) for key in overdue])
            self.publish([(k, r.turn) for k, r in zip(overdue, replies, strict=True) if isinstance(r, Taken)])
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
    """While nobody consumes one window is tried again; once somebody does all run soon, purged queue or not."""
    for _ in range(10 * 60):
        hours.minute()
    assert hours.windows == hours.open == 600
    assert hours.published <= hours.windows + 10, "one is tried again, at doubling steps"
    assert hours.taken <= hours.windows * 10 * 6 / 2 + 1200, "those that are put off ask every ten minutes"
    if purged:
        hours.queue.clear()
    minutes = 0
    while hours.open and minutes < 60:
        hours.minute(consume=100)
        minutes += 1
    assert not hours.open, "all have run"
    assert minutes <= 20, "each has asked again by then"
    assert hours.published <= 2 * hours.windows + 10
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
    hours.store.confirm_many([Confirmation(keys[1], claimed.turn, 0, START_TIMEOUT)])
    hours.go_on(15)
    assert all(isinstance(reply, Taken) for reply in hours.store.take_many("beat-2", [(key, MARK) for key in keys]))
    hours.go_on(15)  # beat-2 died, too
    again = hours.store.take_many("beat", [(key, MARK) for key in keys])
    assert all(isinstance(reply, Taken) for reply in again), again


def test_a_task_that_no_worker_knows_is_tried_for_one_window(hours: Hours) -> None:
    """Each copy is discarded at once; they don't grow with the windows that wait. Once a worker knows it all run."""
    hours.known = False
    for _ in range(60):
        hours.minute(consume=1000)
    assert hours.open == 60
    assert hours.published <= 2 * hours.windows + 10, "each minute a window's own, and one that is tried again"
    hours.known = True
    for _ in range(15):
        hours.minute(consume=1000)
    assert not hours.open, "all have run"
