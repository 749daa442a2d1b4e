"""People set, pause, delete and set again while beats claim: every order of steps, over a real server.

The log of what was acknowledged says which windows each definition owes: they are computed here. Beats are the
package's own, without their processes: each may read late, be replaced at any moment, and lose its claims' answers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
import redis
from celery import Celery
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from servers import RedisServer

from celery_once_beat.beat.claiming import Claiming
from celery_once_beat.beat.entries import Entries
from celery_once_beat.features.runtime.beat import Defined
from celery_once_beat.features.runtime.store import (
    Changed,
    Conflict,
    delete_definition,
    read_definitions,
    set_definition,
)
from celery_once_beat.schedules import Definition
from celery_once_beat.settings import Settings
from celery_once_beat.store import Begun, Ending, Finished, Store, Taken, Unknown
from celery_once_beat.windows import WindowKey

pytestmark = pytest.mark.long

NAME = "users/42"
BEGINNING = datetime(2030, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
PERIODS = (3, 7, 10)
APP = Celery("proj", broker="memory://", set_as_current=False)
which = st.integers(0, 1)
maybe = st.booleans()


def text_of(period: int, note: int) -> str:
    once = {"catch_up": "all", "tracked": True}
    return Definition.of("t", period, args=(period, note), once=once).text()


class Beat:
    """What a beat knows, and how it claims."""

    def __init__(self, name: str, store: Store, now: Callable[[], datetime]) -> None:
        self.name = name
        self.entries = Entries(name, store.settings, {})
        self.defined = Defined(store, self.entries, APP)
        self.claiming = Claiming(store, self.entries, SimpleNamespace(now=now), name)  # type: ignore[arg-type]


class DefinitionMachine(RuleBasedStateMachine):
    """Two beats, any number of edits of one name."""

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.client = redis.Redis(host="127.0.0.1", port=self.server.port, socket_timeout=60)
        self.time = BEGINNING
        self.server.stand_still_at(self.time, self.client)
        self.client.flushall()
        settings = Settings(
            redis_url=self.server.url(), catch_up="all", max_catch_up=10_000, tolerance=1e6, claim_lease=10.0
        )
        self.store = Store(settings)
        self.names = 0
        self.beats = [self.new_beat(), self.new_beat()]
        #: What was acknowledged: from when on which period and note count; None: nothing, it was deleted.
        self.log: list[tuple[datetime, tuple[int, int] | None]] = []
        self.version = 0
        self.paused = False
        #: Window → the arguments with which it was claimed.
        self.claimed: dict[datetime, tuple[int, int]] = {}
        self.queue: list[datetime] = []
        self.done: set[datetime] = set()
        #: Up to where a deletion took back what wasn't claimed.
        self.taken_back: list[tuple[datetime, datetime]] = []

    def new_beat(self) -> Beat:
        self.names += 1
        return Beat(f"beat{self.names}", self.store, lambda: self.time)

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.end_well()
        finally:
            self.store.close()
            self.client.close()

    def pass_time(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        self.server.stand_still_at(self.time, self.client)

    # -- people

    @property
    def there(self) -> bool:
        return bool(self.log) and self.log[-1][1] is not None

    def acknowledged(self, reply: Any, again: Any, definition: tuple[int, int] | None) -> None:
        """Note a change; sent twice, it says the same."""
        assert isinstance(reply, Changed), reply
        assert (again.version, again.at, again.same) == (reply.version, reply.at, reply.same)
        if reply.same:
            return
        assert reply.version == self.version + 1, "no version is left out, none comes twice"
        self.version = reply.version
        self.log.append((reply.at, definition))

    @rule(period=st.sampled_from(PERIODS), note=st.integers(1, 3), paused=st.sampled_from([None, None, False, True]))
    def set(self, period: int, note: int, paused: bool | None) -> None:
        same = self.there and self.log[-1][1] == (period, note) and paused in (None, self.paused)
        if not self.there:
            self.paused = False
        reply, again = self.twice(lambda: set_definition(self.store, NAME, text_of(period, note), paused=paused))
        assert reply.same == same
        self.acknowledged(reply, again, (period, note))
        self.paused = self.paused if paused is None else paused
        self.pass_time(0.01)

    @rule(off=st.integers(-2, 2), period=st.sampled_from(PERIODS))
    def compare_and_set(self, off: int, period: int) -> None:
        expected = max(self.version + off, 0)
        definition = period, self.names + 100 + self.version
        text = text_of(*definition)
        reply, again = self.twice(lambda: set_definition(self.store, NAME, text, if_version=expected))
        if expected == (self.version if self.there else 0):
            self.paused = self.paused and self.there
            self.acknowledged(reply, again, definition)
        else:
            assert isinstance(reply, Conflict)
            assert again == reply
            assert (reply.current.version if reply.current else 0) == (self.version if self.there else 0)
        self.pass_time(0.01)

    @rule(pause=maybe)
    def pause_or_resume(self, pause: bool) -> None:
        reply, again = (self.store.set_paused(NAME, paused=pause) for _ in range(2))
        assert again == reply
        assert not (self.there and isinstance(reply, Unknown))
        if self.there and pause != self.paused:
            self.paused = pause
            self.version += 1
        self.pass_time(0.01)

    @rule()
    def delete(self) -> None:
        reply, again = self.twice(lambda: delete_definition(self.store, NAME))
        if not self.there:
            assert reply == again == Unknown()
            return
        last = max(self.claimed, default=self.log[0][0])
        self.acknowledged(reply, again, None)
        self.taken_back.append((last, reply.at))
        self.paused = False
        self.pass_time(0.01)

    def twice(self, send: Callable[[], Any]) -> tuple[Any, Any]:
        """Send a change, and once more as if its answer had been lost."""
        self.names += 1
        call = f"call{self.names}"
        self.store.new_call = lambda: call  # type: ignore[method-assign]
        replies = send(), send()
        del self.store.new_call
        return replies

    # -- beats

    @rule(of=which)
    def look(self, of: int) -> None:
        beat = self.beats[of]
        beat.defined.sweep()
        beat.claiming.load([each.name for each in self.beats])

    @rule(of=which, answered=st.sampled_from([True, True, True, False]))
    def claim(self, of: int, answered: bool) -> None:
        """A beat claims what it thinks is due; if it dies right then, the windows are recovered."""
        beat = self.beats[of]
        for _ in range(5):
            claims = beat.claiming.claim({}, self.time)
            for job in claims.won:
                args = tuple(job.entry.source.args)
                assert job.start not in self.claimed, "claimed once"
                assert job.start <= self.time, "none is early"
                assert self.owed().get(job.start) == args, "none but those of the definition of its time"
                self.claimed[job.start] = args
                if answered:
                    self.queue.append(job.start)
            if not claims.won:
                break
        if not answered:
            self.beats[of] = self.new_beat()

    @rule(of=which)
    def beat_dies(self, of: int) -> None:
        self.beats[of] = self.new_beat()

    @rule(seconds=st.sampled_from([0.3, 1.1, 4.7, 16.3]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(of=which)
    def recover(self, of: int) -> None:
        """What a dead beat had claimed is taken, by the definition of its time; also of a deleted entry."""
        beat = self.beats[of]
        self.look(of)
        for shard in self.store.overdue(beat.name, self.time, 100).shards:
            for window in shard:
                entry = beat.entries.get(window.entry)
                if entry is None:
                    deleted, there = beat.defined.find([window.entry])
                    assert not there
                    entry = deleted[window.entry]
                (reply,) = self.store.take_many(beat.name, [(window, entry.fingerprint)])
                if isinstance(reply, Taken):
                    assert tuple(entry.by(window.start).source.args) == self.claimed[window.start]
                    self.queue.append(window.start)

    @rule()
    def work(self) -> None:
        """A worker executes what waits; copies are refused."""
        for start in self.queue:
            window = WindowKey(NAME, start)
            self.names += 1
            begun = self.store.begin(window, f"worker{self.names}", 30.0)
            if isinstance(begun, Begun):
                assert start not in self.done, "done once"
                assert isinstance(
                    self.store.finish(Ending(window, f"worker{self.names}", begun.fence, "done")), Finished
                )
                self.done.add(start)
        self.queue.clear()

    # -- what holds

    def owed(self) -> dict[datetime, tuple[int, int]]:
        """Each window up to now, with the arguments of the definition of its time."""
        windows = {}
        until = [at for at, _ in self.log[1:]] + [self.time]
        for (since, definition), end in zip(self.log, until, strict=False):
            if definition is None:
                continue
            step = timedelta(seconds=definition[0])
            start = EPOCH + ((since - EPOCH) // step + 1) * step
            while start <= end:
                windows[start] = definition
                start += step
        return windows

    @invariant()
    def the_store_knows_what_was_acknowledged(self) -> None:
        (known,) = read_definitions(self.store, [NAME])
        if not self.log:
            assert known is None
            return
        assert known is not None
        assert (known.version, known.deleted) == (self.version, not self.there)  # type: ignore[union-attr]
        if self.there:
            assert known.text == text_of(*self.log[-1][1])  # type: ignore[union-attr, misc]
            assert known.paused == self.paused  # type: ignore[union-attr]

    def end_well(self) -> None:
        """One beat and one worker live: every window that some version owed is done."""
        self.store.set_paused(NAME, paused=False)
        self.beats = [self.new_beat(), self.new_beat()]
        self.pass_time(20)
        for _ in range(60):
            self.look(0)
            self.claim(0, answered=True)
            self.recover(0)
            self.work()
            self.pass_time(1)
        owed = self.owed()
        missing = [
            start
            for start in owed
            if start not in self.done
            and start < self.time - timedelta(seconds=5)
            and not any(last < start <= at for last, at in self.taken_back)
        ]
        assert not missing, f"not done: {missing}, of {self.log}"
        assert self.done <= owed.keys()


def run(start_redis: Callable[..., RedisServer], runs: int, seed: int) -> None:
    settings = hypothesis.settings(
        max_examples=runs, stateful_step_count=40, deadline=None, derandomize=False, database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    made = type("Machine", (DefinitionMachine,), {"server": start_redis(faketime=0)})
    hypothesis.stateful.run_state_machine_as_test(hypothesis.seed(seed)(made), settings=settings)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("part", range(2))
def test_some_orders_of_edits(part: int, start_redis: Callable[..., RedisServer], request: Any) -> None:
    """Nothing is claimed twice, early, or by a definition after its successor; what was owed is done."""
    run(start_redis, 25, request.config.getoption("seed") * 2 + part)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("part", range(4))
def test_any_order_of_edits(part: int, start_redis: Callable[..., RedisServer], request: Any) -> None:
    """The same for half as many as ``--runs`` says."""
    run(start_redis, request.config.getoption("runs") // 8, request.config.getoption("seed") * 4 + part)
