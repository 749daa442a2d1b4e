"""A worker says that it lives, and which queues it consumes: beats publish nothing again that nobody would get.

A thread of the main process says so every few seconds, if one of the worker's tasks closes windows, until it shuts
down. What ``add_consumer`` and ``cancel_consumer`` change is said the next time. While Redis is away, the thread tries
every second, so that what waited meanwhile is soon published again.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from celery.signals import worker_shutdown
from celery.utils.log import get_logger
from celery.worker import state

from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.identity import worker_name
from celery_once_beat.logs import Logged, about, guarded
from celery_once_beat.settings import WORKER_SAYS, Settings, name_broker
from celery_once_beat.store import Store

if TYPE_CHECKING:
    from celery import Celery

logger = guarded(get_logger(__name__))

#: Seconds until the next try.
_AGAIN = 1.0
#: Most queues that are named; of more it is said that there are more.
_MOST = 200
#: Consumers of Celery's → what stops their threads.
_saying: WeakKeyDictionary[Any, threading.Event] = WeakKeyDictionary()


def say_consumed(consumer: Any) -> None:
    """Say from now on what this consumer of Celery's consumes. Called again, it changes nothing."""
    if consumer not in _saying:
        stopped = _saying[consumer] = threading.Event()
        run = partial(_run, consumer.app, worker_name(consumer.hostname), ref(consumer), stopped)
        threading.Thread(target=run, name="once-consumed", daemon=True).start()


@worker_shutdown.connect(weak=False)
def _stop(**_: Any) -> None:
    for stopped in list(_saying.values()):
        stopped.set()


def _run(app: Celery, worker: str, of: ref[Any], stopped: threading.Event) -> None:
    store: Store | None = None
    logged = Logged()
    said = False
    while not stopped.wait(WORKER_SAYS if said else _AGAIN):
        consumer = of()
        if consumer is None or state.should_stop is not None or state.should_terminate is not None:
            break
        said = False
        try:
            store = store or Store(Settings.from_app(app))
            queues = _queues_of(consumer)
            if queues:  # else its connection to the broker is yet to come, or is lost
                store.consume(worker, name_broker(app.connection_for_read()), queues)
                said = True
            logged.end(worker)
        except Exception as exc:  # noqa: BLE001  # whatever becomes of one try, the next one may do better
            what = "once: beats can't be told which queues this worker consumes: %s"
            if isinstance(exc, OnceError) and not isinstance(exc, StoreUnavailableError):
                if logged.is_new(worker, str(exc)):
                    logger.warning(what, exc, extra=about("consumed_unsaid", owner=worker))
            else:
                logger.debug(what, exc)
        del consumer
    if store is not None:
        store.close()


def _queues_of(consumer: Any) -> list[str]:
    queues = [] if consumer.task_consumer is None else [queue.name for queue in consumer.task_consumer.queues]
    return queues if len(queues) <= _MOST else [*queues[:_MOST], "-"]
