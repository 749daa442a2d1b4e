"""What a beat asks of limits: which windows get a free slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_once_beat.errors import OnceError
from celery_once_beat.store import SHARDS, Store, codec, member_of
from celery_once_beat.store.scripts import WINDOW, Request, Verb
from celery_once_beat.windows import WindowKey

#: Microseconds by which a window that can't get its slot yet goes behind others that wait for one.
_LATER = 10_000_000


@dataclass(frozen=True)
class FreeSlots:
    """How many windows wait for a slot of a limit, and those that get one now."""

    waiting: int
    windows: tuple[WindowKey, ...]


def _read_free_slots(reply: list[Any]) -> FreeSlots:
    windows = map(codec.read_member, reply[1:])
    return FreeSlots(codec.whole(reply[0]), tuple(window for window in windows if window is not None))


FREE_SLOTS = Verb("free_slots", "slots waiting fewest called", "most:number", _read_free_slots, feature="admission")
MAKE_DUE = Verb("make_due", "entry open", WINDOW, codec.read_word, feature="admission")


def ask_free_slots(store: Store, limits: Mapping[str, int]) -> list[Request[FreeSlots]]:
    """Return the requests that ask for free slots of ``limits``, numbers of slots by name."""
    return [FREE_SLOTS.request(store.keys.of_limit(name), most=most) for name, most in limits.items()]


def find_due(
    store: Store, now: datetime, most: int, limits: Mapping[str, int]
) -> tuple[list[FreeSlots | OnceError], list[WindowKey]]:
    """Return the free slots of each limit, and windows that are overdue at ``now`` (aware UTC), ``most`` a shard."""
    until = codec.epoch_ms(now)
    commands = [("ZRANGEBYSCORE", store.keys.open(shard), "-inf", until, "LIMIT", 0, most) for shard in range(SHARDS)]
    found = store.trip.send([*ask_free_slots(store, limits), *commands])
    members = [codec.read_members(each) for each in found[len(limits) :] if not isinstance(each, OnceError)]
    return found[: len(limits)], [window for shard in members for window in shard if window is not None]


def make_due(store: Store, limit: str, windows: Sequence[WindowKey]) -> list[str | OnceError]:
    """Let windows be overdue that wait for a slot of ``limit``; returns ``due`` for each that is.

    What has ended (``over``) waits no longer. What doesn't wait yet, or is published already (``unchanged``), lets
    others go first for a while.
    """
    replies = store.trip.run([store.of_window(MAKE_DUE, window) for window in windows])
    keys = store.keys.of_limit(limit)
    commands: list[tuple[Any, ...]] = []
    for window, reply in zip(windows, replies, strict=True):
        if reply == "unchanged":
            commands.append(("ZADD", keys["waiting"], "XX", "INCR", _LATER, member_of(window)))
        elif not isinstance(reply, OnceError):
            commands.append(("ZREM", keys["waiting"], member_of(window)))
        if reply != "due":  # no slot is kept for it
            commands.append(("ZREM", keys["called"], member_of(window)))
    store.trip.send(commands)
    return replies
