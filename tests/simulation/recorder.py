"""Histories: what was asked of a real server and what it answered, in the server's order, as lines of JSON.

A line has the ``verb``, the ``entry`` (the name of its hash), the ``start`` of its window ('' if it has none), the
``args`` under their names in ``store/scripts.py``, the ``reply`` as the script gave it, and ``at``: between which two
times (server ms) that was. A reply that never came is null. A line with a ``command`` is a plain command that writes:
whoever reads the history knows of those that lose data.

:func:`recorded` writes down what one :class:`Store` of this process sends; it changes no code of the package's.
:class:`RecordingProxy` does so for all processes whose clients go through it, and lets one of them
talk at a time: so its order is the server's.
"""

from __future__ import annotations

import io
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from proxy import Proxy

from celery_once_beat.store import Store, scripts
from celery_once_beat.store.codec import pack as packed
from celery_once_beat.store.exchange import Reply
from celery_once_beat.store.scripts import Request

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
_TIME = packed("TIME")


def line_of(words: Sequence[str], reply: Any, since: int, until: int) -> Line | None:
    """Return the line of one command; None if it says nothing of windows."""
    name = words[0].upper()
    at = [since, until]
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


def _ms(told: Sequence[Any]) -> int:
    return int(told[0]) * 1000 + int(told[1]) // 1000


@contextmanager
def recorded(store: Store, write: Callable[[Line], object]) -> Iterator[None]:
    """Within the block what ``store`` sends is written down; it is to talk to one server, from one thread."""
    nodes = store.trip._nodes
    send = nodes.send

    def send_and_record(requests: Sequence[Request[Any]], last: bytes | None) -> list[Reply]:
        clock: Request[Any] = Request(_TIME, "", None)
        since, *answers, until = send([clock, *requests, clock], last)
        for request, reply in zip(requests, answers, strict=True):
            line = line_of(read_requests(request.packed)[0][0], reply[0], _ms(since[0]), _ms(until[0]))
            if line is not None:
                write(line)
        return answers

    nodes.send = send_and_record  # type: ignore[method-assign]
    try:
        yield
    finally:
        del nodes.send


class RecordingProxy(Proxy):
    """Stands before the server at ``port`` and writes each line with ``write``, by one thread at a time.

    A command that waits (BLPOP, SUBSCRIBE) would let all others wait: it is for the store, not for a broker.
    """

    def __init__(self, port: int, write: Callable[[Line], object]) -> None:
        super().__init__(port)
        self._write = write
        self._one_at_a_time = threading.Lock()
        #: The server's time, as it was known last.
        self._time = 0

    def _join(self, client: Any, server: Any) -> None:
        """Both ways are one way here."""
        self._start(self._carry, self._exchange_all, client, server)

    def _exchange_all(self, client: Any, server: Any) -> None:
        held = b""
        with server.makefile("rb") as answers, suppress(ValueError, IndexError):
            while data := client.recv(65536):
                held += data
                requests, length = read_requests(held)
                sent, held = held[:length], held[length:]
                if requests:
                    client.sendall(self._exchange(requests, sent, server, answers))

    def _exchange(self, requests: list[list[str]], sent: bytes, server: Any, answers: Any) -> bytes:
        with self._one_at_a_time:
            raw: list[bytes] = []
            replies: list[Any] = []
            try:
                server.sendall(_TIME + sent + _TIME)
                for _ in range(len(requests) + 2):
                    data, reply = _read_reply(answers)
                    raw.append(data)
                    replies.append(reply)
            finally:
                told = len(replies) == len(requests) + 2
                since = _ms(replies[0]) if replies else self._time
                # Who was cut off knows only that it is over now, by this machine's clock.
                until = self._time = _ms(replies[-1]) if told else max(since, round(time.time() * 1000))
                for words, reply in itertools.zip_longest(requests, replies[1 : len(requests) + 1]):
                    line = line_of(words, reply, since, until)
                    if line is not None:
                        self._write(line)
            return b"".join(raw[1:-1])


# -- the wire -----------------------------------------------------------------------------------------------------


def read_requests(data: bytes) -> tuple[list[list[str]], int]:
    """The whole requests that ``data`` begins with, and how long they are."""
    stream, requests, length = io.BytesIO(data), [], 0
    while True:
        head = stream.readline()
        if not head.endswith(b"\n"):
            return requests, length
        words = []
        if not head.startswith(b"*"):
            words = head.decode().split()
        for _ in range(int(head[1:]) if head.startswith(b"*") else 0):
            size = stream.readline()
            if not size.endswith(b"\n"):
                return requests, length
            word = stream.read(int(size[1:]) + 2)
            if len(word) < int(size[1:]) + 2:
                return requests, length
            words.append(word[:-2].decode(errors="surrogateescape"))
        requests.append(words)
        length = stream.tell()


def _read_reply(stream: Any) -> tuple[bytes, Any]:
    """One reply, as it came and as a value; an error is an exception."""
    head = stream.readline()
    if not head.endswith(b"\r\n"):
        raise OSError("the server is gone")
    kind, rest = head[:1], head[1:-2]
    if kind in b"$=!" and rest != b"-1":
        body = stream.read(int(rest) + 2)
        if len(body) < int(rest) + 2:
            raise OSError("the server is gone")
        return head + body, body[:-2].decode(errors="surrogateescape")
    if kind in b"*~>%" and rest != b"-1":
        parts = [_read_reply(stream) for _ in range(int(rest) * (2 if kind == b"%" else 1))]
        return head + b"".join(raw for raw, _ in parts), [value for _, value in parts]
    if kind == b"-":
        return head, RuntimeError(rest.decode())
    if kind == b":":
        return head, int(rest)
    return head, rest.decode() if kind == b"+" else None


def read_history(path: Any) -> Iterator[Line]:
    """The lines of a file."""
    with Path(path).open(encoding="utf-8") as file:
        yield from map(json.loads, file)
