"""Whoever speaks of outcomes knows all of them: the table, the board, the signals' contracts, the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import celery_once_beat
from celery_once_beat.outcomes import COUNTED, OUTCOMES, STATES

PACKAGE = Path(celery_once_beat.__file__).parent
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_told_in_words_colour_and_shape(name: str) -> None:
    """On the board it has a colour that there is, and a shape that no other state has."""
    state = STATES[name]
    assert state.name == name
    assert state.meaning
    sheet = (PACKAGE / "web/board/static/board.css").read_text()
    looks = {
        of: (tone, shape)
        for of, tone, shape in re.findall(r"^\.(\w+) { --colour: var\(--(\w+)\); (.*) }$", sheet, re.MULTILINE)
    }
    tone, own = looks[name]
    assert f"--{tone}:" in sheet
    assert [of for of, (_, shape) in looks.items() if shape == own] == [name]


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome_is_in_the_docs(name: str) -> None:
    """With what is logged of it, and what a metric counts it under."""
    action = OUTCOMES[name].action
    assert not action or f"`{action}`" in (DOCS / "logs.md").read_text()


def test_the_words_for_what_is_counted_are_in_the_docs() -> None:
    """The outcomes, and no other."""
    _, listed = (DOCS / "glossary.md").read_text().split("## Outcomes")
    rows = re.findall(r"^\| (\w+) \|", listed.partition("\n## ")[0], re.MULTILINE)
    assert sorted(rows) == sorted(["outcome", *COUNTED])


def test_an_action_of_an_outcome_stands_once() -> None:
    """Who searches the code for what a log said finds it."""
    sources = [path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "signals.py"]
    for outcome in OUTCOMES.values():
        if outcome.action and outcome.action != "window_missed":  # a beat that passes windows over says it too
            assert sum(text.count(f'"{outcome.action}"') for text in sources) == 1, outcome.action
