"""What is wrong, or only seems so, by status and doctor; tests/board/test_alerts.py has what metrics tell too."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable

import pytest
from processes import wait_until
from prometheus_client.parser import text_string_to_metric_families
from servers import RedisServer
from system import System, once_soon, rare

from celery_once_beat.status.judgements import LEAST_HUNG, STUCK_AFTER
from celery_once_beat.store.keys import shard_of

pytestmark = pytest.mark.long

WORK = "apps.once_app.work"
#: Seconds by which the server's clock is moved: longer than what is judged takes, shorter than a third of the lease.
AHEAD = max(LEAST_HUNG, STUCK_AFTER).total_seconds() + 5
PATIENT = {"once_beat_lease": 300.0, "once_beat_start_timeout": 600.0}


@pytest.fixture(autouse=True)
def no_law(system: System) -> None:
    system.check_law = False


@pytest.fixture
def server(start_redis: Callable[..., RedisServer], system: System) -> RedisServer:
    """The system's Redis, whose clock is moved; whatever stands is left alone for long."""
    server = system.use_store(start_redis(faketime=0))
    system.settings = PATIENT
    return server


def metrics(system: System) -> dict[str, float]:
    families = text_string_to_metric_families(system.once("metrics"))
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_a_hang_without_a_history_is_seen(server: RedisServer, system: System) -> None:
    """Nothing of the entry was ever done: its interval says by when a run should have ended, after an hour at least."""
    system.settings = {"once_beat_lease": 40_000.0}
    system.entries = {"tick": {"task": WORK, **rare(), "args": [600]}}
    system.worker(concurrency=1).wait_ready()
    beat = system.beat()
    wait_until(lambda: system.status()["entry"]["running"], "one runs", 60)
    beat.stop()
    server.set_clock_offset(3_500)
    wait_until(lambda: system.status()["entry"]["oldest_running"] > 3_500, "it runs for long", 60)
    assert not system.status()["entry"]["hung"], "not yet"
    server.set_clock_offset(3_700)
    seen = wait_until(lambda: (found := system.status())["entry"]["hung"] and found, "it is hung", 60)
    assert "1 running for 1 h 1 min on " in seen["attention"]
    assert "too few before are done to compare" in seen["attention"]


def test_a_message_that_waits_for_its_countdown_isnt_stuck(server: RedisServer, system: System) -> None:
    """A countdown is no delay of a worker's."""
    system.entries = {"tick": {"task": WORK, **once_soon(), "options": {"countdown": 300}}}
    system.beat()
    wait_until(lambda: system.status()["entry"]["open"], "one is published", 60)
    server.set_clock_offset(AHEAD)
    wait_until(lambda: system.status()["entry"]["oldest_open"] > STUCK_AFTER.total_seconds(), "it is old", 60)
    assert system.status()["attention"] == ""


def test_a_task_that_workers_dont_know(system: System) -> None:
    """Beats were deployed first: status and doctor name the worker and the task at once."""
    system.settings = {"once_beat_start_timeout": 600.0}
    system.entries = {"new": {"task": "apps.once_app.newer", **once_soon()}}
    system.worker(concurrency=1).wait_ready()
    system.beat(NEWER="1")
    seen = wait_until(
        lambda: (found := system.status("new"))["attention"] and "know" in found["attention"] and found,
        "it is told",
        60,
    )
    assert "doesn't know the task 'apps.once_app.newer': deploy workers first" in seen["attention"]
    assert "doesn't know the task 'apps.once_app.newer'" in system.once("doctor", exit_code=1)
    system.worker("knows", concurrency=1, env={"NEWER": "1"}).wait_ready()
    wait_until(lambda: system.outcomes("new").get("done"), "another worker has run it", 60)
    assert system.status("new")["attention"] == ""


def test_workers_are_known(system: System) -> None:
    """Those that know windows are named, with what they run and consume: also by who wasn't there when they began."""
    system.entries = {"tick": {"task": WORK, "every": 1.0}}
    _, workers = system.pair()
    wait_until(lambda: len(system.status()["workers"]) == 2, "both have said that they live", 60)
    assert [each["queues"] for each in system.status()["workers"]] == [[system.queue]] * 2
    names = {each["worker"].partition("@")[0] for each in system.status()["workers"]}
    assert names == {worker.name for worker in workers}
    table = system.once("status")
    assert "WORKER" in table
    assert metrics(system)["celery_once_beat_workers"] == 2
    workers[0].stop()
    (left,) = wait_until(lambda: len(found := system.status()["workers"]) == 1 and found, "one has left", 60)
    assert left["worker"].partition("@")[0] == workers[1].name


def test_a_worker_that_is_frozen(system: System) -> None:
    """Its pool, then all of it: status says first that it hangs, and doctor; and who has the window's message."""
    system.settings = {"once_beat_start_timeout": 600.0}
    system.entries = {"tick": {"task": WORK, **once_soon()}}
    worker = system.worker(pool="prefork").wait_ready()
    for pid in worker.children():
        os.kill(pid, signal.SIGSTOP)
    system.beat().wait_ready()
    seen = wait_until(lambda: (found := system.status())["troubles"] and found, "its pool hangs", 150)
    (trouble,), name = seen["troubles"], seen["workers"][0]["worker"]
    assert trouble["reason"] == "worker hangs"
    assert re.match(rf"worker {name} begins nothing, .* 1 window reserved, .*; it executes nothing$", trouble["words"])
    assert f"; reserved by {name}, which executes nothing" in seen["attention"]
    (window,) = json.loads(system.once("history", "tick", "--json"))["windows"]
    assert (window["state"], window["reserved_by"]) == ("published", name)
    worker.signal(signal.SIGSTOP)
    wait_until(lambda: "hasn't reported since" in str(system.status()["troubles"]), "it is silent", 60)
    doctor = system.once("doctor", exit_code=1)
    assert f"warn  worker hangs: worker {name} hasn't reported since " in doctor
    assert re.search(r"things to set; 1 entry needs attention: see status\.$", doctor)
    worker.kill()


def test_a_queue_that_was_purged(server: RedisServer, system: System) -> None:
    """The broker has no message of windows that wait in a queue with a worker: doctor says what to type."""
    system.entries = {"tick": {"task": WORK, **once_soon()}}
    beat = system.beat()
    wait_until(system.waiting, "one is published", 60)
    beat.stop()
    system.purge()
    system.worker().wait_ready()
    server.set_clock_offset(AHEAD)
    wait_until(lambda: system.status()["entry"]["stuck"], "it is stuck, and the worker has reported since", 60)
    doctor = system.once("doctor", exit_code=1)
    assert f"it has 0 messages, the broker says\n      → celery once republish --queue {system.queue}\n" in doctor


def test_an_entry_that_cant_be_loaded_stops_no_other(start_redis: Callable[..., RedisServer], system: System) -> None:
    """A beat that starts while Redis is full claims what Redis knows; status and doctor say before that it fills up."""
    system.use_store(start_redis(args=("--maxmemory-policy", "noeviction")))
    system.entries = {"tick": {"task": WORK, "every": 1.0}}
    beat = system.beat().wait_ready()
    wait_until(lambda: system.store.account("tick"), "it is loaded", 60)
    with system.client() as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", int(used * 1.1))
        assert re.search(r"^memory: Redis has used \d+% of its maxmemory", system.once("status"), re.MULTILINE)
        assert "warn  memory: Redis has used " in system.once("doctor", exit_code=1)
        client.config_set("maxmemory", used // 2)
        beat.stop()
        assert "no beat is heard of, and Redis is full: it may refuse" in system.once("status", exit_code=1)
        system.entries["new"] = {"task": WORK, "every": 1.0}
        system.beat("second").wait_ready()
        before = system.account("tick").cursor
        wait_until(lambda: (system.account("tick").cursor - before).total_seconds() > 20, "it claims", 40)
        assert system.store.account("new") is None
        client.config_set("maxmemory", 0)
    wait_until(lambda: system.store.account("new"), "it is loaded when there is room", 60)


def test_foreign_numbers(system: System) -> None:
    """Scores that are no times, counters of 40 digits, a foreign order: readers name each, and show all else."""
    system.entries = {name: {"task": WORK, "every": 1.0} for name in ("good", "scored", "counted")}
    worker = system.worker().wait_ready()
    beat = system.beat().wait_ready()
    for name in system.entries:
        system.wait_done(1, name)
    beat.stop()
    worker.stop()
    member = "scored@2026-01-01T00:00:00.000000Z"
    with system.client() as client:
        client.zadd(f"once:{{{shard_of('scored')}}}:open", {member: "-inf"})
        client.zadd("once:{7}:open", {"gone@2026-01-01T00:00:00.000000Z": "-inf"})
        client.zadd("once:workers", {"w b q": "inf"})
        client.hset(f"once:{{{shard_of('counted')}}}:entry:counted", "c:done", "9" * 40)
        client.zadd("once:orders", {"foreign": "inf"})
        for key in ("once:{7}:open", "once:workers", "once:orders"):
            client.expire(key, 600)
    system.once("pause", "good", "--note", "why")
    text = system.once("status", "--json", exit_code=1)
    assert text.startswith("{"), text
    found = json.loads(text)
    entries = {entry["entry"]: entry for entry in found["entries"]}
    assert "-inf" in " ".join(entries["scored"]["attention"])
    assert "9999" in " ".join(entries["counted"]["attention"])
    assert entries["good"]["outcomes"]["done"] >= 1
    assert "found" not in " ".join(entries["good"]["attention"])
    assert [text for text in found["unreadable"] if "'w b q'" in text and "inf" in text]
    assert [text for text in found["unreadable"] if "gone@2026" in text]
    shown = system.once("status", exit_code=1)
    assert shown.count("Unreadable: ") == 2
    doctor = system.once("doctor", exit_code=1)
    assert "keys: unreadable: " in doctor
    assert "scored" in doctor
    assert 'celery_once_beat_windows_total{entry="good",outcome="done"}' in system.once("metrics")
    orders = [order["what"] for order in json.loads(system.once("orders", "--json"))]
    assert orders == ["unreadable", "pause"]
    wait_until(lambda: system.store.snapshot().beats == (), "the beat has left", 30)
    with system.client() as client:
        client.zrem(f"once:{{{shard_of('scored')}}}:open", member)
