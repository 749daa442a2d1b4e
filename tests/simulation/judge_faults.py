"""What the faults of a history allow, and until when: the table of docs/failures.md as the judge reads it.

A window may be late while it has to wait, and until it had so many undisturbed seconds after that:

===========================================  ===========================================
no beat is able to work                      ``beat_late`` after one is again
a beat is hit while the window is due        ``beat_late``
the server is away                           ``worker_late`` after it is back, or
                                             ``recovery_interval`` if that is longer
the broker is away, or no worker is there    ``worker_late`` after it is back
no worker is free                            ``step`` after one is
a worker is hit that had its message         ``worker_late`` if it had it for a second,
                                             else ``slow``
its message is lost                          ``slow``
its message is delayed                       ``step`` after it arrives
it expires by the clock of its worker,       ``worker_late`` and ``beat_late`` after that
which is ahead                               discarded it
a failover                                   ``slow``
another window of its entry goes first       ``worker_late`` after that has ended
its limit has no place                       ``place_late`` after one of the others has ended,
                                             also before it was due if a worker was hit
each beat waits to try again                 ``beat_late`` after one does
messages wait in a queue, or its worker to   ``worker_late`` after that
try again
it was set or resumed before it was due      ``recovery_interval`` after that
===========================================  ===========================================

``slow`` is ``start_timeout``, ten minutes and ``worker_late``: messages that are lost follow within these. To each,
``step`` is added, which is noise.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import Any

from simulation.judge_history import QUEUE, Run, Settings, Wait, Window
from simulation.judge_times import Clock, Spans

RESERVED = 1.0  # what had waited at a worker for a second is published again as if it had begun


class Faults:
    """Who was able to do what, and when."""

    def __init__(self, settings: Settings, waited: Iterable[Wait] = ()) -> None:
        self.settings = settings
        self.failovers: list[tuple[float, float]] = []  # that lost writes: when, how many seconds of them
        self.server, self.broker, self.no_beat, self.no_worker = Spans(), Spans(), Spans(), Spans()
        self.surely_away = Spans()  # the server, for somebody who asks it then
        self.beat_hits, self.worker_hits, self.failed_over = Spans(), Spans(), Spans()
        processes = (*settings.beats, *settings.workers)
        self.queued, self.rests = Spans(), {process: Spans() for process in processes}
        for since, until, who in waited:
            for spans in [self.queued] if who == QUEUE else [self.rests[who]] if who else self.rests.values():
                spans.add(since, until)
        self.down = {process: Spans() for process in processes}  # killed, frozen or cut off
        self.gone = {process: Spans() for process in processes}  # killed or frozen: it certainly does nothing
        self.out = {process: Spans() for process in processes}  # frozen, or cut off from the server
        self.hits = {process: Spans() for process in processes}
        self.cut_until: dict[str, float] = {}
        self.running: Counter[str] = Counter()
        self.clocks = {worker: Clock() for worker in settings.workers}
        self.busy = {worker: Spans() for worker in settings.workers}
        self.full = Spans()  # all workers are busy or away
        self.full_until: float | None = None

    def take(self, fact: dict[str, Any], window: Window | None) -> None:
        """Note a fault, and the window whose message it befell."""
        kind, at = fact["kind"], fact["at"]
        until = fact.get("until")
        until = (at if kind == "failover" else inf) if until is None else float(until)
        if window is None:
            getattr(self, f"_{kind}")(fact, at, until)
        elif kind == "lost":
            window.events = [*(window.events or ()), (at, at + self.settings.slow, "its message was lost")]
        elif kind == "delayed":
            window.events = [*(window.events or ()), (at, until + self.settings.step, "its message was delayed")]
        self.gaps(at)

    def hit(self, process: str, at: float, until: float) -> None:
        self.hits[process].add(at, until)
        if process in self.settings.beats:
            self.beat_hits.add(at, at)
        if process in self.settings.workers:
            self.worker_hits.add(at, at)

    def _killed(self, fact: dict[str, Any], at: float, until: float) -> None:
        process = fact["target"]
        for spans in (self.down, self.gone, self.out, self.hits):
            spans[process].close(at)  # what is killed isn't frozen any more
        if (cut := self.cut_until.get(process, at)) > at:
            self.down[process].add(at, cut)
            self.out[process].add(at, cut)
        self.down[process].add(at, until)
        self.gone[process].add(at, until)
        self.hit(process, at, until)

    def _frozen(self, fact: dict[str, Any], at: float, until: float) -> None:
        for spans in (self.down, self.gone, self.out):
            spans[fact["target"]].add(at, until)
        self.hit(fact["target"], at, until)

    def _cut(self, fact: dict[str, Any], at: float, until: float) -> None:
        process = fact["target"]
        self.down[process].add(at, until)
        if fact["from"] == "server":
            self.out[process].add(at, until)
        self.cut_until[process] = max(until, self.cut_until.get(process, at))
        self.hit(process, at, until)

    def _away(self, fact: dict[str, Any], at: float, until: float) -> None:
        (self.server if fact["target"] == "server" else self.broker).add(at, until)
        if fact["target"] == "server":
            self.surely_away.add(at, float(fact.get("back", until)))

    def _failover(self, fact: dict[str, Any], at: float, until: float) -> None:
        self.server.add(at, until)
        self.surely_away.add(at, until)
        self.failed_over.add(at, until)
        if fact["lose"] > 0 and not self.settings.wait_replicas:
            self.failovers.append((at, float(fact["lose"])))

    def _clock(self, fact: dict[str, Any], at: float, until: float) -> None:
        if fact["target"] in self.clocks:  # only the server's time counts, but for Celery where a message expires
            self.clocks[fact["target"]].set(at, float(fact["by"]))

    def gaps(self, at: float) -> None:
        """Note from now on until when no beat, or no worker, is able to work, and whether a worker is free."""
        for spans, processes, away in (
            (self.no_beat, self.settings.beats, (self.server, self.broker)),
            (self.no_worker, self.settings.workers, ()),
        ):
            spans.close(at)
            until = min((self._able(at, (self.down[process], *away)) for process in processes), default=inf)
            if until > at:
                spans.add(at, until)
        self.free(at)

    def free(self, at: float) -> None:
        """Note whether all workers are busy or away."""
        if self.full_until is not None and self.full_until < at:
            self.full.close(self.full_until)
            self.full_until = None
        until = inf
        for worker in self.settings.workers:
            if self.running[worker] < self.settings.concurrency:
                until = min(until, self.down[worker].until(at) or at)
        if until > at:
            if self.full_until is None:
                self.full.add(at, inf)
            self.full_until = until
        elif self.full_until is not None:
            self.full.close(at)
            self.full_until = None

    def occupied(self, worker: str, change: int, at: float) -> None:
        was = self.running[worker] >= self.settings.concurrency
        self.running[worker] += change
        now = self.running[worker] >= self.settings.concurrency
        if now and not was:
            self.busy[worker].add(at, inf)
        elif was and not now:
            self.busy[worker].close(at)
        self.free(at)

    @staticmethod
    def _able(at: float, lists: tuple[Spans, ...]) -> float:
        """The first time from this one on that lies in none of these spans."""
        moved = True
        while moved and at < inf:
            moved = False
            for spans in lists:
                if (end := spans.until(at)) is not None:
                    at, moved = end, True
        return at

    def first_claim(self, run: Run, at: float) -> float:
        """Before this time, no beat can have claimed what is due at that one."""
        lists = (self.surely_away, run.surely_out)
        return min((self._able(at, (self.gone[beat], *lists)) for beat in self.settings.beats), default=inf)

    def last_claim(self, run: Run, at: float, more: float = 0.0) -> float:
        """By this time, a beat has had the rest to claim what is due at that one, and ``more`` seconds in a row."""
        rest, first = self.settings.beat_late + self.settings.step + more, inf
        for beat in self.settings.beats:
            lists = (self.down[beat], self.server, self.broker, run.maybe_out, self.rests[beat])
            begin = self._able(at, lists)
            while begin + rest < first and (disturbed := min(spans.after(begin) for spans in lists)) < begin + rest:
                begin = self._able(disturbed, lists)
            first = min(first, begin + rest)
        return first

    def oldest(self, run: Run, start: float) -> float:
        """The oldest start that no beat may have claimed yet when this one is due."""
        low, high = 0.0, start
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if self.last_claim(run, middle) >= start else (middle, high)
        return next(run.grid.between(max(high, run.asked) - 1e-3, start), start)

    def deadline(
        self, window: Window, since: float, rest: float, until: float, run: Run,
        more: Iterable[tuple[Spans, float, str]] = (),
    ) -> tuple[float, str]:  # fmt: skip
        """By when the window has to begin, and what allowed the most; no further than needed to reach ``until``."""
        one = self.settings
        lists = [
            (self.no_beat, one.beat_late + one.step, "no beat"),
            (self.beat_hits, one.beat_late + one.step, "a beat was hit"),
            (self.server, one.put_back + one.step, "the server was away"),
            (self.broker, one.worker_late + one.step, "the broker was away"),
            (self.no_worker, one.worker_late + one.step, "no worker"),
            (self.failed_over, one.slow, "a failover"),
            (run.maybe_out, one.beat_late + one.step, "left out by a deploy"),
            (self.full, one.step, "no worker was free"),
            *more,
        ]
        events = list(window.events or ())
        if run.set_at is not None and run.set_at[0] <= since:
            events.append((run.set_at[0], run.set_at[1] + one.recovery_interval + one.step, "it was set or resumed"))
        expires = [each["expires"] for each in run.options(since, until) if each.get("expires") is not None]
        for worker, got in window.receipts or ():
            lists.append((self.busy[worker], one.step, "its worker was busy"))
            if expires and got + self.clocks[worker].offset(got) + one.step >= window.start + min(expires):
                late = one.worker_late + one.beat_late + one.step
                events.append((got, got + late, "its worker's clock was ahead"))
            for begin, _ in self.hits[worker].between(got - one.step, until):
                # What a frozen worker is given waits in its socket.
                late = one.worker_late + one.step if begin - got >= RESERVED else one.slow
                events.append((max(begin, got), max(begin, got) + late, "its worker was hit"))
        deadline, why = self._extended(since, (since + rest, "nothing"), until, lists, events)
        if deadline < until:
            lists += self._waits(window, since, until, run)
            deadline, why = self._extended(since, (deadline, why), until, lists, events)
        return deadline, why

    def _extended(
        self, since: float, reached: tuple[float, str], until: float,
        lists: Iterable[tuple[Spans, float, str]], events: Iterable[tuple[float, float, str]],
    ) -> tuple[float, str]:  # fmt: skip
        """What these allow from there on, one after another, and which of them allowed the most."""
        (deadline, why), moved = reached, True
        while moved and deadline < until:
            moved = False
            for spans, extra, reason in lists:
                i = bisect_right(spans.starts, deadline) - 1
                # The first beat that is back needs its rest.
                reach = extra if reason in ("no beat", "each beat waited") else self.settings.step
                if i >= 0 and spans.ends[i] >= since - reach and spans.ends[i] + extra > deadline:
                    deadline, why, moved = spans.ends[i] + extra, reason, True
            for at, allowed, reason in events:
                if at <= deadline < allowed:
                    deadline, why, moved = allowed, reason, True
        return deadline, why

    def _waits(self, window: Window, since: float, until: float, run: Run) -> list[tuple[Spans, float, str]]:
        """What no fact shows, and delays this window: each beat waits or is away, a queue, who got its message."""
        one, idle = self.settings, Spans()
        away = (self.server, self.broker, run.maybe_out)
        beats = [(self.down[beat], self.rests[beat], *away) for beat in self.settings.beats]
        at = since - one.beat_late - one.step
        while at < until:
            end = min(self._able(at, lists) for lists in beats)
            if end > at:
                idle.add(at, end)
            at = min(spans.after(end) for lists in beats for spans in lists)
        late = one.worker_late + one.step
        got = [(self.rests[worker], late, "its worker waited") for worker, _ in window.receipts or ()]
        return [(idle, one.beat_late + one.step, "each beat waited"), (self.queued, late, "messages waited"), *got]

    def clocks_apart(self, at: float) -> float:
        """By how much the workers' clocks differ then, and the server's."""
        offsets = [0.0, *(clock.offset(at) for clock in self.clocks.values())]
        return max(offsets) - min(offsets)

    def excuse(self, process: str, began: float, until: float, *, asked: bool) -> bool:
        """Whether another execution may follow one that began then and runs until then."""
        return asked or self.out_of_contact(process, began, until) or self.lost_by_failover(began, until)

    def hit_at(self, process: str, ended: float, until: float) -> bool:
        """Whether a process was hit while it had to record an end, or the server was away."""
        step = self.settings.step
        return any(
            any(spans.between(ended - step, until + 2 * step))  # it may have other ends to tell first
            for spans in (self.down[process], self.hits[process], self.server)
        )

    def out_of_contact(self, process: str, began: float, until: float) -> bool:
        """Whether a process was out of contact for longer than its lease."""
        step = self.settings.step
        spans = [*self.out[process].between(began - step, until), *self.server.between(began - step, until)]
        merged: list[tuple[float, float]] = []
        for begin, end in sorted(spans):
            end = min(end, until)  # noqa: PLW2901
            if merged and begin <= merged[-1][1] + step:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        return any(end - begin >= self.settings.lapse for begin, end in merged)

    def woke(self, process: str, at: float) -> bool:
        """Whether it may have begun before a time without contact, and told so only after it."""
        return self.out_of_contact(process, at, at)

    def lost_by_failover(self, began: float, until: float) -> bool:
        """Whether a failover up to then lost the begin of an execution, or what kept its lease."""
        step, lapse = self.settings.step, self.settings.lapse
        for at, lose in reversed(self.failovers):
            if at < began - step:
                break
            if at <= until and (began >= at - lose - step or lose >= lapse):
                return True
        return False

    def forgotten(self, written: float, until: float) -> bool:
        """Whether a failover up to then lost what was written at this time."""
        step = self.settings.step
        first = bisect_left(self.failovers, (written - step, -inf))
        return any(at <= until and written >= at - lose - step for at, lose in self.failovers[first:])
