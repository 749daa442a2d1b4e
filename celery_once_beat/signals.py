"""Signals about windows. A receiver that raises is logged by Celery and stops nothing.

Each is sent with ``sender`` (the scheduler, the task, or the ``once`` object of a key) and ``window`` (a ``Window``).
To learn how every window ends, connect to ``window_closed`` alone.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.utils.dispatch import Signal

from .errors import from_signal

_logger = logging.getLogger(__name__)

_arguments = ["window"]


class _Signal(Signal):
    def send(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        """As Celery's, which lets a receiver's sys.exit() end the process."""
        if not self.receivers:
            return []
        try:
            sent: list[tuple[Any, Any]] = super().send(sender, **named)
        except SystemExit as exc:
            if from_signal(exc):
                raise
            _logger.exception("Signal handler of %r raised", self)  # as Celery says it
            return []
        return sent


#: In beat: this beat won the window.
window_claimed = _Signal(name="window_claimed", providing_args=_arguments)
#: In beat: the window's message went to the broker; ``again`` is True if the window was recovered.
window_published = _Signal(name="window_published", providing_args=[*_arguments, "again"])
#: In beat: the window is overdue, and this beat publishes it again.
window_overdue = _Signal(name="window_overdue", providing_args=_arguments)
#: In the worker's child: the body starts, with its lease.
window_started = _Signal(name="window_started", providing_args=_arguments)
#: In the worker's child: a copy of the message was refused. The window stays as it is: ``reason`` is ``closed`` if it
#: has its outcome, or says who has it: ``running``, ``waiting for retry n``, ``waiting to run again``, ``handed over to
#: retry n``. Not sent for a window that begins to wait, nor if this delivery's begin itself ends the window: that is
#: ``window_abandoned``.
window_refused = _Signal(name="window_refused", providing_args=[*_arguments, "reason"])
#: In the worker's child: this execution ended after it had lost its lease to another. Nothing was recorded.
window_stale = _Signal(name="window_stale", providing_args=_arguments)

#: A window has its [outcome](glossary.md#outcomes): sent for each ``outcome``, by the process that records it.
#: ``count`` is 1; where a beat passes over several windows at once it is their number, and ``window`` is the newest of
#: them. In the worker's child: what the body came to, and what a limit ended at begin. In the worker's main process,
#: from a thread: a message that was discarded as expired or revoked, and a hard time limit. In beat: what a limit
#: ended, what was passed over, a message that can't be made, and what the result of a window says that no worker has
#: begun. Not sent for windows that a beat only counts as untracked, nor for what somebody orders to end: ``cancelled``.
window_closed = _Signal(name="window_closed", providing_args=[*_arguments, "outcome", "count"])
#: In the worker's child: recorded as done; the body returned, raised Ignore or called ``replace()``, and Celery has
#: done all that it does for the task. A process that has a receiver of this, or of ``window_closed``, records each
#: success at once.
window_succeeded = _Signal(name="window_succeeded", providing_args=_arguments)
#: In the worker's child: recorded as failed; ``exception`` is what the body raised, ``failure`` what is recorded of it
#: (``once_beat_failure_text``). Not sent if the window is retried or runs again later. A failure that has no exception
#: here has only ``window_closed``: a hard time limit kills the child, and a message that can't be made never reaches a
#: worker.
window_failed = _Signal(name="window_failed", providing_args=[*_arguments, "exception", "failure"])
#: In beat: windows were passed over, by ``catch_up`` or ``grace``; ``window`` is the newest, ``count`` their number.
window_missed = _Signal(name="window_missed", providing_args=[*_arguments, "count"])
#: A limit ended the window, and it isn't executed: in beat when it looks at what is overdue, or in the worker's child
#: in place of a begin, as ``once_overlap`` does. Its ``outcome`` says which limit.
window_abandoned = _Signal(name="window_abandoned", providing_args=[*_arguments, "outcome"])

#: In beat: the window isn't done ``deadline`` seconds after its start. ``state`` is how it stands: ``published``,
#: ``running``, ``waiting``, ``buffered``, ``overdue``, or its outcome; ``why`` says it in a sentence. Once for a
#: window; perhaps twice if the beat that says it dies meanwhile.
window_late = _Signal(name="window_late", providing_args=[*_arguments, "state", "why"])
#: In beat: so many windows of the entry failed in a row (``pause_after_failures``) that it is paused. ``window`` is the
#: last of them, ``note`` names them. Once for a pause, with the same exception as ``window_late``.
entry_paused = _Signal(name="entry_paused", providing_args=[*_arguments, "note"])
