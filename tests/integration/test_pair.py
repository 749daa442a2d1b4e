"""Any number of beats and workers side by side: each window once, whatever pool, broker or clock they have."""

from __future__ import annotations

import math

import pytest
from processes import wait_until
from system import SLOWLY, System


def test_three_workers_with_a_beat_in_each(system: System) -> None:
    """``worker -B`` on every worker is the same as many beats."""
    system.settings = SLOWLY
    workers = [system.worker(f"worker{n}", beat=True) for n in range(3)]
    for worker in workers:
        worker.wait_ready()
    system.wait_done(6)
    system.store.set_paused("tick", paused=True)
    wait_until(lambda: not system.account().open, "every window has its outcome", 60)
    system.check_each_once()
    assert system.account().refused == 0
    assert all(worker.alive for worker in workers)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
@pytest.mark.parametrize("broker", ["redis", pytest.param("rabbitmq", marks=pytest.mark.xdist_group("rabbitmq"))])
def test_each_pool_and_broker(system: System, request: pytest.FixtureRequest, broker: str, pool: str) -> None:
    """Each window once with every pool and either broker, also when a worker is killed."""
    if broker == "rabbitmq":
        system.broker_url = request.getfixturevalue("rabbit_url")
    beats, (first, _) = system.pair(pool=pool)
    for beat in beats:
        beat.wait_log("Sending due task")  # nothing is elected: both publish
    first.kill()
    system.wait_done(3)
    system.settle(beats)
    # A body that was killed at its last line may have come to its end.
    system.check_each_once(body_again=1)


@pytest.mark.parametrize("acks", ["early", "late"])
def test_a_worker_killed_while_it_executes(system: System, acks: str) -> None:
    """A window whose worker dies runs again, in time, whether its message was acknowledged early or late."""
    system.settings = {"task_acks_late": acks == "late"}
    system.kill_point = "worker.body:KILL"
    beats, _ = system.pair()
    start = system.killed_in()
    wait_until(lambda: system.recorded()[start] == 1, "the killed window is executed again", 60)
    again = system.ledger.read("start", start=start)
    assert [event["attempt"] for event in again] == [1, 2]
    assert again[1]["fence"] > again[0]["fence"]
    system.settle(beats)
    system.check_each_once()


def test_clocks_apart(system: System) -> None:
    """A beat whose clock is 7 s ahead and one 5 s behind run each window once, when the server's clock says so."""
    worker = system.worker(pool="solo").wait_ready()
    beats = [system.beat("ahead", faketime="+7s"), system.beat("behind", faketime="-5s")]
    system.wait_done(6)
    for beat, offset in zip(beats, (7, -5), strict=True):
        said = beat.wait_log(r"clock is ([\d.]+) s (ahead of|behind) the Redis server's")
        # A first round trip that took its time is part of what is said.
        assert math.isclose(float(said[1]), abs(offset), abs_tol=2)
        assert said[2] == ("ahead of" if offset > 0 else "behind")
    system.settle(beats)
    system.check_each_once()
    # Not one of them before its time, by the worker's clock, which is the server's.
    assert system.latest_early() <= 0
    assert worker.alive


@pytest.mark.long
def test_clocks_that_jump(system: System) -> None:
    """Clocks of beats and workers jump by an hour in both directions, as they run: each window once, none early."""
    worker = system.worker(pool="solo", faketime=0).wait_ready()
    beats = [system.beat(f"beat{n}", faketime=0) for n in (1, 2)]
    system.wait_done(2)
    for offset in (3600.0, -3600.0, 0.0):
        beats[0].set_clock_offset(offset)
        worker.set_clock_offset(-offset)
        system.wait_done(2)
        beats[1].set_clock_offset(offset)
        system.wait_done(2)
    beats[0].wait_log("clock is [0-9.]+ s ahead of the Redis server's")
    system.settle(beats)
    system.check_each_once()
    assert system.latest_early() <= 0


@pytest.mark.long
def test_workers_down_for_days(start_redis, system: System) -> None:
    """Windows that waited three days for a worker all run when there is one, each once."""
    server = system.use_store(start_redis(faketime=0))
    beat = system.beat(faketime=0)
    wait_until(lambda: system.waiting() >= 5, "five windows wait", 60)
    system.store.set_paused("tick", paused=True)
    beat.stop()
    waiting = len(system.account().open)
    for days in (0.5, 1.5, 3):
        # A day at a time, with a beat that lives: nobody consumes the queue, so it gets no copies.
        server.set_clock_offset(days * 86_400.0)
        beat = system.beat(faketime=days * 86_400.0)
        beat.wait_log("consumes its queue", 60)
        beat.stop()
        assert system.waiting() == waiting
    assert len(system.account().open) == waiting, "nothing was given up"
    worker = system.worker(pool="solo", faketime=3 * 86_400.0).wait_ready()
    wait_until(lambda: not system.account().open, "all have their outcome", 60)
    system.check_each_once()
    assert worker.alive


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
        "limit": {"task": task("ending"), "args": ["sleeps"], "every": 3.0, "options": {"time_limit": 1}},
        "late": {"task": task("work"), "every": 3.0, "options": {"countdown": 1, "expires": 0.1}},
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


def test_beats_that_name_an_entry_otherwise(system: System) -> None:
    """The one that loads last says so, and doctor: each runs an entry of its own."""
    said = "beats have other names for the same task and schedule: "
    named = [{f"apps.once_app.work('{value}')": {"task": "apps.once_app.work", "every": 3600.0}} for value in "ab"]
    first = system.beat("first", entries=named[0])
    wait_until(lambda: "is new" in first.log, "the first beat has loaded its entry", 60)
    second = system.beat("second", entries=named[1])
    wait_until(lambda: said in second.log, "the second one says that the first one has another name", 60)
    assert said in system.once("doctor", exit_code=1, env={"entries": named[0]})


@pytest.mark.long
def test_a_message_that_can_not_be_made_fails(system: System) -> None:
    """Each try counts as an attempt: after max_attempts the window has failed, and the next one is claimed."""
    system.entries = {
        name: {"task": "apps.once_app.work", "every": 5.0, "options": {name: value, "once": {"max_attempts": 2}}}
        for name, value in {"compression": "nope", "serializer": "nope", "args": [1]}.items()
    }
    beat = system.beat().wait_ready()
    wait_until(lambda: all(system.outcomes(name).get("failed") for name in system.entries), "one of each failed", 60)
    beat.stop()
    assert system.ledger.read("start") == []
