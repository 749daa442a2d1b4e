"""A stock Celery app that keeps the ledger of the chaos runs: what they would say of stock beat."""

from __future__ import annotations

import math
import os
import time

from celery import Celery
from celery.signals import before_task_publish, task_success
from chaos.checker import text_of
from ledger import Ledger

app = Celery("stock", broker=os.environ["BROKER_URL"])
app.conf.update(
    beat_schedule={"tick": {"task": "chaos.stock.work", "schedule": 1.0}},
    task_ignore_result=True,
    task_default_queue=os.environ["QUEUE"],
    broker_connection_retry_on_startup=True,
)
ledger = Ledger(os.environ["LEDGER"])


def note(kind, request):
    ledger.write(kind, entry="tick", start=request.due, group=os.getsid(0), fence=request.copy)


@before_task_publish.connect
def note_second(headers, **_):
    # Which window it is for: the second in which its beat sent it. Two copies are told apart by who sent them.
    headers["due"], headers["copy"] = text_of(math.floor(time.time())), os.getpid()


@task_success.connect
def note_recorded(sender, **_):
    note("recorded", sender.request)


@app.task(bind=True)
def work(self):
    note("start", self.request)
    time.sleep(1.2)  # two beats sent a window within one second: their bodies overlap
    note("finish", self.request)
