"""What a beat looks up of entries that others have loaded: under which names, by which definition, of which rows."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from datetime import datetime
from itertools import islice, repeat
from typing import Any, NamedTuple

from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.windows import parse_instant

from . import codec
from .keys import SHARDS, shard_of
from .roundtrip import raised
from .scripts import READ, Request
from .verbs import Store

#: Entries that are read at a time.
_CHUNK = 500
#: Entries about which one pipeline asks scripts, a script a shard.
_MANY = 1000
#: Most entries of the same definitions that a beat hears of.
_MOST_ALIKE = 20


class RowSeen(NamedTuple):
    """What the store has of a database's row by other names than it has now."""

    #: The entries that are made of it.
    names: tuple[str, ...]
    #: Its cursor when it left its last name, aware UTC; None: it has left none.
    cursor: datetime | None = None
    #: Its pause then, as :class:`LoadRequest` has it.
    pause: str = ""


def scan_loaded(store: Store) -> dict[str, str]:
    """Return the descriptions of loaded entries by name. They are read in parts: there may be a million."""
    found: dict[str, str] = {}
    left = dict.fromkeys(range(SHARDS), "0")
    while left:
        commands = [
            ("HSCAN", store.keys.of_shard("entries", shard), cursor, "COUNT", _CHUNK) for shard, cursor in left.items()
        ]
        replies = dict(zip(left, store.trip.read(commands), strict=True))
        left = {}
        for shard, reply in replies.items():
            if isinstance(reply, OnceError):
                continue  # for people only: what a process knows by its own code is shown all the same
            cursor, pairs = reply
            found |= codec.as_mapping(pairs)
            if cursor != "0":
                left[shard] = cursor
    return found


def read_many(store: Store, names: Sequence[str], held: Mapping[str, str], most: int = 0) -> list[Sequence[Any]]:
    """Return for each of ``names`` what its keys hold; an error stands in the place of what can't be read.

    ``held`` has what a key is of its entry, see ``keys``, and how it is read, see ``lua/read.lua``.
    """
    found: dict[str, Sequence[Any]] = {}
    for at in range(0, len(names), _MANY):
        by_shard: dict[int, list[str]] = {}
        for name in names[at : at + _MANY]:
            by_shard.setdefault(shard_of(name), []).append(name)
        keys = ([store.keys.of_entry(what, name) for name in of for what in held] for of in by_shard.values())
        requests: list[Request[Any]] = [READ.request({}, each, commands=held.values(), most=most) for each in keys]
        for of, answer in zip(by_shard.values(), store.trip.run(requests), strict=True):
            each_key = repeat(answer) if isinstance(answer, OnceError) else answer
            found.update(zip(of, zip(*[iter(each_key)] * len(held), strict=False), strict=False))
    for name, replies in found.items():
        if False in replies:  # a key that is asked alone says why
            alone = [(command, store.keys.of_entry(what, name)) for what, command in held.items()]
            found[name] = store.trip.send([(*each, 0, most - 1) if each[0] == "LRANGE" else each for each in alone])
    return [found[name] for name in names]


def loaded_as(store: Store, fingerprints: Collection[str], without: Container[str]) -> list[tuple[str, str]]:
    """Return up to 20 entries that beats have loaded by one of these, each with its fingerprint."""
    loaded = ((name, text.partition(" ")[0]) for name, text in scan_loaded(store).items() if name not in without)
    return list(islice((each for each in loaded if each[1] in fingerprints), _MOST_ALIKE))


def loaders_of(store: Store, name: str) -> set[str]:
    """Return the newest few beats that have loaded the entry, not all of them alive."""
    (reply,) = store.trip.read([("HGET", store.entry_key(name), "loaders")])
    return {*(raised(reply) or "").split(" ")[::3]}


def left_rows(store: Store, known: Container[str]) -> dict[str, str]:
    """Return the loaded entries that are made of rows, but for those ``known``, each with its fingerprint."""
    names = [name for name in scan_loaded(store) if name not in known]
    replies = store.trip.read([("HMGET", store.keys.of_entry("entry", name), "row", "fingerprint") for name in names])
    found = zip(names, replies, strict=True)
    return {name: reply[1] for name, reply in found if not isinstance(reply, OnceError) and all(reply)}


def find_rows(store: Store, named: Mapping[str, str]) -> dict[str, RowSeen | StoreUnavailableError]:
    """Return what is known of rows, key → name, that no entry of that name is made of. Doesn't raise.

    What can't be known is an error: the row may be any entry of a part of the store that is away.
    """
    by_shard: dict[int, list[str]] = {}
    for row, name in named.items():
        by_shard.setdefault(shard_of(name), []).append(row)
    held = _held(store, by_shard)
    # Mostly none: all shards are asked for few rows.
    left = [row for row, name in named.items() if f"- {name}" not in held[row]]
    held = _held(store, dict.fromkeys(range(SHARDS), left)) if left else {}
    return {row: _row_seen(texts) for row, texts in held.items() if f"- {named[row]}" not in texts}


def _held(store: Store, asked: Mapping[int, Sequence[str]]) -> dict[str, list[Any]]:
    """Return what shards have of rows (see ``lua/pieces/rows.lua``); an error for one that doesn't answer."""
    keys = {shard: [store.keys.of_shard(f"row:{row}", shard) for row in rows] for shard, rows in asked.items()}
    try:
        replies = store.trip.send([("MGET", *of) for of in keys.values()])
    except StoreUnavailableError as exc:
        replies = [exc] * len(keys)
    held: dict[str, list[Any]] = {}
    for rows, reply in zip(asked.values(), replies, strict=True):
        for row, text in zip(rows, repeat(reply) if isinstance(reply, OnceError) else reply, strict=False):
            held.setdefault(row, []).append(text)
    return held


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
