"""The ends of an execution that need neither worker nor server to be shown."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from celery.exceptions import Reject
from celery.worker.request import Request
from kombu.message import Message
from servers import free_port

from celery_once_beat import OnceTask, Window, current_window
from celery_once_beat.errors import OnceError, SettingError, StoreUnavailableError
from celery_once_beat.settings import Settings
from celery_once_beat.store import verbs as store
from celery_once_beat.windows import decode_headers, encode_call, encode_headers, find_headers
from celery_once_beat.worker import leases
from celery_once_beat.worker import put_back as put_back_module
from celery_once_beat.worker.base import ask_until_answered, is_death
from celery_once_beat.worker.calls import notes_of
from celery_once_beat.worker.execution import _delay
from celery_once_beat.worker.message import DELIVERY
from celery_once_beat.worker.put_back import RATE, _seconds, put_back
from celery_once_beat.worker.request import OnceRequest, request_class

NOW = datetime.now(timezone.utc)
HOUR = timedelta(hours=1)
WINDOW_HEADERS = encode_headers(Window("e", NOW, NOW + HOUR))


def work() -> None:
    """A task that nobody runs here."""


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 0.0),
        ({"countdown": 90}, 90.0),
        ({"eta": NOW + HOUR}, 3600.0),
        ({"eta": (NOW + HOUR).replace(tzinfo=None)}, 3600.0),
        ({"eta": (NOW + HOUR).isoformat()}, 3600.0),
        ({"eta": NOW - HOUR}, 0.0),
        ({"eta": NOW + HOUR, "countdown": 5}, 3600.0),
    ],
)
def test_when_a_retry_is_due(options: dict[str, Any], seconds: float) -> None:
    """The seconds for which its window waits, however the retry says it; a naive eta is UTC, as for Celery."""

    def expected() -> float:
        age = (datetime.now(timezone.utc) - NOW).total_seconds()
        return max(seconds - age, 0.0) if "eta" in options else seconds

    most = expected()
    found = _delay(options)
    assert expected() - 1.001 <= found <= most + 0.001, "an eta may be in whole seconds"


def test_without_store_and_broker_the_message_stays_with_the_broker() -> None:
    """Nobody takes the copy that should come again later: the message is rejected, to be delivered again."""
    port = free_port()
    with Celery("tests", broker=f"redis://127.0.0.1:{port}/0", set_as_current=False, task_cls=OnceTask) as app:
        once = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
        app.conf.update(task_publish_retry=False, broker_transport_options=once)
        task = app.task(work, name="proj.task", shared=False)
        request = Context(id="1", args=(), kwargs={}, retries=0, delivery_info={}, headers={})
        with pytest.raises(Reject) as caught:
            put_back(task, request, StoreUnavailableError("away"))
    assert caught.value.requeue is True


def test_how_long_a_message_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Well under a second at first, then longer, never all at once; of thousands no more than so many a second."""
    with monkeypatch.context() as patch:
        patch.setattr(put_back_module, "_free_at", 0.0)
        patch.setattr(put_back_module, "RATE", math.inf)
        waits = {times: [_seconds(times, 2.0) for _ in range(50)] for times in (0, 1, 3, 5, 100)}
    assert max(waits[0]) <= 0.1
    assert min(waits[5] + waits[100]) >= 1.0
    assert max(waits[5] + waits[100]) <= 2.0
    assert 0.4 <= min(waits[3]) < max(waits[3]) <= 0.8
    assert all(len(set(of_each)) > 40 for of_each in waits.values())

    monkeypatch.setattr(put_back_module, "_free_at", 0.0)
    monkeypatch.setattr(put_back_module.time, "monotonic", lambda: 1000.0)
    crowd = [_seconds(0, 2.0) for _ in range(5000)]
    each = [sum(second <= wait < second + 1 for wait in crowd) for second in range(31)]
    assert max(each[:14]) <= RATE + 5
    assert max(each) < 400, "those beyond half a minute's worth come in that time all the same, but not at once"
    assert sum(each) == len(crowd)


def test_an_eager_run_has_its_own_request() -> None:
    """With its id, its retries and one window, as a plain task's; a call of the task within it is a direct one."""
    seen: list[tuple[str | None, int]] = []
    windows = set()
    with Celery("tests", broker="memory://", set_as_current=False, task_cls=OnceTask) as app:

        @app.task(bind=True, max_retries=3, shared=False)
        def flaky(self, nested: bool = False) -> str:
            if nested:
                return "nested"
            windows.add(self.window)
            assert self(nested=True) == "nested"
            seen.append((self.request.id, self.request.retries))
            if self.request.retries < 2:
                raise self.retry(countdown=0)
            return "done"

        result = flaky.apply()
    assert (result.state, result.get()) == ("SUCCESS", "done")
    assert seen == [(result.id, 0), (result.id, 1), (result.id, 2)]
    assert len(windows) == 1


# ------------------------------------------------------------------------------------------- calls without a window


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("tests", broker="memory://", set_as_current=False, task_cls=OnceTask) as app:
        yield app


def test_a_call_without_a_window_has_its_own(app: Celery) -> None:
    """Direct, eager, with a base's __call__: from when it began, under its task id, held, the same at each look."""

    class Base(OnceTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.run(*args, **kwargs)

    def look(self: Any) -> Any:
        assert self.window is self.window is current_window()
        return self.request.id, self.window

    for base in (OnceTask, Base):
        task = app.task(look, name=f"proj.{base.__name__}", base=base, bind=True, shared=False)
        before = datetime.now(timezone.utc)
        direct, eager = task() if base is OnceTask else (None, None), task.apply().get()
        for call, window in (direct, eager) if base is OnceTask else (eager,):
            assert before <= window.start <= datetime.now(timezone.utc)
            assert window.entry == (call or window.entry)
            assert (window.scheduled, window.tracked, window.held) == (False, False, True)
            assert (window.end, window.fence, window.attempt) == (None, None, 1)
    assert current_window() is None


def test_another_calls_header_isnt_believed(app: Celery) -> None:
    """A child that was given its parent's headers began when it began; nor what is no instant."""
    task = app.task(work, name="proj.task", shared=False)
    header = encode_call("parent", NOW - HOUR)
    for headers, call, start in (
        (header, "parent", NOW - HOUR),
        (header, "child", NOW),
        ({"once_call": "yesterday"}, "parent", NOW),
        (None, "parent", NOW),
    ):
        for fields in ({**(headers or {}), "headers": None}, {"headers": headers}):
            request = Context(id=call, called_directly=False, **fields)
            notes_of(request).began = NOW.timestamp()
            task.request_stack.push(request)
            assert (task.window.entry, task.window.start) == (call, start)
            task.request_stack.pop()


# ------------------------------------------------------------------------------------ what came out of a body


def raise_in(module: str) -> None:
    """Raise as a function of ``module`` does."""
    exec("raise NotImplementedError", {"__name__": module})


def from_handler() -> None:
    raise_in("celery.apps.worker")


def hidden() -> None:
    try:
        from_handler()
    except NotImplementedError:
        raise LookupError("mine") from None


def own() -> None:
    raise_in("proj.tasks")


def leaves() -> None:
    raise SystemExit


def test_what_is_raised_from_outside_while_the_store_is_away() -> None:
    """It goes on when the end is given up, and that is said all the same; a second one goes on at once."""
    said: list[OnceError] = []
    raised = iter([KeyboardInterrupt()])

    def send() -> None:
        raise next(raised, StoreUnavailableError("away"))

    with pytest.raises(KeyboardInterrupt):
        ask_until_answered(send, 0.0, said.append)
    assert [str(error) for error in said] == ["away"]
    raised = iter([KeyboardInterrupt(), SystemExit()])
    with pytest.raises(SystemExit):
        ask_until_answered(send, 60.0, said.append)
    assert len(said) == 1


def chained() -> None:
    """As a long row of handlers does in which the next one raises."""
    error = LookupError("first")
    for _ in range(3000):
        following = LookupError("next")
        following.__context__, error = error, following
    raise error


@pytest.mark.parametrize("body", [from_handler, hidden, leaves, own, chained])
def test_what_is_no_end_of_a_body(body: Callable[[], None]) -> None:
    """What Celery's handler of a signal raises within a body ends the worker, whatever the body makes of it."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # each
        body()
    assert is_death(caught.value) is (body in (from_handler, hidden, leaves))


# -------------------------------------------------------------------------------------------- the task's Request


class OwnRequest(Request):
    """A class of requests of an app's own."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """As theirs often do: without the base's."""


@pytest.mark.parametrize("theirs", [OwnRequest, f"{__name__}:OwnRequest", f"{__name__}.OwnRequest", Request])
def test_a_request_class_of_the_tasks_own(theirs: Any) -> None:
    """Whichever form it has, it is combined with the one that closes windows, which is asked first."""

    class OwnTask(OnceTask):
        abstract = True
        Request = theirs

    with Celery("tests", broker="memory://", set_as_current=False) as app:
        for task in (
            app.task(work, name="proj.base", shared=False, base=OwnTask),
            app.task(work, name="proj.given", shared=False, base=OnceTask, Request=theirs),
        ):
            found = request_class(task)
            assert found.__mro__[1] is OnceRequest
            assert issubclass(found, OwnRequest) or theirs is Request
            task.Request = found
            assert request_class(task) is found, "once, however often the worker connects"
        plain = app.task(work, name="proj.plain", shared=False, base=OnceTask)
        assert request_class(plain) is OnceRequest


@pytest.mark.parametrize(
    ("headers", "named"), [({}, False), ({"headers": WINDOW_HEADERS}, True), ({"once_start": "lost its entry"}, True)]
)
def test_a_delivery_is_named_for_a_window_only(app: Celery, headers: dict[str, Any], named: bool) -> None:
    """A message without a window goes to the child as it came."""
    task = app.task(work, name="proj.task", shared=False)
    given = {"id": "1", "task": task.name, **headers}
    message = Message(b"[[], {}, {}]", content_type="application/json", content_encoding="utf-8", headers=given)
    request = OnceRequest(message, hostname="one@host", app=app)
    assert request.request_dict.get(DELIVERY, "").startswith("one@host:") is named
    assert named or not any(name.startswith("once_") for name in request.request_dict)


@pytest.mark.parametrize("nested", [False, True])
def test_the_windows_headers_survive_a_retry(app: Celery, nested: bool) -> None:
    """Also where another tool nests headers, so that Celery would forget those at the top."""
    task = app.task(work, name="proj.task", shared=False)
    window = Window("nightly", NOW, NOW + timedelta(hours=1))
    message = {"id": "1", "task": task.name, "args": (), "kwargs": {}, **encode_headers(window)}
    if nested:
        message["headers"] = {"trace": "1"}
    headers = task.signature_from_request(Context(message), retries=1).options["headers"]
    assert decode_headers(find_headers(headers)) == window
    assert ("trace" in headers) == nested


def test_hooks_before_the_begin_know_the_window(app: Celery) -> None:
    """before_start runs before it, and on_failure where it is refused for a wrong header."""
    task = app.task(work, name="proj.task", shared=False)
    window = Window("nightly", NOW, None)
    for headers, expected in (
        (encode_headers(window), window), (encode_headers(window, "1"), window), (encode_headers(window, "2"), None),
        ({"once_entry": 7}, None),
    ):  # fmt: skip
        task.request_stack.push(Context(id="1", called_directly=False, headers=headers))
        assert task.window == expected if expected else not task.window.scheduled
        task.request_stack.pop()


class FinalRequest(Request):
    """Nobody may derive from it."""

    def __init_subclass__(cls) -> None:
        raise TypeError("final")


@pytest.mark.parametrize("theirs", [dict, FinalRequest])
def test_a_request_class_that_cannot_be_combined(theirs: type) -> None:
    """The worker's start says what to do."""
    with Celery("tests", broker="memory://", set_as_current=False) as app:
        task = app.task(work, name="proj.task", shared=False, base=OnceTask, Request=theirs)
        with pytest.raises(SettingError, match=r"Request: found .*derive it from celery_once_beat.worker.request"):
            request_class(task)


# -- what a process has one of, although several threads may ask for it first


def meeting(make: Callable[..., Any]) -> Callable[..., Any]:
    """``make``, which returns to nobody before two threads are in it."""
    barrier = threading.Barrier(2, timeout=60)

    def met(*arguments: Any) -> Any:
        barrier.wait()
        return make(*arguments)

    return met


def test_two_threads_that_need_the_store_first_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread pool's first two windows go through one store, and so through one set of connections."""
    app = Celery("tests", broker="redis://127.0.0.1:1/0", set_as_current=False)
    monkeypatch.setattr(store, "Store", meeting(store.Store))
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(store.store_of, [app, app])
    assert first is second


def test_two_threads_that_need_a_lease_first_share_its_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread a process renews all leases, also those of two windows that begin at once."""
    of = store.Store(Settings(redis_url="redis://127.0.0.1:1/0"))
    monkeypatch.setattr(leases.leases_of, "_make", meeting(leases.Leases))
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(leases.leases_of.of, [of, of])
    assert first is second
