"""How a beat learns what people set at run time: what changed, and nothing else; whatever happened meanwhile."""

from __future__ import annotations

import itertools
import json
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from celery_once_beat import Schedules
from celery_once_beat.beat.entries import Entries
from celery_once_beat.errors import SettingError
from celery_once_beat.features.runtime import beat as module
from celery_once_beat.features.runtime.beat import Defined, make_defined
from celery_once_beat.features.runtime.store import SetRequest, delete_many, read_changes, read_definitions, set_many
from celery_once_beat.schedules import Definition
from celery_once_beat.settings import Settings
from celery_once_beat.store import SHARDS, Store

APP = Celery("proj", broker="memory://", set_as_current=False)


class Reader:
    """A beat's entries, and what reads them."""

    def __init__(self, url: str, store: Store, raw: redis.Redis) -> None:
        self.url = url
        self.store = store
        self.raw = raw
        self.entries = Entries("beat-1", self.store.settings, {})
        self.defined = Defined(self.store, self.entries, APP)

    def set(self, name: str, seconds: float = 60, **given: Any) -> None:
        text = Definition.of("t", seconds, once={"tracked": True}).text()
        set_many(self.store, [SetRequest(name, text, **given)])

    def look(self) -> dict[str, float]:
        """Look once; returns each entry's seconds."""
        self.defined.sweep()
        return {entry.name: entry.source.schedule.run_every.total_seconds() for entry in self.entries}

    def calls(self) -> dict[str, int]:
        """How often each command was called since this was asked last."""
        found = {name.removeprefix("cmdstat_"): each["calls"] for name, each in self.raw.info("commandstats").items()}
        self.raw.config_resetstat()
        return found


@pytest.fixture
def reader(redis_url: str, store: Store, raw: redis.Redis) -> Reader:
    return Reader(redis_url, store, raw)


def test_what_changed_is_read_and_nothing_else(reader: Reader) -> None:
    """Of a thousand one; and where nothing changed, a number for each shard."""
    for number in range(1000):
        reader.set(f"entry-{number}")
    assert len(reader.look()) == 1000
    before = {entry.name: entry for entry in reader.entries}
    reader.calls()
    reader.look()
    calls = reader.calls()
    assert calls["zrangebyscore"] == SHARDS
    assert "hgetall" not in calls
    reader.set("entry-7", 30)
    reader.calls()
    assert reader.look()["entry-7"] == 30
    calls = reader.calls()
    assert (calls["hgetall"], calls["lrange"]) == (1, 1)
    changed = [entry.name for entry in reader.entries if before[entry.name] is not entry]
    assert changed == ["entry-7"]


def test_a_store_that_lost_all_is_read_anew(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    """At once: the number that the beat knows isn't there. One line names what is lost, and none calls it deleted."""
    caplog.set_level("INFO")
    names = [f"entry-{number:02}" for number in range(40)]
    for name in names:
        reader.set(name)
    reader.look()
    reader.raw.flushall()
    reader.set(names[0], 30)
    reader.set("new")
    reader.look()
    assert reader.look() == {names[0]: 30, "new": 60}
    lines = [record for record in caplog.records if getattr(record, "action", "") == "schedules_lost"]
    assert [record.levelname for record in lines] == ["WARNING", "ERROR"]
    assert lines[1].entries == names[1:11]
    assert "39 of the schedules" in lines[1].getMessage()
    assert "is deleted" not in caplog.text
    reader.look()
    assert caplog.text.count("Redis has lost") == 2
    reader.set("a", 30)
    assert reader.look()["a"] == 30


def test_a_broken_shard_is_named_once(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    """The other shards go on, and it does once the key is deleted and the entry set again."""
    reader.set("a")
    reader.set("b")
    reader.look()
    key = reader.store.keys.for_entry("a")["defs"]
    assert key != reader.store.keys.for_entry("b")["defs"]
    reader.raw.delete(key)
    reader.raw.set(key, "what")
    reader.set("b", 30)
    for _ in range(3):
        assert reader.look() == {"a": 60, "b": 30}
    assert caplog.text.count("holds a string, expected a zset") == 1
    reader.raw.delete(key)
    reader.set("a", 20)
    reader.look()
    assert reader.look() == {"a": 20, "b": 30}


def test_windows_belong_to_the_definition_of_their_time(reader: Reader) -> None:
    """Starts, the entry that runs them, and their number; of the time after a deletion there are none."""
    ago = timedelta(seconds=100)
    reader.set("a", 10)
    delete_many(reader.store, ["a"])
    reader.set("a", 7)
    reader.set("a", 5)
    (known,) = read_definitions(reader.store, ["a"])
    (records,) = read_changes(reader.store, ["a"])
    now = known.at  # type: ignore[union-attr]
    # As if they were made at these times.
    times = [now - ago * 3, now - ago * 2, now - ago, now]
    changes = [type(each)(**{**vars(each), "at": at}) for each, at in zip(reversed(records), times, strict=True)]  # type: ignore[arg-type]
    entry = make_defined(reader.entries, APP, known, changes[::-1])  # type: ignore[arg-type]
    assert [each.until for each in entry.timetable.earlier] == times[1:]
    starts = list(entry.starts(times[0] - ago, now + ago))
    for start in starts:
        step = 10 if start <= times[1] else 7 if start <= times[3] else 5
        assert start.timestamp() % step == 0
        assert entry.as_of(start).source.schedule.run_every.total_seconds() == step
        assert not times[1] < start <= times[2]
    assert entry.timetable.count(times[0] - ago, now + ago) == len(starts)
    assert len(starts) == pytest.approx(20 + 0 + 100 / 7 + 100 / 5, abs=3)


def test_a_beat_leaves_out_what_it_cant_read_or_may_not_send(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever wrote it, and named once; what ``once_beat_runtime_tasks`` doesn't allow, on_failure's too."""
    interval = {"v": 1, "task": "proj.a", "schedule": {"type": "interval", "seconds": 60}, "once": {"tracked": True}}
    wrong: dict[str, dict[str, Any]] = {
        "task": {"task": "other.a"},
        "case": {"task": "Proj.a"},
        "on_failure": {"once": {"tracked": True, "on_failure": "other.a"}},
        "exchange": {"options": {"exchange": "other"}},
        "link": {"options": {"link": [{"task": "other.a"}]}},
        "header": {"options": {"headers": {"task": "other.a"}}},
        "headers": {"options": {"headers": ["task"]}},
        "newer": {"v": 2},
        "type": {"schedule": {"type": "tide"}},
        "once": {"once": {"x": 1}},
    }
    settings = Settings(redis_url=reader.url, runtime_tasks=("proj.*",))
    entries = Entries("beat-1", settings, {})
    for name, fields in ({"right": {}} | wrong).items():
        set_many(reader.store, [SetRequest(name, json.dumps({**interval, **fields}))])
    with redis.Redis.from_url(reader.url) as raw:
        raw.hset(reader.store.keys.of_entry("def", "case"), "text", "x" * 1_000_000)
    defined = Defined(reader.store, entries, APP)
    for _ in range(3):
        defined.sweep()
    assert [entry.name for entry in entries] == ["right"]
    assert entries.wrong.keys() == wrong.keys()
    for name in wrong:
        assert caplog.text.count(f"schedule '{name}' is left out") == 1
    set_many(reader.store, [SetRequest("case", json.dumps(interval))])
    defined.sweep()
    assert sorted(entry.name for entry in entries) == ["case", "right"]
    assert "which has ['proj.*']" in entries.wrong["on_failure"]
    Definition.of("proj.a", 60).check("right", settings)
    with pytest.raises(SettingError, match="once_beat_runtime_tasks"):
        Definition.of("other.a", 60).check("wrong", settings)


def test_what_a_failover_undid_is_seen(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion that the new master doesn't know: within minutes, when the shard is read anew."""
    reader.set("a")
    reader.look()
    saved = {key: reader.raw.hgetall(key) for key in reader.raw.scan_iter("once:*def:a")}
    delete_many(reader.store, ["a"])
    assert reader.look() == {}
    for key, values in saved.items():
        reader.raw.delete(key)
        reader.raw.hset(key, mapping=values)
        reader.raw.zadd(key.replace("def:a", "defs"), {"a": 5})
    minutes = itertools.count(module.steady() + module._ANEW, step=10)
    monkeypatch.setattr(module, "steady", lambda: next(minutes))
    for _ in range(SHARDS):
        reader.look()
    assert reader.look() == {"a": 60}


def test_a_shard_whose_last_name_was_deleted_long_ago_is_no_loss(reader, caplog) -> None:
    """The number of its last change expires then."""
    reader.set("a")
    reader.look()
    delete_many(reader.store, ["a"])
    reader.look()
    keys = reader.store.keys.for_entry("a")
    assert reader.raw.delete(keys["defs"], keys["gone"]) == 2
    for _ in range(3):
        assert reader.look() == {}
    assert "lost" not in caplog.text
    reader.set("a")
    assert reader.look() == {"a": 60}


def test_a_definition_that_is_lost_alone_is_named(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    """Evicted, say, while its name is still listed."""
    reader.set("a")
    reader.set("b")
    reader.raw.delete(reader.store.keys.of_entry("def", "a"))
    for _ in range(2):
        assert reader.look() == {"b": 60}
    assert caplog.text.count("Redis has lost 1 of the schedules that were set at run time: 'a'.") == 1


def test_a_name_that_is_no_text_is_nobodys(reader: Reader) -> None:
    """A foreign name stops neither a look nor a list."""
    for name in "abcd":
        reader.set(name)
    for shard in range(SHARDS):
        reader.raw.zadd(reader.store.keys.of_shard("defs", shard), {b"\xff\xfe": 7, "\x1b[31m\n": 8})
    assert reader.look().keys() == {*"abcd"}
    with closing(Schedules(url=reader.url)) as client:
        assert [each.name for each in client.list()] == [*"abcd"]
