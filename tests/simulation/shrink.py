"""Makes a plan that fails smaller: fewer faults, fewer entries, less time, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from .episode import Plan


def shrunk(plan: Plan, fails: Callable[[Plan], bool], most: int = 400) -> Plan:
    """Return the smallest plan that was found; asks at most so often whether one fails."""
    left = [most]

    def still(smaller: Plan) -> bool:
        if left[0] <= 0:
            return False
        left[0] -= 1
        return fails(smaller)

    best = plan
    while True:
        size = _size(best)
        best = _with_faults(best, _fewer(best.faults, partial(_with_faults, best), still))
        names = _fewer([*best.entries], partial(_with_entries, best), lambda plan: bool(plan.entries) and still(plan))
        best = _with_entries(best, names)
        best = _less_time(best, still)
        best = _plainer(best, still)
        if _size(best) == size:
            return best


def _size(plan: Plan) -> tuple[int, int, float, int]:
    return len(plan.faults), len(plan.entries), plan.lasts, sum(map(len, plan.entries.values()))


def _with_faults(plan: Plan, faults: list[Any]) -> Plan:
    return replace(plan, faults=faults)


def _with_entries(plan: Plan, names: list[str]) -> Plan:
    return replace(plan, entries={name: plan.entries[name] for name in names})


def _fewer(items: list[Any], made: Callable[[list[Any]], Plan], still: Callable[[Plan], bool]) -> list[Any]:
    """Fewer of these, so that what is made of the rest fails still."""
    step = max(len(items) // 2, 1)
    while step:
        position = 0
        while position < len(items):
            fewer = items[:position] + items[position + step :]
            if still(made(fewer)):
                items = fewer
            else:
                position += step
        step //= 2
    return items


def _less_time(plan: Plan, still: Callable[[Plan], bool]) -> Plan:
    for lasts in (5.0, 10.0, 20.0, 40.0):
        if lasts < plan.lasts:
            smaller = replace(plan, lasts=lasts)
            if still(smaller):
                return smaller
    return plan


def _plainer(plan: Plan, still: Callable[[Plan], bool]) -> Plan:
    """Entries without what doesn't matter, and one beat and one worker fewer."""
    for name in list(plan.entries):
        for option in list(plan.entries[name]):
            if option in ("kind", "every", "task", "takes", "catch_up"):
                continue
            entry = {each: value for each, value in plan.entries[name].items() if each != option}
            smaller = replace(plan, entries={**plan.entries, name: entry})
            if still(smaller):
                plan = smaller
    for setting in ("beats", "workers"):
        if plan.settings[setting] > 1:
            smaller = replace(plan, settings={**plan.settings, setting: plan.settings[setting] - 1})
            if still(smaller):
                plan = smaller
    return plan
