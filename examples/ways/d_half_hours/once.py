"""One entry each half hour reads who chose it; each of them is a child task, sent once for the user and the window.

A user may as well have a schedule of their own, a row of django-celery-beat's, made while beats run.
"""

import os
import sys
import time
from contextlib import closing
from datetime import datetime, timezone

from celery import Celery

from celery_once_beat.contrib.django import OnceTask
from examples.ways import node

from . import HALF_HOUR, choosers

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.ways.d_half_hours.settings")

app = Celery("d_half_hours", broker=node.URL, task_cls=OnceTask)
app.conf.update(
    node.SETTINGS,
    beat_scheduler="celery_once_beat.contrib.django:OnceDatabaseScheduler",
    beat_schedule={"half-hour": {"task": f"{__package__}.once.half_hour", "schedule": HALF_HOUR}},
)


@app.task(bind=True, name=f"{__package__}.once.half_hour")
def half_hour(self):
    with closing(node.database()) as db, node.run("half-hour", self.window.start):
        for user in choosers(db, self.window.start.timestamp()):
            mail.apply_once((user,), key=user, window=self.window)
            time.sleep(0.3)


@app.task(bind=True, acks_late=True, name=f"{__package__}.once.mail")  # a child: nobody but the broker sends it again
def mail(self, user):
    with node.run(user, self.window.start):
        time.sleep(0.6)


def join(user, start):
    """What the admin would do: a row of the user's own, from ``start`` (Unix time) on."""
    from django_celery_beat.models import IntervalSchedule, PeriodicTask  # noqa: PLC0415  # once Django is set up

    PeriodicTask.objects.create(
        name=f"{user}'s mail",
        task=mail.name,
        args=f'["{user}"]',
        interval=IntervalSchedule.objects.get_or_create(every=HALF_HOUR, period="seconds")[0],
        start_time=datetime.fromtimestamp(float(start), timezone.utc),
    )


if __name__ == "__main__":
    import django
    from django.core.management import call_command

    django.setup()
    if sys.argv[1:] == ["migrate"]:
        call_command("migrate", verbosity=0)
    else:
        join(*sys.argv[1:])
