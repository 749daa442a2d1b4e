"""The verbs of windows of user-defined keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from celery_once_beat.settings import Settings
from celery_once_beat.store import Begun, Busy, Claimed, Closed, Store, Unchanged
from celery_once_beat.store.codec import instant, read_begin, read_word
from celery_once_beat.store.scripts import BEGIN, Verb
from celery_once_beat.windows import KeyedWindow, WindowKey


@dataclass(frozen=True)
class Elsewhen:
    """The server's time, ``now`` (aware UTC), lies in another window of the key; nothing was changed."""

    now: datetime


def _read_begin_now(reply: list[Any]) -> Any:
    return Elsewhen(instant(reply[1])) if reply[0] == "elsewhen" else read_begin(reply)


def _read_claim(reply: list[Any]) -> Claimed | Unchanged | Elsewhen:
    match reply[0]:
        case "claimed":
            return Claimed(0, None)
        case "elsewhen":
            return Elsewhen(instant(reply[1]))
    return Unchanged(read_word(reply))


BEGIN_NOW: Any = replace(BEGIN, read=_read_begin_now)
KEY_CLAIM = Verb("key_claim", "claim run", "claimant publish_timeout:span starts_at:time", _read_claim, feature="keyed")
KEY_CONFIRM = Verb("key_confirm", "claim", "claimant published:flag retention:life", read_word, feature="keyed")


def settle(settings: Settings, window: WindowKey) -> dict[str, Any] | None:
    """Return what a verb's arguments are for a window of a key: it is remembered for as long as it lasts."""
    if not isinstance(window, KeyedWindow):
        return None
    lasts = (window.end - window.start).total_seconds() if window.end else 0.0
    remembered = max(settings.retention, lasts)
    known = {"marker_ttl": remembered, "retention": remembered, "history_size": 0}
    return {**known, "keyed": True, "tracked": False, "failure": ""}


def begin_now(store: Store, window: KeyedWindow, owner: str, lease: float) -> Begun | Busy | Closed | Elsewhen:
    """As :meth:`Store.begin`, or :class:`Elsewhen` where the server's time lies outside of the window."""
    asked: dict[str, Any] = store.of_features(BEGIN, overlap="allow", no_slot="")
    asked |= {"owner": owner, "lease": lease, "retry": 0, "now_only": True, "ends_at": window.end}
    return store.trip.one(store.of_window(BEGIN_NOW, window, **asked))  # type: ignore[no-any-return]


def claim_key(store: Store, window: KeyedWindow, claimant: str, *, now: bool = False) -> Claimed | Unchanged | Elsewhen:
    """Take the right to publish the message of ``window``; ``claimant`` is a name used for this claim alone.

    Returns :class:`Unchanged` where it is out already, and with ``now`` :class:`Elsewhen` where the server's
    time lies outside of the window.
    """
    return store.trip.one(store.of_window(KEY_CLAIM, window, claimant=claimant, ends_at=window.end, now_only=now))


def confirm_key(store: Store, window: KeyedWindow, claimant: str, *, published: bool) -> bool:
    """Say whether the message of a claimed ``window`` went out; returns whether that is written down.

    It isn't if the message didn't go out and another has claimed the window since.
    """
    return store.trip.one(store.of_window(KEY_CONFIRM, window, claimant=claimant, published=published)) == "confirmed"
