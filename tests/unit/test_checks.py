"""What a server's INFO, leases and names come to: ``ok``, to be known, or to be mended."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from kombu import Queue
from kombu.common import Broadcast

from celery_once_beat.beat.broker import broadcast_entries
from celery_once_beat.rules import checks
from celery_once_beat.rules.checks import delivery_findings, lease_findings, node_findings, server_findings
from celery_once_beat.settings import Settings

WELL = {
    "redis_version": "7.0",
    "maxmemory_policy": "noeviction",
    "maxmemory": 0,
    "aof_enabled": 1,
    "connected_slaves": 0,
}


def verdicts(info: dict[str, Any], **settings: Any) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in server_findings(info, Settings(**settings))}


@pytest.mark.parametrize(
    ("info", "settings", "check", "verdict"),
    [
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": 1000}, {}, "eviction", "warn"),
        ({"maxmemory_policy": "allkeys-lru"}, {}, "eviction", "note"),
        ({"aof_enabled": 0}, {}, "persistence", "warn"),
        ({"aof_enabled": "1"}, {}, "persistence", "ok"),
        ({"redis_version": "5.0.14"}, {}, "server", "warn"),
        ({"connected_slaves": 1}, {}, "replicas", "note"),
        ({"connected_slaves": 1}, {"wait_replicas": 1}, "replicas", "ok"),
        ({"connected_slaves": 1}, {"wait_replicas": 2}, "replicas", "warn"),
    ],
)
def test_what_a_server_says(info: dict[str, Any], settings: dict[str, Any], check: str, verdict: str) -> None:
    """Each by itself; the others stay as they are. What is to be done is said where something is."""
    found = verdicts({**WELL, **info}, **settings)
    assert found.pop(check) == verdict
    assert set(found.values()) == {"ok"}
    if verdict != "ok":
        assert all(f.advice for f in server_findings({**WELL, **info}, Settings(**settings)) if f.check == check)


@pytest.mark.parametrize(("evicted", "said"), [(0, ""), (1234, ", 1,234 keys evicted so far")])
def test_what_was_evicted_is_said(evicted: int, said: str) -> None:
    """Where none was, nothing is said of it."""
    info = {**WELL, "maxmemory_policy": "allkeys-lru", "maxmemory": 5000, "evicted_keys": evicted}
    (found,) = [finding.found for finding in server_findings(info, Settings()) if finding.check == "eviction"]
    assert found == f"maxmemory-policy is allkeys-lru with a maxmemory of 5,000 bytes{said}"


def test_a_server_that_says_nothing() -> None:
    """Some services answer INFO with a part: what isn't known isn't taken for good."""
    assert verdicts({})["persistence"] == "warn"
    assert verdicts({"redis_version": "7.0"})["eviction"] == "note"
    assert "maxmemory-policy is ?, and no maxmemory" in [finding.found for finding in server_findings({}, Settings())]


@pytest.mark.parametrize(
    ("transport", "options", "leases", "verdict"),
    [
        ("redis", {}, [("a", 30.0)], "ok"),
        ("redis", {}, [("a", 30.0), ("b", 3600.0)], "warn"),
        ("redis", {"visibility_timeout": 20}, [("a", 30.0)], "warn"),
        ("sqs", {}, [("a", 1800.0)], "warn"),
        ("amqp", {}, [("a", 1e6)], "ok"),
    ],
)
def test_leases_and_the_visibility_timeout(
    transport: str, options: dict[str, Any], leases: list[tuple[str, float]], verdict: str
) -> None:
    """A lease has to be shorter; brokers that have no such timeout don't care."""
    (finding,) = lease_findings(transport, options, leases)
    assert finding.verdict == verdict


def test_clocks() -> None:
    """Only what is wrong is named."""
    (finding,) = checks.clock_findings([("one", 0.1), ("two", -3.0)])
    assert (finding.verdict, finding.found) == ("warn", "from the server's: two -3.0 s")
    (finding,) = checks.clock_findings([("one", 0.1), ("two", -1.9)])
    assert finding.verdict == "ok"


NOW = datetime(2026, 11, 26, 12, tzinfo=timezone.utc)
HOST = "web-7f9c"


@pytest.mark.parametrize(
    ("call", "value"),
    [
        ("<object object at 0x7f12>", "an address"),
        ("since='2026-11-26T11:59:01'", "a time"),
        ("datetime.datetime(2026, 11, 26, 11, 59, tzinfo=datetime.timezone.utc)", "a time"),
        ("1795692000.25", "a time"),
        ("'web-7f9c'", "a host's name"),
        ("'0b3e5f0e-6cf5-4b57-9f49-6bb4f0c1f7a1'", "a UUID"),
        ("'0b3e5f0e6cf54b579f496bb4f0c1f7a1'", "a UUID"),
        ("ids={'b', 'a'}", "a set"),
        ("5, 7, 'a'", ""),
        ("since='2020-01-01T00:00:00+00:00'", ""),
        ("{'a': 1, 'b': 2}, {5}", ""),
        ("'web-7f9cd'", ""),
        ("1234567890", ""),
    ],
)
def test_a_name_with_a_value_of_the_moment(call: str, value: str) -> None:
    """It is another one in each process, if Celery has made it; a name that somebody chose is none of our business."""
    found = list(checks.moment_findings([(f"proj.add({call})", "proj.add")], NOW, HOST))
    assert [f"({value})" in finding.found for finding in found] == [True] * bool(value)
    assert {finding.verdict for finding in found} <= {"warn"}
    assert not list(checks.moment_findings([(f"nightly {call}", "proj.add")], NOW, HOST)) or value == "an address"


@pytest.mark.parametrize(
    ("named", "wrong"),
    [
        ([("t(1)", "f", "a"), ("t(2)", "f", "b")], True),
        ([("t(1)", "f~x", "a"), ("t(2)", "f~y", "b")], True),
        ([("t(1)", "f", "ab"), ("t(2)", "f", "ab")], False),
        ([("t(1)", "f", "a"), ("t(2)", "g", "b")], False),
        ([("t(1)", "f", "a"), ("t(2)", "f", "")], False),
    ],
)
def test_beats_that_name_the_same_otherwise(named: list[tuple[str, str, str]], wrong: bool) -> None:
    """Two names of one task and schedule, each of which only one of the beats has."""
    found = list(checks.alias_findings((name, known, frozenset(beats)) for name, known, beats in named))
    assert [finding.check for finding in found] == ["names"] * wrong


def test_beats_that_know_other_rules_of_zones() -> None:
    """Where fingerprints differ by what follows ~ alone; another definition is no trouble of the zones."""
    others = [("b", {"one": "f~x", "two": "g~y"}), ("c", {"one": "f", "three": "f"})]
    assert not list(checks.zone_findings(others))
    (finding,) = checks.zone_findings([("a", {"two": "f~y", "one": "f~x"}), *others])
    assert (finding.check, finding.verdict) == ("time zones", "warn")
    assert finding.found == "beats know other rules of the zones of 'a': one, two"
    assert "the same tzdata" in finding.advice


def test_the_clocks_of_servers_that_may_follow_each_other() -> None:
    """One alone differs from nothing; where nobody waits for replicas, fences are spoken of too."""
    assert not list(node_findings({"master": 5.0}, Settings()))
    (finding,) = node_findings({"master": 100.0, "replica": 101.5}, Settings())
    assert finding.verdict == "ok"
    (finding,) = node_findings({"master": 0.0, "replica a:1": -3.0}, Settings())
    assert (finding.verdict, finding.found) == ("warn", "3.0 s apart: master +3.0 s, replica a:1 +0.0 s")
    assert "fence" in finding.advice
    (finding,) = node_findings({"master": 0.0, "replica a:1": -3.0}, Settings(wait_replicas=1))
    assert "fence" not in finding.advice


def test_who_gets_a_message() -> None:
    """A broker that no other process reaches, and messages of which each worker gets one, are named."""
    assert not list(delivery_findings("amqp", []))
    (finding,) = delivery_findings("memory", [])
    assert finding.verdict == "warn"
    (finding,) = delivery_findings("redis", ["a", "b"])
    assert (finding.check, finding.verdict, finding.found[-8:]) == ("broadcast", "warn", "'a', 'b'")
    assert finding.advice.startswith("base=celery.Task ")


def test_which_entries_every_worker_gets() -> None:
    """By their own queue or a route; a router that raises is no trouble here."""
    app = Celery(set_as_current=False)
    app.conf.task_queues = [Queue("one"), Broadcast("all")]
    app.conf.task_default_queue = "one"
    app.conf.task_routes = {"routed": {"queue": "all"}, "nowhere": {"queue": "not there"}}
    app.conf.task_create_missing_queues = False
    entries = [
        ScheduleEntry(name=task, task=task, schedule=1.0, options=options, app=app)
        for task, options in (("plain", {}), ("by option", {"queue": "all"}), ("routed", {}), ("nowhere", {}))
    ]
    assert list(broadcast_entries(app, entries)) == ["by option", "routed"]
