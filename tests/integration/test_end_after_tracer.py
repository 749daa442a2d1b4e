"""A window's end is recorded once Celery has done all that it does for its task; a success may wait for company."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from celery import Task
from celery.app import trace
from celery.exceptions import SoftTimeLimitExceeded
from celery.states import FAILURE, IGNORED, SUCCESS
from deliveries import LEASE, WINDOW, Worker, heard, leases, told
from processes import wait_until

from celery_once_beat import OnceTask, signals
from celery_once_beat.clock import steady
from celery_once_beat.errors import StoreUnavailableError
from celery_once_beat.lookup import Lookup
from celery_once_beat.store import Store, store_of
from celery_once_beat.store.roundtrip import RoundTrip
from celery_once_beat.worker import leases as leases_module


def is_done(worker: Worker) -> None:
    wait_until(lambda: worker.account.counts == {"done": 1}, "the end is recorded", 60)


# ------------------------------------------------------------------------------------------------ when it is recorded


@pytest.mark.parametrize("at_once", [True, False])
def test_what_celery_does_goes_first(worker: Worker, monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    """The window is open and held while the result is stored, callbacks go out and hooks run."""
    seen: list[str] = []

    def look(what: str) -> Callable[..., None]:
        def hook(*_: Any, **__: Any) -> None:
            assert WINDOW.start in worker.account.open
            seen.append(what)

        return hook

    monkeypatch.setattr(worker.task.backend, "mark_as_done", look("stored"))
    for hook, what in {"apply_async": "sent", "on_success": "on_success", "after_return": "after_return"}.items():
        monkeypatch.setattr(worker.task.__class__, hook, look(what))

    with heard() if at_once else nullcontext():
        assert worker.trace(lambda: "worked", callbacks=[worker.task.si()]) == SUCCESS
    assert not at_once or worker.account.counts == {"done": 1}
    is_done(worker)  # by the thread, as no begin follows
    wait_until(lambda: not leases(worker)._held, "its lease isn't renewed any more", 60)
    assert seen == ["sent", "stored", "on_success", "after_return"]


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
@pytest.mark.parametrize(
    ("raised", "outcome", "state"),
    [
        # Celery stores the failure of what it can't finish: a result that can't be stored, for example.
        (LookupError("the result backend is away"), {"failed": 1}, FAILURE),
        (SoftTimeLimitExceeded(), {"failed": 1}, FAILURE),
        (SystemExit(3), {}, None),  # killed in order, by SIGTERM
    ],
)
def test_what_is_raised_behind_the_body(worker, monkeypatch, raised, outcome, state) -> None:
    """The window ends as Celery's task does; where the process dies before that, it runs again."""

    def mark_as_done(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(worker.task.backend, "mark_as_done", mark_as_done)
    with heard() as sent:
        try:
            assert worker.trace(lambda: "worked") == state
        except SystemExit:
            assert state is None
    assert worker.account.counts == outcome
    seen = Lookup(store_of(worker.app)).entry(WINDOW.entry, 1).last
    words = f"the body returned; Celery couldn't finish the task: {type(raised).__name__}"
    assert seen is None if not outcome else seen.failure.startswith(words)
    assert [args["exception"] for name, args in sent if name == "window_failed"] == ([raised] if outcome else [])
    assert not leases(worker)._held


# ------------------------------------------------------------------------------------------------ what is out of time


@pytest.mark.parametrize("raises", [False, True])
def test_a_stale_execution_reports_nothing(worker: Worker, monkeypatch: pytest.MonkeyPatch, raises: bool) -> None:
    """Neither a result nor a failure nor a callback: another has the window."""
    seen: list[str] = []
    for name in ("mark_as_done", "mark_as_failure"):
        monkeypatch.setattr(worker.task.backend, name, lambda *_, name=name, **__: seen.append(name))

    def body() -> None:
        with worker.frozen():
            worker.begin_elsewhere()
        if raises:
            raise LookupError("mine")

    with heard() as sent:
        assert worker.trace(body) == IGNORED
    assert seen == []
    assert [name for name, _ in sent] == ["window_started", "window_stale"]
    assert worker.account.counts == {}


def test_a_lease_that_isnt_certain_is_asked_for(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has begun since: the execution has its window again before Celery stores the result."""
    held: list[bool] = []
    monkeypatch.setattr(worker.task.backend, "mark_as_done", lambda *_, **__: held.append(worker.task.window.held))

    def body() -> None:
        with worker.frozen():
            wait_until(lambda: not worker.task.window.held, "the lease runs out", 60)

    assert worker.trace(body) == SUCCESS
    assert held == [True]
    is_done(worker)


# ----------------------------------------------------------------------------------------------- ends that are put off


def test_an_end_travels_with_the_next_begin(worker: Worker, monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    """One round trip, and the end is recorded before the next body runs; nothing else sends it."""
    second = worker.next_window()
    monkeypatch.setattr(RoundTrip, "run", None)
    worker.trace(lambda: "worked")
    assert worker.account.counts == {}, "its end waits"
    seen: list[Any] = []
    worker.trace(lambda: seen.append(worker.account.counts), second)
    assert seen == [{"done": 1}]
    monkeypatch.undo()
    leases_module._record_all()
    assert worker.account.counts == {"done": 2}
    assert not leases(worker)._held
    assert not leases(worker)._ends


@pytest.mark.parametrize("base", [Task, OnceTask], ids=["of another base", "of this package"])
def test_an_end_goes_before_a_body_without_a_window(worker: Worker, patient: None, base: type[Any]) -> None:
    """That one may hold the GIL for longer than a lease, or kill the process: a success is recorded by then."""
    seen: list[Any] = []

    def look() -> None:
        seen.append(worker.account.counts)

    plain: Any = worker.app.task(look, name="proj.plain", base=base, shared=False)
    worker.trace(lambda: "worked")
    assert worker.account.counts == {}, "its end waits"
    trace.build_tracer(plain.name, plain, app=worker.app)("one", (), {}, {"id": "one", "is_eager": False})
    assert seen == [{"done": 1}]


@pytest.mark.parametrize("lost", [StoreUnavailableError("the reply is lost"), SoftTimeLimitExceeded()])
def test_a_begin_whose_reply_is_lost(worker, monkeypatch, patient, lost: BaseException) -> None:
    """The end that travelled with it is sent again, by the thread: the next body doesn't wait for it."""
    send = RoundTrip.send
    second = worker.next_window()
    worker.trace(lambda: "worked")
    with monkeypatch.context() as patched:
        patched.setattr(RoundTrip, "send", lambda *arguments: send(*arguments) and _raise(lost))
        worker.trace(lambda: pytest.fail("its begin wasn't answered"), second)
    (end,) = leases(worker)._ends
    assert worker.account.counts == {"done": 1}
    end.due = steady()
    leases(worker).send_ends()
    assert not leases(worker)._ends
    assert not leases(worker)._held
    assert worker.account.counts == {"done": 1}


def _raise(exc: BaseException) -> Any:
    raise exc


def _wait_for_replicas(worker: Worker) -> None:
    object.__setattr__(store_of(worker.app).settings, "wait_replicas", 1)


@pytest.mark.parametrize("why", ["overlap", "entry's overlap", "replicas", "lease"])
def test_ends_that_somebody_waits_for(new_worker, redis_url, raw, patient, why: str, monkeypatch) -> None:
    """The next window of an entry that runs one by one, and replicas: they are told at once."""
    worker = new_worker(redis_url, **({"once_beat_overlap": "skip"} if why == "overlap" else {}))
    if why == "entry's overlap":
        raw.hset(store_of(worker.app).entry_key(WINDOW.entry), "overlap", "skip")
    finished: list[Any] = []
    monkeypatch.setattr(Store, "finish", lambda self, *a, **k: finished.append(a))
    body: Callable[[], Any] = lambda: None  # noqa: E731
    if why == "replicas":
        body = lambda: _wait_for_replicas(worker)  # noqa: E731
    if why == "lease":
        worker.task.once_lease = LEASE
        # Certain when the body returns, and not any more when Celery is ready.
        monkeypatch.setattr(worker.task.__class__, "on_success", lambda *_, **__: _let_run_out(worker))
    worker.trace(body)
    assert len(finished) == 1
    assert not leases(worker)._ends


def _let_run_out(worker: Worker) -> None:
    (lease,) = leases(worker)._held
    with worker.frozen():
        wait_until(lambda: not lease.is_safe_for_long(), "the lease runs out", 60)


@pytest.mark.parametrize("late", [True, False])
def test_a_store_that_is_away_when_an_end_is_due(new_worker, start_redis, caplog, late: bool) -> None:
    """The body's result stands; the thread tries for as long as a lease, if any is left, and says what may follow."""
    server = start_redis()
    worker = new_worker(server.url())

    def body() -> None:
        server.kill()
        if late:
            wait_until(lambda: not worker.task.window.held, "the lease runs out", 60)

    with caplog.at_level(logging.INFO):
        assert worker.trace(body) == SUCCESS
        wait_until(lambda: told(caplog), "it is logged", 60)
    assert told(caplog) == ["window_unrecorded"]
    assert not leases(worker)._ends
    assert not leases(worker)._held


def test_a_process_that_ends_while_the_store_is_away(new_worker, start_redis, caplog, monkeypatch, patient) -> None:
    """It doesn't wait for ever, and what isn't recorded is named once."""
    monkeypatch.setattr(leases_module, "_AT_END", 1.0)
    server = start_redis()
    worker = new_worker(server.url(), once_beat_lease=60.0)
    worker.trace(server.kill)
    leases_module._record_all()
    leases_module._record_all()
    assert told(caplog) == ["window_unrecorded"]


def test_one_end_that_cant_be_recorded(worker, raw, caplog, patient) -> None:
    """A foreign key stops that window's end and no other that waits with it."""
    second = worker.next_window()
    worker.trace(lambda: "worked")
    raw.set(worker.run_key, "not ours", ex=600)
    worker.trace(lambda: "worked", second)
    leases_module._record_all()
    assert told(caplog) == ["window_unrecorded"]
    assert worker.account.counts == {"done": 1}


@pytest.mark.parametrize("lost", [StoreUnavailableError("the reply is lost"), SoftTimeLimitExceeded()])
def test_an_answer_that_is_lost(worker, monkeypatch, caplog, patient, lost: BaseException) -> None:
    """The end is sent again, and the store answers as before."""
    together, answers = RoundTrip.run, iter([lost])

    def losing(*arguments: Any) -> Any:
        replies = together(*arguments)
        for lost_once in answers:
            raise lost_once
        return replies

    worker.trace(lambda: "worked")
    monkeypatch.setattr(RoundTrip, "run", losing)
    with suppress(SoftTimeLimitExceeded):
        leases_module._record_all()
    leases_module._record_all()
    assert not leases(worker)._ends
    assert worker.account.counts == {"done": 1}
    assert not told(caplog)


# ----------------------------------------------------------------------------------------------- which ends may wait


@pytest.mark.parametrize("name", ["window_succeeded", "window_closed"])
def test_a_receiver_of_one_signal(worker: Worker, patient: None, name: str) -> None:
    """It hears of the end before the task's process goes on, whichever of the two it listens to."""
    signal, heard = getattr(signals, name), []

    def hear(**arguments: Any) -> None:
        heard.append(arguments["window"])

    signal.connect(hear)
    worker.trace(lambda: "worked")
    assert len(heard) == 1
    assert worker.account.counts == {"done": 1}


def test_a_retry_that_is_not_thrown(worker: Worker, patient: None, caplog: pytest.LogCaptureFixture) -> None:
    """The body goes on and returns: the window is the retry's, this execution has no end that could wait."""
    assert worker.trace(lambda: worker.task.retry(throw=False, countdown=0) and None) == SUCCESS
    assert not leases(worker)._ends
    leases_module._record_all()
    assert told(caplog) == []
    assert worker.account.counts == {}


def test_a_store_that_does_not_answer_at_once(new_worker, redis_url, monkeypatch, caplog) -> None:
    """The thread keeps the end, and sends it again; it doesn't wait until the lease is to be renewed."""
    worker = new_worker(redis_url, once_beat_lease=3600.0)
    together, away = RoundTrip.run, iter([True, True])

    def late(self: RoundTrip, ends: Any) -> Any:
        return [StoreUnavailableError("away")] * len(ends) if next(away, False) else together(self, ends)

    monkeypatch.setattr(RoundTrip, "run", late)
    with caplog.at_level(logging.WARNING):
        worker.trace(lambda: "worked")
        wait_until(lambda: worker.account.counts == {"done": 1}, "it is sent again", 60)
    assert told(caplog) == []


def test_a_renewal_behind_the_end(worker: Worker, patient: None, caplog: pytest.LogCaptureFixture) -> None:
    """A begin takes the end along, and the thread renews the lease meanwhile: nobody has lost anything."""
    worker.task.once_lease = 3.0
    worker.trace(lambda: "worked")
    (end,) = leases(worker)._ends
    store_of(worker.app).trip.one(end.request)
    wait_until(lambda: end.lease.state == "over", "its renewal is refused", 60)
    leases_module._record_all()
    assert told(caplog) == []
    assert worker.account.counts == {"done": 1}


def test_a_slot_that_was_given_back_meanwhile(new_worker: Callable[..., Worker], redis_url: str) -> None:
    """The thread renews it all the same, with the leases of others: none of those is left out."""
    worker = new_worker(redis_url, once_beat_limits={"reports": 1})
    worker.task.once_limit = "reports"
    (lease,) = worker.deliver(leases(worker)._held.copy)
    assert lease.renewed_with
    assert leases(worker)._renew([lease])


@pytest.mark.parametrize("stale", [True, False])
def test_two_that_send_one_end(worker: Worker, patient: None, caplog: pytest.LogCaptureFixture, stale: bool) -> None:
    """A begin and the thread: it counts once. If the process stood still, and another has begun, it is said once."""
    worker.task.once_lease = LEASE
    worker.trace(lambda: "worked")
    if stale:
        with worker.frozen():
            worker.begin_elsewhere()
    ends = list(leases(worker)._ends)
    for _ in range(2):
        leases(worker)._record(ends)
    assert told(caplog) == ["window_stale"] * stale
    assert worker.account.counts == ({} if stale else {"done": 1})
