"""A stock Celery app, without this package: what the harness is tested with, and what stock beat does.

Every message carries the second in which its beat published it: the task's window in the ledger.
"""

from __future__ import annotations

import math
import os
import time

from celery import Celery
from celery.signals import before_task_publish
from ledger import Ledger

ENTRY = "every-second"

app = Celery("stock", broker=os.environ["BROKER_URL"])
app.conf.update(
    beat_schedule={ENTRY: {"task": "stock.record", "schedule": 1.0}},
    task_ignore_result=True,
    task_default_queue=os.environ.get("QUEUE", "stock"),
    broker_connection_retry_on_startup=True,
)


def ledger() -> Ledger:
    return Ledger(os.environ["LEDGER"])


@before_task_publish.connect
def note_second(headers: dict, **_: object) -> None:
    headers["published_in"] = math.floor(time.time())
    ledger().write("publish", entry=ENTRY, start=str(headers["published_in"]))


@app.task(name="stock.record", bind=True)
def record(self) -> None:
    window = {"entry": ENTRY, "start": str(self.request.published_in), "attempt": self.request.retries + 1}
    ledger().write("start", **window, host=self.request.hostname)
    time.sleep(float(os.environ.get("WORK_SECONDS", "0")))
    ledger().write("finish", **window, host=self.request.hostname)
