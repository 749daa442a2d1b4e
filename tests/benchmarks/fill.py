"""Fill the queue for a worker: ``python -m benchmarks.fill '{"how": "windows", "count": 10000, "task": "…"}'``.

``how`` is ``windows`` (one of each of so many entries, claimed and published by our scheduler) or ``plain`` (the
task base of ``KIND``, sent by apply_async).
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.app import app
from benchmarks.subjects import every, once, tick_until_idle

__all__ = ()


def windows(count: int, task: str) -> None:
    scheduler = once(every(count, time.time() + 1 + count / 4000, task=task))
    while scheduler.entries.next_due() > scheduler.clock.now():
        time.sleep(min(scheduler.tick(), 0.1))
    tick_until_idle(scheduler)


def plain(count: int, task: str) -> None:
    with app.producer_pool.acquire() as producer:
        for number in range(count):
            app.tasks[task].apply_async((number,), producer=producer)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    {"windows": windows, "plain": plain}[asked["how"]](asked["count"], asked["task"])
