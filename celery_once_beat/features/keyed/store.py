"""The verbs of windows of user-defined keys, and of children that beats recover."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from celery_once_beat.errors import OnceError
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.settings import Settings
from celery_once_beat.store import Begun, Busy, Claimed, Closed, Store, Unchanged, raised
from celery_once_beat.store.codec import instant, ms, read_begin, read_word
from celery_once_beat.store.scripts import BEGIN, WINDOW, Request, Verb, encode_options
from celery_once_beat.windows import CHILD, KeyedWindow, Window, WindowKey, format_instant


@dataclass(frozen=True)
class Elsewhen:
    """The server's time, ``now`` (aware UTC), lies in another window of the key; nothing was changed."""

    now: datetime


def _read_begin_now(reply: list[Any]) -> Any:
    return Elsewhen(instant(reply[1])) if reply[0] == "elsewhen" else read_begin(reply)


def _read_claim(reply: list[Any]) -> Claimed | Unchanged | Elsewhen:
    if reply[0] == "elsewhen":
        return Elsewhen(instant(reply[1]))
    return Claimed(0, None) if reply[0] == "claimed" else Unchanged(read_word(reply))


BEGIN_NOW: Any = replace(BEGIN, read=_read_begin_now)
KEY_CLAIM = Verb("key_claim", "claim run", "starts_at:time", _read_claim, feature="keyed")
OPEN_CHILD = Verb(
    "open_child",
    "entry open run",
    f"{WINDOW} claimant message options expires:span overdue_in:span",
    _read_claim,
    waits=True,
    feature="keyed",
)
CONSTANTS = {"CHILD": f"'{CHILD}'"}


def special(settings: Settings, window: WindowKey) -> dict[str, Any] | None:
    """Return what a verb's arguments are for a window of a key: it is remembered for as long as it lasts."""
    if not isinstance(window, KeyedWindow):
        return None
    remembered = _remembered(settings, window)
    known = {"marker_ttl": remembered, "retention": remembered, "history_size": 0}
    return {**known, "keyed": True, "tracked": False, "failure": ""}


def _remembered(settings: Settings, window: KeyedWindow) -> float:
    lasts = (window.end - window.start).total_seconds() if window.end else 0.0
    return max(settings.retention, lasts)


def begin_now(store: Store, window: KeyedWindow, owner: str, lease: float) -> Request[Begun | Busy | Closed | Elsewhen]:
    """As :meth:`Store.begin_request`; answers :class:`Elsewhen` where the server's time lies outside of the window."""
    return store.of_window(BEGIN_NOW, window, owner=owner, lease=lease, retry=0, now_only=True, ends_at=window.end)


def note_child(store: Store, parent: Window, name: str, sent_as: str) -> list[tuple[Any, ...]]:
    """Return the commands that note a child of a window, and its task's id, for people; none for a call's window."""
    if not parent.scheduled:
        return []
    key, child = store.keys.of_entry("children", parent.entry), f"{format_instant(parent.start)} {sent_as} {name}"
    life = ms(store.settings.retention)
    return [("LPUSH", key, child), ("LTRIM", key, 0, _MOST_CHILDREN - 1), ("PEXPIRE", key, life)]


def read_children(store: Store, entry: str, start: datetime) -> list[tuple[str, str]]:
    """Return name and task id of each child of an entry's window that is noted, in the order of their calls."""
    (texts,) = store.trip.read([("LRANGE", store.keys.of_entry("children", entry), 0, -1)])
    of_window, noted = f"{format_instant(start)} ", () if isinstance(texts, OnceError) else reversed(texts)
    found = [text.removeprefix(of_window).partition(" ") for text in noted if text.startswith(of_window)]
    return [*dict.fromkeys((name, task_id) for task_id, _, name in found)]


def claim_key(
    store: Store, window: KeyedWindow, *, now: bool = False, note: Iterable[tuple[Any, ...]] = ()
) -> Claimed | Unchanged | Elsewhen:
    """Ask for the right to publish the message of ``window``: all have it until somebody has confirmed that it is out.

    Returns :class:`Unchanged` where it is out already, and with ``now`` :class:`Elsewhen` where the server's
    time lies outside of the window. ``note`` is sent with it.
    """
    request = store.of_window(KEY_CLAIM, window, ends_at=window.end, now_only=now)
    return raised(store.trip.send([request, *note])[0])  # type: ignore[no-any-return]


def confirm_key(store: Store, window: KeyedWindow) -> None:
    """Note that the message of ``window`` is out: nobody publishes it for as long as the window is remembered."""
    claim = store.keys.of_window(window, format_instant(window.start))["claim"]
    raised(store.trip.send([("SET", claim, "sent", "PX", ms(_remembered(store.settings, window)))])[0])


#: Most children that are noted of one entry's windows.
_MOST_CHILDREN = 1000
#: What the store judges a child by. When a window starts and whom its end concerns is its parent's.
_END_RULES = ("max_attempts", "recover")


def open_child(  # noqa: PLR0913  # what a child is opened with
    store: Store,
    window: WindowKey,
    claimant: str,
    message: str,
    policy: EntryPolicy,
    *,
    expires: float | None = None,
    overdue_in: float | None = None,
    note: Iterable[tuple[Any, ...]] = (),
) -> Claimed | Unchanged:
    """Open the window of a child, and keep its ``message``; :class:`Unchanged` where it is open, or has ended.

    ``claimant`` is a name used for this call alone. Unless the caller confirms it within ``overdue_in`` seconds (None:
    ``claim_lease``), a beat publishes it. ``expires``: so many seconds later it does. ``note`` is sent with it.
    """
    options = {name: value if name in _END_RULES else None for name, value in policy.end_rules.items()}
    wait = store.settings.claim_lease if overdue_in is None else overdue_in
    asked: dict[str, Any] = {"claimant": claimant, "message": message, "options": encode_options(options)}
    asked |= {"expires": expires, "overdue_in": wait}
    return raised(store.trip.send([store.of_window(OPEN_CHILD, window, **asked), *note])[0])  # type: ignore[no-any-return]


def read_messages(store: Store, windows: Iterable[WindowKey]) -> list[str | OnceError | None]:
    """Return the message that is kept of each child; None: the store has none."""
    return store.trip.read(
        [("HGET", store.entry_key(each.entry), f"m:{format_instant(each.start)}") for each in windows]
    )
