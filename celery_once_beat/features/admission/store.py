"""The verbs of limits: executions take slots, and beats let windows have the free ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_once_beat.errors import OnceError
from celery_once_beat.store import ActedOn, Store, codec, member_of
from celery_once_beat.store.scripts import WINDOW, Request, Verb
from celery_once_beat.windows import WindowKey

#: Microseconds by which a window that can't get its slot yet goes behind others that wait for one.
_LATER = 10_000_000


@dataclass(frozen=True)
class Acquired(ActedOn):
    """The execution has a slot of the limit."""

    #: It is another execution's of the same window, alive or dead.
    shared: bool = False


@dataclass(frozen=True)
class Full:
    """The limit has no free slot."""


@dataclass(frozen=True)
class FreeSlots:
    """How many windows wait for a slot of a limit, and those that get one now."""

    waiting: int
    windows: tuple[WindowKey, ...]


def _read_free_slots(reply: list[Any]) -> FreeSlots:
    windows = map(codec.read_member, reply[1:])
    return FreeSlots(codec.whole(reply[0]), tuple(window for window in windows if window is not None))


def _read_acquire(reply: list[Any]) -> Acquired | Full:
    return Full() if reply[0] == "full" else Acquired(shared=reply[0] == "shared")


#: ``window`` is a member of the open zset; ``most``: how many slots there are.
_OF_SLOT = "window owner"
_ACQUIRED = f"{_OF_SLOT} most:number length:span"
_RENEWED = f"{_OF_SLOT} length:span takes_over:flag"
_KEYS = "slots waiting fewest called"
ACQUIRE_SLOT = Verb("acquire_slot", _KEYS, _ACQUIRED, _read_acquire, waits=True, feature="admission")
RENEW_SLOT = Verb("renew_slot", "slots", _RENEWED, codec.read_word, waits=True, feature="admission")
RELEASE_SLOT = Verb("release_slot", "slots waiting", f"{_OF_SLOT} forget:flag", codec.read_word, feature="admission")
#: ``overlap`` is the task's, which counts unless the entry has one of its own. ``no_slot`` is the name of the window's
#: limit if that has none free: so it can only wait, or end.
DEFAULTS = {"overlap": "allow"}
OF_EXECUTIONS = (ACQUIRE_SLOT, RENEW_SLOT, RELEASE_SLOT)
FREE_SLOTS = Verb("free_slots", _KEYS, "most:number", _read_free_slots, feature="admission")
LEAVE_LINE = Verb("leave_line", "waiting called", "window", codec.read_word, feature="admission")
MAKE_DUE = Verb("make_due", "entry open", WINDOW, codec.read_word, feature="admission")


def acquire_slot(store: Store, limit: str, most: int, window: WindowKey, owner: str, length: float) -> Acquired | Full:
    """Take a slot of ``limit``, of which there are ``most``, for ``length`` seconds."""
    keys, member = store.keys.of_limit(limit), member_of(window)
    return store.trip.one(ACQUIRE_SLOT.request(keys, window=member, owner=owner, most=most, length=length))


def slot_renewal(
    store: Store, limit: str, window: WindowKey, owner: str, length: float, *, takes_over: bool = False
) -> Request[str]:
    """Make a request to keep the slot of ``owner`` for ``length`` seconds from now: ``kept``, or ``lost`` before.

    ``takes_over``: it has begun the window, and has the slot that another execution acquired.
    """
    keys, member = store.keys.of_limit(limit), member_of(window)
    return RENEW_SLOT.request(keys, window=member, owner=owner, length=length, takes_over=takes_over)


def release_slot(store: Store, limit: str, window: WindowKey, owner: str, *, forget: bool) -> None:
    """Give back the slot of ``owner``, an execution or a delivery. ``forget``: the window doesn't wait for one."""
    keys, member = store.keys.of_limit(limit), member_of(window)
    store.trip.one(RELEASE_SLOT.request(keys, window=member, owner=owner, forget=forget))


def ask_free_slots(store: Store, limits: Mapping[str, int]) -> list[Request[FreeSlots]]:
    """Return the requests that ask for free slots of ``limits``, numbers of slots by name."""
    return [FREE_SLOTS.request(store.keys.of_limit(name), most=most) for name, most in limits.items()]


def find_due(
    store: Store, now: datetime, most: int, limits: Mapping[str, int]
) -> tuple[list[FreeSlots | OnceError], list[WindowKey]]:
    """Return the free slots of each limit, and windows that are overdue at ``now`` (aware UTC), ``most`` a shard."""
    until = codec.epoch_ms(now)
    commands = [("ZRANGEBYSCORE", key, "-inf", until, "LIMIT", 0, most) for key in store.keys.of_shards("open")]
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
    commands: list[Any] = []
    for member, reply in zip(map(member_of, windows), replies, strict=True):
        if reply == "due":
            commands.append(LEAVE_LINE.request(keys, window=member))
            continue
        if reply == "unchanged":
            commands.append(("ZADD", keys["waiting"], "XX", "INCR", _LATER, member))
        elif reply == "over":
            commands.append(("ZREM", keys["waiting"], member))
        commands.append(("ZREM", keys["called"], member))  # no slot is kept for it
    store.trip.send(commands)
    return replies
