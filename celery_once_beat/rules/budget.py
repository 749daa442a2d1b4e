"""A budget for one question to a schedule: how many steps a search may take. Pure.

Some definitions are legal and cost minutes to compute. Every search spends steps of the question that it belongs to,
however schedules are nested. A step is about a microsecond.

Steps decide, not time, so that fast and slow machines get the same answer. The limit on time only ends a question with
an error: it never changes an answer. It counts this thread's CPU time, so a machine that slept or is busy is not at
fault.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from celery_once_beat.errors import ScheduleError

#: Of one question: when is the next start?
_MOST_STEPS = 100_000
#: CPU time per step after which a question ends.
_MOST_SECONDS = 1e-5
#: The time is read once in so many steps, as a power of 2.
_TIMED = 10


class _Question(threading.local):
    """What this thread is asked. ``left`` is negative where nothing is asked: then nothing is counted."""

    most = 0
    left = -1
    began = 0.0


_question = _Question()


@contextmanager
def budget(most: int = _MOST_STEPS, *, apart: bool = False) -> Iterator[Callable[[], bool]]:
    """Let what is inside take so many steps, else ScheduleError. Gives what says whether half of them are used up.

    Within another budget, that one counts. What is done once, for all questions, is ``apart`` from it.
    """
    outer = _question.most, _question.left, _question.began
    if outer[1] >= 0 and not apart:
        yield _half_spent
        return
    _question.most = _question.left = most
    _question.began = time.thread_time()
    try:
        yield _half_spent
    finally:
        _question.most, _question.left, _question.began = outer


def spend(steps: int) -> None:
    """Take steps from the budget, if there is one; raises ScheduleError when it is used up."""
    before = _question.left
    if before < 0:
        return
    left = before - steps
    _question.left = max(left, 0)
    if left < 0:
        raise _too_much(f"{_question.most:,} steps")
    if left >> _TIMED != before >> _TIMED:
        seconds = _question.most * _MOST_SECONDS
        if time.thread_time() - _question.began > seconds:
            raise _too_much(f"{seconds:g} s of CPU time")


def _too_much(limit: str) -> ScheduleError:
    return ScheduleError(
        f"its starts take more than {limit} to find, the most that one question may take; "
        "combine fewer schedules, periods and rules, or use rules that start more often"
    )


def _half_spent() -> bool:
    """Whether half of the budget is used up: a search that can go on later ends there."""
    return _question.left * 2 < _question.most
