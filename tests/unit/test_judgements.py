"""Outcomes, and the reasons to look at an entry: each documented, each judged by the thresholds that the docs state."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

import celery_once_beat
from celery_once_beat.lookup import Past
from celery_once_beat.outcomes import COUNTED, STATES
from celery_once_beat.status import WorkerStatus, paused_words
from celery_once_beat.status.judgements import (
    JUDGEMENTS,
    LEAST_HUNG,
    STUCK_AFTER,
    is_hung,
    is_silent,
    longest_run,
)
from celery_once_beat.store.account import EntryAccount

DOCS = Path(__file__).resolve().parents[2] / "docs"
T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
#: Seconds from one scrape of Prometheus to the next, and as many from one evaluation of its rules to the next.
SCRAPE = 15


def past(outcome: str = "done", took: float | None = 1.0) -> Past:
    begun = None if took is None else T0
    return Past(T0, outcome, T0, begun, T0 + timedelta(seconds=took or 0), 1, 0, "b", "w")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_told_in_words_colour_and_shape(name: str) -> None:
    """On the board it has a colour that there is, and a shape that no other state has."""
    state = STATES[name]
    assert state.name == name
    assert state.meaning
    sheet = (Path(celery_once_beat.__file__).parent / "web/board/static/board.css").read_text()
    looks = {
        of: (tone, shape)
        for of, tone, shape in re.findall(r"^\.(\w+) { --colour: var\(--(\w+)\); (.*) }$", sheet, re.MULTILINE)
    }
    plain = ("gone", "no shape of its own")
    tone, own = looks.get(name, plain)
    assert f"--{tone}:" in sheet
    alike = [of for of in STATES if looks.get(of, plain)[1] == own]
    assert alike == [name], f"{alike} look alike on the board: give each a line with a --shape of its own in board.css"


def test_the_words_for_what_is_counted_are_in_the_docs() -> None:
    """The outcomes, and no other."""
    _, listed = (DOCS / "glossary.md").read_text().split("## Outcomes")
    rows = re.findall(r"^\| (\w+) \|", listed.partition("\n## ")[0], re.MULTILINE)
    assert sorted(rows) == sorted(["outcome", *COUNTED]), "docs/glossary.md, Outcomes: a row for each"


def test_every_reason_and_alert_has_its_heading() -> None:
    """In docs/runbook.md, which begins a reason's with its meaning; each alert links to one, and no other is there."""
    page = (DOCS / "runbook.md").read_text()
    told = {name: " ".join(text.split()) for name, text in re.findall(r"^### (.+)\n\n((?:.+\n)+)", page, re.MULTILINE)}
    for each in JUDGEMENTS:
        meaning = each.meaning[0].upper() + each.meaning[1:]
        assert told[each.name].startswith(f"{meaning}. "), each.name
        assert told[each.name] != f"{meaning}. ", "what to do"
    linked = {rule["annotations"]["runbook_url"] for rule in rules()}
    anchors = {name: "runbook.md#" + name.replace(" ", "-") for name in told}
    assert linked <= {*anchors.values()}
    assert {name for name in told if anchors[name] not in linked} <= {each.name for each in JUDGEMENTS}
    assert len(page.split()) <= 1500


@pytest.mark.parametrize(
    ("seconds", "records", "interval", "hung"),
    [
        (59, [past()] * 3, None, False),
        (61, [past()] * 3, None, True),
        (61, [past(), past(), past(took=None)], None, False),
        (100, [past(), past(took=30), past()], None, False),
        (151, [past(), past(took=30), past()], None, True),
        # A hang that was ended by a limit or by hand says nothing of how long a run takes.
        (61, [past()] * 3 + [past("failed", 21_600), past("abandoned", 21_600), past("revoked", 21_600)], None, True),
        # With too few runs a hang isn't silent for ever: the interval says by when one should have ended.
        (3_599, [], 60, False),
        (3_601, [], 60, True),
        (7_201, [past(took=7_200)], 7_200, True),
        (86_401, [], 30 * 86_400, True),
    ],
)
def test_a_run_is_hung_by_its_entrys_history(
    seconds: float, records: list[Past], interval: float | None, hung: bool
) -> None:
    """Longer than a minute, and than five times the longest of three that are done; else longer than the interval."""
    between = None if interval is None else timedelta(seconds=interval)
    assert is_hung(timedelta(seconds=seconds), longest_run(records), between) == hung


@pytest.mark.parametrize(("heard", "silent"), [(0, False), (10.9, False), (11.1, True)])
def test_a_worker_is_silent_if_a_renewal_is_late(heard: float, silent: bool) -> None:
    """Each third of the lease is one."""
    assert is_silent(timedelta(seconds=heard), 30.0) == silent


@pytest.mark.parametrize(("heard", "running", "lives"), [(5, 0, True), (31, 1, False), (None, 1, True)])
def test_a_worker_that_isnt_heard_of_is_none(heard: float | None, running: int, lives: bool) -> None:
    """Also where it has a window: it is frozen, or dead. One that never says that it lives runs one."""
    assert WorkerStatus("celery@a", heard, running).lives == lives


@pytest.mark.parametrize(
    "name", ["OnceHung", "OnceStuck", "OnceNoWorker", "OnceSkipping", "OnceOverdue", "OnceUnclaimed"]
)
def test_alerts_come_within_two_minutes(name: str) -> None:
    """A minute until it is judged, the rule's own wait, and what Prometheus takes to see it."""
    (rule,) = (rule for rule in rules() if rule["alert"] == name)
    amount, unit = re.fullmatch(r"(\d+)([sm])", rule["for"]).groups()
    waits = int(amount) * {"s": 1, "m": 60}[unit]
    judged = 0 if name == "OnceOverdue" else max(LEAST_HUNG, STUCK_AFTER).total_seconds()
    assert judged + waits + 2 * SCRAPE <= 120


@pytest.mark.parametrize(
    ("paused", "by", "note", "days", "said"),
    [
        (True, "anna", "the mail server moves", 3, "paused 3 d 0 h ago by anna: the mail server moves"),
        (True, "", "the mail server moves", None, "paused: the mail server moves"),
        (True, "anna", "", -1, "paused less than a minute ago by anna"),
        (False, "", "", None, ""),
    ],
)
def test_a_pause_says_since_when_who_and_why(paused: bool, by: str, note: str, days: int | None, said: str) -> None:
    """As far as that is known; a note isn't taken for a name, nor the time of a server whose clock went back."""
    at = None if days is None else T0 - timedelta(days=days)
    account = EntryAccount(T0, T0, T0, None, paused, None, 0, {}, {}, paused_by=by, paused_for=note, paused_at=at)
    assert paused_words(account, T0) == said
