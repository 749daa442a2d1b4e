"""Definitions in the store: the verbs that change them, and how they are read. ``load`` and ``pause`` know them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from celery_once_beat.errors import OnceError, StoreDataError
from celery_once_beat.store import SHARDS, ActedOn, Confirmed, Store, Unknown, codec, raised, read_many
from celery_once_beat.store.keys import VERSION, newer
from celery_once_beat.store.scripts import PAUSE, Verb
from celery_once_beat.windows import parse_instant
from celery_once_beat.wording import shown

#: A fingerprint that scripts can list.
_MARK = re.compile(r"def:\d{1,15}:[!-~]{1,40}")


@dataclass(frozen=True)
class StoredDefinition(ActedOn):
    """A definition that people set at run time, as the store has it; or one that was deleted of late."""

    name: str
    #: Its JSON; :mod:`celery_once_beat.schedules` reads it.
    text: str
    #: It counts the changes of the name.
    version: int
    #: The fingerprint with which beats load it.
    fingerprint: str
    #: The instant from which it counts, aware UTC.
    since: datetime
    #: When it changed last, aware UTC; who did it, and why.
    at: datetime
    by: str = ""
    note: str = ""
    paused: bool = False
    deleted: bool = False
    #: What users keep with it, JSON that isn't checked; ''.
    metadata: str = ""


@dataclass(frozen=True)
class Changed(ActedOn):
    """The change was made, now or when this request was sent before; ``at`` is aware UTC.

    ``same``: all was as asked for, and nothing was changed but its metadata.
    """

    version: int
    at: datetime
    paused: bool = False
    same: bool = False
    #: Who made the version, and why; and the metadata, as :class:`StoredDefinition` has them.
    by: str = field(default="", compare=False)
    note: str = field(default="", compare=False)
    metadata: str = field(default="", compare=False)


@dataclass(frozen=True)
class SetRequest:
    """A definition that is to be set.

    It counts from now; with ``counts_from`` (aware UTC) another scheduler has run its windows up to there, and later
    ones are owed. ``if_version`` is the version that has to be there, 0: none; None: any. ``paused`` and ``metadata``
    (JSON) None leave that as it is. ``words`` are those of ``check_words``.
    """

    name: str
    text: str
    words: str = "{}"
    if_version: int | None = None
    paused: bool | None = None
    counts_from: datetime | None = None
    metadata: str | None = None


@dataclass(frozen=True)
class Conflict:
    """The version isn't the one that was expected; ``current``, without its name, is what there is; None: nothing."""

    current: StoredDefinition | None


@dataclass(frozen=True)
class ChangeRecord:
    """One record of a definition's changes, newest first. ``at`` is aware UTC."""

    version: int
    at: datetime
    what: str
    by: str
    note: str
    #: The JSON that was in force until then; '' where none was, or it stayed.
    replaced: str


ChangeReply = Changed | Conflict | Unknown


def _read(reply: str | list[Any]) -> Any:
    if isinstance(reply, str):
        word, version, at, paused, words, metadata = reply.split("\n", 5)
        made = codec.whole(version), parse_instant(at), bool(codec.whole(paused)), word == "same"
        return Changed(*made, *codec.read_words(words), metadata)
    match reply[0]:
        case "done":
            return Changed(codec.whole(reply[1]), parse_instant(reply[2]))
        case "conflict":
            return Conflict(_make_definition("", codec.as_mapping(reply[1:])) if reply[1:] else None)
    return {"unknown": Unknown}[reply[0]]()


def read_definition(key: str, name: str, reply: Any) -> StoredDefinition | OnceError | None:
    """Read a definition's hash, ``key``; None where there is none, an error where it can't be read."""
    if isinstance(reply, OnceError):
        return reply
    values = codec.as_mapping(reply)
    if not values:
        return None
    version = values.get("v", "")
    if version != str(VERSION) and version.isdecimal():
        return newer(key, version)
    try:
        return _make_definition(name, values)
    except (ValueError, KeyError, RecursionError) as exc:
        return StoreDataError(f"the key {key!r} is no definition of a schedule: {shown(exc)}; delete it")


def _make_definition(name: str, values: dict[str, str]) -> StoredDefinition:
    by, note = codec.read_words(values.get("words", "{}"))
    return StoredDefinition(
        name,
        values["text"],
        codec.whole(values["version"]),
        _check_mark(values["mark"]),
        parse_instant(values["since"]),
        parse_instant(values["at"]),
        by,
        note,
        values.get("paused") == "1",
        values.get("deleted") == "1",
        values.get("metadata", ""),
    )


def _check_mark(text: str) -> str:
    """Return a fingerprint that scripts can list."""
    if not _MARK.fullmatch(text):
        raise ValueError(f"found the mark {text!r:.40}")
    return text


def _read_pause(reply: list[Any]) -> Any:
    try:
        return _make_definition("", codec.as_mapping(reply[1:]))
    except (ValueError, KeyError):  # none is stored, or it can't be read
        return codec.read_pause(reply)


_PAUSE: Any = replace(PAUSE, read=_read_pause)
_KEYS = "def entry changes defs gone"
_CHANGE = "name request words"
_SET = f"{_CHANGE} text paused:number if_version:number counts_from:instant metadata"
SET = Verb("set", _KEYS, _SET, _read, waits=True, feature="runtime")
DELETE = Verb("delete", _KEYS, f"{_CHANGE} if_version:number", _read, waits=True, feature="runtime")


def set_many(store: Store, wanted: Sequence[SetRequest]) -> list[Changed | Conflict | OnceError]:
    """Set definitions, in one pipeline."""
    return store.trip.timed([store.change_request(SET, **vars(each)) for each in wanted])


def delete_many(
    store: Store, names: Iterable[str], words: str = "{}", *, if_version: int | None = None
) -> list[ChangeReply | OnceError]:
    """Delete definitions, in one pipeline; see :class:`SetRequest`. What is open continues to its outcome."""
    return store.trip.timed([store.change_request(DELETE, name, words, if_version=if_version) for name in names])


def set_paused(
    store: Store, name: str, words: str, *, paused: bool, from_now: bool = False
) -> StoredDefinition | Confirmed | Unknown:
    """As :meth:`Store.set_paused`; returns the definition as it is from then on, Confirmed where none is stored.

    ``from_now``: one that no beat has loaded owes nothing when it is resumed.
    """
    more = store.of_features(_PAUSE, from_now=from_now)
    request = store.change_request(_PAUSE, name, words, paused=paused, only_still=False, **more)
    reply = raised(store.trip.timed([request])[0])
    return replace(reply, name=name) if isinstance(reply, StoredDefinition) else reply


def read_definitions(store: Store, names: Sequence[str]) -> list[StoredDefinition | OnceError | None]:
    """Return the definition of each of ``names``, also one that was deleted of late; None where there is none.

    Of a cluster one node may be away: that is the error of its names alone.
    """
    keys = [store.keys.of_entry("def", name) for name in names]
    replies = read_many(store, names, {"def": "HGETALL"})
    return [read_definition(key, name, reply) for key, name, (reply,) in zip(keys, names, replies, strict=True)]


def read_with_changes(
    store: Store, names: Sequence[str]
) -> dict[str, tuple[StoredDefinition | OnceError | None, list[ChangeRecord] | OnceError]]:
    """Return by name what :func:`read_definitions` does, and its last changes; a first version has none."""
    found = dict(zip(names, read_definitions(store, names), strict=True))
    changed = [name for name, each in found.items() if isinstance(each, StoredDefinition) and each.version > 1]
    changes = dict(zip(changed, read_changes(store, changed), strict=True))
    return {name: (each, changes.get(name, [])) for name, each in found.items()}


def ask_changed(store: Store, numbers: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return the commands that ask for the definitions that have changed since the change of that number of each shard.

    The one of that number is among the answers, as long as the store knows it; each is read by :func:`read_numbers`.
    """
    return _since(store, "defs", enumerate(numbers))


def _since(store: Store, what: str, asked: Iterable[tuple[int, int]]) -> list[tuple[Any, ...]]:
    of = store.keys.of_shard
    return [("ZRANGEBYSCORE", of(what, shard), number, "+inf", "WITHSCORES") for shard, number in asked]


def definition_names(store: Store) -> list[dict[str, int] | OnceError]:
    """Return for each shard the names of its definitions, each with the number of its last change."""
    found = map(read_numbers, store.trip.read(ask_changed(store, [0] * SHARDS)))
    return [each if isinstance(each, OnceError) else {name: each[name] for name in each if name} for each in found]


def deleted_since(store: Store, numbers: Mapping[int, int]) -> list[dict[str, int] | OnceError]:
    """Return for each shard of ``numbers`` the names that were deleted since the change of that number."""
    return [*map(read_numbers, store.trip.send(_since(store, "gone", numbers.items())))]


def read_changes(store: Store, names: Sequence[str]) -> list[list[ChangeRecord] | OnceError]:
    """Return the last changes of each of ``names``, newest first; else as :func:`read_definitions`."""
    keys = [store.keys.of_entry("changes", name) for name in names]
    replies = store.trip.send([("LRANGE", key, 0, -1) for key in keys])
    return [decode_changes(key, reply) for key, reply in zip(keys, replies, strict=True)]


def decode_changes(key: str, reply: Any) -> list[ChangeRecord] | OnceError:
    """Read a definition's changes, ``key``, newest first."""
    if isinstance(reply, OnceError):
        return reply
    records = []
    for text in reply:
        try:
            version, at, _, what, words, replaced = text.split("\n")
            number, by_and_note = codec.whole(version), codec.read_words(words)
            records.append(ChangeRecord(number, parse_instant(at), codec.read_text(what), *by_and_note, replaced))
        except ValueError as exc:
            return StoreDataError(f"the key {key!r} holds what is no change of a schedule: {shown(exc)}")
    return records


def read_numbers(reply: Any) -> dict[str, int] | OnceError:
    """Read names with the numbers of their last changes."""
    if isinstance(reply, OnceError):
        return reply
    return {name: _whole_or_0(score) for name, score in codec.as_pairs(reply)}  # 0: it is read as if it had changed


def _whole_or_0(score: float) -> int:
    try:
        return codec.whole(score)
    except ValueError:
        return 0
