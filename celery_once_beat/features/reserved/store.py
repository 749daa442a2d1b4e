"""The verb by which a worker records the messages that wait in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_once_beat.errors import OnceError
from celery_once_beat.store import Confirmed, Store, Unchanged
from celery_once_beat.store.scripts import MESSAGE, WINDOW, Verb
from celery_once_beat.windows import WindowKey


def _read(reply: list[Any]) -> Confirmed | Unchanged:
    return Confirmed() if reply[0] == "received" else Unchanged()


RECEIVE = Verb("receive", "entry open run", f"{WINDOW} {MESSAGE} length:span holder", _read, feature="reserved")


def receive_many(
    store: Store, received: Iterable[tuple[WindowKey, int, float, str]]
) -> list[Confirmed | Unchanged | OnceError]:
    """Say of windows that a message waits in this worker, with its retry number, and for how many seconds at most.

    After those the window is overdue, unless it is recorded again. The last of each is who has it, see
    ``lua/receive.lua``. Returns for each :class:`Unchanged` where that
    message would be refused.
    """
    return store.trip.run(
        [
            store.of_window(RECEIVE, window, retry=retry, length=length, holder=holder)
            for window, retry, length, holder in received
        ]
    )
