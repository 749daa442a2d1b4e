"""The app of the runs with edits: a body says whose arguments it has."""

from __future__ import annotations

import os
import time

from apps.once_app import note
from chaos.app import app
from chaos.entries import EDITS_LEASE

from celery_once_beat import OnceTask

app.conf.once_beat_lease = EDITS_LEASE
app.conf.once_beat_start_timeout = 10.0


@app.task(bind=True, base=OnceTask)
def work(self, edit):
    note("start", self.window, group=os.getsid(0), edit=edit, task_id=self.request.id)
    time.sleep(0.02)
    note("finish", self.window, group=os.getsid(0))
