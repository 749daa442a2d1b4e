"""Messages that can't be executed now come again later: Redis is away, or a newer version wrote what they are about.

What if the process dies: before the message is published once more it is lost, as any that a dead worker had, and the
window becomes overdue; after it, the copy is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import Ignore, Reject
from celery.utils.log import get_logger

from .errors import StoreUnavailableError
from .logs import about
from .store import store_of

if TYPE_CHECKING:
    from .task import OnceTask

__all__ = ("put_back", "store_answered")

logger = get_logger(__name__)

#: Recovery intervals until a message comes again.
_INTERVALS = 5
#: Why this process is putting messages back. Of a store that doesn't answer only that: how it shows differs from one
#: try to the next.
_reasons: set[str] = set()
_AWAY = StoreUnavailableError.__name__
#: So many texts are remembered: a stranger's messages must not fill the memory.
_MOST = 1000


def put_back(task: OnceTask, request: Any, exc: Exception) -> NoReturn:
    """Publish the same message to come again later, the user's retries untouched; raises Ignore.

    Logged once for each state, since a message may come back many times while it lasts. Raises Reject, to have it
    delivered again, where it can't be published.
    """
    reason = _AWAY if isinstance(exc, StoreUnavailableError) else str(exc)
    countdown = _INTERVALS * store_of(task.app).settings.recovery_interval
    if reason not in _reasons:
        if len(_reasons) >= _MOST:
            _reasons.clear()
        _reasons.add(reason)
        logger.warning("once: messages are put back for %s s: %s", countdown, exc, extra=about("window_put_back"))
    try:
        task.signature_from_request(request, countdown=countdown, retries=request.retries or 0).apply_async()
    except Exception as publish_error:  # noqa: BLE001  # every transport has errors of its own
        # Neither store nor broker: with late acks the broker has it still, else the window stays open.
        raise Reject(publish_error, requeue=True) from exc
    raise Ignore("put back") from exc


def store_answered() -> None:
    """Say so, where this process had put messages back for its silence; the next time is logged again.

    A key or message of a newer version is said once a process: the store's answers about others say nothing of it.
    """
    if _AWAY in _reasons:
        _reasons.discard(_AWAY)
        logger.warning("once: Redis can be used again, messages are executed", extra=about("store_back"))
