"""The verbs of windows: keys, what each verb is asked and answers. ``roundtrip`` sends them, ``lua/`` decides.

Who decides
-----------
The server does, and its clock. A verb is one Lua script of ``lua/``: it looks, decides and writes in one step,
and takes its time from the server. A client that sleeps for an hour between two verbs finds out in the second.

The cursor of an entry and its open windows are the truth that doesn't age: a window with
``born < start <= cursor`` is judged by ``open`` alone. The NX markers guard the moments in which two act at
once, and alone decide for every other window: the store lost data, or the message is of an untracked entry.

States of a window::

                                backfill, by order
    unseen ──claim──▶ claimed ◀─────────────────────────── closed
                         │ confirm                            ▲
                         ▼                                    │ finish; close;
      take ┌──────── published ──begin──▶ running ────────────┤ a limit at take
           └──────────▶  ▲                 │  ▲ │             │ or at begin
                         │  lease runs out │  │ │ hand_over   │
                         └─────────────────┘  │ ▼             │
                                   begin(n) ── waiting(n) ────┘

claimed and published differ in the deadline only: ``publish_timeout``, ``start_timeout``. Whoever finds a
deadline passed takes the window; the deadline that the take moves is the mutex between beats.

What each failure does
----------------------
- A caller dies between two verbs: the window stays open and becomes overdue; a beat takes it.
- A reply is lost and redis-py repeats the command: every verb is idempotent for its owner and answers as it
  did the first time. An owner is one beat process, or one *delivery* of a message.
- An execution outlives its lease: it has the window again if nobody began since, else it is stale.
- The store loses its last writes: windows beyond the cursor are decided by the run key; a claim that passes
  them takes over what the run key says.
- The store loses everything: the same; a beat that gets Unknown loads its entries anew, from now.
- A key holds something foreign: StoreDataError names it, and only that entry is affected.
- Redis doesn't answer: StoreUnavailableError, after a short retry; the command may have been carried out.

Keys (prefix ``once:``; the shard is the hash tag, so that one script's keys share a slot of a cluster)::

    once:{7}:entry:<name>            hash   cursor, born, definition, fence, open windows' accounts, counters
    once:{7}:open                    zset   <name>@<start> → deadline, server ms
    once:{7}:claim:<name>:<start>    string the beat that claimed it                      marker_ttl
    once:{7}:run:<name>:<start>      string run:<owner>:<fence> | wait:<n>:<owner> | done:<outcome>:<owner>
    once:{7}:history:<name>          list   the last windows' outcomes
    once:beats                       zset   live beats → last seen, server ms

Every key expires by itself. Counters ``c:<outcome>`` obey the conservation law (see ``audit``); ``x:<outcome>``
count what is outside it: backfills, and windows of an earlier definition.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from . import reading
from . import replies as r
from .errors import OnceError, StoreDataError, StoreUnavailableError
from .requests import ClaimRequest, Confirmation, LoadRequest, Renewal, WindowKey
from .roundtrip import Call, RoundTrip, newer
from .settings import Settings
from .windows import format_instant

if TYPE_CHECKING:
    from celery import Celery

__all__ = ("SHARDS", "Store", "store_of")

T = TypeVar("T")

SHARDS = 16
#: A beat that hasn't been heard of for this long counts as gone, seconds.
BEAT_TTL = 15.0
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Store:
    """The verbs of section 'states', for one app's settings. Safe to use from several threads.

    Every verb raises :class:`StoreUnavailableError` where Redis doesn't answer, :class:`StoreDataError` where a
    key isn't ours, and :class:`NewerVersionError` where a newer version wrote it.
    """

    def __init__(self, settings: Settings, client: Any = None) -> None:
        self.settings = settings
        self._trip = RoundTrip(settings, client)

    def close(self) -> None:
        """Give the connections back; the next verb connects again."""
        self._trip.close()

    # -- keys -------------------------------------------------------------------------------------------------

    def _shard(self, entry: str) -> str:
        return f"{self.settings.key_prefix}{{{zlib.crc32(entry.encode()) % SHARDS}}}:"

    def entry_key(self, entry: str) -> str:
        """Name of the hash of ``entry``."""
        return f"{self._shard(entry)}entry:{entry}"

    def _window_keys(self, window: WindowKey) -> list[str]:
        shard, start = self._shard(window.entry), format_instant(window.start)
        return [
            f"{shard}entry:{window.entry}",
            f"{shard}open",
            f"{shard}history:{window.entry}",
            f"{shard}run:{window.entry}:{start}",
        ]

    def _claim_key(self, window: WindowKey) -> str:
        return f"{self._shard(window.entry)}claim:{window.entry}:{format_instant(window.start)}"

    @property
    def _beats_key(self) -> str:
        return f"{self.settings.key_prefix}beats"

    # -- a beat's verbs ---------------------------------------------------------------------------------------

    def load_many(self, requests: Iterable[LoadRequest]) -> list[r.Loaded | r.Superseded | OnceError]:
        """Say which definitions of entries this beat has; see ``lua/load.lua``.

        Returns for each :class:`Loaded`, :class:`Superseded`, or the error that concerns that entry alone.
        """
        return self._trip.run([self._load(request) for request in requests])

    def _load(self, q: LoadRequest) -> Call[r.Loaded | r.Superseded]:
        known = "" if q.known is None else format_instant(q.known)
        limits = [q.max_attempts, int(q.recover), -1 if q.grace is None else _ms(q.grace)]
        back = _ms(BEAT_TTL + 2 * self.settings.recovery_interval)
        arguments = [q.beat, q.fingerprint, q.loaded_at, _ms(q.ttl), back, *limits, known, *q.alive]
        return Call("load", [self.entry_key(q.entry)], arguments, reading.read_load)

    def claim_many(self, beat: str, requests: Iterable[ClaimRequest]) -> list[r.ClaimReply | OnceError]:
        """Claim windows in one pipeline; see ``lua/claim.lua``.

        Returns for each :class:`Claimed`, :class:`Moved`, :class:`Paused`, :class:`Superseded`,
        :class:`Unknown`, or the error that concerns that entry alone.
        """
        return self._trip.run([self._claim(beat, request) for request in requests])

    def _claim(self, beat: str, q: ClaimRequest) -> Call[r.ClaimReply]:
        shard = self._shard(q.window.entry)
        starts = [format_instant(start) for start in q.missed]
        return self._about(
            "claim",
            q.window,
            [
                format_instant(q.from_cursor),
                beat,
                q.fingerprint,
                q.mode,
                _ms(self.settings.publish_timeout),
                # A message that expires at once is still one that expires.
                0 if q.expires is None else max(_ms(q.expires), 1),
                max(q.missed_count, len(starts)),
                *starts,
            ],
            reading.read_claim,
            [self._claim_key(q.window), *(f"{shard}run:{q.window.entry}:{start}" for start in starts)],
        )

    def confirm_many(
        self, confirmations: Iterable[Confirmation]
    ) -> list[r.Confirmed | r.Closed | r.Unchanged | OnceError]:
        """Say of each window whether its message went out; see ``lua/confirm.lua``.

        Returns for each :class:`Confirmed`, :class:`Closed` (it failed), :class:`Unchanged` or an error.
        """
        publish_timeout = _ms(self.settings.publish_timeout)
        return self._trip.run(
            [
                self._about("confirm", window, [turn, int(published), _ms(wait), publish_timeout], reading.read_confirm)
                for window, turn, published, wait in confirmations
            ]
        )

    def take_many(self, beat: str, windows: Iterable[tuple[WindowKey, str]]) -> list[r.TakeReply | OnceError]:
        """Take overdue (window, fingerprint) pairs; see ``lua/take.lua``.

        Returns for each :class:`Taken`, :class:`Closed` (a limit was reached), :class:`Unchanged` or an error.
        """
        publish_timeout = _ms(self.settings.publish_timeout)
        return self._trip.run(
            [
                self._about(
                    "take", window, [beat, fingerprint, publish_timeout, _server_ms(window.start)], reading.read_take
                )
                for window, fingerprint in windows
            ]
        )

    def postpone_many(
        self, windows: Iterable[WindowKey], seconds: float, others: Sequence[str]
    ) -> list[str | OnceError]:
        """Put off overdue windows of entries that neither this beat nor one of ``others`` (alive) knows.

        Returns for each ``postponed``, ``forgotten``, ``no`` (it isn't overdue, or another's) or an error.
        """
        return self._trip.run(
            [self._about("postpone", window, [_ms(seconds), *others], reading.read_word) for window in windows]
        )

    def overdue(self, beat: str, now: datetime, most: int) -> r.Overdue:
        """Say that ``beat`` lives, and find overdue windows: ``most`` a shard, all in one pipeline.

        ``now`` (aware UTC) is the server's time as the caller knows it; ``take`` looks again.
        """
        calls = [self._heartbeat(beat)]
        until = _server_ms(now)
        commands: list[tuple[Any, ...]] = [
            ("ZRANGEBYSCORE", f"{self.settings.key_prefix}{{{shard}}}:open", "-inf", until, "LIMIT", 0, most)
            for shard in range(SHARDS)
        ]
        (heartbeat,), shards = self._trip.run_with(calls, commands)
        for reply in (heartbeat, *shards):
            if isinstance(reply, StoreUnavailableError):
                raise reply
        if isinstance(heartbeat, OnceError):
            raise heartbeat
        return r.Overdue([reading.read_members(members) for members in shards], heartbeat)

    def heartbeat(self, beat: str) -> r.Heartbeat:
        """Say that ``beat`` lives; returns the server's time and who lives."""
        return self._trip.one(self._heartbeat(beat))

    def leave(self, beat: str) -> None:
        """Say that ``beat`` ends, so that nobody waits for it to be missed."""
        self._trip.one(self._heartbeat(beat, "leaves"))

    def beats(self) -> tuple[str, ...]:
        """Return the beats alive; changes nothing."""
        return self._trip.one(self._heartbeat("", "looks")).beats

    def _heartbeat(self, beat: str, what: str = "lives") -> Call[r.Heartbeat]:
        return Call("heartbeat", [self._beats_key], [beat, _ms(BEAT_TTL), what], reading.read_heartbeat)

    def backfill(self, window: WindowKey, beat: str) -> r.Claimed | r.Open | r.Unknown:
        """Open a window once more, by order; see ``lua/backfill.lua``."""
        arguments = [beat, _ms(self.settings.publish_timeout)]
        return self._trip.one(
            self._about("backfill", window, arguments, reading.read_backfill, [self._claim_key(window)])
        )

    def pause(self, entry: str) -> bool:
        """Stop claiming the entry's windows; what is open goes on. Returns False where there is no such entry."""
        return self._pause(entry, 1)

    def resume(self, entry: str) -> bool:
        """Go on claiming the entry's windows. Returns False where there is no such entry."""
        return self._pause(entry, 0)

    def _pause(self, entry: str, paused: int) -> bool:
        return self._trip.one(Call("pause", [self.entry_key(entry)], [paused], reading.read_word)) == "done"

    # -- a worker's verbs -------------------------------------------------------------------------------------

    def begin(
        self, window: WindowKey, owner: str, lease: float, retry: int = 0, *, tracked: bool = True
    ) -> r.Begun | r.Busy | r.Closed:
        """Take the right to execute ``window`` for ``lease`` seconds; see ``lua/begin.lua``."""
        arguments = [owner, _ms(lease), retry, int(tracked), _server_ms(window.start)]
        return self._trip.one(self._about("begin", window, arguments, reading.read_begin))

    def renew_many(self, renewals: Iterable[Renewal]) -> list[r.Renewed | r.Stale | OnceError]:
        """Renew leases; see ``lua/renew.lua``.

        Returns for each :class:`Renewed`, :class:`Stale` or an error.
        """
        return self._trip.run(
            [
                self._about("renew", window, [owner, fence, _ms(lease), int(tracked)], reading.read_renew)
                for window, owner, fence, lease, tracked in renewals
            ]
        )

    def hand_over(
        self,
        window: WindowKey,
        owner: str,
        fence: int,
        retry: int,
        delay: float,
        start_timeout: float,
        *,
        tracked: bool = True,
    ) -> r.HandedOver | r.Stale:
        """Give the window to retry number ``retry``, due in ``delay`` seconds, before it is published."""
        arguments = [owner, fence, retry, _ms(delay), _ms(start_timeout), int(tracked)]
        return self._trip.one(self._about("hand_over", window, arguments, reading.read_hand_over))

    def finish(
        self,
        window: WindowKey,
        owner: str,
        fence: int,
        outcome: str,
        again_after: float | None = None,
        *,
        tracked: bool = True,
    ) -> r.Finished | r.Again | r.Stale:
        """Record ``outcome``; with ``again_after`` (seconds) the window runs again, up to its max_attempts."""
        again = 0 if again_after is None else max(_ms(again_after), 1)
        return self._trip.one(
            self._about("finish", window, [owner, fence, outcome, again, int(tracked)], reading.read_finish)
        )

    def close_window(self, window: WindowKey, owner: str, outcome: str, retry: int) -> r.Closed | r.Unchanged:
        """Record that a message was discarded (``expired`` or ``revoked``) before its task could see it."""
        return self._trip.one(self._about("close", window, [owner, outcome, retry], reading.read_close))

    # -- reading ----------------------------------------------------------------------------------------------

    def account(self, entry: str) -> r.EntryAccount | None:
        """Return what the store knows of ``entry``, or None; changes nothing."""
        key = self.entry_key(entry)
        _, (fields,) = self._trip.run_with([], [("HGETALL", key)])
        if isinstance(fields, OnceError):
            raise fields
        if isinstance(fields, list):  # a pipeline without redis-py's own reading of replies
            fields = dict(zip(fields[::2], fields[1::2], strict=True))
        if fields.get("v", "1") != "1":
            raise newer(key, fields["v"])
        if "cursor" not in fields:
            return None
        try:
            return reading.read_account(fields)
        except (ValueError, IndexError, KeyError) as exc:
            raise StoreDataError(f"the key {key!r} is no account of an entry: {exc}") from exc

    # -- the round trip ---------------------------------------------------------------------------------------

    def _about(
        self,
        verb: str,
        window: WindowKey,
        arguments: Sequence[Any],
        read: Callable[[list[Any]], T],
        more_keys: Sequence[str] = (),
    ) -> Call[T]:
        start = format_instant(window.start)
        s = self.settings
        first = [start, f"{window.entry}@{start}", _ms(s.marker_ttl), _ms(s.retention), s.history_size]
        return Call(verb, [*self._window_keys(window), *more_keys], [*first, *arguments], read)


_stores: WeakKeyDictionary[Celery, Store] = WeakKeyDictionary()


def store_of(app: Celery) -> Store:
    """Return the app's store, made at its first use; raises SettingError where a setting is wrong."""
    store = _stores.get(app)
    if store is None:
        store = _stores[app] = Store(Settings.from_app(app))
    return store


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _server_ms(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(milliseconds=1)
