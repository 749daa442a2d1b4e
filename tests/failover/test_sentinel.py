"""The store behind real sentinels: a planned failover, and what WAIT can't promise."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from failover.topology import MASTER, SentinelSet, ask
from processes import wait_until
from servers import need_server

from celery_once_beat.errors import StoreUnavailableError, UncertainWriteError
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.store import Claimed, ClaimRequest, Loaded, LoadRequest, Moved, Store
from celery_once_beat.windows import WindowKey

pytestmark = pytest.mark.long

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)


def load(store: Store, beat: str) -> Any:
    request = LoadRequest("entry", beat, "mark", 86_400.0, EntryPolicy(), known=T0)
    return store.load_many([request])[0]


def claim(store: Store, beat: str, number: int = 1) -> Any:
    start = T0 + timedelta(minutes=number)
    request = ClaimRequest(WindowKey("entry", start), start - timedelta(minutes=1), "mark")
    return store.claim_many(beat, [request])[0]


@pytest.fixture
def two_replicas() -> Iterator[SentinelSet]:
    with SentinelSet(need_server("valkey"), seed=1, replicas=2) as sentinels:
        yield sentinels


def test_a_planned_failover(two_replicas: SentinelSet) -> None:
    """A master that is made a replica while it lives refuses writes: the same store goes on with the new one."""
    before = two_replicas.choose()
    with two_replicas.store(wait_replicas=1) as store:
        assert isinstance(load(store, "beat-1"), Loaded)
        assert isinstance(claim(store, "beat-1"), Claimed)
        assert len(store.trip.clocks()) == 3, "the clocks of all servers can be compared"
        # A sentinel that has just now heard nothing of the replicas refuses.
        wait_until(lambda: ask(two_replicas.sentinels[0], "SENTINEL", "FAILOVER", MASTER), "a failover begins", 60, 0.5)
        wait_until(lambda: two_replicas.choose_or_none() not in (None, before), "another is master", 60)
        wait_until(lambda: (ask(before, "ROLE") or [""])[0] == "slave", "the old one is a replica", 60)
        answers: list[Any] = []

        def goes_on() -> bool:
            try:
                answers.append(claim(store, "beat-1", 2))
            except StoreUnavailableError:
                return False
            return isinstance(answers[-1], Claimed)

        wait_until(goes_on, "claims go on", 60)
        assert claim(store, "beat-2", 2) == Moved(T0 + timedelta(minutes=2))


def test_a_replica_that_lags_and_is_preferred(two_replicas: SentinelSet) -> None:
    """A claim that one of two replicas lacks is uncertain: that one may be promoted.

    With 1 of the two the claim would count, and the window would be claimed twice: what WAIT can't promise.
    """
    master = two_replicas.choose()
    lagging, following = (server for server in two_replicas.data if server is not master)
    with two_replicas.store(wait_replicas=2) as store:
        assert isinstance(load(store, "beat-1"), Loaded)
        lagging.pause()
        # More than the kernel keeps for it: what comes after this is still its master's to send.
        with redis.Redis(port=master.port) as client, client.pipeline(transaction=False) as pipe:
            for number in range(40):
                pipe.set(f"filler:{number}", b"x" * 1_000_000, px=60_000)
            pipe.execute()
            wait_until(lambda: client.wait(1, 1000), "the other replica has them", 60)
        assert isinstance(claim(store, "beat-1"), UncertainWriteError)
    lagging.resume()
    assert following.alive
