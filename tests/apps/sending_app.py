"""An app whose task sends a message of its own from within a window, in the way that its argument names."""

from __future__ import annotations

import os

from apps.once_app import app, ledger
from celery.exceptions import Ignore

from celery_once_beat import OnceTask

QUEUE = os.environ["QUEUE"]


def note(self, name):
    ledger.write("ran", task=name, scheduled=self.window.scheduled, retries=self.request.retries)


@app.task(bind=True, max_retries=3)
def send(self, way):
    note(self, "send")
    request = self.request
    if not self.window.scheduled or request.retries:
        return
    if way == "retry":
        raise self.retry(queue=QUEUE, countdown=0)
    if way == "send_task":
        app.send_task("apps.sending_app.send", (way,), task_id=request.id, retries=1, queue=QUEUE)
        raise Ignore
    if way == "by hand":
        self.apply_async((way,), task_id=request.id, retries=1)
        ledger.write("went on", held=self.window.held)
        raise Ignore
    if way == "new id":
        raise self.retry(task_id="another", countdown=0)
    if way == "signature":
        self.signature_from_request(queue=QUEUE).apply_async()
        raise Ignore
    if way == "copied":
        headers = {name: value for name, value in vars(request).items() if name.startswith("once_")}
        app.send_task(self.name, (way,), task_id=request.id, headers=headers, queue=QUEUE)
        raise Ignore


@app.task(bind=True)
def take(self, given):
    ledger.write("took", given=sorted(given), type=type(given).__name__)


class Careless(OnceTask):
    """Its signatures have headers of its own alone."""

    abstract = True

    def signature_from_request(self, *args, **options):
        return super().signature_from_request(*args, **options).set(headers={"tenant": 1})


@app.task(bind=True, base=Careless)
def careless(self, way):
    note(self, "careless")
    if not self.request.retries:
        raise self.retry(countdown=0)


class Sent(OnceTask):
    """Its messages are sent by name."""

    abstract = True

    def apply_async(self, args=None, kwargs=None, task_id=None, **options):
        return self.app.send_task(self.name, args, kwargs, task_id=task_id, **options)


@app.task(bind=True, base=Sent)
def sent(self, way):
    note(self, "sent")
    if not self.request.retries:
        raise self.retry(countdown=0)


for entry in app.conf.beat_schedule.values():
    if entry["options"].get("serializer") == "pickle":
        entry["args"] = ({1, 2},)
