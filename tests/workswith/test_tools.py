"""Sentry Crons, Datadog, OpenTelemetry and Flower, by the real packages: what each is told of windows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from observed import Observed, SentryServer
from processes import wait_until
from servers import free_port
from system import System

from celery_once_beat.windows import task_id

pytestmark = pytest.mark.long

TRACERS = ["opentelemetry", "datadog"]


@pytest.fixture
def sentry() -> Iterator[SentryServer]:
    with SentryServer().running() as server:
        yield server


@pytest.fixture
def observed(system: System, sentry: SentryServer) -> Observed:
    """All of them in the same processes: each wraps what the others have, the window is found."""
    observed = Observed(system, "sentry", *TRACERS)
    observed.env["SENTRY_DSN"] = sentry.dsn
    return observed


def check_ins(sentry: SentryServer, entry: str, number: int) -> list[dict[str, Any]]:
    """What Sentry was told of an entry's window, under one id."""
    wait_until(lambda: len(sentry.check_ins(entry)) >= number, f"{number} check-ins of {entry}", 60)
    found = sentry.check_ins(entry)
    assert len({each["check_in_id"] for each in found}) == 1
    return found


def spans(observed: Observed, tracer: str, names: str) -> list[dict[str, Any]]:
    return [span for span in observed.spans(by=tracer) if re.match(names, span["name"])]


def test_a_window_and_its_copy(system: System, observed: Observed, sentry: SentryServer) -> None:
    """One check-in from the beat that published it, one row in Flower; a publish's span, and below it its run's.

    A copy that is refused tells Sentry nothing, and is one more span without an error.
    """
    system.settings["task_send_sent_event"] = True
    observed.schedule()
    flower = f"http://127.0.0.1:{free_port()}"
    options = [f"--port={flower.rpartition(':')[2]}", "--address=127.0.0.1"]
    listens = system.celery("flower", *options, name="flower", OBSERVED="", FLOWER_UNAUTHENTICATED_API="true")
    listens.wait_log("Connected to redis")
    with system.client() as client:
        wait_until(client.pubsub_numpat, "it hears the events", 60)
    beats = observed.beats()
    copies = observed.deliver_again(beats)
    worker = observed.worker(extra_args=["-E"])
    entries = observed.settle(copies)
    wait_until(lambda: len(system.ledger.read("refused")) == copies, "the copies are refused", 60)

    def tasks() -> dict[str, Any]:
        with urlopen(f"{flower}/api/tasks", timeout=60) as reply:
            return dict(json.load(reply))

    expected = {task_id("once:", entry, system.account(entry).cursor) for entry in entries}
    succeeded = lambda: [id_ for id_, task in tasks().items() if task["state"] == "SUCCESS" and task["sent"]]  # noqa: E731
    wait_until(lambda: set(succeeded()) == set(tasks()) == expected, "all that Flower lists are successes", 60)
    worker.stop()  # what it still has to say, it says at its end
    for entry in entries:
        (winner,) = (beat.name for beat in beats if f"Sending due task {entry} " in beat.log)
        found = check_ins(sentry, entry, 2)
        told = [(each["status"], each["environment"]) for each in found]
        assert told == [("in_progress", winner), ("ok", "worker")]
        assert found[0]["monitor_config"]["schedule"] == {"type": "interval", "value": 2, "unit": "minute"}
    for tracer in TRACERS:
        publishes = spans(observed, tracer, r"apply_async/|celery\.apply$")
        runs = spans(observed, tracer, r"run/|celery\.run$")
        assert (len(publishes), len(runs)) == (copies, 2 * copies)
        assert Counter(span["parent"] for span in runs) == dict.fromkeys([span["id"] for span in publishes], 2)
        assert len({span["trace"] for span in runs}) == copies
        assert {span["role"] for span in publishes} == {"producer"}
        assert {span["role"] for span in runs} == {"consumer"}
        assert not any(span["failed"] for span in (*publishes, *runs))
    applied = spans(observed, "datadog", r"celery\.beat\.apply_entry")
    assert {span["parent"] for span in spans(observed, "datadog", r"celery\.apply$")} == {
        each["id"] for each in applied
    }
    assert not spans(observed, "datadog", r"celery\.beat\.tick")


def test_retries(system: System, observed: Observed, sentry: SentryServer) -> None:
    """The window goes with a retry, and so do trace and check-in; Sentry's SDK tells it as an error, before the end."""
    observed.schedule("retrying", args=[1])
    worker = observed.worker()
    observed.beats()
    entries = observed.settle(2)
    worker.stop()
    for entry in entries:
        assert [event["retries"] for event in system.ledger.read("start", entry=entry)] == [0, 1]
        assert system.outcomes(entry) == {"done": 1}
        assert [each["status"] for each in check_ins(sentry, entry, 3)] == ["in_progress", "error", "ok"]
    for tracer in TRACERS:
        runs = Counter(span["trace"] for span in spans(observed, tracer, r"run/|celery\.run$"))
        assert list(runs.values()) == [2] * len(entries)
