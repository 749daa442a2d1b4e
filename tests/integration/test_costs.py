"""What a window costs: commands, round trips, bytes. None depends on the machine; docs/scaling.md quotes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from servers import RedisServer
from steps import heard

from celery_once_beat.features.runtime.store import ask_changed
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.settings import Settings
from celery_once_beat.store import SHARDS, BeatReport, ClaimRequest, Confirmation, Ending, Loaded, LoadRequest, Store
from celery_once_beat.store.model import Published
from celery_once_beat.windows import WindowKey

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
#: Entries' names as people write them.
NAMES = [f"proj.reports.nightly-{number:03}" for number in range(100)]
#: Beats and a worker's delivery as they are named in pods.
BEATS = ("beat-7f9c6d5b8-x2x4q:1:0a1b2c3d", "beat-7f9c6d5b8-k9p0z:1:4e5f6a7b")
OWNER = "celery@worker-6c8d9f7b5-abcde:0123456789ab:12ef"
MARK = "0123456789abcdef"


@pytest.fixture
def store(start_redis: Callable[..., RedisServer], close_later: Callable[[Any], Any]) -> Store:
    store = close_later(Store(Settings(redis_url=start_redis().url())))
    load(store)
    return store


def load(store: Store) -> None:
    for beat in BEATS:
        heard(store, beat)
        requests = [LoadRequest(name, beat, MARK, 86400.0, EntryPolicy(), known=T0) for name in NAMES]
        assert all(isinstance(reply, Loaded) for reply in store.load_many(requests))


@contextmanager
def counted(store: Store) -> Iterator[Counter[str]]:
    """Count the commands that clients send the server."""
    found: Counter[str] = Counter()
    with redis.Redis.from_url(store.settings.redis_url, decode_responses=True).monitor() as monitor:
        yield found
        store.trip.read([("ECHO", "end")])
        for line in iter(monitor.next_command, None):
            if line["command"].startswith("ECHO"):
                return
            found[line["command"].split()[0]] += line["client_type"] != "lua"


def run(store: Store, name: str, number: int) -> None:
    """One window from claim to finish."""
    window = WindowKey(name, T0 + (number + 1) * HOUR)
    (claimed,) = store.claim_many(BEATS[0], [ClaimRequest(window, T0 + number * HOUR, MARK)])
    store.confirm_many([Confirmation(window, claimed.revision, Published.SENT, 600.0)])
    begun = store.begin(window, OWNER, 30.0)
    store.finish(Ending(window, OWNER, begun.fence, "done"))


def look(store: Store) -> None:
    report = BeatReport(offset=0.0, lag=0.0, entries=len(NAMES), untracked=0, version="0.1.0")
    app, changed_since = '{"app": "proj", "apart": ""}', [1_795_000_000_000] * SHARDS
    commands = ask_changed(store, changed_since)
    store.overdue(BEATS[0], datetime.now(timezone.utc), 100, {}, report, app, requests=commands)


def bytes_of(client: redis.Redis, name: str) -> int:
    """Bytes of the keys in which an entry's name stands."""
    return sum(client.memory_usage(key, samples=0) for key in client.scan_iter(match=f"*{name}*", count=1000))


def forget_markers(client: redis.Redis) -> None:
    """As after marker_ttl."""
    client.delete(*client.scan_iter(match="*claim:*"), *client.scan_iter(match="*run:*"))


def quoted(pattern: str) -> int:
    match = re.search(pattern, " ".join(PAGE.read_text().split()))
    assert match, f"{PAGE.name} says nothing like {pattern!r} any more"
    return int(match[1].replace(",", ""))


def test_what_a_look_costs(store: Store) -> None:
    """One pipeline of as many commands as docs/scaling.md says, however many entries there are."""
    look(store)  # connections are made and scripts are loaded
    with counted(store) as commands:
        look(store)
    assert commands.total() == quoted(r"in one pipeline of ([\d,]+) commands")


def test_what_it_keeps(store: Store) -> None:
    """The bytes of an entry that two beats have loaded are those that docs/scaling.md says, and so are its sums."""
    active = quoted(r"An entry takes some ([\d,]+) bytes of Redis")
    recent = quoted(r"each of the last ten minutes ([\d,]+)\s+more")
    remembered = quoted(r"Each window of its history adds ([\d,]+) ")
    compact = quoted(r"and ([\d,]+) with `hash-max-listpack-value 512`")
    name = NAMES[0]
    with redis.Redis.from_url(store.settings.redis_url, decode_responses=True) as client:
        run(store, name, 0)
        assert client.memory_usage(store.entry_key(name), samples=0) == pytest.approx(active, rel=0.2)
        with_markers = bytes_of(client, name)
        forget_markers(client)
        assert with_markers - bytes_of(client, name) == pytest.approx(recent, rel=0.2)
        for number in range(1, 60):
            run(store, name, number)
        forget_markers(client)
        hash_alone = client.memory_usage(store.entry_key(name), samples=0)
        assert hash_alone == pytest.approx(active, rel=0.2)
        assert (bytes_of(client, name) - hash_alone) / 50 == pytest.approx(remembered, rel=0.2)
        client.flushall()
        client.config_set("hash-max-ziplist-value", 512)  # its name in Redis 6.2, and still known
        load(store)
        run(store, name, 0)
        assert client.memory_usage(store.entry_key(name), samples=0) == pytest.approx(compact, rel=0.2)
    assert quoted(r"100,000 entries take ([\d,]+) MB") == active * 100_000 // 1_000_000
