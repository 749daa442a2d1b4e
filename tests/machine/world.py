"""What the state machine moves: a real server with a clock of its own, and a broker, beats and executions as data.

Every verb goes through :meth:`World.ask`, which reads the books before and after it and compares them with what the
verb said. The books are what the store holds; what was said is kept here, so that both can be wrong only together.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import redis
from celery.schedules import schedule
from servers import RedisServer, keys_without_expiry

from celery_once_beat.errors import OnceError
from celery_once_beat.rules.balance import balance
from celery_once_beat.settings import Settings
from celery_once_beat.store import model as r
from celery_once_beat.store.codec import read_account, read_members
from celery_once_beat.store.model import EntryAccount
from celery_once_beat.store.verbs import Store
from celery_once_beat.windows import WindowKey

#: Time goes on by whole ticks, in seconds. Valkey's goes on within a millisecond, by how busy the machine is: a run is
#: the same again only if nothing depends on less than a tick.
TICK = 0.1
#: What every limit has on top, in seconds: so that none is reached at a tick.
OFF = 0.04
LEASE = 5.0 + OFF
#: Longer than any run: a message that is older than it may run once more, which is promised nowhere to be refused.
RETENTION = 20 * 86_400.0 + OFF
#: Entry → whether a worker closes its windows.
ENTRIES = {"tracked": True, "other": True, "untracked": False}
#: What each definition's schedule is, by its fingerprint.
DEFINITIONS = {"ten": schedule(timedelta(seconds=10)), "seven": schedule(timedelta(seconds=7))}
_BEGINNING = datetime(2030, 1, 1, 0, 0, 1, tzinfo=timezone.utc)


@dataclass
class Message:
    """One copy of a window's message."""

    window: WindowKey
    retry: int
    tracked: bool


@dataclass
class Execution:
    """One delivery whose begin was granted. ``until``: server time up to which it may trust its lease."""

    message: Message
    owner: str
    fence: int
    until: datetime


@dataclass
class Books:
    """What the store holds of all entries."""

    accounts: dict[str, EntryAccount | None]
    open: set[WindowKey]

    def total(self, entry: str) -> Counter[str]:
        account = self.accounts[entry]
        return Counter(account.counts) + Counter(account.apart) if account else Counter()


@dataclass
class Told:
    """What one verb said that it did: windows that it closed, and how many it counted by outcome."""

    closed: list[tuple[WindowKey, str]] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    entry: str | None = None


class World:
    """One run: made on an empty server whose clock stands at the real time."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        #: The server's time: it stands still between steps, so that the same run is the same in all.
        self.time = _BEGINNING
        self.client = redis.Redis(host="127.0.0.1", port=server.port, decode_responses=True, socket_timeout=60)
        settings = Settings(
            redis_url=server.url(), lease=LEASE, retention=RETENTION, history_size=3,
            claim_lease=10.0 + OFF, publish_timeout=10.0 + OFF, marker_ttl=600.0 + OFF,
        )  # fmt: skip
        self.store = Store(settings, self.client)
        server.stand_still_at(self.time, self.client)
        self.client.flushall()
        self.queue: list[Message] = []
        self.running: list[Execution] = []
        #: The last calls, to be carried out once more, late.
        self.sent: deque[tuple[str, WindowKey | None, Callable[[], Any]]] = deque(maxlen=8)
        #: Window and how often it was backfilled → what closed it.
        self.closings: dict[tuple[WindowKey, int], list[str]] = {}
        self.backfills: Counter[WindowKey] = Counter()
        #: Windows that ended and weren't done, at any time.
        self.owed: set[WindowKey] = set()
        self.fences: Counter[str] = Counter()
        #: The server has lost what it had answered: what closes twice or overlaps after that is excused.
        self.lossy = False
        self.saved: dict[str, tuple[bytes, int]] | None = None
        self.books = self._read()
        #: Entry → the definition that its account is of.
        self._marks: dict[str, str] = {}
        #: The books as the law was checked last.
        self._lawful: Books | None = None

    def close(self) -> None:
        self.store.close()
        self.client.close()
        self.client.connection_pool.disconnect()

    # -- time -------------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        self.time += timedelta(seconds=math.ceil(round(seconds / TICK, 6)) * TICK)
        self.server.stand_still_at(self.time, self.client)
        self.books = self._read()  # a hash may have expired

    # -- the server loses data --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Lose everything."""
        self.client.flushall()
        self._lost()

    def save(self) -> None:
        """Remember all keys as a replica has them that gets no more from now on."""
        with redis.Redis(host="127.0.0.1", port=self.server.port, socket_timeout=60) as client:
            self.saved = {}
            for key in client.scan_iter(count=1000):
                expires_at, value = client.pexpiretime(key), client.dump(key)
                if value is not None:
                    self.saved[key] = (value, expires_at)

    def fail_over(self) -> None:
        """Go on with what was saved: every write since is lost."""
        assert self.saved is not None
        now = int(self.time.timestamp() * 1000)
        with redis.Redis(host="127.0.0.1", port=self.server.port, socket_timeout=60) as client:
            client.flushall()
            for key, (value, expires_at) in self.saved.items():
                if expires_at > now:
                    client.restore(key, expires_at, value, absttl=True)
        self._lost()

    def _lost(self) -> None:
        self.lossy = True
        self.pass_time(1.3)  # until another server takes over

    # -- verbs ------------------------------------------------------------------------------------------------

    def ask(
        self,
        verb: str,
        call: Callable[[], Any],
        told: Callable[[Any, Books, Books], Told],
        *,
        about: WindowKey | None = None,
        twice: bool = False,
    ) -> Any:
        """Send one verb, or the same one twice, as redis-py does where a reply is lost; check what it did."""
        before = self.books
        reply = call()
        if twice:
            again = call()
            assert _same(reply, again), f"{verb} answered {reply}, and sent once more {again}"
        self.books = self._read()
        self.sent.append((verb, about, call))
        self._check(verb, before, told(reply, before, self.books))
        return reply

    def ask_late(self, number: int) -> tuple[Any, WindowKey | None]:
        """A copy of an earlier call reaches the server only now; nobody reads its answer. Returns it, and ``about``."""
        verb, about, call = self.sent[number % len(self.sent)]
        before, reply = self.books, call()
        self.books = self._read()
        gone = before.open - self.books.open
        # A take or a begin may meet a limit now: that is an end like any other, told to nobody.
        outcome = reply.outcome if isinstance(reply, r.Closed) else verb
        for window in gone if not self.lossy else ():
            self._close(window, outcome)
        return reply, about

    def _check(self, verb: str, before: Books, told: Told) -> None:
        for window, outcome in told.closed:
            self._close(window, outcome)
            told.counted[outcome] += ENTRIES[window.entry] and window in before.open
        if self.lossy:
            return  # a claim takes over what run keys say of windows that the cursor had forgotten
        for entry in ENTRIES:
            said = {k: n for k, n in told.counted.items() if n and entry == told.entry}
            change = self._change(before, entry)
            assert change == said, f"{verb} said {said} of {entry!r}, the books changed by {change}"
        gone = before.open - self.books.open
        assert gone <= {window for window, _ in told.closed}, f"{verb} closed {gone}, and said {told.closed}"

    def _change(self, before: Books, entry: str) -> dict[str, int]:
        was, now = before.total(entry), self.books.total(entry)
        return {outcome: now[outcome] - was[outcome] for outcome in was | now if now[outcome] != was[outcome]}

    def ended(self, window: WindowKey) -> list[str]:
        """What has closed this window, since it was backfilled last."""
        return self.closings.get((window, self.backfills[window]), [])

    def _close(self, window: WindowKey, outcome: str) -> None:
        ends = self.closings.setdefault((window, self.backfills[window]), [])
        ends.append(outcome)
        if outcome not in ("done", "untracked"):
            self.owed.add(window)
        assert len(ends) == 1 or self.lossy, f"{window} was closed as {ends}"

    # -- the books --------------------------------------------------------------------------------------------

    def _read(self) -> Books:
        with self.client.pipeline(transaction=False) as pipe:
            for entry in ENTRIES:
                pipe.hgetall(self.store.entry_key(entry))
                pipe.zrange(self.open_key(entry), 0, -1, withscores=True)
            raw = pipe.execute()
        accounts, open_windows = {}, set()
        for entry, fields, members in zip(ENTRIES, raw[::2], raw[1::2], strict=True):
            account = read_account(entry, fields)
            assert not isinstance(account, OnceError), account
            accounts[entry] = account
            found = read_members([member for member, _ in members])
            for each, (member, _) in zip(found, members, strict=True):
                assert each is not None, member
                open_windows.add(each)
                assert member.startswith(f"{entry}@"), member
        return Books(accounts, open_windows)

    def open_key(self, entry: str) -> str:
        return self.store.keys.open(self.store.shard_of(entry))

    def deadlines(self) -> list[float]:
        """Of all open windows, server seconds."""
        members = [self.client.zrange(self.open_key(entry), 0, -1, withscores=True) for entry in ENTRIES]
        return [deadline / 1000 for of_entry in members for _, deadline in of_entry]

    def check_law(self) -> None:
        """Windows that the schedule defines since the definition came in force = outcomes + open."""
        if self.books == self._lawful:
            return
        self._lawful = self.books
        for entry, account in self.books.accounts.items():
            if account is None:
                continue
            mark = self.client.hget(self.store.entry_key(entry), "fingerprint")
            if mark in DEFINITIONS:  # else all beats dropped the entry; what was open still ends
                self._marks[entry] = mark
            result = balance(entry, DEFINITIONS[self._marks[entry]], account)
            assert result.even, result
            starts = {window.start for window in self.books.open if window.entry == entry}
            assert starts == set(account.open), "the open windows of the hash are those of the zset"

    def check_expiry(self) -> None:
        assert not keys_without_expiry(self.server)


def _same(one: Any, other: Any) -> bool:
    """Whether two answers say the same; what was missed is counted, and said, by the first alone."""
    if isinstance(one, (r.Claimed, r.Moved)) and type(one) is type(other):
        return {**vars(one), "missed": 0} == {**vars(other), "missed": 0}
    if one in map(r.Unchanged, ("put off", "waits", "held")):  # what has been put off isn't overdue any more
        return other in (one, r.Unchanged("not overdue"))
    if isinstance(one, r.Closed) and isinstance(other, r.Closed):  # who was called is called again: that costs a copy
        return one.outcome == other.outcome
    return one == other
