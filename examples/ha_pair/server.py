"""The server of the demo: yours, named by ``ONCE_BEAT_REDIS_URL``, or one of its own on a free loopback port."""

from __future__ import annotations

import os
import socket

from celery_once_beat.embedded import find_server
from celery_once_beat.errors import NoServerError

__all__ = ("NoServerError", "embedded", "given")


def given() -> str | None:
    """URL of the server that the user names, or None."""
    return os.environ.get("ONCE_BEAT_REDIS_URL") or None


def embedded() -> tuple[list[str], str]:
    """Command and URL of a server that keeps nothing on disk; raises NoServerError."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    try:
        binary = find_server()
    except NoServerError as exc:
        raise NoServerError(f"{exc}, or set ONCE_BEAT_REDIS_URL") from None
    return [str(binary), *options], f"redis://127.0.0.1:{port}/0"
