"""A message that can't be executed now is put back as it came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from processes import wait_until
from system import once_soon


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
@pytest.mark.long
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
    same = (
        ("body", "headers", "properties") if protocol == 2 else ("content-type",)
    )  # else its body says when it is due
    assert {name: found[name] for name in same} == {name: given[name] for name in same}
    assert found["headers"].get("compression") == given["headers"].get("compression")
    store.resume()
    system.worker("worker2")
    (took,) = wait_until(lambda: system.ledger.read("took"), "the body has run", 60)
    assert took["given"] == [1, 2]
    assert took["type"] == ("set" if options.get("serializer") == "pickle" else "list")
