"""Spans of time, clocks, and the starts of a definition: what the judge calculates with."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from math import floor, inf
from typing import Any


class HistoryError(ValueError):
    """A line that isn't one of a history."""


class Spans:
    """Spans of time, merged and in order. A span of no length is an instant."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []

    def add(self, start: float, end: float) -> None:
        i, j = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if i < j:
            start, end = min(start, self.starts[i]), max(end, self.ends[j - 1])
        self.starts[i:j] = [start]
        self.ends[i:j] = [end]

    def close(self, at: float) -> None:
        """End the last span at this time, if it lasts longer."""
        if self.ends and self.ends[-1] > at:
            self.ends[-1] = max(at, self.starts[-1])

    def until(self, at: float) -> float | None:
        """The end of the span in which this time lies."""
        i = bisect_right(self.starts, at) - 1
        return self.ends[i] if i >= 0 and self.ends[i] > at else None

    def after(self, at: float) -> float:
        """When the next span begins."""
        i = bisect_right(self.starts, at)
        return self.starts[i] if i < len(self.starts) else inf

    def between(self, start: float, end: float) -> Iterator[tuple[float, float]]:
        """The spans that touch these times."""
        i = bisect_left(self.ends, start)
        while i < len(self.starts) and self.starts[i] <= end:
            yield self.starts[i], self.ends[i]
            i += 1


class Clock:
    """By how much a process's clock is ahead."""

    def __init__(self) -> None:
        self.times = [-inf]
        self.by = [0.0]

    def set(self, at: float, by: float) -> None:
        self.times.append(at)
        self.by.append(by)

    def offset(self, at: float) -> float:
        return self.by[bisect_right(self.times, at) - 1]


class Grid:
    """The starts of a definition, in order."""

    def __init__(self, description: dict[str, Any]) -> None:
        if "starts" in description:
            self.starts: list[float] | None = sorted(description["starts"])
            self.same: Any = tuple(self.starts)
        elif description.get("every", 0) > 0:
            self.starts = None
            self.every, self.first = float(description["every"]), float(description.get("from", 0))
            self.same = (self.every, self.first)
        else:
            raise HistoryError(f"description: found {description!r}, expected starts, or every and from")

    def __contains__(self, start: float) -> bool:
        return next(self.between(start - 0.0005, start + 0.0005), None) is not None

    def between(self, after: float, until: float) -> Iterator[float]:
        """The starts after the first and up to the second time."""
        if self.starts is not None:
            for i in range(bisect_right(self.starts, after), len(self.starts)):
                if self.starts[i] > until:
                    return
                yield self.starts[i]
        else:
            step = max(0, floor((after - self.first) / self.every) - 1)
            while (start := self.first + step * self.every) <= until:
                if start > after:
                    yield start
                step += 1

    def count(self, after: float, until: float) -> int:
        if until <= after:
            return 0
        if self.starts is not None:
            return bisect_right(self.starts, until) - bisect_right(self.starts, after)
        low = max(0, floor((after - self.first) / self.every) + 1)
        return max(0, floor((until - self.first) / self.every) + 1 - low)


def key_of(start: float) -> int:
    """Windows of an entry are at least a millisecond apart."""
    return round(start * 1000)
