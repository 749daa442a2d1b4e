"""Messages that wait in a worker for their turn: its death is seen after a lease, its life keeps them from others."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from processes import wait_until
from system import System

from celery_once_beat.windows import format_instant

pytestmark = pytest.mark.long

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
        score = client.zscore(keys.open(system.store.shard_of(entry)), f"{entry}@{format_instant(start)}")
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


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_what_a_rate_limit_holds_back(system: System, pool: str) -> None:
    """The store knows that it waits. A copy of what ran takes no token: there is one an hour, and it is refused."""
    system.settings = {"worker_prefetch_multiplier": 16, "once_beat_start_timeout": START_TIMEOUT, "once_beat_lease": 3}
    system.task, system.entries = {"rate_limit": "1/h"}, entries(0.05)
    system.beat()
    wait_until(lambda: system.waiting() == 4, "all are published", 60)
    first, *others = system.queued()
    system.purge()
    for message in (first, first, *others):
        system.put(message)
    system.worker(pool=pool).wait_ready()
    wait_until(lambda: len(system.ledger.read("refused")) == 1, "the copy is refused", 60)
    (ran,) = [event["entry"] for event in system.ledger.read("start")]
    waiting = {"long", *RESERVED} - {ran}
    wait_until(lambda: all(left(system, name) <= 4 for name in waiting), "the store knows of the others", 60)
    until = time.monotonic() + 9
    wait_until(lambda: time.monotonic() > until, "they wait for longer than a lease", 60)
    assert all(0 < left(system, name) <= 4 for name in waiting)
    system.procs.end()
