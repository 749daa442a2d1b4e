"""What status, audit, doctor, metrics and board show is what the beats run, whatever code the process has that asks."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from processes import Proc, wait_until
from prometheus_client.parser import text_string_to_metric_families
from system import System

WORK = "apps.once_app.work"
RARE = {"task": WORK, "every": 3600.0}
SECOND = {"task": WORK, "every": 1.0}


def told(system: System, **env: Any) -> dict[str, Any]:
    found = system.celery("once", "status", "--json", **env)
    found.wait(120)
    return dict(json.loads(found.log))


def by_name(report: dict[str, Any]) -> dict[str, Any]:
    return {entry["entry"]: entry for entry in report["entries"]}


def served(system: System, **env: Any) -> tuple[Proc, str]:
    proc = system.celery("once", "metrics", "--port", "0", name="exporter", **env)
    return proc, proc.wait_log(r"the metrics are at (http://\S+)")[1]


def series(url: str) -> dict[tuple[str, str], float]:
    """Each gauge and counter of an entry, by its name and the entry's."""
    text = urllib.request.urlopen(url, timeout=30).read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, sample.labels.get("entry", "")): sample.value for sample in samples}


@pytest.mark.long
def test_readers_show_what_the_beats_run(system: System) -> None:
    """Entries and definitions are the beats'; by which this process's code differs is one line, and no alarm."""
    system.check_law = False
    system.entries = {"both": RARE, "there": {"task": WORK, "cron": "30 2 29 2 *"}, "changed": SECOND}
    system.beat().wait_ready()
    code = {"both": RARE, "here": RARE, "changed": {"task": WORK, "every": 7200.0}}
    wait_until(lambda: system.store.account("changed"), "all are loaded", 60)
    wait_until(lambda: not told(system, entries=code)["beats"][0]["unloaded"], "the beat says so", 60)
    system.store.set_paused("changed", paused=True)

    report = told(system, entries=code)
    entries = by_name(report)
    assert {name: entry["schedule"] for name, entry in entries.items()} == {
        "both": "every 1 h",
        "there": "30 2 29 2 *",
        "changed": "every 1 s",
    }
    assert entries["there"]["next"].endswith("-02-29T02:30:00.000000Z")
    assert [name for name, entry in entries.items() if entry["attention"]] == ["changed"], "for its pause alone"
    assert report["code"] == (
        "This process's code isn't what the beats run, which is shown: no beat runs 'here'; not in this code: 'there'; "
        "of another task or schedule: 'changed'"
    )
    assert told(system)["code"] == ""

    audit = json.loads(system.once("audit", "--json", env={"entries": code}))
    assert audit["balances"]
    assert {each["entry"]: each["verdict"] for each in audit["entries"]} == dict.fromkeys(entries, "balances")
    _, url = served(system, entries=code)
    assert {entry for name, entry in series(url) if name == "celery_once_beat_open_windows"} == set(entries)
    doctor = system.celery("once", "doctor", name="doctor", entries=code)
    doctor.wait(120)
    assert "note  code: this process's code isn't what the beats run" in doctor.log
    assert "entry changed" not in doctor.log
