"""The same granularity as entries: midnights and hours of a time zone that is named."""

import time

from celery import Celery

from celery_once_beat import OnceTask
from examples.ways import node

from . import JOBS

app = Celery("e_unique_key", broker=node.URL, task_cls=OnceTask)
app.conf.update(
    node.SETTINGS,
    timezone="Europe/Berlin",
    beat_schedule={
        # In real life timedelta(days=1), the midnights of that zone, or crontab(hour=2, minute=30); timedelta(hours=1).
        name: {"task": f"{__name__}.job", "schedule": every, "args": [name, seconds]}
        for name, (every, seconds) in JOBS.items()
    },
)


@app.task(bind=True)
def job(self, name, seconds):
    with node.run(name, self.window.start):
        time.sleep(seconds)
