"""The verbs: what each is asked and answers. ``roundtrip`` sends them, ``lua/`` decides."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from celery_once_beat.errors import OnceError, StoreDataError, StoreUnavailableError
from celery_once_beat.settings import BEAT_TTL, Settings
from celery_once_beat.windows import KeyedWindow, WindowKey, format_instant

from . import codec
from . import model as r
from .model import ClaimRequest, Confirmation, LoadRequest, Renewal
from .nodes import Command
from .roundtrip import Call, RoundTrip, newer

if TYPE_CHECKING:
    from celery import Celery

__all__ = ("SHARDS", "Store", "store_of")

T = TypeVar("T")

SHARDS = 16
#: Seconds, some 3000 years.
_LONGEST = 1e11
#: Beats of which each load says whether they live, though nobody has asked yet.
_MOST_MET = 16
#: More often no script asks who lives: each time it is told.
_MOST_QUESTIONS = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Store:
    """The verbs, for one app's settings. Safe to use from several threads.

    Every verb raises :class:`StoreUnavailableError` where Redis doesn't answer, :class:`StoreDataError` where a
    key isn't ours, and :class:`NewerVersionError` where a newer version wrote it.
    """

    def __init__(self, settings: Settings, client: Any = None) -> None:
        self.settings = settings
        self._lifetimes = (_ms(settings.marker_ttl), _ms(settings.retention), settings.history_size)
        self._trip = RoundTrip(settings, client)
        #: Beats for which scripts asked last.
        self._met: tuple[str, ...] = ()

    def close(self) -> None:
        """Give the connections back; the next verb connects again."""
        self._trip.close()

    # -- keys -------------------------------------------------------------------------------------------------

    def _shard(self, entry: str) -> str:
        return f"{self.settings.key_prefix}{{{self.shard_of(entry)}}}:"

    def entry_key(self, entry: str) -> str:
        """Name of the hash of ``entry``."""
        return f"{self._shard(entry)}entry:{entry}"

    def history_key(self, entry: str) -> str:
        """Name of the list of ended windows of ``entry``."""
        return f"{self._shard(entry)}history:{entry}"

    def refused_key(self, entry: str) -> str:
        """Name of the hash of refused copies of ``entry``, by window."""
        return f"{self._shard(entry)}refused:{entry}"

    def open_key(self, shard: int) -> str:
        """Name of the zset of a shard's open windows."""
        return f"{self.settings.key_prefix}{{{shard}}}:open"

    @property
    def beats_keys(self) -> list[str]:
        """Names of the zset of live beats, and of the hashes of their reports and apps: in one slot of a cluster."""
        beats = f"{self.settings.key_prefix}beats"
        return [beats, *(f"{self.settings.key_prefix}{{{beats}}}:{what}" for what in ("reports", "apps"))]

    # -- a beat's verbs ---------------------------------------------------------------------------------------

    def load_many(self, requests: Iterable[LoadRequest]) -> list[r.Loaded | r.Superseded | OnceError]:
        """Say which definitions of entries this beat has; see ``lua/load.lua``.

        Returns for each :class:`Loaded`, :class:`Superseded`, or the error that concerns that entry alone.
        """
        asked = list(requests)
        return self._ask_with_beats([self._load(q) for q in asked], [(q.alive, q.asked_at) for q in asked])

    def _load(self, q: LoadRequest) -> Call[r.Loaded | r.Superseded]:
        instants = ["" if at is None else format_instant(at) for at in (q.known, q.counts_from, q.absent_at)]
        limits: list[object] = [q.max_attempts, int(q.recover), -1 if q.grace is None else _ms(q.grace)]
        back = _ms(BEAT_TTL + 2 * self.settings.recovery_interval)
        limits += [-1 if q.retry_failed_after is None else _ms(q.retry_failed_after), q.overlap or "-"]
        arguments = [q.beat, q.fingerprint, q.loaded_at, _ms(q.ttl), back, *limits, *instants]
        return Call("load", [self.entry_key(q.entry)], arguments, codec.read_load)

    def unload_many(
        self, beat: str, left: Iterable[tuple[str, str]], alive: Collection[str], asked_at: datetime | None = None
    ) -> list[str | OnceError]:
        """Say that entries have left the beat's schedule, as (entry, fingerprint); see ``lua/unload.lua``.

        ``alive`` are the beats that lived at ``asked_at`` (aware UTC; None: now). Returns for each ``unloaded``,
        ``kept``, ``unknown`` or an error.
        """
        calls = [
            Call("unload", [self.entry_key(entry)], [beat, fingerprint], codec.read_word) for entry, fingerprint in left
        ]
        return self._ask_with_beats(calls, [(alive, asked_at)] * len(calls))

    def spent(
        self, entry: str, since: datetime, edited: datetime, now: datetime, *, disabled: bool = False
    ) -> r.Spent | r.Unknown:
        """Say that a one-off has had its window, and that it is being ``disabled``; see ``lua/spent.lua``.

        ``edited`` is when its row was, as the beat knows it, ``now`` from where it counts if it was enabled again.
        Returns :class:`Spent`, or :class:`Unknown`: load it again.
        """
        arguments = [format_instant(since), format_instant(edited), int(disabled), format_instant(now)]
        return self._trip.one(Call("spent", [self.entry_key(entry)], arguments, codec.read_spent))

    def claim_many(self, beat: str, requests: Iterable[ClaimRequest]) -> list[r.ClaimReply | OnceError]:
        """Claim windows in one pipeline; see ``lua/claim.lua``.

        Returns for each :class:`Claimed`, :class:`Moved`, :class:`Paused`, :class:`Superseded`,
        :class:`Unknown`, or the error that concerns that entry alone.
        """
        return self._trip.run([self._claim(beat, request) for request in requests])

    def _claim(self, beat: str, q: ClaimRequest) -> Call[r.ClaimReply]:
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
            codec.read_claim,
            starts,
        )

    def confirm_many(
        self, confirmations: Iterable[Confirmation]
    ) -> list[r.Confirmed | r.Closed | r.Unchanged | OnceError]:
        """Say of each window whether its message went out; see ``lua/confirm.lua``.

        Returns for each :class:`Confirmed`, :class:`Closed`, :class:`Unchanged` or an error.
        """
        publish_timeout = _ms(self.settings.publish_timeout)
        return self._trip.run(
            [
                self._about("confirm", window, [turn, int(published), _ms(wait), publish_timeout], codec.read_confirm)
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
                    "take", window, [beat, fingerprint, publish_timeout, _epoch_ms(window.start)], codec.read_take
                )
                for window, fingerprint in windows
            ]
        )

    def postpone_many(
        self,
        beat: str,
        windows: Iterable[tuple[WindowKey, str]],
        seconds: float,
        others: Sequence[str],
        asked_at: datetime | None = None,
    ) -> list[str | OnceError]:
        """Put off overdue windows that this beat can't take, and none of ``others`` (alive at ``asked_at``) can.

        Each with why: its entry is ``unknown`` to the beat's schedule, or ``untracked`` in it. Returns for each
        ``postponed``, ``forgotten``, ``closed``, ``no`` (it isn't overdue, or another's) or an error; see
        ``lua/postpone.lua``.
        """
        calls = [self._about("postpone", window, [_ms(seconds), beat, why], codec.read_word) for window, why in windows]
        return self._ask_with_beats(calls, [(others, asked_at)] * len(calls))

    def _ask_with_beats(
        self, calls: Sequence[Call[T]], known: Sequence[tuple[Collection[str], datetime | None]]
    ) -> list[T | OnceError]:
        """Send calls whose answers depend on which beats live: of each, who did and when that was asked.

        A script asks for the beats that matter; the few that were asked for last are told from the start. So what is
        sent doesn't grow with the number of beats.
        """
        answers: dict[int, T | OnceError] = {}
        told = dict.fromkeys(range(len(calls)), self._met)
        for _ in range(_MOST_QUESTIONS):
            replies = self._trip.run([_telling(calls[number], told[number], *known[number]) for number in told])
            questions = {}
            for number, reply in zip(told, replies, strict=True):
                if isinstance(reply, r.Who):
                    questions[number] = reply.beats
                else:
                    answers[number] = reply
            asked_for = dict.fromkeys(beat for beats in questions.values() for beat in beats)
            self._met = tuple(dict.fromkeys([*asked_for, *self._met]))[:_MOST_MET]
            told = {number: (*told[number], *beats) for number, beats in questions.items()}
            if not told:
                break
        for number in told:
            answers[number] = StoreDataError(f"{calls[number].keys[0]!r}, field loaders: found beats without a name")
        return [answers[number] for number in range(len(calls))]

    def shard_of(self, entry: str) -> int:
        """Number of the shard in which ``entry`` lives, from 0 to SHARDS - 1."""
        return zlib.crc32(entry.encode()) % SHARDS

    def overdue(
        self,
        beat: str,
        now: datetime,
        most: int,
        skip: Mapping[int, int] = MappingProxyType({}),
        report: str = "",
        app: str = "",
    ) -> r.Overdue:
        """Say that ``beat`` lives, and find overdue windows: ``most`` a shard, all in one pipeline.

        ``now`` (aware UTC) is the server's time as the caller knows it; ``take`` looks again. ``skip`` says for
        shards how many of their longest overdue are passed over. ``report`` is what the beat says of itself, ``app``
        of which app it is.
        """
        calls = [self._heartbeat(beat, report=report, app=app)]
        until = _epoch_ms(now)
        commands: list[tuple[Any, ...]] = [
            ("ZRANGEBYSCORE", self.open_key(shard), "-inf", until, "LIMIT", skip.get(shard, 0), most)
            for shard in range(SHARDS)
        ]
        (heartbeat,), shards = self._trip.run_with(calls, commands)
        # Of a cluster one node may be away: what lives on the others is looked at all the same.
        if isinstance(heartbeat, OnceError) and not isinstance(heartbeat, StoreUnavailableError):
            raise heartbeat
        return r.Overdue([codec.read_members(members) for members in shards], heartbeat)

    def heartbeat(self, beat: str) -> r.Heartbeat:
        """Say that ``beat`` lives; returns the server's time and who lives."""
        return self._trip.one(self._heartbeat(beat))

    def leave(self, beat: str) -> None:
        """Say that ``beat`` ends, so that nobody waits for it to be missed."""
        self._trip.one(self._heartbeat(beat, "leaves"))

    def look(self) -> r.Heartbeat:
        """Return the server's time and who lives; changes nothing."""
        return self._trip.one(self._heartbeat("", "looks"))

    def beats(self) -> tuple[str, ...]:
        """Return the beats alive; changes nothing."""
        return self.look().beats

    def apps(self, beats: Sequence[str]) -> dict[str, str | None]:
        """Return of which app each of ``beats`` is; None where it hasn't said, or what can't be understood."""
        if not beats:
            return {}
        (texts,) = self.read([("HMGET", self.beats_keys[2], *beats)])
        if isinstance(texts, OnceError):  # for people only: whatever else may be in its place
            return dict.fromkeys(beats)
        return dict(zip(beats, map(codec.read_app, texts), strict=True))

    def _heartbeat(self, beat: str, what: str = "lives", report: str = "", app: str = "") -> Call[r.Heartbeat]:
        return Call("heartbeat", self.beats_keys, [beat, _ms(BEAT_TTL), what, report, app], codec.read_heartbeat)

    def backfill(self, window: WindowKey, beat: str) -> r.Claimed | r.Open | r.Unknown:
        """Open a window once more, by order of ``beat``; see ``lua/backfill.lua``.

        Returns :class:`Claimed` (publish it, and confirm), :class:`Open` (it still owes its outcome) or
        :class:`Unknown` (no such entry).
        """
        arguments = [beat, _ms(self.settings.publish_timeout)]
        return self._trip.one(self._about("backfill", window, arguments, codec.read_backfill, ()))

    def pause(self, entry: str) -> bool:
        """Stop claiming the entry's windows; what is open goes on. Returns False where there is no such entry."""
        return self._pause(entry, 1)

    def resume(self, entry: str) -> bool:
        """Go on claiming the entry's windows. Returns False where there is no such entry."""
        return self._pause(entry, 0)

    def _pause(self, entry: str, paused: int) -> bool:
        return self._trip.one(Call("pause", [self.entry_key(entry)], [paused], codec.read_word)) == "done"

    # -- a worker's verbs -------------------------------------------------------------------------------------

    def begin(
        self, window: WindowKey, owner: str, lease: float, retry: int = 0, *, tracked: bool = True, skip: bool = False
    ) -> r.Begun | r.Busy | r.Closed:
        """Take the right to execute ``window`` for ``lease`` seconds; see ``lua/begin.lua``.

        ``retry`` is the message's retry number, ``tracked`` what its headers say; ``skip``: not while another window of
        its entry runs, unless the entry says otherwise. Returns :class:`Begun`,
        :class:`Busy` (another has it), or :class:`Closed`: with its outcome where a limit ended it just now, with
        none where it was closed before.
        """
        kind = _kind(window, tracked=tracked)
        arguments = [owner, _ms(lease), retry, kind, _epoch_ms(window.start), "skip" if skip else "allow"]
        return self._trip.one(self._about("begin", window, arguments, codec.read_begin, refused=True))

    def begin_now(self, window: KeyedWindow, owner: str, lease: float) -> r.Begun | r.Busy | r.Closed | r.Elsewhen:
        """As :meth:`begin`, or :class:`Elsewhen` where the server's time lies outside of the window."""
        end = 0 if window.end is None else _epoch_ms(window.end)
        arguments = [owner, _ms(lease), 0, "keyed", _epoch_ms(window.start), "allow", end]
        return self._trip.one(self._about("begin", window, arguments, codec.read_begin_now, refused=True))

    def renew_many(self, renewals: Iterable[Renewal]) -> list[r.Renewed | r.Stale | OnceError]:
        """Renew leases, each for its own ``lease`` seconds from now; see ``lua/renew.lua``.

        Returns for each :class:`Renewed`, :class:`Stale` (another began since, it was handed over, or it is closed)
        or the error that concerns it alone.
        """
        return self._trip.run(
            [
                self._about("renew", window, [owner, fence, _ms(lease), int(tracked)], codec.read_renew)
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
        """Give the window to retry number ``retry``, before that is published; see ``lua/hand_over.lua``.

        It is due in ``delay`` seconds, and overdue ``start_timeout`` seconds later. ``fence`` is the begin's, or 0
        where the owner doesn't know it: then only the run key counts. Returns :class:`HandedOver` or
        :class:`Stale`.
        """
        arguments = [owner, fence, retry, _ms(delay), _ms(start_timeout), int(tracked)]
        return self._trip.one(self._about("hand_over", window, arguments, codec.read_hand_over))

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
        """Record ``outcome``: done, failed or revoked; see ``lua/finish.lua``.

        With ``again_after`` (seconds) the window runs again so much later, up to its max_attempts. ``fence`` is the
        begin's, or 0 where the caller doesn't know it: then only the run key counts. Returns :class:`Finished`,
        :class:`Again`, or :class:`Stale`: nothing is recorded, since another began, closed it, or it was handed over
        (then only revoked ends it).
        """
        again = 0 if again_after is None else max(_ms(again_after), 1)
        return self._trip.one(
            self._about(
                "finish", window, [owner, fence, outcome, again, _kind(window, tracked=tracked)], codec.read_finish
            )
        )

    def close_window(self, window: WindowKey, owner: str, outcome: str, retry: int) -> r.Closed | r.Unchanged:
        """Record that a message was discarded before its task could see it; see ``lua/close.lua``.

        ``outcome`` is expired or revoked, ``retry`` the message's retry number. Returns :class:`Closed`, or
        :class:`Unchanged` where it runs, waits for another retry, is closed already, or is for recovery.
        """
        return self._trip.one(self._about("close", window, [owner, outcome, retry], codec.read_close))

    def discarded(self, window: WindowKey, retry: int) -> r.Confirmed | r.Unchanged:
        """Say that a message was discarded by a worker that doesn't know its task; see ``lua/close.lua``.

        ``retry`` is the message's retry number. Returns :class:`Confirmed`, the window is published again soon, or
        :class:`Unchanged`.
        """
        arguments = ["-", "unknown", retry, _ms(self.settings.publish_timeout)]
        return self._trip.one(self._about("close", window, arguments, codec.read_discarded))

    def close_by_result(self, window: WindowKey, beat: str, outcome: str) -> r.Closed | r.Unchanged:
        """Record what the result of a window says that never began: done, failed or revoked.

        Returns :class:`Closed`, or :class:`Unchanged` where it has begun, is closed already, or was opened by order.
        """
        return self._trip.one(self._about("close", window, [beat, outcome, 0, 1], codec.read_close))

    # -- keys of the user's own -------------------------------------------------------------------------------

    def claim_key(
        self, window: KeyedWindow, claimant: str, *, now: bool = False
    ) -> r.Claimed | r.Unchanged | r.Elsewhen:
        """Take the right to publish the message of ``window``; see ``lua/key_claim.lua``.

        ``claimant`` is a name used for this claim alone. Returns :class:`Claimed` (publish it, and confirm),
        :class:`Unchanged` (it is out), or with ``now`` :class:`Elsewhen` where the server's time lies outside of it.
        """
        keys = [self._key_of(window, "claim"), self._key_of(window, "run")]
        arguments: list[object] = [claimant, _ms(self.settings.publish_timeout)]
        if now:
            arguments += [_epoch_ms(window.start), 0 if window.end is None else _epoch_ms(window.end)]
        return self._trip.one(Call("key_claim", keys, arguments, codec.read_key_claim))

    def confirm_key(self, window: KeyedWindow, claimant: str, *, published: bool) -> bool:
        """Say whether the message of a claimed ``window`` went out; returns whether that is written down.

        What didn't go out isn't where another has claimed it since. See ``lua/key_confirm.lua``.
        """
        arguments = [claimant, int(published), self._remembered(window)]
        call = Call("key_confirm", [self._key_of(window, "claim")], arguments, codec.read_word)
        return self._trip.one(call) == "confirmed"

    def _key_of(self, window: KeyedWindow, what: str) -> str:
        return f"{self._shard_for(window)}{what}:{window.entry}:{format_instant(window.start)}"

    def _shard_for(self, window: WindowKey) -> str:
        if isinstance(window, KeyedWindow):
            tag = hashlib.blake2b(window.entry.encode(), digest_size=6).hexdigest()
            return f"{self.settings.key_prefix}key:{{{tag}}}:"
        return self._shard(window.entry)

    def _remembered(self, window: KeyedWindow) -> int:
        """For how many ms the window of a key is remembered: not less than it lasts."""
        lasts = (window.end - window.start).total_seconds() if window.end else 0.0
        return _ms(max(self.settings.retention, lasts))

    # -- reading ----------------------------------------------------------------------------------------------

    def account(self, entry: str) -> r.EntryAccount | None:
        """Return what the store knows of ``entry``, or None; changes nothing."""
        fields = self.read([("HGETALL", self.entry_key(entry))])[0]
        if isinstance(fields, OnceError):
            raise fields
        return self.read_account(entry, fields)

    def read(self, commands: Sequence[Command]) -> list[Any]:
        """Send plain commands (name, key, …) in one pipeline: for ``lookup``, so none that writes.

        An error that concerns one command stands in the place of its reply.
        """
        replies = self._trip.run_with([], commands)[1]
        for reply in replies:
            if isinstance(reply, StoreUnavailableError):
                raise reply
        return replies

    def clocks(self) -> dict[str, float]:
        """How many seconds the clock of each server that answers, replicas too, is ahead of this machine's."""
        return self._trip.clocks()

    def read_account(self, entry: str, reply: Any) -> r.EntryAccount | None:
        """Read the hash of ``entry``; None where there is none. Raises StoreDataError and NewerVersionError."""
        key, fields = self.entry_key(entry), codec.as_mapping(reply)
        version = fields.get("v", "1")
        if version != "1":
            raise newer(key, version) if version.isdecimal() else StoreDataError(f"the key {key!r} has no version")
        if "cursor" not in fields:
            return None
        try:
            return codec.read_account(fields)
        except (ValueError, IndexError, KeyError, OverflowError) as exc:
            raise StoreDataError(f"the key {key!r} is no account of an entry: {exc}") from exc

    # -- the round trip ---------------------------------------------------------------------------------------

    def _about(
        self,
        verb: str,
        window: WindowKey,
        arguments: Sequence[Any],
        read: Callable[[list[Any]], T],
        passed_over: Sequence[str] | None = None,
        *,
        refused: bool = False,
    ) -> Call[T]:
        """One call about a window.

        ``passed_over`` are the starts of others, for a verb that has a claim key too; ``refused``: it counts copies.
        """
        entry, start, shard = window.entry, format_instant(window.start), self._shard_for(window)
        lifetimes = self._lifetimes
        if isinstance(window, KeyedWindow):
            lifetimes = (self._remembered(window),) * 2 + (0,)
        keys = [f"{shard}entry:{entry}", f"{shard}open", f"{shard}history:{entry}", f"{shard}run:{entry}:{start}"]
        if passed_over is not None:
            keys += [f"{shard}claim:{entry}:{start}", *(f"{shard}run:{entry}:{other}" for other in passed_over)]
        if refused:
            keys.append(f"{shard}refused:{entry}")
        return Call(verb, keys, [start, f"{entry}@{start}", *lifetimes, *arguments], read)


_stores: WeakKeyDictionary[Celery, Store] = WeakKeyDictionary()


def store_of(app: Celery) -> Store:
    """Return the app's store, made at its first use; raises SettingError where a setting is wrong.

    Safe to call from several threads: setdefault is one atomic step. No lock: a child that is forked while another
    thread holds one would wait for ever.
    """
    store = _stores.get(app)
    return store if store is not None else _stores.setdefault(app, Store(Settings.from_app(app)))


def _telling(call: Call[T], beats: Iterable[str], alive: Collection[str], asked_at: datetime | None) -> Call[T | r.Who]:
    """As ``call``, which says of ``beats`` whether they live; see ``lua/loaders.lua``."""
    living = [beat for beat in beats if beat in alive]
    gone = [beat for beat in beats if beat not in alive]

    def read(reply: list[Any]) -> T | r.Who:
        return r.Who(reply[1:]) if reply[0] == "who" else call.read(reply)

    return Call(call.verb, call.keys, [*call.arguments, _asked(asked_at), len(living), *living, *gone], read)


def _kind(window: WindowKey, *, tracked: bool) -> int | str:
    return "keyed" if isinstance(window, KeyedWindow) else int(tracked)


def _ms(seconds: float) -> int:
    """As scripts take it: never so long that what they add to it, the time say, has more digits than they read."""
    return round(seconds * 1000) if seconds < _LONGEST else round(_LONGEST * 1000)  # not a number is longest, too


def _asked(at: datetime | None) -> int | str:
    return "" if at is None else _epoch_ms(at)


def _epoch_ms(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(milliseconds=1)
