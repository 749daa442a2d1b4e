"""Cron lines in all time zones agree with an independent cron; ``make whens`` compares a million starts."""

from __future__ import annotations

import random

from whens import check, report


def test_starts_around_changes_of_clocks_are_as_an_independent_cron_has_them() -> None:
    """In each zone of the database, or by another rule, which is named."""
    counted = check(700, random.randrange(10**6))
    assert counted["as cronsim"] > 0.9 * counted["starts"], report(counted)
    assert sum(name.startswith("zone ") for name in counted) > 500
