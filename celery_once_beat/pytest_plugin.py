"""pytest's fixtures ``once_store``, ``once_window`` and ``once_beat``, which pytest finds by itself.

A test run that uses none imports nothing but this module: Celery and the rest are imported within the fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from celery import Task

    from .testing import EmbeddedStore, OnceBeat, OnceWindow
    from .windows import Window


@pytest.fixture
def once_store() -> Iterator[EmbeddedStore]:
    """An empty store for this test, in a server of the test run's own; see ``celery_once_beat.testing``."""
    from .testing import embedded_store  # noqa: PLC0415  # only who asks pays for it

    with embedded_store() as store:
        store.start()
        yield store


@pytest.fixture
def once_window() -> Iterator[OnceWindow]:
    """``once_window(task, window)``: from here to the end of the test, what ``task`` runs is an execution of it."""
    from .testing import embedded_store, executing  # noqa: PLC0415  # the same

    with ExitStack() as stack:
        stack.enter_context(embedded_store())

        def execute(task: Task[Any, Any], window: Window) -> Window:
            return stack.enter_context(executing(task, window))

        yield execute


@pytest.fixture
def once_beat() -> Iterator[OnceBeat]:
    """``once_beat(app, at)`` starts a beat in this process; ``once_beat.until(at)`` returns what it has sent since."""
    from .testing import OnceBeat  # noqa: PLC0415  # the same

    with OnceBeat() as beat:
        yield beat
