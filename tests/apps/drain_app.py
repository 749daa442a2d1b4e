"""The app of the tests of how a success is recorded behind Celery's tracer, when nothing listens to it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import apps.unheard  # noqa: F401
from apps.once_app import app, ledger, note
from celery import Task
from killpoints import reach

from celery_once_beat.windows import format_instant


def returns(self: Any, together: int = 1) -> None:
    """Return once so many bodies run."""
    note("start", self.window)
    while len(ledger.read("start")) < together:
        time.sleep(0.02)
    note("finish", self.window)


for acks in ("early", "late"):
    app.task(returns, bind=True, name=f"drain.{acks}", acks_late=acks == "late")


@app.task(bind=True, base=Task, name="drain.sleeps")
def sleeps(self: Any, seconds: float) -> None:
    """Keep a child busy, without a window."""
    ledger.write("sleeps", of=self.request.id)
    time.sleep(seconds)


def dies() -> None:
    """End the process as a segfault does."""
    ledger.write("dies")
    os.kill(os.getpid(), signal.SIGKILL)


app.task(dies, name="drain.once")
app.task(dies, base=Task, name="drain.next")


class Follows(app.Task):
    """A task that does something when it has succeeded."""

    abstract = True

    def on_success(self, retval: Any, *_: Any) -> None:
        note("follows", self.window, by="on_success")


@app.task(bind=True, base=Follows, name="drain.followed")
def followed(self: Any) -> tuple[str, int]:
    """Its callbacks and its chain tell which attempt sent them."""
    note("start", self.window, worker=self.request.hostname)
    reach("worker.body")
    note("finish", self.window)
    return format_instant(self.window.start), self.window.attempt


@app.task(base=Task, name="drain.follows")
def follows(result: tuple[str, int], by: str) -> None:
    start, attempt = result
    ledger.write("follows", entry="tick", start=start, attempt=attempt, by=by)
