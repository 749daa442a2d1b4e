"""A scheduler whose ticks fail while the file ``FAILS`` is there."""

import os
from pathlib import Path

from celery_once_beat import OnceScheduler


class Failing(OnceScheduler):
    def poll_schedule(self):
        if Path(os.environ["FAILS"]).exists():
            raise LookupError("no such\n[CRITICAL] thing")
        return super().poll_schedule()
