"""``window.key``: what an HTTP call or a mail is told, so that the other side does it once."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime, timezone

from celery import Celery

from celery_once_beat import OnceTask, Window
from celery_once_beat.features.effects.task import Effects
from celery_once_beat.settings import Settings
from celery_once_beat.testing import executing, window
from celery_once_beat.windows import task_id

START = "2026-11-21T02:00Z"


def test_keys_stay_as_they_are() -> None:
    """Other sides keep them: they are the same in each version of this package."""
    entry = window("nightly", START)
    assert entry.key == "1eab2f11-ee0e-8ef8-95cf-43880faa0814"
    assert replace(entry, keyed=True).key == "6b5f885c-2d75-8ac5-9b1c-1cc1a0ded9ea"
    assert replace(entry, scheduled=False).key == "e82dd541-8ea6-8d87-955a-7e270be4166b"


def test_a_key_is_of_the_window() -> None:
    """Of its entry and start, and of nothing that differs in its executions. It is the id of the window's task."""
    key = window("nightly", START).key
    assert uuid.UUID(key).version == 8
    assert key == task_id("once:", "nightly", datetime(2026, 11, 21, 2, tzinfo=timezone.utc))
    assert key == window("nightly", "2026-11-21T03:00+01:00", attempt=2, fence=9, held=False).key
    others = [window("Nightly", START), window("nightly", "2026-11-22T02:00Z")]
    others.append(replace(window("nightly", START), keyed=True))
    assert len({key, *(other.key for other in others)}) == 4


def test_a_key_prefix_keeps_projects_apart() -> None:
    """Windows of another prefix are others."""
    other = Effects(lambda: Settings(key_prefix="other:"))
    assert replace(window("nightly", START), _context=other).key != window("nightly", START).key


def test_a_calls_key_is_of_its_task_id() -> None:
    """It may begin at another time when its message is redelivered, or retried."""
    with Celery("tests", broker="redis://127.0.0.1:1/0", set_as_current=False, task_cls=OnceTask) as app:

        @app.task(bind=True, shared=False)
        def call(self) -> str:
            return self.window.key

        keys = [call.apply(task_id=task).get() for task in ("a", "a", "b")]
        assert keys[0] == keys[1] != keys[2]
        for given in (window("nightly", START), Window("nightly", window("nightly", START).start, None)):
            with executing(call, given):
                assert call() == window("nightly", START).key
