"""What people ask of the store: which beats live, how each entry stands, what ran. Reads, and writes nothing.

A key that can't be read is a line of trouble at its entry; the other entries are shown.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice, repeat
from types import MappingProxyType
from typing import Any, NamedTuple

from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.windows import WindowKey, format_instant, parse_instant

from . import codec, scripts
from .keys import SHARDS, shard_of
from .model import BeatReport, EntryAccount, OpenWindow, Past, WorkerSeen
from .roundtrip import Words
from .scripts import Call
from .verbs import Store

#: Entries that travel in one pipeline.
_CHUNK = 500
#: Workers that were heard of within so many seconds are shown.
_WORKERS_OF = 86_400.0
#: Most overdue windows that are read of each shard.
_MOST_OVERDUE = 10_000
#: Most entries of the same definitions that a beat hears of.
_MOST_ALIKE = 20
#: Characters of a mark.
_MARK = 10
#: Seconds after which a caller who looks again and again reads all anew.
_REMEMBERED = 30.0


@dataclass(frozen=True)
class BeatSeen:
    """A beat that lives."""

    name: str
    #: Seconds since the store heard of it.
    heard: float
    #: What it said of itself; None: nothing, or nothing that this version understands.
    report: BeatReport | None
    #: Of which app it is; None: as for ``report``.
    app: str | None = None


@dataclass(frozen=True)
class WindowSeen:
    """A window that is open or has its outcome."""

    start: datetime
    #: Its outcome, or how it stands: ``overdue``, ``running``, ``waiting`` (for a retry, or to run again),
    #: ``buffered`` (for its turn, or for a slot of a limit), ``published``.
    state: str
    past: Past | None = None
    open: OpenWindow | None = None
    #: Copies of its message that were refused.
    refused: int = 0
    #: When it becomes overdue, aware UTC; known of windows that run or wait, if asked for. Each renewal moves it.
    deadline: datetime | None = None
    #: For which window of its entry it waits, or for a slot of which limit; both None: for neither.
    waits_for: datetime | None = None
    limit: str | None = None
    #: By when it is to be done, as its entry's ``deadline`` is now, aware UTC. None: there is none, or it was ordered.
    done_by: datetime | None = None
    #: What its last failure said, as it was recorded; '' where nothing is known.
    failure: str = ""


@dataclass(frozen=True)
class EntrySeen:
    """How one entry stands."""

    name: str
    #: None: the store has never heard of it, or can't read it.
    account: EntryAccount | None
    #: The newest windows that have an outcome, and all that are open; newest first.
    windows: Sequence[WindowSeen] = ()
    #: Start → deadline of its overdue windows, aware UTC.
    overdue: dict[datetime, datetime] = field(default_factory=dict)
    #: Why something of it can't be read; '' where all can.
    trouble: str = ""
    #: All of its history that can be read, newest first; () unless it was asked for.
    records: Sequence[Past] = ()

    @property
    def last(self) -> WindowSeen | None:
        """The newest window that has its outcome."""
        return next((window for window in self.windows if window.past is not None), None)


class RowSeen(NamedTuple):
    """What the store has of a database's row by other names than it has now."""

    #: The entries that are made of it.
    names: tuple[str, ...]
    #: Where it stood when it left its last name, aware UTC; None: it has left none.
    cursor: datetime | None = None
    #: Its pause then, as :class:`LoadRequest` has it.
    pause: str = ""


@dataclass(frozen=True)
class Overview:
    """All that one look shows."""

    #: The server's time, aware UTC.
    now: datetime
    #: Seconds of the round trip.
    latency: float
    beats: list[BeatSeen]
    entries: dict[str, EntrySeen]
    #: How many overdue windows each entry has that wasn't asked for: it has left the schedule.
    strangers: dict[str, int]
    #: What beats say of the entries that they have loaded, as ``lua/pieces/entries.lua`` has it; if that was asked for.
    loaded: dict[str, str] = field(default_factory=dict)
    #: Workers that know windows, of the last day.
    workers: dict[str, WorkerSeen] = field(default_factory=dict)
    #: What can't be read and belongs to no entry that is shown.
    unreadable: tuple[str, ...] = ()


class Remembered:
    """What the looks of one caller have found, so that the next one reads what has changed since.

    An entry's hash tells: whatever changes an entry changes it. A foreign hand may change another of its keys alone, so
    all is read again now and then.
    """

    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}
        #: What is asked for the marks of ``names``, in ``chunks``.
        self.names: Sequence[str] = ()
        self.chunks: list[list[str]] = []
        self.calls: list[Call[str]] = []
        self._seen: dict[str, EntrySeen] = {}
        self._marks: dict[str, str] = {}
        self._read_at = -_REMEMBERED

    def is_old(self) -> bool:
        """Whether all is to be read again."""
        return time.monotonic() - self._read_at >= _REMEMBERED

    def changed(
        self,
        names: Sequence[str],
        marks: dict[str, str],
        overdue: Mapping[str, dict[datetime, datetime]],
        trouble: Mapping[int | str, str],
    ) -> list[str]:
        """Return which entries to read again; ``trouble`` is as ``_overdue`` returns it."""
        if self.is_old() or trouble:
            self._seen, self._read_at = {}, time.monotonic()
        return [
            name
            for name in names
            if name not in self._seen
            or not marks[name]
            or self._marks.get(name) != marks[name]
            or self._seen[name].overdue != overdue.get(name, {})
        ]

    def has_new_definitions(self, read: Mapping[str, EntrySeen]) -> bool:
        """Whether beats loaded or left one of these since."""
        return any(_loaders(seen) != _loaders(self._seen.get(name)) for name, seen in read.items())

    def keep(self, names: Sequence[str], marks: dict[str, str], read: Mapping[str, EntrySeen]) -> dict[str, EntrySeen]:
        """Return all entries, those that were read anew among them; ``marks`` were asked for before that."""
        self._seen = {name: read.get(name) or self._seen[name] for name in names}
        self._marks = marks
        return dict(self._seen)


def _loaders(seen: EntrySeen | None) -> tuple[object, object]:
    account = seen.account if seen else None
    return (account.fingerprint, account.loaders) if account else (None, None)


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
        now, latency, beats = self.beats()
        loaded = self._loaded(before) if and_loaded else {}
        names = list(dict.fromkeys([*entries, *loaded]))
        overdue, trouble = self._overdue(now)
        strangers = {name: len(overdue[name]) for name in overdue.keys() - set(names)}
        workers, unreadable = self._workers(now) if and_loaded else ({}, [])
        unreadable += [why for of, why in trouble.items() if isinstance(of, str) and of not in names]
        if before is None:
            seen = self.entries(names, history, overdue, trouble)
        else:
            marks = self._marks(names, before)
            changed = before.changed(names, marks, overdue, trouble)
            read = self.entries(changed, history, overdue, trouble)
            if and_loaded and before.has_new_definitions(read):
                loaded = before.loaded = self._scan_loaded()
            seen = before.keep(names, marks, read)
        return Overview(now, latency, beats, seen, strangers, loaded, workers, tuple(unreadable))

    def _marks(self, names: Sequence[str], before: Remembered) -> dict[str, str]:
        """Return by name what is the same as long as the entry's hash is; '' where that can't be told."""
        if names != before.names:
            by_shard: dict[int, list[str]] = {}
            for name in names:
                by_shard.setdefault(shard_of(name), []).append(name)
            chunks = [of[at : at + _CHUNK] for of in by_shard.values() for at in range(0, len(of), _CHUNK)]
            before.names, before.chunks = names, chunks
            before.calls = [
                scripts.MARKS.call({}, [self._keys.of_entry("entry", name) for name in chunk]) for chunk in chunks
            ]
        answers = self._trip.run(before.calls)
        marks: dict[str, str] = {}
        for chunk, answer in zip(before.chunks, answers, strict=True):
            if isinstance(answer, StoreUnavailableError):
                raise answer
            text = answer if isinstance(answer, str) else ""
            marks.update((name, text[at * _MARK : (at + 1) * _MARK]) for at, name in enumerate(chunk))
        return marks

    def entries(
        self,
        names: Sequence[str],
        history: int,
        overdue: Mapping[str, dict[datetime, datetime]] = MappingProxyType({}),
        trouble: Mapping[int | str, str] = MappingProxyType({}),
    ) -> dict[str, EntrySeen]:
        """Look at entries alone; ``overdue`` and ``trouble`` are as :meth:`_overdue` returns them."""
        seen: dict[str, EntrySeen] = {}
        for position in range(0, len(names), _CHUNK):
            chunk = names[position : position + _CHUNK]
            replies = self._trip.read([command for name in chunk for command in self._commands(name, history)])
            for name, reply in zip(chunk, zip(*[iter(replies)] * 3, strict=True), strict=True):
                seen[name] = self._entry(
                    name, reply, overdue.get(name, {}), trouble.get(name) or trouble.get(shard_of(name), "")
                )
            self._add_failures(seen, chunk)
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
        commands: list[Words] = [
            ("ZSCORE", self._keys.open(shard_of(name)), f"{name}@{format_instant(window.start)}")
            for name, _, window in lasting
        ]
        commands += [("LRANGE", self._keys.of_entry("history", name), 0, -1) for name in records_of]
        replies = iter(self._trip.read(commands) if commands else ())
        for (name, position, window), score in zip(lasting, replies, strict=False):
            if score is not None and not isinstance(score, OnceError):
                windows = list(entries[name].windows)
                with suppress(ValueError):  # the snapshot has said so
                    windows[position] = replace(window, deadline=codec.instant(float(score)))
                entries[name] = replace(entries[name], windows=windows)
        for name, texts in zip(records_of, replies, strict=True):
            if not isinstance(texts, OnceError):
                entries[name] = replace(entries[name], records=list(_readable(texts)))
        return replace(overview, entries=entries)

    def entry(self, name: str, history: int) -> EntrySeen:
        """Look at one entry, with up to ``history`` records of its history."""
        return self.overview([name], history).entries[name]

    def server(self) -> tuple[dict[str, Any], str]:
        """Return what the server (of a cluster one node) says of itself, or why it doesn't: INFO may be refused."""
        try:
            (reply,) = self._trip.read([("INFO", "everything")])
        except OnceError as exc:
            return {}, str(exc)
        return codec.as_info(reply), ""

    def clocks(self) -> dict[str, float]:
        """How many seconds the clock of each server that answers, replicas too, is ahead of this machine's."""
        return self._trip.clocks()

    # -- beats ------------------------------------------------------------------------------------------------

    def beats(self) -> tuple[datetime, float, list[BeatSeen]]:
        """Return the server's time, the seconds of a round trip, and the beats that live."""
        keys = self._keys.of_beats
        scores, reports = self._trip.read(
            [("ZRANGE", keys["beats"], 0, -1, "WITHSCORES"), ("HGETALL", keys["reports"])]
        )
        sent = time.monotonic()
        heartbeat = self._store.snapshot()
        latency = time.monotonic() - sent  # of the second round trip: the first may have had to connect
        if isinstance(scores, OnceError):
            raise scores
        heard = dict(codec.as_pairs(scores))
        reports = {} if isinstance(reports, OnceError) else codec.as_mapping(reports)
        now_ms = (heartbeat.now - codec.EPOCH) / timedelta(milliseconds=1)
        return (
            heartbeat.now,
            latency,
            [
                BeatSeen(
                    name,
                    max(now_ms - heard.get(name, now_ms), 0.0) / 1000,
                    codec.read_report(reports.get(name)),
                    codec.read_app(reports.get(name)),
                )
                for name in sorted(heartbeat.beats)
            ],
        )

    def _workers(self, now: datetime) -> tuple[dict[str, WorkerSeen], list[str]]:
        """Return what each worker said last, and what can't be read of them."""
        try:
            found, unreadable = self._store.workers(now, _WORKERS_OF)
        except StoreUnavailableError:
            raise
        except OnceError as exc:
            return {}, [str(exc)]
        return found, [f"{self._keys.workers!r}, {why}" for why in unreadable]

    # -- entries ----------------------------------------------------------------------------------------------

    def _overdue(self, now: datetime) -> tuple[dict[str, dict[datetime, datetime]], dict[int | str, str]]:
        """Return overdue windows by entry; and why some can't be read, by a shard's number or an entry's name."""
        until = codec.epoch_ms(now)
        replies = self._trip.read(
            [
                ("ZRANGEBYSCORE", self._keys.open(shard), "-inf", until, "WITHSCORES", "LIMIT", 0, _MOST_OVERDUE)
                for shard in range(SHARDS)
            ]
        )
        found: dict[str, dict[datetime, datetime]] = {}
        trouble: dict[int | str, str] = {}
        for shard, reply in enumerate(replies):
            if isinstance(reply, OnceError):
                trouble[shard] = str(reply)
                continue
            pairs = codec.as_pairs(reply)
            windows = codec.read_members([member for member, _ in pairs])
            assert not isinstance(windows, OnceError)
            for window, (member, deadline) in zip(windows, pairs, strict=True):
                if isinstance(window, WindowKey):
                    try:
                        instant = codec.instant(deadline)
                    except ValueError as exc:
                        trouble[window.entry] = f"the key {self._keys.open(shard)!r}, {member!r}: {exc}"
                    else:
                        found.setdefault(window.entry, {})[window.start] = instant
        return found, trouble

    def _add_failures(self, seen: dict[str, EntrySeen], names: Iterable[str]) -> None:
        """Add what failures said to the windows that failed; most entries have none."""
        failed = [name for name in names if any(_may_have_failed(window) for window in seen[name].windows)]
        commands = [("HGETALL", self._keys.of_entry("failures", name)) for name in failed]
        for name, reply in zip(failed, self._trip.read(commands) if commands else (), strict=True):
            if isinstance(reply, OnceError):
                continue  # for people only
            words = codec.as_mapping(reply)
            windows = [
                replace(window, failure=words.get(format_instant(window.start), "")) if words else window
                for window in seen[name].windows
            ]
            seen[name] = replace(seen[name], windows=windows)

    def _loaded(self, before: Remembered | None) -> dict[str, str]:
        """Return what beats say of the entries that they have loaded; as before, while they are as many."""
        if before is None:
            return self._scan_loaded()
        keys = [self._keys.of_shard("entries", shard) for shard in range(SHARDS)]
        counted = [
            0 if isinstance(reply, OnceError) else reply for reply in self._trip.read([("HLEN", k) for k in keys])
        ]
        if before.is_old() or sum(counted) != len(before.loaded):
            before.loaded = self._scan_loaded()
        return before.loaded

    def loaded_as(self, fingerprints: Collection[str], without: Container[str]) -> list[tuple[str, str]]:
        """Return up to 20 entries that beats have loaded by one of these, each with its fingerprint."""
        loaded = ((name, text.partition(" ")[0]) for name, text in self._scan_loaded().items() if name not in without)
        return list(islice((each for each in loaded if each[1] in fingerprints), _MOST_ALIKE))

    def _scan_loaded(self) -> dict[str, str]:
        """Return what beats say of the entries that they have loaded. A part at a time: there may be a million."""
        found: dict[str, str] = {}
        left = dict.fromkeys(range(SHARDS), "0")
        while left:
            commands = [
                ("HSCAN", self._keys.of_shard("entries", shard), cursor, "COUNT", _CHUNK)
                for shard, cursor in left.items()
            ]
            replies = dict(zip(left, self._trip.read(commands), strict=True))
            left = {}
            for shard, reply in replies.items():
                if isinstance(reply, OnceError):
                    continue  # for people only: what a process knows by its own code is shown all the same
                cursor, pairs = reply
                found |= codec.as_mapping(pairs)
                if cursor != "0":
                    left[shard] = cursor
        return found

    def left_rows(self, known: Container[str]) -> dict[str, str]:
        """Return the loaded entries that are made of rows, but for those ``known``, each with its fingerprint."""
        names = [name for name in self._scan_loaded() if name not in known]
        replies = self._trip.read(
            [("HMGET", self._keys.of_entry("entry", name), "row", "fingerprint") for name in names]
        )
        found = zip(names, replies, strict=True)
        return {name: reply[1] for name, reply in found if not isinstance(reply, OnceError) and all(reply)}

    def rows(self, named: Mapping[str, str]) -> dict[str, RowSeen | StoreUnavailableError]:
        """Return what is known of rows, key → name, that no entry of that name is made of. Doesn't raise.

        What can't be known is an error: the row may be any entry of a part of the store that is away.
        """
        by_shard: dict[int, list[str]] = {}
        for row, name in named.items():
            by_shard.setdefault(shard_of(name), []).append(row)
        held = self._held(by_shard)
        # Mostly none: all shards are asked for few rows.
        left = [row for row, name in named.items() if f"- {name}" not in held[row]]
        held = self._held(dict.fromkeys(range(SHARDS), left)) if left else {}
        return {row: _row_seen(texts) for row, texts in held.items() if f"- {named[row]}" not in texts}

    def _held(self, asked: Mapping[int, Sequence[str]]) -> dict[str, list[Any]]:
        """Return what shards have of rows, as ``lua/pieces/rows.lua`` says; an error for one that doesn't answer."""
        keys = {shard: [self._keys.of_shard(f"row:{row}", shard) for row in rows] for shard, rows in asked.items()}
        try:
            replies = self._trip.run_with([], [("MGET", *of) for of in keys.values()])[1] if keys else []
        except StoreUnavailableError as exc:
            replies = [exc] * len(keys)
        held: dict[str, list[Any]] = {}
        for rows, reply in zip(asked.values(), replies, strict=True):
            for row, text in zip(rows, repeat(reply) if isinstance(reply, OnceError) else reply, strict=False):
                held.setdefault(row, []).append(text)
        return held

    def _commands(self, name: str, history: int) -> list[tuple[Any, ...]]:
        return [
            ("HGETALL", self._keys.of_entry("entry", name)),
            ("LRANGE", self._keys.of_entry("history", name), 0, history - 1),
            ("HGETALL", self._keys.of_entry("refused", name)),
        ]

    def _entry(self, name: str, replies: Sequence[Any], overdue: dict[datetime, datetime], trouble: str) -> EntrySeen:
        account_reply, history, refused_reply = replies
        read = codec.read_account(self._keys.of_entry("entry", name), account_reply)
        account, past, refused = None, [], {}
        errors = [reply for reply in (read, history, refused_reply) if isinstance(reply, OnceError)]
        if errors:
            trouble = str(errors[0])
            history = [] if isinstance(history, OnceError) else history
        else:
            account = read if isinstance(read, EntryAccount) else None
            try:
                refused = {start: codec.whole(count) for start, count in codec.as_mapping(refused_reply).items()}
            except ValueError as exc:
                trouble = f"the refused copies of {name!r} can't be read: {exc}"
        for text in history:
            try:
                past.append(codec.read_past(text))
            except (ValueError, OverflowError) as exc:
                trouble = f"the history of {name!r} can't be read, a record of it: {exc}"
        windows = [WindowSeen(p.start, p.outcome, past=p) for p in past]
        windows += [
            WindowSeen(start, _state(window, overdue=start in overdue), open=window)
            for start, window in (account.open if account else {}).items()
        ]
        if account is not None:
            windows = _with_deadlines(_with_reasons(windows, account), account)
        windows.sort(key=lambda window: window.start, reverse=True)
        counted = [replace(window, refused=refused.get(format_instant(window.start), 0)) for window in windows]
        return EntrySeen(name, account, counted, overdue, trouble)


def _row_seen(held: Sequence[Any]) -> RowSeen | StoreUnavailableError:
    texts = [text for text in held if isinstance(text, str)]
    names = tuple(text[2:] for text in texts if text.startswith("- "))
    aside = max((text for text in texts if not text.startswith("- ")), default="")
    try:
        cursor, _, pause = aside.split(" ", 2)
        seen = RowSeen(names, parse_instant(cursor), pause)
    except ValueError:
        seen = RowSeen(names)
    return next((each for each in held if isinstance(each, StoreUnavailableError)), seen)


def _readable(texts: Iterable[str]) -> Iterator[Past]:
    for text in texts:
        with suppress(ValueError, OverflowError):  # the snapshot has said so
            yield codec.read_past(text)


def _may_have_failed(window: WindowSeen) -> bool:
    return window.state in ("failed", "abandoned") or (window.open is not None and window.open.begun is not None)


def _with_reasons(windows: list[WindowSeen], account: EntryAccount) -> list[WindowSeen]:
    """Say for what each waits: for a slot of a limit, or for the window that has the turn, else the first in line.

    What goes first is ordered as by ``goes_before`` in ``features/admission/lua/line.lua``.
    """
    waiting = {start: each for start, each in account.open.items() if each.waits}
    if not waiting:
        return windows

    def place(start: datetime) -> tuple[object, ...]:
        each = waiting[start]
        return each.state != "waits_slot", each.begun is None and not each.backfill, start

    holder = account.open.get(account.turn) if account.turn else None
    first = account.turn if holder is not None and holder.state in ("held", "retry") else min(waiting, key=place)

    def with_reason(window: WindowSeen) -> WindowSeen:
        if window.start not in waiting:
            return window
        if waiting[window.start].state == "waits_slot":
            return replace(window, limit=account.limit)
        return window if first == window.start else replace(window, waits_for=first)

    return [with_reason(window) for window in windows]


def _with_deadlines(windows: list[WindowSeen], account: EntryAccount) -> list[WindowSeen]:
    """Say by when windows are to be done; what somebody orders has no such time."""
    if account.deadline is None:
        return windows
    span = timedelta(seconds=account.deadline)

    def with_deadline(window: WindowSeen) -> WindowSeen:
        ordered = window.open.backfill if window.open else window.past is not None and window.past.ordered
        try:
            return window if ordered else replace(window, done_by=window.start + span)
        except OverflowError:  # at the calendar's end; a foreign record may say anything
            return window

    return [with_deadline(window) for window in windows]


def _state(window: OpenWindow, *, overdue: bool) -> str:
    if overdue:
        return "overdue"
    if window.waits:
        return "buffered"
    if window.given_back:
        return "waiting"
    return "published" if window.begun is None else "running"
