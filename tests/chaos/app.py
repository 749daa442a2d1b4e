"""The app of the chaos runs: short and long bodies, retries, late acks; every line of the ledger is a body's own."""

from __future__ import annotations

import os
import random
import time

import apps.unheard  # noqa: F401  # as in most apps
from apps.once_app import app, note
from chaos.entries import LEASE, LIMITS

from celery_once_beat import OnceTask

app.conf.update(
    once_beat_lease=LEASE,
    once_beat_start_timeout=5.0,
    once_beat_catch_up="all",
    once_beat_limits=LIMITS,
    once_beat_max_attempts=1000,  # nothing is given up: what doesn't run is lost
    # The broker delivers again by itself what a killed worker had, and what takes longer than this.
    broker_transport_options={"visibility_timeout": 8, "socket_timeout": 2, "socket_connect_timeout": 2},
)


def _body(task, seconds):
    # The group tells whose process it is; the monotonic clock is the machine's own, also under a fake wall clock.
    note("start", task.window, group=os.getsid(0), retries=task.request.retries)
    time.sleep(seconds)


def _end(task, kind):
    note(kind, task.window, group=os.getsid(0), retries=task.request.retries)


@app.task(bind=True, base=OnceTask)
def work(self, seconds):
    _body(self, seconds)
    _end(self, "finish")


@app.task(bind=True, base=OnceTask, acks_late=True)
def work_late(self, seconds):
    _body(self, seconds)
    _end(self, "finish")


@app.task(bind=True, base=OnceTask, max_retries=None)
def retrying(self, seconds):
    _body(self, seconds)
    if self.request.retries < 2:
        _end(self, "retry")
        raise self.retry(countdown=random.choice((0, 0.5, 1)))
    _end(self, "finish")
