"""The beat that holds the lock works; the others look each second whether it has expired.

With RedBeat's lock where that is installed (``pip install celery-redbeat``), else with one of its own that does the
same. RedBeat's is held for 25 minutes by default.
"""

import time

from celery import Celery
from celery.beat import Scheduler
from celery.schedules import schedule
from celery.signals import before_task_publish
from redis import Redis
from redis.exceptions import LockError

from examples.ways import node

from . import EVERY, REDBEAT

LOCK = 6  # seconds

app = Celery("f_one_beat", broker=node.URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    beat_scheduler="redbeat.RedBeatScheduler" if REDBEAT else f"{__name__}:LeaderScheduler",
    beat_max_loop_interval=1,
    redbeat_redis_url=node.URL,
    redbeat_lock_timeout=LOCK,
    # In whole seconds: a beat that is slow sends none of them sooner after the last.
    beat_schedule={"report": {"task": f"{__name__}.report", "schedule": schedule(EVERY, relative=True)}},
)


class LeaderScheduler(Scheduler):
    """A stock beat that sends nothing unless it holds the lock."""

    lock = None

    def tick(self, *args, **kwargs):
        if self.lock is None:
            self.lock = Redis.from_url(node.URL).lock("leader", timeout=LOCK)
        try:
            held = self.lock.reacquire() if self.lock.local.token else self.lock.acquire(blocking=False)
        except LockError:  # it has expired meanwhile
            self.lock, held = None, False
        return min(super().tick(*args, **kwargs), 1.0) if held else 1.0


@before_task_publish.connect
def note_when(headers, **_):
    headers["sent"] = time.time()


@app.task(bind=True)
def report(self):
    with node.run("report", self.request.sent // EVERY * EVERY):  # it isn't told for which time it was sent
        time.sleep(0.3)
