"""What a window does while another of its entry runs, and what becomes of one that failed: by task and by entry."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
import redis
from processes import wait_until
from system import System

from celery_once_beat.features.orders.store import backfill_many
from celery_once_beat.rules import EndRules
from celery_once_beat.settings import Settings
from celery_once_beat.store import Ending, Store
from celery_once_beat.store.model import (
    Begun,
    Claimed,
    ClaimRequest,
    Closed,
    Confirmation,
    LoadRequest,
    Renewal,
    Renewed,
    Stale,
    Taken,
    Unchanged,
    Waits,
)
from celery_once_beat.windows import WindowKey, format_instant

LONG = {"task": "apps.once_app.work", "every": 1.0, "args": [3.5]}


@pytest.mark.parametrize("by", ["app", "task", "entry"])
@pytest.mark.long
def test_skip(system: System, by: str) -> None:
    """Of an entry's windows one runs at a time; those that come meanwhile are skipped, recorded, and the law holds."""
    system.entries = {"tick": dict(LONG)}
    system.settings = {"once_beat_lease": 30.0}  # nobody dies, and nobody is to be taken for dead
    if by == "app":
        system.settings["once_beat_overlap"] = "skip"
    elif by == "task":
        system.task = {"once_overlap": "skip"}
        system.settings["once_beat_overlap"] = "allow"
    else:
        system.entries["tick"]["options"] = {"once": {"overlap": "skip"}}
    worker, beat = system.worker(concurrency=3).wait_ready(), system.beat()
    wait_until(lambda: system.outcomes().get("skipped", 0) >= 4, "windows are skipped", 60)
    system.settle([beat])
    outcomes = system.outcomes()
    assert set(outcomes) == {"done", "skipped"}
    times = sorted(
        (event["mono"], event["kind"]) for event in system.ledger.read() if event["kind"] in {"start", "finish"}
    )
    running = 0
    for _, kind in times:
        running += 1 if kind == "start" else -1
        assert running <= 1, times
    assert "is skipped: another window of its entry" in worker.log
    system.check_conservation()


def test_who_counts_as_running(redis_url: str) -> None:
    """A window that runs or waits for its retry; not one whose lease is over, or that is to run again later."""
    store = Store(Settings(redis_url=redis_url))
    start = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(hours=1)
    load = LoadRequest("tick", "beat", "mark", 3600.0, EndRules(max_attempts=9, recover=True, grace=None), known=start)
    store.load_many([load])
    windows = [WindowKey("tick", start + timedelta(minutes=n)) for n in range(6)]
    for before, window in itertools.pairwise(windows):
        store.claim_many("beat", [ClaimRequest(window, before.start, "mark")])
    _, first, second, third, fourth, fifth = windows

    def begin(window: WindowKey, owner: str, retry: int = 0) -> object:
        return store.begin(window, owner, 30.0, retry, overlap="skip")

    fence = begin(first, "A").fence
    assert begin(second, "B") == Closed("skipped")
    assert begin(second, "B") == Closed("skipped"), "its reply was lost"
    store.hand_over(first, "A", fence, 1, 60.0, 600.0)
    assert begin(third, "C") == Closed("skipped"), "its retry is to come"
    fence = begin(first, "A", 1).fence
    with redis.Redis.from_url(redis_url) as client:
        now = client.time()[0] * 1000
        client.zadd(store.keys.open(store.shard_of("tick")), {f"tick@{format_instant(first.start)}": now})
    assert begin(fourth, "D") == Closed("skipped"), "the first is overdue: it may be dead, and goes first"
    store.finish(Ending(first, "A", fence, "failed", 60.0))
    assert isinstance(begin(fifth, "E"), Begun), "the first runs again in a minute"
    assert store.account("tick").counts == {"skipped": 3}
    store.close()


def test_who_waits_and_who_comes_back(redis_url: str) -> None:
    """One that died, or was ordered, waits instead. One that was out of contact isn't let in beside another."""
    store = Store(Settings(redis_url=redis_url))
    start = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(hours=1)
    store.load_many(
        [LoadRequest("tick", "beat", "mark", 3600.0, EndRules(max_attempts=9, recover=True, grace=None), known=start)]
    )
    first, second, third = (WindowKey("tick", start + timedelta(minutes=n)) for n in (1, 2, 3))
    for before, window in itertools.pairwise([WindowKey("tick", start), first, second, third]):
        store.claim_many("beat", [ClaimRequest(window, before.start, "mark")])
    key, member = store.keys.open(store.shard_of("tick")), f"tick@{format_instant(first.start)}"
    with redis.Redis.from_url(redis_url) as client:
        fence = store.begin(first, "A", 30.0, overlap="skip").fence
        client.delete(*client.keys("once:*run:tick:*"))  # its lease runs out
        client.zadd(key, {member: 1.0})
        client.hdel(store.entry_key("tick"), "running")  # an older version let the next one begin
        other = store.begin(second, "B", 30.0, overlap="skip")
        assert isinstance(other, Begun)
        assert store.renew_many([Renewal(first, "A", fence, 30.0, tracked=True)]) == [Stale()]
        store.finish(Ending(second, "B", other.fence, "done"))
        assert store.renew_many([Renewal(first, "A", fence, 30.0, tracked=True)]) == [Renewed()], "nobody began since"
        assert store.begin(third, "D", 30.0, overlap="skip") == Closed("skipped"), "it runs again, so it blocks again"
        store.finish(Ending(first, "A", fence, "done"))
    assert isinstance(backfill_many(store, [(second, "order-1")], 5.0)[0], Claimed)
    assert isinstance(backfill_many(store, [(third, "order-2")], 5.0)[0], Claimed)
    assert isinstance(store.begin(second, "E", 30.0, overlap="skip"), Begun)
    assert store.begin(third, "F", 30.0, overlap="skip") == Waits(second.start)
    late = store.confirm_many([Confirmation(third, 1, 1, 600.0)])
    assert late == [Unchanged()], "it waits already: that copy is gone"
    assert store.account("tick").counts == {"done": 2, "skipped": 1}
    store.close()


@pytest.fixture
def tick(redis_url: str) -> Iterator[tuple[Store, list[WindowKey], redis.Redis]]:
    """Five windows of an entry, claimed; its limit is two executions."""
    store = Store(Settings(redis_url=redis_url))
    start = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(hours=1)
    store.load_many(
        [LoadRequest("tick", "beat", "mark", 3600.0, EndRules(max_attempts=2, recover=True, grace=None), known=start)]
    )
    windows = [WindowKey("tick", start + timedelta(minutes=n)) for n in range(6)]
    for before, window in itertools.pairwise(windows):
        store.claim_many("beat", [ClaimRequest(window, before.start, "mark")])
    with redis.Redis.from_url(redis_url) as client:
        yield store, windows[1:], client
    store.close()


def die(store: Store, client: redis.Redis, window: WindowKey, seconds_ago: float = 0.001) -> None:
    """Its lease has run out, and its deadline has passed."""
    client.delete(*client.keys(f"once:*run:tick:{format_instant(window.start)}"))
    now = client.time()[0] * 1000 - seconds_ago * 1000
    client.zadd(store.keys.open(store.shard_of("tick")), {f"tick@{format_instant(window.start)}": now}, xx=True)


def overdue(store: Store) -> set[WindowKey]:
    shards = store.overdue("beat", datetime.now(timezone.utc), 100).shards
    return {window for window in shards[store.shard_of("tick")] if window is not None}


def test_who_has_begun_before_goes_first(tick: tuple[Store, list[WindowKey], redis.Redis]) -> None:
    """Dead, it keeps new ones back; where another runs, it waits, and is the next."""
    store, (first, second, third, fourth, fifth), client = tick

    def begin(window: WindowKey, owner: str) -> object:
        return store.begin(window, owner, 30.0, overlap="skip")

    def take(window: WindowKey) -> object:
        return store.take_many("beat", [(window, "mark")])[0]

    begin(first, "A")
    die(store, client, first)
    assert begin(second, "B") == Closed("skipped")
    # An older version lets new ones begin.
    client.hdel(store.entry_key("tick"), "running")
    other = begin(third, "C")
    assert isinstance(other, Begun)
    assert take(first) == Unchanged("waits")
    assert first not in overdue(store)
    store.finish(Ending(third, "C", other.fence, "done"))
    assert first in overdue(store)
    assert begin(fourth, "D") == Closed("skipped"), "it waits, and is to go next"
    assert isinstance(take(first), Taken)
    assert begin(fifth, "E") == Closed("skipped"), "its message is on its way"
    assert begin(first, "F").attempt == 2
    assert store.account("tick").counts == {"done": 1, "skipped": 3}


@pytest.mark.parametrize("why", ["its limit is reached", "nobody takes it", "put off"])
def test_who_cant_run_again_keeps_nobody_from_running(tick, why: str) -> None:
    """No beat has its entry any more, or none lives, or all its executions died: new ones go on."""
    store, (first, second, *_), client = tick
    for owner in ("A", "B") if why == "its limit is reached" else ("A",):
        assert isinstance(store.begin(first, owner, 30.0, overlap="skip"), Begun)
        die(store, client, first, 61.0 if why == "nobody takes it" else 0.001)
    if why == "put off":
        assert store.postpone_many("beat-2", [(first, "unknown")], 3600.0) == ["postponed"]
    if why == "nobody asks for it":
        asked = f"{format_instant(first.start)} {(client.time()[0] - 61) * 1000}"
        client.hset(store.entry_key("tick"), "waiting", asked)
    assert isinstance(store.begin(second, "C", 30.0, overlap="skip"), Begun)
