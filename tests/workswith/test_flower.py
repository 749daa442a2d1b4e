"""Flower, the real one, beside a pair: what its HTTP API lists of windows."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import urlopen

import pytest
from observed import Observed
from processes import Proc, wait_until
from servers import free_port
from system import System

from celery_once_beat.windows import task_id


class Flower:
    """A process of it, and its HTTP API."""

    def __init__(self, system: System) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        words = ("flower", "--address=127.0.0.1", f"--port={port}")
        self.proc: Proc = system.celery(*words, name="flower", OBSERVED="", FLOWER_UNAUTHENTICATED_API="true")
        self.proc.wait_log("Connected to redis")
        with system.client() as client:
            wait_until(client.pubsub_numpat, "it hears the events", 60)

    def tasks(self) -> dict[str, Any]:
        """Id → what it knows of the task."""
        with urlopen(f"{self.url}/api/tasks", timeout=60) as reply:
            found: dict[str, Any] = json.load(reply)
        return found


@pytest.mark.parametrize("sent_events", [True, False])
@pytest.mark.long
def test_flower_lists_each_window_once(system: System, *, sent_events: bool) -> None:
    """As a success, under the id that anyone can compute; a copy that is refused changes nothing of that."""
    observed = Observed(system)
    system.settings["task_send_sent_event"] = sent_events
    observed.schedule()
    flower = Flower(system)
    copies = observed.deliver_again(observed.beats())
    observed.worker(extra_args=["-E"])
    entries = observed.settle(copies)
    wait_until(lambda: len(system.ledger.read("refused")) == copies, "the copies are refused", 60)
    expected = {task_id("once:", entry, system.account(entry).cursor) for entry in entries}
    assert len(expected) == copies

    def done() -> bool:
        return {task["state"] for task in flower.tasks().values()} == {"SUCCESS"} and len(flower.tasks()) >= copies

    wait_until(done, "all that Flower lists are successes", 60)
    tasks = flower.tasks()
    assert set(tasks) == expected
    assert {task["name"] for task in tasks.values()} == {"apps.once_app.work"}
    if sent_events:
        assert all(task["sent"] for task in tasks.values())
