"""What a window costs: commands, round trips, bytes. None depends on the machine; docs/scaling.md quotes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import redis
from servers import RedisServer

from celery_once_beat.settings import Settings
from celery_once_beat.store.model import ClaimRequest, Confirmation, LoadRequest
from celery_once_beat.store.verbs import Store
from celery_once_beat.windows import WindowKey

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
#: Entries' names as people write them.
NAMES = [f"proj.reports.nightly-{number:03}" for number in range(100)]


@pytest.fixture
def store(start_redis: Callable[..., RedisServer]) -> Iterator[Store]:
    store = Store(Settings(redis_url=start_redis().url()))
    for name in NAMES:
        store.load_many([LoadRequest(name, "beat", "0123456789abcdef", 86400.0, 3, True, None, known=T0)])
    yield store
    store.close()


@contextmanager
def counted(store: Store) -> Iterator[Counter[str]]:
    """Count the commands that the server is sent: those of scripts not among them."""
    found: Counter[str] = Counter()
    with redis.Redis.from_url(store.settings.redis_url, decode_responses=True).monitor() as monitor:
        yield found
        store._trip._client.echo("end")
        for line in iter(monitor.next_command, None):
            if line["command"].startswith("ECHO"):
                return
            if line["client_type"] != "lua":
                found[line["command"].split()[0]] += 1


def run(store: Store, name: str, number: int) -> None:
    """One window from claim to finish."""
    window = WindowKey(name, T0 + (number + 1) * HOUR)
    (claimed,) = store.claim_many("beat", [ClaimRequest(window, T0 + number * HOUR, "0123456789abcdef")])
    store.confirm_many([Confirmation(window, claimed.turn, 1, 600.0)])
    begun = store.begin(window, "worker-1@host:0123456789ab", 30.0)
    store.finish(window, "worker-1@host:0123456789ab", begun.fence, "done")


def bytes_of(client: redis.Redis, name: str) -> int:
    """Bytes of the keys in which an entry's name stands, and of its members of the open zset."""
    return sum(client.memory_usage(key, samples=0) for key in client.scan_iter(match=f"*{name}*", count=1000))


def quoted(pattern: str) -> int:
    match = re.search(pattern, " ".join(PAGE.read_text().split()))
    assert match, f"{PAGE.name} says nothing like {pattern!r} any more"
    return int(match[1].replace(",", ""))


def test_what_it_costs(store: Store) -> None:
    """A window: two commands of a worker's, two that share a beat's pipelines. An entry: the bytes that it says."""
    name = NAMES[0]
    run(store, name, 0)  # connections are made and scripts are loaded
    store.heartbeat("beat")
    client = redis.Redis.from_url(store.settings.redis_url, decode_responses=True)
    with counted(store) as commands:
        run(store, name, 1)
    assert commands == {"EVALSHA": 4}, "claim, confirm, begin, finish"
    with counted(store) as commands:
        store.overdue("beat", T0, 100)
    assert commands == {"EVALSHA": 1, "ZRANGEBYSCORE": 16}, "a beat's look: one pipeline, however many entries"

    at_rest = bytes_of(client, NAMES[1])
    for number in range(2, 60):
        run(store, name, number)
    client.delete(*client.scan_iter(match="*claim:*"), *client.scan_iter(match="*run:*"))  # as after marker_ttl
    full = bytes_of(client, name)
    client.close()
    assert at_rest == pytest.approx(quoted(r"An entry costs Redis some ([\d,]+) bytes"), rel=0.15)
    assert (full - at_rest) / 50 == pytest.approx(
        quoted(r"bytes, and ([\d,]+) for each window of its history"), rel=0.15
    )
