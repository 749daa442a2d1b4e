"""What a beat looks up of entries that others have loaded: under which names, by which definition."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from itertools import islice, repeat
from typing import Any

from celery.utils.functional import chunks

from celery_once_beat.errors import OnceError

from . import codec
from .keys import shard_of
from .roundtrip import raised
from .scripts import READ, Request
from .verbs import Store

#: Entries that are read at a time.
_CHUNK = 500
#: Entries about which one pipeline asks scripts, a script a shard.
_MANY = 1000
#: Most entries of the same definitions that a beat hears of.
_MOST_ALIKE = 20


def scan_loaded(store: Store) -> dict[str, str]:
    """Return the descriptions of loaded entries by name. They are read in parts: there may be a million."""
    found: dict[str, str] = {}
    left = dict.fromkeys(store.keys.of_shards("entries"), "0")
    while left:
        replies = store.trip.read([("HSCAN", key, cursor, "COUNT", _CHUNK) for key, cursor in left.items()])
        # An error is left out, for people only: what a process knows by its own code is shown all the same.
        read = {key: reply for key, reply in zip(left, replies, strict=True) if not isinstance(reply, OnceError)}
        for _, pairs in read.values():
            found |= codec.as_mapping(pairs)
        left = {key: cursor for key, (cursor, _) in read.items() if cursor != "0"}
    return found


def read_many(store: Store, names: Sequence[str], held: Mapping[str, str], most: int = 0) -> list[Sequence[Any]]:
    """Return for each of ``names`` what its keys hold; an error stands in the place of what can't be read.

    ``held`` has what a key is of its entry, see ``keys``, and how it is read, see ``lua/read.lua``.
    """
    found: dict[str, Sequence[Any]] = {}
    for asked in chunks(iter(names), _MANY):
        by_shard: dict[int, list[str]] = {}
        for name in asked:
            by_shard.setdefault(shard_of(name), []).append(name)
        keys = ([store.keys.of_entry(what, name) for name in of for what in held] for of in by_shard.values())
        requests: list[Request[Any]] = [READ.request({}, each, commands=held.values(), most=most) for each in keys]
        for of, answer in zip(by_shard.values(), store.trip.timed(requests), strict=True):
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
