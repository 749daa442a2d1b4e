"""The app of the integration tests: what it schedules and how it is set up comes from the environment.

``ENTRIES`` is a JSON object: entry name → {"task", "every" (seconds) or "cron" (five fields), "options", "args",
"anchor" (an instant's text)}; instead of "every" also "stored", a schedule as JSON has it, or
"polled", a path and seconds.
``SETTINGS`` and ``TASK`` are JSON objects: settings of the app, attributes of its tasks.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

from celery import Celery, Task
from celery.schedules import BaseSchedule
from crons import cron
from killpoints import install, reach
from ledger import Ledger

from celery_once_beat import OnceTask, current_window, signals
from celery_once_beat.schedules import read_schedule
from celery_once_beat.windows import format_instant, parse_instant

install()

app = Celery("once_app", broker=os.environ["BROKER_URL"], task_cls=OnceTask)
app.conf.update(
    result_backend=os.environ.get("RESULT_URL"),
    once_beat_redis_url=os.environ["STORE_URL"],
    once_beat_claim_lease=1.0,
    once_beat_publish_timeout=1.0,
    once_beat_recovery_interval=0.3,
    once_beat_start_timeout=3.0,
    once_beat_lease=1.5,
    task_default_queue=os.environ["QUEUE"],
    broker_connection_retry_on_startup=True,
    broker_connection_timeout=1.0,
    worker_prefetch_multiplier=1,
    # Celery kills a child that isn't up within 4 s. On a busy machine none may be: it kills each, for ever.
    worker_proc_alive_timeout=120.0,
)
app.conf.update(json.loads(os.environ.get("SETTINGS", "{}")))
ATTRIBUTES = json.loads(os.environ.get("TASK", "{}"))
ledger = Ledger(os.environ["LEDGER"])


class Polled(BaseSchedule):
    """Due while a file is there, whatever ran last; asked each second, and again so many seconds after it was due."""

    def __init__(self, path, seconds):
        super().__init__()
        self.path, self.seconds = path, seconds

    def remaining_estimate(self, last_run_at):
        raise RuntimeError("nobody asks this")

    def is_due(self, last_run_at):
        ledger.write("asked", path=self.path)
        if not Path(self.path).exists():
            return False, 1.0
        return True, self.seconds

    def __repr__(self):
        return f"<polled: {self.path}>"


def make_schedule(entry):
    if "polled" in entry:
        return Polled(*entry["polled"])
    if "cron" in entry:
        return cron(entry["cron"])
    if "stored" in entry:
        return read_schedule(entry["stored"])
    return timedelta(seconds=entry["every"])


def make_options(entry):
    options = entry.get("options", {})
    if "anchor" in entry:
        options["once"] = {**options.get("once", {}), "anchor": parse_instant(entry["anchor"])}
    return options


app.conf.beat_schedule = {
    name: {
        "task": entry["task"],
        "schedule": make_schedule(entry),
        "args": entry.get("args", ()),
        "options": make_options(entry),
    }
    for name, entry in json.loads(os.environ["ENTRIES"]).items()
}


def note(kind, window, **more):
    fields = {"entry": window.entry, "start": format_instant(window.start)} if window else {}
    if window and not window.scheduled:
        fields = {"call": window.entry, "begun": fields["start"]}
    if window and window.fence:
        fields |= {"attempt": window.attempt, "fence": window.fence}
    ledger.write(kind, **fields, **more)


@signals.window_succeeded.connect
def note_recorded(window, **_):
    note("recorded", window)


@signals.window_closed.connect
def note_closed(window, outcome, **_):
    note("closed", window, outcome=outcome)


@signals.window_stale.connect
def note_stale(window, **_):
    note("stale", window)


@signals.window_refused.connect
def note_refused(sender, window, reason, **_):
    note("refused", window, reason=reason, redelivered=sender.request.delivery_info.get("redelivered"))


@app.task(bind=True, **ATTRIBUTES)
def work(self, seconds=0.05):
    note("start", self.window, worker=self.request.hostname, retries=self.request.retries)
    time.sleep(seconds / 2)
    reach("worker.body")
    time.sleep(seconds / 2)
    note("finish", self.window, worker=self.request.hostname, held=self.window.held, seconds=seconds)
    return "worked"


@app.task(bind=True, **ATTRIBUTES)
def parent(self, *users):
    for user in users:
        work.apply_once((), key=user, window=self.window, tracked=True)
    note("finish", self.window)


@app.task(bind=True, max_retries=10, **ATTRIBUTES)
def retrying(self, times=2):
    note("start", self.window, worker=self.request.hostname, retries=self.request.retries)
    if self.request.retries < times:
        raise self.retry(countdown=0)
    note("finish", self.window, worker=self.request.hostname, retries=self.request.retries)


@app.task(bind=True, **ATTRIBUTES)
def stubborn(self, seconds):
    note("start", self.window, worker=self.request.hostname)
    if self.window.attempt == 1:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # unlike CDLL, it keeps the GIL
    note("finish", self.window, worker=self.request.hostname, held=self.window.held)


@app.task(bind=True, **ATTRIBUTES)
def deadly(self):
    note("start", self.window)
    os.killpg(os.getpgid(0), signal.SIGKILL)


@app.task(bind=True, **ATTRIBUTES)
def ending(self, how):
    note("start", self.window, retries=self.request.retries)
    if how == "fails":
        raise ValueError("this task fails")
    if how == "sleeps":
        time.sleep(60)
    note("finish", current_window())


@app.task(bind=True, **ATTRIBUTES)
def warn(self, **kwargs):
    reach("worker.body")
    ledger.write("told", window=self.window.entry, attempt=self.window.attempt, **kwargs)


@app.task(base=Task)
def plain():
    note("start", None, name="plain")


if os.environ.get("NEWER"):

    @app.task(bind=True, **ATTRIBUTES)
    def newer(self, seconds=0):
        note("start", self.window, worker=self.request.hostname)
        time.sleep(seconds)
