"""Alerts, sent once for a window: it isn't done in time, it ended and isn't done, its failure has paused the entry.

The store keeps each until it is due (``store/lua/pieces/notices.lua``). A beat's sweep finds it. The beat takes it,
sends it, and then confirms that to the store:

- it dies or sleeps before it sends it: after ``publish_timeout`` any beat does;
- it dies after it, and before it confirms: the same, so it is sent twice. The task of ``on_failure`` has the same id;
- the reply to either request is lost: it is sent again, and is answered the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from celery.utils.log import get_logger

from celery_once_beat import signals
from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.logs import about, guarded
from celery_once_beat.settings import BEAT_TTL
from celery_once_beat.store import Alert, AlertDetails, Forgotten, Order, Published, Store
from celery_once_beat.windows import Window, WindowKey, alert_id, format_instant

from .entries import BeatEntry, Entries
from .guard import guard
from .reasons import end_words, why_late
from .server_clock import ServerClock

logger = guarded(get_logger(__name__))

#: Alerts that are taken together; each has to be sent before ``publish_timeout`` is over.
_SLICE = 10
#: Sends a task by name, with its arguments and its id. Returns what became of the message, and why it wasn't sent.
Send = Callable[[str, Mapping[str, Any], str], tuple[Published, str]]


class Alerts:
    """Sends the alerts that one beat's sweep has found."""

    def __init__(
        self, store: Store, beat: str, clock: ServerClock, entries: Entries, sender: object, send: Send
    ) -> None:
        self._store = store
        self._beat = beat
        self._clock = clock
        self._entries = entries
        #: The ``sender`` of signals.
        self._sender = sender
        self._send = send
        #: What was logged of keys that can't be read, and of tasks that can't be sent.
        self._logged: set[str] = set()
        #: By task: until when (``clock.steady``) it isn't tried, since the broker refused it, or may have.
        self._refused: dict[str, float] = {}

    def send_due(
        self, found: Sequence[Alert], entries: Mapping[WindowKey, BeatEntry | None], *, broker: Callable[[], bool]
    ) -> list[WindowKey]:
        """Send what a sweep has found, as much as there is time for.

        ``entries`` has None where this beat has no such entry. ``broker``: whether it answers; a task is to be sent.
        Returns the windows whose alerts were moved. Raises StoreUnavailableError.
        """
        known = [alert for alert in found if alert.window in entries]
        if any(alert.kind == "ended" for alert in known) and not broker():
            known = [alert for alert in known if alert.kind != "ended"]
        until = steady() + min(self._store.settings.publish_timeout / 2, BEAT_TTL / 3)
        moved: list[WindowKey] = []
        for position in range(0, len(known), _SLICE):
            asked = [
                (alert, _can_send(alert, entries[alert.window]))
                for alert in known[position : position + _SLICE]
                if not self._is_refused(alert, entries[alert.window])
            ]
            for (alert, _), reply in zip(asked, self._store.take_alerts(self._beat, asked), strict=True):
                if steady() > until:
                    return moved
                if isinstance(reply, StoreUnavailableError):
                    raise reply
                if isinstance(reply, OnceError):
                    self._log_once(str(reply), about("window_unreadable", alert.window, owner=self._beat))
                elif isinstance(reply, (AlertDetails, Forgotten)):
                    moved.append(alert.window)
                    entry = entries[alert.window]
                    if isinstance(reply, AlertDetails) and entry is not None and not self._is_refused(alert, entry):
                        self._try(alert.window, partial(self._send_and_confirm, alert, entry, reply))
        return moved

    def _is_refused(self, alert: Alert, entry: BeatEntry | None) -> bool:
        """Whether the broker has just refused the task that it takes: each try may cost a connection."""
        task = entry.policy.on_failure if entry is not None and alert.kind == "ended" else None
        return task is not None and steady() < self._refused.get(task, 0.0)

    def _try(self, window: WindowKey, step: Callable[[], object]) -> None:
        """Do a step. What it raises is logged, and stops no other. Raises StoreUnavailableError."""
        extra = about("window_unreadable", window, owner=self._beat)
        with guard(lambda why: self._log_once(why, extra), timed=False, asks=True):
            step()

    def _send_and_confirm(self, alert: Alert, entry: BeatEntry, details: AlertDetails) -> None:
        if self._send_one(alert, entry, details):
            self._store.confirm_alert(alert, details.turn)

    def _send_one(self, alert: Alert, entry: BeatEntry, details: AlertDetails) -> bool:
        """Send one alert; returns False where it is to be sent again later."""
        window = Window(alert.window.entry, alert.window.start, None)
        match alert.kind:
            case "late":
                self._send_late(entry, window, details)
            case "paused":
                self._send_paused(entry, window, details)
            case _:
                return self._send_ended(entry, window, details)
        return True

    def _send_late(self, entry: BeatEntry, window: Window, details: AlertDetails) -> None:
        state, why = why_late(details, self._entries.queue(entry), self._clock.now())
        logger.error(
            "once: window %s of %r is late: %s",
            format_instant(window.start),
            window.entry,
            why,
            extra=about("window_late", window, state=state, owner=self._beat),
        )
        signals.window_late.send(sender=self._sender, window=window, state=state, why=why)

    def _send_paused(self, entry: BeatEntry, window: Window, details: AlertDetails) -> None:
        note, key = details.paused_for, WindowKey(window.entry, window.start)
        if entry.stored:  # its definition is to say so, too, unless somebody has resumed it since
            words = json.dumps({"by": details.paused_by, "note": note})
            pause = partial(self._store.set_paused, entry.name, words, paused=True, only_still=True)
            self._try(key, pause)
        call = alert_id(self._store.settings.key_prefix, window.entry, window.start, "paused")
        order = Order("pause", window.entry, details.paused_by, note, format_instant(window.start))
        self._try(key, partial(self._store.note, order, call))
        logger.error(
            "once: entry %r is paused: %s. Its windows aren't claimed until somebody resumes it",
            window.entry,
            note,
            extra=about("entry_paused_by_failures", window, owner=self._beat),
        )
        signals.entry_paused.send(sender=self._sender, window=window, note=note)

    def _send_ended(self, entry: BeatEntry, window: Window, details: AlertDetails) -> bool:
        task, ended = entry.policy.on_failure, details.ended
        assert task is not None, "else it is another beat's to send"
        assert ended is not None, "else there is nothing to say"
        kwargs = {
            "entry": window.entry,
            "start": format_instant(window.start),
            "outcome": ended.outcome,
            "error": end_words(details),
        }
        sent_as = alert_id(self._store.settings.key_prefix, window.entry, window.start, format_instant(ended.at))
        published, why = self._send(task, kwargs, sent_as)
        extra = about("on_failure_unsendable", window, task=task, owner=self._beat)
        if published == Published.IMPOSSIBLE:
            self._log_once(f"the task {task!r} (on_failure of {window.entry!r}) can't be sent: {why}", extra)
        elif published == Published.UNSURE and why:
            if task not in self._refused:
                logger.error(
                    "once: the task %r (on_failure of %r) isn't sent, and is tried again: %s",
                    task, window.entry, why, extra=extra,
                )  # fmt: skip
            self._refused[task] = steady() + self._store.settings.publish_timeout
        elif published == Published.SENT:
            self._refused.pop(task, None)
            logger.info(
                "once: window %s of %r is %s: the task %s is sent",
                kwargs["start"], window.entry, ended.outcome, task,
                extra=about("on_failure_sent", window, task=task, outcome=ended.outcome, owner=self._beat),
            )  # fmt: skip
        return published != Published.UNSURE

    def _log_once(self, text: str, extra: dict[str, object]) -> None:
        if text not in self._logged:
            self._logged.add(text)
            logger.error("once: %s", text, extra=extra)


def _can_send(alert: Alert, entry: BeatEntry | None) -> bool:
    """Whether this beat can send it: its schedule has the entry, and for an end the entry's ``on_failure``."""
    return entry is not None and (alert.kind != "ended" or entry.policy.on_failure is not None)
