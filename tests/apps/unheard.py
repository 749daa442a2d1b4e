"""Nothing listens to how a window of ``once_app`` ends, so a success isn't recorded at once: import it for that.

The ledger has ``recorded`` all the same, and ``waits`` for each end that waits. ``WITHIN`` says for how many seconds.
"""

from __future__ import annotations

import os

from apps.once_app import ledger, note, note_closed, note_recorded

from celery_once_beat import signals
from celery_once_beat.store import Finished
from celery_once_beat.worker import leases
from celery_once_beat.worker.execution import Execution

signals.window_succeeded.disconnect(note_recorded)
signals.window_closed.disconnect(note_closed)
assert not signals.window_succeeded.receivers
assert not signals.window_closed.receivers
leases.WITHIN = float(os.environ.get("WITHIN", leases.WITHIN))
end_soon, end_answered, signal_closed = leases.Leases.end_soon, Execution._end_answered, Execution.signal_closed


def waits(self: leases.Leases, end: leases.End) -> None:
    end_soon(self, end)
    ledger.write("waits", entry=end.lease.renewal.window.entry)


def answered(self: Execution, reply: object) -> None:
    if isinstance(reply, Finished):
        note("recorded", self.window)
    end_answered(self, reply)


def closed(self: Execution, outcome: str) -> None:
    signal_closed(self, outcome)
    if outcome == "done":
        note("recorded", self.window)


leases.Leases.end_soon = waits  # type: ignore[method-assign]
Execution._end_answered = answered  # type: ignore[method-assign]
Execution.signal_closed = closed  # type: ignore[method-assign]
