"""Rules: windows that wait for each other, and for a slot of a limit.

What a worker does with one copy of a message stops after each of its steps: it may go on an hour later, or never. What
holds is read from the store before and after each verb, also after one that arrives late; which window goes next, and
who has a slot, is decided here once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from machine.rules import START_TIMEOUT, Rules, maybe, nothing, rarely, several
from machine.world import ENTRIES, LEASE, Execution, Message, Told, World

from celery_once_beat.store import model as r
from celery_once_beat.store.model import Renewal
from celery_once_beat.store.verbs import slot_length
from celery_once_beat.windows import WindowKey, format_instant, parse_instant

LIMIT = "reports"
#: What an entry, or a task, may say of windows that come while another one runs.
OVERLAPS = ("allow", "skip", "buffer_one", "buffer_one", "buffer_all", "buffer_all")
#: Seconds for which one that died keeps newer ones of its entry from beginning, at least.
PATIENCE = 60.0


@dataclass(frozen=True)
class Account:
    """What the store holds of an open window; ``deadline`` in server seconds."""

    fence: int
    ordered: bool
    state: str
    attempts: int
    taken: bool
    deadline: float

    @property
    def fresh(self) -> bool:
        return not (self.fence or self.ordered)

    @property
    def in_line(self) -> bool:
        return self.state in {"waits_turn", "waits_slot", "again_due"}


@dataclass
class Lines:
    """Who is in line in one entry, as the store says."""

    windows: dict[str, Account] = field(default_factory=dict)
    #: The last that began.
    last: str | None = None
    overlap: str | None = None

    def place(self, start: str) -> tuple[bool, bool, str]:
        """What is lower goes first."""
        account = self.windows[start]
        return account.state != "waits_slot", account.fresh, start

    @property
    def line(self) -> list[str]:
        """Those in line, the next one first."""
        return sorted((start for start, each in self.windows.items() if each.in_line), key=self.place)

    @property
    def fresh_and_idle(self) -> set[str]:
        """New ones that wait for their turn, with no message out: of these one stays, beside the first in line."""
        return {s for s, w in self.windows.items() if w.state == "waits_turn" and w.fresh and not w.taken}


class WaitingWorld(World):
    """A world that reads with each verb who waits, and checks who goes next."""

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        #: What tasks say where an entry says nothing.
        self.of_task = "allow"
        #: Entries whose windows were allowed to overlap at some time: any of those that run may be the one to go on.
        self.overlapped: set[str] = set()
        self.lines = self._read_lines()

    def ask(self, verb: str, call: Callable[[], Any], told: Callable[..., Told], **more: Any) -> Any:
        reply = super().ask(verb, call, told, **more)
        self._check_lines(verb)
        return reply

    def ask_late(self, number: int) -> tuple[Any, WindowKey | None]:
        found = super().ask_late(number)
        self._check_lines("a late " + self.sent[number % len(self.sent)][0])
        return found

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        self.lines = self._read_lines()

    def _read_lines(self) -> dict[str, Lines]:
        found = {}
        for entry in ENTRIES:
            lines = found[entry] = Lines()
            fields = self.client.hgetall(self.store.entry_key(entry))
            zset = self.store.keys.open(self.store.shard_of(entry))
            for name, text in fields.items():
                kind, _, start = name.partition(":")
                if kind == "w" and WindowKey(entry, parse_instant(start)) in self.books.open:
                    words = text.split(" ")
                    deadline = (self.client.zscore(zset, f"{entry}@{start}") or 0) / 1000
                    lines.windows[start] = Account(
                        int(words[1]), words[7] == "1", words[9], int(words[0]), words[8] != "0", deadline
                    )
            lines.last = fields.get("running")
            overlap = fields.get("overlap")
            lines.overlap = None if overlap in (None, "-") else overlap
            if fields and (lines.overlap or self.of_task) == "allow":
                self.overlapped.add(entry)
        return found

    def _check_lines(self, verb: str) -> None:
        before, self.lines = self.lines, self._read_lines()
        if self.lossy:
            return
        for entry, lines in self.lines.items():
            self._check_order(verb, entry, before[entry], lines)
            self._check_somebody_goes_on(verb, entry, lines)

    def _check_order(self, verb: str, entry: str, was: Lines, now: Lines) -> None:
        """Whoever begins has begun before or was ordered, or nothing like that is in line and it is the oldest."""
        overlap = now.overlap or self.of_task
        for start, each in now.windows.items():
            old = was.windows.get(start)
            begins = each.fence and old is not None and not old.fence
            if begins and overlap != "allow" and entry not in self.overlapped:
                before_it = [other for other in was.line if other != start and was.place(other) < was.place(start)]
                assert not before_it, f"{verb}: {start} of {entry} begins before {before_it}"
            waits = each.state == "waits_turn" and each.fresh and (old is None or old.state != "waits_turn")
            if waits and overlap == "buffer_one" and entry not in self.overlapped:
                kept = now.fresh_and_idle - set(now.line[:1])
                assert len(kept) <= 1, f"{verb}: {kept} of {entry} wait, and only one may"

    def _check_somebody_goes_on(self, verb: str, entry: str, lines: Lines) -> None:
        """Where windows wait, one has the turn, or the first in line is overdue or published, or waits for a slot."""
        if not lines.line or (lines.overlap or self.of_task) == "allow" or entry in self.overlapped:
            return
        first, now = lines.windows[lines.line[0]], self.time.timestamp()
        goes_first = first.taken or first.state != "waits_turn" or first.deadline <= now
        last = lines.windows.get(lines.last or "")
        goes_on = last is not None and last.fence and last.state in {"held", "retry"}
        assert goes_first or goes_on, f"{verb}: {lines.line} of {entry} wait, and nobody goes on: {lines}"

    # -- slots ------------------------------------------------------------------------------------------------

    def slots(self) -> dict[str, float]:
        """Return who has a slot, and until when."""
        held: dict[str, float] = {}
        for member, end in self.client.zrange(self.store.keys.of_limit(LIMIT)["slots"], 0, -1, withscores=True):
            window = member.partition(" ")[2]
            assert window not in held, f"{window} has two slots"
            held[window] = end / 1000
        return held

    def waiting(self) -> list[str]:
        return list(self.client.zrange(self.store.keys.of_limit(LIMIT)["waiting"], 0, -1))


class WaitingRules(Rules):
    """Workers that acquire slots and begin, each step by itself."""

    world: WaitingWorld
    #: How many slots there are; None: windows name no limit.
    most: int | None
    errands: list[Iterator[Any]]
    #: The last execution of each entry that nothing may overlap.
    last_serial: dict[str, Execution]

    # -- people -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.most is not None)
    @rule(most=st.integers(1, 3))
    def slots_change(self, most):
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
        slot, asked_at = None, self.world.time
        if limited:
            slot = self.acquire(window, owner, twice=twice)
            yield None
        reply, execution = self.begin_as(message, owner, no_slot=isinstance(slot, r.Full), twice=twice)
        if execution is None:
            if limited and not (isinstance(reply, r.Waits) and reply.waits_for is None):
                yield None
                forget = not isinstance(reply, r.Busy) or reply.reason == "running"
                self.release(window, owner, forget=forget, twice=twice)
            return
        if limited and not (yield from self.keeps_slot(execution, asked_at, shared=slot != r.Acquired())):
            self.give_back(execution)
            self.world.queue.append(message)  # put back
            return
        execution.placed = limited
        self.body_begins(execution)
        yield execution

    def keeps_slot(self, execution: Execution, asked_at: datetime, *, shared: bool) -> Iterator[Any]:
        """Whether its slot, which it asked for at ``asked_at``, is its own for as long as its lease."""
        if not shared and execution.until < asked_at + timedelta(seconds=slot_length(LEASE)):
            return True
        yield None
        window = execution.message.window
        kept = self.world.store.renew_slot(LIMIT, window, execution.owner, slot_length(LEASE), takes_over=True)
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

    def begin_as(self, message: Message, owner: str, *, no_slot: bool, twice: bool) -> tuple[Any, Execution | None]:
        world, window, sent = self.world, message.window, self.world.time
        overlap = world.lines[window.entry].overlap or world.of_task
        is_open = window in world.books.open

        def send():
            return world.store.begin(
                window, owner, LEASE, message.retry, tracked=message.tracked, overlap=world.of_task,
                no_slot=LIMIT if no_slot else "",
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
            assert not no_slot, f"{owner} began {window} without a slot"
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
        account, lines = world.lines[window.entry].windows.get(text), world.lines[window.entry]
        if account is None or account.state != "held" or account.fence != last.fence or lines.last not in (text, None):
            return
        if world.time > last.until + timedelta(seconds=PATIENCE - 1):
            return
        dead_for_good = account.attempts >= self.limits["max_attempts"] or not self.limits["recover"] or self.expires
        assert dead_for_good or lines.last is None, f"{window} begins before {last}, which died"

    def ends(self, window: WindowKey, outcome: str = ""):
        told = super().ends(window, outcome)

        def and_who_is_passed_over(reply, *books):
            if isinstance(reply, r.Waits):
                over = [(WindowKey(window.entry, start), "skipped") for start in reply.skipped]
                return Told(over, entry=window.entry)
            return told(reply, *books)

        return and_who_is_passed_over

    # -- slots ------------------------------------------------------------------------------------------------

    def take_by(self, beat, *, twice=False):
        """As ``Recovery.sweep`` does: first what a limit has slots for is made overdue."""
        if self.most is not None:
            (found,) = self.world.store.overdue(beat.name, self.world.time, 1, limits={LIMIT: self.most}).free_slots
            if found.windows:
                self.world.store.make_due(LIMIT, found.windows)
        super().take_by(beat, twice=twice)

    def acquire(self, window: WindowKey, owner: str, *, twice: bool) -> r.Acquired | r.Full:
        world, name = self.world, name_of(window)
        before = world.slots()
        send = lambda: world.store.acquire_slot(LIMIT, self.most, window, owner, slot_length(LEASE))  # noqa: E731
        reply = send()
        assert not twice or send() == reply
        slots = world.slots()
        if isinstance(reply, r.Acquired):
            assert name in slots
            assert reply.shared or name not in world.waiting()
            if name not in before:
                assert len(slots) <= self.most, f"{slots}, and there are {self.most}"
        else:
            assert name in world.waiting()
            assert len(slots) >= self.most, f"{name} waits, and there is a slot: {slots}"
        return reply

    def release(self, window: WindowKey, owner: str, *, forget: bool, twice: bool = False) -> None:
        for _ in range(1 + twice):
            self.world.store.release_slot(LIMIT, window, owner, forget=forget)

    def check_all_is_free(self) -> None:
        """Each window has ended: no slot is lost, and nobody waits for ever. A beat looks, as often as it does."""
        if self.most is None:
            return
        world, beat = self.world, self.beats[0]
        for _ in range(50):
            self.take_by(beat)
            if not world.slots() and not world.waiting():
                break
            world.pass_time(2.0)
        assert not world.slots()
        assert not world.waiting()
        someone = [WindowKey("tracked", world.time + timedelta(seconds=number)) for number in range(self.most + 1)]
        replies = [self.acquire(window, window.start.isoformat(), twice=False) for window in someone]
        assert [isinstance(reply, r.Full) for reply in replies] == [False] * self.most + [True]

    @invariant()
    def who_runs_has_a_slot(self):
        if getattr(self, "most", None) is None or self.world.lossy:
            return
        now, slots = self.world.time, self.world.slots()
        for execution in self.world.running:
            if execution.placed and execution.until > now:
                end = slots.get(name_of(execution.message.window), 0)
                assert end >= now.timestamp(), f"{execution} runs, and its slot is lost: {slots}"

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
        if reply.slot_lost:
            assert world.lossy or not kept, f"{execution} kept its lease, and lost its slot"
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
        self.after_the_end(execution)
        return reply

    def after_the_end(self, execution: Execution) -> None:
        """What else its worker does: the slot is given back."""

        def steps():
            yield None
            if execution.placed:
                self.release(execution.message.window, execution.owner, forget=False)

        self.go(steps(), 1)

    @precondition(lambda self: self.world.running)
    @rule(which=several, delay=st.sampled_from([0.0, 2.04, 100.04]), copies=st.sampled_from([1, 1, 0, 2]), twice=maybe)
    def hand_over(self, which, delay, copies, twice):
        execution, queued = self.pick(self.world.running, which), len(self.world.queue)
        super().hand_over_by(execution, delay, copies, twice=twice)
        assert len(self.world.queue) >= queued
        self.after_the_end(execution)

    @precondition(lambda self: self.world.running)
    @rule(which=several)
    def revoke_running(self, which):
        execution = self.pick(self.world.running, which)
        super().revoke_by(execution)
        self.after_the_end(execution)


def name_of(window: WindowKey) -> str:
    return f"{window.entry}@{format_instant(window.start)}"
