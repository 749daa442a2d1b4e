"""A number of somebody else's among ours is named, and hides nothing but its own entry."""

from __future__ import annotations

import json

import pytest
from processes import wait_until
from system import System

from celery_once_beat.store.keys import shard_of

WORK = "apps.once_app.work"


@pytest.mark.long
def test_foreign_numbers(system: System) -> None:
    """Scores that are no times, counters of 40 digits, a foreign order: readers name each, and show all else."""
    system.check_law = False
    system.entries = {name: {"task": WORK, "every": 1.0} for name in ("good", "scored", "counted")}
    worker = system.worker().wait_ready()
    beat = system.beat().wait_ready()
    for name in system.entries:
        system.wait_done(1, name)
    beat.stop()
    worker.stop()
    member = "scored@2026-01-01T00:00:00.000000Z"
    with system.client() as client:
        client.zadd(f"once:{{{shard_of('scored')}}}:open", {member: "-inf"})
        client.zadd("once:{7}:open", {"gone@2026-01-01T00:00:00.000000Z": "-inf"})
        client.zadd("once:workers", {"w b q": "inf"})
        client.hset(f"once:{{{shard_of('counted')}}}:entry:counted", "c:done", "9" * 40)
        client.zadd("once:orders", {"foreign": "inf"})
        for key in ("once:{7}:open", "once:workers", "once:orders"):
            client.expire(key, 600)
    system.once("pause", "good", "--note", "why")
    text = system.once("status", "--json", exit_code=1)
    assert text.startswith("{"), text
    found = json.loads(text)
    entries = {entry["entry"]: entry for entry in found["entries"]}
    assert "-inf" in " ".join(entries["scored"]["attention"])
    assert "9999" in " ".join(entries["counted"]["attention"])
    assert entries["good"]["outcomes"]["done"] >= 1
    assert "found" not in " ".join(entries["good"]["attention"])
    assert [text for text in found["unreadable"] if "'w b q'" in text and "inf" in text]
    assert [text for text in found["unreadable"] if "gone@2026" in text]
    shown = system.once("status", exit_code=1)
    assert shown.count("Unreadable: ") == 2
    doctor = system.once("doctor", exit_code=1)
    assert "keys: unreadable: " in doctor
    assert "scored" in doctor
    assert 'celery_once_beat_windows_total{entry="good",outcome="done"}' in system.once("metrics")
    orders = [order["what"] for order in json.loads(system.once("orders", "--json"))]
    assert orders == ["unreadable", "pause"]
    wait_until(lambda: system.store.beats() == (), "the beat has left", 30)
    with system.client() as client:
        client.zrem(f"once:{{{shard_of('scored')}}}:open", member)
