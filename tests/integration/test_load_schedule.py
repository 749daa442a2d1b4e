"""The schedule as a beat of the app would have it: read from a database too, and nothing is written there."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from processes import environ

SETUP = """
import django, json
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django_celery_beat"], USE_TZ=True, DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "rows.db"}},
)
django.setup()
"""
FILL = (
    SETUP
    + """
from django.core.management import call_command
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

call_command("migrate", verbosity=0)
minute = IntervalSchedule.objects.create(every=1, period="minutes")
PeriodicTask.objects.create(name="of the database", task="t", interval=minute)
PeriodicTask.objects.create(name="unreadable", task="t", interval=minute, args="no JSON")
PeriodicTask.objects.create(name="switched off", task="t", interval=minute, enabled=False)
"""
)
LOOK = (
    SETUP
    + """
from celery import Celery
from celery_once_beat.beat import load_schedule
from celery_once_beat.settings import Settings

app = Celery("loaded", broker="redis://127.0.0.1:1/0")
app.conf.beat_schedule = {name: {"task": "t", "schedule": 30.0} for name in ("of the conf", "switched off")}
found = load_schedule(app, Settings(), "django_celery_beat.schedulers:DatabaseScheduler")
print(json.dumps({"names": sorted(row.name for row in found.entries), "claims": found.claims_windows}))
"""
)


def run(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=folder, env=environ({}), capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(folder: Path) -> list[str]:
    with sqlite3.connect(folder / "rows.db") as database:
        return list(database.iterdump())


@pytest.mark.long
def test_a_databases_rows_are_read_and_stay_as_they_are(tmp_path: Path) -> None:
    """Enabled rows and the conf's own entries; not what is switched off there.

    django-celery-beat's own scheduler would disable a row that it can't read, and make rows of the conf.
    """
    run(FILL, tmp_path)
    before = contents(tmp_path)
    found = json.loads(run(LOOK, tmp_path).splitlines()[-1])
    assert {"of the conf", "of the database"} <= set(found["names"])
    assert "switched off" not in found["names"]
    assert found["claims"] is False
    assert contents(tmp_path) == before
