"""Entries whose task is one of Celery's canvas, which no worker can execute as a task."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain, chord, group, signature

from celery_once_beat import OnceScheduler
from celery_once_beat.errors import SettingError
from celery_once_beat.schedules import Definition

CELERY = Celery("canvas", broker="memory://", set_as_current=False)
CELERY.conf.once_beat_redis_url = "redis://127.0.0.1:1/0"  # nothing asks it


def part(secret: str = "hidden") -> Any:
    return signature("proj.part", (secret,), app=CELERY)


CHAIN, GROUP, CHORD = chain(part(), part()), group(part(), part()), chord([part(), part()], part())
BUILDS = r"expected the name of a task of yours that builds and sends it: def nightly\(\): {}\(…\)\.apply_async\(\)"

WRONG = [
    (CHAIN, "found a chain, which isn't a task, " + BUILDS.format("chain")),
    (GROUP, "found a group, which isn't a task, " + BUILDS.format("group")),
    (CHORD, "found a chord, which isn't a task, " + BUILDS.format("chord")),
    ("celery.chain", "found a chain, which isn't a task, " + BUILDS.format("chain")),
    ("celery.group", "found a group, which isn't a task, " + BUILDS.format("group")),
    (part(), "found a signature of 'proj.part', expected that name, with args, kwargs and options beside it"),
    ({"task": 7}, "found {'task': 7}, expected the name of a task"),
]


@pytest.mark.parametrize(("task", "words"), WRONG)
def test_canvas_is_no_task(task: Any, words: str) -> None:
    """Beats leave such an entry out, and ``Schedules`` refuses it, with what to do; its arguments aren't shown."""
    CELERY.conf.beat_schedule = {"wrong": {"task": task, "schedule": 60}, "good": {"task": "proj.part", "schedule": 60}}
    scheduler = OnceScheduler(CELERY)
    scheduler.entries.refresh(scheduler.schedule)
    assert [entry.name for entry in scheduler.entries] == ["good"]
    found = scheduler.entries.wrong["wrong"]
    with pytest.raises(SettingError, match=words):
        raise SettingError(found)
    assert "hidden" not in found
    scheduler.close()
    with pytest.raises(SettingError, match=words):
        Definition.of(task, 60)
