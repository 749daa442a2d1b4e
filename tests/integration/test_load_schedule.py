"""The schedule as a beat of the app would have it: read from a database too, and nothing is written there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from processes import environ

LOOK = """
import sqlite3

import django
from celery import Celery
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django_celery_beat"], USE_TZ=True, DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "rows.db"}},
)
django.setup()

from celery_once_beat.beat import load_schedule
from celery_once_beat.settings import Settings
from django.core.management import call_command
from django_celery_beat.models import IntervalSchedule, PeriodicTask

call_command("migrate", verbosity=0)
row = {"task": "t", "interval": IntervalSchedule.objects.create(every=1, period="minutes")}
PeriodicTask.objects.create(name="of the database", **row)
PeriodicTask.objects.create(name="unreadable", args="no JSON", **row)
PeriodicTask.objects.create(name="switched off", enabled=False, **row)
database = sqlite3.connect("rows.db")
before = list(database.iterdump())
app = Celery("loaded", broker="redis://127.0.0.1:1/0")
app.conf.beat_schedule = {name: {"task": "t", "schedule": 30.0} for name in ("of the conf", "switched off")}
found = load_schedule(app, Settings(), "django_celery_beat.schedulers:DatabaseScheduler")
names = {row.name for row in found.entries}
assert {"of the conf", "of the database"} <= names, names
assert "switched off" not in names, names
assert found.claims_windows is False
assert list(database.iterdump()) == before
"""


@pytest.mark.long
def test_a_databases_rows_are_read_and_stay_as_they_are(tmp_path: Path) -> None:
    """Enabled rows and the conf's own entries; not what is switched off there.

    django-celery-beat's own scheduler would disable a row that it can't read, and make rows of the conf.
    """
    command = [sys.executable, "-W", "ignore", "-c", LOOK]
    subprocess.run(command, cwd=tmp_path, env=environ({}), check=True, timeout=60)
