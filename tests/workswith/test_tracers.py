"""Datadog's and OpenTelemetry's instrumentations of Celery, by the real packages: the spans of windows."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from observed import Observed, SentryServer
from processes import wait_until
from system import System

pytestmark = pytest.mark.long

TRACERS = ["opentelemetry", "datadog"]


def sent(observed: Observed) -> list[dict[str, Any]]:
    """The spans of publishes, whatever their tracer calls them."""
    return [span for span in observed.spans() if re.match(r"apply_async/|celery\.apply$", span["name"])]


def ran(observed: Observed) -> list[dict[str, Any]]:
    """The spans of runs."""
    return [span for span in observed.spans() if re.match(r"run/|celery\.run$", span["name"])]


@pytest.mark.parametrize("tracer", TRACERS)
def test_one_span_each_a_window(system: System, tracer: str) -> None:
    """One of the beat that published it, and one of the worker that ran it, which is its child."""
    observed = Observed(system, tracer)
    observed.schedule()
    workers = [observed.worker(f"worker{n}") for n in (1, 2)]
    beats = observed.beats()
    entries = observed.settle(6)
    for proc in (*beats, *workers):
        proc.stop()
        assert "Traceback" not in proc.log
    for entry in entries:
        system.check_each_once(entry)
    publishes, runs = sent(observed), ran(observed)
    assert len(publishes) == len(runs) == len(entries)
    assert {span["parent"] for span in runs} == {span["id"] for span in publishes}
    assert {span["trace"] for span in runs} == {span["trace"] for span in publishes}
    assert len({span["trace"] for span in runs}) == len(entries)
    assert {span["role"] for span in publishes} == {"producer"}
    assert {span["role"] for span in runs} == {"consumer"}
    assert not any(span["failed"] for span in (*publishes, *runs))
    if tracer == "datadog":
        applied = observed.spans(name="celery.beat.apply_entry")
        assert len(applied) == len(entries)
        assert {span["parent"] for span in publishes} == {span["id"] for span in applied}
        assert not observed.spans(name="celery.beat.tick")


def test_all_tools_at_once(system: System) -> None:
    """Sentry, Datadog and OpenTelemetry in the same processes: each wraps what the others have, the window is found."""
    observed = Observed(system, "sentry", *TRACERS)
    observed.schedule("retrying", args=[1])
    with SentryServer().running() as sentry:
        observed.env["SENTRY_DSN"] = sentry.dsn
        worker = observed.worker()
        observed.beats()
        entries = observed.settle(2)
        worker.stop()
        for entry in entries:
            wait_until(lambda entry=entry: len(sentry.check_ins(entry)) >= 3, f"check-ins of {entry}", 60)
    for entry in entries:
        assert [event["retries"] for event in system.ledger.read("start", entry=entry)] == [0, 1]
        assert system.outcomes(entry) == {"done": 1}
        assert [each["status"] for each in sentry.check_ins(entry)] == ["in_progress", "error", "ok"]
    assert Counter(span["by"] for span in ran(observed)) == dict.fromkeys(TRACERS, 2 * len(entries))
