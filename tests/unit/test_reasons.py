"""Why a window isn't done, in a word and in a sentence: for which other one or which limit it waits, say."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_once_beat.beat.reasons import end_words, why_late
from celery_once_beat.outcomes import OUTCOMES, STATES
from celery_once_beat.store import AlertDetails, OpenWindow
from celery_once_beat.store.model import Ended

NOW = datetime(2026, 1, 1, 12, 0, 0, 987_654, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
AT = "2026-01-01T11:58:00Z"
LATER = "2026-01-01T12:01:00Z"


def an_open(**given: Any) -> OpenWindow:
    """A window that was claimed two minutes ago; ``begun=True``: and begun then."""
    begun = NOW - 2 * MINUTE if given.pop("begun", False) else None
    said = {
        "attempts": 1,
        "retry": 0,
        "backfill": False,
        "taken": False,
        "state": "held",
        "beat": "host:1:b",
        "owner": "",
        **given,
    }
    return OpenWindow(claimed=NOW - 2 * MINUTE, begun=begun, **said)


BEGUN = an_open(begun=True)
OWNED = an_open(begun=True, owner="celery@host-7:4:abc", attempts=2)
BACK = an_open(begun=True, state="retry")
NEW = an_open()
DEAD = "and its worker doesn't renew its lease"
UNBEGUN = f"claimed at {AT}, and no worker has begun it"


REASONS = [
    (AlertDetails(), "published", "nothing more is known of it"),
    (AlertDetails(open=BEGUN, run="running"), "running", f"running since {AT}"),
    (AlertDetails(open=OWNED, run="running"), "running", f"running since {AT} on celery@host-7, attempt 2"),
    (AlertDetails(open=BEGUN, run="waiting", retry=2), "waiting", "waits for retry 2"),
    (
        AlertDetails(open=BEGUN, run="waiting", retry=2, failure="Boom: 1"),
        "waiting",
        "waits for retry 2, after Boom: 1",
    ),
    (AlertDetails(open=BEGUN, deadline=NOW + MINUTE), "running", f"began {AT}, {DEAD}"),
    (AlertDetails(open=BEGUN), "running", f"began {AT}, {DEAD}"),
    (AlertDetails(open=BEGUN, deadline=NOW), "overdue", f"began {AT}, {DEAD}"),
    (AlertDetails(open=BACK, deadline=NOW + MINUTE), "waiting", f"runs again by {LATER}, began {AT}"),
    (AlertDetails(open=BACK, deadline=NOW, failure="Boom"), "overdue", f"is to run again, began {AT}, after Boom"),
    (AlertDetails(open=BACK), "waiting", f"is to run again, began {AT}"),
    (AlertDetails(open=an_open(begun=True, taken=True)), "waiting", f"is to run again, began {AT}"),
    (AlertDetails(open=NEW, deadline=NOW + MINUTE), "published", UNBEGUN),
    (AlertDetails(open=NEW, deadline=NOW - MINUTE), "overdue", UNBEGUN),
    (AlertDetails(open=NEW, unconsumed=True), "published", f"{UNBEGUN}: no worker consumes the queue 'night'"),
    (AlertDetails(ended=Ended("failed", NOW, 2, "Boom")), "failed", "failed at 2026-01-01T12:00:00Z: Boom"),
    (
        AlertDetails(open=an_open(state="waits_turn"), waits_for=NOW - 2 * MINUTE),
        "buffered",
        f"waits for the window of {AT}",
    ),
    (
        AlertDetails(open=an_open(begun=True, state="waits_turn"), waits_for=NOW - 2 * MINUTE),
        "buffered",
        f"waits for the window of {AT}",
    ),
    (
        AlertDetails(open=an_open(state="waits_turn"), run="waiting", retry=0, waits_for=NOW - 2 * MINUTE),
        "buffered",
        f"waits for the window of {AT}",
    ),
    (AlertDetails(open=an_open(state="waits_turn")), "buffered", "it is its turn, and no worker has begun it"),
    (
        AlertDetails(open=an_open(state="waits_turn"), unconsumed=True),
        "buffered",
        "it is its turn, and no worker has begun it: no worker consumes the queue 'night'",
    ),
    (
        AlertDetails(open=an_open(state="waits_slot"), limit="reports"),
        "buffered",
        "waits for a slot of the limit 'reports'",
    ),
    (
        AlertDetails(
            open=an_open(state="waits_slot"), limit="reports", paused=True, paused_by="ann", paused_for="no\nthanks"
        ),
        "buffered",
        "waits for a slot of the limit 'reports'; the entry is paused by ann: 'no\\nthanks'",
    ),
    (
        AlertDetails(ended=Ended("skipped", NOW, 0, "1000 windows of its entry wait already")),
        "skipped",
        "skipped at 2026-01-01T12:00:00Z: 1000 windows of its entry wait already",
    ),
]


@pytest.mark.parametrize(("tell", "state", "why"), REASONS)
def test_each_state_of_a_window(tell: AlertDetails, state: str, why: str) -> None:
    """What holds a window up is said in one sentence, with times that people read."""
    assert why_late(tell, "night", NOW) == (state, why)


@pytest.mark.parametrize(("tell", "state", "why"), REASONS)
def test_a_reason_is_one_line_of_a_known_state(tell: AlertDetails, state: str, why: str) -> None:
    """Also where the queue isn't known."""
    found, text = why_late(tell, None, NOW)
    assert found == state
    assert found in STATES
    assert text.isprintable()
    assert text.startswith(why.partition(" the queue")[0])


def test_a_queue_that_is_not_known() -> None:
    """Nothing is made up of it."""
    assert why_late(AlertDetails(open=NEW, unconsumed=True), None, NOW)[1] == f"{UNBEGUN}: no worker consumes its queue"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "; the entry is paused"),
        ({"paused_by": "ann"}, "; the entry is paused by ann"),
        ({"paused_for": "the move"}, "; the entry is paused: the move"),
        ({"paused_by": "a\x1bnn", "paused_for": "the\nmove"}, r"; the entry is paused by 'a\x1bnn': 'the\nmove'"),
    ],
)
def test_a_paused_entry(said: dict[str, str], words: str) -> None:
    """Who paused it and why is behind the reason, without what would move a terminal; not where the window ended."""
    tell = AlertDetails(open=BEGUN, run="running", paused=True, **said)
    assert why_late(tell, None, NOW) == ("running", f"running since {AT}{words}")
    ended = AlertDetails(ended=Ended("failed", NOW, 1, "Boom"), paused=True, **said)
    assert "paused" not in why_late(ended, None, NOW)[1]


@pytest.mark.parametrize(
    ("tell", "words"),
    [
        (AlertDetails(ended=Ended("failed", NOW, 1, "of its end")), "of its end"),
        (AlertDetails(ended=Ended("failed", NOW, 1, "of its end"), failure="of before"), "of its end"),
        (AlertDetails(ended=Ended("failed", NOW, 1), failure="of before"), "of before"),
        (AlertDetails(ended=Ended("missed", NOW, 0)), OUTCOMES["missed"].meaning),
        (AlertDetails(ended=Ended("mislaid", NOW, 0)), "mislaid"),
    ],
)
def test_how_it_ended(tell: AlertDetails, words: str) -> None:
    """What its failure said goes first; an outcome of a newer version is its name."""
    assert end_words(tell) == words


def test_what_others_wrote_is_one_line() -> None:
    """A failure's text and a worker's name can't do anything to a terminal, and a name is cut."""
    long = an_open(begun=True, owner=f"{'h' * 300}:1:a")
    assert why_late(AlertDetails(open=long, run="running"), None, NOW)[1].endswith(f" on {'h' * 200}")
    odd = an_open(begun=True, owner="a\x07b:1:a")
    assert why_late(AlertDetails(open=odd, run="running"), None, NOW)[1].endswith(r" on 'a\x07b'")
    ended = AlertDetails(ended=Ended("failed", NOW, 1, "one\ntwo"))
    assert why_late(ended, None, NOW)[1].endswith(r": 'one\ntwo'")
    failed = AlertDetails(open=BEGUN, run="waiting", retry=1, failure="one\ntwo")
    assert why_late(failed, None, NOW)[1].endswith(r", after 'one\ntwo'")
