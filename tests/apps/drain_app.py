"""The app of the tests of how ends wait: nothing listens to how a window ends, so a success isn't recorded at once.

``WITHIN`` says for how many seconds an end waits. The ledger has ``returned`` for each that waits.
"""

from __future__ import annotations

import os
import time
from typing import Any

from apps.once_app import app, ledger, note, note_closed, note_recorded

from celery_once_beat.signals import window_closed, window_succeeded
from celery_once_beat.worker import leases

window_succeeded.disconnect(note_recorded)
window_closed.disconnect(note_closed)
assert not window_succeeded.receivers
assert not window_closed.receivers
leases.WITHIN = float(os.environ.get("WITHIN", leases.WITHIN))
end_soon = leases.Leases.end_soon


def noted(self: leases.Leases, end: leases.End) -> None:
    end_soon(self, end)
    ledger.write("waits", entry=end.ending.window.entry, attempt=end.lease.attempt)


leases.Leases.end_soon = noted  # type: ignore[method-assign]


def returns(self: Any, together: int = 1) -> None:
    """Return once so many bodies run: no window of them begins when another's end waits."""
    note("start", self.window)
    while len(ledger.read("start")) < together:
        time.sleep(0.02)
    note("finish", self.window)


for acks in ("early", "late"):
    app.task(returns, bind=True, name=f"drain.{acks}", acks_late=acks == "late")


@app.task(bind=True, name="drain.sleeps")
def sleeps(self: Any, seconds: float) -> None:
    """Run without a window, so that it takes no end along."""
    ledger.write("sleeps", of=self.request.id)
    time.sleep(seconds)
