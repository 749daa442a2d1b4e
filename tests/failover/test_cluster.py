"""The store on a real Redis Cluster: each node's commands go to it with their WAIT, and nodes may leave and move."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from failover.topology import Cluster, ask
from processes import wait_until
from redis.cluster import key_slot
from servers import RedisServer, free_port, need_server
from steps import heard
from system import System

from celery_once_beat.errors import StoreUnavailableError, UncertainWriteError
from celery_once_beat.features.admission import store as limits
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.settings import Settings, name_broker
from celery_once_beat.store import Ending, Store
from celery_once_beat.store import model as r
from celery_once_beat.windows import WindowKey

pytestmark = pytest.mark.xdist_group("cluster")

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
ENTRIES = [f"entry-{number}" for number in range(40)]
MARK = "mark"


@pytest.fixture(scope="module")
def _whole() -> Iterator[Cluster]:
    with Cluster(need_server("valkey"), seed=1) as cluster:
        yield cluster


@pytest.fixture
def cluster(_whole: Cluster) -> Iterator[Cluster]:
    """The module's cluster, empty, and whole again after the test."""
    for node in _whole.servers:  # no test here wants a failover, and a busy machine may be silent for some seconds
        ask(node, "CONFIG", "SET", "cluster-node-timeout", 15_000)
    for node in _whole.masters():
        ask(node, "FLUSHALL")
        ask(node, "SCRIPT", "FLUSH")
    yield _whole
    for node in _whole.servers:
        if node.paused:
            node.resume()
        if not node.alive:
            node.restart()
    _whole._wait_well()


def load(store: Store, entries: list[str] = ENTRIES) -> list[Any]:
    return store.load_many(r.LoadRequest(entry, "beat-1", MARK, 86_400.0, EntryPolicy(), known=T0) for entry in entries)


def claim(store: Store, entries: list[str] = ENTRIES, beat: str = "beat-1") -> list[Any]:
    return store.claim_many(beat, [r.ClaimRequest(window(entry), T0, MARK) for entry in entries])


def window(entry: str) -> WindowKey:
    return WindowKey(entry, T0 + timedelta(minutes=1))


@contextmanager
def some_gone(cluster: Cluster) -> Iterator[None]:
    """Who asks for what the other nodes have gets it while some are gone; those are started again."""
    for node in cluster.servers:
        ask(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
    try:
        yield
    finally:
        for node in cluster.servers:
            if not node.alive:
                node.restart()
        for node in cluster.servers:
            ask(node, "CONFIG", "SET", "cluster-require-full-coverage", "yes")


def kill_with_replica(cluster: Cluster, node: RedisServer) -> None:
    for server in (cluster.replica_of(node), node):
        os.kill(server.pid, signal.SIGKILL)


def slots_of(node: RedisServer) -> set[int]:
    return {
        slot
        for first, last, master, *_ in ask(node, "CLUSTER", "SLOTS")
        if int(master[1]) == node.port
        for slot in range(int(first), int(last) + 1)
    }


def lives_on(store: Store, node: RedisServer) -> set[str]:
    slots = slots_of(node)
    return {entry for entry in ENTRIES if key_slot(store.entry_key(entry).encode()) in slots}


@pytest.mark.long
def test_each_nodes_replica_speaks_for_that_node(cluster: Cluster) -> None:
    """With wait_replicas a claim is uncertain where its own master's replica is away, and nowhere else."""
    for node in cluster.masters():
        ask(node, "FLUSHALL")
        replica = cluster.replica_of(node)
        with cluster.store(wait_replicas=1) as store:
            mine = lives_on(store, node)
            assert mine
            assert set(ENTRIES) - mine
            assert all(isinstance(reply, r.Loaded) for reply in load(store))
            replica.pause()
            replies = dict(zip(ENTRIES, claim(store), strict=True))
            assert {entry for entry, reply in replies.items() if isinstance(reply, UncertainWriteError)} == mine
            assert {entry for entry, reply in replies.items() if isinstance(reply, r.Claimed)} == set(ENTRIES) - mine
            replica.resume()
            again = sorted(mine)
            wait_until(
                lambda: all(isinstance(reply, r.Claimed) for reply in claim(store, again)),  # noqa: B023
                "certain once the replica is back",
                60,
            )
            cluster._wait_well()
            for each in cluster.masters():
                ask(each, "FLUSHALL")


@pytest.mark.parametrize("which", ["with the beats", "without"])
@pytest.mark.long
def test_the_others_windows_are_claimed_and_recovered_while_a_node_is_gone(
    cluster: Cluster, system: System, which: str
) -> None:
    """A dead master without a replica, also the one that keeps who lives: only its own entries wait for it."""
    system.use_store(cluster.url)
    system.check_law = False
    system.entries = {entry: {"task": "apps.once_app.work", "every": 1.0} for entry in ENTRIES}
    beats_slot = key_slot(system.store.keys.of_beats["beats"].encode())
    node = next(m for m in cluster.masters() if (beats_slot in slots_of(m)) == (which == "with the beats"))
    others = sorted(set(ENTRIES) - lives_on(system.store, node))
    with some_gone(cluster):
        beat = system.beat()
        wait_until(lambda: all(map(system.store.account, ENTRIES)), "all are loaded", 60)
        kill_with_replica(cluster, node)
        wait_until(lambda: "nothing is claimed until" in beat.log, "the beat has met it", 60)
        seen = {entry: system.account(entry) for entry in others}
        # What was published is overdue after 3 s: a worker consumes the queue, and begins nothing.
        later, told = "is overdue, to be published again", beat.log.count("is overdue, to be published again")
        mine = name_broker(Celery(broker=system.broker_url, set_as_current=False).connection_for_read())

        def published_again() -> bool:
            with suppress(StoreUnavailableError):  # the key lies on the node that is gone: nobody knows who consumes
                system.store.consume("busy", mine, [system.queue])
            return beat.log.count(later) > told

        wait_until(
            lambda: all(system.account(entry).cursor > seen[entry].cursor for entry in others), "others are claimed", 60
        )
        wait_until(published_again, "others are published again", 60)
        assert beat.alive
        assert beat.log.count("nothing is claimed until") == 1, "said once while it lasts"
        assert "can be used again, after" not in beat.log
        beat.stop()


@pytest.mark.long
def test_a_slot_on_its_way_to_another_node_is_followed(cluster: Cluster) -> None:
    """While a slot migrates what has one key is asked of the new node, on ASK; after it, everything.

    Meanwhile a cluster refuses each script of several keys of which some don't exist (TRYAGAIN): the slot's entries
    can't be loaded or claimed, and all others are.
    """
    old, new = cluster.masters()[:2]
    names = {node.port: ask(node, "CLUSTER", "MYID") for node in (old, new)}
    with cluster.store(wait_replicas=1) as store:
        entries = sorted(lives_on(store, old))
        slot = key_slot(store.entry_key(entries[0]).encode())
        entries = [entry for entry in entries if key_slot(store.entry_key(entry).encode()) == slot]
        load(store)  # the client knows the old owner; the entries of the slot that moves are made anew there
        ask(old, "FLUSHALL")
        ask(new, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[old.port])
        ask(old, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[new.port])
        try:
            assert store.accounts(entries) == [None] * len(entries)
            for verb, done in ((load, r.Loaded), (claim, r.Claimed)):
                replies = dict(zip(ENTRIES, verb(store), strict=True))
                unavailable = {entry for entry, reply in replies.items() if isinstance(reply, StoreUnavailableError)}
                assert unavailable == set(entries)
                assert {entry for entry, reply in replies.items() if isinstance(reply, done)} == {*ENTRIES} - {*entries}
        finally:
            for node in (new, *(node for node in cluster.masters() if node is not new)):
                ask(node, "CLUSTER", "SETSLOT", slot, "NODE", names[new.port])
        assert all(isinstance(reply, r.Loaded) for reply in load(store, entries))
        assert all(isinstance(reply, r.Claimed) for reply in claim(store, entries))
        begun = store.begin(window(entries[0]), "A", 30.0)
        assert isinstance(begun, r.Begun)
        assert isinstance(store.finish(Ending(window(entries[0]), "A", begun.fence, "done")), r.Finished)
        assert store.account(entries[0]).counts == {"done": 1}


def test_scripts_are_sent_to_the_node_that_lacks_them(cluster: Cluster) -> None:
    """A node that was restarted, or is new, knows no script; the others aren't asked for it."""
    with cluster.store(wait_replicas=1) as store:
        load(store)
        claim(store)
        node = cluster.masters()[-1]
        ask(node, "SCRIPT", "FLUSH")
        assert [type(reply) for reply in load(store)] == [r.Loaded] * len(ENTRIES)
        again = claim(store)
        assert all(isinstance(reply, r.Claimed) for reply in again), again
        with redis.Redis(port=cluster.masters()[0].port) as client:
            client.config_resetstat()
            load(store)
            assert "cmdstat_script|load" not in client.info("commandstats")


def test_any_node_that_is_up_will_do_at_the_start(cluster: Cluster) -> None:
    """The URL's list is for the start: of its nodes some may be gone."""
    dead = f"redis+cluster://127.0.0.1:{free_port()}"
    living = f"redis+cluster://127.0.0.1:{cluster.masters()[0].port}"
    for url in (f"{dead};{living}", f"{living};{dead}"):
        store = Store(Settings(redis_url=url))
        assert heard(store, "beat-1").beats == ("beat-1",)
        assert {f"127.0.0.1:{node.port}" for node in cluster.masters()} <= set(store.trip.clocks()), (
            "doctor compares them"
        )
        store.close()


def test_windows_wait_for_their_turn_on_each_node(cluster: Cluster) -> None:
    """What begin, finish and take read of an entry is in one slot of the cluster."""
    with cluster.store(wait_replicas=1) as store:
        load(store)
        claim(store)
        for entry in ENTRIES:
            first, second = window(entry), WindowKey(entry, T0 + timedelta(minutes=2))
            (claimed,) = store.claim_many("beat-1", [r.ClaimRequest(second, first.start, MARK)])
            assert isinstance(claimed, r.Claimed)
            begun = store.begin(first, "A", 30.0, overlap="buffer_all")
            assert isinstance(begun, r.Begun)
            assert store.begin(second, "B", 30.0, overlap="buffer_all") == r.Waits(first.start)
            assert store.overdue("beat-1", datetime.now(timezone.utc), 100).with_work("admission")
            assert isinstance(store.finish(Ending(first, "A", begun.fence, "done")), r.Finished)
        seconds = [WindowKey(entry, T0 + timedelta(minutes=2)) for entry in ENTRIES]
        taken = store.take_many("beat-1", [(second, MARK) for second in seconds])
        assert all(isinstance(reply, r.Taken) for reply in taken), taken
        for second in seconds:
            assert isinstance(store.begin(second, "B", 30.0, overlap="buffer_all"), r.Begun)
        assert not store.overdue("beat-1", datetime.now(timezone.utc), 100).with_work("admission")


@pytest.mark.long
def test_a_limit_lives_on_a_node_of_its_own(cluster: Cluster) -> None:
    """Its slots and its windows are on different nodes, and renewed in one round; of limits only those away are."""
    node = cluster.masters()[0]
    with some_gone(cluster), cluster.store() as store:
        names = [f"limit-{number}" for number in range(12)]
        slots = slots_of(node)
        gone = {name for name in names if key_slot(store.keys.of_limit(name)["slots"].encode()) in slots}
        assert gone
        assert set(names) - gone
        load(store)
        claim(store)
        one, other = window(ENTRIES[0]), window(ENTRIES[1])
        for name in names:
            assert limits.acquire_slot(store, name, 1, one, "A", 60.0) == limits.Acquired()
            assert limits.acquire_slot(store, name, 1, other, "B", 60.0) == limits.Full()
        begun = store.begin(one, "A", 30.0)
        for lease in (30.0, 0.1):
            renewals = [r.Renewal(one, "A", begun.fence, lease, True)]
            slots_too = [limits.slot_renewal(store, name, one, "A", lease * 1.5 + 1.0) for name in names]
            assert store.renew_many(renewals, slots_too) == [r.Renewed(), *["kept"] * len(names)]
        limits.release_slot(store, names[0], one, "A", forget=False)
        assert limits.acquire_slot(store, names[0], 1, other, "B", 60.0) == limits.Acquired()
        kill_with_replica(cluster, node)
        called: dict[str, Any] = {}

        def looked() -> bool:
            requests = limits.ask_free_slots(store, dict.fromkeys(names, 1))
            found = store.overdue("beat-2", datetime.now(timezone.utc), 100, requests=requests).replies
            replies = dict(zip(names, found, strict=True))
            assert {name for name, reply in replies.items() if isinstance(reply, StoreUnavailableError)} == gone
            called.update({name: each.windows for name, each in replies.items() if name not in gone and each.windows})
            return called.keys() == {*names[1:]} - gone

        wait_until(looked, "a beat finds the slots of the dead", 60)
        assert {*called.values()} == {(other,)}
