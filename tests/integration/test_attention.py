"""What hangs, is stuck, is skipped or has lost its worker is seen: by status, by metrics, by doctor."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from processes import wait_until
from prometheus_client.parser import text_string_to_metric_families
from servers import RedisServer
from system import System, once_soon, rare

from celery_once_beat.status.judgements import LEAST_HUNG, STUCK_AFTER

pytestmark = pytest.mark.long

WORK = "apps.once_app.work"
#: Seconds by which the server's clock is moved: longer than what is judged takes, shorter than a third of the lease.
AHEAD = max(LEAST_HUNG, STUCK_AFTER).total_seconds() + 5
PATIENT = {"once_beat_lease": 300.0, "once_beat_start_timeout": 600.0}


def told(system: System, entry: str = "tick") -> dict[str, Any]:
    asked = system.celery("once", "status", "--json")
    assert asked.wait(120) in (0, 1), "1 where no beat lives"
    report = json.loads(asked.log)
    found = next(each for each in report["entries"] if each["entry"] == entry)
    return {**report, "entry": found, "attention": "; ".join(found["attention"])}


def metrics(system: System) -> dict[str, float]:
    families = text_string_to_metric_families(system.once("metrics"))
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_a_hang_is_seen(start_redis: Callable[..., RedisServer], system: System) -> None:
    """A body that renews its lease for ever is hung once it runs far longer than the entry's history."""
    server = start_redis(faketime=0)
    system.use_store(server.url())
    system.check_law = False
    system.settings = PATIENT
    system.entries = {"tick": {"task": WORK, "every": 1.0}}
    system.worker(concurrency=1).wait_ready()
    quick = system.beat("quick")
    system.wait_done(3)
    quick.stop()
    wait_until(lambda: not system.account().open, "all have ended", 60)
    system.entries = {"tick": {"task": WORK, "every": 1.0, "args": [600]}}
    slow = system.beat("slow")
    wait_until(lambda: told(system)["entry"]["running"], "one runs", 60)
    slow.stop()
    assert "running for" not in told(system)["attention"], "not yet"
    server.set_clock_offset(AHEAD)
    seen = wait_until(lambda: (found := told(system))["entry"]["hung"] and found, "it is hung", 60)
    assert "1 running for 1 min" in seen["attention"]
    assert "the longest before took 0." in seen["attention"]
    assert seen["entry"]["oldest_running"] > LEAST_HUNG.total_seconds()
    assert not seen["entry"]["silent"]
    said = metrics(system)
    assert said["celery_once_beat_hung_windows"] == 1
    assert said["celery_once_beat_oldest_running_window_age_seconds"] > LEAST_HUNG.total_seconds()
    assert said["celery_once_beat_workers"] == 1


def test_a_hang_without_a_history_is_seen(start_redis: Callable[..., RedisServer], system: System) -> None:
    """Nothing of the entry was ever done: its interval says by when a run should have ended, after an hour at least."""
    server = start_redis(faketime=0)
    system.use_store(server.url())
    system.check_law = False
    system.settings = {"once_beat_lease": 40_000.0}
    system.entries = {"tick": {"task": WORK, **rare(), "args": [600]}}
    system.worker(concurrency=1).wait_ready()
    beat = system.beat()
    wait_until(lambda: told(system)["entry"]["running"], "one runs", 60)
    beat.stop()
    server.set_clock_offset(3_500)
    wait_until(lambda: told(system)["entry"]["oldest_running"] > 3_500, "it runs for long", 60)
    assert not told(system)["entry"]["hung"], "not yet"
    server.set_clock_offset(3_700)
    seen = wait_until(lambda: (found := told(system))["entry"]["hung"] and found, "it is hung", 60)
    assert "1 running for 1 h 1 min on " in seen["attention"]
    assert "too few before are done to compare" in seen["attention"]


def test_what_no_worker_begins_is_stuck(start_redis: Callable[..., RedisServer], system: System) -> None:
    """A minute after its publish, long before it is overdue; doctor names the queue that nobody consumes."""
    server = start_redis(faketime=0)
    system.use_store(server.url())
    system.check_law = False
    system.settings = PATIENT
    system.entries = {"tick": {"task": WORK, **once_soon()}}
    system.beat()
    wait_until(lambda: told(system)["entry"]["open"], "one is published", 60)
    assert told(system)["attention"] == ""
    server.set_clock_offset(AHEAD)
    seen = wait_until(lambda: (found := told(system))["entry"]["stuck"] and found, "it is stuck", 60)
    assert f"nothing else of the queue '{system.queue}' either" in seen["attention"]
    assert not seen["entry"]["overdue"]
    said = metrics(system)
    assert said["celery_once_beat_stuck_windows"] == said["celery_once_beat_idle_queue_stuck_windows"] == 1
    assert said["celery_once_beat_oldest_open_window_age_seconds"] > STUCK_AFTER.total_seconds()
    assert f"warn  workers: no worker for the queue '{system.queue}'" in system.once("doctor", exit_code=1)
    system.worker(concurrency=1).wait_ready()
    seen = wait_until(lambda: (found := told(system))["workers"] and found, "a worker has begun it", 60)
    assert seen["attention"] == ""
    assert "no worker for the queue" not in system.once("doctor", exit_code=1)


def test_a_message_that_waits_for_its_countdown_isnt_stuck(
    start_redis: Callable[..., RedisServer], system: System
) -> None:
    """A countdown is no delay of a worker's."""
    server = start_redis(faketime=0)
    system.use_store(server.url())
    system.check_law = False
    system.settings = PATIENT
    system.entries = {"tick": {"task": WORK, **once_soon(), "options": {"countdown": 300}}}
    system.beat()
    wait_until(lambda: told(system)["entry"]["open"], "one is published", 60)
    server.set_clock_offset(AHEAD)
    wait_until(lambda: told(system)["entry"]["oldest_open"] > STUCK_AFTER.total_seconds(), "it is old", 60)
    assert told(system)["attention"] == ""


def test_skipped_ones_in_a_row_are_seen(system: System) -> None:
    """A window that runs on and on lets each newer one be skipped: three in a row need attention."""
    system.check_law = False
    system.settings = PATIENT
    system.task = {"once_overlap": "skip"}
    system.entries = {"tick": {"task": WORK, "every": 1.0, "args": [600]}}
    system.worker(concurrency=2).wait_ready()
    system.beat()
    seen = wait_until(lambda: (found := told(system))["entry"]["skipped"] and found, "three are skipped", 60)
    assert f"the last {seen['entry']['skipped']} windows are skipped" in seen["attention"]
    assert seen["entry"]["skipped"] >= 3
    assert metrics(system)["celery_once_beat_skipped_in_a_row"] >= 3


def test_a_killed_workers_window(system: System) -> None:
    """It reads as running and not heard of, until its lease is over and a beat publishes it again."""
    system.check_law = False
    system.settings = {"once_beat_lease": 15.0}
    system.kill_point = "worker.body:KILL"
    system.entries = {"tick": {"task": WORK, **once_soon()}}
    worker = system.worker(concurrency=1)
    worker.wait_ready()
    system.beat()
    system.wait_fired()
    seen = wait_until(lambda: (found := told(system))["entry"]["silent"] and found, "nobody hears of it", 60)
    assert "1 running, not heard of for " in seen["attention"]
    assert "on worker@" in seen["attention"] or "on celery@" in seen["attention"]
    table = system.once("status")
    assert "RUNNING" in table
    assert "not heard of for" in table
    wait_until(
        lambda: "overdue" in told(system)["attention"] or not told(system)["entry"]["running"], "then overdue", 60
    )


def test_a_lease_that_beats_dont_know(system: System) -> None:
    """Their app has the task's name alone, and the task a shorter lease: its worker isn't taken for silent."""
    system.check_law = False
    system.settings = {"once_beat_lease": 60.0}
    system.entries = {
        "far": {"task": "apps.once_app.newer", **rare(), "args": [600], "options": {"once": {"tracked": True}}}
    }
    system.task = {"once_lease": 3.0}
    worker = system.worker(concurrency=1, env={"NEWER": "1"})
    worker.wait_ready()
    beat = system.beat()
    wait_until(lambda: told(system, "far")["entry"]["running"], "it runs", 60)
    seen = told(system, "far")
    assert (seen["entry"]["silent"], seen["attention"]) == (0, "")
    worker.kill()
    beat.kill()  # it would publish the window again, and that is then no longer overdue
    wait_until(lambda: "overdue" in told(system, "far")["attention"], "its lease has ended", 60)


def test_a_task_that_workers_dont_know(system: System) -> None:
    """Beats were deployed first: status and doctor name the worker and the task at once."""
    system.check_law = False
    system.settings = {"once_beat_start_timeout": 600.0}
    system.entries = {"new": {"task": "apps.once_app.newer", **once_soon()}}
    system.worker(concurrency=1).wait_ready()
    system.beat(NEWER="1")
    seen = wait_until(
        lambda: (found := told(system, "new"))["attention"] and "know" in found["attention"] and found, "it is told", 60
    )
    assert "doesn't know the task 'apps.once_app.newer': deploy workers first" in seen["attention"]
    assert "doesn't know the task 'apps.once_app.newer'" in system.once("doctor", exit_code=1)
    system.worker("knows", concurrency=1, env={"NEWER": "1"}).wait_ready()
    wait_until(lambda: system.outcomes("new").get("done"), "another worker has run it", 60)
    assert told(system, "new")["attention"] == ""


def test_a_task_that_nobody_knows(system: System) -> None:
    """Its name is misspelt, so beat takes it for untracked: that workers discard each window is told all the same."""
    system.check_law = False
    system.entries = {"typo": {"task": "apps.once_app.wrok", **rare()}}
    system.worker(concurrency=1).wait_ready()
    beat = system.beat()
    said = "doesn't know the task 'apps.once_app.wrok': deploy workers first"
    wait_until(lambda: said in told(system, "typo")["attention"], "it is told", 60)
    assert "doesn't know the task 'apps.once_app.wrok'" in system.once("doctor", exit_code=1)
    beat.stop()
    system.entries = {"typo": {"task": WORK, **rare()}}
    system.beat("mended")
    wait_until(lambda: system.outcomes("typo").get("done"), "it runs once the name is right", 60)
    assert told(system, "typo")["attention"] == ""


def test_workers_are_known(system: System) -> None:
    """Those that begin windows are named, with what they run: also by who wasn't there when they began."""
    system.check_law = False
    # Two at one instant: of messages that come one by one the broker may give each to the same worker.
    system.entries = {name: {"task": WORK, "every": 1.0} for name in ("tick", "tock")}
    _, workers = system.pair()
    wait_until(lambda: len(told(system)["workers"]) == 2, "both have begun some", 60)
    names = {each["worker"].partition("@")[0] for each in told(system)["workers"]}
    assert names == {worker.name for worker in workers}
    table = system.once("status")
    assert "WORKER" in table
    assert metrics(system)["celery_once_beat_workers"] == 2
