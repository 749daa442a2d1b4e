"""Plain code and child tasks that run once a window; as cron: ``python -m apps.keyed_app KEY EVERY [SECONDS]``."""

from __future__ import annotations

import os
import sys
import time

from celery import Celery
from ledger import Ledger

from celery_once_beat import OnceTask, once
from celery_once_beat.windows import format_instant

ledger = Ledger(os.environ["LEDGER"])
app = Celery("keyed_app", broker=os.environ["BROKER_URL"], task_cls=OnceTask)
app.conf.update(
    once_beat_redis_url=os.environ["STORE_URL"],
    once_beat_lease=1.5,
    once_beat_recovery_interval=0.3,
    once_beat_publish_timeout=1.0,
    task_default_queue=os.environ["QUEUE"],
    broker_connection_retry_on_startup=True,
)


@app.task(bind=True)
def mail(self, user):
    ledger.write("start", entry=self.window.entry, start=format_instant(self.window.start), user=user)
    if user == "fails":
        raise ValueError("no such user")
    if user == "twice" and self.request.retries == 0:
        raise self.retry(countdown=0)
    ledger.write("finish", entry=self.window.entry, start=format_instant(self.window.start), user=user)


def main() -> None:
    key, every, seconds = sys.argv[1], sys.argv[2], float((sys.argv[3:] or ["0"])[0])
    with once(key, every=every, url=os.environ["STORE_URL"], lease=3.0) as window:
        if window is None:
            ledger.write("refused", entry=key)
            return
        fields = {"entry": key, "start": format_instant(window.start), "fence": window.fence}
        ledger.write("start", **fields)
        time.sleep(seconds)
        ledger.write("finish", held=window.held, **fields)


if __name__ == "__main__":
    main()
