"""Options by which no message can be made: refused when they are set, else their windows fail."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from processes import wait_until
from system import System

from celery_once_beat import OnceTask, Schedules
from celery_once_beat.errors import SettingError
from celery_once_beat.schedules import every

#: What a schedule of the code may set, and a stored one may not.
REFUSED: dict[str, dict[str, Any]] = {
    "compression": {"compression": "nope"},
    "serializer": {"serializer": "nope"},
    "serializer of another type": {"serializer": ["json"]},
    "args": {"args": [1]},
    "kwargs": {"kwargs": {}},
    "producer": {"producer": "x"},
    "task_id": {"task_id": "x"},
    "misspelt": {"prioritty": 1},
}


@pytest.mark.long
def test_a_message_that_can_not_be_made_fails(system: System) -> None:
    """Each try counts as an attempt: after max_attempts the window has failed, and the next one is claimed."""
    bad = {name: options for name, options in REFUSED.items() if name in ("compression", "serializer", "args")}
    system.entries = {
        name: {"task": "apps.once_app.work", "every": 5.0, "options": {**options, "once": {"max_attempts": 2}}}
        for name, options in bad.items()
    }
    beat = system.beat().wait_ready()
    wait_until(lambda: all(system.outcomes(name).get("failed") for name in bad), "a window of each has failed", 60)
    beat.stop()
    assert system.ledger.read("start") == []


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_when_it_is_set(options: dict[str, Any], redis_url: str) -> None:
    """By name, before anything is written."""
    with Celery("tests", broker=redis_url, set_as_current=False, task_cls=OnceTask) as app:
        schedules = Schedules(app)
        with pytest.raises(SettingError, match=next(iter(options))):
            schedules.set("bad", task="proj.work", schedule=every("1h"), options=options)
        assert schedules.get("bad") is None
