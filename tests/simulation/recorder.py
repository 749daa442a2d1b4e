"""What was asked of a real server and what it answered, in the server's order: lines that the model is held against.

A line has the ``verb``, the ``entry`` (the name of its hash), the ``start`` of its window ('' if it has none), the
``args`` under their names in ``store/scripts.py``, the ``reply`` as the script gave it, and ``at``, server ms. A line
with a ``command`` is a plain command that writes: whoever reads the lines knows of
those that lose data.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from celery_once_beat.store import scripts

Line = dict[str, Any]

_VERBS = {verb.sha: verb for verb in scripts.all_verbs()}
#: How an argument is read back, by its kind in ``store/scripts.py``.
_READ: dict[str, Callable[[str], Any]] = {
    "number": lambda text: int(text) if text else None,
    "span": lambda text: int(text) if text else None,
    "life": lambda text: int(text) if text else None,
    "time": lambda text: int(text) if text else None,
    "flag": lambda text: text == "1",
    "words": str.split,
}
#: Commands that write what verbs look at.
_WRITE = {"FLUSHALL", "FLUSHDB", "DEL", "UNLINK", "RESTORE", "SET", "HSET", "HDEL", "ZADD", "ZREM", "PEXPIRE", "EXPIRE"}


def line_of(words: Sequence[str], reply: Any, at: int) -> Line | None:
    """Return the line of one command; None if it says nothing of windows."""
    name = words[0].upper()
    if isinstance(reply, Exception):
        reply = {"error": str(reply)}
    if name in _WRITE:
        return {"command": name, "keys": list(words[1:2]), "at": at}
    if name not in {"EVALSHA", "EVAL"}:
        return None
    count = int(words[2])
    keys, args = list(words[3 : 3 + count]), words[3 + count :]
    verb = _VERBS.get(words[1])
    if verb is None:
        entry = next((key for key in keys if ":entry:" in key), "")
        return {"verb": f"script {words[1][:8]}", "entry": entry, "start": "", "args": {}, "reply": reply, "at": at}
    given = {name: _READ.get(kind, str)(text) for (name, kind), text in zip(verb.kinds.items(), args, strict=True)}
    entry = dict(zip(verb.key_names, keys, strict=False)).get("entry", "")
    start = given.pop("start", "")
    given.pop("member", None)
    return {"verb": verb.name, "entry": entry, "start": start, "args": given, "reply": reply, "at": at}


def read_requests(data: bytes) -> list[list[str]]:
    """Return the commands of a request, as words."""
    stream, found = io.BytesIO(data), []
    while head := stream.readline():
        sizes = (int(stream.readline()[1:]) for _ in range(int(head[1:])))
        found.append([stream.read(size + 2)[:-2].decode(errors="surrogateescape") for size in sizes])
    return found
