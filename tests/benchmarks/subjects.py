"""The schedulers that are compared, each with the same entries; runs in the process that is measured.

A subject writes down what a user would, ``count`` entries of which all are due at ``due`` (epoch seconds) if that is
given, and else none within the hour; it returns what makes a scheduler of them and starts it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.app import app
from celery.beat import Scheduler
from celery.schedules import schedule

Make = Callable[[], Any]

HOUR = timedelta(hours=1)
LONG_AGO = timedelta(hours=2)


def name(number: int) -> str:
    return f"entry-{number:06d}"


def every(
    count: int, due: float | None, interval: timedelta = HOUR, apart: float = 0.0, task: str = "bench.once"
) -> dict[str, Any]:
    """Entries for ``celery beat -S once``, the first due at ``due`` and each ``apart`` seconds after the one before."""
    first = datetime.fromtimestamp(due if due is not None else time.time() + interval.total_seconds(), timezone.utc)
    return {
        name(number): {
            "task": task,
            "schedule": schedule(interval),
            "args": (number,),
            "options": {"once": {"anchor": first + number * timedelta(seconds=apart)}},
        }
        for number in range(count)
    }


def once(entries: dict[str, Any]) -> Any:
    """Our scheduler, with these entries loaded."""
    from celery_once_beat.beat.scheduler import OnceScheduler

    app.conf.beat_schedule = entries
    scheduler = OnceScheduler(app)
    scheduler.tick()
    return scheduler


def _once(count: int, due: float | None) -> Make:
    entries = every(count, due)
    return lambda: once(entries)


def last_run(due: float | None, *, wait: bool = False) -> datetime:
    """When an entry ran last that is due as soon as it is loaded; with ``wait`` not before ``due``."""
    if due is not None and wait:
        return datetime.fromtimestamp(due, timezone.utc) - HOUR
    now = datetime.now(timezone.utc)
    return now - LONG_AGO if due is not None else now


def plain_entries(count: int, due: float | None, *, wait: bool = False) -> dict[str, Any]:
    last_run_at = last_run(due, wait=wait)
    return {
        name(number): {
            "task": "bench.plain", "schedule": schedule(HOUR), "args": (number,), "last_run_at": last_run_at,
        }
        for number in range(count)
    }  # fmt: skip


def _stock(count: int, due: float | None) -> Make:
    app.conf.beat_schedule = plain_entries(count, due)
    return lambda: Scheduler(app)


def _redbeat(count: int, due: float | None) -> Make:
    from redbeat.schedulers import RedBeatScheduler, acquire_distributed_beat_lock

    app.conf.beat_schedule = plain_entries(count, due)

    def make() -> Any:
        scheduler = RedBeatScheduler(app)
        acquire_distributed_beat_lock(SimpleNamespace(scheduler=scheduler))
        return scheduler

    return make


def _django(count: int, due: float | None) -> Make:
    write_rows(count, last_run(due))
    from django_celery_beat.schedulers import DatabaseScheduler

    return lambda: DatabaseScheduler(app)


def write_rows(count: int, last_run_at: datetime) -> None:
    """Set up Django, on a database of its own, with a row for each entry."""
    import django
    from django.conf import settings

    file = Path(tempfile.mkdtemp(prefix="once-bench-"), "beat.sqlite")
    settings.configure(
        INSTALLED_APPS=["django_celery_beat"], USE_TZ=True, SECRET_KEY="benchmark",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file)}},
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    )  # fmt: skip
    django.setup()
    from django.core.management import call_command
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    call_command("migrate", verbosity=0)
    interval = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.HOURS)
    PeriodicTask.objects.bulk_create(
        PeriodicTask(
            name=name(number), task="bench.plain", interval=interval, args=f"[{number}]", last_run_at=last_run_at
        )
        for number in range(count)
    )


class _Loop:
    """What no scheduler can beat that publishes one by one: ``apply_async`` in a loop, with one producer."""

    max_interval = 300.0

    def __init__(self, count: int) -> None:
        self.count = count
        self.producer = app.amqp.Producer(app.connection_for_write(), auto_declare=False)
        self.task = app.tasks["bench.plain"]

    def tick(self) -> float:
        for number in range(self.count):
            self.task.apply_async((number,), producer=self.producer)
        return self.max_interval


SUBJECTS: dict[str, Callable[[int, float | None], Make]] = {
    "loop": lambda count, _due: lambda: _Loop(count),
    "once": _once,
    "stock": _stock,
    "redbeat": _redbeat,
    "django": _django,
}


def tick_until_idle(scheduler: Any, patience: float = 1e9) -> None:
    """Tick until nothing is due, or until so many seconds have passed."""
    began = time.monotonic()
    while scheduler.tick() <= 0.05 and time.monotonic() - began < patience:
        pass


os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
