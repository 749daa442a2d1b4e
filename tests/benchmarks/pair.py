"""The app of real beats: ``COUNT`` entries, due at ``DUE``, for the scheduler of ``SUBJECT``.

Those of other schedulers are due as soon as they are loaded, unless the environment says ``WAIT``.
"""

from __future__ import annotations

import os
from datetime import timedelta

from benchmarks.app import app
from benchmarks.subjects import every, last_run, plain_entries, write_rows

_wait = "WAIT" in os.environ
_count, _due = int(os.environ["COUNT"]), float(os.environ["DUE"])
if os.environ["SUBJECT"] == "once":
    _apart, _task = float(os.environ.get("APART", "0")), os.environ.get("TASK", "bench.once")
    app.conf.beat_schedule = every(_count, _due, timedelta(hours=1), _apart, _task)
elif os.environ["SUBJECT"] == "django":
    write_rows(_count, last_run(_due, wait=_wait))
else:
    app.conf.beat_schedule = plain_entries(_count, _due, wait=_wait)
