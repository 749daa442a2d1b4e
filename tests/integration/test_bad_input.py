"""Bad input: one clear message that names it, and everything else goes on."""

from __future__ import annotations

import os
import re
from functools import partial
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
from celery_once_beat.store import Store
from celery_once_beat.worker import check_tasks, starting

#: Settings, attributes of the tasks, what is said; and who ends by it.
WRONG: list[tuple[dict[str, object], dict[str, object], str, str]] = [
    ({"once_beat_leese": 30}, {}, r"once_beat_leese: there is no such setting \(did you mean", "beat worker"),
    ({"once_beat_redis_url": "redis://:secret@host:p/"}, {}, "a redis URL that can't be", "beat worker"),
    ({"timezone": "Europe/Berln"}, {}, "timezone: found 'Europe/Berln', expected the name of a time zone", "beat next"),
    ({}, {"window": 3}, "defines 'window', which is where OnceTask puts the window; rename it", "beat worker"),
    ({}, {"once_lease": "soon"}, "once_lease: found 'soon', expected a number of seconds", "beat worker"),
    ({}, {"Request": "builtins:dict"}, "Request: found <class 'dict'>, expected a subclass of", "worker"),
]


@pytest.mark.parametrize(("settings", "task", "said", "who"), WRONG)
def test_a_wrong_setting(system: System, settings: dict[str, object], task: dict[str, object], said: str, who) -> None:
    """Beat, worker and commands end with one line that names it, found and expected; so do wrong tasks."""
    system.settings, system.task, system.check_law = settings, task, False
    start = {"beat": system.beat, "worker": partial(system.worker, pool="solo")}
    for proc in [start.get(name, partial(system.celery, "once", name))() for name in who.split()]:
        assert proc.wait(60) == os.EX_CONFIG, "supervisors don't restart status 78"
        (line,) = [line for line in proc.log.splitlines() if "once: " in line]
        assert re.search(said, line)
        assert "Traceback" not in proc.log
        assert "secret" not in proc.log
    with system.client() as client:
        assert not list(client.scan_iter("once:*entry*")), "nothing was loaded"


def test_a_stock_beat_is_warned_of(system: System) -> None:
    """Where -S once was forgotten everything would be sent once more: that beat says so at its start, and no other."""
    system.check_law = False
    right = system.beat()
    wait_until(lambda: system.store.snapshot().beats, "one that claims windows lives", 60)
    stock = system.beat("stock", scheduler="celery.beat:Scheduler")
    embedded = system.worker("embedded", pool="threads", beat=True, scheduler="celery.beat:Scheduler")
    for proc in (stock, embedded):
        proc.wait_log("once: this beat runs Scheduler, which sends each window once more", 60)
    assert "than the 1 that claim windows" in stock.log
    wait_until(lambda: system.store.account("tick"), "the schedule is loaded", 60)
    assert "this beat runs" not in right.log


def test_a_forgotten_stock_beat_is_warned_of(redis_url: str, store: Store, monkeypatch, caplog) -> None:
    """It may have run alone for days when the first beats that claim windows come. Who looks for them ends with it."""
    monkeypatch.setattr(starting, "_OTHERS_LOOKED_FOR", 0.02)

    def looks() -> list[Thread]:
        return [thread for thread in enumerate_threads() if thread.name == "once-others"]

    for others in (False, True):
        service = Service(Celery(broker=redis_url, set_as_current=False), scheduler_cls=Scheduler, max_interval=0.1)
        beat = Thread(target=service.start)
        beat.start()
        wait_until(lambda: len(looks()) == 1, "it looks for others", 30)
        if others:
            filled.beat_lives(store)
            wait_until(lambda: not looks(), "it has found one", 30)
        service.stop(wait=True)
        beat.join()
        wait_until(lambda: not looks(), "it looks no more", 30)
        assert ("which sends each window once more than the 1 that claim windows" in caplog.text) is others


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


def test_a_property_of_a_task_that_raises() -> None:
    """It is named as a wrong attribute is."""

    class Asks(OnceTask):
        abstract = True
        once_lease = property(lambda _: {}["lease"])

    with Celery("tests", set_as_current=False) as app:
        app.register_task(type("Task", (Asks,), {"name": "tests.asks", "run": lambda _: None})())
        with pytest.raises(SettingError, match=r"^task 'tests.asks', once_lease: can't be read: KeyError\('lease'\)$"):
            check_tasks(app)
