"""The app of the tests for leaks: many entries that are due every second, and a body that does nothing.

``LEAK=900`` makes beat and the worker's child keep so many bytes for each window: a check that looks for leaks has to
find them. With ``COLLECT`` the garbage collector does its longest round now and then: what errors hold of their frames
would stay until it comes by itself.
"""

from __future__ import annotations

import gc
import itertools
import os

from celery import Celery

from celery_once_beat import OnceTask
from celery_once_beat.signals import window_claimed, window_started

app = Celery("leak_app", broker=os.environ["BROKER_URL"], task_cls=OnceTask)
app.conf.update(
    once_beat_redis_url=os.environ["STORE_URL"],
    once_beat_recovery_interval=0.5,
    once_beat_claim_lease=20.0,
    once_beat_publish_timeout=20.0,
    once_beat_marker_ttl=5.0,
    once_beat_history_size=5,
    task_ignore_result=True,
    task_default_queue=os.environ["QUEUE"],
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_prefetch_multiplier=64,
    beat_schedule={
        f"entry-{number:03d}": {"task": "apps.leak_app.work", "schedule": 1.0}
        for number in range(int(os.environ["ENTRIES"]))
    },
)


COLLECT = "COLLECT" in os.environ
bodies = itertools.count(1)


@app.task
def work():
    if COLLECT and not next(bodies) % 100:
        gc.collect()


LEAK = int(os.environ.get("LEAK", "0"))
kept = []


def keep(**_):
    kept.append(bytes(LEAK - 41))  # 41: an empty bytes object, and its place in the list


if LEAK:
    window_claimed.connect(keep, weak=False)
    window_started.connect(keep, weak=False)
