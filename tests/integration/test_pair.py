"""Any number of beats and workers side by side: each window once, whatever pool, broker or clock they have."""

from __future__ import annotations

import math

import pytest
from processes import wait_until
from system import SLOWLY, System


def test_two_beats_and_two_workers(system: System) -> None:
    """Over thirty windows two healthy beats and two workers execute each once, and refuse nothing."""
    system.entries = {f"tick{n}": {"task": "apps.once_app.work", "every": 1.0} for n in range(3)}
    system.settings = SLOWLY
    beats, _ = system.pair()
    for beat in beats:
        beat.wait_log("Sending due task")  # nothing is elected: both publish
    before = len(system.ledger.read("recorded"))
    wait_until(lambda: len(system.ledger.read("recorded")) >= before + 30, "thirty windows are done", 60)
    system.settle([], *system.entries)
    for entry in system.entries:
        system.check_each_once(entry)
        assert system.account(entry).refused == 0


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
    assert all(worker.alive for worker in workers)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
@pytest.mark.parametrize("broker", ["redis", pytest.param("rabbitmq", marks=pytest.mark.xdist_group("rabbitmq"))])
def test_each_pool_and_broker(system: System, request: pytest.FixtureRequest, broker: str, pool: str) -> None:
    """Each window once with every pool and either broker, also when a worker is killed."""
    if broker == "rabbitmq":
        system.broker_url = request.getfixturevalue("rabbit_url")
    beats, (first, _) = system.pair(pool=pool)
    system.wait_done(2)
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
    for event in system.ledger.read("start"):
        assert event["at"] >= _timestamp(event["start"])
    assert worker.alive


def _timestamp(text: str) -> float:
    from celery_once_beat.windows import parse_instant

    return parse_instant(text).timestamp()
