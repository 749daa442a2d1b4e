"""The stream of alerts, and the verbs by which beats take them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from celery_once_beat.errors import OnceError
from celery_once_beat.store import ActedOn, Store
from celery_once_beat.store.codec import instant, read_member, read_text, read_word, whole
from celery_once_beat.store.scripts import Verb
from celery_once_beat.windows import WindowKey
from celery_once_beat.wording import shown

#: The consumer group of all beats.
_GROUP = "beats"
CONSTANTS = {"GROUP": f"'{_GROUP}'"}


@dataclass(frozen=True)
class Ended:
    """How a window ended that isn't done."""

    outcome: str
    #: When, aware UTC.
    at: datetime
    #: The text of its last failure; '' where none was recorded.
    failure: str = ""


class Alert(NamedTuple):
    """An alert of a window, to be sent."""

    #: Among those of its shard.
    id: str
    window: WindowKey
    #: ``late``: it isn't done in time, ``ended`` and it isn't done, or ``paused``: its failure has paused the entry.
    kind: str
    #: How it ended; None for a late one that was open.
    ended: Ended | None = None
    #: When a late one that was open becomes overdue, aware UTC.
    deadline: datetime | None = None
    #: Why the entry is paused.
    note: str = ""


@dataclass(frozen=True)
class Alerts(ActedOn):
    """Those of a shard that are this beat's to send."""

    found: list[Alert]
    #: Ids of events that can't be read, with what they are, for people.
    foreign: list[tuple[str, str]]


def _read_alerts(reply: list[Any]) -> Alerts:
    alerts = Alerts([], [])
    for event, said in reply:
        try:
            alerts.found.append(_read_alert(event, *said))
        except ValueError:
            alerts.foreign.append((event, shown(said)))
    return alerts


def _read_alert(event: str, *fields: str) -> Alert:
    """Read an event of a stream; see ``features/alerts``."""
    _, member, _, kind, _, at, _, what = fields
    window = read_member(member)
    if fields[::2] != ("window", "kind", "at", "what") or window is None or whole(at) < 0:
        raise ValueError
    if kind == "paused":
        return Alert(event, window, kind, note=what)
    if kind == "late" and what[:1].isdecimal():
        return Alert(event, window, kind, deadline=instant(float(what)))
    if kind not in ("late", "ended"):
        raise ValueError
    outcome, ended_at, failure = what.split(" ", 2)
    return Alert(event, window, kind, ended=Ended(read_text(outcome), instant(ended_at), failure))


#: Alerts that a beat hasn't sent ``idle`` after it took them are taken again.
ALERTS = Verb("alerts", "alerts late ends open", "idle:span most:number", _read_alerts, waits=True, feature="alerts")
ALERTED = Verb("alerted", "entry alerts", "id what", read_word, feature="alerts")


def take_alerts(store: Store, shards: Iterable[int], most: int) -> list[Alerts | OnceError]:
    """Take alerts of each shard, to send them: up to ``most`` new ones, and as many that another beat left unsent.

    If this beat doesn't report what became of one (:func:`alerted`) within ``publish_timeout``, any beat may take it.
    """
    idle = store.settings.publish_timeout
    return store.trip.run([store.of_shard(ALERTS, shard, idle=idle, most=most) for shard in shards])


def alerted(store: Store, alert: Alert, what: str) -> None:
    """Say what became of an alert that this beat took; ``what`` is as in ``lua/alerted.lua``."""
    store.trip.one(store.of_window(ALERTED, alert.window, id=alert.id, what=what))


def drop_alert(store: Store, shard: int, event: str) -> None:
    """Remove an event that nobody can read."""
    key = store.keys.of_shard("alerts", shard)
    store.trip.send([("XACK", key, _GROUP, event), ("XDEL", key, event)])
