"""A worker that counts what its tasks cost; ``integration/test_gates.py`` says what each may.

``COUNTS`` is the file into which it writes at its end. With ``PROFILED`` it counts the Python calls of all its threads,
else who is on the stack when a begin is sent. Each body writes its kind to the standard error, for those who trace
system calls.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from celery import Celery
from celery.signals import worker_ready, worker_shutdown
from redis.connection import AbstractConnection

import celery_once_beat
from celery_once_beat import OnceTask
from celery_once_beat.store.scripts import BEGIN
from celery_once_beat.worker import leases

app = Celery("counted", broker=os.environ["BROKER"], set_as_current=False)
app.conf.update(task_ignore_result=True, once_beat_redis_url=os.environ["STORE"], worker_hijack_root_logger=False)
#: On a slow machine too an end travels with the next begin.
leases.WITHIN = 10.0
PACKAGE = f"{Path(celery_once_beat.__file__).parent}{os.sep}"

#: How many calls there were.
calls = [0]
#: Of each body its kind, and how many calls there were by then.
bodies: list[tuple[str, int]] = []
#: Of the package: file and function of what was on the stack when a begin was sent, outermost first.
passed: list[str] = []


def _count(_frame: FrameType, event: str, _: Any) -> None:
    calls[0] += event == "call"


def _ran(kind: str) -> None:
    bodies.append((kind, calls[0]))
    os.write(2, f"body of {kind}\n".encode())


@app.task(name="counted.plain")
def plain() -> None:
    _ran("plain")


@app.task(name="counted.once", base=OnceTask, bind=True)
def once(self) -> None:
    _ran("window" if self.request.headers.get("once_entry") else "no window")


def _note_begin(connection: Any, command: Any, **options: Any) -> None:
    frame, found = sys._getframe(1), []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            found.append(f"{frame.f_code.co_filename.removeprefix(PACKAGE)} {frame.f_code.co_name}")
        frame = frame.f_back
    if any(BEGIN.sha.encode() in each for each in command):
        passed[:] = reversed(found)
    _send(connection, command, **options)


_send = AbstractConnection.send_packed_command
if "PROFILED" in os.environ:
    threading.setprofile(_count)
    worker_ready.connect(lambda **_: sys.setprofile(_count), weak=False)
else:
    AbstractConnection.send_packed_command = _note_begin  # type: ignore[method-assign]


@worker_shutdown.connect(weak=False)
def _write(**_: Any) -> None:
    sys.setprofile(None)
    Path(os.environ["COUNTS"]).write_text(json.dumps({"bodies": bodies, "passed": passed}))
