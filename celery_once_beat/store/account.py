"""What the store knows of an entry, as its hash has it, for those who read: the core's scripts read it themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import unquote

from celery_once_beat.errors import OnceError, StoreDataError
from celery_once_beat.windows import CHILD, format_instant, parse_instant

from .codec import EPOCH, LONGEST_WORDS, as_mapping, instant, instant_or_none, read_pause_words, read_text, whole
from .keys import VERSION, newer
from .protocol import MESSAGES, STATES


@dataclass(frozen=True)
class EntryAccount:
    """What the store knows of an entry; instants are aware UTC."""

    cursor: datetime
    born: datetime
    since: datetime
    last_done: datetime | None
    paused: bool
    #: Copies of messages that begin has refused.
    refused: int
    #: By outcome, for the windows with ``since < start <= cursor``; ``untracked`` is one of them.
    counts: dict[str, int]
    #: By outcome: backfills, and windows of an earlier definition.
    apart: dict[str, int]
    #: By start.
    open: dict[datetime, OpenWindow] = field(default_factory=dict)
    #: Of the definition in force; None: as another version wrote it.
    fingerprint: str | None = None
    #: Who paused it, and why; '' where that isn't known. And since when it is.
    paused_by: str = ""
    paused_for: str = ""
    paused_at: datetime | None = None
    #: The newest few beats that have loaded it, not all of them alive, each with the fingerprint that it loaded.
    loaders: Mapping[str, str] = field(default_factory=dict)
    #: The last worker that didn't know the task, and when it discarded a message; None: none did.
    discarded: tuple[str, datetime] | None = None
    #: Windows that were reported as late.
    late: int = 0
    #: Seconds after its start within which a window is to be done, by the definition in force; None: no limit.
    deadline: float | None = None
    #: The start of the window that began last; known where its windows don't overlap.
    turn: datetime | None = None
    #: The limit of which a window waited for a slot last; '' where none did.
    limit: str = ""
    #: It is a one-off that has had its window, and was disabled for that.
    spent: bool = False
    #: Its key; and a field of its hash that is ``features.times``'s.
    key: str = ""
    times: str = "0 0 0"

    @property
    def owed(self) -> int:
        """Open windows that the definition in force defines; backfills are none of them."""
        return sum(1 for start, window in self.open.items() if not window.backfill and start > self.since)

    @property
    def accounted(self) -> int:
        """Windows with an outcome, open or untracked.

        The conservation law, which needs no history: as many as the schedule defines from ``since`` to ``cursor``.
        A polled schedule defines the windows that were claimed.
        """
        return sum(self.counts.values()) + self.owed


class Holder(NamedTuple):
    """The worker in which a window's message waits, as it reported that last."""

    worker: str
    #: Tasks that it executes; None: a rate limit holds the message back.
    executes: int | None
    #: For how many seconds the message has waited there.
    waited: int


@dataclass(frozen=True)
class OpenWindow:
    """A window that still owes its outcome. Instants are aware UTC."""

    claimed: datetime
    #: When its last execution began; None before the first.
    begun: datetime | None
    #: Executions that began and were not handed over to a retry.
    attempts: int
    #: The number of the last retry.
    retry: int
    backfill: bool
    #: One of ``protocol.MESSAGES``, and of ``protocol.STATES``.
    message: str
    state: str
    #: The beat that claimed it, or took it last.
    beat: str
    #: The delivery that began last; '' before the first.
    owner: str
    #: The queue that got its last message; None: none did, or that isn't known.
    queue: str | None = None
    #: Who has that reserved; None: nobody has said so.
    holder: Holder | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits for its turn, or for a slot of its limit."""
        return self.state in ("waits_turn", "waits_slot")

    @property
    def given_back(self) -> bool:
        """Whether it is to run again: by a retry, or later; or its execution died, and a beat has taken it."""
        died = self.begun is not None and (self.message != "none" or self.holder is not None)
        return died or self.state in ("retry", "again", "again_due")


def read_account(key: str, reply: Any) -> EntryAccount | OnceError | None:
    """Read an entry's hash, ``key``; None where there is none, an error where it can't be read."""
    if isinstance(reply, OnceError):
        return reply
    values = as_mapping(reply)
    version = values.get("v", "1")
    if version != str(VERSION):
        return newer(key, version) if version.isdecimal() else StoreDataError(f"the key {key!r} has no version")
    if values.get("fingerprint") == CHILD:  # nobody claims it
        values |= dict.fromkeys(("cursor", "born", "since"), format_instant(EPOCH))
    if "cursor" not in values:
        return None
    try:
        return _read_account(key, values)
    except (ValueError, IndexError, KeyError, OverflowError) as exc:
        return StoreDataError(f"the key {key!r} is no account of an entry: {exc}")


def _read_account(key: str, values: dict[str, str]) -> EntryAccount:
    by, note, paused_at = read_pause_words(values.get("paused_words", "{}") if values.get("paused") == "1" else "{}")
    loaders = values.get("loaders", "").split(" ")
    more = [name for name in values if name[1:2] == ":"]  # of most entries none

    def counted(prefix: str) -> dict[str, int]:
        return {read_text(name[2:]): whole(values[name]) for name in more if name.startswith(prefix)}

    return EntryAccount(
        cursor=parse_instant(values["cursor"]),
        born=parse_instant(values["born"]),
        since=parse_instant(values["since"]),
        last_done=parse_instant(values["last_done"]) if values.get("last_done") else None,
        paused=values.get("paused") == "1",
        refused=whole(values.get("refused", 0)),
        counts=counted("c:"),
        apart=counted("x:"),
        open={parse_instant(name[2:]): _read_open(values[name]) for name in more if name.startswith("w:")},
        fingerprint=values.get("fingerprint"),
        paused_by=by,
        paused_for=note,
        paused_at=paused_at,
        spent="spent" in values,
        loaders=dict(zip(loaders[::3], loaders[1::3], strict=False)),
        discarded=_read_discarded(values.get("discarded", "")),
        late=whole(values.get("late", 0)),
        deadline=whole(values["deadline"]) / 1000 if values.get("deadline", "-") != "-" else None,
        turn=parse_instant(values["running"]) if values.get("running") else None,
        limit=values.get("limit", "")[:LONGEST_WORDS],
        key=key,
        times=values.get("times", "0 0 0"),
    )


def _read_discarded(text: str) -> tuple[str, datetime] | None:
    at, _, worker = text.partition(" ")
    return (worker, instant(at)) if worker else None


def _read_open(text: str) -> OpenWindow:
    """Read an open window's account; see ``lua/pieces/window.lua``."""
    attempts, fence, retry, _, _, claimed, _, backfill, message, state, owner, beat, queue = text.split(" ")
    queue, _, held = queue.partition("@")
    for word, known in ((state, STATES), (message, MESSAGES)):
        if word not in known:
            raise ValueError(f"found the word {word!r:.40}, expected one of {', '.join(known)}")
    return OpenWindow(
        claimed=instant(claimed),
        begun=instant_or_none(fence),
        attempts=whole(attempts),
        retry=whole(retry),
        backfill=backfill == "1",
        message=message,
        state=state,
        beat=beat,
        owner="" if owner == "-" else owner,
        queue=None if queue == "-" else unquote(queue),
        holder=_read_holder(held, fence) if held and message != "taken" and not state.startswith("waits_") else None,
    )


def _read_holder(text: str, fence: str) -> Holder | None:
    """Read who has the message reserved; None where the window has begun since. See ``receive.lua``."""
    worker, executes, waited, before = text.split(":")
    return Holder(worker, None if executes == "-" else whole(executes), whole(waited)) if before == fence else None
