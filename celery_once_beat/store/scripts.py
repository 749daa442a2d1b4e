"""Each verb: its keys and arguments by name, whether its write waits for replicas, and how its reply is read.

From this the script is made that a server gets: a local for each key and argument, in capitals, then those pieces of
``lua/pieces/`` that the verb uses, then the verb of ``lua/``, whose header says what it does and answers.

A piece is a top-level ``local``, a function or values, with the statements up to the next one. A script has the pieces
that its verb names, and those that they name in turn: each call makes every function of its script anew.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any, Generic, TypeVar

from celery_once_beat.outcomes import LIMITS
from celery_once_beat.windows import format_instant

from . import codec
from .keys import VERSION
from .nodes import Command

__all__ = ("Call", "Verb")

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Kind:
    """How an argument is written, and read by Lua. None is written as '': a number that is nil there, or no text."""

    write: Callable[[Any], object]
    read: str = "tonumber(%s)"


TEXT = Kind(str, "%s")
NUMBER = Kind(int)
FLAG = Kind(int, "%s == '1'")
#: Seconds; ms in Lua.
SPAN = Kind(codec.ms)
#: An instant; server ms in Lua.
TIME = Kind(codec.epoch_ms)
#: An instant; its canonical text in Lua, whose order is that of time.
INSTANT = Kind(format_instant, "%s")
#: Texts without blanks; in Lua one text, separated by blanks.
WORDS = Kind(" ".join, "%s")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One verb as it is sent."""

    verb: Verb[Any]
    keys: Sequence[str]
    #: As :class:`Kind` writes them.
    arguments: Sequence[object]
    read: Callable[[list[Any]], T]

    def command(self) -> Command:
        """As a client sends it."""
        return ("EVALSHA", self.verb.sha, len(self.keys), *self.keys, *self.arguments)


@dataclass(frozen=True, eq=False)
class Verb(Generic[T]):
    """A verb of ``lua/``."""

    name: str
    keys: str
    arguments: dict[str, Kind]
    read: Callable[[list[Any]], T]
    #: With ``wait_replicas`` its answer counts once so many have what it wrote.
    waits: bool = False
    #: The name of further keys: in Lua a table.
    more_keys: str = ""

    @cached_property
    def script(self) -> str:
        """What the server gets."""
        keys = self.keys.split()
        locals_ = [f"local {name.upper()} = KEYS[{place}]" for place, name in enumerate(keys, 1)]
        if self.more_keys:
            more = self.more_keys.upper()
            locals_.append(f"local {more} = {{}}")
            locals_.append(f"for place = {len(keys) + 1}, #KEYS do {more}[#{more} + 1] = KEYS[place] end")
        for place, (name, kind) in enumerate(self.arguments.items(), 1):
            locals_.append(f"local {name.upper()} = {kind.read % f'ARGV[{place}]'}")
        body = _code((files(__package__) / "lua" / f"{self.name}.lua").read_text())
        return "\n".join([*locals_, *_pieces_for(body), body])

    @cached_property
    def sha(self) -> str:
        """By which the server knows the script."""
        return hashlib.sha1(self.script.encode(), usedforsecurity=False).hexdigest()

    def call(self, keys: Mapping[str, str], more_keys: Sequence[str] = (), **arguments: Any) -> Call[T]:
        """Return the call with these arguments; of ``keys`` it takes those that it has."""
        if arguments.keys() != self.arguments.keys():
            raise TypeError(f"{self.name}: found the arguments {[*arguments]}, expected {[*self.arguments]}")
        written = [
            "" if arguments[name] is None else kind.write(arguments[name]) for name, kind in self.arguments.items()
        ]
        return Call(self, [*(keys[name] for name in self.keys.split()), *more_keys], written, self.read)

    def read_by(self, read: Callable[[list[Any]], U]) -> Verb[U]:
        """Return the same verb for callers that read its replies otherwise."""
        return replace(self, read=read)  # type: ignore[arg-type, return-value]


def _code(text: str) -> str:
    """Lua without its comments and empty lines."""
    lines = (re.sub(r"\s*--.*", "", line) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _read_pieces() -> dict[str, str]:
    """Return the pieces by the names that they declare."""
    pieces = {
        "VERSION": f"local VERSION = {VERSION}",
        "LIMITS": f"local LIMITS = {{{', '.join(f'{outcome} = true' for outcome in sorted(LIMITS))}}}",
    }
    for file in (files(__package__) / "lua" / "pieces").iterdir():
        for piece in re.split(r"\n(?=local )", _code(file.read_text())):
            declared = re.match(r"local (?:function )?([\w, ]+)", piece)
            assert declared, f"{file.name}: {piece:.40}"
            pieces.update(dict.fromkeys(re.findall(r"\w+", declared[1]), piece))
    return pieces


_PIECES = _read_pieces()


def _pieces_for(body: str) -> list[str]:
    """Return the pieces that ``body`` uses, each behind those that it uses itself."""
    found: list[str] = []
    met: set[str] = set()

    def find(text: str) -> None:
        for name in re.findall(r"(?<![.\w])[A-Za-z]\w*", re.sub(r"'[^']*'", "", text)):
            piece = _PIECES.get(name)
            if piece is not None and piece not in met:
                met.add(piece)
                find(piece)
                found.append(piece)

    find(body)
    return found


# -- the verbs ------------------------------------------------------------------------------------------------------

#: The window: its start, and its member of the open zset, <entry>@<start>.
_WINDOW = {"start": INSTANT, "member": TEXT}
#: What a window that ends leaves behind: how long its markers live, and how many records its entry has.
_ENDING = {**_WINDOW, "marker_ttl": SPAN, "retention": SPAN, "history_size": NUMBER}
#: Who lives, as of ``asked_at`` (None: now), as far as the caller knows it and it may matter.
_WHO_LIVES = {"asked_at": TIME, "living": WORDS, "gone": WORDS}
#: Whose execution; ``fence`` is its begin's, 0 where the caller doesn't know it: then only the run key counts.
_OWNED = {"owner": TEXT, "fence": TEXT, "tracked": FLAG}
#: With ``now_only`` the verb counts while the server's time lies in the window; ``ends_at`` None: it has no end.
_NOW_ONLY = {"now_only": FLAG, "starts_at": TIME, "ends_at": TIME}

LOAD = Verb(
    "load",
    "entry",
    {
        "beat": TEXT,
        "fingerprint": TEXT,
        "loaded_at": NUMBER,
        "ttl": SPAN,
        "go_back": SPAN,
        "max_attempts": NUMBER,
        "recover": NUMBER,
        "grace": SPAN,
        "again": SPAN,
        "overlap": TEXT,
        "known": INSTANT,
        "counts_from": INSTANT,
        "absent_at": INSTANT,
        **_WHO_LIVES,
    },
    codec.read_load,
)
UNLOAD = Verb("unload", "entry", {"beat": TEXT, "fingerprint": TEXT, **_WHO_LIVES}, codec.read_word)
SPENT = Verb(
    "spent",
    "entry",
    {"since": INSTANT, "edited": INSTANT, "disabled": FLAG, "from_now": INSTANT},
    codec.read_spent,
)
PAUSE = Verb("pause", "entry", {"paused": FLAG}, codec.read_word)
CLAIM = Verb(
    "claim",
    "entry open history run claim",
    {
        **_WINDOW,
        "marker_ttl": SPAN,
        "history_size": NUMBER,
        "from_cursor": INSTANT,  # the cursor that the beat knows
        "beat": TEXT,
        "fingerprint": TEXT,
        "mode": TEXT,
        "publish_timeout": SPAN,
        "expires": SPAN,
        "missed_count": NUMBER,  # of windows that are passed over, also those that aren't listed
        "missed": WORDS,  # the starts of the newest of them, whose run keys are missed_runs
    },
    codec.read_claim,
    waits=True,
    more_keys="missed_runs",
)
CONFIRM = Verb(
    "confirm",
    "entry open history run",
    {**_ENDING, "turn": NUMBER, "published": NUMBER, "start_timeout": SPAN, "publish_timeout": SPAN},
    codec.read_confirm,
)
TAKE = Verb(
    "take",
    "entry open history run",
    {**_ENDING, "beat": TEXT, "fingerprint": TEXT, "publish_timeout": SPAN, "starts_at": TIME},
    codec.read_take,
    waits=True,
)
POSTPONE = Verb(
    "postpone",
    "entry open history run",
    {**_ENDING, "delay": SPAN, "beat": TEXT, "why": TEXT, **_WHO_LIVES},
    codec.read_word,
)
BACKFILL = Verb(
    "backfill",
    "entry open history run claim",
    {**_ENDING, "beat": TEXT, "publish_timeout": SPAN},
    codec.read_backfill,
    waits=True,
)
# Waited for, so that a beat that wins nothing learns that replicas are back.
HEARTBEAT = Verb(
    "heartbeat",
    "beats reports apps",
    {"beat": TEXT, "beat_ttl": SPAN, "what": TEXT, "report": TEXT, "told": TEXT},
    codec.read_heartbeat,
    waits=True,
)
BEGIN = Verb(
    "begin",
    "entry open history run refused",
    {
        **_ENDING,
        "owner": TEXT,
        "lease": SPAN,
        "retry": NUMBER,  # the message's retry number
        "tracked": FLAG,  # as the message's headers say
        "keyed": FLAG,  # a window of a user's key: open nowhere, and of its entry there is the fence alone
        "overlap": TEXT,  # as the task says
        **_NOW_ONLY,
    },
    codec.read_begin,
    waits=True,
)
BEGIN_NOW = BEGIN.read_by(codec.read_begin_now)
RENEW = Verb("renew", "entry open run", {**_WINDOW, **_OWNED, "lease": SPAN}, codec.read_renew)
HAND_OVER = Verb(
    "hand_over",
    "entry open run",
    {**_WINDOW, "retention": SPAN, **_OWNED, "retry": NUMBER, "delay": SPAN, "start_timeout": SPAN},
    codec.read_hand_over,
    waits=True,
)
FINISH = Verb(
    "finish",
    "entry open history run",
    {**_ENDING, **_OWNED, "outcome": TEXT, "again": SPAN, "keyed": FLAG},
    codec.read_finish,
    waits=True,
)
CLOSE = Verb(
    "close",
    "entry open history run",
    {**_ENDING, "owner": TEXT, "outcome": TEXT, "retry": NUMBER, "publish_timeout": SPAN, "by_result": FLAG},
    codec.read_close,
)
DISCARDED = CLOSE.read_by(codec.read_discarded)
KEY_CLAIM = Verb(
    "key_claim", "claim run", {"claimant": TEXT, "publish_timeout": SPAN, **_NOW_ONLY}, codec.read_key_claim
)
KEY_CONFIRM = Verb("key_confirm", "claim", {"claimant": TEXT, "published": FLAG, "remembered": SPAN}, codec.read_word)
