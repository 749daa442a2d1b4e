"""What Celery sends when a scheduled task has succeeded comes for each window, whenever the task's process dies."""

from __future__ import annotations

from collections import Counter

import pytest
from processes import wait_until
from system import System

pytestmark = pytest.mark.long


def follower(by: str, queue: str) -> dict[str, object]:
    """A signature of the task that notes who sent it."""
    return {"task": "drain.follows", "args": [], "kwargs": {"by": by}, "options": {"queue": queue}}


SENT = ("link", "chain", "on_success")


@pytest.fixture
def followed(system: System) -> System:
    system.app = "apps.drain_app"
    system.settings = {"once_beat_lease": 4.0, "task_serializer": "json"}
    system.result_url = system.store_url
    queue = f"{system.queue}-follows"  # of a worker that isn't killed with a message in its hands
    options = {"link": follower("link", queue), "chain": [follower("chain", queue)]}
    system.entries = {"tick": {"task": "drain.followed", "every": 1.0, "options": options}}
    system.worker("follower", extra_args=["-Q", queue]).wait_ready()
    return system


def sent(system: System, start: str) -> Counter[tuple[str, int]]:
    """What was sent for a window: by what, and by which attempt."""
    return Counter((event["by"], event["attempt"]) for event in system.ledger.read("follows", start=start))


@pytest.mark.parametrize(("point", "attempts"), [("body_returned", (2,)), ("traced", (1, 2))])
def test_a_worker_that_is_killed_around_callbacks(followed: System, point: str, attempts: tuple[int, ...]) -> None:
    """Its window runs again, and all comes from that run; sent before the end is recorded, all comes twice."""
    followed.kill_point = f"worker.{point}:KILL"
    beats, _ = followed.pair()
    start = followed.killed_in()
    wait_until(lambda: followed.recorded()[start] == 1, "the window runs again, and is done", 60)
    followed.settle(beats)
    expected = dict.fromkeys([(by, attempt) for by in SENT for attempt in attempts], 1)
    for window in followed.starts():
        every = expected if window == start else dict.fromkeys([(by, 1) for by in SENT], 1)
        wait_until(lambda: sent(followed, window) == every, f"all is sent for {window}", 60)  # noqa: B023
    followed.check_each_once(body_again=1)
