"""The app of the demo, written as any app that uses the package.

It also runs by hand, with a Redis on the default port and as many of each as you like::

    celery -A examples.ha_pair.app worker
    celery -A examples.ha_pair.app beat -S once
"""

from __future__ import annotations

import os
import time

from celery import Celery

from celery_once_beat import OnceTask
from celery_once_beat.signals import window_claimed, window_published, window_refused

from .ledger import Ledger

#: Stands before every key, the broker's too, so that the demo can share a server with others.
PREFIX = os.environ.get("HA_PAIR_PREFIX", "ha-pair:")

ledger = Ledger(os.environ.get("HA_PAIR_LEDGER", os.devnull), os.environ.get("HA_PAIR_NAME", "?"))

app = Celery("ha_pair", broker=os.environ.get("HA_PAIR_URL", "redis://localhost"), task_cls=OnceTask)
app.conf.update(
    broker_transport_options={"global_keyprefix": PREFIX},
    broker_connection_retry_on_startup=True,
    once_beat_key_prefix=PREFIX + "once:",
    # Shorter than the defaults, so that a short demo shows what follows a death.
    once_beat_publish_timeout=2,
    once_beat_start_timeout=5,
    once_beat_lease=3,
    once_beat_recovery_interval=0.5,
    beat_schedule={
        "heartbeat": {"task": "examples.ha_pair.app.heartbeat", "schedule": 1.0},
        "report": {"task": "examples.ha_pair.app.report", "schedule": 3.0},
        "cleanup": {"task": "examples.ha_pair.app.cleanup", "schedule": 5.0},
    },
)


@app.task(bind=True)
def heartbeat(self):
    with ledger.execution(self.window):
        pass


@app.task(bind=True)
def report(self):
    with ledger.execution(self.window):
        time.sleep(2)


@app.task(bind=True)
def cleanup(self):
    with ledger.execution(self.window):
        time.sleep(0.2)


# What a beat or a worker does for a window, for the account of the demo. In your app: metrics, an alert.


@window_claimed.connect
def note_claimed(window, **_):
    ledger.write("claimed", window)


@window_published.connect
def note_published(window, again, **_):
    ledger.write("published", window, again=again)


@window_refused.connect
def note_refused(window, reason, **_):
    ledger.write("refused", window, reason=reason)
