"""Bad input: one clear message that names it, and everything else goes on."""

from __future__ import annotations

import os
import re
from threading import Thread
from threading import enumerate as enumerate_threads

import filled
import pytest
from celery import Celery
from celery.beat import Scheduler, Service
from processes import wait_until
from system import System

from celery_once_beat import OnceTask
from celery_once_beat.errors import SettingError
from celery_once_beat.settings import Settings
from celery_once_beat.store import Store
from celery_once_beat.worker import check_tasks, starting


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("once_beat_lease", "soon", r"once_beat_lease: found 'soon', expected a number of seconds"),
        ("once_beat_leese", 30, r"once_beat_leese: there is no such setting \(did you mean once_beat_lease\?\)"),
        ("once_beat_redis_url", "http://:secret@host/", r"once_beat_redis_url: found http://.*, expected a URL"),
        ("once_beat_redis_url", "redis://:secret@host:port/", r"once_beat_redis_url: found a redis URL that can't be"),
        ("once_beat_redis_options", {"nosuch": 1}, r"once_beat_redis_options: .*nosuch"),
    ],
)
def test_a_wrong_setting(system: System, setting: str, value: object, said: str) -> None:
    """Beat and worker end at their start with one line that names the setting, found and expected."""
    system.settings = {setting: value}
    system.check_law = False
    for proc in (system.beat(), system.worker(pool="solo")):
        assert proc.wait(60) == os.EX_CONFIG
        (line,) = [line for line in proc.log.splitlines() if "once_beat" in line and "CRITICAL" in line]
        proc.wait_log(said)
        assert "Traceback" not in proc.log
        assert "secret" not in proc.log
        assert "once: " in line


def test_a_wrong_time_zone(system: System) -> None:
    """Beat and commands say so in one line, in place of Celery's traceback."""
    system.settings = {"timezone": "Europe/Berln"}
    system.check_law = False
    for proc in (system.beat(), *(system.celery("once", command) for command in ("status", "doctor", "audit", "next"))):
        assert proc.wait(60) == os.EX_CONFIG
        assert "once: timezone: found 'Europe/Berln', expected the name of a time zone" in proc.log
        assert "Traceback" not in proc.log


def test_a_stock_beat_is_warned_of(system: System) -> None:
    """Where -S once was forgotten everything would be sent once more: that beat says so at its start, and no other."""
    system.check_law = False
    right = system.beat()
    wait_until(system.store.beats, "one that claims windows lives", 60)
    stock = system.beat("stock", scheduler="celery.beat:Scheduler")
    embedded = system.worker("embedded", pool="threads", beat=True, scheduler="celery.beat:Scheduler")
    for proc in (stock, embedded):
        proc.wait_log("once: this beat runs Scheduler, which sends each window once more", 60)
    assert "than the 1 that claim windows" in stock.log
    wait_until(lambda: system.store.account("tick"), "the schedule is loaded", 60)
    assert "this beat runs" not in right.log


def test_who_looks_for_others_ends_with_its_beat(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts and stops beats has no thread of those that have stopped; Redis isn't asked for them."""
    monkeypatch.setattr(starting, "_OTHERS_LOOKED_FOR", 0.02)

    def looks() -> list[Thread]:
        return [thread for thread in enumerate_threads() if thread.name == "once-others"]

    for _ in range(2):
        service = Service(Celery(broker=redis_url, set_as_current=False), scheduler_cls=Scheduler, max_interval=0.1)
        beat = Thread(target=service.start)
        beat.start()
        wait_until(lambda: len(looks()) == 1, "it looks for others", 30)
        service.stop(wait=True)
        beat.join()
        wait_until(lambda: not looks(), "it looks no more", 30)


def test_a_message_of_a_newer_version(system: System) -> None:
    """A message of a newer version isn't guessed at: it is put back with a countdown."""
    worker = system.worker(pool="solo").wait_ready()
    system.send(
        "apps.once_app.work",
        {"once_entry": "tick", "once_start": "2026-11-21T05:36:00.000000Z", "once_attempt": 1, "once_v": 2},
    )
    worker.wait_log("put back for .* s: message header once_v: found 2, expected at most 1")
    received = len(worker.log)
    worker.wait_log("received", since=received)
    assert worker.log.count("put back for") == 1, "said once"
    assert not system.ledger.read("start")
    system.check_law = False


def test_a_message_without_a_window(system: System) -> None:
    """A OnceTask that is sent by hand just runs, and asks Redis nothing; its retries share a window of its own."""
    system.worker(pool="solo").wait_ready()
    system.send("apps.once_app.retrying", {})
    wait_until(lambda: system.ledger.read("finish"), "it runs", 60)
    assert len(system.ledger.read("start")) == 3
    assert len({(event["call"], event["begun"]) for event in system.ledger.read("start", "finish")}) == 1
    with system.client() as client:
        assert not list(client.scan_iter("once:*"))


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"window": 3}, "defines 'window', which is where OnceTask puts the window; rename it"),
        ({"once_leese": 5}, r"once_leese: there is no such attribute \(did you mean once_lease\?\)"),
        ({"once_lease": "soon"}, "once_lease: found 'soon', expected a number of seconds"),
    ],
)
def test_a_task_with_a_wrong_attribute(system: System, task: dict[str, object], said: str) -> None:
    """Worker and beat end at their start with one line that names the task; supervisors don't restart status 78."""
    system.task = task
    system.check_law = False
    for proc in (system.beat(), system.worker(pool="solo")):
        assert proc.wait(60) == os.EX_CONFIG
        (line,) = [line for line in proc.log.splitlines() if "CRITICAL" in line]
        assert re.search(rf"once: task 'apps.once_app.\w+'.*{said}", line)
        assert "Traceback" not in proc.log
    with system.client() as client:
        assert not list(client.scan_iter("once:*entry*")), "nothing was loaded"


def test_a_request_class_that_cannot_be_combined(system: System) -> None:
    """A worker whose task has a Request of another kind says so in one line, too; a beat doesn't need it."""
    system.task = {"Request": "builtins:dict"}
    system.check_law = False
    worker = system.worker(pool="solo")
    assert worker.wait(60) == os.EX_CONFIG
    (line,) = [line for line in worker.log.splitlines() if "CRITICAL" in line]
    assert "Request: found <class 'dict'>, expected a subclass of celery.worker.request.Request" in line
    assert "Traceback" not in worker.log


def test_a_forgotten_stock_beat_is_warned_of(redis_url, raw, monkeypatch, caplog) -> None:
    """It may have run alone for days when the first beats that claim windows are deployed beside it."""
    monkeypatch.setattr(starting, "_OTHERS_LOOKED_FOR", 0.02)
    app = Celery("stock", broker=redis_url, set_as_current=False)
    service = Service(app, scheduler_cls=Scheduler)
    looks = Thread(target=starting._warn_of_others, args=[service], daemon=True)

    def accepted() -> int:
        return int(raw.info("stats")["total_connections_received"])

    before = accepted()
    looks.start()
    wait_until(lambda: accepted() > before + 3, "it has looked several times", 30)
    assert looks.is_alive()
    assert "this beat runs" not in caplog.text
    store = Store(Settings.from_app(app))
    filled.beat_lives(store)
    looks.join(30)
    store.close()
    assert "this beat runs Scheduler, which sends each window once more than the 1 that claim windows" in caplog.text


def test_a_property_of_a_task_that_raises() -> None:
    """It is named as a wrong attribute is."""

    class Asks(OnceTask):
        abstract = True
        once_lease = property(lambda _: {}["lease"])

    with Celery("tests", set_as_current=False) as app:
        app.register_task(type("Task", (Asks,), {"name": "tests.asks", "run": lambda _: None})())
        with pytest.raises(SettingError, match=r"^task 'tests.asks', once_lease: can't be read: KeyError\('lease'\)$"):
            check_tasks(app)
