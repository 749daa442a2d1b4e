"""What a worker's main process does for windows whose task can't: it was killed, or never saw its message."""

from __future__ import annotations

from typing import Any

from celery.signals import task_revoked
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.request import Request

from .errors import OnceError
from .execution import DELIVERY, new_owner
from .logs import about
from .replies import Again, Closed, Finished
from .requests import WindowKey
from .store import store_of
from .windows import Window, decode_headers, find_headers, format_instant

__all__ = ("OnceRequest",)

logger = get_logger(__name__)


class OnceRequest(Request):
    """A delivery of a message, with a name of its own that the child and the main process both know."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self._request_dict[DELIVERY] = new_owner(self.hostname)  # type: ignore[attr-defined]

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001  # the base's
        """A hard limit kills the child, and with it the end of the execution; its outcome is failed.

        What the child had handed over to a retry is the retry's. Whatever the base raises, the execution has ended: it
        stores a result, and newer ones call the task's own hooks, of which each may fail.
        """
        try:
            super().on_timeout(soft, timeout)
        finally:
            self._end_timed_out(soft=soft)

    def _end_timed_out(self, *, soft: bool) -> None:
        task = self.task
        keeps = getattr(task, "acks_on_timeout", None)
        if keeps is None:
            keeps = task.acks_on_failure_or_timeout
        if soft or state.should_terminate or (task.acks_late and not keeps):
            return  # where the broker delivers it again, it is for recovery to run it again
        again = getattr(task, "once_retry_failed_after", None)
        _end(self.app, self.request_dict, "failed", killed=True, again_after=again)


@task_revoked.connect(weak=False)
def _on_revoked(sender: Any, request: Any, *, terminated: bool, expired: bool, **_: Any) -> None:
    if getattr(sender, "once_closes_windows", False):
        _end(sender.app, vars(request), "expired" if expired else "revoked", killed=terminated)


def _end(app: Any, request: dict[str, Any], outcome: str, *, killed: bool, again_after: float | None = None) -> None:
    """Record ``outcome`` of the delivery ``request``; where the store doesn't answer, recovery sees to it."""
    window = None
    try:
        headers = find_headers(request, request.get("headers"))
        window = decode_headers(headers, request.get("id")) if headers else None
        if window is None or not window.tracked:
            return
        if _record(app, request, window, outcome, killed=killed, again_after=again_after):
            logger.info(
                "once: window %s of %r is %s",
                format_instant(window.start),
                window.entry,
                outcome,
                extra=about("window_" + outcome, window, attempt=window.attempt, owner=request.get(DELIVERY)),
            )
    except OnceError as exc:
        logger.error("once: %s not recorded: %s", outcome, exc, extra=about("window_unrecorded", window))


def _record(
    app: Any, request: dict[str, Any], window: Window, outcome: str, *, killed: bool, again_after: float | None
) -> bool:
    store, key = store_of(app), WindowKey(window.entry, window.start)
    owner = request.get(DELIVERY) or new_owner(request.get("hostname"))
    if killed:
        # Only the child was told its fence.
        reply = store.finish(key, owner, 0, outcome, again_after)
        if isinstance(reply, (Finished, Again)):
            return isinstance(reply, Finished)
    if outcome == "failed":
        # Killed while it waited for its begin, or after its lease: nothing failed, recovery may run it again.
        return False
    # Expired or revoked, and not begun by this delivery: a copy that nobody runs closes the window, unless it is an
    # older one.
    retry = request.get("retries") or 0
    return isinstance(store.close_window(key, owner, outcome, retry), Closed)
