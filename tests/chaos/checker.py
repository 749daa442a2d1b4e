"""What a ledger says: windows lost, finished twice, overlapped, early, late; and which of it the promise excuses.

Knows the ledger's lines and the grids of the entries, nothing of the package: it judges a stock beat as well.
Times are seconds of the machine's monotonic clock, which no fault moves; ``epoch`` is what it said at 1970-01-01 UTC.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

#: Two faults so close together leave no time in between for a renewal.
_BREATH = 1.0
#: Excuses, as the promise words them.
OUT_OF_CONTACT = "went on, out of contact for longer than its lease"
LAST_LINE = "killed at its last line, before its end was recorded"
UNTOLD = "its end could not be told to the store for longer than its lease"
LOST_DATA = "the store lost its data"


@dataclass
class Execution:
    """One body: from its first line to its last, or to its process's death."""

    window: tuple[str, str]
    group: int
    pid: int
    fence: int | None
    start: float
    #: When the store let it begin: before that, nobody else's lease is broken by it.
    begun: float
    end: float = math.inf
    finished: bool = False
    recorded: bool = False
    died: bool = False


@dataclass
class Verdict:
    """Counts; what is excused is counted by its excuse, and isn't in the others."""

    windows: int = 0
    executions: int = 0
    lost: list[tuple[str, str]] = field(default_factory=list)
    finished_twice: list[tuple[str, str]] = field(default_factory=list)
    recorded_twice: list[tuple[str, str]] = field(default_factory=list)
    overlapped: list[tuple[str, str]] = field(default_factory=list)
    early: list[tuple[str, str]] = field(default_factory=list)
    excused: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    #: Bodies that began while another window of their entry ran, though its windows run one after another.
    beside: list[tuple[str, str]] = field(default_factory=list)
    #: Bodies that began while as many ran as their limit has slots.
    above_limit: list[tuple[str, str]] = field(default_factory=list)
    #: Windows that never ran, since a newer one of their entry waited instead.
    skipped: int = 0
    #: Windows whose first body began after that of a newer one: their message had come later, or their worker had died.
    overtaken: int = 0
    #: Seconds from a window's start to its first line, in order. Left out where it is printed: thousands of numbers.
    lateness: list[float] = field(default_factory=list, repr=False)

    @property
    def kept(self) -> bool:
        """Whether the promise was kept."""
        at_once = self.overlapped or self.beside or self.above_limit
        return not (self.lost or self.finished_twice or self.recorded_twice or at_once or self.early)

    def late(self, share: float) -> float:
        """The lateness that ``share`` of the windows don't exceed; NaN where there is none."""
        if not self.lateness:
            return math.nan
        return self.lateness[min(int(share * len(self.lateness)), len(self.lateness) - 1)]


@dataclass(frozen=True)
class Waits:
    """Entries whose windows wait: for each other, or for one of so many places (limit → entries, number)."""

    in_turn: Collection[str] = ()
    #: Of those of ``in_turn``: only the newest waits.
    skips: Collection[str] = ()
    limits: Mapping[str, tuple[Collection[str], int]] = field(default_factory=dict)


def judge(
    events: Iterable[Mapping[str, Any]],
    grids: Mapping[str, float],
    begin: float,
    end: float,
    lease: float,
    waits: Waits | None = None,
) -> Verdict:
    """Judge all windows that ``grids`` (entry → seconds between windows, from the epoch) define in (begin, end]."""
    waits = waits or Waits()
    events = list(events)
    epoch = next(event["epoch"] for event in events if event["kind"] == "clock")
    faults = Faults(events, lease)
    executions = executions_of(events, epoch, faults)
    verdict = Verdict(executions=sum(map(len, executions.values())))
    verdict.refused = sum(event["kind"] == "refused" for event in events)
    _judge_waits(executions, epoch, waits, faults, verdict)
    ran = {window for window, bodies in executions.items() if any(body.finished for body in bodies)}
    newest = {entry: max((start for each, start in ran if each == entry), default="") for entry in waits.skips}
    for entry, every in grids.items():
        first = math.floor((begin - epoch) / every) + 1
        for number in range(first, math.floor((end - epoch) / every) + 1):
            start = round(number * every, 6)
            window = (entry, text_of(start))
            verdict.windows += 1
            if window not in executions and window[1] < newest.get(entry, ""):
                verdict.skipped += 1
                continue
            _judge_window(window, epoch + start, executions.pop(window, []), faults, verdict)
    # Beyond the edges nothing can be lost; all else holds there too.
    for window, bodies in executions.items():
        _judge_bodies(window, epoch + _seconds(window[1]), bodies, faults, verdict)
        if bodies[0].start < epoch + _seconds(window[1]):
            verdict.early.append(window)
    verdict.lateness.sort()
    return verdict


def _judge_window(
    window: tuple[str, str], due: float, bodies: list[Execution], faults: Faults, verdict: Verdict
) -> None:
    if bodies:
        verdict.lateness.append(bodies[0].start - due)
        if bodies[0].start < due:
            verdict.early.append(window)
    if not any(body.finished for body in bodies):
        if faults.flushes(due, math.inf):
            verdict.excused[f"lost: {LOST_DATA}"] += 1
        else:
            verdict.lost.append(window)
    _judge_bodies(window, due, bodies, faults, verdict)


def _judge_bodies(
    window: tuple[str, str], due: float, bodies: list[Execution], faults: Faults, verdict: Verdict
) -> None:
    """Judge how often a window was brought to its end, and whether two bodies of it ran at the same time."""
    finished = [body for body in bodies if body.finished]
    if len(finished) > 1:
        excuses = [_excuse(body, faults) for body in finished if not body.recorded]
        verdict.excused.update(f"finished twice: {excuse}" for excuse in excuses if excuse)
        plain = [body for body in finished if body.recorded or not _excuse(body, faults)]
        _judge_repetition("finished twice", window, due, plain, faults, verdict)
    _judge_repetition("recorded twice", window, due, [body for body in bodies if body.recorded], faults, verdict)
    for position, body in enumerate(bodies):
        for other in bodies[position + 1 :]:
            if other.start >= body.end:
                continue
            if any(faults.out_of_contact(each, each.begun - _BREATH, other.start) for each in (body, other)):
                verdict.excused[f"overlapped: {OUT_OF_CONTACT}"] += 1
            elif faults.flushes(due, other.start):
                verdict.excused[f"overlapped: {LOST_DATA}"] += 1
            else:
                verdict.overlapped.append(window)


def _judge_waits(
    executions: Mapping[tuple[str, str], list[Execution]], epoch: float, waits: Waits, faults: Faults, verdict: Verdict
) -> None:
    """Judge how many bodies ran at the same time of the entries, and of the limits, that say how many may."""

    def bodies_of(entries: Collection[str]) -> list[Execution]:
        found = [body for window, bodies in executions.items() if window[0] in entries for body in bodies]
        return sorted(found, key=lambda body: body.start)

    def judge_at_once(what: str, entries: Collection[str], most: int, found: list[tuple[str, str]]) -> None:
        bodies = bodies_of(entries)
        for place, body in enumerate(bodies):
            running = [other for other in bodies[:place] if other.end > body.start and other.window != body.window]
            if len({other.window for other in running}) < most:
                continue
            since = min(epoch + _seconds(other.window[1]) for other in (*running, body))
            if any(faults.out_of_contact(other, other.begun - _BREATH, body.start) for other in (*running, body)):
                verdict.excused[f"{what}: {OUT_OF_CONTACT}"] += 1
            elif faults.flushes(since, body.start):
                verdict.excused[f"{what}: {LOST_DATA}"] += 1
            else:
                found.append(body.window)

    for entry in waits.in_turn:
        judge_at_once("beside another of its entry", {entry}, 1, verdict.beside)
        newest = ""
        for body in bodies_of({entry}):
            first = executions[body.window][0] is body
            verdict.overtaken += first and body.window[1] < newest
            newest = max(newest, body.window[1])
    for entries, most in waits.limits.values():
        judge_at_once("above its limit", entries, most, verdict.above_limit)


def _judge_repetition(
    what: str, window: tuple[str, str], due: float, bodies: list[Execution], faults: Faults, verdict: Verdict
) -> None:
    """Of ``bodies`` one counts; each time that the store loses its data one more may come through."""
    if len(bodies) <= 1:
        return
    if len(bodies) - 1 <= faults.flushes(due, bodies[-1].start):
        verdict.excused[f"{what}: {LOST_DATA}"] += len(bodies) - 1
    else:
        (verdict.finished_twice if what == "finished twice" else verdict.recorded_twice).append(window)


def _excuse(body: Execution, faults: Faults) -> str | None:
    """Why a body that came to its end and isn't recorded may have been followed by another."""
    if faults.out_of_contact(body, body.begun - _BREATH, body.end):
        return OUT_OF_CONTACT
    if faults.killed(body, body.end):
        return LAST_LINE
    if faults.untold(body):
        return UNTOLD
    return None


def _begun_at(event: Mapping[str, Any], epoch: float) -> float:
    """When the store let an execution begin of which this is the first line: its fence is that time.

    Its process may have been frozen in between.
    """
    begun = (event.get("fence") or 0) / 1000 + epoch
    return float(begun if epoch + _seconds(event["start"]) <= begun < event["mono"] else event["mono"])


def executions_of(
    events: Iterable[Mapping[str, Any]], epoch: float, faults: Faults
) -> dict[tuple[str, str], list[Execution]]:
    """Bodies by window, in the order in which they began."""
    found: dict[tuple[str, str], list[Execution]] = defaultdict(list)
    open_bodies: dict[tuple[Any, ...], Execution] = {}
    by_fence: dict[tuple[Any, ...], Execution] = {}
    for event in events:
        kind = event["kind"]
        if kind not in ("start", "finish", "retry", "recorded") or "entry" not in event:
            continue
        window = (event["entry"], event["start"])
        key = (window, event["pid"], event.get("fence"))
        if kind == "start":
            who = event["group"], event["pid"], event.get("fence")
            body = Execution(window, *who, event["mono"], _begun_at(event, epoch))
            found[window].append(body)
            open_bodies[key] = by_fence[window, event.get("fence")] = body
        elif kind == "recorded":
            if (window, event.get("fence")) in by_fence:
                by_fence[window, event.get("fence")].recorded = True
        elif key in open_bodies:
            body = open_bodies.pop(key)
            body.end, body.finished = event["mono"], kind == "finish"
    for body in open_bodies.values():
        death = faults.death(body)
        body.end, body.died = (death, True) if death is not None else (body.start, False)
    return {window: sorted(bodies, key=lambda body: body.start) for window, bodies in found.items()}


class Faults:
    """When which processes were killed or out of contact, and when the store lost its data."""

    def __init__(self, events: Iterable[Mapping[str, Any]], lease: float) -> None:
        events = [event for event in events if event["kind"] in ("fault", "over")]
        self._lease = lease
        self._flushes = [event["mono"] for event in events if event.get("effect") == "flush"]
        self._deaths = [(event["of"], event["mono"]) for event in events if event.get("effect") == "death"]
        begun: dict[int, Mapping[str, Any]] = {}
        self._out: list[tuple[int | None, float, float]] = []
        for event in events:
            if event["kind"] == "fault" and event.get("effect") == "out":
                begun[event["number"]] = event
            elif event["kind"] == "over" and event["number"] in begun:
                fault = begun.pop(event["number"])
                self._out.append((fault["of"], fault["mono"], event["mono"]))
        self._out += [(fault["of"], fault["mono"], math.inf) for fault in begun.values()]
        self._out.sort(key=lambda each: each[1])

    def death(self, body: Execution) -> float | None:
        """When the body's process was killed, if it was."""
        times = [at for of, at in self._deaths if of in (body.group, body.pid) and at >= body.start]
        return min(times, default=None)

    def killed(self, body: Execution, after: float) -> bool:
        """Whether its process was killed within a lease after ``after``."""
        death = self.death(body)
        return death is not None and after <= death <= after + 2 * self._lease

    def untold(self, body: Execution) -> bool:
        """Whether it came to its end while the store was out of reach, and stayed so for a lease."""
        return self.out_of_contact(body, body.end, body.end + self._lease)

    def flushes(self, begin: float, end: float) -> int:
        """How often the store lost its data in between."""
        return sum(begin <= at <= end for at in self._flushes)

    def out_of_contact(self, body: Execution, begin: float, end: float) -> bool:
        """Whether its process didn't reach the store for a lease, in a time that touches (begin, end)."""
        since = until = -math.inf
        for of, left, back in self._out:
            if of is not None and of != body.group:
                continue
            if left > until + _BREATH:
                since = left
            until = max(until, back)
            if until - since >= self._lease and since < end and until > begin:
                return True
        return False


def text_of(seconds: float) -> str:
    """A window's start, given in seconds since 1970-01-01 UTC, as ledgers write it."""
    whole = math.floor(seconds)
    micro = round((seconds - whole) * 1_000_000)
    return f"{datetime.fromtimestamp(whole, timezone.utc):%Y-%m-%dT%H:%M:%S}.{micro:06d}Z"


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
