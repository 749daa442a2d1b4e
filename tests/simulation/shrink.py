"""Makes a plan that fails smaller: fewer faults, fewer entries, less time, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        best = _fewer_faults(best, still)
        best = _fewer_entries(best, still)
        best = _less_time(best, still)
        best = _plainer(best, still)
        if _size(best) == size:
            return best


def _size(plan: Plan) -> tuple[int, int, float, int]:
    return len(plan.faults), len(plan.entries), plan.lasts, sum(map(len, plan.entries.values()))


def _with(plan: Plan, **changes: Any) -> Plan:
    smaller = deepcopy(plan)
    for name, value in changes.items():
        setattr(smaller, name, value)
    return smaller


def _fewer_faults(plan: Plan, still: Callable[[Plan], bool]) -> Plan:
    step = max(len(plan.faults) // 2, 1)
    while step:
        position = 0
        while position < len(plan.faults):
            faults = plan.faults[:position] + plan.faults[position + step :]
            smaller = _with(plan, faults=faults)
            if still(smaller):
                plan = smaller
            else:
                position += step
        step //= 2
    return plan


def _fewer_entries(plan: Plan, still: Callable[[Plan], bool]) -> Plan:
    step = max(len(plan.entries) // 2, 1)
    while step:
        position = 0
        while position < len(plan.entries):
            names = list(plan.entries)
            gone = names[position : position + step]
            smaller = _with(plan, entries={name: plan.entries[name] for name in names if name not in gone})
            if smaller.entries and still(smaller):
                plan = smaller
            else:
                position += step
        step //= 2
    return plan


def _less_time(plan: Plan, still: Callable[[Plan], bool]) -> Plan:
    for lasts in (5.0, 10.0, 20.0, 40.0):
        if lasts < plan.lasts:
            smaller = _with(plan, lasts=lasts)
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
            smaller = _with(plan, entries={**plan.entries, name: entry})
            if still(smaller):
                plan = smaller
    for setting in ("beats", "workers"):
        if plan.settings[setting] > 1:
            smaller = _with(plan, settings={**plan.settings, setting: plan.settings[setting] - 1})
            if still(smaller):
                plan = smaller
    return plan
