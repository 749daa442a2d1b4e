"""What a process has one of, although several threads may ask for it first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery

from celery_once_beat.settings import Settings
from celery_once_beat.store import verbs as store
from celery_once_beat.worker import leases


def meeting(make: Callable[..., Any]) -> Callable[..., Any]:
    """``make``, which returns to nobody before two threads are in it."""
    barrier = threading.Barrier(2, timeout=60)

    def met(*arguments: Any) -> Any:
        barrier.wait()
        return make(*arguments)

    return met


def test_two_threads_that_need_the_store_first_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread pool's first two windows go through one store, and so through one set of connections."""
    app = Celery("tests", broker="redis://127.0.0.1:1/0", set_as_current=False)
    monkeypatch.setattr(store, "Store", meeting(store.Store))
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(store.store_of, [app, app])
    assert first is second


def test_two_threads_that_need_a_lease_first_share_its_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread a process renews all leases, also those of two windows that begin at once."""
    of = store.Store(Settings(redis_url="redis://127.0.0.1:1/0"))
    monkeypatch.setattr(leases.leases_of, "_make", meeting(leases.Leases))
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(leases.leases_of.of, [of, of])
    assert first is second
