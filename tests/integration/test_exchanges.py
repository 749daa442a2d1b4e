"""Connections that stay open between calls: each call reads its own reply, whatever happened to the call before."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest
import redis
from failover.topology import MASTER
from processes import wait_until
from servers import RedisServer, SentinelServer, need_server

from celery_once_beat.errors import StoreUnavailableError
from celery_once_beat.settings import Settings
from celery_once_beat.store.codec import pack
from celery_once_beat.store.exchange import Connections
from celery_once_beat.store.verbs import Store

#: Files between the request and the last reply.
WIRE = ("store/exchange.py", "redis/connection.py", "resp2.py", "resp3.py", "socket.py", "hiredis.py")

_numbers = count()


@contextmanager
def store_of(url: str, **options: Any) -> Iterator[Store]:
    store = Store(Settings(redis_url=url, redis_options={"socket_timeout": 30.0, "client_name": "held", **options}))
    yield store
    store.close()


def says_its_own(store: Store) -> None:
    """Two commands of one call are answered with what they themselves asked."""
    asked = [f"{os.getpid()}-{threading.get_ident()}-{next(_numbers)}" for _ in range(2)]
    assert store.trip.read([("ECHO", each) for each in asked]) == asked


def connections(server: RedisServer) -> set[str]:
    """Ids of the store's connections, as the server sees them."""
    with server.client() as client:
        return {each["id"] for each in client.client_list() if each["name"] == "held"}


class Interrupted(BaseException):
    """What a signal's handler raises, as those of Celery's soft time limit and of Ctrl-C do."""


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_call_may_be_cut_short_at_any_instruction(raw: redis.Redis) -> None:
    """Of ours and of redis-py's between the request and the last reply, in turn: nobody reads what is left."""
    before = sys.gettrace()
    held = Connections(raw.connection_pool)

    def says_its_own() -> None:
        asked = [f"{next(_numbers)}" for _ in range(2)]
        assert held.exchange(b"".join(pack("ECHO", each) for each in asked), 2) == asked

    for number in count(1):
        says_its_own()
        left = interrupt_at(number, says_its_own)
        sys.settrace(before)
        says_its_own()
        if left:
            break
    held.close()
    gc.collect()
    assert number > 100


def interrupt_at(number: int, call: Callable[[], object]) -> int:
    """Call, and raise Interrupted at that instruction; returns how many the call was too short for."""

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal number
        if not frame.f_code.co_filename.endswith(WIRE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            number -= 1
            if not number:
                raise Interrupted
        return trace

    sys.settrace(trace)
    with suppress(Interrupted):
        call()
    sys.settrace(None)
    return number


def test_a_child_uses_nothing_of_its_parents(redis_server: RedisServer, redis_url: str) -> None:
    """Parent and forked child call at the same time: each reads its own replies, the parent on its old connection."""
    with store_of(redis_url) as store:
        says_its_own(store)
        before = connections(redis_server)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for _ in range(300):
                    says_its_own(store)
                store.close()
                status = 0
            finally:
                os._exit(status)
        for _ in range(300):
            says_its_own(store)
        assert os.waitpid(child, 0)[1] == 0
        says_its_own(store)
        assert connections(redis_server) == before


@pytest.fixture
def no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is sent once, and each connection has been idle for long enough to be looked at before."""
    monkeypatch.setattr("celery_once_beat.store.exchange._PAUSES", ())
    monkeypatch.setattr("celery_once_beat.store.exchange._IDLE", 0.0)


@pytest.mark.usefixtures("no_second_try")
def test_a_connection_that_the_server_closed_is_replaced(redis_server: RedisServer, redis_url: str) -> None:
    """As the server's ``timeout`` does to idle ones. The next call is sent once, over a new connection."""
    with store_of(redis_url) as store, redis_server.client() as client:
        says_its_own(store)
        before = connections(redis_server)
        for each in before:
            client.client_kill_filter(_id=each)
        wait_until(lambda: not connections(redis_server), "it is closed", 20)
        says_its_own(store)
        assert connections(redis_server).isdisjoint(before)


def test_max_connections_counts(start_redis: Callable[..., RedisServer]) -> None:
    """No more are made than the client's options allow; a call that finds none says so. One that broke is none."""
    server = start_redis()
    with store_of(server.url(), max_connections=1) as store:
        says_its_own(store)
        server.pause()
        waiting = threading.Thread(target=says_its_own, args=(store,))
        waiting.start()
        wait_until(lambda: not store.trip._nodes.to(store.trip._nodes.client)._free, "it waits for its reply", 20)
        with pytest.raises(StoreUnavailableError, match="Too many connections"):
            says_its_own(store)
        server.resume()
        waiting.join()
        says_its_own(store)
        server.kill()
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="refused"):
                says_its_own(store)


def test_another_master_is_gone_on_with(start_redis: Callable[..., RedisServer]) -> None:
    """Sentinels name another master while the old one still answers: who has heard of it doesn't use the old one."""
    old, new = start_redis(), start_redis()
    sentinel = SentinelServer(need_server("valkey"))
    with sentinel:
        sentinel.watch(f"port {{port}}\nbind 127.0.0.1\nsentinel monitor {MASTER} 127.0.0.1 {old.port} 1\n")
        with store_of(f"sentinel://127.0.0.1:{sentinel.port}", master_name=MASTER) as store:
            says_its_own(store)
            assert connections(old)
            with sentinel.client() as client:
                client.execute_command("SENTINEL", "REMOVE", MASTER)
                client.execute_command("SENTINEL", "MONITOR", MASTER, "127.0.0.1", new.port, 1)
            store.trip.clocks()  # connects by the client's own pool, which asks the sentinels
            says_its_own(store)
            assert connections(new)
            wait_until(lambda: not connections(old), "the old one is left", 20)


def test_what_is_lent_closes_when_it_comes_back(start_redis: Callable[..., RedisServer]) -> None:
    """Another thread has closed them meanwhile, and nobody but the garbage collector would see to it."""
    server = start_redis()
    with server.client(client_name="held") as client:
        held = Connections(client.connection_pool)
        held.exchange(pack("ECHO", "once"), 1)
        server.pause()
        asking = threading.Thread(target=held.exchange, args=(pack("ECHO", "again"), 1))
        asking.start()
        wait_until(lambda: not held._free, "it is lent", 20)
        held.close()
        server.resume()
        asking.join()
        assert not held._made
        wait_until(lambda: not connections(server), "it is closed", 20)


@pytest.mark.usefixtures("no_second_try")
def test_a_reply_that_nobody_asked_for_is_nobodys(redis_url: str) -> None:
    """A connection on which something waits to be read isn't used."""
    with store_of(redis_url) as store:
        says_its_own(store)
        ((connection, _),) = store.trip._nodes.to(store.trip._nodes.client)._free
        connection.send_packed_command([pack("ECHO", "stray")])
        wait_until(connection.can_read, "it has come", 20)
        says_its_own(store)
