"""The verbs of orders, and their log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any

from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.schedules.strict_json import read_object, typed
from celery_once_beat.store import Busy, Claimed, ConfirmReply, Finished, Store, Unchanged, Unknown, raised
from celery_once_beat.store.codec import (
    EPOCH,
    LONGEST_WORDS,
    as_pairs,
    instant,
    instant_or_none,
    read_confirm,
    read_word,
    whole,
)
from celery_once_beat.store.scripts import ENDING, OF_WINDOW, WINDOW, Request, Verb
from celery_once_beat.windows import WindowKey
from celery_once_beat.wording import shown


@dataclass(frozen=True)
class Order:
    """What somebody ordered, for people."""

    #: ``run``, ``backfill``, ``republish``, ``pause``, ``resume``, ``abandon`` or ``edit``.
    what: str
    entry: str
    by: str
    note: str = ""
    #: Which windows, for example.
    about: str = ""


@dataclass(frozen=True)
class OrderRecord:
    """One record of the log of orders."""

    #: By the server, aware UTC.
    at: datetime
    order: Order


@dataclass(frozen=True)
class Open:
    """The window still owes its outcome."""


def _read_backfill(reply: list[Any]) -> Claimed | Open | Unknown:
    if reply[0] == "claimed":
        return Claimed(whole(reply[1]), instant_or_none(reply[2]), ordered=instant_or_none(reply[3]))
    return Open() if reply[0] == "open" else Unknown()


def _read_abandon(reply: list[Any]) -> Finished | Busy | Unchanged:
    if reply[0] == "busy":
        return Busy(reply[1])
    return Finished() if reply[0] == "finished" else Unchanged()


BACKFILL = Verb(
    "backfill",
    "entry open run claim",
    f"{WINDOW} marker_ttl:life beat overdue_in:span waits:flag",
    _read_backfill,
    waits=True,
    feature="orders",
)
ABANDON = Verb("abandon", OF_WINDOW, f"{ENDING} owner running:flag", _read_abandon, waits=True, feature="orders")
REPUBLISH = Verb("republish", "entry open", WINDOW, read_confirm, feature="orders")
NOTE = Verb("note", "orders", "request words", read_word, feature="orders")


def backfill_many(
    store: Store, orders: Iterable[tuple[WindowKey, str]], overdue_in: float, *, waits: bool = False
) -> list[Claimed | Open | Unknown | OnceError]:
    """Open windows once more, each by order of a beat, or of a name that is used for this order alone.

    Unless it is confirmed, a window is overdue in ``overdue_in`` seconds, and a beat publishes it. With ``waits`` also
    where none has loaded the entry yet; else that is Unknown.
    """
    return store.trip.run(
        [store.of_window(BACKFILL, window, beat=beat, overdue_in=overdue_in, waits=waits) for window, beat in orders]
    )


def republish_many(store: Store, orders: Iterable[tuple[WindowKey, str]]) -> list[ConfirmReply | OnceError]:
    """Let windows be overdue whose message is out and lost. Returns Confirmed for each of those."""
    return store.trip.run([store.of_window(REPUBLISH, window) for window, _ in orders])


def abandon_many(
    store: Store, orders: Iterable[tuple[WindowKey, str]], *, running: bool = False
) -> list[Finished | Busy | Unchanged | OnceError]:
    """Give open windows up, each by order of a name that is used for this order alone: they end as cancelled.

    Returns for each :class:`Busy` where it runs and ``running`` isn't given, and :class:`Unchanged` where it owes no
    outcome. An execution that still runs isn't stopped; its end isn't recorded.
    """
    return store.trip.run([store.of_window(ABANDON, window, owner=order, running=running) for window, order in orders])


def write_orders(store: Store, orders: Mapping[str, Order]) -> None:
    """Write down who orders what, by their ids, for people. Before it is carried out: so nothing is that isn't.

    Of two orders with the same id the later counts.
    """
    for reply in store.trip.run([_note(store, request, order) for request, order in orders.items()]):
        raised(reply)


def refuse_orders(store: Store, refused: Mapping[str, tuple[Order, OnceError]]) -> None:
    """Write down why orders were refused, in place of them. If the store was away, they may have been carried out."""
    known = {of: each for of, each in refused.items() if not isinstance(each[1], StoreUnavailableError)}
    write_orders(store, {of: replace(order, about=f"refused: {why}") for of, (order, why) in known.items()})


def _note(store: Store, request: str, order: Order) -> Request[Any]:
    return NOTE.request({"orders": store.keys.orders}, request=request, words=encode_order(order))


def read_orders(store: Store) -> list[OrderRecord]:
    """Return who ordered what of late, newest first."""
    (reply,) = store.trip.read([("ZRANGEBYSCORE", store.keys.orders, "-inf", "+inf", "WITHSCORES")])
    return decode_orders(store.keys.orders, raised(reply))


def encode_order(order: Order) -> str:
    """Write what somebody ordered, as JSON."""
    return json.dumps({name: value[:LONGEST_WORDS] for name, value in asdict(order).items()})


def decode_orders(key: str, reply: Any) -> list[OrderRecord]:
    """Read the log of orders, ``key``, newest first. What is no order is named in the place of one."""
    records = []
    seen = set()
    for text, at in reversed(as_pairs(reply)):
        request, _, words = text.partition(" ")
        if request in seen:  # that order was refused
            continue
        seen.add(request)
        try:
            order = read_object(words)
            known = {field.name: typed(order, field.name, str, "a text")[:LONGEST_WORDS] for field in fields(Order)}
            records.append(OrderRecord(instant(at), Order(**known)))
        except ValueError:
            note = f"the key {key!r} holds what is no order: {shown(text)}; delete it (ZREM)"
            records.append(OrderRecord(EPOCH, Order("unreadable", "", "", note, "")))
    return records
