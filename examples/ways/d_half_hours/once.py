"""One entry each half hour reads who chose it; each of them is a child task, sent once for the user and the window."""

import time
from contextlib import closing

from celery import Celery

from celery_once_beat import OnceTask
from examples.ways import node

from . import HALF_HOUR, choosers

app = Celery("d_half_hours", broker=node.URL, task_cls=OnceTask)
app.conf.update(
    node.SETTINGS,
    beat_schedule={"half-hour": {"task": f"{__name__}.half_hour", "schedule": HALF_HOUR}},
)


@app.task(bind=True)
def half_hour(self):
    with closing(node.database()) as db, node.run("half-hour", self.window.start):
        for user in choosers(db, self.window.start.timestamp()):
            mail.apply_once((user,), key=user, window=self.window)
            time.sleep(0.3)


@app.task(bind=True, acks_late=True)  # nobody but the broker sends a child task again
def mail(self, user):
    with node.run(user, self.window.start):
        time.sleep(0.6)
