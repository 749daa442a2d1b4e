"""``celery once ping``: a probe that tells a living beat from none."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from processes import Proc, Processes, wait_until
from servers import free_port
from system import System


def ping(system: System, *arguments: str, **env: Any) -> Proc:
    proc = system.celery("once", "ping", *arguments, name="ping", **env)
    proc.wait()
    return proc


def test_a_beat_that_lives_is_found_until_it_ends(system: System) -> None:
    """Exit 0 where a beat lives, any or the one that is named by its ID or its host; 1 where none does."""
    system.check_law = False
    before = ping(system)
    assert (before.exit_code, before.log) == (1, "no beat lives; alive: none\n")
    with system.client() as client:
        assert client.keys() == [], "a probe writes nothing"

    beat = system.beat().wait_ready()
    wait_until(lambda: len(system.store.beats()) == 1, "the beat has said that it lives", 60)
    (name,) = system.store.beats()
    for arguments in ([], ["--beat", name], ["--beat", socket.gethostname()]):
        found = ping(system, *arguments)
        assert (found.exit_code, found.log) == (0, f"{name}\n")
    other = ping(system, "--beat", "elsewhere")
    assert (other.exit_code, other.log) == (1, f"no beat elsewhere lives; alive: {name}\n")

    beat.stop()
    assert ping(system).exit_code == 1, "a beat that ends says so at once"


def test_without_redis_it_says_so_in_one_line(system: System) -> None:
    """No answer isn't 'no beat': another status, one line, no traceback."""
    system.check_law = False
    away = ping(system, STORE_URL=f"redis://127.0.0.1:{free_port()}/0")
    assert away.exit_code == os.EX_UNAVAILABLE
    assert away.log.startswith("once: Redis: ")
    assert away.log.count("\n") == 1
    wrong = ping(system, settings={"once_beat_lease": "soon"})
    assert wrong.exit_code == os.EX_CONFIG
    assert wrong.log == "once: once_beat_lease: found 'soon', expected a number of seconds, at least 0.5\n"


def test_the_command_line_loads_the_store_only_when_asked(procs: Processes) -> None:
    """``celery --help`` knows ``once``, and imports neither redis nor the store nor what the extras bring for it."""
    # By itself: other packages' plugins import what they like.
    code = (
        "import sys, celery.bin.base; from celery_once_beat.cli import once; "
        "assert {'ping', 'metrics'} <= set(once.list_commands(None)); "
        "heavy = {'redis', 'rich', 'starlette', 'uvicorn', 'jinja2', 'prometheus_client', 'celery_once_beat.store'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    proc = procs.start([sys.executable, "-c", code], name="help")
    assert (proc.wait(), proc.log) == (0, "[]\n")
    known = procs.start([sys.executable, "-m", "celery", "--help"], name="help")
    assert known.wait() == 0
    assert "once" in known.log
