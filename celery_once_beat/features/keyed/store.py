"""The verbs of windows of user-defined keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_once_beat.store import Begun, Busy, Claimed, Closed, Store, Unchanged, Waits
from celery_once_beat.store.codec import instant, read_begin, read_word
from celery_once_beat.store.scripts import BEGIN, NOW_ONLY, Verb
from celery_once_beat.windows import KeyedWindow


@dataclass(frozen=True)
class Elsewhen:
    """The server's time, ``now`` (aware UTC), lies in another window of the key; nothing was changed."""

    now: datetime


def _read_begin_now(reply: list[Any]) -> Begun | Busy | Closed | Elsewhen:
    found = Elsewhen(instant(reply[1])) if reply[0] == "elsewhen" else read_begin(reply)
    if isinstance(found, Waits):
        raise ValueError("a key waits for nothing")  # noqa: TRY004  # as for any other reply that isn't one
    return found


def _read_key_claim(reply: list[Any]) -> Claimed | Unchanged | Elsewhen:
    match reply[0]:
        case "claimed":
            return Claimed(0, None)
        case "elsewhen":
            return Elsewhen(instant(reply[1]))
    return Unchanged(read_word(reply))


BEGIN_NOW = BEGIN.read_by(_read_begin_now)
_CLAIM = f"claimant publish_timeout:span starts_at:time {NOW_ONLY}"
KEY_CLAIM = Verb("key_claim", "claim run", _CLAIM, _read_key_claim, feature="keyed")
KEY_CONFIRM = Verb("key_confirm", "claim", "claimant published:flag retention:life", read_word, feature="keyed")


def begin_now(store: Store, window: KeyedWindow, owner: str, lease: float) -> Begun | Busy | Closed | Elsewhen:
    """As :meth:`Store.begin`, or :class:`Elsewhen` where the server's time lies outside of the window."""
    asked: dict[str, Any] = {
        "owner": owner,
        "lease": lease,
        "retry": 0,
        "tracked": False,
        "now_only": True,
    }
    features = store.of_features(overlap="allow", no_slot="")
    return store.trip.one(store.of_window(BEGIN_NOW, window, **asked, **features))


def claim_key(store: Store, window: KeyedWindow, claimant: str, *, now: bool = False) -> Claimed | Unchanged | Elsewhen:
    """Take the right to publish the message of ``window``; ``claimant`` is a name used for this claim alone.

    Returns :class:`Unchanged` where it is out already, and with ``now`` :class:`Elsewhen` where the server's
    time lies outside of the window.
    """
    return store.trip.one(store.of_window(KEY_CLAIM, window, claimant=claimant, now_only=now))


def confirm_key(store: Store, window: KeyedWindow, claimant: str, *, published: bool) -> bool:
    """Say whether the message of a claimed ``window`` went out; returns whether that is written down.

    It isn't if the message didn't go out and another has claimed the window since.
    """
    return store.trip.one(store.of_window(KEY_CONFIRM, window, claimant=claimant, published=published)) == "confirmed"
