"""Ends that wait to be recorded: which ones may, and what becomes of them until the store has answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from celery.states import SUCCESS
from deliveries import Worker, told
from processes import wait_until

from celery_once_beat import signals
from celery_once_beat.errors import StoreUnavailableError
from celery_once_beat.store.verbs import Store, store_of
from celery_once_beat.worker import leases as leases_module
from celery_once_beat.worker.leases import Leases, leases_of


def leases(worker: Worker) -> Leases:
    return leases_of(store_of(worker.app))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread leaves ends to the next begin."""
    monkeypatch.setattr(leases_module, "WITHIN", 3600.0)


@pytest.mark.parametrize("name", ["window_succeeded", "window_closed"])
def test_a_receiver_of_one_signal(worker: Worker, patient: None, name: str) -> None:
    """It hears of the end before the task's process goes on, whichever of the two it listens to."""
    signal, heard = getattr(signals, name), []

    def hear(**arguments: Any) -> None:
        heard.append(arguments["window"])

    others, signal.receivers = signal.receivers, []
    signal.connect(hear)
    try:
        worker.trace(lambda: "worked")
    finally:
        signal.receivers = others
        signal.sender_receivers_cache.clear()
    assert len(heard) == 1
    assert worker.account.counts == {"done": 1}


def test_a_retry_that_is_not_thrown(worker: Worker, patient: None, caplog: pytest.LogCaptureFixture) -> None:
    """The body goes on and returns: the window is the retry's, this execution has no end that could wait."""
    assert worker.trace(lambda: worker.task.retry(throw=False, countdown=0) and None) == SUCCESS
    assert not leases(worker)._ends
    leases_module._record_all()
    assert told(caplog) == []
    assert worker.account.counts == {}


def test_a_store_that_does_not_answer_at_once(
    new_worker: Callable[..., Worker], redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread keeps the end, and sends it again."""
    worker = new_worker(redis_url, once_beat_lease=30.0)
    together, away = Store.finish_many, iter([True, True])

    def late(self: Store, endings: Any) -> Any:
        endings = list(endings)
        return [StoreUnavailableError("away")] * len(endings) if next(away, False) else together(self, endings)

    monkeypatch.setattr(Store, "finish_many", late)
    with caplog.at_level(logging.WARNING):
        worker.trace(lambda: "worked")
        wait_until(lambda: worker.account.counts == {"done": 1}, "it is sent again", 60)
    assert told(caplog) == []
