"""Rules: windows that wait for each other, and for a place of a limit.

What a worker does with one copy of a message, and whoever publishes what is called, stops after each of its steps: it
may go on an hour later, or never. What holds is read from the store before and after each verb, also after one that
arrives late; which window goes next, and who has a place, is decided here once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from machine.rules import START_TIMEOUT, Rules, maybe, nothing, rarely, several
from machine.world import ENTRIES, LEASE, TICK, Execution, Message, Told, World

from celery_once_beat.store import model as r
from celery_once_beat.store.model import Confirmation, Renewal
from celery_once_beat.store.verbs import place_length
from celery_once_beat.windows import WindowKey, format_instant, parse_instant

__all__ = ("LIMIT", "OVERLAPS", "Places", "Turns", "WaitingRules", "WaitingWorld")

LIMIT = "reports"
#: What an entry, or a task, may say of windows that come while another one runs.
OVERLAPS = ("allow", "skip", "buffer_one", "buffer_one", "buffer_all", "buffer_all")
TURN, PLACE = 4, 5
#: Seconds for which one that died keeps newer ones of its entry from beginning, at least.
PATIENCE = 60.0
#: Seconds for which a place is kept for a window that was called, and after which it is called again.
KEPT_FOR, CALLED_AGAIN = 5.0, 20.0


@dataclass(frozen=True)
class Account:
    """What the store holds of an open window."""

    fence: int
    ordered: bool
    released: int
    attempts: int

    @property
    def fresh(self) -> bool:
        return not (self.fence or self.ordered)


@dataclass
class Turns:
    """Who waits for its turn in one entry, as the store says."""

    windows: dict[str, Account] = field(default_factory=dict)
    #: The window that was called, or goes next, if it is open.
    called: str | None = None
    #: The last that began.
    last: str | None = None
    overlap: str | None = None

    @property
    def waiting(self) -> list[str]:
        """Those that wait for their turn, the next one first."""
        found = [start for start, each in self.windows.items() if each.released == TURN]
        return sorted(found, key=lambda start: (self.windows[start].fresh, start))

    def passed_over(self) -> set[str]:
        """Of these only one stays."""
        return {start for start in self.waiting if self.windows[start].fresh and start != self.called}


@dataclass
class Places:
    """Who has a place, and who waits for one, as the store says. Instants are server seconds."""

    held: dict[str, float] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    called: dict[str, float] = field(default_factory=dict)


class WaitingWorld(World):
    """A world that reads with each verb who waits, and checks who goes next."""

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        #: What tasks say where an entry says nothing.
        self.of_task = "allow"
        #: Entries whose windows were allowed to overlap at some time: any of those that run may be the one to go on.
        self.overlapped: set[str] = set()
        self.turns = self._read_turns()

    def ask(self, verb: str, call: Callable[[], Any], told: Callable[..., Told], **more: Any) -> Any:
        reply = super().ask(verb, call, told, **more)
        self._check_turns(verb)
        called = getattr(reply, "called", None)
        if isinstance(called, datetime) and not self.lossy and not more.get("twice"):
            entries = {entry for entry, turns in self.turns.items() if turns.called == format_instant(called)}
            assert entries, f"{verb} names {called} as called, and it isn't"
        return reply

    def ask_late(self, number: int) -> tuple[Any, WindowKey | None]:
        found = super().ask_late(number)
        self._check_turns("a late " + self.sent[number % len(self.sent)][0])
        return found

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        self.turns = self._read_turns()

    def _read_turns(self) -> dict[str, Turns]:
        found = {}
        for entry in ENTRIES:
            turns = found[entry] = Turns()
            fields = self.client.hgetall(self.store.entry_key(entry))
            for name, text in fields.items():
                kind, _, start = name.partition(":")
                if kind == "w" and WindowKey(entry, parse_instant(start)) in self.books.open:
                    words = text.split(" ")
                    turns.windows[start] = Account(int(words[1]), words[7] == "1", int(words[8]), int(words[0]))
            called = fields.get("waiting", "").partition(" ")[0]
            turns.called = called if called in turns.windows else None
            turns.last = fields.get("running")
            overlap = fields.get("overlap")
            turns.overlap = None if overlap in (None, "-") else overlap
            if (turns.overlap or self.of_task) == "allow":
                self.overlapped.add(entry)
        return found

    def _check_turns(self, verb: str) -> None:
        before, self.turns = self.turns, self._read_turns()
        if self.lossy:
            return
        for entry, turns in self.turns.items():
            self._check_order(verb, entry, before[entry], turns)
            self._check_somebody_goes_on(verb, entry, turns)

    def _check_order(self, verb: str, entry: str, was: Turns, now: Turns) -> None:
        """Whoever goes next has begun before or was ordered, or nothing like that waits and it is the oldest."""
        next_one = [start for start in was.waiting if start in now.windows][:1]
        if verb.endswith("take") and now.overlap == "allow":
            return  # windows waited until somebody allowed them to overlap: a beat lets each begin
        if now.called != was.called and now.called in was.windows and was.windows[now.called].released == TURN:
            assert [now.called] == next_one, f"{verb}: {now.called} of {entry} is called before {next_one}"
        for start, each in now.windows.items():
            old = was.windows.get(start)
            begins = each.fence and old is not None and not old.fence
            overlap = now.overlap or self.of_task
            if begins and overlap.startswith("buffer") and start != was.called and old.released != PLACE:
                before_it = [other for other in next_one if (was.windows[other].fresh, other) < (old.fresh, start)]
                assert not before_it, f"{verb}: {start} of {entry} begins before {before_it}"
            waits = each.released == TURN and each.fresh and (old is None or old.released != TURN)
            if waits and overlap == "buffer_one":
                among = (was.passed_over() | {start}) - {now.called}
                assert now.passed_over() == {max(among)}, f"{verb}: of {among} {now.passed_over()} wait"

    def _check_somebody_goes_on(self, verb: str, entry: str, turns: Turns) -> None:
        """Where windows wait, one has the turn, or has been called: nobody waits for what never comes."""
        if not turns.waiting or turns.called is not None:
            return
        windows = turns.windows.items()
        goes_on = any(
            each.fence and each.released <= 1
            for start, each in windows if start == turns.last or entry in self.overlapped
        )  # fmt: skip
        placed = any(each.released == PLACE for _, each in windows)
        assert goes_on or placed, f"{verb}: {turns.waiting} of {entry} wait, and nobody goes on: {turns}"

    # -- places -----------------------------------------------------------------------------------------------

    def one_call(self, send: Callable[[], Any], *, twice: bool) -> Any:
        """Send a verb of a limit; with ``twice`` the same call once more, since the first reply is lost."""
        number = self.store._new_call()
        self.store._new_call = lambda: number
        try:
            reply = send()
            again = send() if twice else reply
        finally:
            del self.store._new_call
        assert again == reply, f"it was answered {reply}, and sent once more {again}"
        return reply

    def places(self) -> Places:
        keys = self.store.keys.of_limit(LIMIT)
        held = {}
        for member, end in self.client.zrange(keys["places"], 0, -1, withscores=True):
            window = member.partition(" ")[2]
            assert window not in held, f"{window} has two places"
            held[window] = end / 1000
        called = self.client.zrange(keys["called"], 0, -1, withscores=True)
        waiting = self.client.zrange(keys["waiting"], 0, -1)
        return Places(held, waiting, {window: end / 1000 for window, end in called})


class WaitingRules(Rules):
    """Workers that enter, begin, park and call, each step by itself."""

    world: WaitingWorld
    #: How many places there are; None: windows name no limit.
    most: int | None
    errands: list[Iterator[Any]]
    #: Window → when it began to wait for a place.
    line: dict[WindowKey, datetime]
    #: The last execution of each entry that nothing may overlap.
    last_serial: dict[str, Execution]

    # -- people -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.most is not None)
    @rule(most=st.integers(1, 3))
    def places_change(self, most):
        self.most = most

    @rule(overlap=st.sampled_from(OVERLAPS))
    def overlap_changes(self, overlap):
        if self.limits["overlap"] is None:
            self.world.of_task = overlap
            return
        self.limits["overlap"] = overlap
        for beat in self.beats:
            for entry in ENTRIES:
                self.load(beat, entry)

    # -- steps ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.errands)
    @rule(which=several, steps=st.integers(1, 4))
    def goes_on(self, which, steps):
        errand = self.pick(self.errands, which)
        self.go(errand, steps)

    @precondition(lambda self: self.errands)
    @rule(which=several)
    def dies_between_two_steps(self, which):
        self.errands.remove(self.pick(self.errands, which))

    def all_die(self) -> None:
        super().all_die()
        self.errands.clear()

    def finish_steps(self) -> None:
        while self.errands:
            self.go(self.errands[0])

    def go(self, errand: Iterator[Any], steps: int = 1000) -> Execution | None:
        """Take so many steps; returns the execution that has begun."""
        if errand not in self.errands:
            self.errands.append(errand)
        begun = None
        for _ in range(steps):
            try:
                begun = next(errand) or begun
            except StopIteration:
                self.errands.remove(errand)
                break
        return begun

    @precondition(lambda self: self.world.queue)
    @rule(which=several, stays=rarely, twice=maybe, dies=rarely, steps=st.sampled_from([1, 2, 3, 4, 1000, 1000]))
    def begin(self, which, stays, twice, dies, steps):
        message = self.pick(self.world.queue, which)
        if not stays:
            self.world.queue.remove(message)
        execution = self.go(self.delivery(message, twice=twice), steps)
        if execution and dies and execution in self.world.running:
            self.world.running.remove(execution)

    def begin_next(self, message: Message) -> None:
        self.begin_by(message)

    def begin_by(self, message: Message, *, twice: bool = False) -> Execution | None:
        return self.go(self.delivery(message, twice=twice))

    def delivery(self, message: Message, *, twice: bool) -> Iterator[Execution | None]:
        """What a worker does with one copy, as worker/execution.py says."""
        window, owner, limited = message.window, self.new_name("worker"), self.most is not None and message.tracked
        no_place = shared = False
        for _ in range(3):
            asked_at = self.world.time
            if limited:
                no_place, shared = yield from self.entered(window, owner, twice=twice)
            reply, execution = self.begin_as(message, owner, no_place=no_place, twice=twice)
            if execution is not None:
                if not limited or (yield from self.keeps_place(execution, asked_at, shared=shared)):
                    execution.placed = limited
                    self.body_begins(execution)
                    yield execution
                    return
                self.give_back(execution)
                yield None
                continue
            waits_for_place = isinstance(reply, r.Buffered) and reply.waits_for is None
            if limited and not waits_for_place:
                forget = not isinstance(reply, r.Busy) or reply.reason == "running"
                yield from self.leave(window, owner, forget=forget, twice=twice)
            if isinstance(reply, (r.Buffered, r.Closed)) and reply.called is not None:
                yield None
                yield from self.calls([WindowKey(window.entry, reply.called)])
            if not isinstance(reply, r.Buffered):
                return
            yield None
            park = lambda: self.world.store.park(window, message.retry, str(message.retry))  # noqa: E731
            parked = self.world.ask("park", park, nothing, twice=twice)
            yield None
            if isinstance(parked, r.Parked) and parked.called:
                continue
            if not waits_for_place:
                return
            no_place, shared = yield from self.entered(window, owner, twice=twice)
            if no_place:
                return
        if limited:
            yield from self.leave(window, owner, forget=False, twice=twice)
        if isinstance(reply, r.Begun):
            self.world.queue.append(message)  # put back

    def keeps_place(self, execution: Execution, asked_at: datetime, *, shared: bool) -> Iterator[Any]:
        """Whether its place, which it asked for at ``asked_at``, is its own for as long as its lease."""
        if not shared and execution.until < asked_at + timedelta(seconds=place_length(LEASE)):
            return True
        yield None
        window = execution.message.window
        kept = self.world.store.stay_in_limit(LIMIT, window, execution.owner, place_length(LEASE), takes_over=True)
        return kept and execution.until > self.world.time

    def give_back(self, execution: Execution) -> None:
        """Its body doesn't run, and no attempt counts."""
        message = execution.message
        window, owner, fence, retry = message.window, execution.owner, execution.fence, message.retry
        send = lambda: self.world.store.hand_over(window, owner, fence, retry, 0.0, START_TIMEOUT)  # noqa: E731
        if isinstance(self.world.ask("hand_over", send, nothing), r.HandedOver):
            self.begun[window, self.world.backfills[window]].discard(fence)

    def body_begins(self, execution: Execution) -> None:
        """Nothing runs beside it, unless one of them is out of contact."""
        world, window = self.world, execution.message.window
        beside = [
            other for other in world.running
            if other.until > world.time and (other.message.window == window
            or (other.serial and execution.serial and other.message.window.entry == window.entry))
        ]  # fmt: skip
        assert world.lossy or execution.until <= world.time or not beside, f"{execution} begins beside {beside}"
        world.running.append(execution)

    def entered(self, window: WindowKey, owner: str, *, twice: bool) -> Iterator[Any]:
        """Ask for a place; returns whether there is none, and whether it is that of another execution."""
        reply = self.enter(window, owner, twice=twice)
        yield None
        yield from self.calls(reply.called, of_limit=True)
        return isinstance(reply, r.Full), isinstance(reply, r.Entered) and reply.shared

    def begin_as(self, message: Message, owner: str, *, no_place: bool, twice: bool) -> tuple[Any, Execution | None]:
        world, window, sent = self.world, message.window, self.world.time
        overlap = world.turns[window.entry].overlap or world.of_task
        is_open = window in world.books.open

        def send():
            return world.store.begin(
                window, owner, LEASE, message.retry, tracked=message.tracked, overlap=world.of_task,
                no_place=LIMIT if no_place else "",
            )  # fmt: skip

        reply = world.ask("begin", send, self.ends(window), about=window, twice=twice)
        if not isinstance(reply, r.Begun):
            return reply, None
        alive = [e for e in world.running if e.until > sent]
        others = [e for e in alive if e.message.window == window]
        assert world.lossy or not others, f"{owner} began {window}, which {others} have"
        assert reply.fence > world.fences[window.entry], "the fence grows"
        world.fences[window.entry] = reply.fence
        before = self.begun.setdefault((window, world.backfills[window]), set())
        before.add(reply.fence)
        serial = overlap != "allow" and message.tracked and is_open
        if serial and not world.lossy:
            assert reply.overlap == overlap
            beside = [e for e in alive if e.serial and e.message.window.entry == window.entry]
            assert not beside, f"{owner} began {window} beside {beside}"
            assert not no_place, f"{owner} began {window} without a place"
            self.check_the_dead_go_first(window, before == {reply.fence})
        execution = Execution(message, owner, reply.fence, sent + timedelta(seconds=LEASE), serial=serial)
        if serial:
            self.last_serial[window.entry] = execution
        return reply, execution

    def check_the_dead_go_first(self, window: WindowKey, new: bool) -> None:
        """What died in the middle goes before what is new, for a minute at least."""
        last, world = self.last_serial.get(window.entry), self.world
        if last is None or last.message.window == window or not new or world.backfills[window]:
            return
        text = format_instant(last.message.window.start)
        account, turns = world.turns[window.entry].windows.get(text), world.turns[window.entry]
        if account is None or account.released or account.fence != last.fence or turns.last not in (text, None):
            return
        if world.time > last.until + timedelta(seconds=PATIENCE - 1):
            return
        dead_for_good = account.attempts >= self.limits["max_attempts"] or not self.limits["recover"] or self.expires
        assert dead_for_good or turns.last is None, f"{window} begins before {last}, which died"

    def ends(self, window: WindowKey, outcome: str = ""):
        told = super().ends(window, outcome)

        def and_who_is_passed_over(reply, *books):
            if isinstance(reply, r.Buffered):
                over = [(WindowKey(window.entry, start), "skipped") for start in reply.skipped]
                return Told(over, entry=window.entry)
            return told(reply, *books)

        return and_who_is_passed_over

    # -- whoever calls ----------------------------------------------------------------------------------------

    def calls(self, windows: Iterable[WindowKey], *, of_limit: bool = False) -> Iterator[None]:
        """As worker/waiting.py says."""
        left = list(windows)
        while left:
            window = left.pop(0)
            send = lambda window=window: self.world.store.call_many([window], of_limit=of_limit)[0]  # noqa: E731
            reply = self.world.ask("call", send, nothing)
            yield None
            if isinstance(reply, r.Called) and reply.message:
                self.world.queue.append(Message(window, int(reply.message), ENTRIES[window.entry]))
                yield None
                confirm = Confirmation(window, reply.turn, r.Published.SENT, START_TIMEOUT)
                self.world.ask(
                    "confirm",
                    lambda confirm=confirm: self.world.store.confirm_many([confirm])[0],
                    self.ends(window),
                )
                yield None
            elif isinstance(reply, r.Unchanged) and of_limit:
                left += self.left(window, "-", forget=True, only_late=reply.reason == "out")
                yield None

    def take_by(self, beat, *, twice=False):
        if self.most is not None:
            found = self.world.store.overdue(beat.name, self.world.time, 1, limits={LIMIT: self.most}).called[0]
            self.check_called(found)
            self.go(self.called_by_beat(found))
        super().take_by(beat, twice=twice)

    def called_by_beat(self, windows: Iterable[WindowKey]) -> Iterator[None]:
        """As beat/recovery.py says."""
        left = list(windows)
        while left:
            window = left.pop()
            send = lambda window=window: self.world.store.call_many([window], of_limit=True, by_beat=True)[0]  # noqa: E731
            reply = self.world.ask("call", send, nothing)
            yield None
            if isinstance(reply, r.Unchanged):
                left += self.left(window, "-", forget=True, only_late=reply.reason == "out")
                yield None

    # -- places -----------------------------------------------------------------------------------------------

    def enter(self, window: WindowKey, owner: str, *, twice: bool) -> r.Entered | r.Full:
        world = self.world
        before = world.places()
        send = lambda: world.store.enter_limit(LIMIT, self.most, window, owner, place_length(LEASE))  # noqa: E731
        reply = world.one_call(send, twice=twice)
        self.check_called(reply.called)
        places, name = world.places(), name_of(window)
        if isinstance(reply, r.Entered):
            self.line.pop(window, None)
            assert name in places.held
            assert name not in places.waiting
            if name not in before.held:
                assert len(places.held) <= self.most, f"{places.held}, and there are {self.most}"
        else:
            assert name in places.waiting
            self.check_none_is_idle(places, but=name)
            if window not in self.line:
                self.line[window] = world.time
                world.pass_time(TICK)  # who comes later stands behind it: see TICK
        return reply

    def leave(self, window: WindowKey, owner: str, *, forget: bool, twice: bool = False) -> Iterator[None]:
        called = self.left(window, owner, forget=forget, twice=twice)
        yield None
        yield from self.calls(called, of_limit=True)

    def left(
        self, window: WindowKey, owner: str, *, forget: bool, only_late: bool = False, twice: bool = False
    ) -> tuple[WindowKey, ...]:
        kept_until = self.world.places().called.get(name_of(window), 0)
        if forget and not (only_late and kept_until > self.world.time.timestamp()):
            self.line.pop(window, None)
        called = self.world.one_call(
            lambda: self.world.store.leave_limit(LIMIT, self.most, window, owner, forget=forget, only_late=only_late),
            twice=twice,
        )
        self.check_called(called)
        self.check_none_is_idle(self.world.places())
        return called

    def check_called(self, called: Iterable[WindowKey]) -> None:
        """Whoever is called has waited longest, of those that weren't called of late."""
        now, places = self.world.time.timestamp(), self.world.places()
        for window in called if not self.world.lossy else ():
            assert window in self.line, f"{window} is called, and doesn't wait"
            skipped = [
                other for other, since in self.line.items()
                if since < self.line[window] and name_of(other) not in places.called
            ]  # fmt: skip
            assert not skipped, f"{window} is called before {skipped}, at {now}"

    def check_none_is_idle(self, places: Places, but: str = "") -> None:
        """A place that is free is kept for one that is called, or nobody waits that wasn't called of late.

        While others are late one is called for each that is free, and none is kept: they were kept until now.
        """
        now = self.world.time.timestamp()
        free = self.most - len(places.held) - sum(end >= now for end in places.called.values())
        uncalled = [
            window for window in places.waiting
            if window != but and not places.called.get(window, 0) + CALLED_AGAIN >= now
        ]  # fmt: skip
        assert free <= 0 or not uncalled, f"{free} places are free, and {uncalled} wait: {places}"

    def check_all_is_free(self) -> None:
        """Each window has ended: no place is lost, and nobody waits for ever. A beat looks, as often as it does."""
        if self.most is None:
            return
        world, beat = self.world, self.beats[0]
        for _ in range(50):
            self.take_by(beat)
            if world.places() == Places():
                break
            world.pass_time(2.0)
        assert world.places() == Places()
        assert {*world.client.hkeys(world.store.keys.of_limit(LIMIT)["calls"])} <= {"fewest"}
        someone = [WindowKey("tracked", world.time + timedelta(seconds=number)) for number in range(self.most + 1)]
        replies = [self.enter(window, window.start.isoformat(), twice=False) for window in someone]
        assert [isinstance(reply, r.Full) for reply in replies] == [False] * self.most + [True]

    @invariant()
    def who_runs_has_a_place(self):
        if getattr(self, "most", None) is None or self.world.lossy:
            return
        now, places = self.world.time, self.world.places()
        for execution in self.world.running:
            if execution.placed and execution.until > now:
                end = places.held.get(name_of(execution.message.window), 0)
                assert end >= now.timestamp(), f"{execution} runs, and its place is lost: {places}"

    # -- executions -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.running)
    @rule(which=several, twice=maybe)
    def renew(self, which, twice):
        world = self.world
        execution, sent = self.pick(world.running, which), world.time
        message, limit = execution.message, LIMIT if execution.placed else None
        renewal = Renewal(message.window, execution.owner, execution.fence, LEASE, message.tracked, limit)
        reply = world.ask("renew", lambda: world.store.renew_many([renewal])[0], nothing, twice=twice)
        if not isinstance(reply, r.Renewed):
            world.running.remove(execution)
            return
        kept = execution.until > sent
        if reply.place_lost:
            assert world.lossy or not kept, f"{execution} kept its lease, and lost its place"
            execution.placed = False
        beside = [
            e for e in world.running
            if e is not execution and e.serial and e.until > sent and e.message.window.entry == message.window.entry
        ]  # fmt: skip
        assert world.lossy or not (execution.serial and beside), f"{execution} is renewed beside {beside}"
        execution.until = sent + timedelta(seconds=LEASE)

    def finish_by(self, execution: Execution, outcome: str, again: float | None = None, *, twice: bool = False):
        reply = super().finish_by(execution, outcome, again, twice=twice)
        if execution in self.world.running:
            self.world.running.remove(execution)
        self.after_the_end(execution, reply)
        return reply

    def after_the_end(self, execution: Execution, reply: Any) -> None:
        """What else its worker does: the next window is called, the place is given back."""

        def steps():
            yield None
            window, called = execution.message.window, getattr(reply, "called", None)
            if called is not None:
                yield from self.calls([WindowKey(window.entry, called)])
            if execution.placed:
                yield from self.leave(window, execution.owner, forget=False)

        self.go(steps(), 1)

    @precondition(lambda self: self.world.running)
    @rule(which=several, delay=st.sampled_from([0.0, 2.04, 100.04]), copies=st.sampled_from([1, 1, 0, 2]), twice=maybe)
    def hand_over(self, which, delay, copies, twice):
        execution, queued = self.pick(self.world.running, which), len(self.world.queue)
        super().hand_over_by(execution, delay, copies, twice=twice)
        assert len(self.world.queue) >= queued
        self.after_the_end(execution, None)

    @precondition(lambda self: self.world.running)
    @rule(which=several)
    def revoke_running(self, which):
        execution = self.pick(self.world.running, which)
        self.after_the_end(execution, super().revoke_by(execution))


def name_of(window: WindowKey) -> str:
    return f"{window.entry}@{format_instant(window.start)}"
