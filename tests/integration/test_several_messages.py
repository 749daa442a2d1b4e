"""Schedulers and tasks that send an entry's window by several messages, one for each tenant say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from processes import wait_until
from system import System, once_soon

TENANTS = {"acme", "globex", "initech"}


@pytest.mark.parametrize(
    ("way", "settings"),
    [
        pytest.param("apply_async", {}, id="apply-entry"),
        pytest.param("send", {}, id="apply-entry-without-apply-async"),
        pytest.param("task", {}, id="the-tasks-apply-async"),
        pytest.param("apply_async", {"task_protocol": 1}, id="protocol-1"),
    ],
)
@pytest.mark.long
def test_each_message_runs_once(system: System, way: str, settings: dict[str, Any]) -> None:
    """Each message of a publish runs once, with an id and a key of its own, also if the window is published twice."""
    system.app = "apps.tenants_app"
    system.entries = {"tick": {"task": "apps.tenants_app.report", **once_soon()}}
    system.settings = settings
    beat = system.beat(scheduler="apps.tenants_app:Scheduler", WAY=way)
    wait_until(lambda: system.waiting() == len(TENANTS), "the window is published", 60)
    system.copy_waiting()
    system.worker(env={"WAY": way}).wait_ready()
    wait_until(lambda: not system.waiting() and system.outcomes() == {"done": 1}, "all messages are taken", 60)
    beat.stop()
    wait_until(lambda: len(system.ledger.read("report")) >= len(TENANTS), "each tenant's message has run", 60)
    reports = system.ledger.read("report")
    assert Counter(report["tenant"] for report in reports) == dict.fromkeys(TENANTS, 1)
    assert all(report["scheduled"] for report in reports)
    assert len({report["id"] for report in reports}) == len({report["key"] for report in reports}) == len(TENANTS)
    assert {report["of"] for report in reports} == {"tick", "tick#2", "tick#3"}
    assert "entry_astray" not in beat.log
    assert beat.log.count("sends several messages") == 1
