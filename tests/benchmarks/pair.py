"""The app of real beats: ``COUNT`` entries, due at ``DUE``, for ``celery beat -S once`` or RedBeat's (``SUBJECT``)."""

from __future__ import annotations

import os
from datetime import timedelta

from benchmarks.app import app
from benchmarks.subjects import every, plain_entries

_count, _due = int(os.environ["COUNT"]), float(os.environ["DUE"])
if os.environ["SUBJECT"] == "once":
    _apart, _task = float(os.environ.get("APART", "0")), os.environ.get("TASK", "bench.once")
    app.conf.beat_schedule = every(_count, _due, timedelta(hours=1), _apart, _task)
else:
    app.conf.beat_schedule = plain_entries(_count, _due)
