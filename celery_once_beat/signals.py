"""Signals about windows. A receiver that raises is logged by Celery and stops nothing.

Each is sent with ``sender`` (the scheduler or the task) and ``window`` (a ``Window``); what more is named beside it.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = (
    "window_abandoned",
    "window_claimed",
    "window_failed",
    "window_missed",
    "window_overdue",
    "window_published",
    "window_refused",
    "window_stale",
    "window_started",
    "window_succeeded",
)

_arguments = ["window"]

#: In beat: this beat won the window.
window_claimed = Signal(name="window_claimed", providing_args=_arguments)
#: In beat: its message went to the broker; ``again`` is True where it was recovered.
window_published = Signal(name="window_published", providing_args=[*_arguments, "again"])
#: In beat: windows were passed over; ``window`` is the newest of them, ``count`` how many.
window_missed = Signal(name="window_missed", providing_args=[*_arguments, "count"])
#: In beat: something that should have happened didn't, and this beat sees to it.
window_overdue = Signal(name="window_overdue", providing_args=_arguments)
#: In beat, or in the worker's child at begin: a limit ended it; ``outcome`` is abandoned, dropped, expired or missed.
#: Not where a worker's main process discards a message that has expired.
window_abandoned = Signal(name="window_abandoned", providing_args=[*_arguments, "outcome"])
#: In the worker's child: a copy of the message was refused; ``reason`` is ``closed``, or says who has it:
#: ``running``, ``waiting for retry n``, ``waiting to run again``, ``handed over to retry n``. Not where a limit ended
#: the window at begin: that is ``window_abandoned``.
window_refused = Signal(name="window_refused", providing_args=[*_arguments, "reason"])
#: In the worker's child: the body starts, with its lease, or without the store (``once_beat_run_without_store``).
window_started = Signal(name="window_started", providing_args=_arguments)
#: In the worker's child: recorded as done; the body returned, raised Ignore or called ``replace()``.
window_succeeded = Signal(name="window_succeeded", providing_args=_arguments)
#: In the worker's child: recorded as failed; ``exception`` is what the body raised. Neither where it is retried or
#: runs again later, nor where the child can't say it: a hard time limit kills it, and the worker's main process
#: records the failure; a beat records that of a message that can't be made. Both are logged.
window_failed = Signal(name="window_failed", providing_args=[*_arguments, "exception"])
#: In the worker's child: this execution ended after it had lost its lease to another; nothing was recorded.
window_stale = Signal(name="window_stale", providing_args=_arguments)
