"""Bases of tasks that override what Celery lets them, and call nothing of ours: their windows run once all the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from deliveries import Worker

from celery_once_beat import OnceTask


class Bound(OnceTask):
    """Looks at its app, as Celery's documentation shows it."""

    abstract = True

    @classmethod
    def on_bound(cls, app: Any) -> None:
        cls.name_of_app = app.main  # type: ignore[attr-defined]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class Started(OnceTask):
    """The same with a hook before the body."""

    abstract = True

    @classmethod
    def on_bound(cls, app: Any) -> None: ...

    def before_start(self, *args: Any) -> None:
        self.run()


class Made(OnceTask):
    """Makes what is called at each call, as wrappers of tracers do."""

    abstract = True

    @property
    def __call__(self) -> Callable[..., Any]:  # type: ignore[override]
        return partial(self.run)


class Static(OnceTask):
    """Is called as a function."""

    abstract = True

    @staticmethod
    def __call__() -> Any:
        return Static.body()

    body: Callable[[], Any]


@pytest.mark.parametrize("base", [Bound, Started, Made, Static])
def test_a_window_runs_once(worker: Worker, base: type[OnceTask]) -> None:
    """A second message is refused before any of the base's own code."""
    calls = []

    def body() -> None:
        calls.append(worker.task.window.start)

    def call_body() -> None:
        worker.body()

    Static.body = staticmethod(body)
    worker.task = worker.app.task(call_body, name="proj.own", base=base, shared=False)
    assert worker.trace(body) == "SUCCESS"
    number = len(calls)
    assert worker.trace(body) == "IGNORED"
    assert worker.account.counts == {"done": 1}
    assert len(calls) == number > 0
