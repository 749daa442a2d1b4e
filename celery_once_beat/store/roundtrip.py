"""The round trip: scripts and commands travel in one pipeline; each comes back as an answer or an error of ours.

An error that concerns one key stands in the place of its answer; what concerns them all is raised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import repeat
from typing import Any, TypeVar

from redis.exceptions import ResponseError
from redis.sentinel import MasterNotFoundError

from celery_once_beat.errors import (
    OnceError,
    StoreDataError,
    StoreUnavailableError,
    UncertainWriteError,
    from_signal,
)
from celery_once_beat.settings import Settings
from celery_once_beat.wording import shown

from . import codec, model
from .clients import connect
from .clocks import clocks
from .exchange import UNREACHABLE, Nodes, Reply
from .keys import Keys, newer
from .scripts import Request

T = TypeVar("T")
#: A plain command: its name, its key, and so on.
Words = tuple[Any, ...]

TIME = codec.pack("TIME")
#: How long WAIT waits for replicas, milliseconds.
_WAIT_MS = 1000
#: How an error begins that a script raised itself, and not a command in it.
_SCRIPT_FAILED = ("user_script:", "Error running script")
#: An error of a command in a script that is about the server's state: Redis 6.2 puts its code behind the script's.
_OF_THE_SERVER = re.compile(r"user_script: \d+: (-(?!ERR )[A-Z]+ |The user executing the script can't)")
_WHERE = re.compile(r" script: [^:]*@user_script:\d+\.$")
#: What ``read_fields`` of ``lua/pieces/entry.lua`` raises.
_NEWER = re.compile(r"user_script:\d+: NEWER (\d+)")
#: How a command refuses the value of a key. It doesn't depend on the server's state.
_BAD_VALUE = ("value is not an integer", "value is not a valid float", "would overflow", "invalid expire time")


class RoundTrip:
    """Sends to the Redis of ``settings``; connects at the first use."""

    def __init__(self, settings: Settings, keys: Keys) -> None:
        self.settings = settings
        self._keys = keys
        self._lazy: Nodes | None = None
        #: How far the server's clock was ahead of this machine's at the last :meth:`timed`, as far as its reply shows.
        self.ahead = timedelta(0)

    @property
    def _nodes(self) -> Nodes:
        nodes = self._lazy = self._lazy or Nodes(connect(self.settings))
        return nodes

    def close(self) -> None:
        """Close the connections; the next round trip connects again."""
        nodes, self._lazy = self._lazy, None
        if nodes is not None:
            nodes.close()

    def one(self, request: Request[T]) -> T:
        """Send one request; raises the error that concerns it."""
        return raised(self.run([request])[0])

    def run(self, requests: Sequence[Request[T]]) -> list[T | OnceError]:
        """Send all in one pipeline; an error that concerns one request stands in its place."""
        return self.send(requests)

    def timed(self, requests: Sequence[Request[T]]) -> list[T | OnceError]:
        """As :meth:`run`; the server's time comes along, for ``ahead``."""
        sent = datetime.now(timezone.utc)
        *replies, time = self.send([*requests, Request(TIME, requests[0].key, None)])
        received = datetime.now(timezone.utc)
        if not isinstance(time, OnceError):
            now = codec.EPOCH + timedelta(seconds=int(time[0]), microseconds=int(time[1]))
            self.ahead = now - min(max(now, sent), received)
        return replies

    def send(self, requests: Sequence[Request[Any] | Words]) -> list[Any]:
        """As :meth:`run`, also for plain commands: each is a tuple of its name, its key, and so on."""
        sent = [each if isinstance(each, Request) else _plain(each) for each in requests]
        replicas, wait = self.settings.wait_replicas, None
        if replicas and any(each.verb is not None and each.verb.waits for each in sent):
            wait = codec.pack("WAIT", replicas, _WAIT_MS)
        try:
            replies = (self._lazy or self._nodes).send(sent, wait)
        except OnceError:
            raise
        except UNREACHABLE as exc:  # also a cluster's client, which asks for its nodes when it is made
            raise _unavailable(exc) from exc
        except BaseException as exc:
            if isinstance(exc, SystemExit) and not from_signal(exc):  # a user's credential provider raises it
                raise StoreUnavailableError(f"Redis: {shown(exc)}") from exc
            # Raised from outside, as a soft time limit is. ``Connections`` sees to its own, but a client of redis-py's
            # may have been asking for the master or for the nodes. Not closed: other threads may use the same.
            self._lazy = None
            raise
        certain = wait is None or not any(self._doubt("", last) for _, last, _ in replies)
        return [*map(self._read, sent, replies, repeat(certain))]

    def read(self, commands: Sequence[Words]) -> list[Any]:
        """Send plain commands; an error that concerns one stands in its place, StoreUnavailableError is raised."""
        replies = self.send(commands)
        for reply in replies:
            if isinstance(reply, StoreUnavailableError):
                raise reply
        return replies

    def clocks(self) -> dict[str, float]:
        """How many seconds the clock of each server that answers, replicas too, is ahead of this machine's."""
        try:
            return clocks(self._nodes.client)
        except UNREACHABLE as exc:  # a cluster's client asks for its nodes when it is made
            raise _unavailable(exc) from exc

    def _read(self, request: Request[Any], reply: Reply, certain: bool) -> Any:  # noqa: FBT001  # for map()
        """Read one reply; ``certain``: all servers that were asked have their replicas."""
        value, last, _ = reply
        if isinstance(value, Exception):
            return self._error(value, request.keys)
        verb = request.verb
        if verb is None:
            return value
        try:
            result = verb.read(value)
        except (ValueError, LookupError, TypeError, OverflowError) as exc:
            return StoreDataError(f"{request.keys[0]!r}: {verb.name} answered {value!r:.120}: {exc}")
        if last is None or not verb.waits:  # no replica was waited for, or for others of the pipeline
            return result
        if isinstance(result, model.Heartbeat):
            return replace(result, certain=certain)
        doubt = self._doubt(verb.name, last) if isinstance(result, model.ActedOn) else None
        return doubt or result

    def _doubt(self, verb: str, acknowledged: Any) -> UncertainWriteError | None:
        """Return why a write can't be acted on, or None; ``acknowledged`` is WAIT's reply, None if it wasn't sent."""
        replicas = self.settings.wait_replicas
        if isinstance(acknowledged, Exception):  # for example, this user may not send it
            return UncertainWriteError(f"{verb}: WAIT (once_beat_wait_replicas) failed: {acknowledged}")
        if acknowledged is not None and acknowledged < replicas:
            return UncertainWriteError(
                f"{verb}: {acknowledged} of {replicas} replicas have it "
                "(once_beat_wait_replicas); a failover could undo it"
            )
        return None

    def _error(self, error: Exception, keys: Sequence[str]) -> OnceError:
        text = str(error)
        if "WRONGTYPE" in text:
            wrapped: OnceError = StoreDataError(self._wrong_type(keys) or text)
        elif found := _NEWER.search(text):
            wrapped = newer(keys[0], found[1])
        elif "BADDATA" in text:
            # The server adds where in the script that was.
            wrapped = StoreDataError(_WHERE.sub("", text.partition("BADDATA ")[2]))
        elif type(error) is ResponseError and (
            (text.startswith(_SCRIPT_FAILED) and not _OF_THE_SERVER.search(text))
            or any(words in text for words in _BAD_VALUE)
        ):
            wrapped = StoreDataError(f"{keys[0]!r} holds what isn't ours: {text}")
        else:
            # READONLY, NOREPLICAS, OOM, MISCONF, LOADING, NOPERM: the server's state, not the key's.
            wrapped = _unavailable(error)
        wrapped.__cause__ = error
        return wrapped

    def _wrong_type(self, keys: Sequence[str]) -> str | None:
        """Return a message that names a key of the wrong type, or None if none has it."""
        for key in keys:
            wanted = self._keys.type_of(key)
            (found,) = self.send([("TYPE", key)])
            if found not in ("none", wanted):
                return (
                    f"the key {key!r} holds a {found}, expected a {wanted}: delete it, or change once_beat_key_prefix"
                )
        return None


def _plain(words: Words) -> Request[Any]:
    return Request(codec.pack(*words), str(words[1]), None)


def raised(answer: T | OnceError) -> T:
    """Return ``answer``; raise it if it is an error."""
    if isinstance(answer, OnceError):
        raise answer
    return answer


def _unavailable(error: Exception) -> StoreUnavailableError:
    # redis-py's errors name host and port, never the password. But this one prints the sentinels' clients, in some
    # releases with all their options.
    text = str(error).partition(" : ")[0] if isinstance(error, MasterNotFoundError) else str(error)
    return StoreUnavailableError(f"Redis: {type(error).__name__}: {text}")
