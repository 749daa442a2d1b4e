"""What became of the windows of schedules that were edited meanwhile: judged by the editors' own log, and the bodies'.

Knows the ledger's lines and intervals from the epoch, nothing of the package. Lines of kind ``edit`` and ``answer`` are
the editors' (``chaos.editor``). ``account`` lines say what the store's books have of a window: its outcome, when it was
claimed by the server's clock, how many were missed. Instants of the server are whole microseconds since the epoch.

What each version owes: the windows after the edit that made it, up to and including the instant of the next set or
deletion. It goes by versions: each change of a name has the next one. Where one is missing, an edit without an answer
may have made it. From there until the next set or deletion nothing is owed, and what runs has to be of such an edit.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from chaos.checker import Execution, Faults, Verdict, executions_of, judge_bodies, text_of

#: Seconds for which a window may wait for its claim where nothing stands in the way but beats that come and go.
PATIENCE = 30.0
#: Seconds by which a window has to be late before it is missed; the app's ``once_beat_tolerance``.
TOLERANCE = 3.0
_SECOND = 1_000_000
#: The store's books say claims in whole milliseconds.
_ROUNDED = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass
class EditVerdict(Verdict):
    """As the checker's, and what else can go wrong where schedules change. Windows are (entry, start)."""

    edits: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    #: Windows that were owed and neither ran nor are lost, by what became of them.
    not_run: Counter[str] = field(default_factory=Counter)
    #: Windows of times in which nobody knows which edit counted.
    unsure: int = 0
    orders: int = 0
    #: Run by a definition before it counted.
    before_its_time: list[Any] = field(default_factory=list)
    #: Run by a definition although its successor has the window, or a deletion.
    after_its_successor: list[Any] = field(default_factory=list)
    #: Run by a definition that has no such window.
    off_its_grid: list[Any] = field(default_factory=list)
    #: Run by an edit that was refused, or that another took the place of before it counted.
    never_in_force: list[Any] = field(default_factory=list)
    claimed_while_paused: list[Any] = field(default_factory=list)
    claimed_after_deletion: list[Any] = field(default_factory=list)
    missed_against_its_policy: list[Any] = field(default_factory=list)
    lost_orders: list[Any] = field(default_factory=list)
    #: Answers that contradict each other, each with why.
    wrong_answers: list[str] = field(default_factory=list)

    def faults(self) -> dict[str, list[Any]]:
        """Return what the promise forbids, by name."""
        others = {"lateness", "beside", "above_limit"}  # no entry of these runs waits for another
        own = {name: value for name, value in vars(self).items() if isinstance(value, list) and name not in others}
        return {name.replace("_", " "): value for name, value in own.items()}

    @property
    def kept(self) -> bool:
        return not any(self.faults().values())


@dataclass
class _Change:
    """A change that is known to have been made, and by which edit."""

    version: int
    at: int
    what: str
    edit: Mapping[str, Any]


@dataclass
class _Span:
    """A time after ``since`` up to ``until`` in which a definition counts; ``edit`` None: there is none."""

    since: int
    until: float
    edit: Mapping[str, Any] | None
    #: Edits one of which may have counted instead, if any.
    perhaps: list[Mapping[str, Any]] = field(default_factory=list)

    def starts(self, end: int) -> Iterator[int]:
        if self.edit is None:
            return
        step = round(self.edit["period"] * _SECOND)
        number = self.since // step + 1
        while number * step <= min(self.until, end):
            yield number * step
            number += 1


def judge_edits(events: Iterable[Mapping[str, Any]], end: float, lease: float) -> EditVerdict:
    """Judge all windows up to ``end`` (monotonic) of the names that were edited."""
    events = list(events)
    epoch = next(event["epoch"] for event in events if event["kind"] == "clock")
    faults = Faults(events, lease)
    executions: dict[str, dict[int, list[Execution]]] = defaultdict(dict)
    for (entry, start), bodies in executions_of(events, epoch, faults).items():
        executions[entry][_instant(start)] = bodies
    verdict = EditVerdict(executions=sum(len(each) for name in executions.values() for each in name.values()))
    verdict.refused = sum(event["kind"] == "refused" for event in events)
    lines: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event["kind"] in ("edit", "answer", "account"):
            lines[event["entry"]].append(event)
    for entry in lines.keys() | executions.keys():
        _Name(entry, lines[entry], epoch, faults, verdict).judge(executions.get(entry, {}), end)
    verdict.lateness.sort()
    return verdict


class _Name:
    """All that is known of one name."""

    def __init__(
        self, entry: str, lines: list[Mapping[str, Any]], epoch: float, faults: Faults, verdict: EditVerdict
    ) -> None:
        self.entry, self.epoch, self.faults, self.verdict = entry, epoch, faults, verdict
        self.edits = {line["edit"]: line for line in lines if line["kind"] == "edit"}
        #: The last word on each edit: what had no answer may have been found later.
        self.answers = {line["edit"]: line for line in lines if line["kind"] == "answer"}
        self.accounts = [line for line in lines if line["kind"] == "account"]
        verdict.edits += len(self.edits)
        verdict.answers.update(self._result(edit) for edit in self.edits)
        self.unknown = [
            edit for key, edit in self.edits.items() if self._result(key) == "unknown" and edit["what"] != "run"
        ]
        self.changes = self._changes()
        #: Orders by the id of their message; and those of which nobody knows it.
        self.orders: dict[str, dict[str, Any]] = {}
        self.unknown_orders: list[Mapping[str, Any]] = []
        self._find_orders()
        self.spans = list(self._spans())
        self.pauses = list(self._pauses())

    def _result(self, edit: str) -> str:
        return self.answers[edit]["result"] if edit in self.answers else "unknown"

    def _wrong(self, why: str) -> None:
        self.verdict.wrong_answers.append(f"{self.entry}: {why}")

    # -- what the editors' log says

    def _changes(self) -> list[_Change]:
        found: dict[int, _Change] = {}
        for edit_id, answer in self.answers.items():
            edit = self.edits[edit_id]
            if answer["result"] == "conflict" and answer["there"] == edit["if_version"]:
                self._wrong(f"edit {edit_id} conflicts with the version that it expected")
            if answer["result"] != "done" or "version" not in answer:
                continue
            change = _Change(answer["version"], _instant(answer["server"]), edit["what"], edit)
            if change.version in found:
                self._wrong(f"edits {found[change.version].edit['edit']} and {edit_id} have version {change.version}")
            found[change.version] = change
        changes = [found[version] for version in sorted(found)]
        before: _Change | None = None
        for change in changes:
            self._check_order(before, change)
            before = change
        return changes

    def _check_order(self, before: _Change | None, change: _Change) -> None:
        edit, version = change.edit, before.version if before else 0
        if before and change.at < before.at:
            self._wrong(f"version {change.version} is older than {before.version}")
        expected = edit["if_version"]
        gap = change.version - version - 1
        if len(self._candidates(change)) < gap:
            self._wrong(f"nobody made the {gap} versions before {change.version}")
        if not expected and expected is not None and not gap and before and before.what != "delete":
            self._wrong(f"edit {edit['edit']} was made, though it expected that there is none")
        if expected and change.version != expected + 1:
            self._wrong(f"edit {edit['edit']} was made on version {change.version - 1}, expected {expected}")

    def _candidates(self, change: _Change) -> list[Mapping[str, Any]]:
        """Edits without an answer that may have been made before ``change``."""
        answered = self.answers[change.edit["edit"]]["mono"]
        return [edit for edit in self.unknown if edit["mono"] < answered]

    def _spans(self) -> Iterator[_Span]:
        """The times of all definitions, without a hole from the first change on."""
        span: _Span | None = None
        version = 0
        for change in self.changes:
            perhaps = self._candidates(change) if change.version != version + 1 else []
            version, since = change.version, change.at
            if perhaps:
                # Some time after the last change that is known, one of them was made.
                if span is None:
                    span = _Span(0, math.inf, None)
                span.perhaps += perhaps
            if change.what in ("set", "delete"):
                if span is not None:
                    span.until = since
                    yield span
                span = _Span(since, math.inf, change.edit if change.what == "set" else None)
        if span is not None:
            yield span

    def _pauses(self) -> Iterator[tuple[int, float]]:
        paused: int | None = None
        version = 0
        for change in self.changes:
            if change.version != version + 1:
                paused = None  # an edit in between may have resumed it
            version = change.version
            if paused is not None and change.what in ("resume", "delete"):
                yield paused, change.at
                paused = None
            elif change.what == "pause":
                paused = change.at
        if paused is not None:
            yield paused, math.inf

    def _span_of(self, start: float) -> _Span | None:
        return next((span for span in self.spans if span.since < start <= span.until), None)

    def _find_orders(self) -> None:
        for edit in self.edits.values():
            if edit["what"] != "run":
                continue
            answer = self.answers.get(edit["edit"])
            if answer is None or answer["result"] == "unknown":
                self.unknown_orders.append(edit)
            elif answer["result"] == "done" and answer["task_id"]:
                self.orders[answer["task_id"]] = {**answer, "sent": edit["mono"]}
        self.verdict.orders += len(self.orders)

    # -- what became of it

    def judge(self, bodies: dict[int, list[Execution]], end: float) -> None:
        until = round((end - self.epoch) * _SECOND)
        owed = {start for span in self.spans if not span.perhaps for start in span.starts(until)}
        self.verdict.windows += len(owed)
        self.verdict.unsure += sum(1 for span in self.spans if span.perhaps for _ in span.starts(until))
        for start in sorted(owed | bodies.keys()):
            found = bodies.get(start, [])
            if any(body.start < self._mono(start) for body in found):
                self.verdict.early.append(self._window(start))
            if found and start in owed:
                self.verdict.lateness.append(found[0].start - self._mono(start))
            self._judge_messages(start, found)
        ran = {start for start, found in bodies.items() if any(body.finished for body in found)}
        in_turn = ran - {_instant(order["start"]) for order in self.orders.values()}
        self._judge_orders(bodies)
        self._judge_claims()
        self._judge_not_run(sorted(owed - ran), owed, in_turn)

    def _judge_messages(self, start: int, bodies: list[Execution]) -> None:
        """Judge the bodies of one window, those of each message apart."""
        of_id: dict[str | None, list[Execution]] = defaultdict(list)
        for body in bodies:
            of_id[body.task_id].append(body)
        plain = [task_id for task_id in of_id if task_id not in self.orders]
        wrong = {task_id: self._why_not(start, of_id[task_id]) for task_id in plain}
        right = [task_id for task_id in plain if wrong[task_id] is None]
        for task_id, group in of_id.items():
            by_copy = self._by_copy(start, group, of_id) if task_id in plain else []
            for each in ([body for body in group if body not in by_copy], by_copy):
                judge_bodies(self._window(start), self._mono(start), each, self.faults, self.verdict)
            if task_id not in plain or task_id in right[:1] or self._perhaps_ordered(group):
                continue
            why = wrong[task_id]
            (self.verdict.finished_twice if why is None else why).append(self._window(start))

    def _by_copy(self, start: int, group: list[Execution], of_id: Mapping[str | None, Any]) -> list[Execution]:
        """Bodies that an earlier message's copy began, once an order had opened the window again."""
        for task_id, order in self.orders.items():
            if _instant(order["start"]) != start or task_id in of_id:
                continue
            later = [body for body in group if body.start > order["sent"]]
            if later and any(body.finished and body.end < order["mono"] for body in group):
                self.verdict.excused["a copy of an earlier message ran for an order"] += 1
                return later
        return []

    def _perhaps_ordered(self, group: list[Execution]) -> bool:
        """Whether an order without an answer may have sent this message. Each explains one."""
        for order in self.unknown_orders:
            if order["mono"] < group[0].start:
                self.unknown_orders.remove(order)
                self.verdict.excused["ran by an order without an answer"] += 1
                return True
        return False

    def _why_not(self, start: int, bodies: list[Execution]) -> list[Any] | None:
        """None where these ran by the definition that has the window; else the list of what is wrong with them."""
        for body in bodies:
            edit = self.edits.get(body.edit or "")
            span = self._span_of(start)
            if edit is None or edit["what"] != "set" or start % round(edit["period"] * _SECOND):
                return self.verdict.off_its_grid
            if span is not None and (edit is span.edit or edit in span.perhaps):
                continue
            own = next((span for span in self.spans if span.edit is edit), None)
            if own is None:
                return self.verdict.never_in_force
            return self.verdict.before_its_time if start <= own.since else self.verdict.after_its_successor
        return None

    def _judge_orders(self, bodies: Mapping[int, list[Execution]]) -> None:
        for order in self.orders.values():
            start = _instant(order["start"])
            later = [body for body in bodies.get(start, []) if body.start > order["sent"]]
            if not any(body.finished for body in later):
                self.verdict.lost_orders.append(self._window(start))
            # By the definition as it was then, or is by the time that a beat publishes it.
            ordered = (order["sent"] - self.epoch) * _SECOND
            edits = [self.edits.get(body.edit or "") for body in later if body.task_id == order["task_id"]]
            spans = [span for edit in edits for span in self.spans if edit is not None and span.edit is edit]
            if any(span.until < ordered for span in spans):
                self.verdict.after_its_successor.append(self._window(start))

    def _judge_claims(self) -> None:
        for account in self.accounts:
            if account["outcome"] == "missed" or account["ordered"] or account["claimed"] is None:
                continue
            start, claimed = _instant(account["start"]), _instant(account["claimed"])
            if self._was_ordered(start, claimed):
                continue  # once it is owed as well, the books say no more that it was ordered
            if any(since < claimed - _ROUNDED and claimed + _ROUNDED < until for since, until in self.pauses):
                self.verdict.claimed_while_paused.append(self._window(start))
            deleted = self._deleted_after(start)
            if deleted is not None and claimed > deleted + _ROUNDED:
                self.verdict.claimed_after_deletion.append(self._window(start))

    def _was_ordered(self, start: int, claimed: int) -> bool:
        at = self._mono(claimed)
        return any(
            _instant(order["start"]) == start and order["sent"] < at < order["mono"] for order in self.orders.values()
        ) or any(
            edit["what"] == "run" and self._result(edit["edit"]) == "unknown" and edit["mono"] < at < edit["mono"] + 30
            for edit in self.edits.values()
        )

    def _deleted_after(self, start: int) -> int | None:
        """When the definition that has the window, or one that followed it, was deleted; None: never, or perhaps."""
        span = self._span_of(start)
        if span is None or span.edit is None:
            return None
        for each in self.spans[self.spans.index(span) :]:
            if each.edit is None or each.perhaps:
                return each.since if each.edit is None else None
        return None

    def _judge_not_run(self, missing: list[int], owed: set[int], in_turn: set[int]) -> None:
        """Judge what was owed and didn't run; what did, and not by order, shows how far claims had come."""
        missed = self._missed(missing, owed, in_turn)
        for start in missing:
            deleted = self._deleted_after(start)
            last = max((each for each in in_turn if deleted is not None and each <= deleted), default=0)
            if start in missed:
                self.verdict.not_run["missed"] += 1
            elif deleted is not None and start > last and self._waited(start, deleted) <= PATIENCE:
                self.verdict.not_run["taken back by a deletion"] += 1
            else:
                self.verdict.lost.append(self._window(start))

    def _missed(self, missing: list[int], owed: set[int], in_turn: set[int]) -> set[int]:
        """Those of ``missing`` that the store accounts for as missed, where the definition of that time allows it.

        It does if one was late of those that were passed over. That one may have run by order.
        """
        records = [account for account in self.accounts if account["outcome"] == "missed"]
        accounted: set[int] = set()
        before = 0
        for record in sorted(records, key=lambda record: record["start"]):
            newest, at = _instant(record["start"]), _instant(record["claimed"])
            covered = [start for start in missing if before < start <= newest][-record["count"] :]
            claimed = max((start for start in in_turn if start < newest), default=0)
            passed = [start for start in owed if max(before, claimed) < start <= newest]
            if covered and not self._may_miss(min(passed, default=newest), at):
                self.verdict.missed_against_its_policy.append(self._window(newest))
            accounted.update(covered)
            before = newest
        return accounted

    def _may_miss(self, oldest: int, at: int) -> bool:
        """Whether one of them was late, and the definition of the time ``at`` then runs only the newest that is due."""
        span = self._span_of(at + _ROUNDED)
        if span is None:
            return False
        edits = [edit for edit in (span.edit, *span.perhaps) if edit is not None]
        late = at - oldest > (TOLERANCE - 0.5) * _SECOND
        return late and any(edit.get("catch_up") == "latest" for edit in edits)

    def _waited(self, start: int, until: int) -> float:
        """Seconds for which a window waited, without pauses and times in which the store was away."""
        away = [[(at - self.epoch) * _SECOND for at in span] for span in self.faults.away()]
        waited, reached = 0.0, float(start)
        for since, end in sorted([*map(list, self.pauses), *away]):
            if since >= until:
                break
            waited += max(min(since, until) - reached, 0)
            reached = max(reached, end)
        return (waited + max(until - reached, 0)) / _SECOND

    def _mono(self, start: int) -> float:
        return self.epoch + start / _SECOND

    def _window(self, start: int) -> tuple[str, str]:
        return self.entry, text_of(start / _SECOND)


def _instant(text: str) -> int:
    """Microseconds since the epoch of an instant's text."""
    return (datetime.fromisoformat(text.replace("Z", "+00:00")) - _EPOCH) // timedelta(microseconds=1)
