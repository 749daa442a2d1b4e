"""Send alerts: a window is late, has ended and isn't done, or has paused its entry.

The step that decides something of that kind adds an event to a stream (``features/alerts``). A beat's sweep
sees that there are events. The beat takes them, sends each, and then confirms that to the store:

- it dies or sleeps before it sends one: any beat takes it after ``publish_timeout``;
- it dies between send and confirm: the same, so it is sent twice. An OnceTask of ``on_failure`` is a child of the
  window (``features/keyed/children``), so it is executed once; another task comes twice, with the same id;
- it can't send it (no such entry, broker away): it puts it back for another beat.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from celery_once_beat import signals
from celery_once_beat.beat.entry import BeatEntry
from celery_once_beat.beat.guard import guard
from celery_once_beat.beat.part import BeatPart
from celery_once_beat.beat.stopping import held_back
from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, SettingError, StoreUnavailableError
from celery_once_beat.features.keyed.task import Child
from celery_once_beat.features.orders.store import Order, write_orders
from celery_once_beat.logs import Logged, about, get_logger, log_window
from celery_once_beat.lookup import EntrySeen, Lookup
from celery_once_beat.settings import BEAT_TTL
from celery_once_beat.store import Overdue, Published
from celery_once_beat.windows import Window, WindowKey, alert_id, format_instant

from .reasons import BY_FAILURES, end_words, how_ended, why_late
from .store import Alert, alerted, drop_alert, take_alerts

logger = get_logger(__name__)

#: New alerts taken per shard and sweep.
_MOST = 100
#: History records searched for a late window that has just ended.
_RECORDS = 50


class Part(BeatPart):
    """Sends the alerts that one beat takes."""

    def __init__(self, beat: Any) -> None:
        super().__init__(beat)
        #: The shards in which the last sweep has found some.
        self._shards: Sequence[int] = ()
        #: Keys that can't be read, and tasks that can't be sent, as they were logged.
        self._logged = Logged(math.inf)
        #: By task: until when (``clock.steady``) it isn't tried, since the broker refused it, or may have.
        self._refused: dict[str, float] = {}

    def on_made(self, entries: Iterable[BeatEntry]) -> None:
        """Warn of tasks of ``on_failure`` that this app doesn't know: a worker has to."""
        for entry in entries:
            task = entry.policy.on_failure
            if task is not None and task not in self._beat.app.tasks and self._logged.is_new(("on_failure", task)):
                logger.warning(
                    "once: entry %r, on_failure: this app doesn't know the task %r; it is sent all the same, by the "
                    "app's routes, so a worker has to know it",
                    entry.name,
                    task,
                    extra=about("on_failure_unknown", entry=entry.name, task=task),
                )

    def after_sweep(self, found: Overdue, replies: Sequence[Any]) -> Iterable[WindowKey]:
        """Note where there are alerts."""
        self._shards = found.with_work("alerts")
        return ()

    def work(self) -> None:
        """Send alerts, as many as there is time for. Raises StoreUnavailableError."""
        if self._shards:
            with held_back():
                self._send_due(self._shards)

    def _send_due(self, shards: Sequence[int]) -> None:
        until = steady() + min(self._beat.store.settings.publish_timeout / 2, BEAT_TTL / 3)
        alerts, away = self._take(shards)
        entries = self._beat.recovery.find({alert.window for alert in alerts})
        late = {alert.window.entry for alert in alerts if alert.deadline is not None}
        seen = Lookup(self._beat.store).entries([*late], _RECORDS)
        for alert in alerts:
            if steady() > until:
                break  # after publish_timeout any beat takes what is left
            extra = about("window_unreadable", alert.window, owner=self._beat.beat_id)
            with guard(partial(self._log_once, extra=extra), timed=False, asks=True):
                what = "left"
                if alert.window in entries:
                    what = self._send_one(alert, entries[alert.window], seen.get(alert.window.entry))
                alerted(self._beat.store, alert, what)
        if away is not None:
            raise away

    def _take(self, shards: Sequence[int]) -> tuple[list[Alert], StoreUnavailableError | None]:
        """Take alerts; returns why some can't be: of a cluster one node may be away."""
        taken: list[Alert] = []
        away = None
        for shard, reply in zip(shards, take_alerts(self._beat.store, shards, _MOST), strict=True):
            extra = about("shard_unreadable", shard=shard)
            if isinstance(reply, StoreUnavailableError):
                away = reply
                continue
            if isinstance(reply, OnceError):
                self._log_once(str(reply), extra)
                continue
            taken += reply.found
            for event, found in reply.foreign:
                self._log_once(f"foreign data is dropped from the alerts of shard {shard}: found {found}", extra)
                drop_alert(self._beat.store, shard, event)
        return taken, away

    def _send_one(self, alert: Alert, entry: BeatEntry | None, seen: EntrySeen | None) -> str:
        """Send one alert; returns what became of it, as the store records it."""
        if entry is None:
            return "unknown"
        window = Window(alert.window.entry, alert.window.start, None)
        if alert.kind == "late":
            self._send_late(alert, window, seen)
        elif alert.kind == "paused":
            self._send_paused(alert, entry, window)
        elif entry.policy.on_failure is None:
            return "unknown"
        elif not self._send_ended(alert, entry.policy.on_failure, window):
            return "left"
        return "sent"

    def _send_late(self, alert: Alert, window: Window, seen: EntrySeen | None) -> None:
        if alert.ended is not None:
            state, why = alert.ended.outcome, how_ended(alert.ended)
        else:
            assert seen is not None, "else nobody has looked at the entry"
            of_start = [each for each in seen.windows if each.start == window.start]
            # What was ordered to run again has a record of before.
            found = min(of_start, key=lambda each: each.open is None, default=None)
            if found is not None and found.state == "done":
                return
            if found is not None and found.open is not None and alert.deadline is not None:
                state = "overdue" if alert.deadline <= self._beat.clock.now() else found.state
                found = replace(found, state=state, deadline=alert.deadline)
            state, why = why_late(found, seen.account)
        owner = self._beat.beat_id
        log_window(logger, logging.ERROR, "window_late", window, "is late: %s", why, state=state, owner=owner)
        signals.window_late.send(sender=self._beat, window=window, state=state, why=why)

    def _send_paused(self, alert: Alert, entry: BeatEntry, window: Window) -> None:
        by, note = BY_FAILURES, alert.note
        log_once = partial(self._log_once, extra=about("window_unreadable", window, owner=self._beat.beat_id))
        if entry.stored:  # its definition is paused too, unless somebody has resumed it since
            words = json.dumps({"by": by, "note": note})
            with guard(log_once, timed=False, asks=True):
                self._beat.store.set_paused(entry.name, words, paused=True, only_still=True)
        request_id = alert_id(self._beat.store.settings.key_prefix, window.entry, window.start, "paused")
        order = Order("pause", window.entry, by, note, format_instant(window.start))
        with guard(log_once, timed=False, asks=True):
            write_orders(self._beat.store, {request_id: order})
        logger.error(
            "once: entry %r is paused: %s. Its windows aren't claimed until somebody resumes it",
            window.entry,
            note,
            extra=about("entry_paused_by_failures", window, owner=self._beat.beat_id),
        )
        signals.entry_paused.send(sender=self._beat, window=window, note=note)

    def _send_ended(self, alert: Alert, task: str, window: Window) -> bool:
        """Send the task; returns False where it is to be tried again."""
        ended = alert.ended
        assert ended is not None, "else it is no alert of that kind"
        if steady() < self._refused.get(task, 0.0):
            return False  # the broker has just refused it: each try may cost a connection
        kwargs = {
            "entry": window.entry,
            "start": format_instant(window.start),
            "outcome": ended.outcome,
            "error": end_words(ended),
        }
        known, at = self._beat.app.tasks.get(task), format_instant(ended.at)
        sent_as = alert_id(self._beat.store.settings.key_prefix, window.entry, window.start, at)
        send = partial(self._beat.app.send_task, task) if known is None else known.apply_async
        if self._open_child(known, at, window, kwargs):
            published, why = Published.SENT, ""
        else:
            published, why = self._beat.publish_once(partial(send, kwargs=kwargs, task_id=sent_as))
        extra = about("on_failure_unsendable", window, task=task, owner=self._beat.beat_id)
        if published == Published.IMPOSSIBLE:
            self._log_once(f"the task {task!r} (on_failure of {window.entry!r}) can't be sent: {why}", extra)
        elif published == Published.UNSURE and why:
            if task not in self._refused:
                logger.error(
                    "once: the task %r (on_failure of %r) isn't sent, and is tried again: %s",
                    task, window.entry, why, extra=extra,
                )  # fmt: skip
            self._refused[task] = steady() + self._beat.store.settings.publish_timeout
        elif published == Published.SENT:
            self._refused.pop(task, None)
            more = {"task": task, "outcome": ended.outcome, "owner": self._beat.beat_id}
            what = "is %s: the task %s is sent"
            log_window(logger, logging.INFO, "on_failure_sent", window, what, ended.outcome, task, **more)
        return published != Published.UNSURE

    def _open_child(self, task: Any, at: str, window: Window, kwargs: dict[str, str]) -> bool:
        """Have the task executed as a child of the window, which is recovered; a beat's next sweep publishes it.

        Returns False where nobody would close its window, or where Redis may not keep its message.
        """
        if not getattr(task, "once_closes_windows", False) or self._beat.app.conf.task_always_eager:
            return False
        try:
            child = Child(task, at, window, None, None, tracked=True).tracked((), kwargs, {})
        except (SettingError, TypeError):  # once_beat_runtime_tasks doesn't allow it, or it takes other arguments
            return False
        child.open(overdue_in=0.0)
        self._beat.recovery.hurry()
        return True

    def _log_once(self, text: str, extra: dict[str, object]) -> None:
        if self._logged.is_new(text):
            logger.error("once: %s", text, extra=extra)
