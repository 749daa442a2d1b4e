"""The round trip: scripts and commands travel in one pipeline, and come back as answers or as errors of ours.

An error that concerns one key stands in the place of its answer; what concerns them all is raised. Scripts are sent
by their hash, and loaded where the server doesn't know them: after a restart, a failover, a SCRIPT FLUSH.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Generic, TypeVar

from redis.exceptions import NoScriptError, ResponseError
from redis.sentinel import MasterNotFoundError

from celery_once_beat.errors import (
    NewerVersionError,
    OnceError,
    StoreDataError,
    StoreUnavailableError,
    UncertainWriteError,
)
from celery_once_beat.settings import Settings

from . import model as r
from .clients import connect
from .nodes import UNREACHABLE, Command, Nodes, Reply

__all__ = ("Call", "RoundTrip", "newer")

T = TypeVar("T")

#: How long WAIT waits for replicas, milliseconds.
_WAIT_MS = 1000
#: How the text of an error begins that a script itself made, not a command in it.
_SCRIPT_FAILED = ("user_script:", "Error running script")
#: What a command in it said of the server's state: Redis 6.2 hides its code behind the script's.
_OF_THE_SERVER = re.compile(r"user_script: \d+: (-(?!ERR )[A-Z]+ |The user executing the script can't)")
_WHERE = re.compile(r" script: [^:]*@user_script:\d+\.$")
#: What a command says of a value that isn't what it works on: of the key, not of the server's state.
_BAD_VALUE = ("value is not an integer", "value is not a valid float", "would overflow", "invalid expire time")

_OF_A_WINDOW = ("claim", "confirm", "take", "begin", "renew", "hand_over", "finish", "close", "backfill", "postpone")
_ABOUT_LOADERS = ("load", "unload", "postpone")
_ALONE = ("load", "unload", "spent", "heartbeat", "pause", "key_claim", "key_confirm")
#: Answers on which somebody acts, and their verbs; with wait_replicas they must not be undone by a failover. Each
#: answer has a write behind it, also where a verb is sent again: WAIT waits for the writes of its connection alone. A
#: heartbeat is waited for so that a beat that wins nothing learns that replicas are back.
_ACTED_ON = (r.Claimed, r.Taken, r.Begun, r.Renewed, r.HandedOver, r.Finished, r.Again)
_WAITED_FOR = frozenset({"claim", "take", "begin", "renew", "hand_over", "finish", "backfill", "heartbeat"})


def _read_scripts() -> dict[str, str]:
    folder = files(__package__) / "lua"
    prelude = (folder / "prelude.lua").read_text()
    loaders = (folder / "loaders.lua").read_text()
    scripts = {verb: prelude + (folder / f"{verb}.lua").read_text() for verb in _OF_A_WINDOW}
    scripts.update({verb: (folder / f"{verb}.lua").read_text() for verb in _ALONE})
    for verb in _ABOUT_LOADERS:
        before = prelude if verb in _OF_A_WINDOW else ""
        scripts[verb] = before + loaders + scripts[verb].removeprefix(before)
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

    def command(self) -> Command:
        """As a client sends it."""
        return ("EVALSHA", _SHAS[self.verb], len(self.keys), *self.keys, *self.arguments)


class RoundTrip:
    """Sends to the Redis of ``settings``; connects at the first use."""

    def __init__(self, settings: Settings, client: Any = None) -> None:
        self.settings = settings
        self._given = client
        self._lazy: Any = None

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

    def run_with(self, calls: Sequence[Call[T]], commands: Sequence[Command]) -> tuple[list[T | OnceError], list[Any]]:
        """As :meth:`run`, with plain commands (name, key, …) in the same pipeline; their replies come second."""
        waited_for = any(call.verb in _WAITED_FOR for call in calls)
        replies = self._send([*(call.command() for call in calls), *commands], wait=waited_for)
        missing = [position for position, reply in enumerate(replies) if isinstance(reply.value, NoScriptError)]
        if missing:
            scripts = {calls[position].verb for position in missing}
            again = self._send([calls[position].command() for position in missing], wait=waited_for, scripts=scripts)
            for position, reply in zip(missing, again, strict=True):
                replies[position] = reply
        certain = not any(self._doubt("", reply.last) for reply in replies)
        answers: list[T | OnceError] = []
        for call, reply in zip(calls, replies, strict=False):
            answer = self._read(call, reply, certain=certain)
            answers.append(answer)
        plain = [
            self._error(reply.value, [command[1]]) if isinstance(reply.value, Exception) else reply.value
            for command, reply in zip(commands, replies[len(calls) :], strict=True)
        ]
        return answers, plain

    def clocks(self) -> dict[str, float]:
        """How many seconds the clock of each server that answers, replicas too, is ahead of this machine's."""
        try:
            return Nodes(self._client).clocks()
        except UNREACHABLE as exc:  # a cluster's client asks for its nodes when it is made
            raise _unavailable(exc) from exc

    def _send(self, commands: Sequence[Command], *, wait: bool = False, scripts: Iterable[str] = ()) -> list[Reply]:
        """Send each to the server that has its key; with ``wait`` and wait_replicas a reply's ``last`` is WAIT's.

        ``scripts`` go before them. Raises StoreUnavailableError if no server answered.
        """
        replicas = self.settings.wait_replicas
        try:
            return Nodes(self._client).send(
                commands,
                before=[("SCRIPT LOAD", _SCRIPTS[verb]) for verb in sorted(scripts)],
                last=("WAIT", replicas, _WAIT_MS) if wait and replicas else None,
            )
        except OnceError:
            raise
        except UNREACHABLE as exc:  # also a cluster's client, which asks for its nodes when it is made
            raise _unavailable(exc) from exc
        except BaseException:
            # Raised into it, a soft time limit say: a connection may wait for a reply that nobody reads, and the next
            # command would take it for its own. Not closed: other threads may use others of the same pool.
            self._lazy = None
            raise

    def _read(self, call: Call[T], reply: Reply, *, certain: bool) -> T | OnceError:
        """Read one reply; ``certain`` says whether all servers that were asked have their replicas."""
        value = reply.value
        if isinstance(value, Exception):
            return self._error(value, call.keys)
        if isinstance(value, list) and value and value[0] == "newer":
            return newer(call.keys[0], value[1])
        try:
            result = call.read(value)
        except (ValueError, IndexError, TypeError) as exc:
            return StoreDataError(f"{call.keys[0]!r}: {call.verb} answered {value!r:.120}: {exc}")
        if isinstance(result, r.Heartbeat):
            return replace(result, certain=certain)
        doubt = self._doubt(call.verb, reply.last) if isinstance(result, _ACTED_ON) else None
        return doubt or result

    def _doubt(self, verb: str, acknowledged: Any) -> UncertainWriteError | None:
        """Return what there is against acting on a write; ``acknowledged`` is what WAIT said, None: nothing."""
        replicas = self.settings.wait_replicas
        if isinstance(acknowledged, Exception):  # this user may not send it, say
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
        elif "BADDATA" in text:
            # Around what a script says the server puts where in the script that was.
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
        """Name the key whose type isn't the one that its name says, for the message of an error."""
        expected = {
            "entry": "hash",
            "open": "zset",
            "history": "list",
            "refused": "hash",
            "beats": "zset",
            "reports": "hash",
            "apps": "hash",
        }
        for key in keys:
            kind = re.sub(r"^(key:)?\{[^}]*\}:", "", key.removeprefix(self.settings.key_prefix)).partition(":")[0]
            wanted = expected.get(kind, "string")
            found = self._send([("TYPE", key)])[0].value
            if found not in ("none", wanted):
                return (
                    f"the key {key!r} holds a {found}, expected a {wanted}: delete it, or change once_beat_key_prefix"
                )
        return None


def _unavailable(error: Exception) -> StoreUnavailableError:
    # The text of redis-py's errors names host and port, never the password; but this one shows the sentinels' clients,
    # of which some of its releases print all options.
    text = str(error).partition(" : ")[0] if isinstance(error, MasterNotFoundError) else str(error)
    return StoreUnavailableError(f"Redis: {type(error).__name__}: {text}")


def newer(key: str, version: object) -> NewerVersionError:
    """The error for a key of a newer protocol."""
    return NewerVersionError(
        f"{key!r} was written by version {version!s:.20} of the protocol, this is 1; upgrade this process"
    )
