"""Messages: what a body sends of its own, what ends one before its body, what is put back or goes out several times."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from processes import wait_until
from system import System, once_soon

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("way", "second", "scheduled"),
    [
        ("signature", "send", False),
        ("replace", "other", False),
        ("headers", "send", False),
        ("copied", "send", False),
        ("retry", "send", True),
    ],
)
def test_only_a_retry_keeps_the_window(system: System, way: str, second: str, scheduled: bool) -> None:
    """What a body sends beside its retry isn't a copy of its window: it runs, as a plain task."""
    system.app = "apps.sending_app"
    system.entries = {"tick": {"task": "apps.sending_app.send", "args": [way], **once_soon()}}
    system.worker().wait_ready()
    beat = system.beat()
    wait_until(lambda: len(system.ledger.read("ran")) == 2, "the message of the body has run", 60)
    first, then = system.ledger.read("ran")
    assert first["scheduled"]
    assert (then["task"], then["scheduled"]) == (second, scheduled)
    assert (then["retries"] == 1) == (way == "retry")
    wait_until(lambda: system.outcomes() == {"done": 1}, "the window is done", 60)
    beat.stop()
    assert not system.refused()


@pytest.mark.parametrize(
    ("task", "way", "scheduled", "outcome"),
    [
        ("send", "by hand", True, "done"),
        ("send", "new id", True, "done"),
        ("careless", "retry", True, "done"),
        ("send", "send_task", False, "done"),
        ("send", "later", False, "done"),
        ("sent", "retry", False, "failed"),
    ],
)
def test_a_message_has_the_window_if_it_is_given_it(system, task: str, way: str, scheduled: bool, outcome: str) -> None:
    """However a body sends its retry: it runs once, and is neither refused nor published again beside the window.

    A body that goes on after it doesn't hold the window any more. Another tool nests headers, as some tracers do.
    """
    nested = {"headers": {"headers": {"trace": "1"}}}
    system.app = "apps.sending_app"
    system.settings = {"once_beat_start_timeout": 2.0, "once_beat_recovery_interval": 0.5}
    system.entries = {"tick": {"task": f"apps.sending_app.{task}", "args": [way], "options": nested, **once_soon()}}
    system.worker().wait_ready()
    beat = system.beat()
    wait_until(lambda: system.outcomes() == {outcome: 1}, f"the window is {outcome}", 60)
    wait_until(lambda: len(system.ledger.read("ran")) >= 2, "the retry has run", 60)
    beat.stop()
    assert [(ran["retries"], ran["scheduled"]) for ran in system.ledger.read("ran")] == [(0, True), (1, scheduled)]
    assert not system.refused()
    assert [went_on["held"] for went_on in system.ledger.read("went on")] == [False] * (way == "by hand")


@pytest.mark.parametrize(
    ("task", "way", "outcome", "hooks", "bodies"),
    [
        ("hooked", "go", "done", 1, 1),
        ("hooked", "raise", "failed", 1, 0),
        ("hooked", "reject", "failed", 1, 0),
        ("hooked", "ignore", "done", 1, 0),
        ("hooked", "retry", "done", 2, 1),
        ("twice", "go", "done", 1, 1),  # a base is a task, too, and its hook is called by this one's
        ("twice", "raise", "failed", 1, 0),
    ],
)
def test_before_start_is_a_part_of_the_execution(system, task, way, outcome, hooks, bodies) -> None:
    """What it raises ends the window as what the body raises; it isn't called again, nor for a refused copy."""
    system.app = "apps.sending_app"
    system.entries = {"tick": {"task": f"apps.sending_app.{task}", "args": [way], **once_soon()}}
    beat = system.beat()
    wait_until(system.waiting, "the window is published", 60)
    system.copy_waiting()
    system.worker().wait_ready()
    wait_until(lambda: system.outcomes() == {outcome: 1} and not system.waiting(), f"the window is {outcome}", 60)
    wait_until(system.refused, "the copy is refused", 60)
    beat.stop()
    assert len(system.ledger.read("hook")) == hooks
    assert len(system.ledger.read("ran")) == bodies
    if way == "raise":
        assert "no database" in system.once("history", "tick")


def test_a_message_that_cant_be_read(system: System) -> None:
    """Celery discards it; its window has failed, and the history says why."""
    system.app = "apps.sending_app"
    system.settings = {"accept_content": ["json"]}
    options = {"serializer": "pickle"}
    system.entries = {"tick": {"task": "apps.sending_app.take", "args": [[1]], "options": options, **once_soon()}}
    system.worker().wait_ready()
    beat = system.beat()
    wait_until(lambda: system.outcomes() == {"failed": 1}, "the window is failed", 60)
    beat.stop()
    assert "pickle" in system.once("history", "tick")


def parts(message: bytes) -> dict[str, Any]:
    """What a message is made of, without what each delivery of it changes."""
    found: dict[str, Any] = json.loads(message)
    headers, properties = found["headers"], found["properties"]
    del properties["delivery_tag"]
    properties.pop("delivery_info")
    for name in ("eta", "once_put_back", "redelivered"):
        headers.pop(name, None)
    return found


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"serializer": "pickle"}, id="pickle"),
        pytest.param({"compression": "zlib", "headers": {"trace": "1"}}, id="compressed"),
        pytest.param({"expires": 3600, "priority": 2, "reply_to": "me"}, id="properties"),
        pytest.param({"serializer": "pickle", "compression": "zlib", "headers": {"old": 1}}, id="protocol 1"),
    ],
)
def test_a_message_is_put_back_as_it_came(system, start_redis, options: dict[str, Any]) -> None:
    """Its body, its serializer, its headers and properties, while Redis is away; then it is executed."""
    store = system.use_store(start_redis())
    system.check_law = False  # its store is gone by then
    system.app = "apps.sending_app"
    protocol = 1 if "old" in options.get("headers", {}) else 2
    system.settings = {
        "accept_content": ["json", "pickle"],
        "once_beat_start_timeout": 600.0,
        "task_protocol": protocol,
    }
    system.entries = {"tick": {"task": "apps.sending_app.take", "args": [[1, 2]], "options": options, **once_soon()}}
    beat = system.beat()
    wait_until(system.peek, "the window is published", 60)
    beat.stop()
    (came,) = system.queued()
    store.pause()
    worker = system.worker()
    wait_until(lambda: "messages are put back" in worker.log, "the message is put back", 60)
    worker.stop()
    (back,) = system.queued()
    assert json.loads(back)["headers"]["once_put_back"] >= 1
    found, given = parts(back), parts(came)
    same = ("body", "headers", "properties") if protocol == 2 else ("content-type",)  # its body says when it is due
    assert {name: found[name] for name in same} == {name: given[name] for name in same}
    assert found["headers"].get("compression") == given["headers"].get("compression")
    store.resume()
    system.worker("worker2")
    (took,) = wait_until(lambda: system.ledger.read("took"), "the body has run", 60)
    assert took["given"] == [1, 2]
    assert took["type"] == ("set" if options.get("serializer") == "pickle" else "list")


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
