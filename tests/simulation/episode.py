"""One episode: a plan, made of a seed; and what became of it, as a history.

A plan is data: settings, entries, faults. So it can be made smaller, and run again as it is.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from celery_once_beat import signals
from celery_once_beat.features import FEATURES
from celery_once_beat.lookup import Lookup
from celery_once_beat.settings import Settings
from celery_once_beat.store import Store

from .actors import LONGEST, TELL, Beat, Editor, Worker, make_app
from .faults import Faults, add_faults
from .kernel import EPOCH, HOUR, SECOND, Process
from .network import Server
from .replay import Replay
from .standing_clock import StandingClock
from .world import Books, World, start_of

#: Seconds: no fault before, and how long all goes on after the last one.
QUIET, AFTER = 4.0, 20.0
#: Seconds below which the judge looks at nothing.
STEP = 0.5
#: The limit that some entries share.
LIMIT = "few"
#: The number of a process that is started beside one that stands still; one more is for the time after that.
SPARE = 7


@dataclass
class Plan:
    """What is done in one episode."""

    seed: str
    settings: dict[str, Any]
    entries: dict[str, Any]
    faults: list[dict[str, Any]]
    #: Seconds with faults.
    lasts: float


def make_plan(seed: str) -> Plan:
    """Make the plan of a seed."""
    draw = random.Random(f"{seed}/plan")
    once = {
        "lease": draw.choice([2.0, 3.0, 5.0]),
        "claim_lease": draw.choice([0.5, 1.5]),
        "recovery_interval": draw.choice([0.5, 1.0, 2.0]),
        "publish_timeout": draw.choice([2.0, 5.0]),
        "start_timeout": draw.choice([6.0, 12.0]),
        "max_attempts": draw.choice([3, 20, 20]),
        "marker_ttl": draw.choice([5.0, 60.0, 600.0]),
        "history_size": 2000,
        "wait_replicas": draw.choice([0, 0, 1]),
        "tolerance": draw.choice([5.0, 60.0]),
        "limits": {LIMIT: draw.choice([1, 2, 3])},
    }
    settings = {
        "once": once,
        "lease": once["lease"],
        "acks_late": draw.random() < 0.5,
        "reject_on_worker_lost": draw.random() < 0.5,
        "prefetch": draw.choice([1, 2, 4]),
        "visibility": draw.choice([None, None, 12.0, 40.0]),
        "beats": draw.choice([2, 2, 3]),
        "workers": draw.choice([2, 2, 3]),
        "children": 8,
        "prefork": draw.random() < 0.4,
    }
    if settings["prefork"]:
        settings["children"] = 4
    entries: dict[str, Any] = {}
    rate = 0.0
    while rate < 3.0:
        every = draw.choice([2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.5, 10.0, 15.0, 4.44])
        rate += 1 / every
        entry = make_entry(draw, every)
        entries[f"e{len(entries)}"] = entry
    entries["cron"] = {**make_entry(draw, 60.0), "kind": "crontab"}
    _add_children(random.Random(f"{seed}/children"), entries)
    plan = Plan(seed, settings, entries, [], 70.0)
    add_faults(plan, 40)
    return plan


#: What an entry may ask of a feature, where that is on.
_OPTIONS_OF = {"overlap": "admission", "limit": "admission", "on_failure": "alerts", "deadline": "alerts"}


def make_entry(draw: random.Random, every: float) -> dict[str, Any]:  # noqa: PLR0912  # a draw each
    """One entry's description."""
    entry: dict[str, Any] = {
        "kind": "interval",
        "every": every,
        "task": draw.choice(["once", "once", "early", "late", "late"]),
        "takes": draw.choice([0.05, 0.3, 0.8]),
        "catch_up": draw.choice(["all", "all", "latest", "none"]),
    }
    if draw.random() < 0.1:
        entry["task"] = "plain"
    elif draw.random() < 0.08:
        entry["tracked"] = False
    if draw.random() < 0.25:
        entry["overlap"] = "skip"
    if draw.random() < 0.1:
        entry["grace"] = draw.choice([8.0, 20.0])
    recover = draw.random() >= 0.1
    if draw.random() < 0.1:
        entry["max_attempts"] = draw.choice([1, 2])
    if draw.random() < 0.1:
        entry["expires"] = draw.choice([4.0, 15.0])
    if draw.random() < 0.3:
        entry["fails"] = draw.choice([0.2, 0.5])
        if draw.random() < 0.5:
            entry["retry_failed_after"] = draw.choice([1.0, 4.0])
    if draw.random() < 0.3:
        entry["retries"] = 0.25
    if draw.random() < 0.2:
        entry["rejects"] = 0.15
    if draw.random() < 0.3:
        entry["long"] = 0.2
    if entry.get("retries") or entry.get("rejects"):
        entry["max_attempts"] = draw.choice([2, 4])  # a retry counts as none
    if not recover and entry["task"] != "plain":
        entry["recover"] = False
        for name in ("retries", "rejects", "retry_failed_after", "max_attempts"):
            entry.pop(name, None)
    if is_tracked(entry):
        _add_waits(draw, entry)
        if draw.random() < 0.2:
            entry["on_failure"] = TELL
        if draw.random() < 0.2:
            entry["deadline"] = draw.choice([2.0, 6.0])
    for option, feature in _OPTIONS_OF.items():
        if feature not in FEATURES:
            entry.pop(option, None)
    return entry


def _add_waits(draw: random.Random, entry: dict[str, Any]) -> None:
    """Let its windows wait for each other, or for a place. All of them have to run one day: they mustn't take long."""
    buffer = draw.choice(["", "", "", "buffer_one", "buffer_one", "buffer_all"])
    seldom = entry["every"] >= 4.0
    if buffer and (seldom or buffer != "buffer_all"):
        entry["overlap"] = buffer
    if seldom and draw.random() < 0.25:
        entry["limit"] = LIMIT
    if entry.get("limit") or entry.get("overlap") == "buffer_all":
        entry["long"] = min(entry.get("long", 0.0), 0.1)


def _add_children(draw: random.Random, entries: dict[str, Any]) -> None:
    """Let some send a tracked child at their end. A draw of its own: episodes without children are as they were."""
    if "keyed" in FEATURES and draw.random() < 0.4:
        for entry in filter(is_tracked, entries.values()):
            if entry.get("recover", True) and draw.random() < 0.4:
                entry["child"] = True


def is_tracked(entry: dict[str, Any]) -> bool:
    """Whether workers close its windows."""
    return bool(entry.get("tracked", True)) and entry["task"] != "plain"


def tracked(entry: dict[str, Any]) -> dict[str, Any]:
    """The same entry, so that each of its windows is in its history."""
    return {**{name: value for name, value in entry.items() if name != "tracked"}, "task": _TRACKED[entry["task"]]}


_TRACKED = {"once": "once", "early": "early", "late": "late", "plain": "once"}


def description(entry: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """An entry as the judge knows it: when its windows start, and what was set for it."""
    every = 60.0 if entry["kind"] == "crontab" else entry["every"]
    first = (-EPOCH * SECOND) % round(every * SECOND) / SECOND
    again = any(entry.get(name) for name in ("retries", "rejects", "retry_failed_after"))
    attempts = entry.get("max_attempts") or settings["once"]["max_attempts"]
    if not entry.get("recover", True):
        attempts = 1
    return {
        "every": every,
        "from": first,
        "tracked": is_tracked(entry),
        "max_attempts": attempts,
        "catch_up": entry["catch_up"],
        "grace": entry.get("grace"),
        "overlap": entry.get("overlap"),
        "limit": entry.get("limit"),
        "deadline": entry.get("deadline"),
        "on_failure": "on_failure" in entry,
        "expires": entry.get("expires"),
        "retry_failed": again,
    }


class Episode:
    """One plan, run."""

    def __init__(
        self, plan: Plan, clock: StandingClock, server_clock: StandingClock, server: Server, model: Replay | None = None
    ) -> None:
        self.plan = plan
        self.world = World(plan.seed, clock, server_clock, server, plan.settings)
        self.world.model = model
        self.kernel = self.world.kernel
        self.entries = dict(plan.entries)
        self.world.told = dict(plan.entries)
        self.beats: dict[int, Beat] = {}
        self.workers: dict[int, Worker] = {}
        self._generations = 0
        #: Entries whose definition was another one meanwhile.
        deploys = [fault for fault in plan.faults if fault["kind"] == "deploy"]
        self.changed = {name for fault in deploys for name in (*fault["changed"], *fault["left"])}
        self.world.on_death = self._on_death

    # -- who is there

    def start_beat(self, number: int) -> None:
        self._generations += 1
        place = f"beat{number}"
        self.beats[number] = Beat(self.world, f"{place}-{self._generations}", place, self.entries)

    def start_worker(self, number: int) -> None:
        settings = self.plan.settings
        self._generations += 1
        self.workers[number] = Worker(
            self.world, f"worker{number}-{self._generations}", self.places(number), children=settings["children"],
            prefork=settings["prefork"],
        )  # fmt: skip

    def start_spare(self, instead: Any) -> None:
        """Start one more, beside one that stands still for long."""
        (self.start_beat if instead.role == "beat" else self.start_worker)(SPARE)

    def places(self, number: int) -> tuple[str, ...]:
        """The names by which the judge knows a worker: its children's, where it has any."""
        settings = self.plan.settings
        if not settings["prefork"]:
            return (f"worker{number}",)
        return tuple(f"worker{number}.{child}" for child in range(settings["children"]))

    def _on_death(self, process: Process) -> None:
        for worker in self.workers.values():
            if worker.process is process:
                self.world.wait(-worker.jobs.clear(), "worker")
                if worker.consumer is not None:
                    self.world.broker.lose(worker.consumer)

    # -- the run

    def run(self) -> Books:
        world, kernel, plan = self.world, self.kernel, self.plan
        settings = plan.settings
        kernel.set_server_clock()
        world.server.raw.flushall()
        world.server.raw.script_flush()
        self._write_settings()

        def on_stale(window: Any, **_: Any) -> None:
            world.happened("stale")
            world.stale.append((window.entry, start_of(window.start), window.fence, world.at))

        def on_refused(window: Any, reason: str, **_: Any) -> None:
            places = world.places(world.process)
            world.refused.append((window.entry, start_of(window.start), reason, world.at, places))

        def on_late(window: Any, **_: Any) -> None:
            world.write("told", entry=window.entry, start=start_of(window.start), kind="late")

        signals.window_late.connect(on_late, weak=False)
        signals.window_stale.connect(on_stale, weak=False)
        signals.window_refused.connect(on_refused, weak=False)
        try:
            for number in range(settings["beats"]):
                self.start_beat(number)
            for number in range(settings["workers"]):
                self.start_worker(number)
            self.editor = Editor(world, "editor")
            faults = Faults(self)
            faults.plan_all()
            end = QUIET + plan.lasts
            kernel.run(round(end * SECOND))
            faults.heal()
            kernel.run(kernel.now + 6 * SECOND)  # who is to be started is started
            world.write("healed")
            world.healed = True
            kernel.run(round((world.at + AFTER) * SECOND))
            self._drain()
            self._wake(faults)
            self._read()
            world.write("end")
        finally:
            signals.window_late.disconnect(on_late)
            signals.window_stale.disconnect(on_stale)
            signals.window_refused.disconnect(on_refused)
            kernel.kill_all()
        windows = {(line["entry"], line["start"]) for line in world.history if line["what"] in ("started", "recorded")}
        world.windows, world.steps = len(windows), kernel.steps
        world.waited, world.busy = world.waited + world.crowd("broker"), world.crowd("worker")
        world.children = {child: at for child, at in world.children.items() if world.forgot_at < at < inf}
        world.crashes = ["".join([who, ": ", *traceback.format_exception(exc)]) for who, exc in kernel.crashes]
        return Books(**{each.name: getattr(world, each.name) for each in fields(Books)})  # nothing else is kept

    def _drain(self) -> None:
        """Let no more windows come, and all that are open end."""
        world, kernel = self.world, self.kernel
        kernel.set_server_clock()
        for name in self.world.told:
            world.pause(name)
            world.write("paused", entry=name)
        until = kernel.now + round(self.bound() * SECOND)
        while kernel.now < until and self._owes():
            kernel.run(min(kernel.now + SECOND, until))
        # Who is to be told of what ended last is told; also that it is late, where it didn't end as done.
        deadlines = [description(entry, self.plan.settings)["deadline"] or 0.0 for entry in self.plan.entries.values()]
        kernel.run(kernel.now + round((max(deadlines) + self._told_late()) * SECOND))

    def _wake(self, faults: Faults) -> None:
        """An hour later: who slept goes on, beside others that have just been started."""
        kernel = self.kernel
        end = kernel.now + max(HOUR, round(1.1 * self.bound()) * SECOND)
        for process in list(kernel.processes):
            if process not in faults.sleepers:
                kernel.kill(process)  # in order: nothing is left to them
        kernel.run(end)
        if not faults.sleepers:
            return
        self.start_beat(SPARE + 1)
        self.start_worker(SPARE + 1)
        kernel.run(kernel.now + 3 * SECOND)
        faults.wake()
        kernel.run(kernel.now + 8 * SECOND)

    def bound(self) -> float:
        """Seconds within which all that is open has to end once there are no more faults."""
        return 900.0 + 4 * self.plan.settings["once"]["start_timeout"]

    def _write_settings(self) -> None:
        settings, once = self.plan.settings, self.plan.settings["once"]
        beats = [f"beat{number}" for number in (*range(settings["beats"]), SPARE, SPARE + 1)]
        workers = [self.places(number) for number in (*range(settings["workers"]), SPARE, SPARE + 1)]
        self.world.write(
            "settings",
            entries={name: description(entry, settings) for name, entry in self.plan.entries.items()},
            lease=once["lease"], renew=once["lease"] / 3, claim_lease=once["claim_lease"],
            start_timeout=once["start_timeout"], tolerance=once["tolerance"],
            recovery_interval=once["recovery_interval"], wait_replicas=once["wait_replicas"],
            # As docs/settings.md derives them.
            beat_late=once["claim_lease"] + once["recovery_interval"] + 0.5,
            worker_late=once["lease"] + 1.0 + once["recovery_interval"] + 1.0,
            limits=once.get("limits", {}),
            # A place outlives its lease; docs/alerts.md: the next look, or after publish_timeout another beat.
            place_late=1.5 * once["lease"] + 1.0 + once["recovery_interval"] + 1.0,
            told_late=self._told_late(),
            beats=beats, workers=[place for places in workers for place in places],
            concurrency=1 if settings["prefork"] else settings["children"], longest=LONGEST, step=STEP, renew_noise=0.1,
        )  # fmt: skip
        for place in (*beats[-2:], *workers[-2], *workers[-1]):
            self.world.not_yet(place)

    def _told_late(self) -> float:
        once = self.plan.settings["once"]
        return float(once["recovery_interval"] + once["publish_timeout"] + 1.0)

    def _owes(self) -> bool:
        self.kernel.set_server_clock()
        return bool(self.world.server.count_open()) or any(
            bodies for process, bodies in self.world.bodies.items() if not process.frozen
        )

    def _read(self) -> None:
        """What the store shows of each entry and each window at the very end."""
        self.kernel.set_server_clock()
        reader = Process(self.kernel, "reader")

        def read() -> None:
            lookup = Lookup(Store(Settings.from_app(make_app(self.world, {}))))
            for name in [*self.world.told, *children]:
                self._tell(name, lookup.entry(name, 2000))

        children: dict[str, list[float]] = {}
        for name, start in sorted(self.world.children):
            children.setdefault(name, []).append(start)
        for name, starts in children.items():
            most = self.plan.settings["once"]["max_attempts"]
            self.world.write("schedule", entry=name, description={"starts": starts, "max_attempts": most}, asked=0.0)
        for line in self.world.history:
            if line["what"] == "told" and line["kind"] == "ended":
                line["outcome"] = _OUTCOMES.get(line["outcome"], line["outcome"])
        reader.start("reader", read)
        self.kernel.run(self.kernel.now + 10 * SECOND)

    def _tell(self, name: str, seen: Any) -> None:
        """Write the outcome of each window of an entry. Those that were missed or untracked are only counted there."""
        account = seen.account
        if account is None:
            return
        outcomes: dict[float, str | None] = {}
        missed: list[tuple[float, int, float]] = []
        lines: list[tuple[float, str | None, float]] = []
        for window in reversed(seen.windows):
            start, past = start_of(window.start), window.past
            if past is not None and past.missed:
                missed.append((start, past.missed, start_of(past.closed)))
                continue
            outcome = None if past is None else _OUTCOMES.get(past.outcome, past.outcome)
            outcomes[start] = outcome
            lines.append((start, outcome, self.world.at if past is None else start_of(past.closed)))
        for newest, number, at in missed:
            left_over = number
            for start in self._before(name, newest, at):
                if left_over and start not in outcomes:
                    left_over -= 1
                    outcomes[start] = "missed"
                    lines.append((start, "missed", at))
        counts: Counter[str] = Counter()
        for outcome, number in account.counts.items():
            counts[_OUTCOMES.get(outcome, outcome)] += number
        # Untracked windows, and what the store learned of only when it was over, are counted and not remembered.
        left = Counter(counts)
        left.subtract(outcome for outcome in outcomes.values() if outcome)
        if name not in self.changed and not account.apart:
            for start in self._before(name, start_of(account.cursor), self.world.at):
                outcome = next((each for each in ("untracked", "done", "failed") if left[each] > 0), None)
                if outcome and start not in outcomes and start > start_of(account.since):
                    left[outcome] -= 1
                    lines.append((start, outcome, self.world.at))
        for start, outcome, at in sorted(lines, key=lambda line: (line[2], line[0])):
            self.world.write("recorded", entry=name, start=start, outcome=outcome)["at"] = at
        if (
            name in self.plan.entries
            and not account.apart
            and name not in self.changed
            and not any(name == each for each, _ in self.world.ordered)
        ):
            self.world.write("counted", entry=name, outcomes=dict(sorted(counts.items())))

    def _before(self, name: str, newest: float, at: float) -> Iterator[float]:
        """The windows of an entry from the newest back, each by the definition that was in force then."""
        settings, *rest = self.world.history
        told = [(-1.0, 0.0, settings["entries"].get(name))]
        told += [
            (line.get("asked", line["at"]), line["at"], line["description"])
            for line in rest
            if line["what"] == "schedule" and line["entry"] == name and line.get("asked", line["at"]) <= at
        ]
        ends = [*(end for _, end, _ in told[1:]), self.world.at]
        grids = [
            (round(each["every"] * SECOND), since, until)
            for (since, _, each), until in zip(told, ends, strict=True)
            if each is not None
        ]
        start: int | None = round(newest * SECOND)
        while start is not None and start > 0:
            yield start / SECOND
            before = []
            for step, since, until in grids:
                last = min(start - 1, round(until * SECOND)) + EPOCH * SECOND
                found = last - last % step - EPOCH * SECOND
                before += [found] if found > since * SECOND else []
            start = max(before, default=None)


#: What ends a window because of a limit is a failure to the judge; a person's giving up is a revoke.
_OUTCOMES = {"abandoned": "failed", "dropped": "failed", "cancelled": "revoked"}
