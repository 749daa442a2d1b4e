"""Says of a history whether it keeps the promise.

It is written from README's promise and docs/failures.md, docs/windows.md and docs/overlap.md alone, and imports nothing
of the package: a judge that shared code with what it judges would share its errors. It reads a history line by line,
and keeps some hundred bytes of each window.

A history is JSON, one object a line, in the order in which things happened; times are seconds of true time.
``judge_history`` lists what a line may be, ``RULES`` what is judged, ``judge_faults`` what a fault allows. All of it
follows from the settings, the faults in force, and who is known to have waited, never from what the system says of
itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from math import inf
from typing import Any

from simulation.judge_faults import Faults
from simulation.judge_history import Entry, Run, Settings, Wait, Window, settling
from simulation.judge_times import HistoryError, Spans, key_of

_MOST_OLDER = 20  # of the windows that may have waited for their turn, so many are looked at
KEPT = 10_000  # violations that are listed; all are counted
RULES = {
    "early": "nothing runs before its start",
    "not-owed": "what no definition in force has as a window neither runs nor is recorded",
    "late": "a window begins in time; only what the table of failures names delays it",
    "late-again": "after its worker was killed, a window begins again in time",
    "overlap": "two executions of a window overlap only if the first was out of contact for longer than its lease",
    "beside": "windows of an entry whose overlap isn't allow don't run side by side",
    "limit": "of all entries that share a limit no more windows run at once than it says",
    "turn": "of the windows of an entry that wait for each other the oldest begins first",
    "repeat": "after an execution in contact has ended, the window isn't executed again",
    "again": "after the record of its outcome, a window isn't executed again",
    "attempts": "no window has more executions than max_attempts",
    "fence": "of two executions of a window, the later has the larger fence",
    "grace": "a window older than its grace doesn't begin",
    "catch-up": "of the windows that no beat was there for, only those run that catch_up keeps",
    "missed": "a window is recorded as missed only if catch_up or grace says so",
    "outcome": "an outcome is recorded only of what happened",
    "lost": "every window that is owed ends in a recorded outcome, within a stated time after the last fault",
    "law": "an entry's counters say what its windows' records say",
    "told": "on_failure is told of each window that ends in anything but done, and of no other",
    "told-late": "of each window that isn't done by its deadline that is said, and of no other",
    "told-twice": "the same is told of a window once; twice only if its beat was hit about then, or the server away",
    "short": "the history goes on for long enough after the last fault to judge that everything ends",
}


@dataclass
class Violation:
    """A rule that a history breaks, and the times that show it."""

    rule: str
    entry: str | None
    start: float | None
    facts: dict[str, Any]


@dataclass
class Judgement:
    """What is wrong."""

    violations: list[Violation] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)  # violations by rule

    @property
    def clean(self) -> bool:
        return not self.found


class Judge:
    """Reads a history fact by fact."""

    def __init__(self, waited: Iterable[Wait] = ()) -> None:
        """``waited`` is what the history doesn't tell."""
        self.waited = tuple(waited)
        self.judgement = Judgement()
        self.settings: Settings  # the first line's, as the next one is
        self.faults: Faults
        self.begun = False
        self.entries: dict[str, Entry] = {}
        self.sharing: dict[str, dict[str, Entry]] = {}  # limit → entries that name it
        # What is judged once it is known how the windows ended that others waited for.
        self.begins: list[tuple[str, Entry, Window, Run, float, float]] = []
        self.turns: list[tuple[Entry, Window, Window, float]] = []
        self.at = 0.0
        self.healed: float | None = None
        self.ended: float | None = None

    def read(self, lines: Iterable[str | bytes]) -> Judgement:
        """Judge the lines of a history."""
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                fact = json.loads(line)
                self.take(fact)
            except (HistoryError, ValueError, TypeError, KeyError, AttributeError) as error:
                said = str(error) if isinstance(error, HistoryError) else f"{type(error).__name__}: {error}"
                raise HistoryError(f"line {number}: {said}: {line[:200]!r}") from error
        return self.finish()

    def take(self, fact: dict[str, Any]) -> None:
        """Judge one fact."""
        what = fact["what"]
        if self.begun == (what == "settings"):
            raise HistoryError("the first line, and no other, tells the settings")
        if what != "recorded":
            if fact["at"] < self.at:
                raise HistoryError(f"at: found {fact['at']}, expected no less than {self.at}, as the line before")
            self.at = fact["at"]
        getattr(self, f"_{what}")(fact)

    def _settings(self, fact: dict[str, Any]) -> None:
        self.settings = Settings.read(fact)
        self.faults = Faults(self.settings, self.waited)
        self.begun = True
        for name, description in fact["entries"].items():
            self._change(name, 0.0, 0.0, description, "deploy")

    def _change(self, name: str, asked: float, at: float, description: dict[str, Any] | None, how: str) -> None:
        entry = self.entry(name)
        entry.change(asked, at, description, how)
        if description is not None and (limit := description.get("limit")) is not None:
            self.sharing.setdefault(limit, {})[name] = entry

    def entry(self, name: str) -> Entry:
        if name not in self.entries:
            self.entries[name] = Entry(name)
        return self.entries[name]

    def _window(self, fact: dict[str, Any]) -> tuple[Entry, Window]:
        entry = self.entry(fact["entry"])
        return entry, entry.window(float(fact["start"]))

    def _schedule(self, fact: dict[str, Any]) -> None:
        asked, how = fact.get("asked", fact["at"]), fact.get("how", "edit")
        self._change(fact["entry"], asked, fact["at"], fact["description"], how)

    def _paused(self, fact: dict[str, Any]) -> None:
        self.entry(fact["entry"]).pause(fact.get("asked", fact["at"]), fact["at"])

    def _resumed(self, fact: dict[str, Any]) -> None:
        self.entry(fact["entry"]).resume(fact.get("asked", fact["at"]), fact["at"])

    def _asked(self, fact: dict[str, Any]) -> None:
        self._window(fact)[1].asked += 1

    def _revoked(self, fact: dict[str, Any]) -> None:
        self._window(fact)[1].revoked = fact["at"]

    def _received(self, fact: dict[str, Any]) -> None:
        entry, window = self._window(fact)
        window.receipts = [*(window.receipts or ()), (fact["process"], fact["at"])]
        if not window.executions:
            entry.received[key_of(window.start)] = window

    def _told(self, fact: dict[str, Any]) -> None:
        entry, window = self._window(fact)
        what, at = (fact["kind"], fact.get("outcome")), fact["at"]
        before = (window.told or {}).get(what)
        if before is not None and not window.asked and not self._may_tell_again(before):
            self._violated("told-twice", entry, window.start, told=str(what), before=before)
        window.told = {**(window.told or {}), what: at}

    def _may_tell_again(self, before: float) -> bool:
        """Whether a beat was hit about then: it may have told it and not noted that, or have been about to tell it."""
        faults, late = self.faults, self.settings.told_late
        spans = (faults.beat_hits, faults.server, faults.failed_over)
        return any(any(each.between(before - late, before + late)) for each in spans)

    def _counted(self, fact: dict[str, Any]) -> None:
        self.entry(fact["entry"]).counted = {name: number for name, number in fact["outcomes"].items() if number}

    def _fault(self, fact: dict[str, Any]) -> None:
        if self.healed is not None:
            raise HistoryError("a fault after healed")
        self.faults.take(fact, self._window(fact)[1] if "entry" in fact else None)

    def _healed(self, fact: dict[str, Any]) -> None:
        self.healed = fact["at"]

    def _end(self, fact: dict[str, Any]) -> None:
        self.ended = fact["at"]
        self.faults.free(fact["at"])

    def _loaded(self, run: Run, start: float) -> bool:
        """Whether a beat must have loaded its definition by then: one that was deployed counts from its first load."""
        hit = any(any(self.faults.down[beat].between(run.at, start)) for beat in self.settings.beats)
        return not (run.deployed and hit) or self.faults.last_claim(run, run.at) <= start

    def _standing(self, entry: Entry, start: float) -> tuple[str, Run | None]:
        """Whether a window is owed: yes, no, or maybe, as a definition changed when it was due."""
        found: tuple[str, Run | None] = ("no", None)
        for run in reversed(entry.runs):
            if not run.asked <= start <= (run.end[1] if run.end else inf) or start not in run.grid:
                continue
            surely = run.at < start and self._loaded(run, start)
            if surely and run.end:
                surely = start <= run.end[0] and self.faults.last_claim(run, start) <= run.end[0]
            if surely:
                return "yes", run
            found = ("maybe", run)
        return found

    def _violated(self, rule: str, entry: Entry | None, start: float | None, **facts: Any) -> None:
        self.judgement.found[rule] += 1
        if len(self.judgement.violations) < KEPT:
            name = entry.name if entry else None
            self.judgement.violations.append(Violation(rule, name, start, {"at": self.at, **facts}))

    def _started(self, fact: dict[str, Any]) -> None:
        entry, window = self._window(fact)
        at, process, execution = fact["at"], fact["process"], fact["execution"]
        if execution in entry.open:
            raise HistoryError(f"execution: {execution!r} runs already")
        start = window.start
        self.faults.free(at)
        if at < start:
            self._violated("early", entry, start, execution=execution)
        standing, run = self._standing(entry, start)
        tracked = run is None or any(one.get("tracked", True) for one in run.options(start, at))
        woke = self.faults.woke(process, at)
        if tracked:
            if run is not None and standing == "yes" and not window.asked:
                self._judge_begin(entry, window, run, process)
                if not woke and not window.executions:
                    self._note_turn(entry, window, run)
            self._judge_overlap(entry, window, fact, run, woke=woke)
            self._judge_limit(entry, window, run, woke=woke)
            self._judge_again(entry, window, execution, run, woke=woke)
            self._judge_fence(entry, window, fact)
        window.executions += 1
        if window.first is None:
            window.first = at
        if not woke:
            window.last = at
        window.since = window.receipts = window.events = None
        window.open = {**(window.open or {}), execution: (process, at)}
        entry.open[execution] = (window, process, at)
        entry.received.pop(key_of(start), None)
        self.faults.occupied(process, 1, at)

    def _judge_begin(self, entry: Entry, window: Window, run: Run, process: str) -> None:
        at, start, one = self.at, window.start, self.settings
        options = run.options(start, at)
        if window.executions:
            if window.since is not None and not window.open:
                self._judge_late("late-again", entry, window, run, options, window.since)
            return
        self._judge_late("late", entry, window, run, options, start)
        grace = max(inf if (given := each.get("grace")) is None else given for each in options)
        slept = any(self.faults.down[process].between(at - one.step, at))  # between its begin and its first line
        slept = slept or any(  # or another one was hit there: this isn't the first to begin it
            got - start <= grace and any(self.faults.hits[worker].between(got, got + one.step))
            for worker, got in window.receipts or ()
        )
        if not slept and at - start > grace + one.step:
            self._violated("grace", entry, start, grace=grace)
        if len(options) == 1:
            first = self.faults.first_claim(run, start)
            if first - start > one.tolerance + one.step:
                self._judge_catch_up(entry, window, run, options[0], first)

    def _judge_late(
        self, rule: str, entry: Entry, window: Window, run: Run, options: list[dict[str, Any]], since: float
    ) -> None:
        """Judge a begin now; or, if the window may have had to wait for others, once it is known how those ended."""
        if any(waits(given) for given in options):
            seen = copy(window)  # what its messages met until now
            self.begins.append((rule, entry, seen, run, since, self.at))
        else:
            self._judge_begun(rule, entry, window, run, since, self.at)

    def _judge_begun(self, rule: str, entry: Entry, window: Window, run: Run, since: float, at: float) -> None:
        one = self.settings
        rest = one.step if rule == "late" else one.worker_late + one.step
        more = self._others(entry, window, run, since, at)
        deadline, why = self.faults.deadline(window, since, rest, at, run, more)
        if at > deadline:
            told = {"due" if rule == "late" else "killed": since, "deadline": deadline, "because": why}
            self._violated(rule, entry, window.start, began=at, **told)

    def _others(
        self, entry: Entry, window: Window, run: Run, since: float, at: float
    ) -> list[tuple[Spans, float, str]]:
        """For what a window may have to wait: of its entry, and of its limit, what is older or began before it."""
        options, one, found = run.options(since, at), self.settings, []
        if any((given.get("overlap") or "").startswith("buffer") for given in options):
            spans = self._open_spans(entry, [entry], window, at)
            found.append((spans, one.worker_late + one.step, "another window went first"))
        for limit in {given["limit"] for given in options if given.get("limit") is not None}:
            spans = self._open_spans(entry, self.sharing[limit].values(), window, at)
            found.append((spans, one.place_late + one.step, "its limit had no place"))
            # A worker that is hit, or whose request comes late, may hold a place longer than its window lasts.
            if any(self.faults.worker_hits.between(since - 2 * one.place_late, since)):
                held = Spans()
                for _, end in spans.between(since - one.place_late, since):
                    held.add(since, end + one.place_late)
                found.append((held, one.step, "a place of its limit was nobody's"))
        return found

    def _open_spans(self, own: Entry, entries: Iterable[Entry], window: Window, at: float) -> Spans:
        """When other windows were due and hadn't ended that a window which began at a time had to let go first."""
        spans = Spans()
        for entry in entries:
            for other in entry.windows.values():
                if entry is own and other.start == window.start:
                    continue
                if other.start < window.start or (other.first is not None and other.first < at):
                    spans.add(other.start, max(other.start, inf if other.recorded is None else other.recorded))
        return spans

    def _note_turn(self, entry: Entry, window: Window, run: Run) -> None:
        """Older windows that had asked to begin before the turn came to this one, and hadn't begun."""
        at, one = self.at, self.settings
        due = window.start
        options = run.options(due, at)
        struck = (self.faults.worker_hits, self.faults.server)
        quiet = not any(any(spans.between(due - one.step, at)) for spans in struck)
        if not quiet or not all((given.get("overlap") or "").startswith("buffer") for given in options):
            return
        if any(given.get("expires") is not None for given in options):
            return  # a worker whose clock is ahead may have discarded an older one
        for other in sorted(entry.received.values(), key=lambda each: -each.start)[:_MOST_OLDER]:
            if other.start >= window.start or other.asked or self._standing(entry, other.start)[1] is not run:
                continue
            copies: dict[float, list[str]] = {}  # several got it at one time: one of them has it
            for worker, got in other.receipts or ():
                copies.setdefault(got, []).append(worker)
            countdown = 0.0
            for got, who in sorted(copies.items()):
                if all(self._had_asked(each, got, entry.freed, countdown) for each in who):
                    self.turns.append((entry, window, other, at))
                    break
                # It may have been put back, to run in a while by the clock of whoever gets it next.
                countdown = one.recovery_interval + self.faults.clocks_apart(got)

    def _had_asked(self, worker: str, got: float, until: float, countdown: float) -> bool:
        """Whether a worker that got a message then must have asked to begin it before a time."""
        step, faults = self.settings.step, self.faults
        asked = got + countdown + 2 * step
        lists = (faults.hits[worker], faults.busy[worker], faults.server, faults.failed_over)
        return asked < until and not any(any(spans.between(got - step, asked)) for spans in lists)

    def _judge_limit(self, entry: Entry, window: Window, run: Run | None, *, woke: bool) -> None:
        limits = {given.get("limit") for given in run.options(window.start, self.at)} if run else set()
        limit = limits.pop() if len(limits) == 1 else None
        if limit is None:
            return
        most, running = self.settings.limits[limit], []
        for other in self.sharing[limit].values():
            for another, process, began in other.open.values():
                if another is window or other.description is None or other.description.get("limit") != limit:
                    continue
                if not self.faults.excuse(process, began, self.at, asked=bool(window.asked or another.asked)):
                    running.append((other.name, another.start))
        if len(set(running)) >= most and not woke:
            self._violated("limit", entry, window.start, limit=limit, most=most, running=sorted(set(running)))

    def _judge_catch_up(self, entry: Entry, window: Window, run: Run, options: dict[str, Any], first: float) -> None:
        policy = options.get("catch_up", "latest")
        newer = run.grid.count(window.start, first)
        if policy == "none" or (policy == "latest" and newer):
            self._violated("catch-up", entry, window.start, catch_up=policy, no_beat_until=first, newer=newer)

    def _judge_overlap(
        self, entry: Entry, window: Window, fact: dict[str, Any], run: Run | None, *, woke: bool
    ) -> None:
        beside = run is not None and all(
            (one.get("overlap") or "allow") != "allow" for one in run.options(window.start, self.at)
        )
        for other, (another, process, began) in entry.open.items():
            if another is not window and not beside:
                continue
            rule = "overlap" if another is window else "beside"
            excused = self.faults.excuse(process, began, self.at, asked=bool(window.asked or another.asked))
            late = fact["execution"] if woke and not excused else None if woke else other
            if not (excused or woke):  # else it was out of contact before its first line
                facts = {"other": other, "other_start": another.start, "other_began": began, "other_process": process}
                self._violated(rule, entry, window.start, execution=fact["execution"], process=fact["process"], **facts)
            if another is window and late is not None:  # else either may be the one that holds the lease
                window.stale = {*(window.stale or ()), late}

    def _judge_again(self, entry: Entry, window: Window, execution: str, run: Run | None, *, woke: bool) -> None:
        at = self.at
        options = run.options(window.start, at) if run else [{}]
        limit = max(inf if (given := each.get("max_attempts")) is None else given for each in options)
        lost = sum(window.start <= failed <= at for failed, _ in self.faults.failovers) if window.executions else 0
        if (number := window.executions - window.retries + 1) > limit + window.asked + lost:
            self._violated("attempts", entry, window.start, executions=number, max_attempts=limit)
        if window.recorded is not None and window.recorded < at and not woke:
            self._judge_record(entry, window, at)
        if window.final is None:
            return
        began, ended, process, how = window.final
        if how == "failed" and (run is None or any(given.get("retry_failed") for given in options)):
            return  # without a run a deploy that has begun brings the entry: what it says is told when it has ended
        if not (woke or self._unrecorded(window, at)):
            facts = {"execution": execution, "how": how, "began": began, "ended": ended, "process": process}
            self._violated("repeat", entry, window.start, **facts)

    def _unrecorded(self, window: Window, until: float) -> bool:
        """Whether the end of the execution that ended the window may not be known to the store."""
        assert window.final is not None
        began, ended, process, _ = window.final
        return (
            self.faults.excuse(process, began, ended, asked=bool(window.asked))
            or self.faults.hit_at(process, ended, min(ended, until))
            or self.faults.forgotten(ended, until)
        )

    def _judge_fence(self, entry: Entry, window: Window, fact: dict[str, Any]) -> None:
        fence = fact.get("fence")
        if fence is None:
            return
        before, window.fence = window.fence, max(fence, window.fence or fence)
        if before is None or fence > before:
            return
        since = window.start if window.last is None else window.last
        slept = any(self.faults.down[fact["process"]].between(since, self.at))
        if not slept and not self.faults.lost_by_failover(since, self.at):
            self._violated("fence", entry, window.start, execution=fact["execution"], fence=fence, before=before)

    def _ended(self, fact: dict[str, Any]) -> None:
        entry, window = self._window(fact)
        execution, how, at = fact["execution"], fact["how"], fact["at"]
        if not window.open or execution not in window.open:
            raise HistoryError(f"execution: {execution!r} of this window doesn't run")
        process, began = window.open.pop(execution)
        del entry.open[execution]
        entry.freed = at
        if not window.open:
            window.open = None
        self.faults.occupied(process, -1, at)
        superseded = window.stale is not None and execution in window.stale
        if superseded and window.last is not None and self.faults.forgotten(window.last, at):
            superseded = False  # the store doesn't know of the other one any more
        window.failed += how == "failed"
        window.retries += how == "retried"
        if how == "killed":
            window.since = at if window.open is None else None
        elif how in {"done", "failed"} and not superseded:
            window.final = (began, at, process, how)

    def _recorded(self, fact: dict[str, Any]) -> None:
        entry, window = self._window(fact)
        outcome, at = fact["outcome"], float(fact["at"])
        if outcome is None:
            return
        window.outcome, window.recorded = outcome, at
        if window.last is not None and window.last > at:
            self._judge_record(entry, window, window.last)

    def _judge_record(self, entry: Entry, window: Window, began: float) -> None:
        """An execution that begins after the record."""
        assert window.recorded is not None
        if not (window.asked or self.faults.forgotten(window.recorded, began)):
            self._violated("again", entry, window.start, recorded=window.recorded, outcome=window.outcome, began=began)

    def finish(self) -> Judgement:
        """What is owed, against what is there."""
        if not self.begun:
            raise HistoryError("an empty history")
        if self.ended is None:
            raise HistoryError("a history without its end")
        horizon = self._horizon()
        for begin in self.begins:
            self._judge_begun(*begin)
        for entry, window, other, at in self.turns:
            recorded = other.recorded or self.ended
            # A failover may have lost its outcome: it was skipped in time, and once more when its message came again.
            if not other.asked and recorded > at and not self.faults.forgotten(at, recorded):
                self._violated("turn", entry, window.start, began=at, waited=other.start)
        for entry in self.entries.values():
            recorded: Counter[str] = Counter()
            active_until = -inf  # a window before this one
            for start in self._starts(entry):
                window = entry.windows.get(key_of(start)) or Window(start)
                standing, run = self._standing(entry, start)
                self._judge_standing(entry, window, run, standing, horizon)
                if window.outcome is None:
                    active_until = inf if window.executions else active_until
                    continue
                recorded[window.outcome] += 1
                if standing != "no" or window.asked:
                    self._judge_outcome(entry, window, run, standing, active_until)
                if standing == "yes" and run is not None:
                    self._judge_told(entry, window, run)
                if window.outcome != "skipped" and window.recorded is not None:
                    active_until = max(active_until, window.recorded)
            self._judge_law(entry, recorded)
        return self.judgement

    def _judge_standing(self, entry: Entry, window: Window, run: Run | None, standing: str, horizon: float) -> None:
        there = window.executions or window.outcome is not None
        if standing == "no" and there and not window.asked:
            facts = {"executions": window.executions, "last_began": window.last}
            self._violated("not-owed", entry, window.start, **facts, outcome=window.outcome, recorded=window.recorded)
        if standing != "yes" or run is None:
            return
        if window.outcome is None:
            self._judge_lost(entry, window, run, horizon)

    def _starts(self, entry: Entry) -> list[float]:
        """What is owed, and what is there, in order."""
        assert self.ended is not None
        there = {key: window.start for key, window in entry.windows.items()}
        for run in entry.runs:
            until = run.end[0] if run.end else self.ended
            for start in run.grid.between(run.asked, until):
                there.setdefault(key_of(start), start)
        return [there[key] for key in sorted(there)]

    def _horizon(self) -> float:
        """What was due by then has to have ended."""
        assert self.ended is not None
        if self.healed is None:
            return -inf
        waiting = 0
        for entry in self.entries.values():
            for run in entry.runs:
                until = run.end[0] if run.end else self.healed
                waiting += run.grid.count(run.asked, until)
            recorded = [window.recorded for window in entry.windows.values() if window.recorded is not None]
            waiting -= sum(at <= self.healed for at in recorded)
        slots = max(1, len(self.settings.workers) * self.settings.concurrency)
        needed = settling(self.settings) + max(0, waiting) * self.settings.longest / slots
        if self.ended - self.healed < needed:
            self._violated("short", None, None, healed=self.healed, end=self.ended, needed=needed, waiting=waiting)
            return -inf
        return self.ended - needed

    def _judge_lost(self, entry: Entry, window: Window, run: Run, horizon: float) -> None:
        assert self.ended is not None
        due = window.start
        if due <= horizon:
            facts = {"executions": window.executions, "last_began": window.last, "horizon": horizon}
            self._violated("lost", entry, window.start, **facts)
        elif not window.executions and not window.asked:
            more = self._others(entry, window, run, due, self.ended)
            deadline, why = self.faults.deadline(window, due, self.settings.step, self.ended, run, more)
            if self.ended > deadline:
                self._violated("late", entry, window.start, deadline=deadline, because=why, began=None)

    def _judge_outcome(self, entry: Entry, window: Window, run: Run | None, standing: str, active_until: float) -> None:
        assert window.recorded is not None
        outcome, at, one = window.outcome, window.recorded, self.settings
        due = window.start
        options = run.options(due, at) if run else [{}]
        if outcome == "missed":
            if standing == "yes" and run is not None and not self._may_miss(entry, window, run, options, at):
                self._violated("missed", entry, window.start, recorded=at, executions=window.executions)
            return
        limits = [given.get("max_attempts") for given in options]
        ended = window.final
        right = {
            "done": ended is not None and ended[3] == "done",
            "failed": bool(window.failed) or any(limit is not None and window.executions >= limit for limit in limits),
            "expired": any(
                given.get("expires") is not None and at >= window.start + given["expires"] - one.step
                for given in options
            ),
            "revoked": window.revoked is not None and window.revoked <= at + one.step,
            "skipped": any(self._may_skip(entry, window, given.get("overlap"), active_until, at) for given in options),
            "untracked": any(not given.get("tracked", True) for given in options),
        }
        undone = outcome not in {"done", "untracked"} and right["done"] and not self._unrecorded(window, at)
        if undone or not right.get(str(outcome)):
            facts = {"executions": window.executions, "failed": window.failed, "final": window.final}
            self._violated("outcome", entry, window.start, outcome=outcome, recorded=at, **facts)

    def _may_skip(self, entry: Entry, window: Window, overlap: str | None, active_until: float, at: float) -> bool:
        """Whether another one ran; and with a buffer a newer one waited then."""
        step = self.settings.step
        if overlap == "skip":
            return active_until >= window.start - step
        if overlap != "buffer_one" or (window.executions and not window.asked):  # ordered, it ran in another life
            return False
        others = [
            other
            for other in entry.windows.values()
            if other is not window
            and other.start <= at + step
            and (other.recorded is None or other.recorded >= at - step)
        ]
        waits = [other.start for other in others if other.last is None or other.last >= at - step]
        return len(others) >= 2 and any(start > window.start for start in waits)

    def _judge_told(self, entry: Entry, window: Window, run: Run) -> None:
        """Whether people were told of a window what they asked for. What was ordered may end, and be told, again."""
        assert window.recorded is not None
        assert self.ended is not None
        due, one = window.start, self.settings
        options = run.options(due, self.ended)
        lost = any(at >= due for at, _ in self.faults.failovers)
        if entry.description is None or window.asked or lost or window.outcome == "untracked":
            return
        told = set(window.told or ())
        if all(given.get("on_failure") for given in options):
            # Here revoked is what somebody gave up, of which nobody is told.
            right = set() if window.outcome in ("done", "revoked") else {("ended", window.outcome)}
            if {each for each in told if each[0] == "ended"} != right:
                self._violated("told", entry, window.start, outcome=window.outcome, told=sorted(map(str, told)))
        deadlines = {given.get("deadline") for given in options}
        deadline = deadlines.pop() if len(deadlines) == 1 else None
        if deadline is None or window.outcome in ("missed", "skipped", "revoked"):
            return  # what the user ordered is never late
        late = window.start + deadline
        done = window.recorded if window.outcome == "done" else inf
        if ("late", None) in told and done < late - one.step:
            self._violated("told-late", entry, window.start, deadline=deadline, done=done)
        elif ("late", None) not in told and done > self.faults.last_claim(run, late, one.told_late):
            self._violated("told-late", entry, window.start, deadline=deadline, done=done, told=sorted(map(str, told)))

    def _may_miss(self, entry: Entry, window: Window, run: Run, options: list[dict[str, Any]], at: float) -> bool:
        one, start = self.settings, window.start
        for given in options:
            grace = given.get("grace")
            if grace is not None and at >= start + grace - one.step:
                until = start + grace - one.step
                more = self._others(entry, window, run, start, until)
                if window.executions or self.faults.deadline(window, start, one.step, until, run, more)[0] >= until:
                    return True
        if any(self.faults.forgotten(moment, at) for moment in (start, window.first) if moment is not None):
            moment = at  # its claim was lost: a beat sees that when it claims the next one
        elif window.executions:
            return False
        else:
            moment = min(self.faults.last_claim(run, start), at)
        for given in options:
            policy = given.get("catch_up", "latest")
            late = moment - start > one.tolerance - one.step
            newer = run.grid.count(start, moment + one.step)
            if policy == "none" and late:
                return True
            if policy == "latest" and newer:
                oldest = min(start if late else self.faults.oldest(run, start), run.paused_since)
                if moment - oldest > one.tolerance - one.step:
                    return True
        return False

    def _judge_law(self, entry: Entry, recorded: Counter[str]) -> None:
        if entry.counted is None:
            return
        if dict(recorded) != entry.counted:
            self._violated("law", entry, None, counted=entry.counted, recorded=dict(sorted(recorded.items())))


def waits(description: dict[str, Any]) -> bool:
    """Whether windows of an entry may have to wait for others."""
    return (description.get("overlap") or "").startswith("buffer") or description.get("limit") is not None


def judge(lines: Iterable[str | bytes], waited: Iterable[Wait] = ()) -> Judgement:
    """Judge a history by its lines."""
    return Judge(waited).read(lines)
