"""What ends a window's message before its body is called."""

from __future__ import annotations

import pytest
from processes import wait_until
from system import System, once_soon

pytestmark = pytest.mark.long


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
