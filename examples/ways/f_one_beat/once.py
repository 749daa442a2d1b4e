"""All beats work, and each window is claimed by one of them: there is no lock to wait for."""

import time

from celery import Celery

from celery_once_beat import OnceTask
from examples.ways import node

from . import EVERY

app = Celery("f_one_beat", broker=node.URL, task_cls=OnceTask)
app.conf.update(
    node.SETTINGS,
    beat_schedule={"report": {"task": f"{__name__}.report", "schedule": EVERY}},
)


@app.task(bind=True)
def report(self):
    with node.run("report", self.window.start):
        time.sleep(0.3)
