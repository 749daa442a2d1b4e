"""The app of the table of ends: one entry for each end and each kind of acks, all due at the same moment.

``killed`` is a third kind of acks: early ones, and the child is killed right before the window's end is recorded.
An entry is named ``<end>/<early, late or killed>``, a task ``ends.<the same>``. What comes again returns, so that each
end comes to rest. ``once_app`` has the settings and the ledger.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from apps.once_app import app, ledger, note
from celery import VERSION, Task
from celery.backends.redis import RedisBackend
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.worker.request import Request
from kombu.exceptions import OperationalError

from celery_once_beat.signals import window_overdue, window_published
from celery_once_beat.store.verbs import store_of
from celery_once_beat.worker.execution import Execution

ACKS = ("early", "late", "killed")
# A beat sees an entry before its only window is due; one that is slow to start gets the next minute's.
DUE = datetime.now(timezone.utc) + timedelta(seconds=2.5)


@dataclass(frozen=True)
class End:
    """How a body ends the first time; what its task and its message say; which worker gets it first."""

    body: Callable[[Any, int], Any]
    task: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    worker: str = "calm"


def returns(_task: Any, _time: int) -> None:
    pass


def raises(_task: Any, _time: int) -> None:
    raise ValueError("this task fails")


def retries(task: Any, _time: int) -> None:
    if task.request.retries < 2:
        task.retry(countdown=0)


def retries_too_often(task: Any, _time: int) -> None:
    task.retry(countdown=0)


def raises_twice(task: Any, _time: int) -> None:
    if task.request.retries < 2:
        raise ValueError("not yet")


def replaces(task: Any, _time: int) -> None:
    task.replace(replacement.si(task.window.entry))


def rejects(_task: Any, _time: int) -> None:
    raise Reject("no", requeue=False)


def requeues(_task: Any, time: int) -> None:
    if time == 1:
        raise Reject("not here", requeue=True)


def ignores(_task: Any, _time: int) -> None:
    raise Ignore


def sleeps(_task: Any, time_: int) -> None:
    if time_ == 1:
        time.sleep(600)


def outlasts_its_limit(_task: Any, _time: int) -> None:
    time.sleep(4)


def catches(task: Any, time_: int) -> None:
    try:
        sleeps(task, time_)
    except SoftTimeLimitExceeded:
        note("caught", task.window)


def fails_too(_task: Any, *_: Any) -> None:
    note("hook", None)
    raise LookupError("this hook fails")


def exits(_task: Any, time_: int) -> None:
    if time_ == 1:
        sys.exit(1)


def exits_behind_its_body(task: Any, *_: Any) -> None:
    exits(task, len(ledger.read("start", entry=task.window.entry)))


def returns_an_object(_task: Any, _time: int) -> object:
    return object()


def dies(_task: Any, time_: int) -> None:
    if time_ == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def waits(task: Any, time_: int) -> None:
    """Until the test has told its worker to shut down, or to end this task."""
    while time_ == 1 and not ledger.read("told", worker=task.request.hostname.partition("@")[0]):
        time.sleep(0.05)


def finishes_slowly(_task: Any, _time: int) -> None:
    """The store doesn't answer to its end before its soft limit is reached."""
    store = store_of(app)
    finish = store.finish

    def slow(*arguments: Any, **options: Any) -> Any:
        store.finish = finish  # type: ignore[method-assign]
        time.sleep(600)
        return finish(*arguments, **options)

    store.finish = slow  # type: ignore[method-assign]


class NotYet(RedisBackend):
    """A result backend that is away as a task begins."""

    def store_result(self, task_id: Any, result: Any, state: str, *more: Any, **options: Any) -> Any:
        if state == "STARTED":
            raise OperationalError("the result backend is away")
        return super().store_result(task_id, result, state, *more, **options)


class OwnRequest(Request):
    """As some apps have one, for their metrics say."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        note("own request", None)
        super().on_timeout(soft, timeout)


# Within them each body has begun, however busy the machine.
SOFT, HARD = {"soft_time_limit": 3}, {"time_limit": 3}
# Celery may notice only after 5.5 s that a child is lost, by default after 15 s: before the lease is over.
LONG = {"once_lease": 15.0}
#: The test ends this one.
ENDED = {"once_lease": 600.0}

ENDS = {
    "returns": End(returns),
    "raises": End(raises),
    "retries": End(retries),
    "retries too often": End(retries_too_often, {"max_retries": 2}),
    "autoretry": End(raises_twice, {"autoretry_for": (ValueError,), "default_retry_delay": 0}),
    "autoretry too often": End(raises, {"autoretry_for": (ValueError,), "default_retry_delay": 0, "max_retries": 2}),
    "replaces": End(replaces),
    "ignores": End(ignores),
    "rejects": End(rejects),
    "requeues": End(requeues),
    "soft limit": End(sleeps, SOFT),
    "soft limit, caught": End(catches, SOFT),
    "soft limit at its end": End(finishes_slowly, SOFT),
    "not encoded": End(returns_an_object),
    "exits in on_success": End(returns, {**LONG, "on_success": exits_behind_its_body}, worker="lossy"),
    "hard limit": End(sleeps, HARD),
    "hard limit, own request": End(sleeps, {**HARD, "Request": OwnRequest}),
    "hard limit, hook raises": End(sleeps, {**HARD, "on_failure": fails_too}),
    "hard limit, not acked": End(sleeps, {**HARD, "acks_on_failure_or_timeout": False}),
    "revoked": End(returns, worker="waiting"),
    "terminated": End(sleeps),
    "expired": End(returns, options={"expires": 0.5}, worker="waiting"),
    "exits": End(exits, LONG, worker="lossy"),
    "child killed": End(dies, LONG, worker="lossy"),
    "child killed, rejected": End(dies, {**ENDED, "reject_on_worker_lost": True}, worker="copied"),
    "child killed, retried": End(dies, {**ENDED, "retry_on_worker_lost": True, "default_retry_delay": 0}, {}, "copied"),
    "worker killed": End(sleeps, worker="killed"),
    "warm": End(waits, worker="warm"),
    "warm twice": End(waits, worker="twice"),
    "soft": End(waits, worker="soft"),
    "soft, too long": End(sleeps, worker="soft"),
    "cold": End(sleeps, worker="cold"),
    "cold, solo": End(sleeps, worker="solo-{acks}"),
    "not stored as started": End(
        returns, {"track_started": True, "backend": NotYet(app=app, url=os.environ["RESULT_URL"])}
    ),
    **{
        f"{pool}: {name}": End(body, task, worker=pool)
        for name, body, task in [
            ("soft limit", outlasts_its_limit, SOFT),
            ("hard limit", outlasts_its_limit, HARD),
            ("terminated", waits, {}),
            ("exits", exits, {}),
        ]
        for pool in ("threads", "gevent")
    },
    "threads: cold": End(outlasts_its_limit, worker="threads-cold"),
}
if VERSION < (5, 5):
    del ENDS["soft"], ENDS["soft, too long"]
if not hasattr(Task, "retry_on_worker_lost"):
    del ENDS["child killed, retried"]
#: Those whose end the child records.
KILLED = (
    "returns", "raises", "retries", "retries too often", "autoretry", "autoretry too often", "replaces", "ignores",
    "rejects", "requeues", "soft limit, caught", "soft limit", "not encoded",
)  # fmt: skip
close = Execution.close


def close_or_die(self: Execution, *arguments: Any, **options: Any) -> None:
    if self.window.entry.endswith("/killed") and self.window.attempt == 1 and self.state != "recorded":
        os.kill(os.getpid(), signal.SIGKILL)
    close(self, *arguments, **options)


Execution.close = close_or_die  # type: ignore[method-assign]


@app.task(bind=True)
def replacement(self: Any, entry: str) -> None:
    ledger.write("replacement", entry=entry, scheduled=self.window.scheduled)


@window_published.connect
def note_published(window: Any, **_: Any) -> None:
    note("published", window)


@window_overdue.connect
def note_overdue(window: Any, **_: Any) -> None:
    note("overdue", window)


def add(entry: str, end: End, acks: str) -> None:
    def run(self: Any) -> Any:
        seen = self.AsyncResult(self.request.id).state
        info = self.request.delivery_info or {}
        note(
            "start", self.window, seen=seen, redelivered=bool(info.get("redelivered")), retries=self.request.retries,
            worker=self.request.hostname,
        )  # fmt: skip
        result = end.body(self, len(ledger.read("start", entry=entry)))
        note("finish", self.window)
        return result

    app.task(run, bind=True, name=f"ends.{entry}", acks_late=acks == "late", **end.task)
    queue = "lossy" if acks == "killed" else end.worker.format(acks=acks)
    app.conf.beat_schedule[entry] = {
        "task": f"ends.{entry}",
        "schedule": timedelta(minutes=1),
        "options": {"queue": queue, "once": {"anchor": DUE}, **end.options},
    }


for name, end in ENDS.items():
    for acks in ACKS:
        if acks != "killed" or name in KILLED:
            add(f"{name}/{acks}", end, acks)
