"""Faults: a plan of them, made of a seed, and what each of them does.

Some come at a time. Most are aimed: they wait, from a time on, for a moment of the protocol, and strike whoever comes
by: before a verb is sent, or when the server has carried it out and the reply is on its way.
"""

from __future__ import annotations

import random
from functools import partial, partialmethod
from typing import TYPE_CHECKING, Any

from celery_once_beat.features import FEATURES
from celery_once_beat.settings import WORKER_REPORTS

from .kernel import FOREVER, SECOND, Process
from .world import start_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .actors import Beat, Worker
    from .episode import Episode, Plan

#: Verb, or what else is a moment → who comes by.
OF_BEATS = ("claim", "confirm", "take", "load", "heartbeat", "publish", "alerts", "alerted")
OF_WORKERS = ("begin", "renew", "finish", "hand_over", "receive", "close", "publish", "acquire_slot", "release_slot")
MOMENTS = ("body begins", "body ends", "accepted", "accept", "result", "tick", "ping", "connect")
AIMED = [("beat", verb) for verb in OF_BEATS] + [("worker", verb) for verb in OF_WORKERS]
#: Of a parent, where there are children.
OF_PARENTS = ("open_child", "confirm", "publish")
DOES = ("kill", "freeze", "lost", "late", "cut")

#: For how long a client waits for an answer.
_PATIENCE = {"store": 2 * SECOND, "broker": 4 * SECOND}
#: How long a beat waits at most until it tries again.
_BACKOFF = 5 * SECOND
#: Seconds for which whoever is struck stands still: shorter and longer than every time limit.
_SPANS = (0.05, 0.4, 0.7, 1.2, 2.2, 3.5, 6.0, 9.0, 16.0)


def cells() -> list[tuple[str, str]]:
    """What can be struck, and how: the verb or moment, and the fault."""
    aimed = [
        (verb, f"{phase} {do}")
        for verb in sorted({verb for _, verb in AIMED} | {*OF_PARENTS})
        for phase in ("before", "after")
        for do in DOES
    ]
    return aimed + [(moment, f"at {do}") for moment in MOMENTS for do in ("kill", "freeze", "cut")]


def add_faults(plan: Plan, number: int) -> None:
    """Add so many faults to a plan."""
    draw = random.Random(f"{plan.seed}/faults")
    begin, last = 4.0, 4.0 + plan.lasts - 2.0
    for _ in range(number):
        plan.faults.append({"at": round(draw.uniform(begin, last), 3), **_one(draw, plan)})
    if draw.random() < 0.35:
        plan.faults.append({"at": round(draw.uniform(begin, last - 20), 3), "kind": "deploy", **_changes(draw, plan)})
    if draw.random() < 0.5:
        plan.faults.append(
            {"at": round(draw.uniform(begin, last), 3), "kind": "sleep", "role": draw.choice(["beat", "worker"])}
        )
    plan.faults += _edits(draw, begin, last)
    if number and any(entry.get("child") for entry in plan.entries.values()):
        draw = random.Random(f"{plan.seed}/parents")
        plan.faults += [
            {"at": round(draw.uniform(begin, last), 3), **_aim(draw, "worker", draw.choice(OF_PARENTS))}
            for _ in range(6)
        ]
    plan.faults.sort(key=lambda fault: fault["at"])


def _one(draw: random.Random, plan: Plan) -> dict[str, Any]:
    way = draw.random()
    if way < 0.55:
        return _aim(draw, *draw.choice(AIMED))
    if way < 0.67:
        role, moment = draw.choice(
            [("worker", each) for each in MOMENTS[:5]] * 2 + [("beat", "tick"), ("beat", "ping"), ("beat", "connect")]
        )
        do = draw.choice(["kill", "freeze", "freeze", "cut"])
        return {"kind": "aimed", "role": role, "verb": moment, "phase": "at", "do": do, "for": draw.choice(_SPANS)}
    if way < 0.70:
        return {"kind": draw.choice(["late confirm", "two deaths"]), "by": draw.choice([-0.2, 0.0, 0.1, 0.4, 0.9])}
    if way < 0.73:
        return {"kind": draw.choice(["late renewal", "unseen death"] if plan.settings["prefork"] else ["late renewal"])}
    if way < 0.80:  # a worker wakes up when its lease ends, to the millisecond
        return {"kind": "lease end", "by": draw.choice([-0.5, -0.02, -0.003, 0.0, 0.002, 0.5, 0.95, 1.001, 1.2, 3.0])}
    kind = draw.choice(
        ["kill", "kill", "stop", "freeze", "suspend", "cut store", "cut broker", "store away", "broker away", "scripts",
         "clock", "message lost", "message twice", "message late", "message overtakes", "purge", "broker connection",
         "failover", "workers unknown"]
    )  # fmt: skip
    fault: dict[str, Any] = {"kind": kind}
    if kind in ("kill", "stop", "freeze", "suspend", "cut store", "cut broker", "clock"):
        fault["role"] = draw.choice(["beat", "worker", "worker", "child"] if kind == "kill" else ["beat", "worker"])
        fault["which"] = draw.randrange(6)
    if kind in ("freeze", "suspend", "cut store", "cut broker"):
        fault["for"] = draw.choice(_SPANS)
    if kind in ("cut store", "cut broker", "store away", "broker away"):
        fault["how"] = draw.choice(["refused", "silent"])
    if kind in ("store away", "broker away"):
        fault["for"] = draw.choice(_SPANS[:6])
    if kind == "failover":
        fault["for"] = draw.choice([0.0, 0.1, 0.5, 2.0])
    if kind == "clock":
        fault["by"] = draw.choice([-3600.0, -30.0, -1.0, 0.5, 2.5, 60.0, 3600.0])
    if kind.startswith("message"):
        fault["for"] = draw.choice(_SPANS)
    return fault


def _aim(draw: random.Random, role: str, verb: str) -> dict[str, Any]:
    phase = draw.choice(["before", "after"])
    do = draw.choice(DOES)
    return {"kind": "aimed", "role": role, "verb": verb, "phase": phase, "do": do, "for": draw.choice(_SPANS)}


def _changes(draw: random.Random, plan: Plan) -> dict[str, Any]:
    """What a deploy changes: some entries' intervals, one leaves, one comes."""
    from .episode import is_tracked, make_entry, tracked

    names = sorted(name for name, entry in plan.entries.items() if entry["kind"] == "interval" and is_tracked(entry))
    every = [2.0, 3.0, 5.0, 7.0, 9.0]
    changed = {name: {**plan.entries[name], "every": draw.choice(every)} for name in draw.sample(names, 2)}
    left = draw.choice([name for name in names if name not in changed])
    new = {**changed, "new": make_entry(draw, 5.0)}
    return {"changed": {name: tracked(entry) for name, entry in new.items()}, "left": [left]}


def _edits(draw: random.Random, begin: float, last: float) -> list[dict[str, Any]]:
    """Schedules that are set, changed and deleted meanwhile, and orders."""
    from .episode import make_entry

    edits: list[dict[str, Any]] = []
    schedules = draw.choice([0, 1, 2])
    for number in range(schedules if "runtime" in FEATURES else 0):
        name = f"s{number}"
        first = make_entry(draw, draw.choice([2.0, 3.0, 5.0]))
        first["task"] = draw.choice(["once", "late"])
        for option in ("tracked", "expires"):
            first.pop(option, None)
        times = sorted(draw.uniform(begin, last) for _ in range(4))
        whats = draw.choice([["set", "set", "pause", "resume"], ["set", "set", "delete", "set"]])
        for at, what in zip(times, whats, strict=True):
            entry = None
            if what == "set":
                entry = {**first, "every": draw.choice([2.0, 3.0, 5.0])}
            edits.append({"at": round(at, 3), "kind": "edit", "what": what, "name": name, "entry": entry})
    for _ in range(draw.choice([0, 1, 3])):
        edits.append(  # noqa: PERF401  # a draw each
            {"at": round(draw.uniform(begin + 10, last), 3), "kind": "edit", "which": draw.randrange(20), "entry": None,
             "what": draw.choice(["pause and resume", "backfill", "abandon"]), "name": None, "for": draw.choice(_SPANS)}
        )  # fmt: skip
    return edits


class Faults:
    """The faults of one episode."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.world = episode.world
        self.kernel = episode.kernel
        self.over = False
        self.sleepers: list[Process] = []

    def plan_all(self) -> None:
        for number, fault in enumerate(self.episode.plan.faults):
            self.kernel.call_at(round(fault["at"] * SECOND), partial(self._begin, number, fault))

    def _begin(self, number: int, fault: dict[str, Any]) -> None:
        if not self.over:
            getattr(self, "_" + fault["kind"].replace(" ", "_"))(fault)

    def _struck(self, kind: str, how: str, target: Any = None, **fields: Any) -> None:
        """A fault has struck."""
        self.world.faults += 1
        self.world.struck(kind, how, target, **fields)

    # -- whom

    def _beats(self) -> list[Beat]:
        return [beat for _, beat in sorted(self.episode.beats.items()) if not beat.process.dead]

    def _workers(self) -> list[Worker]:
        return [worker for _, worker in sorted(self.episode.workers.items()) if not worker.dead]

    def _in_bodies(self) -> Iterator[tuple[Worker, Process]]:
        """Whose processes run a body, and don't stand still."""
        for worker in self._workers():
            for process in worker.processes:
                if self.world.bodies.get(process) and not process.frozen:
                    yield worker, process

    def _role_of(self, process: Process) -> str:
        return process.name.partition("-")[0].rstrip("0123456789")

    def _pick(self, fault: dict[str, Any]) -> Any:
        there: list[Any] = self._beats() if fault["role"] == "beat" else self._workers()
        return there[fault["which"] % len(there)] if there else None

    def _processes(self, actor: Any) -> list[Process]:
        return actor.processes if actor.role == "worker" else [actor.process]

    def _actor_of(self, process: Process) -> Any:
        there: list[Any] = [*self._beats(), *self._workers()]
        return next((actor for actor in there if process in self._processes(actor)), None)

    # -- what is done to whom

    def kill(self, actor: Any) -> None:
        self.world.faults += 1
        self.world.down(actor.process, f"{actor.role} killed")
        for process in self._processes(actor)[::-1]:
            self.world.kill(process, noted=True)
        self._restart_later(actor)

    def _kill_process(self, actor: Any, process: Process) -> None:
        """A child alone, or all of whose main process this is."""
        if process is actor.process:
            self.kill(actor)
        else:
            self.world.faults += 1
            actor.kill_child(process)

    def _restart_later(self, actor: Any) -> None:
        """As a supervisor does."""
        draw = self.kernel.random
        delay = draw.choice([0.1, 0.5, 2.0, 5.0])
        self.kernel.call_at(self.kernel.now + round(delay * SECOND), lambda: self.restart(actor))

    def restart(self, actor: Any) -> None:
        there: list[tuple[dict[int, Any], Any]] = [
            (self.episode.beats, self.episode.start_beat), (self.episode.workers, self.episode.start_worker),
        ]  # fmt: skip
        for actors, start in there:
            if (number := next((number for number, each in actors.items() if each is actor), None)) is not None:
                start(number)

    def freeze(self, processes: list[Process], seconds: float, kind: str = "frozen") -> None:
        until = self.kernel.now + round(seconds * SECOND)
        self._struck("frozen", kind, processes[0], until=until / SECOND)
        for process in processes:
            self.kernel.freeze(process, until)

    def _strike(self, fault: dict[str, Any], state: str, process: Process) -> Any:
        """Do to a process what an aimed fault says."""
        do, seconds = fault["do"], fault["for"]
        self.world.coverage[state, fault["verb"], f"{fault['phase']} {do}"] += 1
        actor = self._actor_of(process)
        if actor is None:
            return None
        if do == "kill":
            self._kill_process(actor, process)
            return None
        if do == "freeze":
            self.freeze(self._processes(actor) if process is actor.process else [process], seconds)
            return None
        if do == "cut":
            self._cut(process, "store", seconds, "silent" if fault["at"] % 2 < 1 else "refused")
            return None
        late = round(seconds * SECOND)
        patience = _PATIENCE["broker" if fault["verb"] == "publish" else "store"]
        until = self.kernel.now + (patience if do == "lost" else max(late, patience))
        how = ("request " if fault["phase"] == "before" else "reply ") + do
        way = "broker" if fault["verb"] == "publish" else "server"
        self.world.slow(until, until + _BACKOFF, process)
        self._struck("cut", how, process, until=until / SECOND, verb=fault["verb"], **{"from": way})
        return "lost" if do == "lost" else late

    def _cut(self, process: Process, what: str, seconds: float, how: str, *, after: int = 0, name: str = "") -> None:
        """Cut it off for so long; what is on its way ``after`` from now still arrives."""
        until = self.kernel.now + after + round(seconds * SECOND)
        way = "server" if what == "store" else what
        # Who waits for an answer then waits on.
        told = until + (_PATIENCE[what] if how == "silent" else 0)
        self.world.slow(told, told + _BACKOFF, process)
        name = name or f"cut off from the {what}"
        self._struck("cut", name, process, until=told / SECOND, **{"from": way})

        def cut() -> None:
            if not self.over:
                self.world.cut(what, process, until, how)

        if after:
            self.kernel.call_at(self.kernel.now + after, cut)
        else:
            cut()

    # -- kinds

    def _aimed(self, fault: dict[str, Any]) -> None:
        def strike(process: Process, request: bytes) -> tuple[bool, Any]:
            if self._role_of(process) != fault["role"]:
                return False, None
            return True, self._strike(fault, self.world.state_of(request), process)

        self.world.arm(fault["phase"], fault["verb"], strike)

    def _lease_end(self, fault: dict[str, Any]) -> None:
        """Freeze whoever runs a body, so that it wakes up when its lease ends."""
        for _, process in self._in_bodies():
            lease = self.episode.plan.settings["lease"]
            self.freeze([process], max(lease + fault["by"], 0.01), "frozen until its lease ends")
            return

    def _late_confirm(self, fault: dict[str, Any]) -> None:
        """A beat stands still between publish and confirm, until who began the window is dead for a lease."""
        lease = self.episode.plan.settings["lease"]

        def at_confirm(process: Process, request: bytes) -> tuple[bool, Any]:
            if self._role_of(process) != "beat":
                return False, None
            self.freeze([process], lease + 0.9 + fault["by"], "frozen before its confirm")
            self._kill_at_begin(None)
            return True, None

        self.world.arm("before", "confirm", at_confirm)

    def _two_deaths(self, fault: dict[str, Any]) -> None:
        """A worker stands still until another that took its window over is dead for a lease, too."""
        settings = self.episode.plan.settings
        for _, process in self._in_bodies():
            seconds = 2 * settings["lease"] + 1.0 + settings["once"]["recovery_interval"] + fault["by"]
            self.freeze([process], seconds, "frozen until another is dead")
            self._kill_at_begin(next(iter(self.world.bodies[process].values())))
            return

    def _late_renewal(self, fault: dict[str, Any]) -> None:
        """The answer to a renewal comes just in time, and no further one is heard: the lease is over by its request."""
        late, seconds = _PATIENCE["store"] - SECOND // 10, 2 * self.episode.plan.settings["lease"]

        def at_renewal(process: Process, request: bytes) -> tuple[bool, Any]:
            if not self.world.bodies.get(process):
                return False, None
            self._cut(process, "store", seconds, "silent", after=late + SECOND // 100, name="cut off behind a renewal")
            return True, late

        self.world.arm("after", "renew", at_renewal)

    def _unseen_death(self, fault: dict[str, Any]) -> None:
        """A child dies in a body before its pool has heard that it began, and may give the same to another."""

        def at_accepted(child: Process, request: bytes) -> tuple[bool, Any]:
            worker = self._actor_of(child)
            if worker is None or child is worker.process:
                return False, None
            self.freeze([worker.process], 1.0, "frozen while its child dies")
            until = worker.process.frozen_until

            def at_body(process: Process, request: bytes) -> tuple[bool, Any]:
                unseen = self.kernel.now < until and not child.dead
                if unseen and process is child:
                    self.world.faults += 1
                    worker.kill_child(child, unseen=True)
                return not unseen or process is child, None

            self.world.arm("at", "body begins", at_body)
            return True, None

        self.world.arm("at", "accepted", at_accepted)

    def _kill_at_begin(self, window: tuple[str, float] | None) -> None:
        """Kill the next worker that begins this window, or any."""

        def strike(process: Process, request: bytes) -> tuple[bool, Any]:
            if window is not None and self.world.beginning != window:
                return False, None
            actor = self._actor_of(process)
            if actor is not None:
                self._kill_process(actor, process)
            return True, None

        self.world.arm("at", "body begins", strike)

    def _kill(self, fault: dict[str, Any]) -> None:
        if fault["role"] == "child":
            for worker in self._workers():
                for process in worker.processes[1:]:
                    if self.world.bodies.get(process):
                        self.world.faults += 1
                        worker.kill_child(process)
                        return
        actor = self._pick({**fault, "role": "beat" if fault["role"] == "beat" else "worker"})
        if actor:
            self.kill(actor)

    def _stop(self, fault: dict[str, Any]) -> None:
        actor = self._pick(fault)
        if actor and not actor.stopping:
            self.world.faults += 1
            actor.stop()
            self._when_ended(actor, lambda: self._restart_later(actor))

    def _when_ended(self, actor: Any, then: Any) -> None:
        if actor.process.dead:
            then()
        else:
            self.kernel.call_at(self.kernel.now + SECOND // 5, lambda: self._when_ended(actor, then))

    def _freeze(self, fault: dict[str, Any]) -> None:
        actor = self._pick(fault)
        if actor:
            self.freeze(self._processes(actor), fault["for"])

    def _suspend(self, fault: dict[str, Any]) -> None:
        actor = self._pick(fault)
        if actor:
            self.freeze(self._processes(actor), fault["for"], "suspended")
            for process in self._processes(actor):
                process.suspended += round(fault["for"] * SECOND)

    def _sleep(self, fault: dict[str, Any]) -> None:
        """Somebody stands still until long after everything has ended."""
        there: list[Any] = self._beats() if fault["role"] == "beat" else self._workers()
        if len(there) < 2:
            return
        actor = there[-1]
        self._struck("frozen", "asleep", actor.process, until=None)
        for process in self._processes(actor):
            self.kernel.freeze(process, FOREVER)
            self.sleepers.append(process)
        if actor.role == "worker" and actor.consumer is not None:
            consumer = actor.consumer
            self.kernel.call_at(self.kernel.now + 15 * SECOND, lambda: self.world.broker.lose(consumer))
        # Another one takes its part, in a place of its own: this one's isn't free.
        self.kernel.call_at(self.kernel.now + SECOND, lambda: self.episode.start_spare(actor))

    def _cut_off(self, what: str, fault: dict[str, Any]) -> None:
        actor = self._pick(fault)
        if actor:
            self._cut(actor.process, what, fault["for"], fault["how"])
            for process in self._processes(actor)[1:]:
                self.world.cut(what, process, self.kernel.now + round(fault["for"] * SECOND), fault["how"])

    def _away(self, what: str, fault: dict[str, Any]) -> None:
        until = self.kernel.now + round(fault["for"] * SECOND)
        told = until + (_PATIENCE[what] if fault["how"] == "silent" else 0)
        self.world.slow(told, told + _BACKOFF)
        target = "server" if what == "store" else what
        # Who had asked when it went away waits on; who asks when it is back doesn't.
        self._struck("away", f"{what} away", target, until=told / SECOND, back=until / SECOND)
        self.world.cut(what, None, until, fault["how"])

    _cut_store, _cut_broker = partialmethod(_cut_off, "store"), partialmethod(_cut_off, "broker")
    _store_away, _broker_away = partialmethod(_away, "store"), partialmethod(_away, "broker")

    def _scripts(self, fault: dict[str, Any]) -> None:
        self.world.faults += 1
        self.world.happened("scripts forgotten")
        self.world.server.raw.script_flush()

    def _workers_unknown(self, fault: dict[str, Any]) -> None:
        """The store has lost what workers consume, and they say it again when they always do."""
        self.world.faults += 1
        self.world.happened("workers forgotten")
        self.world.slow(self.kernel.now, self.kernel.now + round((WORKER_REPORTS + 3.0) * SECOND))
        self.world.server.raw.delete("once:workers")

    def _failover(self, fault: dict[str, Any]) -> None:
        if self.world.replica is not None:
            return
        lag = fault["for"]
        if not self.episode.plan.settings["once"]["wait_replicas"]:
            # What is lost then is lost, see docs/failures.md; an edit too.
            edited = any(each["kind"] in ("edit", "deploy") for each in self.episode.plan.faults)
            lag = 0.0 if edited else lag
        self.world.replica_stops()
        if lag and self.episode.plan.settings["once"]["wait_replicas"]:  # nothing is acted on meanwhile
            self.world.struck("away", "replica stops", "server", until=self.world.at + lag)
            until = self.kernel.now + round(lag * SECOND)
            self.world.slow(until, until + _BACKOFF)

        def takes_over() -> None:
            if not self.over:
                self._struck("failover", "failover", lose=lag)
                if lag and not self.episode.plan.settings["once"]["wait_replicas"]:
                    self.world.forgot_at = self.world.at
                self.world.replica_takes_over()

        self.kernel.call_at(self.kernel.now + round(lag * SECOND), takes_over)

    def _clock(self, fault: dict[str, Any]) -> None:
        actor = self._pick(fault)
        if actor:
            by = actor.process.skew / SECOND + fault["by"]
            self._struck("clock", "clock", actor.process, by=by)
            for process in self._processes(actor):
                process.skew += round(fault["by"] * SECOND)

    def _message_fate(self, fault: dict[str, Any]) -> None:
        self.world.faults += 1
        copies = 4 if fault["kind"] == "message twice" else 1
        self.world.broker.fates += [(fault["kind"], round(fault["for"] * SECOND))] * copies

    _message_lost = _message_twice = _message_late = _message_overtakes = _message_fate

    def _purge(self, fault: dict[str, Any]) -> None:
        self.world.faults += 1
        self.world.happened("queue purged")
        self.world.broker.purge()

    def _broker_connection(self, fault: dict[str, Any]) -> None:
        for worker in self._workers():
            if worker.consumer is not None and worker.consumer.unacked and not worker.process.frozen:
                self._struck("cut", "broker connection lost", worker.process, until=self.world.at, **{"from": "broker"})
                worker.lose_broker()
                return

    # -- deploys and edits

    def _deploy(self, fault: dict[str, Any]) -> None:
        """Restart the beats one by one with another schedule."""
        from .episode import description

        episode = self.episode
        entries = {name: entry for name, entry in episode.entries.items() if name not in fault["left"]}
        entries.update(fault["changed"])
        self.world.told.update(fault["changed"])
        asked = self.world.at
        episode.entries = entries
        numbers = sorted(episode.beats)

        def next_one() -> None:
            if self.over or not numbers:  # the beat that loaded last is right, even alone
                settings = self.episode.plan.settings
                for name, entry in fault["changed"].items():
                    self.world.write(
                        "schedule", entry=name, description=description(entry, settings), how="deploy", asked=asked
                    )
                for name in fault["left"]:
                    self.world.write("schedule", entry=name, description=None, how="deploy", asked=asked)
                return
            beat = episode.beats[numbers.pop(0)]
            if beat.entries is entries or beat.process.frozen_until >= FOREVER:  # asleep: another has its part
                next_one()
                return
            if beat.process.dead:
                self.kernel.call_at(self.kernel.now + SECOND, next_one)
                return
            beat.stop()
            when_gone(beat)

        def when_gone(beat: Beat) -> None:
            if beat.process.dead:
                self.restart(beat)
                next_one()
            elif self.over or beat.process.frozen_until >= FOREVER:
                next_one()
            else:
                self.kernel.call_at(self.kernel.now + SECOND // 5, partial(when_gone, beat))

        next_one()

    def _edit(self, fault: dict[str, Any]) -> None:
        from .actors import celery_schedule, once_options
        from .episode import description

        world, what, name, entry = self.world, fault["what"], fault["name"], fault["entry"]
        asked = world.at
        if name is None:
            names = sorted(each for each in self.episode.plan.entries if each in self.episode.entries)
            name = names[fault["which"] % len(names)]

        def do(schedules: Any) -> None:
            if what == "set":
                world.told[name] = entry
                look = round((self.episode.plan.settings["once"]["recovery_interval"] + 1.0) * SECOND)
                world.slow(self.kernel.now, self.kernel.now + look)  # until then beats have read it
                schedules.set(
                    name, task=f"sim.{entry['task']}", schedule=celery_schedule(entry), kwargs={"entry": name},
                    once=once_options(entry),
                )  # fmt: skip
                world.write(
                    "schedule", entry=name, description=description(entry, self.episode.plan.settings), asked=asked
                )
            elif what == "delete":
                if schedules.delete(name):
                    world.write("schedule", entry=name, description=None, asked=asked)
            elif what in ("pause", "resume", "pause and resume"):
                if what != "resume":
                    schedules.pause(name)
                    world.write("paused", entry=name, asked=asked)
                if what == "pause and resume":
                    self.kernel.sleep(round(fault["for"] * SECOND))
                if what != "pause" and not self.over:  # in the end all are paused
                    schedules.resume(name)
                    world.write("resumed", entry=name, asked=asked)
            else:
                self._order(schedules, what, name, asked)

        world.happened(f"edit: {what}")
        self.episode.editor.todo.put(do)

    def _order(self, schedules: Any, what: str, name: str, asked: float) -> None:
        from celery_once_beat.features.orders.orders import Orders
        from celery_once_beat.lookup import Lookup

        from .episode import is_tracked

        store = schedules._store
        again = what == "backfill"
        if again and not is_tracked(self.world.told[name]):
            return  # ``celery once`` refuses that
        seen = Lookup(store).entry(name, 10).windows
        starts = sorted([window.start for window in seen if (window.open is None) == again][:2])
        for start in starts:  # before: it may be carried out although nobody hears of it
            seconds = start_of(start)
            self.world.write("asked" if again else "revoked", entry=name, start=seconds)
            self.world.ordered.add((name, seconds))
        if starts and again:
            Orders(store).run(name, starts)
        elif starts:
            Orders(store).abandon(name, starts, running=True)

    # -- their end

    def heal(self) -> None:
        """No fault any more: who stands still goes on, who is dead is started, every way is open."""
        self.over = True
        world, kernel = self.world, self.kernel
        world.heal()
        for process in kernel.processes:
            if process.frozen_until > kernel.now and process not in self.sleepers:
                kernel.thaw(process)

    def wake(self) -> None:
        """Let those go on that slept for an hour."""
        for process in self.sleepers:
            self.kernel.thaw(process)
