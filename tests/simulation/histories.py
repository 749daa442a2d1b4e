"""Random histories: calls of all verbs of a real store, sensible ones and others, on a server whose clock stands.

Many entries at a time, one history each: time passes for all of them at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import redis
from servers import RedisServer
from simulation.recorder import Line, recorded

from celery_once_beat.features.orders.store import abandon_many, backfill_many
from celery_once_beat.features.reserved.store import receive_many
from celery_once_beat.features.runtime import store as definitions
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.settings import Settings
from celery_once_beat.store import ClaimRequest, Confirmation, Ending, LoadRequest, Renewal, Store, raised
from celery_once_beat.store import model as r
from celery_once_beat.windows import WindowKey

#: Calls of a history.
LENGTH = 32
#: How many go side by side.
_AT_ONCE = 40
LEASE = 5.04
_BEGINNING = datetime(2030, 1, 1, tzinfo=timezone.utc)
_PASSES = (0.3, 1.7, 5.7, 11.3, 61.9, 613.0)
_BEATS = ("beat-1", "beat-2")
_OWNERS = ("w1:1", "w1:2", "w2:1", "w3:1")
#: How often each is called, while the entry has windows that are owed; and else.
_VERBS = {
    "claim": 2, "confirm": 5, "take": 7, "receive": 2, "begin": 9, "renew": 5, "hand_over": 3, "finish": 3.5,
    "close": 1, "discarded": 1, "backfill": 0.7, "abandon": 0.5, "postpone": 0.7,
    "pause": 0.2, "load": 0.4, "unload": 0.1, "define": 0.3, "delete": 0.1, "several": 0.5, "take_all": 2,
}  # fmt: skip
_FIRST = {"claim": 8, "several": 2, "load": 1, "begin": 1, "backfill": 1, "take": 0.5, "finish": 0.5, "pause": 0.2}


class History:
    """One entry, and what its beats and workers were told of it last."""

    def __init__(self, store: Store, entry: str, since: datetime, rng: random.Random) -> None:
        self.store, self.entry, self.since, self.rng = store, entry, since, rng
        #: The definition that beats have, and whether it was set at run time.
        self.loaded, self.stored = "ten", False
        self.limits = EntryPolicy(
            max_attempts=rng.randint(1, 3), recover=rng.random() < 0.8, grace=rng.choice([None, None, 30.04]),
            retry_failed_after=rng.choice([None, None, 0.0, 20.04]), overlap=rng.choice([None, None, "allow", "skip"]),
        )  # fmt: skip
        self.expires = rng.choice([None, None, 45.04])
        self.cursors = dict.fromkeys(_BEATS, 0)
        #: Of windows that were claimed; those of them that ended.
        self.revisions: dict[int, int] = {}
        self.ended: set[int] = set()
        self.fences: dict[tuple[int, str], int] = {}
        self.retries: dict[int, int] = {}
        self.orders = 0
        self.load("beat-1")
        self.load("beat-2")

    def call(self) -> None:
        """Make one call."""
        owed = [at for at in self.revisions if at not in self.ended]
        self.at = self.rng.choice([*owed, *owed, *owed, self.rng.choice((0, 1, 2, 3))])
        verbs = _VERBS if owed else _FIRST
        verb = self.rng.choices([*verbs], [*verbs.values()])[0]
        reply = getattr(self, verb)()
        if isinstance(reply, r.Finished) or (isinstance(reply, r.Closed) and reply.outcome):
            self.ended.add(self.at)

    def window(self, number: int | None = None) -> WindowKey:
        return WindowKey(self.entry, self.since + timedelta(seconds=10) * (self.at if number is None else number))

    @property
    def beat(self) -> str:
        return self.rng.choice(_BEATS)

    @property
    def owner(self) -> str:
        """Mostly who was told last that it has the window."""
        known = [owner for at, owner in self.fences if at == self.at]
        return self.rng.choice([*known, *known, *known, self.rng.choice(_OWNERS)])

    @property
    def mark(self) -> str:
        return self.loaded if self.rng.random() < 0.97 else "seven"

    @property
    def retry(self) -> int:
        known = self.retries.get(self.at, 0)
        return self.rng.choice([known, known, known, 0, known + 1])

    def fence(self, owner: str) -> int:
        """Mostly its last begin's."""
        return self.fences.get((self.at, owner), 1) - (self.rng.random() < 0.1)

    def live(self, beats: Sequence[str]) -> None:
        """Of the beats these live, and no others."""
        for beat in _BEATS:
            (self.store.heartbeat if beat in beats else self.store.leave)(beat)

    # -- verbs ------------------------------------------------------------------------------------------------

    def load(self, beat: str = "", mark: str = "") -> None:
        beat = beat or self.beat
        self.live(self.rng.choice([_BEATS, (beat,)]))
        request = LoadRequest(
            self.entry, beat, mark or self.mark, 30 * 86_400.0, self.limits, known=self.window(0).start,
            loaded_at=0 if self.rng.random() < 0.7 else 1, stored=self.stored,
        )  # fmt: skip
        if isinstance(self.store.load_many([request])[0], r.Loaded):
            self.loaded = request.fingerprint

    def define(self) -> None:
        """Mostly beats see it at once."""
        text = f'{{"every": {self.rng.choice((1, 1, 1, 2))}}}'
        raised(definitions.set_many(self.store, [definitions.SetRequest(self.entry, text, paused=False)])[0])
        self.see_definition()

    def delete(self) -> None:
        raised(definitions.delete_many(self.store, [self.entry])[0])
        self.see_definition()

    def see_definition(self) -> None:
        found = definitions.read_definitions(self.store, [self.entry])[0]
        if isinstance(found, definitions.StoredDefinition) and self.rng.random() < 0.8:
            self.stored = not found.deleted
            self.loaded = found.fingerprint if self.stored else "ten"
            self.load("beat-1", self.loaded)

    def unload(self) -> None:
        self.live(self.rng.choice([_BEATS, ()]))
        self.store.unload_many(self.beat, [(self.entry, self.mark)])

    def claim(self) -> None:
        beat = self.beat
        known = self.cursors[beat]
        if self.rng.random() < 0.15:
            known = max(self.at - 1, 0)
        leap = self.rng.choice([1, 1, 1, 1, 2])
        self.at = known + leap
        mode = self.rng.choice(["run"] * 8 + ["pass", "untracked"])
        passed = range(known + 1, self.at + (mode == "pass"))
        missed = [self.window(number).start for number in passed]
        request = ClaimRequest(
            self.window(), self.window(known).start, self.mark, mode, self.expires, missed, len(missed)
        )
        reply = self.store.claim_many(beat, [request])[0]
        if isinstance(reply, r.Claimed):
            self.cursors[beat] = self.at
            self.revisions[self.at] = reply.revision
        elif isinstance(reply, r.Moved):
            self.cursors[beat] = round((reply.cursor - self.since) / timedelta(seconds=10))

    def confirm(self) -> Any:
        revision = self.rng.choice([self.revisions.get(self.at, 1)] * 4 + [self.rng.randint(1, 5)])
        said = self.rng.choice([1, 1, 0, -1, 3, 3, 2] if self.rng.random() < 0.5 else [1])
        return self.store.confirm_many(
            [Confirmation(self.window(), revision, r.Published(said), self.rng.choice([20.04, 600.04]), self.queue())]
        )[0]

    def queue(self) -> str | None:
        return self.rng.choice([None, "q", "by night"])

    def take(self) -> Any:
        consumed = self.rng.choice([None, [], ["q"], ["x", "by night"]])
        reply = self.store.take_many(self.beat, [(self.window(), self.mark)], consumed)[0]
        if isinstance(reply, r.Taken):
            self.revisions[self.at], self.retries[self.at] = reply.revision, reply.retry
        return reply

    def several(self) -> None:
        """A few windows in a row whose messages go out: a queue that nobody consumes."""
        for _ in range(3):
            self.claim()
            self.confirm()

    def take_all(self) -> None:
        for number in sorted(self.revisions):
            self.at = number
            self.take()

    def postpone(self) -> None:
        self.live(self.rng.choice([(), _BEATS]))
        self.store.postpone_many(self.beat, [(self.window(), self.rng.choice(["unknown", "untracked"]))], 60.04)

    def backfill(self) -> None:
        self.orders += self.rng.random() < 0.7
        order = self.window(), f"order-{self.orders}"
        reply = raised(backfill_many(self.store, [order], self.store.settings.publish_timeout)[0])
        if isinstance(reply, r.Claimed):
            self.revisions[self.at] = reply.revision
            self.ended.discard(self.at)

    def abandon(self) -> Any:
        order = f"order-{self.orders}"
        return abandon_many(self.store, [(self.window(), order)], running=self.rng.random() < 0.3)[0]

    def pause(self) -> None:
        self.store.set_paused(self.entry, paused=self.rng.random() < 0.3)

    def receive(self) -> None:
        receive_many(self.store, [(self.window(), self.retry, LEASE, "celery@a:0:1")])

    def begin(self) -> Any:
        owner, tracked = self.rng.choice([self.owner, *_OWNERS]), self.rng.random() < 0.93
        reply = self.store.begin(self.window(), owner, LEASE, self.retry, tracked=tracked)
        if isinstance(reply, r.Begun):
            self.fences[self.at, owner] = reply.fence
        return reply

    def renew(self) -> None:
        owner = self.owner
        self.store.renew_many([Renewal(self.window(), owner, self.fence(owner), LEASE, self.rng.random() < 0.93)])

    def hand_over(self) -> None:
        owner, retry = self.owner, self.retry
        retry += 1
        reply = self.store.hand_over(
            self.window(), owner, self.fence(owner), retry, self.rng.choice([0.0, 2.04, 100.04]),
            tracked=self.rng.random() < 0.93,
        )  # fmt: skip
        if isinstance(reply, r.HandedOver):
            self.retries[self.at] = retry

    def finish(self) -> Any:
        owner = self.owner
        fence = self.fence(owner)
        if self.rng.random() < 0.2:  # its main process knows the delivery alone
            owner, fence = owner.partition(":")[0], 0
        outcome = self.rng.choice(["done", "done", "failed", "revoked"])
        again = self.rng.choice([None, 0.0, 30.04]) if outcome == "failed" else None
        return self.store.finish(Ending(self.window(), owner, fence, outcome, again, tracked=self.rng.random() < 0.93))

    def close(self) -> Any:
        return self.store.close_window(self.window(), "main-1", self.rng.choice(["expired", "revoked"]), self.retry)

    def discarded(self) -> None:
        self.store.discarded(self.window(), self.retry)


def write_histories(server: RedisServer, number: int, seed: int, write: Callable[[Line], object]) -> int:
    """Write so many; returns how many calls that were."""
    rng, written, calls = random.Random(seed), 0, 0
    client = redis.Redis(host="127.0.0.1", port=server.port, socket_timeout=60)
    settings = Settings(
        redis_url=server.url(), lease=LEASE, retention=86_400.04, history_size=1, claim_lease=10.04,
        publish_timeout=10.04, marker_ttl=600.04, start_timeout=600.04,
    )  # fmt: skip
    store = Store(settings)
    time = _BEGINNING + timedelta(days=1)

    def count(line: Line) -> None:
        nonlocal calls
        calls += 1
        write(line)

    try:
        with recorded(store, count):
            while written < number:
                time += timedelta(days=1)
                server.stand_still_at(time, client)
                client.flushall()
                write({"command": "FLUSHALL", "at": [0, 0]})
                since = time - timedelta(seconds=20)
                some = min(_AT_ONCE, number - written)
                histories = [History(store, f"e{written + each}", since, rng) for each in range(some)]
                written += some
                loses = rng.choice(["nothing", "nothing", "last writes", "everything"])
                saved_at, lost_at = sorted(rng.sample(range(LENGTH), 2))
                saved: dict[bytes, Any] = {}
                for turn in range(LENGTH):
                    if loses == "last writes" and turn == saved_at:
                        saved = _save(client)
                        write({"command": "save", "at": [0, 0]})
                    if turn == lost_at and loses != "nothing":
                        _fail_over(client, saved if loses == "last writes" else {}, time)
                        write({"command": "fail over" if loses == "last writes" else "FLUSHALL", "at": [0, 0]})
                    if rng.random() < 0.4:
                        time += timedelta(seconds=rng.choice(_PASSES))
                        server.stand_still_at(time, client)
                    for history in histories:
                        history.call()
    finally:
        store.close()
        client.close()
    return calls


def _save(client: redis.Redis) -> dict[bytes, Any]:
    keys = list(client.scan_iter(count=10_000))
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.dump(key)
        pipeline.execute_command("PEXPIRETIME", key)
    found = pipeline.execute()
    return dict(zip(keys, zip(found[::2], found[1::2], strict=True), strict=True))


def _fail_over(client: redis.Redis, saved: dict[bytes, Any], time: datetime) -> None:
    client.flushall()
    pipeline = client.pipeline(transaction=False)
    for key, (value, expires) in saved.items():
        if value is not None and (expires < 0 or expires > time.timestamp() * 1000):
            pipeline.restore(key, max(expires, 0), value, absttl=expires > 0)
    pipeline.execute()
