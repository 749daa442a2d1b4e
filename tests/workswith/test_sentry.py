"""Sentry Crons, by the real sentry_sdk: what its monitors are told of windows, by a pair of beats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from observed import Observed, SentryServer
from processes import wait_until
from system import System

pytestmark = pytest.mark.long


@pytest.fixture
def sentry() -> Iterator[SentryServer]:
    with SentryServer().running() as server:
        yield server


@pytest.fixture
def observed(system: System, sentry: SentryServer) -> Observed:
    observed = Observed(system, "sentry")
    observed.env["SENTRY_DSN"] = sentry.dsn
    return observed


def told(check_ins: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What was told, and by which process."""
    return [(each["status"], each["environment"]) for each in check_ins]


def wait_told(sentry: SentryServer, entry: str, number: int) -> list[dict[str, Any]]:
    wait_until(lambda: len(sentry.check_ins(entry)) >= number, f"{number} check-ins of {entry}", 60)
    return sentry.check_ins(entry)


def test_one_check_in_a_window_from_the_winner(observed: Observed, sentry: SentryServer) -> None:
    """In progress by the beat that published it, ok by the worker that ran it, under one id; by nobody else."""
    observed.schedule()
    workers = [observed.worker(f"worker{n}") for n in (1, 2)]
    beats = observed.beats()
    entries = observed.settle(8)
    for proc in (*beats, *workers):
        proc.stop()  # what they still have to say, they say at their end
    for entry in entries:
        (winner,) = (beat.name for beat in beats if f"Sending due task {entry} " in beat.log)
        (ran,) = observed.system.ledger.read("finish", entry=entry)
        check_ins = wait_told(sentry, entry, 2)
        assert told(check_ins) == [("in_progress", winner), ("ok", ran["worker"].partition("@")[0])]
        assert len({each["check_in_id"] for each in check_ins}) == 1
        assert check_ins[0]["monitor_config"]["schedule"] == {"type": "interval", "value": 2, "unit": "minute"}
        observed.system.check_each_once(entry)
    assert not observed.system.ledger.read("refused")


def test_a_refused_copy_tells_nothing(observed: Observed, sentry: SentryServer) -> None:
    """A message that comes twice is one check-in, ended once."""
    observed.schedule()
    copies = observed.deliver_again(observed.beats())
    worker = observed.worker()
    entries = observed.settle(copies)
    wait_until(lambda: len(observed.system.ledger.read("refused")) == copies, "the copies are refused", 60)
    worker.stop()
    for entry in entries:
        assert [status for status, _ in told(wait_told(sentry, entry, 2))] == ["in_progress", "ok"]


def test_retries(observed: Observed, sentry: SentryServer) -> None:
    """The window and the monitor's id go with a retry; Sentry's SDK tells each retry as an error, before the end."""
    observed.schedule("retrying", args=[2])
    worker = observed.worker()
    observed.beats()
    entries = observed.settle(2)
    worker.stop()
    for entry in entries:
        starts = observed.system.ledger.read("start", entry=entry)
        assert [event["retries"] for event in starts] == [0, 1, 2]
        assert {event["attempt"] for event in starts} == {1}
        check_ins = wait_told(sentry, entry, 4)
        assert [status for status, _ in told(check_ins)] == ["in_progress", "error", "error", "ok"]
        assert len({each["check_in_id"] for each in check_ins}) == 1
