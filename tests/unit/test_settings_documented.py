"""docs/settings.md is what the rows of ``options.py`` say."""

from __future__ import annotations

import settings_page

from celery_once_beat.options import TASK_CHECKS, TaskOptions


def test_the_page_is_made_of_the_rows() -> None:
    """If it isn't: python tests/settings_page.py writes it."""
    page = settings_page.PAGE.read_text()
    assert settings_page.fill(page) == page


def test_attributes_of_tasks() -> None:
    """Type checkers know each; all are unset by default, so that the app's setting counts."""
    attributes = {name: value for name, value in vars(TaskOptions).items() if name.startswith("once_")}
    assert set(attributes) == set(TASK_CHECKS)
    assert set(attributes.values()) == {None}
