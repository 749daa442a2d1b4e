"""A Redis that is full, with noeviction: what is there goes on, and people are told in time."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from processes import wait_until
from servers import RedisServer
from system import System

WORK = "apps.once_app.work"


@pytest.mark.long
def test_an_entry_that_cant_be_loaded_stops_no_other(start_redis: Callable[..., RedisServer], system: System) -> None:
    """A beat that starts while Redis is full claims what Redis knows; status and doctor say before that it fills up."""
    system.use_store(start_redis(args=("--maxmemory-policy", "noeviction")))
    system.check_law = False
    system.entries = {"tick": {"task": WORK, "every": 1.0}}
    beat = system.beat().wait_ready()
    wait_until(lambda: system.store.account("tick"), "it is loaded", 60)
    with system.client() as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", int(used * 1.1))
        assert re.search(r"^memory: Redis has used \d+% of its maxmemory", system.once("status"), re.MULTILINE)
        assert "warn  memory: Redis has used " in system.once("doctor", exit_code=1)
        client.config_set("maxmemory", used // 2)
        beat.stop()
        system.entries["new"] = {"task": WORK, "every": 1.0}
        system.beat("second").wait_ready()
        before = system.account("tick").cursor
        wait_until(lambda: (system.account("tick").cursor - before).total_seconds() > 20, "it claims", 40)
        assert system.store.account("new") is None
        client.config_set("maxmemory", 0)
    wait_until(lambda: system.store.account("new"), "it is loaded when there is room", 60)
