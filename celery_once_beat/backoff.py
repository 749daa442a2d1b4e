"""Doubling steps: how long to wait after each failure in a row."""

from __future__ import annotations

#: Doublings after which a step grows no more.
_MOST_DOUBLINGS = 30


def backoff_step(first: float, longest: float, times: int) -> float:
    """Return the step after ``times`` others: ``first``, doubled each time, up to ``longest``."""
    return min(first * 2.0 ** min(times, _MOST_DOUBLINGS), longest)


class Backoff:
    """The steps of one trouble."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._times = 0

    def next(self) -> float:
        """Return the next step."""
        self._times += 1
        return backoff_step(self._first, self._longest, self._times - 1)

    def reset(self) -> None:
        """Begin with the first step again."""
        self._times = 0
