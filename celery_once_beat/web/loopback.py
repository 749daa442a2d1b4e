"""Listening sockets, and whether an address or a Host header means this machine alone."""

from __future__ import annotations

import ipaddress
import os
import re
import socket

from celery_once_beat.errors import SettingError

_BACKLOG = 128
_THIS_MACHINE = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.ASCII | re.IGNORECASE)


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches ``address``, a numeric one."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def names_this_machine(host: str | None) -> bool:
    """Whether a Host header names the loopback, with any port: a tunnel has its own.

    A page of another site whose name points here (DNS rebinding) sends another one.
    """
    return host is not None and _THIS_MACHINE.fullmatch(host) is not None


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; ``port`` 0 takes a free one. Raises SettingError where that can't be."""
    if not host:
        raise SettingError("--host: found '', expected an address like 127.0.0.1")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError, OverflowError) as exc:
        # What Python adds to the system's words names the address once more.
        why = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno and exc.errno > 0 else exc
        raise SettingError(f"--host, --port: can't listen on {host!r}, port {port}: {why}") from exc
