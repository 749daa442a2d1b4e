"""What the store knows of a database's rows: which entries they make, what they had by other names, what is spent."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any, NamedTuple

from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.store import SHARDS, Spent, Store, Unknown, scan_loaded, shard_of
from celery_once_beat.store.scripts import SPENT, UNLOAD
from celery_once_beat.windows import parse_instant


class RowSeen(NamedTuple):
    """What the store has of a database's row by other names than it has now."""

    #: The entries that are made of it.
    names: tuple[str, ...]
    #: Its cursor when it left its last name, aware UTC; None: it has left none.
    cursor: datetime | None = None
    #: Its pause then, as :class:`LoadRequest` has it.
    pause: str = ""


def left_rows(store: Store, known: Container[str]) -> dict[str, str]:
    """Return the loaded entries that are made of rows, but for those ``known``, each with its fingerprint."""
    names = [name for name in scan_loaded(store) if name not in known]
    replies = store.trip.read([("HMGET", store.keys.of_entry("entry", name), "row", "fingerprint") for name in names])
    found = zip(names, replies, strict=True)
    return {name: reply[1] for name, reply in found if not isinstance(reply, OnceError) and all(reply)}


def leave_rows(store: Store, beat: str, left: Iterable[tuple[str, str]]) -> list[str | OnceError]:
    """Say that the beat has rows by other names, as (entry, row).

    Returns for each ``unloaded``, ``kept`` or ``unknown``, by whichever definition. What a row had by a name that no
    living beat has it by is then kept for its next load: see :func:`find_rows`.
    """
    keys = store.keys.for_entry
    return store.trip.run([UNLOAD.request(keys(entry, row), beat=beat, fingerprint="", row=row) for entry, row in left])


def mark_spent(
    store: Store, entry: str, since: datetime, edited: datetime, now: datetime, *, disabled: bool = False
) -> Spent | Unknown:
    """Say that a one-off has had its window, and that it is being ``disabled``.

    ``edited`` is its last edit that the beat knows of, ``now`` from where it counts if it was enabled again. Returns
    :class:`Unknown` where it has to be loaded again.
    """
    keys = {"entry": store.entry_key(entry)}
    return store.trip.one(SPENT.request(keys, since=since, edited=edited, disabled=disabled, from_now=now))


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
