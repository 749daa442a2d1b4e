"""The verbs as methods: what each is asked and answers. ``scripts`` declares them, ``lua/`` decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from os import urandom
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.settings import BEAT_TTL, LOSS_SHOWN, Settings
from celery_once_beat.windows import INSTANT_WIDTH, WindowKey, format_instant, task_id

from . import codec, model, scripts
from .account import EntryAccount, read_account
from .keys import SHARDS, Keys, shard_of
from .model import ClaimRequest, Confirmation, Ending, LoadRequest, Renewal
from .roundtrip import RoundTrip, Words, raised
from .scripts import Request, Verb

if TYPE_CHECKING:
    from celery import Celery

T = TypeVar("T")

#: What stands for an entry's name and a start in the pieces of heads; no prefix holds them. Of long names none is kept.
_ENTRY, _START, _LONG = "\v", "\f", 200
#: Bytes of a request's id.
_ID_BYTES = 8


class Store:
    """The verbs, for one app's settings. Safe to use from several threads.

    Every verb raises :class:`StoreUnavailableError` where Redis doesn't answer, :class:`StoreDataError` where a
    key isn't ours, and :class:`NewerVersionError` where a newer version wrote it. A method that takes many
    returns the error that concerns one of them in its place.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = Keys(settings.key_prefix)
        #: The exchange with the server.
        self.trip = RoundTrip(settings, self.keys)
        #: The heads of requests about windows, in pieces, by script, slot and length of the entry's name. Between the
        #: pieces stands the window's start; ``_ENTRY`` stands for its entry.
        self._heads: dict[tuple[str, str, int], list[str]] = {}

    def close(self) -> None:
        """Give the connections back; the next verb connects again."""
        self.trip.close()

    def entry_key(self, entry: str) -> str:
        """Name of the hash of ``entry``."""
        return self.keys.of_entry("entry", entry)

    def shard_of(self, entry: str) -> int:
        """Number of the shard in which ``entry`` lives."""
        return shard_of(entry)

    # -- a beat's verbs ---------------------------------------------------------------------------------------

    def load_many(self, requests: Iterable[LoadRequest]) -> list[model.Loaded | model.Superseded | OnceError]:
        """Say which definitions of entries this beat has. What vanished beats loaded doesn't count."""
        written: dict[tuple[Any, ...], str] = {}
        return self.trip.run([self._load(q, written) for q in requests])

    def _load(self, q: LoadRequest, written: dict[tuple[Any, ...], str]) -> Request[model.Loaded | model.Superseded]:
        """Make one request. Most entries of a schedule differ only in their names: arguments are ``written`` once."""
        arguments = q._asdict()
        entry, policy, stored = map(arguments.pop, ("entry", "policy", "stored"))
        values = (*arguments.values(), policy)
        if values not in written:
            arguments["go_back"] = BEAT_TTL + 2 * self.settings.recovery_interval
            arguments["options"] = scripts.encode_options(policy.end_rules)
            written[values] = scripts.LOAD.tail(arguments)
        named = self.keys.for_entry(entry, q.row)
        keys = [named[name] for name in (*scripts.LOAD.key_names, *(["def"] if stored else ()))]
        return Request(codec.encode(scripts.LOAD.head(keys, {}) + written[values]), keys[0], scripts.LOAD)

    def unload_many(self, beat: str, left: Iterable[tuple[str, str]]) -> list[str | OnceError]:
        """Say that entries have left the beat's schedule, as (entry, fingerprint).

        Returns for each ``unloaded``, ``kept`` or ``unknown``.
        """
        keys, verb = self.keys.for_entry, scripts.UNLOAD
        return self.trip.run([verb.request(keys(entry), beat=beat, fingerprint=each, row="") for entry, each in left])

    def claim_many(self, beat: str, requests: Iterable[ClaimRequest]) -> list[model.ClaimReply | OnceError]:
        """Claim windows in one pipeline."""
        return self.trip.run([self._claim(beat, request) for request in requests])

    def _claim(self, beat: str, q: ClaimRequest) -> Request[model.ClaimReply]:
        missed = [format_instant(start) for start in q.missed]
        runs = [self.keys.of_window(q.window, start)["run"] for start in missed]
        # 0 would mean that the message never expires.
        expires = None if q.expires is None else max(q.expires, 0.001)
        count = max(q.missed_count, len(missed))
        return self._asked(scripts.CLAIM, q, runs, beat=beat, expires=expires, missed=missed, missed_count=count)

    def confirm_many(self, confirmations: Iterable[Confirmation]) -> list[model.ConfirmReply | OnceError]:
        """Confirm what happened to each window's message; :class:`Unchanged` where it isn't the caller's any more."""
        return self.trip.run(
            [self._asked(scripts.CONFIRM, each, queue=codec.write_queue(each.queue)) for each in confirmations]
        )

    def take_many(
        self, beat: str, windows: Iterable[tuple[WindowKey, str]], consumed: Iterable[str] | None = None
    ) -> list[model.TakeReply | OnceError]:
        """Take overdue (window, fingerprint) pairs.

        ``consumed`` are the queues that workers consume; None: that isn't known.
        """
        text = "" if consumed is None else f" {' '.join(map(codec.write_queue, consumed))} "
        return self.trip.run(
            [
                self.of_window(scripts.TAKE, window, beat=beat, fingerprint=fingerprint, consumed=text)
                for window, fingerprint in windows
            ]
        )

    def workers(self, now: datetime, within: float) -> tuple[dict[str, model.WorkerSeen], list[str]]:
        """Return the workers that were heard of ``within`` so many seconds before ``now``; and what can't be read."""
        since = codec.epoch_ms(now) - codec.ms(within)
        (reply,) = self.trip.read([("ZRANGEBYSCORE", self.keys.workers, since, "+inf", "WITHSCORES")])
        return codec.read_workers(raised(reply))

    def postpone_many(
        self, beat: str, windows: Iterable[tuple[WindowKey, str]], seconds: float
    ) -> list[str | OnceError]:
        """Put off overdue windows that this beat can't take, and no other that lives can.

        Each comes with why: its entry is ``unknown`` to the beat's schedule, or ``untracked`` in it. Returns for each
        ``postponed``, ``forgotten``, ``closed``, or ``no`` (it isn't overdue, or is another's).
        """
        return self.trip.run(
            [self.of_window(scripts.POSTPONE, window, delay=seconds, beat=beat, why=why) for window, why in windows]
        )

    def overdue(  # all that travels in the pipeline of one look
        self,
        beat: str,
        now: datetime,
        most: int,
        skip: Mapping[int, int] = MappingProxyType({}),
        report: model.BeatReport | None = None,
        app: str = "",
        *,
        requests: Sequence[Request[Any] | Words] = (),
    ) -> model.Overdue:
        """Say that ``beat`` lives, and find overdue windows, ``most`` a shard, all in one pipeline.

        ``now`` (aware UTC) is the server's time as the caller knows it; ``take`` looks again. ``skip`` says for
        shards how many of their longest overdue windows are passed over.
        ``report`` is the beat's report on itself, ``app`` describes its app. ``requests`` and plain commands travel
        in the same pipeline.
        """
        text = "" if report is None else codec.write_report(report, app)
        sweeps = [
            self.of_shard(scripts.SWEEP, shard, beat=beat, until=now, most=most, skip=skip.get(shard, 0))
            for shard in range(SHARDS)
        ]
        heartbeat, *found = self.trip.send([self._heartbeat(beat, report=text), *sweeps, *requests])
        # Of a cluster one node may be away: the beats on the others are read all the same.
        if isinstance(heartbeat, OnceError) and not isinstance(heartbeat, StoreUnavailableError):
            raise heartbeat
        return model.Overdue(heartbeat, found[:SHARDS], found[SHARDS:])

    def leave(self, beat: str) -> None:
        """Say that ``beat`` ends: others needn't wait until it counts as gone."""
        keys = self.keys.of_beats
        shards = [("ZREM", key, beat) for key in self.keys.of_shards("beats")]
        raised(self.trip.send([("ZREM", keys["beats"], beat), ("HDEL", keys["reports"], beat), *shards])[0])

    def snapshot(self) -> model.Heartbeat:
        """Return the server's time and who lives; changes nothing."""
        return self.trip.one(self._heartbeat("", lives=False))

    def apps(self, beats: Sequence[str]) -> dict[str, str | None]:
        """Return which app each of ``beats`` is of; None if it hasn't reported that, or it can't be read."""
        if not beats:
            return {}
        (texts,) = self.trip.read([("HMGET", self.keys.of_beats["reports"], *beats)])
        if isinstance(texts, OnceError):  # for people only: a foreign key here stops no beat
            return dict.fromkeys(beats)
        return dict(zip(beats, map(codec.read_app, texts), strict=True))

    def note_loss(self, entries: int, at: datetime) -> None:
        """Note that the store was found at ``at`` (aware UTC) to have lost so many entries: people see it for days."""
        key = self.keys.of_beats["lost"]
        found = ("HSET", key, "at", codec.epoch_ms(at))
        self.trip.read([("HINCRBY", key, "entries", entries), found, ("PEXPIRE", key, 1000 * LOSS_SHOWN)])

    def _heartbeat(self, beat: str, report: str = "", *, lives: bool = True) -> Request[model.Heartbeat]:
        return scripts.HEARTBEAT.request(self.keys.of_beats, beat=beat, lives=lives, report=report)

    def set_paused(
        self, entry: str, words: str = "{}", *, paused: bool, only_still: bool = False
    ) -> model.Confirmed | model.Unknown:
        """Pause or resume the entry.

        While it is paused none of its windows is claimed; what is open continues. ``words`` name who does it and why,
        JSON; they are kept until it is resumed. Returns Unknown where there is no such entry. With ``only_still``
        nothing changes where the entry isn't paused, and the answer is Unknown: somebody has resumed it since.
        """
        return self.trip.one(self.pause_request(entry, words, paused=paused, only_still=only_still))  # type: ignore[no-any-return]

    def pause_request(self, entry: str, words: str, *, paused: bool, only_still: bool = False) -> Request[Any]:
        """Make the request of :meth:`set_paused`."""
        return self.change_request(scripts.PAUSE, entry, words, paused=paused, only_still=only_still)

    def change_request(self, verb: Verb[T], name: str, words: str, **arguments: Any) -> Request[T]:
        """Make one request that changes the entry ``name``, or its definition; sent again, it is known by its id."""
        arguments |= self.of_features(verb, name=name, request=self.new_id())
        return verb.request(self.keys.for_entry(name), words=words, **arguments)

    def new_id(self) -> str:
        """Return the id of a change: where the answer is lost it is sent again under it, and changes nothing twice."""
        return urandom(_ID_BYTES).hex()

    # -- a worker's verbs -------------------------------------------------------------------------------------

    def begin_request(
        self, window: WindowKey, owner: str, lease: float, retry: int = 0, *, tracked: bool = True, **of_features: Any
    ) -> Request[model.Begun | model.Busy | model.Closed | model.Waits]:
        """Make the request for the right to execute ``window`` for ``lease`` seconds.

        ``retry`` is the message's retry number, ``tracked`` is from its headers.
        """
        return self.of_window(
            scripts.BEGIN, window, owner=owner, lease=lease, retry=retry, tracked=tracked, **of_features
        )

    def begin(self, *asked: Any, **more: Any) -> model.Begun | model.Busy | model.Closed | model.Waits:
        """Send what :meth:`begin_request` makes."""
        return self.trip.one(self.begin_request(*asked, **more))

    @staticmethod
    def of_features(verb: Verb[Any], **arguments: object) -> dict[str, Any]:
        """Return those arguments of a verb that a feature takes; without the feature nobody does."""
        return {name: value for name, value in arguments.items() if name in verb.kinds}

    def renew_many(self, renewals: Iterable[Renewal], more: Iterable[Request[Any]] = ()) -> list[Any]:
        """Renew leases, each for its own ``lease`` seconds from now. Returns for each Renewed, Stale, or its error.

        ``more`` travels in the same pipeline; the replies to it are behind those.
        """
        return self.trip.send([*(self._asked(scripts.RENEW, each) for each in renewals), *more])

    def hand_over(
        self, window: WindowKey, owner: str, fence: int, retry: int, delay: float, *, tracked: bool = True
    ) -> model.HandedOver | model.Stale:
        """Give the window to retry number ``retry``, before that is published.

        It is due in ``delay`` seconds, and overdue the setting ``start_timeout`` later. ``fence`` is the begin's.
        """
        asked: dict[str, Any] = {"owner": owner, "fence": fence, "retry": retry, "delay": delay, "tracked": tracked}
        asked["start_timeout"] = self.settings.start_timeout
        return self.trip.one(self.of_window(scripts.HAND_OVER, window, **asked))

    def finish(self, ending: Ending) -> model.Finished | model.Again | model.Stale:
        """Record the end of one execution."""
        return self.trip.one(self.finish_request(ending))

    def finish_request(self, ending: Ending) -> Request[model.Finished | model.Again | model.Stale]:
        """Make the request of :meth:`finish`."""
        return self._asked(scripts.FINISH, ending)

    def close_window(
        self, window: WindowKey, owner: str, outcome: str, retry: int, expires: datetime | None = None
    ) -> model.ConfirmReply:
        """Record that a message was discarded before its task could see it: it is expired, revoked or ``unknown``.

        Unknown: ``owner`` is the worker, which doesn't know the task. ``retry`` is the message's retry number,
        ``expires`` (aware) its own expiry. Returns :class:`Unchanged` where the window runs, waits for another retry,
        is closed already, or is for recovery; :class:`Confirmed` where it is published again soon: its task is
        unknown, or it hasn't expired by the server's clock.
        """
        return self.trip.one(
            self.of_window(scripts.CLOSE, window, owner=owner, outcome=outcome, retry=retry, expires=expires)
        )

    # -- workers ----------------------------------------------------------------------------------------------

    def consume(self, worker: str, broker: str, queues: Iterable[str]) -> None:
        """Say that ``worker`` lives and consumes these queues of ``broker``; see :meth:`workers`."""
        named = [codec.write_queue(queue) for queue in queues]
        keys = {"workers": self.keys.workers}
        self.trip.one(scripts.CONSUME.request(keys, worker=worker, broker=broker, queues=named))

    def consume_no_more(self, worker: str) -> None:
        """Say that ``worker`` ends in an orderly way: it consumes nothing any more."""
        (members,) = self.trip.read([("ZRANGE", self.keys.workers, 0, -1)])
        gone = [member for member in raised(members) if member.startswith(f"{worker} ")]
        if gone:
            self.trip.read([("ZREM", self.keys.workers, *gone)])

    # -- reading ----------------------------------------------------------------------------------------------

    def account(self, entry: str) -> EntryAccount | None:
        """Return what the store knows of ``entry``, or None; changes nothing."""
        (account,) = self.accounts([entry])
        return raised(account)

    def accounts(self, entries: Sequence[str]) -> list[EntryAccount | OnceError | None]:
        """Return what the store knows of each of ``entries``, None where nothing; changes nothing."""
        keys = [self.entry_key(entry) for entry in entries]
        replies = self.trip.read([("HGETALL", key) for key in keys])
        return [read_account(key, reply) for key, reply in zip(keys, replies, strict=True)]

    def server(self) -> tuple[dict[str, str], str]:
        """Return the server's INFO (of a cluster one node's), or why there is none: the command may be refused."""
        try:
            (reply,) = self.trip.read([("INFO", "everything")])
        except OnceError as exc:
            return {}, str(exc)
        return codec.as_info(reply), ""

    def of_shard(self, verb: Verb[T], shard: int, **arguments: Any) -> Request[T]:
        """Make one request about a shard."""
        return verb.request({what: self.keys.of_shard(what, shard) for what in verb.key_names}, **arguments)

    def of_window(
        self, verb: Verb[T], window: WindowKey, more_keys: Sequence[str] = (), **arguments: Any
    ) -> Request[T]:
        """Make one request about a window. What follows from it and the settings is given where the verb takes it."""
        entry, start, slot = window.entry, format_instant(window.start), self.keys.slot_of(window)
        if "starts_at" in verb.rest:
            arguments["starts_at"] = window.start
        if "by_schedule" in verb.rest:
            sent_as, prefix = window.sent_as, self.settings.key_prefix
            arguments["by_schedule"] = sent_as is not None and sent_as == task_id(prefix, entry, window.start)
        if more_keys or type(window) is not WindowKey or len(entry) > _LONG or not self.settings.fast:
            special = scripts.special(self.settings, window)
            arguments |= {name: value for name, value in special.items() if name in verb.rest}
            head = self._head(verb, slot, entry, start, more_keys, special)
        else:
            of_form = verb.sha, slot, len(entry) if entry.isascii() else len(codec.encode(entry))
            pieces = self._heads.get(of_form)
            if pieces is None:
                name, at = _ENTRY * of_form[2], _START * INSTANT_WIDTH
                pieces = self._head(verb, slot, name, at).replace(name, _ENTRY).split(at)
                self._heads[of_form] = pieces
            head = start.join(pieces).replace(_ENTRY, entry)
        return Request(codec.encode(head + verb.tail(arguments)), slot, verb)

    def _asked(self, verb: Verb[T], asked: Any, more_keys: Sequence[str] = (), **changed: Any) -> Request[T]:
        """Make one request about a window; the other fields of what is ``asked`` are arguments of the verb."""
        arguments = dict(zip(asked._fields, asked, strict=True)) | changed
        return self.of_window(verb, arguments.pop("window"), more_keys, **arguments)

    def _head(
        self,
        verb: Verb[Any],
        slot: str,
        entry: str,
        start: str,
        more_keys: Sequence[str] = (),
        special: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Write the head of a request; what it has in ``special`` goes before the settings."""
        keys = self.keys.in_slot(slot, entry, start)
        given = {**vars(self.settings), **special, "start": start, "member": f"{entry}@{start}"}
        return verb.head([*map(keys.__getitem__, verb.key_names), *more_keys], given)


def member_of(window: WindowKey) -> str:
    """Return the window as open zsets and limits have it."""
    return f"{window.entry}@{format_instant(window.start)}"


_stores: WeakKeyDictionary[Celery, Store] = WeakKeyDictionary()


#: What ``store_of`` returns instead, in a block of ``stores_made_by``.
_instead: Callable[[Celery], Store] | None = None


def store_of(app: Celery) -> Store:
    """Return the app's store, made at its first use; raises SettingError where a setting is wrong.

    Safe to call from several threads: setdefault is one atomic step. No lock: a child that is forked while another
    thread holds one would wait for ever.
    """
    return store_instead(app) or _stores.get(app) or _stores.setdefault(app, Store(Settings.from_app(app)))


def store_instead(app: Celery) -> Store | None:
    """Return the store that is used instead of any other of the app, in a block of ``stores_made_by``; else None."""
    return None if _instead is None else _instead(app)


def new_store(app: Celery) -> Store:
    """Return a store of the caller's own, or the one instead; raises SettingError where a setting is wrong."""
    return store_instead(app) or Store(Settings.from_app(app))


@contextmanager
def stores_made_by(make: Callable[[Celery], Store]) -> Iterator[None]:
    """Let ``store_instead`` return what ``make`` returns, in all threads: for tests of users'."""
    global _instead  # noqa: PLW0603  # one for the process
    before, _instead = _instead, make
    try:
        yield
    finally:
        _instead = before
