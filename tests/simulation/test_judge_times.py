"""What the judge calculates with, against the plainest way to calculate it: one instant after the other."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.judge_times import Clock, Grid, Spans

times = st.integers(0, 40)
spans = st.lists(st.tuples(times, times).map(sorted), max_size=6)
changes = st.lists(st.tuples(st.integers(1, 39), st.integers(-10, 10)), max_size=4, unique_by=lambda one: one[0])


@given(given=spans, at=times, until=times)
def test_spans_are_what_was_added(given, at, until):
    """Spans are merged and in order; what they cover, and when the next one begins, is as if they weren't."""
    made = Spans()
    for start, end in given:
        made.add(start, end)
    pairs = list(zip(made.starts, made.ends, strict=True))
    assert pairs == sorted(pairs)
    assert all(one[1] < other[0] for one, other in pairwise(pairs))
    covered = {tick / 2 for start, end in given for tick in range(2 * start, 2 * end)}
    free = at
    while free in covered:
        free += 0.5
    assert made.until(at) == (free if free > at else None)
    assert made.after(at) == min((start for start, _ in pairs if start > at), default=inf)
    touching = [pair for pair in pairs if pair[0] <= until and pair[1] >= at]
    assert list(made.between(at, until)) == touching


def test_the_last_span_can_be_closed():
    """Only the last one, and never before its begin."""
    made = Spans()
    made.add(1, 2)
    made.add(5, inf)
    made.close(7)
    made.close(9)
    assert (made.starts, made.ends) == ([1, 5], [2, 7])
    made.close(3)
    assert (made.starts, made.ends) == ([1, 5], [2, 5])


def clock_of(given):
    made = Clock()
    for at, by in sorted(given):
        made.set(at, by)
    return made


def shown(given, at):
    return at + ([0] + [by for change, by in sorted(given) if change <= at])[-1]


@given(given=changes, at=times)
def test_a_clock_shows_what_it_was_set_to(given, at):
    """It is set to so much more than true time from a change on; its highest is the highest so far."""
    made = clock_of(given)
    assert made.shows(at) == shown(given, at)
    before = [change for change, _ in given if change <= at]
    # Right before a change it showed what it was set to by the one before.
    last = [change + ([0] + [by for other, by in sorted(given) if other < change])[-1] for change in before]
    assert made.high(at) == max([shown(given, at), *last, *(shown(given, change) for change in before)])
    assert list(made.changes(at, at + 10)) == sorted(change for change, _ in given if at <= change <= at + 10)


@given(given=changes, start=times)
def test_a_start_is_due_when_the_clock_first_shows_it(given, start):
    """No earlier, and no later."""
    made = clock_of(given)
    due = made.due(start)
    assert made.high(due) >= start
    assert made.high(due - 0.25) < start


@given(given=changes, start=times, more=times)
def test_a_length_is_measured_by_the_clock(given, start, more):
    """From right before the first instant to the last one."""
    made = clock_of(given)
    before = start + ([0] + [by for change, by in sorted(given) if change < start])[-1]
    assert made.length(start, start + more) == shown(given, start + more) - before


@given(after=st.integers(-20, 60), until=st.integers(-20, 60), every=st.integers(1, 9), first=st.integers(0, 20))
def test_a_grid_counts_and_lists_its_starts(after, until, every, first):
    """After the one time, up to the other one; as a step and as a list it is the same."""
    expected = [start for start in range(first, 70, every) if after < start <= until]
    for grid in (Grid({"every": every, "from": first}), Grid({"starts": list(range(first, 70, every))})):
        assert list(grid.between(after, until)) == expected
        assert grid.count(after, until) == len(expected)
        assert all(start in grid for start in expected)
        assert all((start + 0.5) not in grid for start in expected)


@pytest.mark.parametrize("every", [0, -1])
def test_a_grid_goes_on(every):
    """What doesn't advance is no schedule."""
    with pytest.raises(ValueError, match="expected starts, or every and from"):
        Grid({"every": every})
