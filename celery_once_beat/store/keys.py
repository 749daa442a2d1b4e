"""The keys: what each is called, what it holds, when it expires, and which version of the protocol this is.

Below the prefix, ``once:`` say. The shard is the hash tag, so that one script's keys share a slot of a cluster::

    {7}:entry:<name>            cursor, definition, counters, open windows' accounts (fields: ``lua/pieces/entry.lua``);
                                30 days or three intervals from a beat's last contact
    {7}:entry:child:<name>      of a tracked child (``features/keyed/children``): as an entry's, without a cursor, with
                                the messages of its open windows; 30 days, the retention once none is open
    {7}:entries                 <name> → the description of a loaded entry, display only
                                (``lua/pieces/entries.lua``); as its longest-lived entry
    {7}:row:<key>               of which entry of the shard a database's row is, or what it had there before it got
                                another name (``lua/pieces/rows.lua``); as the entry, then 30 days
    {7}:beats                   live beats → when each swept the shard last, server ms: by this scripts know who lives
                                (``lua/sweep.lua``); 30 days
    {7}:open                    <name>@<start> → deadline, server ms; as its longest-lived entry
    {7}:alerts                  a stream of alerts (``features/alerts``); 30 days
    {7}:late                    <name>@<start> → when the window is late, server ms; as its longest-lived entry
    {7}:ends                    <name>@<start> of those → how it ended and isn't done; as that
    {7}:claim:<name>:<start>    the beat that claimed it; marker_ttl
    {7}:run:<name>:<start>      run:<fence>:<owner>, the lease | wait:<n>:<owner>, until the retry is due |
                                done:<outcome>:<owner>, marker_ttl; where it alone decides, a wait lasts longer by the
                                retention, and done lasts for the retention
    {7}:history:<name>          the last windows' outcomes; as the entry, and up to a day longer
    {7}:children:<name>         children of its windows: <start> <task's id> <name>, the newest, display only; the
                                retention
    {7}:refused:<name>          start → copies refused, of the latest windows, display only; as the entry
    {7}:lines                   keys of entries whose windows wait for their turn → until when beats look often, server
                                ms; twenty minutes
    {7}:failures:<name>         start → the text of its last failure, of the last ten, display only; as the entry
    {7}:def:<name>              a definition that people set at run time; kept, once deleted for 30 days
    {7}:changes:<name>          its last 50 changes; as that
    {7}:defs                    <name> → number of its last change, '' → the shard's; kept, an hour once no name is left
    {7}:gone                    deleted <name> → number of the deletion; an hour
    limit:{<limit>}:slots       <owner> <entry>@<start> → end of its lease, server ms (``features/admission``); a day
    limit:{<limit>}:waiting     <entry>@<start> that waits for a slot → when it came, server us; a day
    limit:{<limit>}:called      <entry>@<start> that was called and is yet to come → when it came first; two seconds
    limit:{<limit>}:fewest      how many slots a worker knew that found none; a minute
    key:{<hash>}:entry:<key>    fence, the largest that a begin of the user's key was given; as its windows' keys
    key:{<hash>}:claim|run:<key>:<start>
                                of a window of a user's key. claim: its message is out; run: as above. Both last for the
                                retention, or as long as the window, if that is longer
    orders                      who ordered what lately → when, server ms, display only; 90 days, 10,000 of them
    workers                     <worker> <broker> <queue> that it consumes → when it reported that last, server ms
                                (``lua/consume.lua``); a day
    beats                       live beats → last seen, server ms, display only; BEAT_TTL
    {once:beats}:reports        live beats → the report of each, with its app, JSON, display only; BEAT_TTL
    {once:beats}:lost           how many entries beats found lost, and when they last did, server ms, display only;
                                three days

Every key of coordination expires by itself. What people set at run time stays until they delete it
(``features/runtime/lua/definition.lua``).
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache

from celery_once_beat.errors import NewerVersionError
from celery_once_beat.identity import digest
from celery_once_beat.windows import KeyedWindow, WindowKey

#: Of the protocol: what the keys hold, and how.
VERSION = 1
SHARDS = 16

#: The keys that a verb may have: of a shard, of an entry, and of a window.
_OF_SHARD = ("entries", "open", "beats", "alerts", "late", "ends", "lines", "defs", "gone")
_OF_ENTRY = ("entry", "history", "refused", "failures", "def", "changes")
_OF_WINDOW = ("claim", "run")
#: All others are strings.
_NAMES = {
    "hash": ("entry", "entries", "ends", "refused", "failures", "def", "reports", "lost"),
    "list": ("history", "children", "changes"),
    "stream": ("alerts",),
    "zset": ("open", "late", "workers", "lines", "slots", "waiting", "defs", "gone", "orders", "beats"),
}
_TYPES = {name: kind for kind, names in _NAMES.items() for name in names}


@lru_cache(maxsize=1024)
def shard_of(entry: str) -> int:
    """Number of the shard in which ``entry`` lives, from 0 to SHARDS - 1."""
    return zlib.crc32(entry.encode(errors="surrogateescape")) % SHARDS


def newer(key: str, version: object) -> NewerVersionError:
    """Make the error for a key of a newer protocol."""
    return NewerVersionError(
        f"{key!r} was written by version {version!s:.20} of the protocol, this is {VERSION}; upgrade this process"
    )


class Keys:
    """The names of keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        beats = f"{prefix}beats"
        #: The log of orders; and which queues workers consume.
        self.orders, self.workers = f"{prefix}orders", f"{prefix}workers"
        #: In one slot of a cluster.
        self.of_beats = {"beats": beats, **{what: f"{prefix}{{{beats}}}:{what}" for what in ("reports", "lost")}}

    def of_entry(self, what: str, entry: str) -> str:
        """Name a key of an entry: its ``entry``, ``history``, ``refused``, ``failures``, ``def`` or ``changes``."""
        return f"{self._prefix}{{{shard_of(entry)}}}:{what}:{entry}"

    def for_entry(self, entry: str, row: str = "") -> dict[str, str]:
        """Name the keys that a verb of an entry may have, which is made of that row of a database."""
        shard = f"{self._prefix}{{{shard_of(entry)}}}:"
        return {**self.in_slot(shard, entry), "row_key": f"{shard}row:{row}"}

    def of_shard(self, what: str, shard: int) -> str:
        """Name a key of a shard: its ``entries``, ``open``, ``beats``, ``alerts``, ``defs`` or ``gone``."""
        return f"{self._prefix}{{{shard}}}:{what}"

    def of_shards(self, what: str) -> list[str]:
        """Name that key of each shard, in their order."""
        return [self.of_shard(what, shard) for shard in range(SHARDS)]

    def slot_of(self, window: WindowKey) -> str:
        """Return how the keys of ``window`` begin: so they share a slot of a cluster."""
        if isinstance(window, KeyedWindow):
            return f"{self._prefix}key:{{{digest(window.entry, 6).hex()}}}:"
        return f"{self._prefix}{{{shard_of(window.entry)}}}:"

    def of_window(self, window: WindowKey, start: str) -> dict[str, str]:
        """Name the keys that a verb of ``window`` may have; ``start`` is the text of its start."""
        return self.in_slot(self.slot_of(window), window.entry, start)

    @staticmethod
    def in_slot(shard: str, entry: str, start: str = "") -> dict[str, str]:
        """As :meth:`of_window`, in a slot by :meth:`slot_of`."""
        return {
            **{what: f"{shard}{what}" for what in _OF_SHARD},
            **{what: f"{shard}{what}:{entry}" for what in _OF_ENTRY},
            **{what: f"{shard}{what}:{entry}:{start}" for what in _OF_WINDOW},
        }

    def of_limit(self, name: str) -> dict[str, str]:
        """Name the keys of a limit of ``once_beat_limits``."""
        return {what: f"{self._prefix}limit:{{{name}}}:{what}" for what in ("slots", "waiting", "called", "fewest")}

    def type_of(self, key: str) -> str:
        """Return the type that a key of this name has."""
        what = re.sub(r"^(key:|limit:)?\{[^}]*\}:", "", key.removeprefix(self._prefix)).partition(":")[0]
        return _TYPES.get(what, "string")
