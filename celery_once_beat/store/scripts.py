"""Each verb: its keys and arguments by name, whether its write waits for replicas, and how its reply is read.

A server's script is built from this table, ``lua/``, and what features add. The header of a verb's file describes it,
and every reply. Its lines ``-- include:`` name its pieces, which may include others; ``-- hooks:`` name what features
may add, see ``celery_once_beat.features``. Each piece stands in the script once, where it is named first: behind the
common case, if only others need it. Keys, arguments and the constants below are Lua locals in capitals.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Generic, TypeVar

from celery_once_beat.features import FEATURES, hooks, parts
from celery_once_beat.options import ROWS
from celery_once_beat.outcomes import ENDED_BY_RULE, FAILED_AS, NOT_LATE
from celery_once_beat.settings import BEAT_TTL, Settings
from celery_once_beat.windows import WindowKey, format_instant

from . import codec
from .codec import encode, pack_words, unpack
from .keys import VERSION
from .protocol import MESSAGES, STATES

T = TypeVar("T")


class _kept(Generic[T]):  # noqa: N801  # read as a decorator
    """A property that is found once.

    Not functools' cached_property, which takes a lock up to Python 3.11: a child that is forked while another thread
    holds it would wait for ever.
    """

    def __init__(self, find: Callable[[Any], T]) -> None:
        self._find = find
        self.__doc__ = find.__doc__

    def __get__(self, instance: Any, _: type | None = None) -> T:
        found = vars(instance)[self._find.__name__] = self._find(instance)
        return found


@dataclass(frozen=True)
class Kind:
    """How an argument is written, and read by Lua. None is written as '': a number that is nil there, or no text."""

    write: Callable[[Any], object]
    read: str = "tonumber(%s)"


_KINDS = {
    "": Kind(str, "%s"),
    "number": Kind(int),
    "flag": Kind(int, "%s == '1'"),
    # Seconds; ms in Lua.
    "span": Kind(codec.ms),
    # Seconds; in Lua the text of its ms: commands and sums take it as it is, comparisons don't.
    "life": Kind(codec.ms, "%s"),
    # An instant; server ms in Lua.
    "time": Kind(codec.epoch_ms),
    # An instant; its canonical text in Lua, whose order is that of time.
    "instant": Kind(format_instant, "%s"),
    # Texts without blanks; in Lua one text, separated by blanks.
    "words": Kind(" ".join, "%s"),
}


@dataclass(slots=True)
class Request(Generic[T]):
    """One verb as it is sent; or a plain command, of no verb."""

    packed: bytes
    #: By which a cluster's client knows the node.
    key: str
    verb: Verb[T] | None

    @property
    def keys(self) -> list[str]:
        """Its keys, or that of a plain command: only errors name them, so they are read from the command."""
        words = unpack(self.packed)
        return words[1:2] if self.verb is None else words[3 : 3 + int(words[2])]


@dataclass(frozen=True, eq=False)
class Verb(Generic[T]):
    """A verb of ``lua/``."""

    name: str
    keys: str
    #: Names, each with its kind behind a colon.
    takes: str
    read: Callable[[list[Any]], T]
    #: Its answer counts once ``wait_replicas`` replicas have what it wrote.
    waits: bool = False
    #: The name of further keys: in Lua a table.
    more_keys: str = ""
    #: The feature whose verb it is; '': the core's.
    feature: str = ""

    @_kept
    def source(self) -> Source:
        """The Lua that it is made of."""
        return Source(f"features/{self.feature}/lua/{self.name}" if self.feature else f"store/lua/{self.name}")

    @_kept
    def kinds(self) -> dict[str, str]:
        """The kind of each argument: of IN_HEAD, then the verb's own, then what its pieces and hooks take."""
        words = (word.partition(":") for word in [*self.takes.split(), *self.source.takes])
        kinds = {name: kind for name, _, kind in words}
        return {name: kinds[name] for name in sorted(kinds, key=lambda name: name not in IN_HEAD)}

    @_kept
    def _own(self) -> set[str]:
        return {word.partition(":")[0] for word in self.takes.split()} - IN_HEAD

    @_kept
    def script(self) -> str:
        """The script that the server gets."""
        code = "\n".join(text for _, text in self.source.parts)
        given = {name: f"KEYS[{place}]" for place, name in enumerate(self.key_names, 1)}
        for place, (name, kind) in enumerate(self.kinds.items(), 1):
            given[name] = _KINDS[kind].read % f"ARGV[{place}]"
        if self.more_keys:
            given[self.more_keys] = f"{{select({len(self.key_names) + 1}, unpack(KEYS))}}"
        constants = _CONSTANTS | self.source.constants
        for more in hooks("store", "CONSTANTS"):
            constants |= more
        used = set(re.findall(r"\b[A-Z_]+\b", code))
        given |= {name: value for name, value in constants.items() if name in used}
        declared = [f"local {name.upper()} = {value}" for name, value in given.items()]
        return "\n".join([*declared, code])

    @_kept
    def sha(self) -> str:
        """The hash by which the server knows the script."""
        return hashlib.sha1(self.script.encode(), usedforsecurity=False).hexdigest()

    def request(self, keys: Mapping[str, str], more_keys: Sequence[str] = (), **arguments: Any) -> Request[T]:
        """Return the request with these arguments; of ``keys`` it takes those that it has.

        Those that hooks take may be left out: they are their feature's default then, or ''.
        """
        tail = self.tail(arguments)
        named = [*map(keys.__getitem__, self.key_names), *more_keys]
        return Request(encode(self.head(named, {}) + tail), named[0], self)

    def head(self, keys: Sequence[str], given: Mapping[str, Any]) -> str:
        """Write the command up to those arguments that aren't IN_HEAD; ``given`` has those that are."""
        fixed = [_KINDS[kind].write(given[name]) for name, kind in self.kinds.items() if name in IN_HEAD]
        count = 3 + len(keys) + len(self.kinds)
        return f"*{count}\r\n{pack_words(['EVALSHA', self.sha, len(keys), *keys, *fixed])}"

    def tail(self, arguments: Mapping[str, Any]) -> str:
        """Write the other arguments, which follow the :meth:`head`."""
        if not self._own <= arguments.keys() <= self.rest.keys():
            raise TypeError(f"{self.name}: found the arguments {[*arguments]}, expected {[*self.rest]}")
        words = []
        for name, (write, default) in self.rest.items():
            value = arguments.get(name, default)
            words.append("" if value is None else write(value))
        return pack_words(words)

    @_kept
    def rest(self) -> dict[str, tuple[Callable[[Any], object], object]]:
        """How each argument is written that isn't of IN_HEAD, and what it is where it is left out."""
        defaults = {name: value for each in hooks("store", "DEFAULTS") for name, value in each.items()}
        kinds = ((name, kind) for name, kind in self.kinds.items() if name not in IN_HEAD)
        return {name: (_KINDS[kind].write, defaults.get(name)) for name, kind in kinds}

    @_kept
    def key_names(self) -> list[str]:
        """The names of its keys, in their order: its own, then those of its pieces and hooks."""
        return [*dict.fromkeys([*self.keys.split(), *self.source.keys])]


def encode_options(options: Mapping[str, Any]) -> str:
    """Write an entry's options for ``load``: names and values, ``-`` for None."""
    written = ((name, options[name], _KINDS[row.load].write) for name, row in ROWS.items() if row.load is not None)
    return " ".join(f"{name} {'-' if value is None else write(value)}" for name, value, write in written)


def _table(names: Iterable[str]) -> str:
    return f"{{{', '.join(f'{name} = true' for name in sorted(names))}}}"


_CONSTANTS = {
    "VERSION": f"'{VERSION}'",
    "BEAT_TTL": str(codec.ms(BEAT_TTL)),
    "STATES": _table(STATES),
    "MESSAGES": _table(MESSAGES),
    "FAILED_AS": _table(FAILED_AS),
    "BY_RULE": _table(ENDED_BY_RULE),
    "NOT_LATE": _table(NOT_LATE),
    # How long (ms) others wait for a window that died, or whose message is lost. By then a beat has taken it.
    "PATIENCE": "60000",
    # A window that waits is overdue after this time (ms) even if nobody makes it overdue: the store lost a key.
    "LONGEST_WAIT": "600000",
}
#: Where the Lua is: the package.
_LUA = files(__package__.partition(".")[0])
_HEADER = re.compile(r"-- (include|hooks|keys|takes|fields|numbers): (.*)")


class Source:
    """The Lua of one script: its file, behind the pieces and hooks that it needs."""

    def __init__(self, file: str) -> None:
        #: Each with the name of its file or hook, in their order.
        self.parts: list[tuple[str, str]] = []
        self._names: set[str] = set()
        self.keys: list[str] = []
        self.takes: list[str] = []
        #: Fields of the entry's hash that it reads; those that are numbers are in ``numbers`` too.
        self.fields: list[str] = []
        self.numbers: list[str] = []
        self._add(file)

    @property
    def constants(self) -> dict[str, str]:
        """The fields that it reads, each once, and a function that makes the entry of their values."""
        fields = [*dict.fromkeys(self.fields)]
        values = {"cursor": "hash[2]", "account": "hash[3]"}
        for place, name in enumerate(fields, 4):
            values[name] = f"number('{name}', hash[{place}])" if name in self.numbers else f"hash[{place}]"
        named = ", ".join(f"['{name}'] = {value}" for name, value in values.items())
        return {
            "FIELDS": f"{{{', '.join(map(repr, fields))}}}",
            "NAMED": f"function(number, hash) return {{{named}}} end",
        }

    def _add(self, file: str) -> None:
        """Add a file: what each line of its header names, and what comes behind that."""
        written: list[str] = []
        for line in (_LUA / f"{file}.lua").read_text().splitlines():
            header = _HEADER.fullmatch(line)
            if header and header[1] in ("include", "hooks") and written:
                self.parts.append((file, "\n".join(written)))
                written = []
            if header:
                for name in header[2].split(", "):
                    self._add_named(header[1], name, folder=file.rpartition("/")[0])
            elif code := re.sub(r"\s*--.*", "", line):
                written.append(code)
        self.parts.append((file, "\n".join(written)))

    def _add_named(self, kind: str, name: str, folder: str) -> None:
        """Add what a header names; a piece is its folder's, else the core's."""
        if kind == "include":
            own = f"{folder}/{name}"
            piece = own if (_LUA / f"{own}.lua").is_file() else f"store/lua/pieces/{name}"
            if piece not in self._names:
                self._names.add(piece)
                self._add(piece)
        elif kind == "hooks":
            self._add_hook(name)
        else:
            self.fields += [name] if kind == "numbers" else []
            getattr(self, kind).append(name)

    def _add_hook(self, hook: str) -> None:
        """Add a function that calls each feature's: all of them at a change, ``on_…``, else until one answers."""
        if hook in self._names:
            return
        self._names.add(hook)
        asked = []
        for feature in FEATURES:
            file = f"features/{feature}/lua/{hook}"
            if (_LUA / f"{file}.lua").is_file():
                if file not in self._names:
                    self._names.add(file)
                    self._add(file)
                asked.append(f"{feature}_{hook}")
        if len(asked) == 1:
            self.parts.append((hook, f"local {hook} = {asked[0]}"))
            return
        either = "{0}(...) or reply" if hook.startswith("on_") else "reply or {0}(...)"
        lines = ["  local reply", *(f"  reply = {either.format(name)}" for name in asked), "  return reply"]
        self.parts.append((hook, "\n".join([f"local function {hook}(...)", *lines, "end"])))


# -- the verbs ------------------------------------------------------------------------------------------------------
# An argument is a text unless a kind stands behind it.

#: Arguments that stand first, and are written once for many windows: they are of the settings, or of the window's name.
IN_HEAD = frozenset(("start", "member", "marker_ttl", "history_size", "retention", "publish_timeout", "claim_lease"))
#: The keys of a verb that may end a window.
OF_WINDOW = "entry open history run"
#: The window: the text of its start, and its member of the open zset, <entry>@<start>.
WINDOW = "start member"
#: For how long a window's markers live, and how many records of windows that ended an entry has.
ENDING = f"{WINDOW} marker_ttl:life history_size:number retention:life starts_at:time"
#: Whose execution; ``fence`` is its begin's, 0 where the caller doesn't know it: then only the run key counts.
#: ``tracked`` is from the message's headers.
OWNED = "owner fence tracked:flag"
#: The message's retry number, and whether its task id is the one by which the schedule sends the window. A window that
#: was ordered has an id of its own: this is then a copy of an earlier message.
MESSAGE = "retry:number by_schedule:flag"

LOAD = Verb(
    "load",
    "entry entries beats row_key",
    "beat fingerprint defined loaded_at:number ttl:span go_back:span options "
    "known:instant counted_from:instant counts_from:instant absent_at:instant row row_at:instant pause",
    codec.read_load,
    waits=True,
    more_keys="definition",
)
UNLOAD = Verb("unload", "entry entries beats row_key", "beat fingerprint row", codec.read_word)
SPENT = Verb("spent", "entry", "since:instant edited:instant disabled:flag from_now:instant", codec.read_spent)
#: ``words``: who does it and why, JSON.
PAUSE = Verb("pause", "entry", "words paused:flag only_still:flag", codec.read_pause, waits=True)
#: ``missed_count`` windows are passed over; ``missed`` are the starts of the newest, ``missed_runs`` their run keys.
CLAIM = Verb(
    "claim",
    "entry entries open history run claim",
    f"{ENDING} from_cursor:instant beat fingerprint mode claim_lease:span expires:span "
    "missed_count:number missed:words owed_until:instant",
    codec.read_claim,
    waits=True,
    more_keys="missed_runs",
)
CONFIRM = Verb(
    "confirm",
    OF_WINDOW,
    f"{ENDING} revision:number published queue start_timeout:span publish_timeout:span claim_lease:span",
    codec.read_confirm,
)
TAKE = Verb("take", OF_WINDOW, f"{ENDING} beat fingerprint consumed claim_lease:span", codec.read_take, waits=True)
POSTPONE = Verb("postpone", f"{OF_WINDOW} beats", f"{ENDING} delay:span beat why", codec.read_word)
READ = Verb("read", "", "commands:words most:number", codec.read_held, more_keys="held")
SWEEP = Verb("sweep", "beats open", "beat until:time most:number skip:number", codec.read_sweep)
# Waited for, so that a beat that wins nothing learns that replicas are back.
HEARTBEAT = Verb("heartbeat", "beats reports", "beat lives:flag report", codec.read_heartbeat, waits=True)
CONSUME = Verb("consume", "workers", "worker broker queues:words", codec.read_word)
BEGIN = Verb(
    "begin",
    f"{OF_WINDOW} refused",
    f"{ENDING} owner lease:life {MESSAGE} tracked:flag",
    codec.read_begin,
    waits=True,
)
RENEW = Verb("renew", "entry open run", f"{WINDOW} {OWNED} lease:life", codec.read_renew, waits=True)
HAND_OVER = Verb(
    "hand_over",
    "entry open run",
    f"{WINDOW} retention:life {OWNED} retry:number delay:span start_timeout:span",
    codec.read_hand_over,
    waits=True,
)
FINISH = Verb(
    "finish",
    f"{OF_WINDOW} failures",
    f"{ENDING} {OWNED} outcome again:span failure returned:flag",
    codec.read_finish,
    waits=True,
)
CLOSE = Verb(
    "close",
    OF_WINDOW,
    f"{ENDING} owner outcome {MESSAGE} expires:time publish_timeout:span",
    codec.read_close,
)


def special(settings: Settings, window: WindowKey) -> dict[str, Any]:
    """Return arguments that are special to a window that no entry has; see ``celery_once_beat.features``."""
    found = (asked(settings, window) for asked in hooks("store", "special"))
    return next((each for each in found if each is not None), {})


def make_of_executions() -> list[str]:
    """Make the scripts that executions ask for, and return their hashes.

    Together they take 60 ms of CPU. A worker makes them before it forks: else each child makes them anew, while its
    first lease runs. Where a child gets little CPU, that may outlast the lease.
    """
    of_features = [verb for verbs in hooks("store", "OF_EXECUTIONS") for verb in verbs]
    return [verb.sha for verb in (BEGIN, RENEW, HAND_OVER, FINISH, *of_features)]


def all_verbs() -> list[Verb[Any]]:
    """Return every verb, those of features too."""
    modules = [sys.modules[__name__], *parts("store")]
    return [value for module in modules for value in vars(module).values() if isinstance(value, Verb)]
