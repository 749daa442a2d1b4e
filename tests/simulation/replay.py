"""Step the model along what a real server is asked, and name the first reply that it doesn't allow.

Times are ms of the server, some of them known only to lie between two. Where that decides, both are tried, and so is
what the model leaves open (``Model.may``): a reply is allowed if one way explains it. What is known of each entry is
therefore a set of states, mostly one.

Of definitions the model knows little: that an entry's cursor never goes back, and which one is in force. Verbs that it
doesn't know are counted, and change nothing. Nor does it know buffers, limits, or failures that pause an entry: from
there on the calls on that entry are only counted.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simulation.model import ANOTHER_RUNS, Args, Entry, Model, Window, pack

from celery_once_beat.store import scripts

#: What was asked of a real server and what it answered, in the server's order. A line has the ``verb``, the ``entry``
#: (the name of its hash), the ``start`` of its window ('' if it has none), the ``args`` under their names in
#: ``store/scripts.py``, the ``reply`` as the script gave it, and ``at``, server ms. One with a ``command`` is a plain
#: command that writes.
Line = dict[str, Any]

_VERBS = {verb.sha: verb for verb in scripts.all_verbs()}
#: Commands that write what verbs look at.
_WRITE = {"DEL", "UNLINK", "RESTORE", "SET", "HSET", "HDEL", "ZADD", "ZREM", "PEXPIRE", "EXPIRE"}


def _whole(text: str) -> int | None:
    return int(text) if text else None


#: How an argument is read back, by its kind in ``store/scripts.py``.
_READ: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("number", "span", "life", "time"), _whole),
    "flag": lambda text: text == "1",
    "words": str.split,
}


def line_of(words: Sequence[str], reply: Any, at: int) -> Line | None:
    """Return the line of one command; None if it says nothing of windows."""
    if words[0] in _WRITE:
        return {"command": words[0], "keys": words[1:2], "at": at}
    if words[0] != "EVALSHA":
        return None
    verb, count = _VERBS[words[1]], int(words[2])
    keys, args = words[3 : 3 + count], words[3 + count :]
    given = {name: _READ.get(kind, str)(text) for (name, kind), text in zip(verb.kinds.items(), args, strict=True)}
    entry = dict(zip(verb.key_names, keys, strict=False)).get("entry", "")
    start = given.pop("start", "")
    given.pop("member", None)
    answer = {"error": str(reply)} if isinstance(reply, Exception) else reply
    return {"verb": verb.name, "entry": entry, "start": start, "args": given, "reply": answer, "at": at}


def read_requests(data: bytes) -> list[list[str]]:
    """Return the commands of a request, as words."""
    stream, found = io.BytesIO(data), []
    while head := stream.readline():
        sizes = (int(stream.readline()[1:]) for _ in range(int(head[1:])))
        found.append([stream.read(size + 2)[:-2].decode(errors="surrogateescape") for size in sizes])
    return found


#: A marker passes by the clock that the server had when it began with the script: ms by which TIME may differ.
SLACK = 2
_FOREVER = float("inf")
Time = tuple[float, float]
_MOST_STATES = 256
_OF_LIMITS = {"acquire_slot", "renew_slot", "release_slot", "free_slots"}
#: Verbs that change no window, but for what is said of it.
_OF_NO_WINDOW = {"heartbeat", "consume", "sweep", "read", "note", "marks", "spent", "alerts", "alerted", *_OF_LIMITS}
_KEYS_OF_OTHERS = {"key_claim"}
_BEYOND = "calls on entries with a buffer or a limit, or whose failures pause them"


class Server(Model):
    """The model at the times of a line, ``choosing`` where the times, or what it doesn't know, leave that open."""

    MARGIN = 1000
    NEVER = (_FOREVER, _FOREVER)

    now: float = 0
    reply: Any = None
    #: The other windows of the entry.
    others: Callable[[], Iterable[Window]] = tuple

    def ways(self, verb: Callable[[], Any]) -> Iterator[Any]:
        """Call ``verb`` once for each way in which it can go."""
        open_ways: list[list[bool]] = [[]]
        while open_ways:
            self._given = open_ways.pop()
            self._made: list[bool] = []
            yield verb()
            open_ways += [[*self._made[:at], True] for at in range(len(self._given), len(self._made))]

    def may(self, what: str) -> bool:
        if what == ANOTHER_RUNS and not any(w.open and (w.fence or w.ordered) for w in self.others()):
            return False
        at = len(self._made)
        self._made.append(self._given[at] if at < len(self._given) else False)
        return self._made[at]

    def after(self, span: float, since: Any = None) -> Time:
        low, high = _pair(self.now if since is None else since)
        return low + span, high + span

    def passed(self, time: Any) -> bool:
        low, high = _pair(time)
        if self.now >= high + SLACK:
            return True
        if self.now < low - SLACK:
            return False
        return self.may("this time has passed")

    def between(self, least: int, most: int) -> Time:
        return self.now + least, self.now + most

    def new_fence(self, least: int) -> int:
        return int(max(least, self.now))

    def some_time(self) -> Time:
        return -_FOREVER, _FOREVER

    def earlier(self, one: Any, other: Any) -> Time:
        return tuple(map(min, _pair(one), _pair(other)))  # type: ignore[return-value]

    def later(self, one: Any, other: Any) -> Time:
        return tuple(map(max, _pair(one), _pair(other)))  # type: ignore[return-value]

    # -- verbs of an entry ------------------------------------------------------------------------------------

    def load(self, e: Entry, a: Args) -> Any:
        """Whether a beat is superseded depends on who lives: that is taken as it was said."""
        if self.reply[0] != "loaded":
            return self.reply[:1] if self.reply[0] == "superseded" else ("loaded or superseded",)
        _, cursor, news = self.reply
        changed = e.fingerprint != a.fingerprint
        if news == "same" and changed and {e.fingerprint[:4], a.fingerprint[:4]} == {"def:"}:
            return ("loaded", e.cursor, "same")  # it was replaced meanwhile: for what is owed from before it
        if e.cursor is None:
            e.cursor = e.born = cursor
            allowed = "new"
        elif changed:
            allowed = "changed"
        else:
            allowed = "same" if cursor == e.cursor else "back"
        if cursor < e.cursor or (news == "back" and not a.absent_at):
            return ("loaded", f"{e.cursor} or later", allowed)
        options = _options(a.options)
        e.cursor, e.fingerprint, e.max_attempts = cursor, a.fingerprint, options["max_attempts"]
        replaced = a.fingerprint.startswith("def:") and _version(a.fingerprint) < _version(e.defined or "def:0")
        if replaced and self.may("a set has replaced it, before the entry was known"):
            e.fingerprint = e.defined
        e.recover, e.overlap = bool(options["recover"]), options["overlap"] or "-"
        e.grace, e.again = options["grace"], options["retry_failed_after"]
        return ("loaded", cursor, allowed)

    def unload(self, e: Entry, a: Args) -> Any:
        if e.cursor is None:
            return ("unknown",)
        if self.reply == ("unloaded",):
            if e.fingerprint not in {a.fingerprint, "-"}:
                return ("kept",)
            e.fingerprint = "-"
        return self.reply if self.reply[0] in {"unloaded", "kept"} else ("unloaded or kept",)

    def pause(self, e: Entry, a: Args) -> Any:
        if e.cursor is not None:
            e.paused = a.paused
        return self.reply

    def set(self, e: Entry, a: Args) -> Any:
        if self.reply[0] == "done":
            e.defined = f"def:{self.reply[1]}:{a.request}"
        in_force = e.fingerprint == "-" or e.fingerprint.startswith("def:")
        if self.reply[0] == "done" and e.cursor is not None and in_force and not self.may("it was sent before"):
            e.fingerprint = f"def:{self.reply[1]}:{a.request}"
            e.paused = int(self.reply[3]) == 1
            if self.may("it had been deleted, and counts from now"):
                e.cursor = max(e.cursor, self.reply[2])
        return self.reply

    def delete(self, e: Entry, a: Args) -> Any:
        in_force = e.fingerprint.startswith("def:")
        if self.reply[0] == "done" and e.cursor is not None and in_force and not self.may("it was sent before"):
            e.fingerprint, e.paused = f"def:{self.reply[1]}:{a.request}", False
            e.cursor = max(e.cursor, self.reply[2])
        return self.reply


def _version(mark: str) -> int:
    """The version of a definition that was set at run time."""
    return int(mark.split(":")[1])


def _pair(time: Any) -> Time:
    return time if isinstance(time, tuple) else (time, time)


@dataclass
class _Known:
    """What an entry can be like."""

    states: list[tuple[Entry, dict[str, tuple[Any, ...]]]] = field(default_factory=lambda: [(Entry(), {})])
    not_modelled: int = 0
    #: Its windows wait, or its failures pause it.
    beyond: bool = False


@dataclass(frozen=True)
class Refused:
    """A reply that the model doesn't allow."""

    number: int
    line: Line
    allowed: list[Any]
    states: list[Any]
    not_modelled: int

    def __str__(self) -> str:
        after = f", after {self.not_modelled} calls on it that aren't modelled" if self.not_modelled else ""
        states = "\n".join(map(str, self.states[:4]))
        return f"call {self.number}{after}: {self.line}\nthe model allows {self.allowed}\nfrom\n{states}"


class Replay:
    """What the model makes of a history, line by line."""

    def __init__(self) -> None:
        self.server = Server()
        self.calls: Counter[str] = Counter()
        self.not_modelled: Counter[str] = Counter()
        self._known: dict[str, _Known] = {}
        self._saved: dict[str, _Known] = {}
        self._number = 0

    @property
    def histories(self) -> int:
        """Of how many entries it knows something."""
        return len(self._known)

    def step(self, line: Line) -> Refused | None:
        """Go on by one line; returns why it isn't allowed. The entry is then known no more, and begins anew."""
        self._number += 1
        if "command" in line:
            self._command(line)
            return None
        verb, entry = line["verb"], line["entry"]
        if verb in _OF_NO_WINDOW:
            self.calls[verb] += 1
            return None
        known = self._known.setdefault(entry, _Known())
        reply = line["reply"]
        if isinstance(reply, dict):  # an error: a script checks everything, then writes
            if "No matching script" not in reply["error"]:  # it was sent once more, with the script
                self.not_modelled[f"{verb}: {reply['error']:.40}"] += 1
            return None
        known.beyond = known.beyond or _is_beyond(line)
        unknown = not hasattr(self.server, verb) or verb in _KEYS_OF_OTHERS
        if known.beyond or unknown or (verb == "set" and line["args"]["counts_from"]):
            self.not_modelled[_BEYOND if known.beyond else verb] += 1
            known.not_modelled += 1
            return None
        self.calls[verb] += 1
        answered = said(verb, reply)
        args = Args(**{**_DEFAULTS, **line["args"], "start": line["start"]})
        if "fence" in line["args"]:
            args.fence = int(args.fence)
        found: dict[Any, tuple[Entry, dict[str, tuple[Any, ...]]]] = {}
        allowed: dict[Any, None] = {}
        self.server.now, self.server.reply = line["at"], answered
        for state in known.states:
            for answer, left in self.server.ways(lambda state=state: self._answer(verb, state, line["start"], args)):  # type: ignore[misc]
                allowed[answer] = None
                if answer == answered:
                    found[_key(left)] = left
        if not found:
            refused = Refused(self._number, line, list(allowed), known.states, known.not_modelled)
            del self._known[entry]
            return refused
        known.states = [*found.values()][:_MOST_STATES]
        return None

    def _answer(self, verb: str, state: Any, start: str, a: Args) -> tuple[Any, Any]:
        entry, windows = replace(state[0]), state[1]
        if not start:
            return getattr(self.server, verb)(entry, a), (entry, windows)
        if a.now_only and self.server.reply[0] == "elsewhen":
            return ("elsewhen",), state
        window = Window(*windows[start]) if start in windows else Window()
        missed = {other: Window(*windows[other]) if other in windows else Window() for other in a.missed}
        if start in missed:  # it passes itself over
            missed[start] = window
        args = a
        if missed:
            args = Args(**{**vars(a), "missed": list(missed.values())})
        self.server.others = lambda: (Window(*packed) for other, packed in windows.items() if other != start)
        reply = getattr(self.server, verb)(entry, window, args)
        changed = {start: pack(window), **{other: pack(each) for other, each in missed.items()}}
        return reply, (entry, {**windows, **changed})

    def _command(self, line: Line) -> None:
        match line["command"]:
            case "save":  # a replica has it so, and gets no more
                self._saved = {name: replace(known, states=list(known.states)) for name, known in self._known.items()}
            case "fail over":
                self._known, self._saved = self._saved, {}
            case "ZREM" | "HDEL" if line["keys"][0].endswith((":beats", ":reports")):
                self.calls["leave"] += 1  # which beats live is no window's: the model allows both
            case other:
                self.not_modelled[other] += 1


#: What only some verbs are asked.
_DEFAULTS = {"missed": (), "now_only": False, "owed_until": ""}


def _options(text: str) -> dict[str, Any]:
    """Read the options of a definition, as load is given them."""
    words = iter(text.split())
    read = {name: None if value == "-" else value for name, value in zip(words, words, strict=True)}
    return {name: int(value) if value and value.isdecimal() else value for name, value in read.items()}


def _is_beyond(line: Line) -> bool:
    """Whether a line is of an entry with a buffer, of a limit, or of an entry whose failures pause it."""
    args = {**line["args"], **_options(line["args"].get("options", ""))}
    buffers = str(args.get("overlap") or "").startswith("buffer")
    slots = line["verb"] == "make_due" or bool(args.get("no_slot"))
    child = ":entry:child:" in line["entry"]  # it has no cursor
    return buffers or slots or child or bool(args.get("pause_after_failures"))


def _key(state: tuple[Entry, dict[str, tuple[Any, ...]]]) -> Any:
    entry, windows = state
    return repr(entry), tuple(sorted(windows.items()))


def said(verb: str, reply: Any) -> tuple[Any, ...]:  # noqa: PLR0911  # a verb a line
    """What the model's answer is compared with."""
    if isinstance(reply, str):
        if verb == "begin":
            _, fence, attempt, *_ = reply.split(" ")
            return "begun", int(fence), int(attempt)
        if verb == "load":
            _, cursor, _, news, *_ = reply.split(" ")
            return "loaded", cursor, news
        return tuple(reply.split("\n"))
    match verb, reply[0]:
        case "claim" | "backfill", "claimed":
            return "claimed", int(reply[1])
        case "claim", "moved":
            return "moved", reply[1]
        case "take", "taken":
            return "taken", int(reply[1]), int(reply[2]), int(reply[3])
        case "take", "no":
            return tuple(reply[:2])
        case "finish", "again":
            return ("again",)
        case "begin", "waits":
            return ("waits",)
        case "begin" | "claim" | "load", "elsewhen" | "superseded":
            return (reply[0],)
        case "pause", _:
            return (reply[0],)
    return tuple(reply)
