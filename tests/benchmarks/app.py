"""The app of every benchmark: a task that does nothing and some of several ms, once with each project's task base.

Every body counts itself, so that what is measured is known to have been executed. The environment says where the
servers are (``BROKER``, ``STORE``), where the counts go (``COUNTS``), which processes work for a worker (``ALSO``), and
how many messages a stretch has whose time is sampled, and how many kinds there are (``SAMPLED``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO

from benchmarks.sampled import Samples
from benchmarks.stretches import LASTING
from celery import Celery, Task
from celery_once import QueueOnce
from celery_singleton import Singleton

from celery_once_beat import OnceTask

QUEUE = "bench"
BROKER, STORE = os.environ["BROKER"], os.environ["STORE"]
BASES = {"plain": Task, "once": OnceTask, "celery-once": QueueOnce, "celery-singleton": Singleton}


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
    # A pair that is meant to survive a beat: RedBeat's lock is to be lost within this time, in seconds. A beat alone
    # has RedBeat's default: loading or sending 10,000 takes longer, and it ends when it finds its lock lost.
    redbeat_lock_timeout=300 if os.environ.get("WAIT") else 5,
    beat_max_loop_interval=1 if os.environ.get("PAIR") else None,
    **({"once_beat_lease": float(os.environ["LEASE"])} if "LEASE" in os.environ else {}),
)


@cache
def _counts(_pid: int) -> IO[bytes]:
    path = Path(os.environ["COUNTS"], str(os.getpid()))
    return path.open("ab", buffering=0)


@cache
def _clocks(parent: int) -> list[int]:
    """The CPU clocks of the server, and of the worker's main process, as Linux numbers them."""
    processes = [*map(int, os.environ.get("ALSO", "").split()), *([parent] if "PREFORK" in os.environ else [])]
    return [~process << 3 | 2 for process in processes]


@cache
def _samples() -> Samples:
    return Samples(Path(os.environ["COUNTS"], "samples"))


def ran(number: int) -> None:
    """Note that a body ran: its number, when, and the CPU seconds that its process and the others have used by then."""
    others = sum(map(time.clock_gettime, _clocks(os.getppid())))
    if "SAMPLED" in os.environ:
        count, kinds = map(int, os.environ["SAMPLED"].split())
        _samples().kind = number // count % kinds if number // count >= kinds else -1
    _counts(os.getpid()).write(b"%d %.6f %.6f %.6f\n" % (number, time.time(), time.process_time(), others))


def nothing(number: int) -> None:
    ran(number)


def lasting(ms: int) -> Callable[[int], None]:
    def last(number: int) -> None:
        time.sleep(ms / 1000)
        ran(number)

    return last


for _kind, _base in BASES.items():
    app.task(nothing, name=f"bench.{_kind}", base=_base)
    for _ms in LASTING:
        app.task(lasting(_ms), name=f"bench.{_kind}.{_ms} ms", base=_base)


@app.task(name="bench.long", base=OnceTask)
def long(number: int) -> None:
    """The first time it would take for ever; whoever takes over is quick."""
    first = not Path(os.environ["COUNTS"], f"long-{number}").exists()
    Path(os.environ["COUNTS"], f"long-{number}").touch()
    ran(number)
    if first:
        time.sleep(600)
