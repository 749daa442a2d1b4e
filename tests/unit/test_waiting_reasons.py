"""For what a window waits, in one sentence: which other one, or which limit."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_once_beat.beat.reasons import why_late
from celery_once_beat.outcomes import STATES
from celery_once_beat.store.model import Ended, OpenWindow, Tell

NOW = datetime(2026, 11, 21, 2, 0, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


def window(begun: datetime | None = None, attempts: int = 0, **more: Any) -> OpenWindow:
    owner = "celery@host-a:delivery:1" if begun else ""
    return OpenWindow(NOW - HOUR, begun, attempts, 0, False, False, "beat", owner, **more)


def tell(open_: OpenWindow, **more: Any) -> Tell:
    return Tell(open=open_, deadline=NOW + HOUR, **more)


CASES = [
    (
        tell(window(waits="turn"), waits_for=NOW - 2 * HOUR),
        "buffered",
        "waits for the window of 2026-11-21T00:00:00Z",
    ),
    (
        tell(window(NOW - HOUR, 1, waits="turn"), waits_for=NOW - 2 * HOUR),
        "buffered",
        "waits for the window of 2026-11-21T00:00:00Z",
    ),
    (
        tell(window(waits="turn"), run="waiting", retry=0, waits_for=NOW - 2 * HOUR),
        "buffered",
        "waits for the window of 2026-11-21T00:00:00Z",
    ),
    (tell(window(waits="turn")), "buffered", "it is its turn, and no worker has begun it"),
    (
        tell(window(waits="turn"), unconsumed=True),
        "buffered",
        "it is its turn, and no worker has begun it: no worker consumes the queue 'nightly'",
    ),
    (tell(window(waits="place"), limit="reports"), "buffered", "waits for a place of the limit 'reports'"),
    (
        tell(window(waits="place"), limit="reports", paused=True, paused_by="ann", paused_for="no\nthanks"),
        "buffered",
        "waits for a place of the limit 'reports'; the entry is paused by ann: 'no\\nthanks'",
    ),
    (
        Tell(ended=Ended("skipped", NOW - HOUR, 0, "1000 windows of its entry wait already")),
        "skipped",
        "skipped at 2026-11-21T01:00:00Z: 1000 windows of its entry wait already",
    ),
]


@pytest.mark.parametrize(("said", "state", "why"), CASES)
def test_why_late(said: Tell, state: str, why: str) -> None:
    """It says how the window stands, since when, and for which other one or which limit it waits."""
    assert why_late(said, "nightly", NOW) == (state, why)


@pytest.mark.parametrize(("said", "state", "why"), CASES)
def test_a_reason_is_one_line_of_a_known_state(said: Tell, state: str, why: str) -> None:
    """Also where the queue isn't known."""
    found, text = why_late(said, None, NOW)
    assert found == state
    assert found in STATES
    assert text.isprintable()
    assert text.startswith(why.partition(" the queue")[0])
