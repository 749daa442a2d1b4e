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


def run(system: System, *, resume: bool = False) -> str:
    """Let a worker be killed or frozen in a window; returns that window, once all have their outcome."""
    beats, _ = system.pair()
    fired = system.wait_fired()
    begun = [event["start"] for event in system.ledger.read("start") if event["worker"].startswith(f"{fired.name}@")]
    start = begun[-1]
    wait_until(lambda: system.recorded()[start] == 1, "the window runs again, and is done", 60)
    if resume:
        fired.resume()
        wait_until(lambda: system.ledger.read("stale"), "it learns that it is stale", 60)
    system.settle(beats)
    for window in system.starts():
        wait_until(lambda: {by for by, _ in sent(system, window)} == set(SENT), f"all is sent for {window}", 60)  # noqa: B023
    return start


def test_a_worker_that_is_killed_before_they_are_sent(followed: System) -> None:
    """Its window runs again, and all comes once, from the second execution."""
    followed.kill_point = "worker.body_returned:KILL"
    start = run(followed)
    assert sent(followed, start) == dict.fromkeys([(by, 2) for by in SENT], 1)
    followed.check_each_once(body_again=1)


def test_a_worker_that_is_killed_when_they_are_sent(followed: System) -> None:
    """Its end isn't recorded yet: the window runs again, and all comes twice."""
    followed.kill_point = "worker.traced:KILL"
    start = run(followed)
    both = dict.fromkeys([(by, attempt) for by in SENT for attempt in (1, 2)], 1)
    wait_until(lambda: sent(followed, start) == both, "all of it has come", 60)
    followed.check_each_once(body_again=1)
