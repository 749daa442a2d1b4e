"""An app whose task sends another one that kills its process, the one child that there is, and returns."""

from __future__ import annotations

import os
import signal

import apps.unheard  # noqa: F401  # so an end waits for what runs next, WITHIN seconds
from apps.once_app import app, ledger
from celery import Task

QUEUE = os.environ["QUEUE"]


@app.task(base=Task)
def kill():
    ledger.write("kills")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True)
def succeed(self):
    kill.apply_async(queue=QUEUE)
    ledger.write("ran", attempt=self.window.attempt)
