"""What a worker's main process does every so often: one thread, with a store of its own, as that of ``errands``.

The core has one duty: the worker reports that it lives, and which queues it consumes. So beats publish nothing again
that nobody would get. A change by ``add_consumer`` or ``cancel_consumer`` is in the next report.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

from celery import Celery
from celery.signals import worker_shutdown, worker_shutting_down
from celery.worker import state

from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.features import hooks
from celery_once_beat.identity import worker_name
from celery_once_beat.logs import Logged, about, get_logger
from celery_once_beat.settings import WORKER_REPORTS, Settings, name_broker
from celery_once_beat.store import Store

logger = get_logger(__name__)

#: Seconds until the next try, if one was in vain. What waited while Redis was away is soon published again.
_AGAIN = 1.0
#: Most queues that are named; ``-`` stands for the others.
_MOST = 200

#: Returns after how many seconds it is due again; None: not any more.
Duty = Callable[[Store], "float | None"]


#: Consumers of Celery's → what ends their duties.
_stopped: WeakKeyDictionary[Any, threading.Event] = WeakKeyDictionary()


def start_duties(consumer: Any) -> None:
    """Start the duties of the worker that has this consumer of Celery's. Called again, it changes nothing."""
    if consumer not in _stopped:
        of_features = [hook(consumer) for hook in hooks("worker", "on_consumer")]
        duties = [partial(report_queues, ref(consumer)), *of_features]
        _stopped[consumer] = do_duties(consumer.app, worker_name(consumer.hostname), duties)


@worker_shutting_down.connect(weak=False)  # from here on it consumes nothing, and its bodies may still run for long
@worker_shutdown.connect(weak=False)
def _stop(**_: Any) -> None:
    for stopped in list(_stopped.values()):
        stopped.set()


def do_duties(app: Celery, owner: str, duties: Iterable[Duty]) -> threading.Event:
    """Do the duties of a worker, ``owner``, from now on in a thread; returns what ends them."""
    stopped = threading.Event()
    threading.Thread(target=partial(_do, app, owner, duties, stopped), name="once-duties", daemon=True).start()
    return stopped


def _do(app: Celery, owner: str, duties: Iterable[Duty], stopped: threading.Event) -> None:
    store, logged = Store(Settings.from_app(app)), Logged()
    #: When each is due, by ``clock.steady``.
    due = dict.fromkeys(duties, steady())
    while due and not stopped.wait(max(min(due.values()) - steady(), 0.0)):
        if state.should_stop is not None or state.should_terminate is not None:
            break
        duty = min(due, key=due.__getitem__)
        try:
            seconds = duty(store)
            logged.end(duty)
        except Exception as exc:  # noqa: BLE001  # whatever becomes of one try, the next one may do better
            seconds = _AGAIN
            lasts = isinstance(exc, OnceError) and not isinstance(exc, StoreUnavailableError)
            log = logger.warning if lasts and logged.is_new(duty, str(exc)) else logger.debug  # what people can mend
            log("once: this worker can't say what it does: %s", exc, extra=about("consumed_unsaid", owner=owner))
        del due[duty]
        if seconds is not None:
            due[duty] = steady() + seconds
    with suppress(OnceError):  # then readers see when it was heard of last
        store.consume_no_more(owner)
    store.close()


def report_queues(of: ref[Any], store: Store) -> float | None:
    """Report which queues a consumer of Celery's consumes."""
    consumer = of()
    if consumer is None:
        return None
    queues = [queue.name for queue in consumer.task_consumer.queues] if consumer.task_consumer else []
    if not queues:  # its connection to the broker is yet to come, or is lost
        return _AGAIN
    named = queues if len(queues) <= _MOST else [*queues[:_MOST], "-"]
    store.consume(worker_name(consumer.hostname), name_broker(consumer.app.connection_for_read()), named)
    return WORKER_REPORTS
