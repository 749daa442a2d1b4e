"""One execution on a real store, step by step: how it ends where the store goes away, or the window, under it."""

from __future__ import annotations

import gc
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from inspect import CO_GENERATOR
from types import FrameType
from typing import Any

import pytest
import redis
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from deliveries import KEY, QUEUE, T0, WINDOW, Worker, heard, told, waiting
from processes import wait_until
from proxy import Proxy

from celery_once_beat import OnceTask
from celery_once_beat.errors import StoreUnavailableError
from celery_once_beat.features.admission.worker import Part
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.store import LoadRequest, store_of
from celery_once_beat.windows import Window, WindowKey, encode_headers, format_instant
from celery_once_beat.worker.errands import errands_of
from celery_once_beat.worker.leases import leases_of
from celery_once_beat.worker.message import DELIVERY
from celery_once_beat.worker.request import _end
from celery_once_beat.worker.tracing import run_and_close

LOGGER = "celery_once_beat.worker.execution"


# ------------------------------------------------------------------------------------------- ends that can't be told


@pytest.mark.parametrize("how", ["returns", "raises", "retries"])
@pytest.mark.parametrize("spoilt", ["newer", "foreign"])
def test_an_end_that_the_store_refuses(worker, redis_url, raw, how: str, spoilt: str, caplog) -> None:
    """A newer beat's hash, or a foreign key, found at the end: the body's own end stands, and one line says why."""

    def body() -> str:
        if spoilt == "newer":
            raw.hset(store_of(worker.app).entry_key(WINDOW.entry), "v", "2")
        else:
            raw.delete(worker.run_key)
            raw.lpush(worker.run_key, "foreign")
            raw.expire(worker.run_key, 60)
        return "worked" if how == "returns" else ENDS[how][0](worker.task)

    raised = {"raises": LookupError, "retries": Retry}.get(how)
    with caplog.at_level(logging.INFO, LOGGER), pytest.raises(raised) if raised else nullcontext():
        assert worker.deliver(body) == "worked"
    assert told(caplog) == ["window_unrecorded"]
    assert ("protocol" if spoilt == "newer" else "holds a list") in caplog.text
    assert waiting(redis_url) == (how == "retries")


# ----------------------------------------------------------------------------------------------- begins that are slow


def test_a_begin_that_is_answered_late(new_worker, redis_server, redis_url) -> None:
    """A lease that has run out when its reply is read is asked for again: a body starts with one that is held.

    It is the same execution: nobody died, so the attempts don't grow.
    """
    with Proxy(redis_server.port) as proxy:
        # What is late is later than the lease, and sooner than the client gives up.
        patient = {"once_beat_redis_options": {"socket_timeout": 20.0}, "once_beat_lease": 1.5}
        worker = new_worker(redis_url, once_beat_redis_url=proxy.url(), **patient)
        store_of(worker.app).begin(WindowKey("other", T0), "other", 1.0, tracked=False)  # the script is known

        def gone() -> bool:
            with redis.Redis.from_url(redis_url) as client:
                return not client.exists(worker.run_key)

        proxy.lose_reply(when=gone)  # the client asks again when its lease has run out on the server
        assert worker.deliver(lambda: (worker.task.window.held, worker.task.window.attempt)) == (True, 1)
        assert proxy.lost == 1
        assert worker.account.counts == {"done": 1}


# ------------------------------------------------------------------------------------ what the main process records


def end_killed(worker: Worker, request: dict[str, Any], outcome: str) -> None:
    """What the main process does for a child that it has killed."""
    _end(worker.task, request, outcome, killed=True)
    errands_of.of(worker.app).finish(60)


@pytest.mark.parametrize(("outcome", "counts"), [("failed", {}), ("revoked", {"revoked": 1})])
def test_a_child_that_is_killed_after_it_handed_over(worker, redis_url, outcome: str, counts: dict[str, int]) -> None:
    """A hard limit leaves the window to the retry that is out, which finishes it; a revoke ends it."""
    request = {DELIVERY: "child", "headers": encode_headers(WINDOW), "retries": 0}

    def body() -> None:
        worker.task.retry(countdown=60, throw=False)
        end_killed(worker, request, outcome)

    worker.deliver(body, **{DELIVERY: "child"})
    assert waiting(redis_url) == 1
    assert worker.account.counts == counts
    if outcome == "failed":
        assert worker.deliver(lambda: "retried", retries=1) == "retried"
        assert worker.account.counts == {"done": 1}


# ------------------------------------------------------------------------------------------------- what is said of it


def test_a_lease_that_is_lost_while_the_body_runs(worker, redis_url, caplog) -> None:
    """It is said once, and at once: the body may run on for hours beside another execution."""

    def body() -> None:
        window = worker.task.window
        with worker.frozen():
            worker.begin_elsewhere()
        (record,) = wait_until(lambda: [r for r in caplog.records if action(r) == "lease_lost"], "it is said", 60)
        assert record.levelno == logging.WARNING
        found = {name: getattr(record, name) for name in ("entry", "start", "attempt", "fence")}
        start = format_instant(WINDOW.start)
        assert found == {"entry": WINDOW.entry, "start": start, "attempt": 1, "fence": window.fence}
        assert record.owner.startswith("worker:")  # type: ignore[attr-defined]

    with pytest.raises(Ignore, match="stale"):
        worker.deliver(body)
    assert [action(record) for record in caplog.records].count("lease_lost") == 1


def action(record: logging.LogRecord) -> str | None:
    return getattr(record, "action", None)


ENDS: dict[str, tuple[Callable[[OnceTask], Any], str | None]] = {
    "returns": (lambda _: None, "window_succeeded"),
    "ignores": (lambda _: _throw(Ignore("done")), "window_succeeded"),
    "raises": (lambda _: _throw(LookupError("mine")), "window_failed"),
    "raises Retry by hand": (lambda _: _throw(Retry("mine")), "window_failed"),
    "rejects": (lambda _: _throw(Reject("mine", requeue=False)), "window_failed"),
    "rejects, to be delivered again": (lambda _: _throw(Reject("mine", requeue=True)), None),
    "retries": (lambda task: task.retry(countdown=60), None),
}


def _throw(exc: Exception) -> None:
    raise exc


@pytest.mark.parametrize("end", ENDS)
def test_each_end_sends_its_signal(worker: Worker, end: str) -> None:
    """What is recorded as done or failed is signalled, however the body ended; what isn't recorded yet, isn't.

    ``window_closed`` says it too, for those who want to hear every outcome.
    """
    run, signal = ENDS[end]
    caught: list[BaseException] = []
    with heard() as sent:
        try:
            worker.deliver(lambda: run(worker.task))
        except Exception as exc:  # noqa: BLE001  # whatever the end is
            caught.append(exc)
    assert [name for name, _ in sent] == ["window_started", *([signal, "window_closed"] if signal else [])]
    if signal == "window_failed":
        assert [sent[1][1]["exception"]] == caught
    recorded = {"window_succeeded": {"done": 1}, "window_failed": {"failed": 1}, None: {}}
    assert worker.account.counts == recorded[signal]
    assert {given["outcome"]: given["count"] for name, given in sent if name == "window_closed"} == recorded[signal]


@pytest.mark.parametrize(("error", "outcome"), [(LookupError("mine"), ""), (Reject("no"), "failed")])
def test_the_entrys_retry_failed_after(worker: Worker, error: Exception, outcome: str) -> None:
    """A failure that runs again isn't signalled yet. What is final doesn't run again: nothing comes after a Reject."""
    rules = EntryPolicy(retry_failed_after=60.0)
    store_of(worker.app).load_many([LoadRequest(KEY.entry, "beat", "mark", 86400.0, rules)])
    with heard() as sent, pytest.raises(type(error)):
        worker.deliver(lambda: _throw(error))
    assert worker.account.counts == ({outcome: 1} if outcome else {})
    assert ("window_failed" in [name for name, _ in sent]) is bool(outcome)


def test_a_result_backend_that_is_away_at_the_begin(worker, caplog, monkeypatch) -> None:
    """With task_track_started the body runs all the same: it hasn't failed. It is said once while that lasts."""

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("the result backend is away")

    worker.task._once_track_started = True
    monkeypatch.setattr(worker.task.backend, "store_result", away)
    for window in (WINDOW, worker.next_window()):
        assert worker.deliver(lambda: "worked", window) == "worked"
    assert worker.account.counts == {"done": 2}
    assert told(caplog) == ["started_unstored"]


# ------------------------------------------------------------------------------- what is raised into it from outside


class RaisedError(Exception):
    """What a signal's handler raises, as that of a soft time limit does."""


@contextmanager
def raised_into(first: str, position: int) -> Iterator[list[str]]:
    """Raise where this thread handles signals, the ``position``-th time since the function ``first`` was called.

    That is as functions begin, and as those return that are written in C, until the execution ends. Yields where it was
    raised.
    """
    where: list[str] = []
    seen = -1

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if event == "return" and frame.f_code is run_and_close.__code__:
            sys.setprofile(None)
        if seen < 0 and not (event == "call" and frame.f_code.co_name == first):
            return
        # What is raised into a generator that is being closed goes nowhere.
        if event in ("call", "c_return") and not frame.f_code.co_flags & CO_GENERATOR:
            seen += 1
            if seen == position:
                where.append(f"{frame.f_code.co_filename}:{frame.f_lineno}, {event}")
                raise RaisedError  # which ends the profiling too

    gc.disable()  # what is raised into a callback of the collector goes nowhere either
    sys.setprofile(look)
    try:
        yield where
    finally:
        sys.setprofile(None)
        gc.enable()


def raised_everywhere(worker: Worker, first: str, end: Callable[[], Any]) -> Iterator[tuple[str, Window]]:
    """Deliver windows whose body is ``end``, each with something raised into it a little later than into the last."""
    position = 0
    while True:
        window = worker.next_window()
        caught: BaseException | None = None
        with raised_into(first, position) as where:
            try:
                worker.deliver(end, window)
            except Exception as exc:  # noqa: BLE001  # whatever goes on
                caught = exc
        if not where:
            return
        # redis-py keeps some to itself, and so does who reads the text of a user's exception.
        to_itself = "celery_once_beat" not in where[0] or "wording.py" in where[0]
        assert isinstance(caught, RaisedError) or to_itself, where
        yield where[0], window
        # Each place of ours, and some of what lies below.
        position += 1 if "celery_once_beat" in where[0] else 15


def check_that_leases_are_kept(worker: Worker) -> None:
    """None is held of those that have ended, and one that begins is renewed."""
    leases = leases_of.of(store_of(worker.app))
    assert not [lease for lease in leases._held.copy() if lease.state != "over"]

    def body() -> None:
        (lease,) = [lease for lease in leases._held.copy() if lease.state != "over"]
        begun = lease.renew_at
        wait_until(lambda: lease.renew_at > begun, "its lease is renewed", 60)

    worker.deliver(body, worker.next_window())


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_what_is_raised_after_the_body(worker: Worker, how: str) -> None:
    """Wherever a soft time limit meets the end of an execution: that end is recorded, once, and then it goes on."""

    def end() -> None:
        if how == "raises":
            raise LookupError("mine")

    outcome = {"returns": "done", "raises": "failed"}[how]
    before = 0
    with heard() as sent:
        for where, window in raised_everywhere(worker, "_decide", end):
            assert worker.account.counts == {outcome: before + 1}, where
            assert window.start not in worker.account.open, where
            before += 1
    assert before > 20
    signal = {"returns": "window_succeeded", "raises": "window_failed"}[how]
    told = Counter(arguments["window"].start for name, arguments in sent if name == signal)
    assert max(told.values()) == 1
    check_that_leases_are_kept(worker)


def test_a_rejection_after_its_retry_is_the_retrys(worker: Worker, redis_url: str) -> None:
    """The window was handed over: the retry finishes it, whatever this execution says."""

    def body() -> None:
        worker.task.retry(countdown=60, throw=False)
        raise Reject("no", requeue=True)

    with pytest.raises(Reject):
        worker.deliver(body)
    assert waiting(redis_url) == 1
    assert worker.deliver(lambda: "retried", retries=1) == "retried"
    assert worker.account.counts == {"done": 1}


def test_a_message_counts_how_often_it_was_put_back(worker: Worker, raw: redis.Redis) -> None:
    """So that it comes again later each time, its own retries untouched; a retry begins anew.

    It is one whose entry a newer version wrote: what that means isn't guessed at.
    """

    def last() -> tuple[object, object]:
        headers = json.loads(raw.lindex(QUEUE, 0))["headers"]  # type: ignore[arg-type]
        return headers.get("once_put_back"), headers["retries"]

    entry = store_of(worker.app).entry_key(WINDOW.entry)
    raw.hset(entry, "v", "2")
    for found, expected in ((None, 1), (1, 2), (100, 100), (-1, 1), (2**70, 1), ("7", 1), (True, 1)):
        with pytest.raises(Ignore, match="put back"):
            worker.deliver(lambda: pytest.fail("it was executed"), once_put_back=found, retries=3)
        assert last() == (expected, 3)
    raw.hdel(entry, "v")
    with pytest.raises(Retry):
        worker.deliver(lambda: worker.task.retry(countdown=0), once_put_back=5, retries=3)
    assert last() == (None, 4)


def test_a_limit_that_no_setting_has(worker: Worker, redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its message is left to workers that know it, which is said once; if none took it, a beat publishes it anew."""
    window, body = replace(WINDOW, limit="reports"), lambda: pytest.fail("it was executed")
    for times in (None, 1, 11):
        with pytest.raises(Ignore, match="put back"):
            worker.deliver(body, window, once_put_back=times)
    (said,) = (record.getMessage() for record in caplog.records if record.action == "window_put_back")
    assert "limit 'reports': found in a message, expected in once_beat_limits of this worker" in said
    assert [each.message for each in worker.account.open.values()] == ["none"]
    with pytest.raises(Ignore, match="limit unknown"):
        worker.deliver(body, window, once_put_back=12)
    assert waiting(redis_url) == 3
    assert "no worker that knows its limit 'reports' has taken it" in caplog.text
    assert [each.message for each in worker.account.open.values()] == ["sent"], "it is due soon"


def test_a_limit_at_begin_is_said_once(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    """A window that begin finds past its grace is missed: one line and one signal; it isn't also a refused copy."""
    request = LoadRequest(WINDOW.entry, "beat", "mark", 86400.0, EntryPolicy(grace=60.0), known=T0)
    store_of(worker.app).load_many([request])
    with heard() as sent, caplog.at_level(logging.INFO), pytest.raises(Ignore, match="missed"):
        worker.deliver(lambda: pytest.fail("a window past its grace was executed"))
    names = ["window_abandoned", "window_closed"]
    assert [(name, arguments["outcome"]) for name, arguments in sent] == [(name, "missed") for name in names]
    actions = [record.action for record in caplog.records if hasattr(record, "action")]
    assert actions == ["window_missed"]


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), RuntimeError("a bug"), SoftTimeLimitExceeded()])
def test_a_feature_that_cannot_follow_a_begin(worker, raw, monkeypatch, error: BaseException) -> None:
    """Whatever it raises, nobody holds the window any more: it runs as soon as a message of it comes."""

    def on_begin(*_: object) -> bool:
        raise error

    monkeypatch.setattr(Part, "on_begin", on_begin)
    with pytest.raises((type(error), Reject, Ignore)):
        worker.deliver(lambda: pytest.fail("executed"))
    assert [raw.get(key)[:5] for key in raw.keys("*:run:*")] == ["wait:"]
    monkeypatch.undo()
    assert worker.deliver(lambda: "run") == "run"


@pytest.mark.long
def test_what_is_raised_before_the_body(worker: Worker) -> None:
    """Wherever a soft time limit meets the begin: no lease is renewed for it, and others are."""
    begun = 0
    with heard():
        for where, window in raised_everywhere(worker, "begin", lambda: None):
            begun += 1
            if "_decide" in where:
                break
            assert window.start in worker.account.open or worker.account.counts, where
    assert begun > 20
    check_that_leases_are_kept(worker)


def test_what_is_raised_as_a_window_is_handed_over(worker, redis_url, monkeypatch) -> None:
    """The retry goes out before it goes on: its window would wait for a message that nobody sent."""
    store = store_of(worker.app)
    hand_over, times = store.hand_over, iter([True])

    def raising(*arguments: Any, **options: Any) -> Any:
        reply = hand_over(*arguments, **options)
        if next(times, False):
            raise RaisedError
        return reply

    monkeypatch.setattr(store, "hand_over", raising)
    with pytest.raises(Reject):  # of retry(), whatever its publish raises
        worker.deliver(lambda: worker.task.retry(countdown=60))
    assert waiting(redis_url) == 1
    assert worker.deliver(lambda: "retried", retries=1) == "retried"
    assert worker.account.counts == {"done": 1}


@pytest.mark.parametrize("countdown", [float("inf"), float("nan"), 1e15])
def test_a_retry_that_can_never_be_due(worker: Worker, countdown: float) -> None:
    """Celery can't publish it: the window isn't handed over to it, but fails."""
    with pytest.raises(Reject):
        worker.deliver(lambda: worker.task.retry(countdown=countdown))
    assert worker.account.counts == {"failed": 1}
