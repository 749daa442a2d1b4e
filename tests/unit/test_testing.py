"""What users test their projects with: windows for bodies, which windows would run, a clock that stands."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, Task
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedule
from processes import wait_until

import celery_once_beat.embedded
import celery_once_beat.testing
from celery_once_beat import OnceTask, Schedules, Window, current_window, once
from celery_once_beat.beat.server_clock import ServerClock
from celery_once_beat.errors import NoServerError, ScheduleError, SettingError, StoreUnavailableError
from celery_once_beat.store import Begun, store_of
from celery_once_beat.testing import (
    EmbeddedStore,
    OnceBeat,
    embedded_store,
    executing,
    pinned_clock,
    window,
    windows_between,
)
from celery_once_beat.windows import WindowKey

DOCS = Path(__file__).resolve().parents[2] / "docs"
TWO = window("report", "2026-11-21T02:00Z", "2026-11-22T02:00Z")
HOUR = timedelta(hours=1)
PLUGIN = "celery_once_beat.pytest_plugin"


def known() -> None:
    """A task that no test runs."""


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose broker and Redis aren't there: what asks for them fails."""
    with Celery("tests", broker="redis://127.0.0.1:1/0", set_as_current=False, task_cls=OnceTask) as app:
        app.conf.broker_connection_retry = False
        yield app


# -- a window


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": "2026-11-21T02:00"}, "start: found '2026-11-21T02:00', expected a datetime with a time zone"),
        ({"start": 7}, "start: found 7"),
        ({"end": "2026-11-21T02:00Z"}, "end: found .*, expected an instant after start"),
        ({"last_done": "never"}, "last_done: found 'never'"),
        ({"attempt": 0}, "attempt: found 0, expected at least 1"),
    ],
)
def test_what_no_window_can_be(arguments: dict[str, Any], message: str) -> None:
    """The argument is named, with what was found and expected."""
    with pytest.raises(ValueError, match=message):
        window(**{"entry": "report", "start": "2026-11-21T02:00Z", **arguments})


# -- a body


RUNS: dict[str, Callable[[Any], Any]] = {
    "call": lambda task: task(),
    "run": lambda task: task.run(),
    "apply": lambda task: task.apply(throw=True).get(),
    "delay": lambda task: task.delay().get(),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("bound", [True, False])
def test_a_body_has_the_window(app: Celery, run: Callable[[Any], Any], *, bound: bool) -> None:
    """However it is run, within the block and not after it, and without Redis."""
    app.conf.task_always_eager = True

    @app.task(bind=True, shared=False)
    def report(self) -> Any:
        return self.window

    @app.task(shared=False)
    def unbound() -> Any:
        return current_window()

    task = report if bound else unbound
    with executing(task, TWO) as given:
        assert given is TWO
        assert current_window() is TWO
        assert run(task) is TWO
    own = run(task)
    assert own is None if run is RUNS["run"] and not bound else not own.scheduled
    assert current_window() is None


# -- a store without one's Redis


def test_what_a_body_asks_needs_no_redis(app: Celery) -> None:
    """apply_once and once() in a body, in plain code and in asyncio, are decided as by the app's own Redis."""
    app.conf.update(task_always_eager=True, once_beat_wait_replicas=1, once_beat_redis_options={"username": "nobody"})
    sent = []

    @app.task(bind=True, shared=False)
    def child(self, user: str) -> None:
        assert self.window.keyed
        sent.append(user)

    @app.task(bind=True, shared=False)
    def parent(self) -> list[bool]:
        for user in ("ann", "bob", "ann"):
            child.apply_once((user,), key=user, window=self.window)
        ran = []
        for _ in range(2):
            with once("inner", every="366d", app=app) as inner:
                ran.append(inner is not None)
        return ran + asyncio.run(later())

    async def later() -> list[bool]:
        async with once("later", every="366d", url="redis://127.0.0.1:1/0") as first:
            async with once("later", every="366d", url="redis://127.0.0.1:1/0") as second:
                await child.apply_once_async(("carl",), key="carl", window=TWO)
            return [first is not None, second is not None]

    for _ in range(2):  # each block begins with an empty store
        with executing(parent, TWO):
            assert parent() == [True, False, True, False]
    assert sent == ["ann", "bob", "carl"] * 2
    sent.clear()
    with embedded_store() as store:
        for _ in range(2):  # a second execution of the window, after a crash
            with executing(parent, TWO):
                parent()
        assert sent == ["ann", "bob", "carl"]
        with embedded_store() as same:
            assert same is store
        with redis.Redis.from_url(store.url.replace("redis+socket", "unix")) as client:
            assert client.keys("once:key:*")
    with pytest.raises(StoreUnavailableError), once("outside", every="366d", app=app):
        pytest.fail("it ran")


def test_without_a_server_it_says_what_to_install(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where a body asks; one that asks nothing runs."""
    monkeypatch.setattr(celery_once_beat.embedded, "find_spec", lambda name: None)
    monkeypatch.setattr(celery_once_beat.embedded.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(celery_once_beat.testing, "_embedded", EmbeddedStore())
    task = app.task(known, name="tests.known", shared=False)
    with executing(task, TWO):
        task()
        with pytest.raises(NoServerError, match=r"pip install 'celery-once-beat\[server\]'"):
            task.apply_once(key=7, every="1h")


def test_the_server_ends_with_its_process(tmp_path: Path) -> None:
    """In order, or killed."""
    program = (
        "import sys\n"
        "from celery_once_beat.testing import embedded_store\n"
        "with embedded_store() as store:\n"
        "    print(store.url.removeprefix('redis+socket://'), flush=True)\n"
        "    store.start()._send(b'PING\\r\\n')\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    for kill in (False, True):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "-c", program], **pipes)
        path = process.stdout.readline().strip()
        assert process.stdout.readline() == "ready\n"
        if kill:
            process.kill()
        process.communicate("\n")
        assert process.returncode == (-9 if kill else 0)
        # Its folder is removed when it has ended.
        wait_until(lambda path=path: not Path(path).parent.exists(), "the server has ended", 30)


def test_a_plain_task_has_no_window(app: Celery) -> None:
    """It is said what was expected, instead of a body that sees None."""

    @app.task(base=Task, shared=False)
    def plain() -> None: ...

    with pytest.raises(TypeError, match=r"task: found <@task: .*plain.*>, expected an OnceTask"):
        executing(plain, TWO).__enter__()


# -- which windows would run


def test_all_entries_of_an_app(app: Celery) -> None:
    """In order of time, each with its end; from the first instant on and before the last; by the app's zone."""
    app.conf.timezone = "Europe/Berlin"
    app.conf.beat_schedule = {
        "nightly": {"task": "tests.known", "schedule": crontab(hour=2, minute=0)},
        "often": {"task": "tests.unknown", "schedule": 6 * 3600},
        "made": ScheduleEntry(name="made", task="tests.known", schedule=crontab(hour=3, minute=0, app=app), app=app),
    }

    app.task(known, name="tests.known", shared=False)
    found = windows_between(app, "2026-11-21T00:00Z", "2026-11-22T00:00Z")
    often = [("often", f"21 {hour:02}:00") for hour in (0, 6, 12, 18)]
    starts = [(each.entry, f"{each.start:%d %H:%M}") for each in found]
    assert starts == [often[0], ("nightly", "21 01:00"), ("made", "21 02:00"), *often[1:]]
    assert found[1] == Window("nightly", utc("2026-11-21T01:00"), utc("2026-11-22T01:00"))
    assert {each.entry: each.tracked for each in found} == {"often": False, "nightly": True, "made": True}
    assert windows_between(app, "2026-11-21T00:00Z", "2026-11-22T00:00Z", entry="nightly") == [found[1]]


class Broken(BaseSchedule):
    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        raise RuntimeError("no idea")


@pytest.mark.parametrize(
    ("entry", "error", "message"),
    [
        ({"task": "t", "schedule": 60, "options": {"once": {"gracee": 1}}}, SettingError, "did you mean 'grace'"),
        ({"task": "t", "schedule": Broken()}, ScheduleError, "no idea"),
        ({"task": "t", "schedule": timedelta(microseconds=1)}, ScheduleError, "at least 1 ms"),
    ],
)
def test_an_entry_that_a_beat_would_leave_out_is_an_error(
    app: Celery, entry: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A test is to find it."""
    app.conf.beat_schedule = {"tick": entry}
    with pytest.raises(error, match=message):
        windows_between(app, "2026-11-21T00:00Z", "2026-11-22T00:00Z")


# -- a clock that stands


def test_a_pinned_clock(app: Celery) -> None:
    """The app, its schedules and the clock of a beat show it, and show the real time again after the block."""
    app.conf.timezone = "Europe/Berlin"
    beats = ServerClock()
    with pinned_clock("2026-11-21T02:00Z") as clock:
        assert app.now() == schedule(60, app=app).now() == beats.now() == clock.now() == utc("2026-11-21T02:00")
        assert app.now().utcoffset() == HOUR
        clock.move(90)
        clock.move(timedelta(minutes=-1))
        assert app.now() == beats.now() == utc("2026-11-21T02:00:30")
        clock.move_to("2027-01-01T00:00+01:00")
        assert beats.now() == utc("2026-12-31T23:00")
    assert abs(app.now() - datetime.now(timezone.utc)) < HOUR
    assert abs(beats.now() - datetime.now(timezone.utc)) < HOUR


# -- docs


def test_the_docs_have_all_names() -> None:
    """Whoever looks for one finds it."""
    text = (DOCS / "testing.md").read_text()
    of_types = {"EmbeddedStore", "OnceWindow", "PinnedClock", "Sent"}  # they come from the others
    for name in {*celery_once_beat.testing.__all__, "once_store", "once_window", "once_beat"} - of_types:
        assert f"`{name}" in text


# -- a beat in the test's process


@pytest.fixture
def proj(app: Celery) -> Celery:
    """An app with a task, and an entry of each day."""
    app.conf.update(timezone="Europe/Berlin", task_always_eager=True)
    app.conf.beat_schedule = {
        "nightly": {"task": "proj.report", "schedule": crontab(hour=2, minute=0), "args": ["all"]}
    }

    @app.task(bind=True, name="proj.report", shared=False)
    def report(self: Any, user: str) -> str:
        mail.apply_once((user,), key=user, window=self.window, tracked=True)
        return f"{user} {self.window.start:%d. %H:%M} {self.window.held}"

    @app.task(name="proj.mail", shared=False)
    def mail(_: str) -> None:
        pass

    @app.task(name="proj.plain", base=Task, shared=False)
    def plain() -> str:
        return "plain"

    return app


def test_a_beat_in_the_process_sends_what_is_due(proj: Celery) -> None:
    """Of the app's schedule and of what is set meanwhile, also by an object made before; each window once, in order."""
    proj.conf.once_beat_key_prefix = "mine:"
    before = Schedules(proj)
    with OnceBeat() as beat:
        beat(proj, "2026-11-21T07:00Z")
        before.set("users/ann", task="proj.report", schedule=crontab(hour=8, minute=30), args=("ann",))
        Schedules(proj).set("users/bob", task="proj.plain", schedule=utc("2026-11-22T05:00"))
        assert before.get("users/ann").next() == [utc("2026-11-21T07:30")]
        (sent,) = beat.until("09:00")
        assert (sent.entry, sent.task, sent.args, sent.kwargs) == ("users/ann", "proj.report", ("ann",), {})
        assert [sent.run(), sent.run()] == ["ann 21. 07:30 True"] * 2
        assert [each.entry for each in beat.until("09:00")] == ["nightly", "users/bob", "users/ann"]
        before.pause("users/ann")
        (sent,) = beat.until("2026-11-23T07:45Z")
        assert (sent.entry, sent.window.start) == ("nightly", utc("2026-11-23T01:00"))
        assert beat.until("2026-11-23T07:46Z") == []
        proj.conf.beat_schedule["nightly"]["options"] = {"once": {"lease": "long"}}
    with OnceBeat() as beat, pytest.raises(SettingError, match=r"'nightly': .*once\['lease'\]: found 'long'"):
        beat(proj, "2026-11-21T07:00Z")
    with embedded_store():
        assert [*before.list()] == []
        set_at = before.set("users/ann", task="proj.report", schedule=60).changed_at
        assert abs(datetime.now(timezone.utc) - set_at) < timedelta(minutes=10), "the server's own time again"


def test_a_limited_task_of_an_eager_app(proj: Celery) -> None:
    """An eager app is only a test's: what is ordered for the entry, and what is due of it, is as without."""
    proj.conf.once_beat_limits = {"reports": 1}

    @proj.task(name="proj.limited", once_limit="reports", shared=False)
    def limited() -> None:
        pass

    schedules = Schedules(proj)
    with OnceBeat() as beat:
        beat(proj, "2026-11-21T07:00Z")
        schedules.set("users/ann", task="proj.limited", schedule=crontab(hour=8, minute=30))
        assert [each.entry for each in beat.until("09:00")] == ["users/ann"]
        schedules.pause("users/ann")
        schedules.resume("users/ann", from_now=True)
        assert schedules.run("users/ann").start == utc("2026-11-21T07:30")
        assert schedules.status("users/ann").tracked


def test_the_clock_of_a_beat_is_its_blocks_alone(proj: Celery) -> None:
    """Windows begin by the beat's clock within its block, and by the server's own before and after it."""

    def year_of_begin() -> int:
        begun = store_of(proj).begin(WindowKey("a key", utc("2026-11-21T07:00")), "owner", 30.0, tracked=False)
        assert isinstance(begun, Begun)
        return datetime.fromtimestamp(begun.fence / 1000, timezone.utc).year

    with embedded_store():
        own = year_of_begin()
    for year in (own + 10, own + 20):
        with OnceBeat() as beat:
            beat(proj, f"{year}-11-21T07:00Z")
            assert year_of_begin() == year
        with embedded_store():
            assert year_of_begin() == own
