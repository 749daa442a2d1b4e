"""The wire, both ways: how arguments are written, and how replies, hashes and records are read.

A script's header says what it returns. A ``read_…`` raises ValueError, LookupError or TypeError for what isn't
of that form. Where only one word is left that a reply can be, it is looked up, so that any other raises KeyError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from celery_once_beat.settings import WORKER_TTL
from celery_once_beat.windows import WindowKey, parse_instant

from . import model

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS = timedelta(milliseconds=1)

LONGEST_WORDS = 1000
_MOST_NUMBER = 10**15
#: Characters of a queue's name, percent-encoded.
_MOST_QUEUE = 200
_WHOLE = re.compile(r"-?\d{1,15}", re.ASCII)
#: Seconds, some 3000 years.
_LONGEST = 1e11


def pack(*words: object) -> bytes:
    """Write a command."""
    return encode(f"*{len(words)}\r\n{pack_words(words)}")


def pack_words(words: Iterable[object]) -> str:
    """Write words of a command, as text: :func:`encode` makes bytes of all of it at once."""
    written = []
    for word in words:  # one loop and no calls: each command of a burst passes here
        text = str(word)
        written.append(f"${len(text) if text.isascii() else len(encode(text))}\r\n{text}\r\n")
    return "".join(written)


def unpack(command: bytes) -> list[str]:
    """Return the words of a command that :func:`pack` has written."""
    words, rest = [], command.partition(b"\n")[2]
    while rest:
        length, _, rest = rest.partition(b"\n")
        words.append(rest[: int(length[1:])].decode(errors="surrogateescape"))
        rest = rest[int(length[1:]) + 2 :]
    return words


def encode(text: str) -> bytes:
    """Return the bytes of ``text``. A foreign key's bytes are surrogates in it, see ``clients``."""
    return text.encode(errors="surrogateescape")


@lru_cache(maxsize=256)  # leases and timeouts, of which there are few
def ms(seconds: float) -> int:
    """Write a span for a script, cut so that its sum with the time has no more digits than scripts read."""
    return round(seconds * 1000) if seconds < _LONGEST else round(_LONGEST * 1000)  # NaN is longest, too


@lru_cache(maxsize=1024)  # as format_instant
def epoch_ms(instant: datetime) -> int:
    """Write an instant as the server counts."""
    return (instant - EPOCH) // _MS


def read_load(reply: Any) -> model.Loaded | model.Superseded:
    if reply[0] == "superseded":
        return model.Superseded(reply[1], whole(reply[2]), *reply[3:])
    _, cursor_text, loaded_at, news, since, pause = reply.split(" ", 5)
    cursor = parse_instant(cursor_text)
    # Mostly the same, and beats keep both.
    return model.Loaded(cursor, whole(loaded_at), news, pause, cursor if since == cursor_text else parse_instant(since))


def read_pause(reply: list[Any]) -> model.Confirmed | model.Unknown:
    if reply[0] in ("done", "paused"):
        return model.Confirmed()
    return {"unknown": model.Unknown}[reply[0]]()


@lru_cache(maxsize=1024)  # mostly one person did it, for one reason
def read_words(text: str) -> tuple[str, str]:
    """Return who changed something, and why: for people, so that a foreign text is none."""
    return read_pause_words(text)[:2]


def read_pause_words(text: str) -> tuple[str, str, datetime | None]:
    """Return who paused an entry, why, and since when it is: for people, so that a foreign text is none."""
    try:
        words = json.loads(text)
        by, note = (str(words.get(name, ""))[:LONGEST_WORDS] for name in ("by", "note"))
        return by, note, instant_or_none(words.get("at", 0))
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        return "", "", None


def read_claim(reply: list[Any]) -> model.ClaimReply:
    match reply[0]:
        case "claimed":
            return model.Claimed(whole(reply[1]), instant_or_none(reply[2]), whole(reply[3]))
        case "moved":
            return model.Moved(parse_instant(reply[1]), whole(reply[2]))
        case "superseded":
            return model.Superseded("")
    return model.Paused() if reply[0] == "paused" else {"unknown": model.Unknown}[reply[0]]()


def read_confirm(reply: list[Any]) -> model.ConfirmReply:
    if reply[0] in ("failed", "untracked"):
        return model.Closed(reply[0])
    return model.Confirmed() if reply[0] == "confirmed" else {"unchanged": model.Unchanged}[reply[0]]()


def read_take(reply: list[Any]) -> model.TakeReply:
    match reply[0]:
        case "taken":
            revision, retry, attempts, expires, publishes, ordered = map(whole, reply[1:7])
            return model.Taken(revision, retry, attempts, instant_or_none(expires), publishes, instant_or_none(ordered))
        case "closed":
            return model.Closed(reply[1])
    if reply[1] == "unconsumed":
        return model.Unconsumed(unquote(reply[2]), whole(reply[3]))
    return model.Unchanged(reply[1])


def read_begin(reply: str | list[Any]) -> model.Begun | model.Busy | model.Closed | model.Waits:
    if isinstance(reply, str):
        _begun, fence, attempt, last_done, at_once = reply.split(" ")
        last = parse_instant(last_done) if last_done else None
        return model.Begun(whole(fence), whole(attempt), last, end_at_once=at_once == "1")
    if reply[0] == "closed":
        return model.Closed(reply[1], "".join(reply[2:3]))
    if reply[0] == "waits":
        return model.Waits(parse_instant(reply[1]) if reply[1] else None, tuple(map(parse_instant, reply[2:])))
    return {"busy": model.Busy}[reply[0]](reply[1])


def read_renew(reply: list[Any]) -> model.Renewed | model.Stale:
    return model.Renewed() if reply[0] == "renewed" else {"stale": model.Stale}[reply[0]]()


def read_hand_over(reply: list[Any]) -> model.HandedOver | model.Stale:
    return model.HandedOver() if reply[0] == "handed over" else {"stale": model.Stale}[reply[0]]()


def read_finish(reply: str | list[Any]) -> model.Finished | model.Again | model.Stale:
    if isinstance(reply, list):
        return {"again": model.Again}[reply[0]](whole(reply[1]) / 1000)
    return _FINISHED if reply == "finished" else {"stale": model.Stale}[reply]()


_FINISHED = model.Finished()  # each window's end, mostly


def read_close(reply: list[Any]) -> model.ConfirmReply:
    if reply[0] == "closed":
        return model.Closed(reply[1])
    return model.Confirmed() if reply[0] == "sooner" else {"unchanged": model.Unchanged}[reply[0]]()


def read_heartbeat(reply: list[Any]) -> model.Heartbeat:
    now = EPOCH + timedelta(seconds=whole(reply[0]), microseconds=whole(reply[1]))
    return model.Heartbeat(now, tuple(reply[2:]))


def read_spent(reply: list[Any]) -> model.Spent | model.Unknown:
    match reply[0]:
        case "spent":
            return model.Spent()
        case "again":
            return model.Spent(parse_instant(reply[1]))
    return model.Unknown()


def read_word(reply: list[Any]) -> str:
    word = reply[0]
    if not isinstance(word, str):
        raise TypeError(f"found {word!r:.80}, expected a word")
    return word


def write_queue(queue: str | None) -> str:
    """Write the name of a queue without blanks; ``-`` where it isn't known, or can't be kept."""
    written = quote(queue or "-", safe="", errors="replace")
    return written if len(written) <= _MOST_QUEUE else "-"


def read_workers(reply: list[Any]) -> tuple[dict[str, model.WorkerSeen], list[str]]:
    """Return what workers consume, as they reported it last; and what can't be read. Two may have the same name."""
    found: dict[str, model.WorkerSeen] = {}
    unreadable = []
    for member, at in sorted(as_pairs(reply), key=lambda pair: pair[1], reverse=True):
        try:
            worker, broker, queue = member.split(" ")
            heard = instant(at)
        except ValueError as exc:
            unreadable.append(f"{member!r:.100}: {exc}")
            continue
        known = found.setdefault(worker, model.WorkerSeen(heard, broker, set()))
        if known.heard - heard < timedelta(seconds=WORKER_TTL):
            known.queues.add(unquote(queue))
    return found, unreadable


def as_mapping(reply: Any) -> dict[str, str]:
    """Return a hash as a dict; it is a flat list in RESP2."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def as_pairs(reply: list[Any]) -> list[tuple[str, float]]:
    """Return the members of a zset with their scores: pairs in RESP3, else one after the other."""
    pairs = reply if reply and isinstance(reply[0], (list, tuple)) else zip(reply[::2], reply[1::2], strict=True)
    return [(member, float(score)) for member, score in pairs]


def read_fullness(info: Mapping[str, str]) -> float:
    """Return the share of its maxmemory that a server has used, by INFO; 0 where it has none, or doesn't say."""
    try:
        return int(info["used_memory"]) / int(info["maxmemory"])
    except (KeyError, ValueError, ZeroDivisionError):
        return 0.0


def as_info(reply: Any) -> dict[str, str]:
    """Return the fields of INFO by name."""
    lines = (line.partition(":") for line in str(reply).splitlines() if not line.startswith("#"))
    return {name: value for name, separator, value in lines if separator}


def write_report(report: model.BeatReport, app: str) -> str:
    """Write a beat's report as JSON, with ``app``."""
    return json.dumps({**json.loads(app or "{}"), **asdict(report)})


def read_app(text: str | None) -> str | None:
    """Read which app a beat is of, as ``settings.describe_app`` wrote it. None if it can't be read."""
    try:
        app = json.loads(text or "")
        name, apart = str(app["app"])[:64], str(app.get("apart", ""))[:128]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return repr(name) + (f" ({apart!r})" if apart else "")


def read_loss(reply: Any) -> model.Loss | None:
    """Read what :meth:`Store.note_loss` wrote; None where there is none, or it can't be read."""
    try:
        found = as_mapping(reply)
        return model.Loss(whole(found["entries"]), instant(found["at"]))
    except (ValueError, TypeError, KeyError):
        return None


def read_held(reply: Any) -> list[Any]:
    return list(json.loads(reply))


def read_sweep(reply: list[Any]) -> model.Swept:
    new, windows, *work = reply
    return model.Swept(bool(new), read_members(windows), frozenset(work))


def read_members(reply: list[str]) -> list[WindowKey | None]:
    """Read members of an open zset; None stands for a foreign one."""
    return [read_member(member) for member in reply]


def read_member(member: str) -> WindowKey | None:
    entry, _, start = member.rpartition("@")
    try:
        return WindowKey(entry, parse_instant(start)) if entry else None
    except ValueError:
        return None


def read_text(text: str) -> str:
    """Return an outcome, or what a change was, that may be shown: a foreign text could hold control characters."""
    if not (text.isascii() and text.isalpha()):
        raise ValueError(f"found {text!r:.40}, expected a word")
    return text


def whole(value: str | float) -> int:
    """Read a whole number of up to 15 digits, as scripts do; raises ValueError. Replies are read by it."""
    if isinstance(value, str):
        if not _WHOLE.fullmatch(value):
            raise ValueError(f"found {value!r:.40}, expected a whole number of up to 15 digits")
        return int(value)
    if not abs(value) < _MOST_NUMBER:  # NaN neither
        raise ValueError(f"found {value!r:.40}, expected a number of up to 15 digits")
    return int(value)


def instant(ms: str | float) -> datetime:
    """Read milliseconds since 1970; raises ValueError."""
    try:
        return EPOCH + timedelta(milliseconds=whole(ms))
    except OverflowError:
        raise ValueError(f"found {ms!r:.40}, expected milliseconds since 1970") from None


def instant_or_none(ms: str | int) -> datetime | None:
    return instant(ms) if whole(ms) else None
