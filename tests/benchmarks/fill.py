"""Fill the queue for a worker: ``python -m benchmarks.fill '{"kinds": ["plain", "windows"], "count": 1000, …}'``.

The parameters are those of :class:`Stretches`. Windows are claimed in the store, without a beat. A message without a
window has as many headers as one of a window, of the same length.
"""

from __future__ import annotations

import json
import sys
import uuid
from datetime import timedelta

from benchmarks.app import app
from benchmarks.claimed import ClaimedWindows
from benchmarks.stretches import KINDS, Stretches

from celery_once_beat.store import store_of
from celery_once_beat.windows import Window, WindowKey, encode_headers

HOUR = timedelta(hours=1)


def fill(stretches: Stretches) -> None:
    claimed = ClaimedWindows(store_of(app), stretches.count, HOUR, ago=100 * HOUR)
    numbers = iter(range(stretches.total))
    with app.producer_pool.acquire() as producer:
        for kind in stretches.in_order:
            task = app.tasks[f"bench.{KINDS[kind]}{stretches.task}"]
            for window in claimed.publish() if kind == "windows" else claimed.windows:
                sent_as = str(uuid.uuid4())
                headers = headers_of(window, sent_as, real=kind == "windows")
                task.apply_async((next(numbers),), task_id=sent_as, headers=headers, producer=producer)


def headers_of(key: WindowKey, sent_as: str, *, real: bool) -> dict[str, str | int]:
    headers = encode_headers(Window(key.entry, key.start, key.start + HOUR), sent_as)
    return headers if real else {name.replace("once_", "none_"): value for name, value in headers.items()}


if __name__ == "__main__":
    fill(Stretches(**json.loads(sys.argv[1])))
