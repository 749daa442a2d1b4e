"""One entry of a store and one window of it: every verb, and every state in which the window can be.

Garbage, rights and the table of states and verbs are tested by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from operator import methodcaller
from typing import Any

import redis
from celery.schedules import schedule

from celery_once_beat.contrib.django.row_store import mark_spent
from celery_once_beat.errors import OnceError
from celery_once_beat.features.alerts.store import take_alerts
from celery_once_beat.features.orders.store import abandon_many, backfill_many, republish_many
from celery_once_beat.features.reserved.store import receive_many
from celery_once_beat.rules import EntryPolicy, count_starts
from celery_once_beat.settings import Settings
from celery_once_beat.store import Ending, Store, raised, shard_of
from celery_once_beat.store import model as r
from celery_once_beat.windows import WindowKey, format_instant

MINUTE = timedelta(minutes=1)
EVERY_MINUTE = schedule(60)
#: The first cursor of every entry here: an instant of the grid, long ago, so that nothing hangs on the time of day.
T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
ENTRY = "nightly"
MARK = "fingerprint-1"
#: The queue of all messages.
QUEUE = "by night"
#: Who has them reserved.
HOLDER = "celery@a:0:1"

# Seconds, each of another size, so that a deadline says where it comes from.
CLAIM = 5.0
PUBLISH = 10.0
START = 600.0
LEASE = 30.0
DELAY = 60.0
MARGIN = 1.0


def nth(number: int) -> datetime:
    """The start of the entry's window ``number``, counted from 1 after the first cursor."""
    return T0 + number * MINUTE


def in_ms(instant: datetime) -> int:
    """An instant as the server counts: whole milliseconds."""
    return (instant - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)


class Stage:
    """One entry of one store, and the one window of it that a test speaks of. Verbs go through the store."""

    def __init__(self, url: str, **settings: Any) -> None:
        settings = {"key_prefix": "once:", "claim_lease": CLAIM, "publish_timeout": PUBLISH, **settings}
        self.url = url
        self.store = Store(Settings(redis_url=url, **settings))
        self.raw = redis.Redis.from_url(url, decode_responses=True)
        self.start = nth(1)
        self.revision = 1
        self.fences: dict[str, int] = {}

    def close(self) -> None:
        self.store.close()
        self.raw.close()

    # -- verbs

    @property
    def window(self) -> WindowKey:
        return WindowKey(ENTRY, self.start)

    def load(self, beat: str = "beat-1", mark: str = MARK, entry: str = ENTRY, **given: Any) -> Any:
        limits = {"max_attempts": 3, "recover": True, "grace": None}
        limits |= {field.name: given.pop(field.name) for field in fields(EntryPolicy) if field.name in given}
        if "alive" in given:
            self.live(*given.pop("alive"))
        said = {"ttl": 86_400.0, "known": T0, **given}
        request = r.LoadRequest(entry, beat, mark, policy=EntryPolicy(**limits), **said)
        return self.store.load_many([request])[0]

    def unload(self, beat: str = "beat-1", mark: str = MARK, alive: Sequence[str] = ()) -> Any:
        self.live(*alive)
        return self.store.unload_many(beat, [(ENTRY, mark)])[0]

    def take_alerts(self, most: int = 100) -> Any:
        return take_alerts(self.store, [shard_of(ENTRY)], most)

    def spent(self, edited: datetime = T0, now: datetime = T0, **given: Any) -> Any:
        return mark_spent(self.store, given.pop("entry", ENTRY), given.pop("since", T0), edited, now, **given)

    def claim(self, beat: str = "beat-1", start: datetime | None = None, since: datetime = T0, **given: Any) -> Any:
        window = WindowKey(given.pop("entry", ENTRY), start or self.start)
        mark = given.pop("mark", MARK)
        reply = self.store.claim_many(beat, [r.ClaimRequest(window, since, mark, **given)])[0]
        if isinstance(reply, r.Claimed):
            self.revision = reply.revision
        return reply

    def claim_nth(self, number: int) -> None:
        """Claim this window of the entry, from the cursor at the one before; it is what the test speaks of from now."""
        self.start = nth(number)
        assert isinstance(self.claim(since=nth(number - 1)), r.Claimed)

    def confirm(
        self, published: str = r.Published.SENT, wait: float = START, revision: int | None = None, queue: str = QUEUE
    ) -> Any:
        of = r.Confirmation(self.window, revision or self.revision, published, wait, queue)
        return self.store.confirm_many([of])[0]

    def astray(self) -> Any:
        return self.confirm(r.Published.ASTRAY)

    def take(self, beat: str = "beat-2", mark: str = MARK, consumed: Iterable[str] | None = None) -> Any:
        reply = self.store.take_many(beat, [(self.window, mark)], consumed)[0]
        if isinstance(reply, r.Taken):
            self.revision = reply.revision
        return reply

    def recover(self, beat: str = "beat-2", **given: Any) -> Any:
        """The window is overdue, and a beat takes it."""
        self.overdue()
        taken = self.take(beat, **given)
        assert isinstance(taken, r.Taken), taken
        return taken

    def begin(self, owner: str = "A", retry: int = 0, lease: float = LEASE, **more: Any) -> Any:
        reply = self.store.begin(self.window, owner, lease, retry, **more)
        if isinstance(reply, r.Begun):
            self.fences[owner] = reply.fence
        return reply

    def receive(self, retry: int = 0, holder: str = HOLDER) -> Any:
        return receive_many(self.store, [(self.window, retry, LEASE, holder)])[0]

    def renew(self, owner: str = "A") -> Any:
        return self.store.renew_many([r.Renewal(self.window, owner, self.fences.get(owner, 1), LEASE, True)])[0]

    def hand_over(self, owner: str = "A", retry: int = 1, delay: float = DELAY) -> Any:
        return self.store.hand_over(self.window, owner, self.fences.get(owner, 1), retry, delay)

    def finish(self, owner: str = "A", outcome: str = "done", again_after: float | None = None, **given: Any) -> Any:
        return self.store.finish(Ending(self.window, owner, self.fences.get(owner, 1), outcome, again_after, **given))

    def execute(self, owner: str = "A", outcome: str = "done", **given: Any) -> None:
        """Begin the window, and end it."""
        assert isinstance(self.begin(owner), r.Begun)
        assert self.finish(owner, outcome, **given) == (r.Again() if "again_after" in given else r.Finished())

    def discard(self, outcome: str = "expired", retry: int = 0, owner: str = "P") -> Any:
        return self.store.close_window(self.window, owner, outcome, retry)

    def backfill(self, beat: str = "cli") -> Any:
        reply = raised(backfill_many(self.store, [(self.window, beat)], PUBLISH)[0])
        if isinstance(reply, r.Claimed):
            self.revision = reply.revision
        return reply

    def republish(self) -> Any:
        return republish_many(self.store, [(self.window, "cli")])[0]

    def abandon(self, order: str = "cli", *, running: bool = False) -> Any:
        return abandon_many(self.store, [(self.window, order)], running=running)[0]

    def reach(self, state: str) -> None:
        """Bring the window into one of the :data:`STATES`."""
        before, step = _STEPS[state]
        if before:
            self.reach(before)
        assert step(self) is not False, state

    # -- what passes by itself

    def lapse(self) -> None:
        """The window's lease, its wait or its done marker runs out."""
        assert self.raw.delete(self.run_key) == 1

    def postpone(self, others: Sequence[str], beat: str = "beat-9", why: str = "unknown") -> list[Any]:
        self.live(*others)
        return self.store.postpone_many(beat, [(self.window, why)], 60.0)

    def live(self, *beats: str) -> None:
        """These beats have said in the entry's shard that they live, and no others."""
        if set(self.raw.zrange(self.beats_key, 0, -1)) != {*beats}:
            self.raw.delete(self.beats_key)
            self.silent(0.0, *beats)

    def silent(self, seconds: float, *beats: str) -> None:
        """These beats said so long ago that they live."""
        for beat in beats:
            self.raw.zadd(self.beats_key, {beat: self.now() - round(seconds * 1000)})
            self.raw.expire(self.beats_key, 600)

    def overdue(self, seconds: float = 0.001) -> None:
        """The window's deadline has passed by so much, if it has one."""
        self.raw.zadd(self.open_key, {self.member: self.now() - round(seconds * 1000)}, xx=True)

    # -- what the server holds

    @property
    def shard(self) -> str:
        return self.store.entry_key(ENTRY).partition("}:")[0] + "}:"

    @property
    def shard_number(self) -> int:
        return shard_of(ENTRY)

    @property
    def open_key(self) -> str:
        return self.shard + "open"

    @property
    def beats_key(self) -> str:
        return self.shard + "beats"

    @property
    def member(self) -> str:
        return f"{ENTRY}@{format_instant(self.start)}"

    @property
    def run_key(self) -> str:
        return f"{self.shard}run:{ENTRY}:{format_instant(self.start)}"

    @property
    def history_key(self) -> str:
        return f"{self.shard}history:{ENTRY}"

    @property
    def entry_key(self) -> str:
        return self.store.entry_key(ENTRY)

    def all_keys(self) -> list[str]:
        """All keys of the server."""
        return sorted(self.raw.scan_iter(count=1000))

    def now(self) -> int:
        """The server's time, ms."""
        seconds, micro = self.raw.time()
        return seconds * 1000 + micro // 1000

    def deadline(self) -> float | None:
        return self.raw.zscore(self.open_key, self.member)

    def state(self) -> str:
        """The window's state as anyone may read it: its run key first, then ``open``, then the cursor."""
        run = self.raw.get(self.run_key)
        if run is not None and not run.startswith("done:"):
            kind, number, owner = run.split(":", 2)
            return f"running {owner}" if kind == "run" else f"waiting {number}"
        if self.deadline() is not None:
            return "open"
        account = self.store.account(ENTRY)
        if run is not None or (account and account.born < self.start <= account.cursor):
            return "closed"
        return "unseen" if account else "unknown"

    def open_windows(self) -> dict[datetime, bool]:
        """Start of each open window → whether it is a backfill."""
        return {start: window.backfill for start, window in self.store.account(ENTRY).open.items()}

    def counts(self) -> dict[str, int]:
        """Windows by outcome, for the conservation law."""
        return self.store.account(ENTRY).counts

    def apart(self) -> dict[str, int]:
        """Outcomes outside the law."""
        return self.store.account(ENTRY).apart

    def even(self) -> bool:
        """Whether the conservation law holds."""
        account = self.store.account(ENTRY)
        return account.accounted == count_starts(EVERY_MINUTE, account.since, account.cursor)


def _overdue_take(stage: Stage, consumed: Iterable[str] | None = (QUEUE, "other")) -> Any:
    stage.overdue()
    return stage.take(consumed=consumed)


def _wait_for_turn(stage: Stage) -> bool:
    stage.load(overlap="buffer_all")
    stage.reach("published")
    other = WindowKey(ENTRY, nth(2))
    request = r.ClaimRequest(other, nth(1), MARK)
    assert isinstance(stage.store.claim_many("beat-1", [request])[0], r.Claimed)
    begun = stage.store.begin(other, "H", LEASE)
    assert isinstance(begun, r.Begun)
    stage.fences["H"] = begun.fence
    return stage.begin("A") == r.Waits(other.start)


def _end_other(stage: Stage) -> bool:
    return stage.store.finish(Ending(WindowKey(ENTRY, nth(2)), "H", stage.fences["H"], "done")) == r.Finished()


#: Of each state the one before it, and the step to it; a step that isn't made says False.
_STEPS: dict[str, tuple[str, Callable[[Stage], Any]]] = {
    "unseen": ("", lambda s: None),
    "claimed": ("", lambda s: isinstance(s.claim(), r.Claimed)),
    "published": ("claimed", lambda s: s.confirm() == r.Confirmed()),
    "running": ("published", lambda s: isinstance(s.begin("A"), r.Begun)),  # by A
    "died": ("running", Stage.lapse),  # begun by A; its lease ran out
    "taken": ("died", lambda s: isinstance(_overdue_take(s, None), r.Taken)),  # as before; beat-2 published it again
    "followed": ("taken", lambda s: isinstance(s.begin("B"), r.Begun)),  # as before, and B runs it now
    "waiting": ("running", lambda s: s.hand_over("A", 1) == r.HandedOver()),  # A handed it over to retry 1
    "due again": ("waiting", Stage.lapse),  # as before, and the wait is over
    "again": ("running", lambda s: s.finish("A", "failed", DELAY) == r.Again()),  # A failed; it is to run again later
    "again, taken": ("again", lambda s: isinstance(_overdue_take(s, None), r.Taken)),  # as before, published by beat-2
    "closed": ("running", lambda s: s.finish("A") == r.Finished()),  # done by A
    "long closed": ("closed", Stage.lapse),  # as before, and the done marker is gone
    "ahead": ("", lambda s: isinstance(s.begin("A"), r.Begun)),  # the cursor is behind: the store lost its last writes
    "before": ("", lambda s: setattr(s, "start", T0 - MINUTE)),  # at or before the cursor that the entry was born with
    "lost": ("running", lambda s: s.raw.flushall()),  # A ran it when the store lost everything
    "waits turn": ("", _wait_for_turn),  # it waits for H, which runs the entry's next window
    "its turn": ("waits turn", _end_other),  # as before, and H has ended: it is overdue
    "waits slot": (  # its limit has no slot for it
        "published", lambda s: s.store.begin(s.window, "A", LEASE, no_slot="reports") == r.Waits(None)
    ),
}  # fmt: skip
STATES: dict[str, Callable[[Stage], None]] = {state: methodcaller("reach", state) for state in _STEPS}

VERBS: dict[str, Callable[[Stage], Any]] = {
    "claim": lambda s: s.claim("beat-1"),
    "claim, beat-2": lambda s: s.claim("beat-2"),
    "confirm": lambda s: s.confirm(),
    "unconfirm": lambda s: s.confirm(r.Published.UNSURE),
    "not yet": lambda s: s.confirm(r.Published.NOT_YET),
    "astray": lambda s: s.astray(),
    "take": lambda s: s.take(),
    "take overdue": _overdue_take,
    "take unconsumed": lambda s: _overdue_take(s, ["other", f"not {QUEUE}"]),
    "receive, n=0": lambda s: s.receive(0),
    "receive, n=1": lambda s: s.receive(1),
    "begin A": lambda s: s.begin("A"),
    "begin B": lambda s: s.begin("B"),
    "begin B, n=1": lambda s: s.begin("B", 1),
    "begin B, n=2": lambda s: s.begin("B", 2),
    "renew A": lambda s: s.renew("A"),
    "renew B": lambda s: s.renew("B"),
    "hand over A": lambda s: s.hand_over("A", 1),
    "hand over A, n=2": lambda s: s.hand_over("A", 2),
    "hand over B": lambda s: s.hand_over("B", 1),
    "finish A": lambda s: s.finish("A"),
    "finish B": lambda s: s.finish("B"),
    "finish A, again": lambda s: s.finish("A", "failed", DELAY),
    "revoke A": lambda s: s.finish("A", "revoked"),
    "expired, n=0": lambda s: s.discard("expired", 0),
    "expired, n=1": lambda s: s.discard("expired", 1),
    "unknown, n=0": lambda s: s.store.close_window(s.window, "?", "unknown", 0),
    "unknown, n=1": lambda s: s.store.close_window(s.window, "?", "unknown", 1),
    "backfill": lambda s: s.backfill(),
    "abandon": lambda s: s.abandon(),
    "abandon running": lambda s: s.abandon(running=True),
    "republish": lambda s: s.republish(),
}


def answer_or_error(call: Callable[[], Any]) -> Any:
    """A call's reply, or the error that it raised."""
    try:
        return call()
    except OnceError as exc:
        return exc
