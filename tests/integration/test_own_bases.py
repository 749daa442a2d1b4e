"""Bases of tasks that override what Celery lets them, and call nothing of ours: their windows run once all the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject
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


@pytest.mark.parametrize("base", [Bound, Started, Made])
def test_a_window_runs_once(worker: Worker, base: type[OnceTask]) -> None:
    """A second message is refused before any of the base's own code."""
    calls = []

    def body() -> None:
        calls.append(worker.task.window.start)

    worker.task = worker.app.task(body, name="proj.own", base=base, shared=False)
    assert worker.trace(body) == "SUCCESS"
    number = len(calls)
    assert worker.trace(body) == "IGNORED"
    assert worker.account.counts == {"done": 1}
    assert len(calls) == number > 0


@pytest.mark.parametrize(
    ("raised", "state", "outcome"),
    [
        (None, "SUCCESS", "done"),
        (ValueError("no database"), "FAILURE", "failed"),
        (Reject("not here", requeue=False), "REJECTED", "failed"),
        (Ignore(), "IGNORED", "done"),
    ],
)
def test_before_start_is_a_part_of_the_execution(worker: Worker, raised: Any, state: str, outcome: str) -> None:
    """What it raises ends the window as what the body raises; it isn't called for a refused copy."""
    calls = []

    class Hooked(OnceTask):
        abstract = True

        def before_start(self, *_: Any) -> None:
            calls.append(self.window.attempt)
            if raised:
                raise raised

    def body() -> None:
        calls.append("body")

    worker.task = worker.app.task(body, name="proj.own", base=Hooked, shared=False)
    assert [worker.trace(body), worker.trace(body)] == [state, "IGNORED"]
    assert calls == [1, "body"][: 1 if raised else 2]
    assert worker.account.counts == {outcome: 1}
