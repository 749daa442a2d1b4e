"""Why a window isn't done, in a word and in a sentence: for which other one or which limit it waits, say."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_once_beat.features.alerts.reasons import end_words, how_ended, why_late
from celery_once_beat.features.alerts.store import Ended
from celery_once_beat.lookup import Past, WindowSeen
from celery_once_beat.outcomes import OUTCOMES, STATES
from celery_once_beat.store import EntryAccount, OpenWindow

NOW = datetime(2026, 1, 1, 12, 0, 0, 987_654, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
AT = "2026-01-01T11:58:00Z"
LATER = "2026-01-01T12:01:00Z"


def an_open(**given: Any) -> OpenWindow:
    """A window that was claimed two minutes ago; ``begun=True``: and begun then."""
    begun = NOW - 2 * MINUTE if given.pop("begun", False) else None
    said = {"attempts": 1, "retry": 0, "backfill": False, "message": "none", "state": "plain"}
    return OpenWindow(claimed=NOW - 2 * MINUTE, begun=begun, **{**said, "beat": "host:1:b", "owner": "", **given})


def seen(state: str, window: OpenWindow | None, **given: Any) -> WindowSeen:
    return WindowSeen(NOW - 3 * MINUTE, state, open=window, **given)


def an_account(**given: Any) -> EntryAccount:
    said = {"last_done": None, "paused": False, "refused": 0, "counts": {}, "apart": {}, **given}
    return EntryAccount(cursor=NOW, born=NOW, since=NOW, **said)


def a_past(outcome: str, failure: str) -> WindowSeen:
    past = Past(NOW - 3 * MINUTE, outcome, NOW - 2 * MINUTE, None, NOW, 1, 0, "host:1", "")
    return WindowSeen(past.start, outcome, past=past, failure=failure)


BEGUN = an_open(begun=True)
OWNED = an_open(begun=True, owner="celery@host-7:4:abc", attempts=2)
BACK = an_open(begun=True, state="again")
RETRY = an_open(begun=True, state="retry", retry=2)
NEW = an_open()
ACCOUNT = an_account()
QUEUED = an_open(queue="by\nnight")
TURN = an_open(state="waits_turn")
BEGUN_TURN = an_open(begun=True, state="waits_turn")
FOR_SLOT = seen("buffered", an_open(state="waits_slot"), limit="reports")
SLOT = "waits for a slot of the limit 'reports'"
PAUSED = an_account(paused=True, paused_by="ann", paused_for="no\nthanks")
OTHER = NOW - 2 * MINUTE
AGAIN = f"is to run again, began {AT}"
UNBEGUN = f"claimed at {AT}, and no worker has begun it"


REASONS = [
    (None, ACCOUNT, "published", "nothing more is known of it"),
    (seen("running", OWNED), ACCOUNT, "running", f"running since {AT} on celery@host-7, attempt 2"),
    (seen("waiting", RETRY), ACCOUNT, "waiting", "waits for retry 2"),
    (seen("waiting", RETRY, failure="Boom: 1"), ACCOUNT, "waiting", "waits for retry 2, after Boom: 1"),
    (seen("overdue", BEGUN), ACCOUNT, "overdue", f"began {AT}, and its worker doesn't renew its lease"),
    (seen("waiting", BACK, deadline=NOW + MINUTE), ACCOUNT, "waiting", f"runs again by {LATER}, began {AT}"),
    (seen("overdue", BACK, deadline=NOW, failure="Boom"), ACCOUNT, "overdue", f"{AGAIN}, after Boom"),
    (seen("waiting", BACK), ACCOUNT, "waiting", AGAIN),
    (seen("published", NEW), ACCOUNT, "published", UNBEGUN),
    (seen("overdue", NEW), ACCOUNT, "overdue", UNBEGUN),
    (seen("published", QUEUED), ACCOUNT, "published", f"{UNBEGUN}: it is in the queue 'by\\nnight'"),
    (a_past("failed", "Boom"), None, "failed", "failed at 2026-01-01T12:00:00Z: Boom"),
    (seen("buffered", TURN, waits_for=OTHER), ACCOUNT, "buffered", f"waits for the window of {AT}"),
    (seen("overdue", BEGUN_TURN, waits_for=OTHER), ACCOUNT, "buffered", f"waits for the window of {AT}"),
    (seen("buffered", TURN), ACCOUNT, "buffered", "it is its turn, and no worker has begun it"),
    (FOR_SLOT, ACCOUNT, "buffered", SLOT),
    (FOR_SLOT, an_account(paused=True), "buffered", f"{SLOT}; the entry is paused"),
    (a_past("failed", "Boom"), an_account(paused=True), "failed", "failed at 2026-01-01T12:00:00Z: Boom"),
    (FOR_SLOT, PAUSED, "buffered", f"{SLOT}; the entry is paused by ann: 'no\\nthanks'"),
]


@pytest.mark.parametrize(("window", "account", "state", "why"), REASONS)
def test_each_state_of_a_window(window: WindowSeen | None, account: EntryAccount | None, state: str, why: str) -> None:
    """What holds a window up is said in one printable sentence, with times that people read, and a known state."""
    assert why_late(window, account) == (state, why)
    assert state in STATES
    assert why.isprintable()


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended("failed", NOW, "Boom"), "Boom"),
        (Ended("missed", NOW), OUTCOMES["missed"].meaning),
        (Ended("mislaid", NOW), "mislaid"),
    ],
)
def test_how_it_ended(ended: Ended, words: str) -> None:
    """What its failure said goes first; an outcome of a newer version is its name."""
    assert end_words(ended) == words


def test_what_others_wrote_is_one_line() -> None:
    """A failure's text and a worker's name can't do anything to a terminal, and a name is cut."""
    long = an_open(begun=True, owner=f"{'h' * 300}:1:a")
    assert why_late(seen("running", long), ACCOUNT)[1].endswith(f" on {'h' * 200}")
    odd = an_open(begun=True, owner="a\x07b:1:a")
    assert why_late(seen("running", odd), ACCOUNT)[1].endswith(r" on 'a\x07b'")
    assert how_ended(Ended("failed", NOW, "one\ntwo")).endswith(r": 'one\ntwo'")
    failed = seen("waiting", RETRY, failure="one\ntwo")
    assert why_late(failed, ACCOUNT)[1].endswith(r", after 'one\ntwo'")
