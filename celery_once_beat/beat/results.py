"""What the result backend knows of windows that were published more than once and that no worker began.

Workers that were rolled back to plain tasks execute them, and know no windows: the result is the only trace. A thread
asks for it, so a backend that is slow or away holds up nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from celery.backends.base import DisabledBackend
from celery.utils.log import get_logger

from celery_once_beat.logs import guarded
from celery_once_beat.windows import WindowKey

if TYPE_CHECKING:
    from celery import Celery

logger = guarded(get_logger(__name__))

#: At most this many windows are asked for, the latest.
_MOST = 100
#: Seconds until the first question, and at most between two. Each wait is twice the last.
_STEPS = (1.0, 300.0)
#: Failures of messages whose body didn't run or whose process died, stored by Celery or raised by this package. A time
#: limit may end a task while it waits for its begin, too.
_DID_NOT_RUN = {
    "NotRegistered", "WorkerLostError", "WorkerShutdown", "WorkerTerminate", "Terminated", "SoftTimeLimitExceeded",
    "TimeLimitExceeded", "HeaderError", "NewerVersionError", "SettingError", "StoreDataError", "StoreUnavailableError",
    "UncertainWriteError",
}  # fmt: skip


class Results:
    """One beat's questions. Only its thread waits; every method returns at once."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        #: Window → its task id, when to ask for it (time.monotonic()), and how long to wait then.
        self._watched: dict[WindowKey, tuple[str, float, float]] = {}
        #: The windows whose result has come, each with the outcome that it says.
        self.found: deque[tuple[WindowKey, str]] = deque()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopped = False

    def watch(self, window: WindowKey, task_id: str) -> None:
        """Ask for ``window``, until its result is there."""
        if window in self._watched or self._stopped:
            return
        for oldest in list(self._watched)[: len(self._watched) + 1 - _MOST]:
            self._watched.pop(oldest, None)
        self._watched[window] = task_id, time.monotonic() + _STEPS[0], _STEPS[0]
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="once-results", daemon=True)
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Ask for nothing more; doesn't wait for an answer."""
        self._stopped = True
        self._watched.clear()
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped:
            watched = list(self._watched.items())
            now = time.monotonic()
            for window, (task_id, at, step) in watched:
                if at <= now:
                    self._check_result(window, task_id, step)
            if watched:
                time.sleep(_STEPS[0] / 2)
            else:
                self._wake.wait()
                self._wake.clear()

    def _check_result(self, window: WindowKey, task_id: str, step: float) -> None:
        try:
            outcome = self._ask(task_id)
        except Exception as exc:  # noqa: BLE001  # every backend has errors of its own
            logger.debug("once: the result backend doesn't answer: %s", exc)
            outcome = None
        if outcome is not None:
            self._watched.pop(window, None)
            self.found.append((window, outcome))
        elif window in self._watched:
            step = min(step * 2, _STEPS[1])
            self._watched[window] = task_id, time.monotonic() + step, step

    def _ask(self, task_id: str) -> str | None:
        """Return the outcome that the result says, None where it says none."""
        backend: Any = self._app.backend  # one a thread
        if isinstance(backend, DisabledBackend) or type(backend).__module__ == "celery.backends.rpc":
            self.stop()  # results aren't kept, or only whoever sent the message can read them
            return None
        meta = backend.get_task_meta(task_id, cache=False)
        state, result = meta.get("status"), meta.get("result")
        if state == "FAILURE" and type(result).__name__ in _DID_NOT_RUN:
            return None
        if state == "REVOKED" and str(result) == "expired":
            return None  # a worker's clock says so, which may be ahead. What has expired by the server's, a take ends
        return {"SUCCESS": "done", "FAILURE": "failed", "REVOKED": "revoked"}.get(state)
