"""An entry for each piece of work: the hash decides which node goes first, the key in Redis which one goes."""

from celery import Celery

from celery_once_beat import OnceTask
from examples.ways import node

from . import AGAIN_AFTER, EVERY, WORK, do

app = Celery("b_hash", broker=node.URL, task_cls=OnceTask)
app.conf.update(
    node.SETTINGS,
    beat_schedule={work: {"task": f"{__name__}.job", "schedule": EVERY, "args": [work]} for work in WORK},
)


@app.task(bind=True, once_retry_failed_after=AGAIN_AFTER)
def job(self, work):
    with node.run(work, self.window.start):
        do(work, first=self.window.attempt == 1)
