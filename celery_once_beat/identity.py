"""Names of beats, deliveries and executions in the store: parts separated by colons, the host first.

A part holds no colon; no blank, which separates the words of the store's records; and no slash, at which some of them
cut it. The last part is random, since process ids are reused.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from functools import cache

#: Most characters of a host's name; Linux allows no more.
_MOST_HOST = 64
#: Most characters of a worker's name, which its user chooses.
_MOST_WORKER = 100


def beat_name() -> str:
    """Return a new name for a beat of this process."""
    return f"{_process()}:{os.urandom(4).hex()}"


def order_name() -> str:
    """Return a new name for a person's order, which claims windows as a beat does."""
    return f"{_process()}:order-{os.urandom(4).hex()}"


def caller_name() -> str:
    """Return a new name for one ``once()`` block, which executes without a message."""
    return f"{_process()}:{os.urandom(6).hex()}"


def worker_name(worker: str | None) -> str:
    """Return the name of a worker as its deliveries begin."""
    return _as_part(worker or "?", _MOST_WORKER)


def delivery_name(worker: str | None) -> str:
    """Return a new name for one delivery of a message to ``worker``; redelivery and retry reuse a task id."""
    return f"{worker_name(worker)}:{os.urandom(6).hex()}"


def execution_name(delivery: str) -> str:
    """Return a new name for an execution of ``delivery``.

    A pool gives a delivery to a second child if the first dies before the pool knows that it had it.
    """
    return f"{delivery}:{os.urandom(2).hex()}"


def page_id(entry: str) -> str:
    """Return by what the board's addresses name an entry: safe in a URL and in an attribute."""
    return digest(entry).hex()


def host_of(name: str) -> str:
    """Return the host, or the worker's name, with which ``name`` begins."""
    return name.partition(":")[0]


def is_of(name: str, whose: str) -> bool:
    """Whether ``whose`` is ``name``, or the host with which it begins."""
    return name == whose or name.startswith(f"{whose}:")


def digest(text: str, size: int = 8) -> bytes:
    """Return the first ``size`` bytes of the SHA-256 of ``text``: a hash that Python has in FIPS mode, too."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:size]


def uuid_of(text: str) -> str:
    """Return a UUID made of ``text``: of version 8, RFC 9562, since version 5 needs SHA-1."""
    number = int.from_bytes(digest(text, 16), "big")
    digits = f"{number & ~(0xF << 76) & ~(0x3 << 62) | 0x8 << 76 | 0x2 << 62:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _process() -> str:
    return f"{_as_part(socket.gethostname(), _MOST_HOST)}:{os.getpid()}"


@cache  # a process uses one or two
def _as_part(name: str, most: int) -> str:
    return re.sub(r"[\s:/]", "_", name)[:most]
