"""An app whose task sends a message of its own from within a window, in the way that its argument names."""

from __future__ import annotations

import os
from threading import Timer

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
    if way == "send_task":
        app.send_task("apps.sending_app.send", (way,), task_id=request.id, retries=1, queue=QUEUE)
        raise Ignore
    if way == "by hand":
        self.apply_async((way,), task_id=request.id, retries=1)
        ledger.write("went on", held=self.window.held)
        raise Ignore
    if way == "new id":
        raise self.retry(task_id="another", countdown=0)
    if way == "later":
        again = self.signature_from_request(queue=QUEUE, retries=1)
        Timer(0.5, again.apply_async).start()
        raise Ignore
    if way == "signature":
        self.signature_from_request(queue=QUEUE).apply_async()
        raise Ignore
    if way == "copied":
        headers = {name: value for name, value in vars(request).items() if name.startswith("once_")}
        app.send_task(self.name, (way,), task_id=request.id, headers=headers, queue=QUEUE)
        raise Ignore
    if way == "replace":
        raise self.replace(other.s(way).set(headers=dict(request.headers or vars(request))))
    if way == "headers":
        headers = {name: value for name, value in vars(request).items() if name.startswith("once_")}
        send.apply_async((way,), task_id=request.id, headers=headers)


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


class Middle(Hooked):
    """Bound to the app before a task that inherits from it."""

    name = "apps.sending_app.middle"

    def before_start(self, *args):
        super().before_start(*args)

    def run(self, way): ...


app.register_task(Middle())


class Twice(Middle):
    """Its hook calls one that is a task's own, too."""

    name = "apps.sending_app.twice"

    def before_start(self, *args):
        super().before_start(*args)

    def run(self, way):
        note(self, "twice")


app.register_task(Twice())


for entry in app.conf.beat_schedule.values():
    if entry["options"].get("serializer") == "pickle":
        entry["args"] = ({1, 2},)
