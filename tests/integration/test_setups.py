"""Odd set-ups that Celery allows: each window still has its one outcome, or beat says at its start what can't be."""

from __future__ import annotations

import pytest
from processes import wait_until
from system import System

RARE = 3.0


@pytest.mark.long
def test_an_old_protocol_odd_messages_and_twins(system: System) -> None:
    """Message protocol 1 (no headers of Celery's own), YAML, compression, priorities, two workers of one name."""
    system.settings = {
        "task_protocol": 1,
        "accept_content": ["json", "yaml"],
        "task_compression": "gzip",
        "task_inherit_parent_priority": True,
        "broker_transport_options": {"priority_steps": [0, 3, 6, 9], "queue_order_strategy": "priority"},
        "once_beat_lease": 5.0,
        "once_beat_start_timeout": 60.0,
    }
    task = "apps.once_app.{}".format
    system.entries = {
        "tick": {"task": task("work"), "every": 1.0, "options": {"priority": 9, "shadow": "other", "task_id": "mine"}},
        "yaml": {"task": task("retrying"), "every": 1.0, "options": {"serializer": "yaml", "priority": 3}},
        "limit": {"task": task("ending"), "args": ["sleeps"], "every": RARE, "options": {"time_limit": 1}},
        "late": {"task": task("work"), "every": RARE, "options": {"countdown": 1, "expires": 0.1}},
    }
    for _ in range(2):
        system.worker(concurrency=2)
    for worker in system.procs:
        worker.wait_ready()
    beat = system.beat()
    system.wait_done(3)
    system.wait_done(1, "yaml")
    system.settle([beat], *system.entries)
    system.check_each_once()
    system.check_each_once("yaml")
    assert set(system.outcomes("limit")) == {"failed"}
    assert set(system.outcomes("late")) == {"expired"}


def test_a_broker_that_no_worker_shares(system: System) -> None:
    """memory:// is one process's own: a beat says so at its start, for its windows will wait for ever."""
    system.broker_url = "memory://"
    system.check_law = False
    beat = system.beat()
    beat.wait_log("once: .*memory:// never leaves its process: only a worker in that of the beat gets a window")
    beat.stop()


@pytest.mark.long
def test_records_and_hashes_of_a_company(system: System) -> None:
    """Log records carry the names of our fields, and Python has the hashes of FIPS mode alone: all windows are done."""
    system.app = "apps.company_app"
    beats, workers = system.pair()
    system.wait_done(3)
    system.settle(beats)
    system.check_each_once()
    for process in (*beats, *workers):
        assert "a tick failed" not in process.log
        assert "Attempt to overwrite" not in process.log


def test_beats_that_name_an_entry_otherwise(system: System) -> None:
    """The one that loads last says so, and doctor: each runs an entry of its own."""
    said = "beats have other names for the same task and schedule: "
    named = [{f"apps.once_app.work('{value}')": {"task": "apps.once_app.work", "every": 3600.0}} for value in "ab"]
    first = system.beat("first", entries=named[0])
    wait_until(lambda: "is new" in first.log, "the first beat has loaded its entry", 60)
    second = system.beat("second", entries=named[1])
    wait_until(lambda: said in second.log, "the second one says that the first one has another name", 60)
    assert said in system.once("doctor", exit_code=1, env={"entries": named[0]})
