"""An execution owns its window while its lease runs; a worker, what waits in it for its turn; and nobody else does."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from processes import wait_until
from system import System, rare

from celery_once_beat.store import shard_of
from celery_once_beat.windows import format_instant

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


START_TIMEOUT = 600.0
RESERVED = ("one", "two", "three")


def entries(seconds: float) -> dict[str, Any]:
    """A long body, then three short ones; each has one window while a test lasts."""
    first = datetime.now(timezone.utc) + timedelta(seconds=5)
    names = {"long": (first, seconds), **dict.fromkeys(RESERVED, (first + timedelta(seconds=2), 0.05))}
    return {
        name: {"task": "apps.once_app.work", "args": [lasts], "every": 300.0, "anchor": format_instant(start)}
        for name, (start, lasts) in names.items()
    }


def left(system: System, entry: str) -> float:
    """Seconds to the deadline of the entry's open window, by the store's clock; the most where there is none."""
    account, keys = system.store.account(entry), system.store.keys
    if account is None or not account.open:
        return START_TIMEOUT
    (start,) = account.open
    with system.client() as client:
        seconds, micro = client.time()
        score = client.zscore(keys.of_shard("open", shard_of(entry)), f"{entry}@{format_instant(start)}")
    return START_TIMEOUT if score is None else score / 1000 - seconds - micro / 1e6


def wait_told(system: System, number: int = len(RESERVED)) -> None:
    """Wait until the first body runs, and the store knows of so many other messages that wait in the same worker."""
    near = system.settings["once_beat_lease"] + 1
    wait_until(lambda: sum(left(system, name) <= near for name in RESERVED) == number, "the store knows of them", 120)
    assert [event["entry"] for event in system.ledger.read("start")] == ["long"]


# A full pool of greenlets lets a worker receive one message and no more.
@pytest.mark.parametrize(("pool", "reserved"), [("prefork", 3), ("threads", 3), ("gevent", 1)])
def test_a_killed_worker_is_missed_after_a_lease(system: System, pool: str, reserved: int) -> None:
    """What it had reserved runs elsewhere, at once, and not when its message may be waiting for too long."""
    system.settings = {"worker_prefetch_multiplier": 4, "once_beat_start_timeout": START_TIMEOUT, "once_beat_lease": 3}
    doomed = system.worker("doomed", pool=pool).wait_ready()
    system.entries = entries(500.0)
    system.beat()
    wait_told(system, reserved)
    doomed.kill()
    system.worker("other", pool="threads", concurrency=4)
    for name in RESERVED:
        wait_until(lambda name=name: system.outcomes(name) == {"done": 1}, f"{name} is done", 120)
    wait_until(lambda: len(system.ledger.read("start", entry="long")) == 2, "the long one runs again", 60)
    attempts = {event["entry"]: event["attempt"] for event in system.ledger.read("start")}
    assert attempts == {"long": 2, **dict.fromkeys(RESERVED, 1)}
    system.procs.end()


def test_a_worker_that_is_busy_keeps_what_it_has_reserved(system: System) -> None:
    """For longer than two leases nothing of it is published again. What comes at a time of its own isn't touched."""
    system.settings = {"worker_prefetch_multiplier": 8, "once_beat_start_timeout": START_TIMEOUT, "once_beat_lease": 8}
    system.worker(pool="prefork").wait_ready()
    system.entries = entries(19.0)
    system.entries["later"] = {**system.entries["long"], "options": {"countdown": 250}}
    beat = system.beat()
    wait_told(system)
    assert left(system, "later") > START_TIMEOUT
    for name in RESERVED:
        wait_until(lambda name=name: system.outcomes(name) == {"done": 1}, f"{name} is done", 120)
    assert left(system, "later") > START_TIMEOUT
    assert "is overdue" not in beat.log
    assert not system.ledger.read("refused")
