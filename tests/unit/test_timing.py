"""What an entry's options say of when its messages run."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from celery_once_beat.errors import SettingError
from celery_once_beat.rules.policy import Timing

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
LATER = NOW + timedelta(seconds=90)
TASK = SimpleNamespace(expires=60)


class OddZone(tzinfo):
    """A zone that raises when it is asked."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        raise RuntimeError("this zone is broken")


def timing(options: Any, task: object = None) -> Timing:
    return Timing.of("tick", options, task, ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize(
    ("options", "task", "delay", "expires"),
    [
        ({}, None, 0, None),
        ({}, TASK, 0, 60),
        ({"expires": None}, TASK, 0, None),
        ({"expires": 5.5}, TASK, 0, 5.5),
        ({"expires": -1}, None, 0, 0),
        ({"expires": LATER}, None, 0, 90),
        ({"expires": "2026-11-22T12:01:30Z"}, None, 0, 90),
        ({"expires": datetime(2026, 11, 22, 13, 1, 30)}, None, 0, 90),
        ({"countdown": 7}, None, 7, None),
        ({"countdown": -7}, None, 0, None),
        ({"countdown": Fraction(1, 2), "eta": LATER}, None, 0.5, None),
        ({"eta": LATER}, None, 90, None),
        ({"eta": "2026-11-22T13:01:30"}, None, 90, None),
        ({"eta": NOW - timedelta(days=1)}, None, 0, None),
        ({"countdown": 0, "eta": ""}, None, 0, None),
    ],
)
def test_when_a_message_may_run_and_expires(options: Any, task: object, delay: float, expires: float | None) -> None:
    """Seconds from now; naive datetimes are in the app's zone, and the entry's options go before its task's."""
    found = timing(options, task)
    assert found.delay(NOW) == delay
    assert found.expires_after(NOW) == expires


def test_a_countdown_began_with_the_first_message() -> None:
    """One that is published again waits for what is left of it."""
    found = timing({"countdown": 30})
    assert [found.delay(NOW, NOW - timedelta(seconds=passed)) for passed in (0, 10, 40)] == [30, 20, 0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["countdown"], r"options: found .*, expected a dict"),
        ({"headers": [("a", 1)]}, r"options\['headers'\]: found .*, expected a dict"),
        ({"headers": "text"}, r"options\['headers'\]"),
        ({"countdown": float("inf")}, r"options\['countdown'\]: found inf, expected a number of seconds, at most"),
        ({"countdown": float("nan")}, r"options\['countdown'\]: found nan"),
        ({"countdown": 2**63}, r"options\['countdown'\]"),
        ({"countdown": 10**400}, r"options\['countdown'\]"),
        ({"countdown": "soon"}, r"options\['countdown'\]: found 'soon', expected a number of seconds"),
        ({"countdown": Decimal(3)}, r"options\['countdown'\]"),
        ({"expires": 2**63 - 1}, r"options\['expires'\]"),
        ({"expires": "tomorrow"}, r"options\['expires'\]: found 'tomorrow', expected a datetime, or its text"),
        ({"eta": 5}, r"options\['eta'\]: found 5, expected a datetime"),
        ({"eta": datetime(2026, 1, 1, tzinfo=OddZone())}, r"options\['eta'\]"),
    ],
)
def test_what_can_not_be_is_refused(options: Any, named: str) -> None:
    """One line says which entry and option, what was found and what was expected."""
    with pytest.raises(SettingError, match=rf"^beat entry 'tick', {named}"):
        timing(options)
