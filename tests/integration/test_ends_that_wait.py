"""Ends that wait to be recorded: which ones may, and what becomes of them until the store has answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from celery.states import SUCCESS
from deliveries import LEASE, Worker, leases, told
from processes import wait_until

from celery_once_beat import signals
from celery_once_beat.errors import StoreUnavailableError
from celery_once_beat.store.roundtrip import RoundTrip
from celery_once_beat.store.verbs import store_of
from celery_once_beat.worker import leases as leases_module


@pytest.mark.parametrize("name", ["window_succeeded", "window_closed"])
def test_a_receiver_of_one_signal(worker: Worker, patient: None, name: str) -> None:
    """It hears of the end before the task's process goes on, whichever of the two it listens to."""
    signal, heard = getattr(signals, name), []

    def hear(**arguments: Any) -> None:
        heard.append(arguments["window"])

    signal.connect(hear)
    worker.trace(lambda: "worked")
    assert len(heard) == 1
    assert worker.account.counts == {"done": 1}


def test_a_retry_that_is_not_thrown(worker: Worker, patient: None, caplog: pytest.LogCaptureFixture) -> None:
    """The body goes on and returns: the window is the retry's, this execution has no end that could wait."""
    assert worker.trace(lambda: worker.task.retry(throw=False, countdown=0) and None) == SUCCESS
    assert not leases(worker)._ends
    leases_module._record_all()
    assert told(caplog) == []
    assert worker.account.counts == {}


def test_a_store_that_does_not_answer_at_once(new_worker, redis_url, monkeypatch, caplog) -> None:
    """The thread keeps the end, and sends it again; it doesn't wait until the lease is to be renewed."""
    worker = new_worker(redis_url, once_beat_lease=3600.0)
    together, away = RoundTrip.run, iter([True, True])

    def late(self: RoundTrip, ends: Any) -> Any:
        return [StoreUnavailableError("away")] * len(ends) if next(away, False) else together(self, ends)

    monkeypatch.setattr(RoundTrip, "run", late)
    with caplog.at_level(logging.WARNING):
        worker.trace(lambda: "worked")
        wait_until(lambda: worker.account.counts == {"done": 1}, "it is sent again", 60)
    assert told(caplog) == []


def test_a_renewal_behind_the_end(worker: Worker, patient: None, caplog: pytest.LogCaptureFixture) -> None:
    """A begin takes the end along, and the thread renews the lease meanwhile: nobody has lost anything."""
    worker.task.once_lease = 3.0
    worker.trace(lambda: "worked")
    (end,) = leases(worker)._ends
    store_of(worker.app).trip.one(end.request)
    wait_until(lambda: end.lease.state == "over", "its renewal is refused", 60)
    leases_module._record_all()
    assert told(caplog) == []
    assert worker.account.counts == {"done": 1}


def test_a_slot_that_was_given_back_meanwhile(new_worker: Callable[..., Worker], redis_url: str) -> None:
    """The thread renews it all the same, with the leases of others: none of those is left out."""
    worker = new_worker(redis_url, once_beat_limits={"reports": 1})
    worker.task.once_limit = "reports"
    (lease,) = worker.deliver(leases(worker)._held.copy)
    assert lease.renewed_with
    assert leases(worker)._renew([lease])


@pytest.mark.parametrize("stale", [True, False])
def test_two_that_send_one_end(worker: Worker, patient: None, caplog: pytest.LogCaptureFixture, stale: bool) -> None:
    """A begin and the thread: it counts once. If the process stood still, and another has begun, it is said once."""
    worker.task.once_lease = LEASE
    worker.trace(lambda: "worked")
    if stale:
        with worker.frozen():
            worker.begin_elsewhere()
    ends = list(leases(worker)._ends)
    for _ in range(2):
        leases(worker)._record(ends)
    assert told(caplog) == ["window_stale"] * stale
    assert worker.account.counts == ({} if stale else {"done": 1})
