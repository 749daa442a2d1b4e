"""Every step of beats, workers, broker and time, in any order, over the real store and a real server.

What holds after each step is in ``world``: the store did what it said and nothing else, no window is closed twice,
two executions overlap only after a lease ran out under a live one. At the end of each run one beat and one worker are
left, and everything gets closed.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from machine.alerts import TOLD, NoticeRules
from machine.beats import Job
from machine.rules import START_TIMEOUT, entries, maybe, nothing, rarely, several
from machine.workers import WorkerRules
from machine.world import DEFINITIONS, ENTRIES, OFF, Told, World

from celery_once_beat.features.orders.store import backfill_many
from celery_once_beat.rules.policy import EntryPolicy
from celery_once_beat.store import model as r
from celery_once_beat.store import raised
from celery_once_beat.windows import WindowKey, starts_after

pytestmark = pytest.mark.long

#: Seconds that pass: the first two within a lease and longer than one.
PASSES = (1.7, 5.7, 11.3, 16.7, 61.9, 613.0, 1307.0)
#: So many windows may be late and still run, of those that catch up.
MOST = 3


#: What differs between runs.
RUNS = {
    "max_attempts": st.integers(1, 3),
    "recover": st.sampled_from([True, True, True, False]),
    "grace": st.sampled_from([None, None, 30.0 + OFF]),
    "expires": st.sampled_from([None, None, 45.0 + OFF]),
    "loses": st.sampled_from([None, None, None, "last writes", "everything"]),
    "told": st.sampled_from(TOLD),
}


class Machine(NoticeRules, WorkerRules):
    """Beats, workers, people, time and loss."""

    @initialize(**RUNS)
    def set_up(self, max_attempts, recover, grace, expires, loses, told):
        self.told = told
        self.begin_telling()
        self.limits = {"max_attempts": max_attempts, "recover": recover, "grace": grace, "overlap": None}
        self.expires = expires
        self.loses = loses
        self.policy = EntryPolicy(
            catch_up="all", max_catch_up=MOST, tolerance=60.0 + OFF, start_timeout=START_TIMEOUT, anchor=None,
            tracked=None, **self.limits,
        )  # fmt: skip
        self.begun: dict[tuple[WindowKey, int], set[int]] = {}
        self.names = 0
        self.beats = [self.new_beat("ten") for _ in range(2)]
        for beat in self.beats:
            for entry in ENTRIES:
                self.load(beat, entry)

    def __init__(self):
        super().__init__()
        self.world = World(_server())

    # -- people -----------------------------------------------------------------------------------------------

    @rule(entry=entries, pause=rarely)
    def pause_or_resume(self, entry, pause):
        self.world.ask("pause", lambda: self.world.store.set_paused(entry, paused=pause), nothing)

    @rule(back=st.integers(-1, 5), twice=maybe)
    def backfill(self, back, twice):
        world = self.world
        account = world.books.accounts["tracked"]
        if account is None:
            return
        definition = DEFINITIONS[self.beats[0].definition]
        minute = timedelta(seconds=60)
        past = list(starts_after(definition, account.cursor - minute, account.cursor))
        ahead = next(starts_after(definition, account.cursor, account.cursor + minute))
        window = WindowKey("tracked", [ahead, *past[::-1]][back + 1])
        order = self.new_name("order")

        def told(reply, *_):
            # What closes it from here on is the end of its next life.
            world.backfills[window] += isinstance(reply, r.Claimed)
            return Told()

        def send():
            return raised(backfill_many(world.store, [(window, order)], world.store.settings.publish_timeout)[0])

        reply = world.ask("backfill", send, told, twice=twice)
        world.sent.clear()  # an order that arrives a day late is a new order
        if isinstance(reply, r.Claimed):
            self.beats[0].jobs.append(Job(window, reply.revision))

    # -- time, network, loss ----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from(PASSES))
    def time_passes(self, seconds):
        self.world.pass_time(seconds)

    @precondition(lambda self: self.world.sent)
    @rule(number=several)
    def an_earlier_call_arrives_once_more(self, number):
        reply, window = self.world.ask_late(number)
        if isinstance(reply, r.Begun):
            # Nobody is there any more: an execution that began and died.
            self.begun.setdefault((window, self.world.backfills[window]), set()).add(reply.fence)
            self.world.fences[window.entry] = max(self.world.fences[window.entry], reply.fence)

    @precondition(lambda self: self.loses == "everything")
    @rule(really=st.integers(0, 5))
    def server_loses_everything(self, really):
        if not really:
            self.world.flush()

    @precondition(lambda self: self.loses == "last writes")
    @rule()
    def replica_falls_behind(self):
        if self.world.saved is None:
            self.world.save()

    @precondition(lambda self: self.loses == "last writes" and self.world.saved is not None)
    @rule()
    def server_loses_its_last_writes(self):
        self.world.fail_over()
        self.world.saved = None

    # -- what holds -------------------------------------------------------------------------------------------

    @invariant()
    def the_law_of_conservation(self):
        self.world.check_law()

    def teardown(self):
        """One beat and one worker are alive: everything gets closed, and the schedule goes on."""
        try:
            if hasattr(self, "beats") and sys.exc_info()[0] is None:
                self.world.check_expiry()
                self.end_well()
        finally:
            self.world.close()

    def end_well(self):
        world = self.world
        self.all_die()
        world.pass_time(17.9)  # the other beats count as gone
        beat = self.new_beat("ten")
        for entry in ENTRIES:
            world.store.set_paused(entry, paused=False)
            self.load(beat, entry)
        for _ in range(200):
            self.take_by(beat)
            self.send_all(beat)
            while world.queue:
                execution = self.begin_by(world.queue.pop())
                if execution:
                    assert isinstance(self.finish_by(execution, "done"), r.Finished)
            deadlines = world.deadlines()
            if not deadlines:
                break
            world.pass_time(max(min(deadlines) - world.time.timestamp(), 1.0))
        assert not world.books.open, f"still open: {world.books.open}"
        self.tell_all()
        if world.books.accounts["tracked"].paused:  # since the last resume, by what ended meanwhile
            if not world.lossy:
                self.check_pause("tracked")
            world.store.set_paused("tracked", paused=False)
        before = world.books.accounts["tracked"]
        self.claim_by(beat, "tracked")
        after = world.books.accounts["tracked"]
        assert before is not None
        assert after is not None
        assert after.cursor > before.cursor, "the schedule goes on"
        world.check_law()


_SERVERS = []


def _server():
    return _SERVERS[-1]


def run_machine(start_redis, runs, seed):
    """So many runs of 50 steps, on a server whose clock they move."""
    _SERVERS.append(start_redis(faketime=0))
    settings = hypothesis.settings(
        max_examples=runs, stateful_step_count=50, deadline=None, derandomize=False, database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    machine = hypothesis.seed(seed)(type("OneRun", (Machine,), {}))
    try:
        hypothesis.stateful.run_state_machine_as_test(machine, settings=settings)
    finally:
        _SERVERS.pop()


@pytest.mark.usefixtures("unmeasured")
def test_some_orders_of_steps(start_redis, request):
    """The promise holds in every order of steps; of these some dozens are tried."""
    run_machine(start_redis, 30, request.config.getoption("seed"))


PARTS = 8


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("part", range(PARTS))
def test_any_order_of_steps(part, start_redis, request):
    """The same for 2,000 of them, or as many as ``--runs`` says."""
    runs = -(-request.config.getoption("runs") // PARTS)
    run_machine(start_redis, runs, request.config.getoption("seed") * PARTS + part)
