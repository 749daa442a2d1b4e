"""An app whose task sends a message of its own from within a window, in the way that its argument names."""

from __future__ import annotations

import os

from apps.once_app import app, ledger
from celery.exceptions import Ignore, Reject

from celery_once_beat import OnceTask

QUEUE = os.environ["QUEUE"]


def note(self, name):
    ledger.write("ran", task=name, scheduled=self.window.scheduled, retries=self.request.retries)


@app.task(bind=True)
def other(self, way=""):
    note(self, "other")


@app.task(bind=True, max_retries=3)
def send(self, way):
    note(self, "send")
    request = self.request
    if not self.window.scheduled or request.retries:
        return
    if way == "retry":
        raise self.retry(queue=QUEUE, countdown=0)
    if way == "signature":
        self.signature_from_request(queue=QUEUE).apply_async()
        raise Ignore
    if way == "replace":
        raise self.replace(other.s(way).set(headers=dict(request.headers or vars(request))))
    if way == "headers":
        headers = {name: value for name, value in vars(request).items() if name.startswith("once_")}
        send.apply_async((way,), task_id=request.id, headers=headers)


@app.task(bind=True)
def take(self, given):
    ledger.write("took", given=sorted(given), type=type(given).__name__)


class Hooked(OnceTask):
    """Its ``before_start`` does what its argument says, the first time."""

    abstract = True

    def before_start(self, task_id, args, kwargs):
        ledger.write("hook", retries=self.request.retries, attempt=self.window.attempt)
        if self.request.retries:
            return
        if args[0] == "raise":
            raise ValueError("no database")
        if args[0] == "ignore":
            raise Ignore
        if args[0] == "reject":
            raise Reject("not here", requeue=False)
        if args[0] == "retry":
            raise self.retry(countdown=0)


@app.task(bind=True, base=Hooked)
def hooked(self, way):
    note(self, "hooked")


for entry in app.conf.beat_schedule.values():
    if entry["options"].get("serializer") == "pickle":
        entry["args"] = ({1, 2},)
