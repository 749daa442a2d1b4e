"""Messages: what a body sends of its own, what ends one before its body, what is put back or goes out several times."""

from __future__ import annotations

import json
from typing import Any

import pytest
from processes import wait_until
from system import System, once_soon

pytestmark = pytest.mark.long


NESTED = {"headers": {"headers": {"trace": "1"}}}


@pytest.mark.parametrize(
    ("task", "way", "scheduled", "retries", "outcome"),
    [
        ("send", "signature", False, 0, "done"),
        ("send", "copied", False, 0, "done"),
        ("send", "retry", True, 1, "done"),
        ("send", "by hand", True, 1, "done"),
        ("send", "new id", True, 1, "done"),
        ("careless", "retry", True, 1, "done"),
        ("send", "send_task", False, 1, "done"),
        ("sent", "retry", False, 1, "failed"),
    ],
)
def test_only_a_retry_that_is_given_the_window_keeps_it(system, task, way, scheduled, retries, outcome) -> None:
    """What else a body sends isn't a copy: it runs once, as a plain task, and isn't refused. Headers may be nested.

    A body that goes on after its retry doesn't hold the window any more.
    """
    system.app = "apps.sending_app"
    system.settings = {"once_beat_start_timeout": 2.0, "once_beat_recovery_interval": 0.5}
    options = NESTED if retries else {}
    system.entries = {"tick": {"task": f"apps.sending_app.{task}", "args": [way], "options": options, **once_soon()}}
    system.worker().wait_ready()
    beat = system.beat()
    wait_until(lambda: system.outcomes() == {outcome: 1}, f"the window is {outcome}", 60)
    wait_until(lambda: len(system.ledger.read("ran")) >= 2, "the message of the body has run", 60)
    beat.stop()
    ran = [(event["task"], event["scheduled"], event["retries"]) for event in system.ledger.read("ran")]
    assert ran == [(task, True, 0), (task, scheduled, retries)]
    assert not system.refused()
    assert [went_on["held"] for went_on in system.ledger.read("went on")] == [False] * (way == "by hand")


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
    wait_until(system.waiting, "the window is published", 60)
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
