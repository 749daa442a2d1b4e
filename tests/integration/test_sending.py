"""Messages that a body sends of its own, made from its request."""

from __future__ import annotations

import pytest
from processes import wait_until
from system import System, once_soon


@pytest.mark.parametrize(
    ("way", "second", "scheduled"),
    [
        ("signature", "send", False),
        ("replace", "other", False),
        ("headers", "send", False),
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
