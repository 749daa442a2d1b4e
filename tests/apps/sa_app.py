"""An app whose schedule is in sqlalchemy-celery-beat's tables."""

import os

from celery import Celery
from ledger import Ledger
from sqlalchemy_celery_beat.schedulers import DatabaseScheduler

from celery_once_beat import OnceSchedulerMixin, OnceTask
from celery_once_beat.signals import window_succeeded
from celery_once_beat.windows import format_instant

app = Celery("sa_app", broker=os.environ["BROKER_URL"], task_cls=OnceTask)
app.conf.update(
    beat_dburi=os.environ["DATABASE"],
    beat_max_loop_interval=0.5,
    broker_connection_retry_on_startup=True,
    once_beat_claim_lease=1.0,
    once_beat_publish_timeout=1.0,
    once_beat_recovery_interval=0.3,
    result_expires=None,
    task_default_queue=os.environ["QUEUE"],
)
ledger = Ledger(os.environ["LEDGER"])


class OnceScheduler(OnceSchedulerMixin, DatabaseScheduler):
    pass


@window_succeeded.connect
def note_recorded(window, **_):
    ledger.write("recorded", entry=window.entry, start=format_instant(window.start))


@app.task
def work():
    pass
