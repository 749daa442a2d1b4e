"""Whoever speaks of outcomes knows all of them: the table, the board, the signals' contracts, the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import celery_once_beat
from celery_once_beat.outcomes import COUNTED, STATES

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


def test_the_words_for_what_is_counted_are_in_the_docs() -> None:
    """The outcomes, and no other."""
    _, listed = (DOCS / "glossary.md").read_text().split("## Outcomes")
    rows = re.findall(r"^\| (\w+) \|", listed.partition("\n## ")[0], re.MULTILINE)
    assert sorted(rows) == sorted(["outcome", *COUNTED])
