"""Cron lines in all time zones agree with an independent cron; ``make whens`` compares a million starts."""

from __future__ import annotations

import random

import pytest
from whens import check, report


@pytest.mark.parametrize("schedules", [100, pytest.param(5000, marks=pytest.mark.long)])
def test_starts_around_changes_of_clocks_are_as_an_independent_cron_has_them(schedules: int) -> None:
    """In some zones of the database, by ``make long`` in each; or by another rule, which is named."""
    counted = check(schedules, random.randrange(10**6))
    assert counted["as cronsim"] > 0.8 * counted["starts"], report(counted)
    assert sum(name.startswith("zone ") for name in counted) >= min(schedules, 500)
