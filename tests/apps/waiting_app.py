"""The app of the integration tests, and tasks whose windows wait and do what tasks may do."""

from __future__ import annotations

import json
import os
import time

from apps.once_app import app, note
from kombu import Exchange, Queue

if os.environ.get("TOPIC"):
    name = os.environ["QUEUE"]
    app.conf.task_queues = [Queue(name, Exchange(f"{name}-events", type="topic"), routing_key="report.#")]
    app.conf.task_routes = {"*": {"queue": name, "exchange": f"{name}-events", "routing_key": "report.daily"}}


@app.task(bind=True, max_retries=5)
def retries(self, text, times=3):
    """Retry, and say what came along with the message."""
    size = len(json.dumps(vars(self.request).get("headers") or {}, default=str))
    note("start", self.window, retries=self.request.retries, size=size)
    if self.request.retries < times:
        raise self.retry(countdown=0)
    note("finish", self.window, retries=self.request.retries)


@app.task(bind=True)
def sleeps(self, seconds):
    note("start", self.window, worker=self.request.hostname)
    time.sleep(seconds)
    note("finish", self.window, worker=self.request.hostname)
