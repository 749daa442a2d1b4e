"""Answers for readers: which beats live, the state of each entry, what ran. It writes nothing.

A key that can't be read is a line of trouble at its entry; the other entries are shown.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.store import Store, WorkerSeen, codec, raised, read_app, read_many, scan_loaded, shard_of
from celery_once_beat.store.account import read_account
from celery_once_beat.store.model import Loss
from celery_once_beat.windows import format_instant

from .reading import read_report
from .remembered import Remembered
from .seen import BeatStatus, Due, EntrySeen, Overview
from .windows import make_entry, readable

#: What is read of an entry.
_HELD = {"entry": "HGETALL", "history": "LRANGE", "refused": "HGETALL", "failures": "HGETALL"}
#: Workers that were heard of within so many seconds are shown.
_WORKERS_OF = 86_400.0
#: Most overdue windows that are read of each shard.
_MOST_OVERDUE = 10_000


class Lookup:
    """Looks into one store. Its methods raise StoreUnavailableError where Redis doesn't answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._trip = store.trip
        self._keys = store.keys

    def overview(
        self, entries: Iterable[str], history: int = 1, *, and_loaded: bool = False, before: Remembered | None = None
    ) -> Overview:
        """Look at the beats and at ``entries``, each with up to ``history`` records of its history.

        With ``and_loaded`` at all entries that beats have loaded, too, and at the workers. ``before`` is what the last
        look of this kind found: only what has changed since is read again.
        """
        now, latency, beats, lost = self.beats()
        loaded = self._loaded(before) if and_loaded else {}
        names = list(dict.fromkeys([*entries, *loaded]))
        due = self._due(now)
        strangers = {name: len(due.windows[name]) for name in due.windows.keys() - set(names)}
        workers, unreadable = self._workers(now) if and_loaded else ({}, [])
        unreadable += [why for of, why in due.trouble.items() if isinstance(of, str) and of not in names]
        if before is None:
            seen = self.entries(names, history, due)
        else:
            replies = read_many(self._store, names, {"entry": "DIGEST"})
            digests = {name: raised(digest) for name, (digest,) in zip(names, replies, strict=True)}
            read = self.entries(before.changed(names, digests, due), history, due)
            if and_loaded and before.has_new_definitions(read):
                loaded = before.loaded = scan_loaded(self._store)
            seen = before.keep(names, digests, read)
        memory = codec.read_fullness(self._store.server()[0])
        return Overview(now, latency, beats, seen, strangers, loaded, workers, tuple(unreadable), memory, lost)

    def entries(self, names: Sequence[str], history: int, due: Due | None = None) -> dict[str, EntrySeen]:
        """Look at entries alone; of ``due`` they are told what is theirs."""
        due = due or Due({}, {})
        seen: dict[str, EntrySeen] = {}
        for name, replies in zip(names, read_many(self._store, names, _HELD, history), strict=True):
            for each in replies:
                if isinstance(each, StoreUnavailableError):
                    raise each
            trouble = due.trouble and (due.trouble.get(name) or due.trouble.get(shard_of(name)))
            account = read_account(self._keys.of_entry("entry", name), replies[0])
            seen[name] = make_entry(name, account, replies[1:], due.windows.get(name, {}), trouble or "")
        return seen

    def with_records(self, overview: Overview, records_of: Collection[str]) -> Overview:
        """Add the deadlines of windows that run or wait, and all records of some entries."""
        entries = dict(overview.entries)
        lasting = [
            (entry.name, position, window)
            for entry in entries.values()
            for position, window in enumerate(entry.windows)
            if window.state in ("running", "waiting")
        ]
        members = [(name, f"{name}@{format_instant(window.start)}") for name, _, window in lasting]
        scores = self._trip.read(
            [("ZSCORE", self._keys.of_shard("open", shard_of(name)), member) for name, member in members]
        )
        for (name, position, window), score in zip(lasting, scores, strict=True):
            if score is not None and not isinstance(score, OnceError):
                windows = list(entries[name].windows)
                with suppress(ValueError):  # the overview names what can't be read
                    windows[position] = replace(window, deadline=codec.instant(float(score)))
                entries[name] = replace(entries[name], windows=windows)
        histories = read_many(self._store, [*records_of], {"history": "LRANGE"})
        for name, (texts,) in zip(records_of, histories, strict=True):
            if not isinstance(texts, OnceError):
                entries[name] = replace(entries[name], records=list(readable(texts)))
        return replace(overview, entries=entries)

    def entry(self, name: str, history: int) -> EntrySeen:
        """Look at one entry, with up to ``history`` records of its history."""
        return self.overview([name], history).entries[name]

    # -- beats ------------------------------------------------------------------------------------------------

    def beats(self) -> tuple[datetime, float, list[BeatStatus], Loss | None]:
        """Return the server's time, the seconds of a round trip, the beats that live, and what the store has lost."""
        keys = self._keys.of_beats
        hashes = [("HGETALL", keys["reports"]), ("HGETALL", keys["lost"])]
        scores, reports, lost = self._trip.read([("ZRANGE", keys["beats"], 0, -1, "WITHSCORES"), *hashes])
        sent = time.monotonic()
        heartbeat = self._store.snapshot()
        latency = time.monotonic() - sent  # of the second round trip: the first may have had to connect
        heard = dict(codec.as_pairs(raised(scores)))
        texts = {} if isinstance(reports, OnceError) else codec.as_mapping(reports)
        now_ms = (heartbeat.now - codec.EPOCH) / timedelta(milliseconds=1)
        beats = []
        for name in sorted(heartbeat.beats):
            since, text = max(now_ms - heard.get(name, now_ms), 0.0) / 1000, texts.get(name)
            beats.append(BeatStatus(beat=name, heard=round(since, 3), app=read_app(text), **read_report(text)))
        return heartbeat.now, latency, beats, codec.read_loss(lost)

    def _workers(self, now: datetime) -> tuple[dict[str, WorkerSeen], list[str]]:
        """Return the last report of each worker, and what can't be read."""
        try:
            found, unreadable = self._store.workers(now, _WORKERS_OF)
        except StoreUnavailableError:
            raise
        except OnceError as exc:
            return {}, [str(exc)]
        return found, [f"{self._keys.workers!r}, {why}" for why in unreadable]

    # -- entries ----------------------------------------------------------------------------------------------

    def _due(self, now: datetime) -> Due:
        keys, until = self._keys.of_shards("open"), ("-inf", codec.epoch_ms(now))
        replies = self._trip.read(
            [("ZRANGEBYSCORE", key, *until, "WITHSCORES", "LIMIT", 0, _MOST_OVERDUE) for key in keys]
        )
        due = Due({}, {})
        for shard, reply in enumerate(replies):
            if isinstance(reply, OnceError):
                due.trouble[shard] = str(reply)
                continue
            for member, deadline in codec.as_pairs(reply):
                window = codec.read_member(member)
                if window is None:
                    continue
                try:
                    due.windows.setdefault(window.entry, {})[window.start] = codec.instant(deadline)
                except ValueError as exc:
                    due.trouble[window.entry] = f"the key {keys[shard]!r}, {member!r}: {exc}"
        return due

    def _loaded(self, before: Remembered | None) -> dict[str, str]:
        """Return the descriptions of loaded entries; as before, while their number is the same."""
        if before is None:
            return scan_loaded(self._store)
        counted = self._trip.read([("HLEN", key) for key in self._keys.of_shards("entries")])
        known = sum(each for each in counted if not isinstance(each, OnceError))
        if before.is_old() or known != len(before.loaded):
            before.loaded = scan_loaded(self._store)
        return before.loaded
