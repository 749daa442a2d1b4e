"""The project's app and its tasks. They write to the ledger what they do."""

import os
import signal
import time

from celery import Celery, Task
from celery.schedules import crontab
from celery.signals import beat_init
from killpoints import reach
from ledger import Ledger

from celery_once_beat.contrib.django import OnceTask
from celery_once_beat.signals import window_missed, window_succeeded
from celery_once_beat.windows import format_instant

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "apps.dj_shop.settings")

app = Celery("shop", task_cls=OnceTask)
app.config_from_object("django.conf:settings", namespace="CELERY")
if "IN_CONF" in os.environ:
    app.conf.beat_schedule = {
        "in conf": {
            "task": "apps.dj_shop.celery.work",
            "schedule": crontab(hour=3, minute=30),
            "args": ["conf"],
            "options": {"once": {"catch_up": "all"}, "expires": 90.5, "queue": "slow"},
        }
    }
if "PATIENT" in os.environ:

    @beat_init.connect(weak=False)
    def wait_for_the_rows(**_):
        """On a busy machine a look may take longer than a beat that stood still waits for it."""
        from celery_once_beat.contrib.django import database

        database._STOOD_STILL = 30.0


if "FREEZE" in os.environ:

    @beat_init.connect(weak=False)
    def stand_still_in_ticks(**_):
        """In the middle of each, before its claims, while there is that file."""
        from celery_once_beat.beat.recovery import Recovery

        look = Recovery.sweep

        def stand_still_and_look(*args):
            if os.path.exists(os.environ["FREEZE"]):  # noqa: PTH110
                os.kill(os.getpid(), signal.SIGSTOP)
            return look(*args)

        Recovery.sweep = stand_still_and_look


ledger = Ledger(os.environ.get("LEDGER", os.devnull))


def note(kind, window, **more):
    fields = {"entry": window.entry, "start": format_instant(window.start)} if window and window.scheduled else {}
    ledger.write(kind, **fields, **more)


@window_succeeded.connect
def note_recorded(window, **_):
    note("recorded", window)


@window_missed.connect
def note_missed(window, count, **_):
    note("missed", window, count=count)


@app.task(bind=True)
def work(self, what=None):
    note("start", self.window, what=what, headers=dict(self.request.headers or {}))
    note("finish", self.window)


@app.task(bind=True)
def bill(self):
    from django.db import transaction
    from django_celery_beat.models import IntervalSchedule

    note("start", self.window)
    with transaction.atomic():
        self.window.record()
        IntervalSchedule.objects.create(every=int(self.window.start.timestamp()), period="days")
    reach("worker.committed")
    note("finish", self.window)


@app.task(bind=True)
def deadly(self):
    note("start", self.window)
    if self.window.attempt == 1:
        os.killpg(os.getpgid(0), signal.SIGKILL)
    time.sleep(1.0)
    note("finish", self.window)


@app.task
def slow():
    time.sleep(1.5)


@app.task(bind=True)
def failing(self):
    note("start", self.window)
    raise ValueError("no rows")


@app.task(base=Task)
def stock(what):
    note("start", None, what=what)
