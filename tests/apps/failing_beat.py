"""A scheduler whose ticks fail while the file ``FAILS`` is there; its receivers and hooks always do."""

import os
from pathlib import Path

from celery_once_beat import OnceScheduler, signals


def leave(*args, **kwargs):
    raise SystemExit(3)


signals.window_published.connect(leave)


class Failing(OnceScheduler):
    def poll_schedule(self):
        fails = Path(os.environ["FAILS"])
        if fails.exists() and fails.read_text():
            leave()
        if fails.exists():
            raise LookupError("no such\n[CRITICAL] thing")
        return super().poll_schedule()

    def on_published(self, entry, window, *, again):
        leave()
