"""The app of every benchmark: one task that does nothing, as each project would have it, and one that sleeps.

Every body counts itself, so that what is measured is known to have been executed. The environment says where the
servers are (``BROKER``, ``STORE``), which project's task base is used (``KIND``) and where the counts go (``COUNTS``).
"""

from __future__ import annotations

import itertools
import os
import time
from functools import cache
from pathlib import Path
from typing import IO, Any

from celery import Celery

QUEUE = "bench"
BROKER, STORE = os.environ["BROKER"], os.environ["STORE"]
KIND = os.environ.get("KIND", "plain")


def base() -> Any:
    """The task base of the project that ``KIND`` names; None for Celery's own."""
    if KIND == "once":
        from celery_once_beat import OnceTask

        return OnceTask
    if KIND == "celery-once":
        from celery_once import QueueOnce

        return QueueOnce
    if KIND == "celery-singleton":
        from celery_singleton import Singleton

        return Singleton
    return None


app = Celery("bench", broker=BROKER, set_as_current=False)
app.conf.update(
    task_default_queue=QUEUE,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=True,
    once_beat_redis_url=STORE,
    redbeat_redis_url=STORE,
    singleton_backend_url=STORE,
    ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": STORE, "default_timeout": 3600}},
    # A pair that is meant to survive a beat: RedBeat's lock is to be lost within this time, in seconds.
    redbeat_lock_timeout=5,
    beat_max_loop_interval=1 if os.environ.get("PAIR") else None,
    **({"once_beat_lease": float(os.environ["LEASE"])} if "LEASE" in os.environ else {}),
)

_count = itertools.count(1)


@cache
def _counts(_pid: int) -> IO[bytes]:
    path = Path(os.environ["COUNTS"], str(os.getpid()))
    return path.open("ab", buffering=0)


def ran(number: int) -> None:
    """Note that a body ran: its number, and when."""
    _counts(os.getpid()).write(b"%d %.6f\n" % (number, time.time()))


options = {"base": base()} if base() else {}


@app.task(name="bench.nothing", **options)
def nothing(number: int) -> None:
    ran(number)


@app.task(name="bench.short", **options)
def short(number: int) -> None:
    time.sleep(0.05)
    ran(number)


@app.task(name="bench.long", **options)
def long(number: int) -> None:
    """The first time it would take for ever; whoever takes over is quick."""
    first = not Path(os.environ["COUNTS"], f"long-{number}").exists()
    Path(os.environ["COUNTS"], f"long-{number}").touch()
    ran(number)
    if first:
        time.sleep(600)
