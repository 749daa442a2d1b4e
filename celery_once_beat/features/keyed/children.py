"""Children that beats recover: each is a window as an entry's, whose message Redis keeps until the window has ended.

The caller opens the window, publishes the message and confirms that, as a beat does with an entry's window. If it dies:

- before it has opened the window: the parent runs again, and opens it;
- between that and the confirm: the window is overdue after ``claim_lease``. A beat takes it, and publishes it from what
  is kept; the worker refuses a second copy;
- after that, as an entry's window: whatever is lost, a beat publishes it again, until an execution ends it.

The parent's second execution finds the window open, or ended, and sends nothing.
"""

from __future__ import annotations

import logging
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError

from celery_once_beat.beat.outgoing import OutgoingMessages
from celery_once_beat.errors import OnceError, SettingError
from celery_once_beat.logs import get_logger, log_window
from celery_once_beat.rules import EntryPolicy, Timing
from celery_once_beat.schedules import Definition, OneOff
from celery_once_beat.store import Claimed, Confirmation, Published, store_of
from celery_once_beat.windows import CHILD, Window, WindowKey, task_id
from celery_once_beat.wording import failure_words, printable

from .store import note_child, open_child

if TYPE_CHECKING:
    from celery_once_beat.worker import OnceTask

logger = get_logger(__name__)


class TrackedChild:
    """One call of a task as a window that starts with its parent. Raises SettingError for what can't be kept."""

    def __init__(
        self, task: OnceTask, name: str, parent: Window, args: Any, kwargs: Any, options: dict[str, Any]
    ) -> None:
        self._task, self._args, self._kwargs, self._options = task, args, kwargs, options
        self._store = store_of(task.app)
        settings = self._store.settings
        self.key = WindowKey(f"{CHILD}:{name}", parent.start)
        self._sent_as = task_id(settings.key_prefix, self.key.entry, parent.start)
        self._note = note_child(self._store, parent, self.key.entry, self._sent_as)
        if task.typing:
            task.__header__(*(args or ()), **(kwargs or {}))  # type: ignore[attr-defined]  # celery-types lacks it
        try:
            definition = Definition.of(
                task.name, OneOff(parent.start), args=args, kwargs=kwargs, options=options, once={"tracked": True}
            )
            definition.check_tasks(settings)
        except SettingError as exc:
            raise SettingError(f"{name}, tracked: {exc}") from None
        self._message = definition.text()
        self._policy = EntryPolicy.of(name, None, task, settings)
        self._timing = Timing.of(name, options, task, task.app.timezone)

    def open(self, overdue_in: float | None = None) -> bool:
        """Open its window; a beat publishes it in ``overdue_in`` seconds, unless this caller does.

        Returns False if it was open, or has ended. Raises StoreUnavailableError: then it may be open or not.
        """
        expires = self._timing.expires_after(datetime.now(timezone.utc))
        asked = (self._store, self.key, f"{CHILD}:{uuid.uuid4().hex}", self._message, self._policy)
        reply = open_child(*asked, expires=expires, overdue_in=overdue_in, note=self._note)
        return isinstance(reply, Claimed)

    def publish(self) -> Any:
        """Publish it once it is open, and confirm that; returns its result.

        Raises what ``apply_async`` raises, but for a broker that is away. Then a beat tries it all the same.
        """
        policy, key = self._policy, self.key
        window = Window(key.entry, key.start, None, lease=policy.lease, limit=policy.limit)
        sent_as = self._sent_as
        outgoing = OutgoingMessages(sent_as, window, key.entry)
        headers = {**(self._options.get("headers") or {}), **outgoing.headers}
        options = {**self._options, "task_id": sent_as, "headers": headers}
        published = Published.UNSURE
        try:
            with outgoing.watched():
                result = self._task.apply_async(self._args, self._kwargs, **options)
            outgoing.results.add(Published.SENT)
            outgoing.promised = getattr(result, "id", None) == sent_as
            published = Published.ASTRAY if outgoing.lost else outgoing.published
        except OperationalError as exc:
            why = printable(failure_words(exc, "message"))
            log_window(logger, logging.WARNING, "child_unsent", key, "isn't published, a beat tries it again: %s", why)
            return self._task.AsyncResult(sent_as)
        finally:
            self._confirm(published, outgoing)
        return result

    def _confirm(self, published: Published, outgoing: OutgoingMessages) -> None:
        if published == Published.ASTRAY:
            what = "isn't recovered: %s. Does its task's apply_async keep the options 'task_id' and 'headers'?"
            log_window(logger, logging.ERROR, "child_astray", self.key, what, outgoing.lost)
        wait = self._policy.start_timeout + self._timing.delay(datetime.now(timezone.utc))
        try:
            self._store.confirm_many([Confirmation(self.key, 1, published, wait, outgoing.queue)])
        except OnceError as exc:
            # A beat publishes it again; the worker refuses that copy.
            logger.debug("once: %s not confirmed: %s", self.key.entry, exc)
