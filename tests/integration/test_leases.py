"""An execution owns its window while its lease runs, and nobody else does."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from processes import wait_until
from system import System, rare

pytestmark = pytest.mark.long

LEASE = 3.0
LONG = 7.0  # more than two leases


def start_one(system: System, task: str = "work", seconds: float = LONG) -> dict[str, Any]:
    """Let one long window begin; returns what its body says of it. Two workers are there."""
    system.settings = {"once_beat_lease": LEASE}
    for n in (1, 2):
        system.worker(f"worker{n}").wait_ready()
    system.entries = {"tick": {"task": f"apps.once_app.{task}", "args": [seconds], **rare()}}
    system.beat()
    (begun,) = wait_until(lambda: system.ledger.read("start"), "it begins", 60)
    system.store.set_paused("tick", paused=True)
    return begun


def check_the_second_counts(system: System, start: str) -> None:
    """The first one is stale, its lease isn't held, and its fence is the lower."""
    (recorded,) = wait_until(lambda: system.ledger.read("recorded", start=start), "it is recorded", 60)
    (stale,) = wait_until(lambda: system.ledger.read("stale", start=start), "the first one learns it", 60)
    first, second = system.ledger.read("start", start=start)
    assert [first["attempt"], second["attempt"]] == [1, 2]
    assert (stale["fence"], recorded["fence"]) == (first["fence"], second["fence"])
    assert second["fence"] > first["fence"]
    held = {event["fence"]: event["held"] for event in system.ledger.read("finish", start=start)}
    assert held == {first["fence"]: False, second["fence"]: True}
    assert system.outcomes() == {"done": 1}


def test_a_body_longer_than_its_lease(system: System) -> None:
    """The lease is renewed while the body runs: no other worker begins, and window.held stays true."""
    start = start_one(system)["start"]
    wait_until(lambda: system.recorded()[start] == 1, "it is done", 60)
    assert len(system.ledger.read("start", start=start)) == 1
    (finish,) = system.ledger.read("finish", start=start)
    assert finish["held"] is True
    assert system.outcomes()["done"] == 1


def test_a_worker_that_wakes_while_another_executes(system: System) -> None:
    """A worker frozen past its lease wakes up while another executes its window: it is stale, the other counts.

    Its late success is neither recorded nor reported as a result, its lease isn't held, and its fence is the lower.
    """
    system.result_url = system.store_url
    begun = start_one(system)
    start = begun["start"]
    frozen = next(proc for proc in system.procs if f"{proc.name}@" in begun["worker"])
    frozen.pause()
    wait_until(lambda: len(system.ledger.read("start", start=start)) == 2, "another begins", 60)
    frozen.resume()
    wait_until(lambda: len(system.ledger.read("finish", start=start)) == 2, "both bodies come to their end", 60)
    wait_until(lambda: not system.account().open, "it is done", 60)
    check_the_second_counts(system, start)
    assert "succeeded" not in frozen.log


def test_a_call_that_holds_the_gil(system: System) -> None:
    """A C call that holds the GIL past the lease stops its renewal: another executes, and the late one is stale."""
    begun = start_one(system, "stubborn", 12.0)
    # Its main process doesn't hold the GIL of the child, and would take the second copy for it.
    holder = next(proc for proc in system.procs if f"{proc.name}@" in begun["worker"])
    holder.signal(signal.SIGSTOP, main_only=True)
    check_the_second_counts(system, begun["start"])
