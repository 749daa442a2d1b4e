"""Messages that a body sends of its own, made from its request."""

from __future__ import annotations

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
