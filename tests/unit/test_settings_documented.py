"""docs/settings.md lists what a task and an entry may set, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from celery_once_beat.options import TASK_CHECKS, TaskOptions
from celery_once_beat.rules import policy

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "settings.md").read_text()
#: The third cells of the tables of four columns: what a task or an entry calls the setting.
NAMES = {
    name
    for row in (line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| "))
    if len(row) == 4 and "key of" not in row[2]
    for name in re.findall(r"`(\w+)`", row[2])
}


def test_attributes_of_tasks() -> None:
    """Each attribute is named; all are unset by default, so that the app's setting counts."""
    attributes = {name: value for name, value in vars(TaskOptions).items() if name.startswith("once_")}
    assert {name for name in NAMES if name.startswith("once_")} == set(attributes) == set(TASK_CHECKS)
    assert set(attributes.values()) == {None}


def test_keys_of_entries() -> None:
    """Each key of ``once`` is named."""
    assert {name for name in NAMES if not name.startswith("once_")} == set(policy._CHECKS)
