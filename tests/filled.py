"""Entries with a past, for what looks at it: made by the store's own verbs, as a beat and a worker use them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from itertools import islice

import redis

from celery_once_beat.beat import BeatEntry
from celery_once_beat.beat.schedule import LoadedSchedule
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.store import ClaimRequest, Confirmation, Ending, LoadRequest, Published, Store, shard_of
from celery_once_beat.store import model as replies
from celery_once_beat.windows import WindowKey, format_instant

BEAT = "host-a:17:beatbeat"


def beat_lives(store: Store, *beats: str, entries: int = 5) -> None:
    """Say that beats live that have yet to load an entry, as their heartbeats do; it holds for 15 seconds."""
    report = replies.BeatReport(0.003, 0.012, entries, 0, "0.1.0", unloaded=1)
    for beat in beats or (BEAT,):
        store.overdue(beat, datetime.now(timezone.utc), 0, report=report)


@contextmanager
def beating(store: Store, *beats: str, entries: int = 5) -> Iterator[None]:
    """Let beats live for as long as the block lasts."""
    over = threading.Event()

    def beat() -> None:
        beat_lives(store, *beats, entries=entries)
        while not over.wait(2):
            beat_lives(store, *beats, entries=entries)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def backdate(client: redis.Redis, store: Store, window: WindowKey, ago: timedelta, due: timedelta) -> None:
    """Let an open window have been claimed, and begun if it was, so long ago; it is overdue in ``due`` from now."""
    key, field = store.entry_key(window.entry), f"w:{format_instant(window.start)}"
    words = client.hget(key, field).decode().split(" ")
    for place in (1, 5):  # its fence, which is when it began, and its claim
        if words[place] != "0":
            words[place] = str(int(words[place]) - ago // timedelta(milliseconds=1))
    client.hset(key, field, " ".join(words))
    until = (datetime.now(timezone.utc) + due).timestamp() * 1000
    member = f"{window.entry}@{format_instant(window.start)}"
    client.zadd(store.keys.of_shard("open", shard_of(window.entry)), {member: until})


def load(store: Store, rows: Sequence[BeatEntry], ago: timedelta) -> None:
    """Load entries, so that their windows of the time since ``ago`` are still to be claimed."""
    known = datetime.now(timezone.utc) - ago
    limits = EntryPolicy()
    requests = [LoadRequest(row.name, BEAT, row.fingerprint, 30 * 86400.0, limits, known=known) for row in rows]
    loaded = store.load_many(requests)
    for row, reply in zip(rows, loaded, strict=True):
        assert isinstance(reply, replies.Loaded), reply
        row.cursor = reply.cursor


def claim(store: Store, rows: Sequence[BeatEntry], beat: str = BEAT) -> list[WindowKey]:
    """Claim and publish the next window of each."""
    now = datetime.now(timezone.utc)
    due = [(row, start) for row in rows if (start := row.after(row.cursor)) is not None and start <= now]
    requests = [ClaimRequest(WindowKey(row.name, start), row.cursor, row.fingerprint) for row, start in due]
    answers = store.claim_many(beat, requests)
    windows = []
    for (row, start), answer in zip(due, answers, strict=True):
        assert isinstance(answer, replies.Claimed), answer
        row.cursor = start
        windows.append(WindowKey(row.name, start))
    store.confirm_many(Confirmation(window, 1, Published.SENT, 600.0) for window in windows)
    return windows


def execute(
    store: Store, windows: Sequence[WindowKey], outcome: str = "done", worker: str = "host-b", failure: str = ""
) -> None:
    """Begin windows and finish them, as a worker of that host does; many at once. ``failure`` is what each said."""
    for chunk in _chunks(windows, 200):
        for window in chunk:
            owner = f"{worker}:1:delivery/1"
            begun = store.begin(window, owner, 30.0)
            assert isinstance(begun, replies.Begun), begun
            store.finish(Ending(window, owner, begun.fence, outcome, failure=failure))


def fill(
    store: Store, loaded: LoadedSchedule, windows: int, ago: timedelta, outcomes: Sequence[str] = ("done",)
) -> None:
    """Let ``windows`` windows of each entry, of the time since ``ago``, end with ``outcomes`` in turn."""
    rows = list(loaded.entries)
    load(store, rows, ago)
    for number in range(windows):
        execute(store, claim(store, rows), outcomes[number % len(outcomes)])


def _chunks(windows: Sequence[WindowKey], size: int) -> Iterator[list[WindowKey]]:
    rest = iter(windows)
    while chunk := list(islice(rest, size)):
        yield chunk
