"""The app of the integration tests, and tasks whose windows wait and do what tasks may do."""

from __future__ import annotations

import json

from apps.once_app import app, note


@app.task(bind=True, max_retries=5)
def retries(self, text, times=3):
    """Retry, and say what came along with the message."""
    size = len(json.dumps(vars(self.request).get("headers") or {}, default=str))
    note("start", self.window, retries=self.request.retries, size=size)
    if self.request.retries < times:
        raise self.retry(countdown=0)
    note("finish", self.window, retries=self.request.retries)
