"""The checker of edits sees each thing that can go wrong, and excuses nothing else: by logs that are made up."""

from __future__ import annotations

from typing import Any

import pytest
from chaos.checker import text_of
from chaos.edited import EditVerdict, judge_edits

NAME = "user-1"
END = 60.0


def edit(key: str, what: str, at: float, version: int | None = None, **more: Any) -> list[dict[str, Any]]:
    """An edit, and its answer: done with this version, else what ``more`` says."""
    result = more.pop("result", "done" if version else "same")
    answer = {"version": version, "server": text_of(at)} if version else {}
    answer |= {field: more.pop(field) for field in ("there", "start", "task_id") if field in more}
    sent = {"what": what, "if_version": None, **more}
    return [
        {"kind": "edit", "entry": NAME, "edit": key, "mono": at - 0.01, **sent},
        {"kind": "answer", "entry": NAME, "edit": key, "mono": at + 0.01, "result": result, **answer},
    ]


def set_(key: str, at: float, version: int | None, period: float = 10, catch_up: str = "all", **more: Any) -> Any:
    return edit(key, "set", at, version, period=period, catch_up=catch_up, **more)


def unknown(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, without its answer."""
    return events[:1]


def ran(start: float, by: str, *, at: float | None = None, fence: int = 1, task_id: str = "") -> list[dict[str, Any]]:
    """A body of the window at ``start``, with the arguments of the edit ``by``."""
    begin = start + 0.1 if at is None else at
    who = {"entry": NAME, "start": text_of(start), "pid": fence, "group": fence, "fence": fence}
    of = {"edit": by, "task_id": task_id or f"task-{start:g}"}
    return [
        {"kind": "start", "mono": begin, **who, **of},
        {"kind": "finish", "mono": begin + 0.1, **who},
        {"kind": "recorded", "mono": begin + 0.1, **who},
    ]


def account(start: float, claimed: float, outcome: str = "done", count: int = 0, ordered: bool = False) -> Any:
    line = {"start": text_of(start), "claimed": text_of(claimed), "outcome": outcome, "count": count}
    return [{"kind": "account", "entry": NAME, "mono": END, "ordered": ordered, **line}]


def away(since: float, until: float) -> list[dict[str, Any]]:
    return [
        {"kind": "fault", "effect": "out", "of": None, "number": 1, "mono": since},
        {"kind": "over", "number": 1, "mono": until},
    ]


def judged(*groups: list[dict[str, Any]]) -> EditVerdict:
    """The verdict on windows up to 60 s after the epoch."""
    events = sorted((event for group in groups for event in group), key=lambda event: event["mono"])
    return judge_edits([{"kind": "clock", "epoch": 0.0}, *events], END, lease=2.0)


def each(starts: range, by: str) -> list[dict[str, Any]]:
    return [event for start in starts for event in ran(start, by, fence=start)]


A = set_("a", 5, 1)
#: From 25 s on every 20 s.
B = set_("b", 25, 2, period=20)
A_RAN, B_RAN = each(range(10, 21, 10), "a"), each(range(40, 61, 20), "b")
#: A definition and its successor, each of whose windows ran.
GOOD = [A, B, A_RAN, B_RAN]
#: The same, with a deletion instead of a successor.
DELETED = [A, edit("d", "delete", 25, 2), A_RAN]
PAUSED = [A, edit("p", "pause", 15, 2), edit("r", "resume", 45, 3), each(range(10, 61, 10), "a")]
ORDER = edit("o", "run", 42, result="done", start=text_of(40), task_id="order")
BY_ORDER = ran(40, "b", at=42.5, fence=99, task_id="order")
LATEST = [set_("a", 5, 1, catch_up="latest"), ran(10, "a"), ran(60, "a", fence=2)]
MISSED = account(50, 60, "missed", count=4)


WELL = {
    "each by its definition": GOOD,
    "what was owed runs after its successor came": [A, B, each(range(10, 11), "a"), ran(20, "a", at=27), B_RAN],
    "deleted": DELETED,
    "deleted before a window was claimed": [*DELETED[:2], ran(10, "a")],
    "set again": [*DELETED, set_("b", 35, 3, period=20), B_RAN],
    "paused, and caught up on": PAUSED,
    "deleted after a long pause": [A, edit("p", "pause", 8, 2), edit("d", "delete", 58, 3)],
    "deleted while the store was away": [A, away(8, 57), edit("d", "delete", 58, 2)],
    "run by order": [*GOOD, ORDER, BY_ORDER, account(40, 42, ordered=True)],
    "run by order while paused": [*PAUSED, ORDER, ran(40, "a", at=42.5, fence=99, task_id="order")],
    "ordered in a pause, and owed as well": [
        *PAUSED[:3], each(range(10, 31, 10), "a"), ORDER, ran(40, "a", at=46, fence=40), ran(50, "a", fence=50),
        ran(60, "a", fence=60), account(40, 42),
    ],
    "ordered, and an earlier message came again": [*GOOD, ORDER, ran(40, "b", at=42.5, fence=99)],
    "run by an order without an answer": [*GOOD, unknown(ORDER), BY_ORDER],
    "missed, as the definition allows": [*LATEST, MISSED],
    "missed, and what was late has run by order": [
        *LATEST, each(range(20, 41, 10), "a"), ORDER, ran(40, "a", at=42.5, fence=99, task_id="order"),
        account(50, 52, "missed", count=1),
    ],
    "an edit without an answer wasn't made": [*GOOD, unknown(set_("c", 30, None, period=7))],
    "an edit without an answer was made": [A, unknown(set_("c", 12, None, period=7)), A_RAN[:3], ran(14, "c", fence=2),
                                           set_("b", 25, 3, period=20), B_RAN],
    "a conflict": [*GOOD, set_("c", 30, None, if_version=1, result="conflict", there=2)],
    "compared, and set": [A, set_("b", 25, 2, period=20, if_version=1), A_RAN, B_RAN],
    "set where there was none": [*DELETED, set_("b", 35, 3, period=20, if_version=0), B_RAN],
}  # fmt: skip

WRONG = {
    "a window didn't run": ([A, B, each(range(10, 11), "a"), B_RAN], "lost"),
    "a window began and never ended": ([A, B, A_RAN, B_RAN[:4]], "lost"),
    "one before it ran, and it was deleted then": ([*DELETED[:2], ran(20, "a")], "lost"),
    "it waited for long, and was deleted then": ([A, edit("d", "delete", 58, 2)], "lost"),
    "its pause was over for long, and it was deleted then": (
        [A, edit("p", "pause", 8, 2), edit("r", "resume", 12, 3), edit("d", "delete", 58, 4)], "lost",
    ),
    "fewer are accounted for as missed": ([*LATEST, account(50, 60, "missed", count=3)], "lost"),
    "missed, and none may be": (
        [A, ran(10, "a"), ran(60, "a", fence=2), MISSED], "missed_against_its_policy",
    ),
    "missed, and it wasn't late": (
        [LATEST[0], each(range(10, 41, 10), "a"), ran(60, "a"), account(50, 51, "missed", count=1)],
        "missed_against_its_policy",
    ),
    "a window ran twice": ([*GOOD, ran(20, "a", at=23, fence=99)], "finished_twice"),
    "a window ran twice, by two messages": ([*GOOD, ran(20, "a", at=23, fence=99, task_id="two")], "finished_twice"),
    "recorded twice": ([*GOOD, ran(20, "a", at=23, fence=99)], "recorded_twice"),
    "two bodies at the same time": ([*GOOD, ran(20, "a", at=20.15, fence=99)], "overlapped"),
    "an order ran twice": ([*GOOD, ORDER, BY_ORDER, ran(40, "b", at=44, fence=98, task_id="order")], "finished_twice"),
    "more ran than were ordered": (
        [*GOOD, unknown(ORDER), BY_ORDER, ran(40, "b", at=44, fence=98, task_id="another")], "finished_twice",
    ),
    "it ran before the order": (
        [*GOOD, unknown(ORDER), ran(20, "a", at=23, fence=99, task_id="two")], "finished_twice",
    ),
    "an earlier message came twice after an order": (
        [*GOOD, ORDER, ran(40, "b", at=42.5, fence=98), ran(40, "b", at=44, fence=99)], "finished_twice",
    ),
    "an order didn't run": ([*GOOD, ORDER], "lost_orders"),
    "an order ran by what was replaced before it": (
        [*GOOD, ORDER, ran(40, "a", at=42.5, fence=99, task_id="order")], "after_its_successor",
    ),
    "a body began before its window": ([A, B, A_RAN, ran(40, "b", at=39.9), ran(60, "b", fence=2)], "early"),
    "by a definition before it counted": ([A, B, ran(10, "a"), ran(20, "b", fence=2), B_RAN], "before_its_time"),
    "by a definition after its successor": ([*GOOD, ran(30, "a", fence=99)], "after_its_successor"),
    "by a definition instead of its successor": (
        [A, B, A_RAN, ran(40, "a", fence=98), ran(60, "b", fence=99)], "after_its_successor",
    ),
    "by a definition after its deletion": ([*DELETED, ran(30, "a", fence=99)], "after_its_successor"),
    "a window that the definition doesn't have": ([*GOOD, ran(50, "b", fence=99)], "off_its_grid"),
    "by arguments of nobody": ([*GOOD, ran(30, "x", fence=99)], "off_its_grid"),
    "by an edit that was refused": (
        [*GOOD, set_("c", 30, None, if_version=1, result="conflict", there=2), ran(50, "c", fence=99)],
        "never_in_force",
    ),
    "by an edit that wasn't made, as the versions show": (
        [*GOOD, unknown(set_("c", 30, None)), ran(50, "c", fence=99)], "never_in_force",
    ),
    "claimed in a pause": ([*PAUSED, account(30, 30.1)], "claimed_while_paused"),
    "claimed in a pause, long after an order": ([*PAUSED, ORDER, account(40, 43)], "claimed_while_paused"),
    "claimed after the deletion": ([*DELETED, account(20, 25.1)], "claimed_after_deletion"),
    "a version twice": ([*GOOD, edit("p", "pause", 30, 2)], "wrong_answers"),
    "a version of nobody": ([A, set_("b", 25, 3, period=20), A_RAN, B_RAN], "wrong_answers"),
    "a version that came before its predecessor": ([*GOOD, edit("p", "pause", 20, 3)], "wrong_answers"),
    "made on another version than expected": (
        [A, set_("b", 25, 2, period=20, if_version=2), A_RAN, B_RAN], "wrong_answers",
    ),
    "made though there was one": ([A, set_("b", 25, 2, period=20, if_version=0), A_RAN, B_RAN], "wrong_answers"),
    "a conflict with what was expected": (
        [*GOOD, set_("c", 30, None, if_version=2, result="conflict", there=2)], "wrong_answers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", WELL)
def test_what_may_be(story: str) -> None:
    """Nothing is found where the promise was kept."""
    verdict = judged(*WELL[story])
    assert verdict.kept, verdict.faults()


@pytest.mark.parametrize("story", WRONG)
def test_what_must_not_be(story: str) -> None:
    """Each thing that goes wrong is found, by its name."""
    groups, found = WRONG[story]
    verdict = judged(*groups)
    assert getattr(verdict, found), verdict
    assert not verdict.kept


def test_every_rule_is_tried() -> None:
    """No kind of fault is without a log that has it."""
    tried = {found.replace("_", " ") for _, found in WRONG.values()}
    assert tried == EditVerdict().faults().keys()


def test_what_is_counted() -> None:
    """Windows that were owed, those of unsure times, and why some didn't run."""
    verdict = judged(*WELL["deleted before a window was claimed"])
    assert (verdict.windows, dict(verdict.not_run)) == (2, {"taken back by a deletion": 1})
    verdict = judged(*WELL["missed, as the definition allows"])
    assert (verdict.windows, dict(verdict.not_run)) == (6, {"missed": 4})
    verdict = judged(*WELL["an edit without an answer was made"])
    assert (verdict.windows, verdict.unsure) == (2, 2)
    assert dict(judged(*WELL["run by an order without an answer"]).excused) == {"ran by an order without an answer": 1}
