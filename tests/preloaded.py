"""A Python that has imported Celery, and forks for each process of Celery that tests start.

Most of what a beat or a worker of a test costs is the import. What comes of a fork is what ``python -m celery`` would
be: a process with a session, an environment, a directory and a log of its own, and an app that it imports itself.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: What beats, workers and commands import sooner or later. None of it starts a thread or looks at the environment.
#: Nothing of the package: by its import it connects to Celery's signals, and a stock app is to have none of it.
_MODULES = (
    "billiard.heap",
    "billiard.popen_fork",
    "billiard.sharedctypes",
    "billiard.synchronize",
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.fixups.django",
    "celery.loaders.app",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "django.contrib.admin",
    "django.core.management",
    "django.db.backends.sqlite3.base",
    "django.db.models",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "jinja2",
    "prometheus_client",
    "starlette.applications",
    "uvicorn",
)
#: Variables that Python reads when it starts, or that a module above does when it is imported.
_AT_START = ("COVERAGE_", "DD_", "KOMBU_", "LANG", "LC_", "LD_", "OTEL_", "PYTHON", "REMAP_SIGTERM", "TZ")
#: These patch what others import, and have to be first.
_PATCHES = ("eventlet", "gevent")


class Forked:
    """One process that came of a fork; as a ``subprocess.Popen``, as far as tests need it."""

    def __init__(self, preloaded: Preloaded, pid: int) -> None:
        self._preloaded = preloaded
        self.pid = pid
        self.returncode: int | None = None

    def look(self) -> int | None:
        """Its exit status, or None while it is there. It isn't reaped."""
        if self.returncode is None:
            return self._preloaded.ask(look=self.pid)
        return self.returncode

    def wait(self) -> int:
        """Reap it, once it has ended; its exit status."""
        if self.returncode is None:
            self.returncode = self._preloaded.ask(reap=self.pid)
        return self.returncode


class Preloaded:
    """Starts when it is first asked for a process; ends with the process that asks."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._started_with = _read_at_start(env)
        self._lock = threading.Lock()
        self._popen = subprocess.Popen(
            [sys.executable, __file__], env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def can_become(self, command: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether a fork is the same as this command."""
        return (
            tuple(command[:3]) == (sys.executable, "-m", "celery")
            and not set(_PATCHES) & set(command)
            and _read_at_start(env) == self._started_with
        )

    def start(self, command: Sequence[str], *, log: Path, cwd: Path | str, env: Mapping[str, str]) -> Forked:
        """The process that this command (``python -m celery …``) would start."""
        return Forked(self, self.ask(args=command[3:], log=str(log), cwd=str(cwd), env=dict(env)))

    def ask(self, **request: Any) -> Any:
        with self._lock:
            self._popen.stdin.write(f"{json.dumps(request)}\n")
            self._popen.stdin.flush()
            return json.loads(self._popen.stdout.readline())

    def close(self) -> None:
        """End it; what came of it goes on."""
        self._popen.stdin.close()
        self._popen.stdout.close()
        self._popen.wait()


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_AT_START) and value}


# ------------------------------------------------------------------------------------------- in the new process


def _serve() -> dict[str, Any] | None:
    """Do what is asked, line by line. Returns in each fork, with the request; and at the end."""
    for line in sys.stdin:
        request = json.loads(line)
        if "look" in request:
            reply = _status(request["look"], os.WNOHANG | os.WNOWAIT)
        elif "reap" in request:
            reply = _status(request["reap"], 0)
        else:
            reply = _fork()
            if not reply:
                return request
        print(json.dumps(reply), flush=True)
    return None


def _status(pid: int, options: int) -> int | None:
    """Exit status of a child; -n if signal n ended it; None while it is there."""
    info = os.waitid(os.P_PID, pid, os.WEXITED | options)
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _fork() -> int:
    """As ``os.fork``; returns once the child has a session of its own, to which signals may be sent."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
    else:
        os.setsid()
        os.close(reading)
        os.close(writing)
    return pid


def _become(request: dict[str, Any]) -> None:
    """Be the process that was asked for, from here on."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, max(nothing, log) + 1)
    sys.path[0] = request["cwd"]
    sys.argv = [importlib.util.find_spec("celery.__main__").origin, *request["args"]]
    runpy.run_module("celery", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for each in _MODULES:
        importlib.import_module(each)
    gc.freeze()  # else each fork copies all of it when it looks for garbage
    if (asked := _serve()) is not None:
        _become(asked)
