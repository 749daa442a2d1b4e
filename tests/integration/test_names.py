"""Entries that add_periodic_task has named after their arguments."""

from __future__ import annotations

from processes import wait_until
from system import System

MESSAGE = "beats have other names for the same task and schedule: "


def test_beats_that_name_an_entry_otherwise(system: System) -> None:
    """The one that loads last says so, and doctor: each runs an entry of its own."""
    system.entries = {}
    named = [{f"apps.once_app.work('{value}')": {"task": "apps.once_app.work", "every": 3600.0}} for value in "ab"]
    first = system.beat("first", entries=named[0])
    wait_until(lambda: "is new" in first.log, "the first beat has loaded its entry", 60)
    second = system.beat("second", entries=named[1])
    wait_until(lambda: MESSAGE in second.log, "the second one says that the first one has another name", 60)
    assert MESSAGE in system.once("doctor", exit_code=1, env={"entries": named[0]})
