"""Hostile messages, names and keys, against real beats and workers: each is named once, everything else goes on."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from typing import Any

import pytest
from processes import wait_until
from system import EVERY_SECOND, System

from celery_once_beat.errors import HeaderError, NewerVersionError
from celery_once_beat.windows import HEADERS, decode_headers, find_headers

pytestmark = pytest.mark.long

GOOD = {
    "once_entry": "fuzzed",
    "once_start": "2026-11-21T05:36:00.000000Z",
    "once_end": "2026-11-22T05:36:00.000000Z",
    "once_attempt": 1,
    "once_v": 1,
}
VALUES = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**400, 0.5, float("nan"), float("inf"), "", "1", "x" * 100_000, "\x00",
    "\ud800", "a\nb", "<script>", "{7}", "a@b", [], [[[[]]]], {}, {"once_entry": {"once_entry": 7}}, "9999-12-31",
    "2026-11-21T05:36:00.000000Z", "9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00.000000Z",
    "2026-02-30T05:36:00.000000Z", "\u0662026-11-21T05:36:00.000000Z", "2026-11-21T05:36:00.000000Z\n",
]  # fmt: skip


def fuzzed(chance: random.Random) -> dict[str, Any]:
    """Headers of a window with some of them lost and some replaced."""
    headers: dict[str, Any] = dict(GOOD)
    for name in chance.sample(sorted(HEADERS - {"once_id"}), chance.choice([0, 1, 1, 2, 6])):
        if chance.random() < 0.3:
            headers.pop(name, None)
        else:
            headers[name] = chance.choice(VALUES)
    return {"headers": headers} if chance.random() < 0.2 else headers


def meaning(headers: dict[str, Any]) -> Any:
    """What a worker makes of them once they have travelled: a window, None, or which error."""
    try:
        return decode_headers(find_headers(json.loads(json.dumps(headers))))
    except (HeaderError, NewerVersionError) as exc:
        return type(exc).__name__


def test_fuzzed_headers(system: System) -> None:
    """Hundreds of messages with broken headers: each fails with one line that names the header, and isn't executed.

    What is a window runs once, however many messages say so; what is none runs as any message does. The worker goes
    on, and beside them each good window is executed once.
    """
    worker = system.worker(pool="solo").wait_ready()
    beat = system.beat()
    chance, newer = random.Random(13), 5  # those of a newer version are put back for ever: a few will do
    meanings, certain = [], [{}, {**GOOD, "once_v": 2}]
    while len(meanings) < 250:
        headers = certain.pop() if certain else fuzzed(chance)
        meant = meaning(headers)
        newer -= meant == "NewerVersionError"
        if meant != "NewerVersionError" or newer >= 0:
            meanings.append(meant)
            system.send("apps.once_app.work", headers)
    wrong, plain = meanings.count("HeaderError"), meanings.count(None)
    # A key of the same name is another window.
    windows = {(each.entry, each.start, each.keyed) for each in meanings if each and not isinstance(each, str)}
    assert min(wrong, plain, len(windows), 5 - newer) > 0, meanings
    failed = r"raised unexpected: HeaderError\(['\"]message header once_\w+: found "

    def bodies(kind: str) -> Counter[bool]:
        """How many had a window, and how many none."""
        return Counter("entry" in event for event in system.ledger.read(kind) if event.get("entry") != "tick")

    wait_until(lambda: bodies("finish")[False] >= plain and bodies("finish")[True] >= len(windows), "all have run", 120)
    wait_until(lambda: len(re.findall(failed, worker.log)) >= wrong, "each of the others fails", 60)
    system.wait_done(2)
    assert bodies("start") == {True: len(windows), False: plain}
    assert len(re.findall(failed, worker.log)) == wrong
    assert worker.log.count("put back for") <= 5
    assert worker.alive
    system.settle([beat])
    system.check_each_once()


# ----------------------------------------------------------------------------------------------------------- keys

FOREIGN: dict[str, Any] = {
    "ttl": ("hset", "ttl", "nan"),
    "fence": ("hset", "fence", "inf"),
    "cursor": ("hset", "cursor", "soon"),
    "counter": ("hset", "c:done", "x"),
    "limit": ("hset", "max_attempts", "many"),
    "version": ("hset", "v", "2"),
    "type": ("set", "mine"),
}


def test_foreign_values_under_running_beats(system: System) -> None:
    """A foreign value concerns its entry alone: each beat names it once, and the other entries go on."""
    system.entries = {**EVERY_SECOND, **dict.fromkeys(FOREIGN, EVERY_SECOND["tick"])}
    # Nobody loses a lease, or is sent a copy, because the machine is slow.
    system.settings = {"once_beat_lease": 4.0, "once_beat_start_timeout": 30.0}
    beats, workers = system.pair(pool="solo")
    wait_until(lambda: all(system.recorded(entry) for entry in FOREIGN), "each entry has run", 60)
    keys = {entry: system.store.entry_key(entry) for entry in FOREIGN}
    with system.client() as client:
        for entry, (command, *values) in FOREIGN.items():
            key = keys[entry]
            # A beat that loads the entry writes its limits anew.
            both = lambda key=key: all(f":{beat.pid}:".encode() in client.hget(key, "loaders") for beat in beats)  # noqa: E731
            wait_until(both, f"both have loaded {entry}", 60)
            if command == "set":
                client.set(key, *values, ex=600)
            else:
                client.hset(key, *values)
        for beat in beats:
            for key in keys.values():
                beat.wait_log(rf"(ERROR|WARNING)/.*{re.escape(key)}\b", 60)
        system.wait_done(4)
        for beat in beats:
            for key in keys.values():
                told = [line for line in beat.log.splitlines() if key in line and "/MainProcess] once: " in line]
                assert 1 <= len(told) <= 2, told  # at the claim, and where another look finds another field of it
            assert "Traceback" not in beat.log
            assert "nothing is claimed" not in beat.log
        assert all(worker.alive for worker in workers)
        client.delete(*keys.values())
    system.settle(beats)
    system.check_each_once()
    assert not any(system.ledger.finished_twice(entry) for entry in FOREIGN)
    system.entries = EVERY_SECOND
