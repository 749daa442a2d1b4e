"""A process that changes rows as the project's own code does. A line of JSON is Python to run; it answers `result`."""

import contextlib
import io
import json
import sys
import traceback

import django

django.setup()

from datetime import datetime, timedelta, timezone  # noqa: E402

from apps.dj_shop.celery import app, work  # noqa: E402, F401
from django.db import connection, transaction  # noqa: E402, F401
from django_celery_beat.models import (  # noqa: E402, F401
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    PeriodicTasks,
    SolarSchedule,
)

if connection.vendor == "sqlite" and django.VERSION >= (5, 1):
    # Where another process writes, a transaction that reads first and then writes fails at once; this one waits.
    connection.settings_dict["OPTIONS"]["transaction_mode"] = "IMMEDIATE"


def now(seconds=0.0):
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


def every(seconds):
    return IntervalSchedule.objects.get_or_create(every=seconds, period="seconds")[0]


def at(moment):
    return ClockedSchedule.objects.create(clocked_time=moment)


def row(name, **fields):
    return PeriodicTask.objects.create(name=name, **{"task": "apps.dj_shop.celery.work", **fields})


def edit(name, /, **fields):
    found = PeriodicTask.objects.get(name=name)
    for field, value in fields.items():
        setattr(found, field, value)
    found.save()


for line in sys.stdin:
    namespace = globals()
    namespace["result"] = error = None
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(json.loads(line), namespace)
        except Exception:  # noqa: BLE001
            error = traceback.format_exc()
    print(json.dumps({"result": namespace["result"], "error": error}, default=str), flush=True)
