"""An entry with a lease: who takes over gets the same window, and what was done last."""

import time
from datetime import datetime, timezone

from celery import Celery

from celery_once_beat import OnceTask
from examples.ways import node

from . import EVERY

BEGINNING = datetime(1970, 1, 1, tzinfo=timezone.utc)

app = Celery("a_lock_row", broker=node.URL, task_cls=OnceTask)
app.conf.update(
    node.SETTINGS,
    beat_schedule={"totals": {"task": f"{__name__}.totals", "schedule": EVERY}},
)


@app.task(bind=True, once_overlap="skip")  # two at once would both count from the same last_done
def totals(self):
    since, until = self.window.last_done or BEGINNING, self.window.start
    if since < until:  # else a later window was done meanwhile, and this one's time with it
        with node.run("totals", until, since):
            time.sleep(1)
