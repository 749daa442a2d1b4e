"""The round trip: scripts and commands travel in one pipeline, and come back as answers or as errors of ours.

An error that concerns one key stands in the place of its answer; what concerns them all is raised. Scripts are sent
by their hash, and loaded where the server doesn't know them: after a restart, a failover, a SCRIPT FLUSH.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Generic, TypeVar

from redis.backoff import ExponentialBackoff
from redis.exceptions import NoScriptError, RedisClusterException, RedisError, ResponseError
from redis.retry import Retry

from . import replies as r
from .clients import connect
from .errors import NewerVersionError, OnceError, StoreDataError, StoreUnavailableError, UncertainWriteError
from .settings import Settings

__all__ = ("Call", "RoundTrip", "newer")

T = TypeVar("T")

#: How long WAIT waits for replicas, milliseconds.
_WAIT_MS = 1000
#: What a client raises where it has no answer of the server; the cluster's is no
#: RedisError, and for a node that goes away in the middle of a pipeline it is a ValueError.
_UNREACHABLE = (RedisError, RedisClusterException, OSError, ValueError)
#: How the text of an error begins that a script itself made, not a command in it.
_SCRIPT_FAILED = ("user_script:", "Error running script")

_OF_A_WINDOW = ("claim", "confirm", "take", "begin", "renew", "hand_over", "finish", "close", "backfill", "postpone")
_ALONE = ("load", "heartbeat", "pause")
#: Answers on which somebody acts; with wait_replicas they must not be undone by a failover.
_ACTED_ON = (r.Claimed, r.Taken, r.Begun, r.HandedOver, r.Finished, r.Again)


def _read_scripts() -> dict[str, str]:
    folder = files(__package__) / "lua"
    prelude = (folder / "prelude.lua").read_text()
    scripts = {verb: prelude + (folder / f"{verb}.lua").read_text() for verb in _OF_A_WINDOW}
    scripts.update({verb: (folder / f"{verb}.lua").read_text() for verb in _ALONE})
    return scripts


_SCRIPTS = _read_scripts()
_SHAS = {verb: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest() for verb, text in _SCRIPTS.items()}


@dataclass(frozen=True)
class Call(Generic[T]):
    """One script: its keys and arguments, and how its reply is read."""

    verb: str
    keys: list[str]
    arguments: list[Any]
    read: Callable[[list[Any]], T]

    def command(self) -> tuple[Any, ...]:
        """As a client sends it."""
        return ("EVALSHA", _SHAS[self.verb], len(self.keys), *self.keys, *self.arguments)


class RoundTrip:
    """Sends to the Redis of ``settings``; connects at the first use."""

    def __init__(self, settings: Settings, client: Any = None) -> None:
        self.settings = settings
        self._given = client
        self._lazy: Any = None
        # Three tries in all: every verb may be repeated, since it answers its owner as it did the first time.
        self._retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), 2)

    @property
    def _client(self) -> Any:
        if self._lazy is None:
            self._lazy = self._given if self._given is not None else connect(self.settings)
        return self._lazy

    def close(self) -> None:
        """Give the connections back; the next round trip connects again."""
        client, self._lazy = self._lazy, None
        if client is not None and self._given is None:
            client.close()

    def one(self, call: Call[T]) -> T:
        """Send one call; raises the error that concerns it."""
        reply = self.run([call])[0]
        if isinstance(reply, OnceError):
            raise reply
        return reply

    def run(self, calls: Sequence[Call[T]]) -> list[T | OnceError]:
        """Send all in one pipeline; an error that concerns one call stands in its place."""
        return self.run_with(calls, ())[0]

    def run_with(
        self, calls: Sequence[Call[T]], commands: Sequence[tuple[Any, ...]]
    ) -> tuple[list[T | OnceError], list[Any]]:
        """As :meth:`run`, with plain commands (name, key, …) in the same pipeline; their replies come second."""
        raw, acknowledged = self._send([*(call.command() for call in calls), *commands])
        missing = [position for position, reply in enumerate(raw) if isinstance(reply, NoScriptError)]
        if missing:
            self._load_scripts({calls[position].verb for position in missing})
            again, also = self._send([calls[position].command() for position in missing])
            acknowledged = None if acknowledged is None or also is None else min(acknowledged, also)
            for position, reply in zip(missing, again, strict=True):
                raw[position] = reply
        answers: list[T | OnceError] = []
        for call, reply in zip(calls, raw, strict=False):
            answer = self._read(call, reply, acknowledged)
            answers.append(answer)
        plain = [
            self._error(reply, [command[1]]) if isinstance(reply, Exception) else reply
            for command, reply in zip(commands, raw[len(calls) :], strict=True)
        ]
        return answers, plain

    def _send(self, commands: Sequence[tuple[Any, ...]]) -> tuple[list[Any], int | None]:
        """Return the replies, and how many replicas have what was written; None where nobody has to know."""
        wait = self.settings.wait_replicas

        def send() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                if wait:
                    pipe.execute_command("WAIT", wait, _WAIT_MS)
                return pipe.execute(raise_on_error=False)  # type: ignore[no-any-return]

        try:
            raw = self._retry.call_with_retry(send, lambda _: None)
        except OnceError:
            raise
        except _UNREACHABLE as exc:
            raise _unavailable(exc) from exc
        if not wait:
            return raw, None
        acknowledged = raw.pop()
        return raw, acknowledged if isinstance(acknowledged, int) else 0

    def _load_scripts(self, verbs: Iterable[str]) -> None:
        try:
            for verb in sorted(verbs):
                self._client.script_load(_SCRIPTS[verb])
        except _UNREACHABLE as exc:
            raise _unavailable(exc) from exc

    def _read(self, call: Call[T], reply: Any, acknowledged: int | None) -> T | OnceError:
        if isinstance(reply, Exception):
            return self._error(reply, call.keys)
        if isinstance(reply, list) and reply and reply[0] == "newer":
            return newer(call.keys[0], reply[1])
        try:
            result = call.read(reply)
        except (ValueError, IndexError, TypeError) as exc:
            return StoreDataError(f"{call.keys[0]}: {call.verb} answered {reply!r:.120}: {exc}")
        if acknowledged is not None and acknowledged < self.settings.wait_replicas and isinstance(result, _ACTED_ON):
            return UncertainWriteError(
                f"{call.verb}: {acknowledged} of {self.settings.wait_replicas} replicas have it "
                "(once_beat_wait_replicas); a failover could undo it"
            )
        return result

    def _error(self, error: Exception, keys: Sequence[str]) -> OnceError:
        text = str(error)
        if "WRONGTYPE" in text:
            wrapped: OnceError = StoreDataError(self._wrong_type(keys) or text)
        elif "BADDATA" in text or (type(error) is ResponseError and text.startswith(_SCRIPT_FAILED)):
            wrapped = StoreDataError(text)
        else:
            # READONLY, NOREPLICAS, OOM, MISCONF, LOADING, NOPERM: the server's state, not the key's.
            wrapped = _unavailable(error)
        wrapped.__cause__ = error
        return wrapped

    def _wrong_type(self, keys: Sequence[str]) -> str | None:
        """Name the key whose type isn't the one that its name says, for the message of an error."""
        expected = {"entry": "hash", "open": "zset", "beats": "zset", "history": "list"}
        for key in keys:
            kind = key.removeprefix(self.settings.key_prefix).split(":")
            wanted = expected.get(kind[1] if kind[0].startswith("{") else kind[0], "string")
            (found,), _ = self._send([("TYPE", key)])
            if found not in ("none", wanted):
                return (
                    f"the key {key!r} holds a {found}, expected a {wanted}: delete it, or change once_beat_key_prefix"
                )
        return None


def _unavailable(error: Exception) -> StoreUnavailableError:
    # The text of redis-py's errors names host and port, never the password.
    return StoreUnavailableError(f"Redis: {type(error).__name__}: {error}")


def newer(key: str, version: object) -> NewerVersionError:
    """The error for a key of a newer protocol."""
    return NewerVersionError(f"{key} was written by version {version} of the protocol, this is 1; upgrade this process")
