"""The protocol as a small explicit model: what each verb of the store answers in each state, and what it leaves.

A restatement of ``celery_once_beat/store/lua`` without keys, encoding, counters, history, and what is for people. It is
Python and not Promela, so that one text serves both uses: ``explore`` goes through all that processes can do by it, and
``replay`` steps it along what a real server answered. A model for spin could only be explored.

An :class:`Entry` and its :class:`Window` s are all that the server knows. A window has a *marker* (the run key: who
executes it, which retry it waits for, or its outcome; it passes by itself) and, while it is open, an *account* and a
*deadline*. A verb is a method: it gets the entry, the window and the call's arguments, under the names of
``store/scripts.py``, changes the two, and returns the reply.

The verbs of beats: claim, confirm, take, postpone, backfill. Of workers: receive, begin, renew, hand_over, finish,
close. By order: abandon. A model made ``without`` some of the :data:`RULES` shows what each is for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

#: What must hold; ``explore`` checks it.
PROPERTIES = {
    "one executes": "two executions have one window only if one's lease has passed",
    "one publishes": "of two beats one is told that a window isn't its to confirm any more",
    "the last one goes on": "an execution whose lease passed has its window again only if no other began since",
    "one claims": "a window is claimed for one beat",
    "ends once": "a window has one end, and doesn't begin after it",
    "nothing is taken away": "nobody ends a window while an execution of another's has it",
    "fences grow": "each begin has a larger fence than all before it",
    "nothing is lost": "one beat and one worker that are left can end every window",
    "the same answer": "a verb that is sent again, since its reply was lost, answers as it did the first time",
    "limits": "a window doesn't begin more often than it may",
    "in time": "nothing is published again before it is overdue, and nothing begins before it is to run again",
    "retries go on": "a window that was handed over goes on with its retry, and with nothing older",
    "deadlines stand": "a confirm that comes late doesn't put off what has begun since",
}

#: The rules that can be taken out, each with the property that fails without it.
RULES = {
    "a claim compares the cursor": "one claims",
    "a claim sent again answers its beat": "the same answer",
    "a claim opens the window": "nothing is lost",
    "a claim gives a deadline": "nothing is lost",
    "a confirm says its revision": "deadlines stand",
    "a confirm keeps a deadline": "nothing is lost",
    "a take waits for the deadline": "in time",
    "a take moves the revision": "one publishes",
    "a take sent again answers its beat": "the same answer",
    "a take gives a deadline": "nothing is lost",
    "a take knows the limits": "limits",
    "begin refuses what runs": "one executes",
    "begin refuses what is closed": "ends once",
    "begin sent again answers its owner": "the same answer",
    "begin refuses older copies": "retries go on",
    "begin waits to run again": "in time",
    "begin gives a deadline": "nothing is lost",
    "begin knows the limits": "limits",
    "begin raises the fence": "fences grow",
    "begin moves the revision": "deadlines stand",
    "a lease counts from before the request": "one executes",
    "an owner is one execution": "nothing is taken away",
    "a lease is its last beginner's": "the last one goes on",
    "who handed over is done": "retries go on",
    "handing over gives a deadline": "nothing is lost",
    "handing over sent again answers its owner": "the same answer",
    "the end leaves a marker": "the same answer",
    "the end takes the window out": "ends once",
    "to run again gives a deadline": "nothing is lost",
    "close leaves alone what runs": "nothing is taken away",
    "receiving keeps a deadline": "nothing is lost",
}

#: The states of an account.
PLAIN, RETRY, AGAIN, AGAIN_DUE, WAITS_TURN = "plain", "retry", "again", "again_due", "waits_turn"
#: ``message`` of an account: by a take whose beat hasn't confirmed; and once it went out.
NO_MESSAGE, TAKEN, SENT = "none", "taken", "sent"
#: ``published`` of a confirm, besides SENT.
IMPOSSIBLE, UNSURE, ASTRAY, NOT_YET = "impossible", "unsure", "astray", "not_yet"
#: What the model doesn't know, see ``Model.may``.
ANOTHER_RUNS = "another window of its entry goes first"
#: Outcomes by which a limit ends a window: a begin that met one answers so again.
LIMITS = {"abandoned", "dropped", "expired", "missed", "skipped"}
#: The retry number of a key's window that is to run again.
NO_RETRY = 999_999_999_999_999
SECOND, DAY = 1000, 86_400_000


@dataclass(slots=True)
class Entry:
    """What the server knows of an entry. Without a cursor it knows nothing."""

    cursor: Any = None
    fence: int = 0
    born: Any = None
    fingerprint: str = ""
    paused: bool = False
    max_attempts: float = float("inf")
    recover: bool = True
    grace: int | None = None
    again: int | None = None
    overlap: str = "-"
    #: The mark of the definition that was set last, also before the first load; '' for none.
    defined: str = ""
    #: Whether a window of it began that lets no other begin.
    skips: bool = False


@dataclass(slots=True)
class Window:
    """What the server knows of a window."""

    # The marker: '', run, wait or done; whose, with which fence, retry or outcome; until when.
    kind: str = ""
    by: Any = ""
    number: Any = 0
    until: Any = 0
    # Who claimed it, and for how long that is known.
    claimer: Any = ""
    claimer_until: Any = 0
    # While it is open: when it is overdue, and its account.
    open: bool = False
    deadline: Any = 0
    attempts: int = 0
    fence: int = 0
    retry: int = 0
    revision: int = 0
    publishes: int = 0
    state: str = PLAIN
    message: str = NO_MESSAGE
    backfill: bool = False
    #: It was, until a claim came by it: as long as it is taken so, newer ones let it go first.
    ordered: bool = False
    expires: Any = None
    owner: Any = ""
    beat: Any = ""
    queue: str = "-"
    #: How often it has ended; a backfill begins anew. Nobody asks: for the properties.
    ended: int = 0


#: All that a window is, in the order of its fields.
pack = attrgetter(*(each.name for each in fields(Window)))

Reply = tuple[Any, ...]
#: A call's arguments.
Args = SimpleNamespace


class Model:
    """The server. Time stands in subclasses: here it is 0, and what passes counts down to it."""

    #: How far a deadline lies behind the marker that it waits for.
    MARGIN: int = 1

    def __init__(self, without: Iterable[str] = ()) -> None:
        self.without = frozenset(without)
        assert self.without <= RULES.keys(), self.without - RULES.keys()

    def rule(self, name: str) -> bool:
        return name not in self.without

    # -- time, and what the model leaves open -----------------------------------------------------------------

    def after(self, span: int, since: Any = None) -> Any:
        """A time so much later than now, or than ``since``."""
        return span + (since or 0)

    def passed(self, time: Any) -> bool:
        return time <= 0

    def may(self, what: str) -> bool:
        """Whether this happens, which depends on what the model doesn't know."""
        return False

    def between(self, least: int, most: int) -> Any:
        """A time that lies so much later than now; it depends on the age of the window, which nobody asks for."""
        return self.after(least)

    def new_fence(self, least: int) -> int:
        """At least ``least``, and the server's clock."""
        return least

    def earlier(self, one: Any, other: Any) -> Any:
        return min(one, other)

    def later(self, one: Any, other: Any) -> Any:
        return max(one, other)

    #: What never passes.
    NEVER: Any = 99

    def _deadline(self, w: Window, rule: str, at: Any) -> None:
        w.deadline = at if self.rule(rule) else self.NEVER

    # -- what verbs have in common ----------------------------------------------------------------------------

    def _look(self, e: Entry, w: Window, a: Args) -> str:
        """What has passed is gone. Returns the marker. It says done of no window that is open: one step writes both."""
        if w.kind and self.passed(w.until):
            w.kind, w.by, w.number = "", "", 0
        if w.claimer and self.passed(w.claimer_until):
            w.claimer = ""
        assert w.kind != "done" or not w.open or not self.rule("the end takes the window out")
        return w.kind

    def _passed_by(self, e: Entry, a: Args) -> bool:
        """The cursor has passed the window: whether it is open alone says whether it owes an outcome."""
        return e.cursor is not None and e.born < a.start <= e.cursor

    def _mark(self, w: Window, kind: str, by: Any, number: Any, until: Any) -> None:
        w.kind, w.by, w.number, w.until = kind, by, number, until

    def _close(self, e: Entry, w: Window, a: Args, outcome: str, owner: Any) -> None:
        if self.rule("the end takes the window out"):
            w.open = False
        w.ended += 1
        if self.rule("the end leaves a marker"):
            self._mark(w, "done", owner, outcome, self.after(a.marker_ttl if self._passed_by(e, a) else a.retention))
        else:
            w.kind = ""

    def _open(self, w: Window, beat: Any, expires: Any, deadline: Any) -> None:
        w.open, w.deadline, w.revision, w.publishes = True, deadline, 1, 1
        w.attempts = w.fence = w.retry = 0
        w.message = NO_MESSAGE
        w.state, w.backfill, w.ordered, w.expires, w.owner, w.beat = PLAIN, False, False, expires, "-", beat

    def _limit(self, e: Entry, w: Window, a: Args) -> str | None:
        if w.attempts >= e.max_attempts:
            return "abandoned"
        if w.attempts >= 1 and not e.recover and w.state == PLAIN:
            return "dropped"
        if w.expires is not None and self.passed(w.expires):
            return "expired"
        if e.grace is not None and not w.fence and not w.backfill and self.passed(self.after(e.grace, a.starts_at)):
            return "missed"
        return None

    def _is_owner(self, by: Any, a: Args) -> bool:
        """A main process that ends what its child began knows the delivery alone, and no fence."""
        if not self.rule("an owner is one execution"):
            return True
        return by == a.owner or (a.fence == 0 and str(by).startswith(f"{a.owner}:"))

    def _holds(self, e: Entry, w: Window, a: Args) -> str | None:
        """Whether the caller has the window: 'run', or 'wait' if it handed it over."""
        if w.kind in {"run", "wait"}:
            return w.kind if self._is_owner(w.by, a) else None
        if w.kind == "done":
            return None
        if w.open:  # its lease has passed; it has the window again unless somebody began since
            stale = self.rule("a lease is its last beginner's") and (w.owner, w.fence) != (a.owner, a.fence)
            stale = stale or (self.rule("who handed over is done") and w.state != PLAIN)
            if stale or (e.skips and e.overlap != "allow" and self.may(ANOTHER_RUNS)):
                return None
            e.skips = e.skips or e.overlap not in {"allow", "-"}  # it has the turn again
            return "run"
        return "run" if a.fence and not (a.tracked and self._passed_by(e, a)) else None

    # -- beats ------------------------------------------------------------------------------------------------

    def claim(self, e: Entry, w: Window, a: Args) -> Reply:  # noqa: PLR0911, PLR0912  # each reply where it is decided
        """Take the right to publish the window after the cursor."""
        self._look(e, w, a)
        if e.cursor is None:
            return ("unknown",)
        moved = self.rule("a claim compares the cursor") and e.cursor != a.from_cursor
        again = moved and a.start <= e.cursor and w.claimer == a.beat
        if again and self.rule("a claim sent again answers its beat"):
            w.claimer_until = self.after(a.marker_ttl)
            if a.mode == "pass" or (a.mode == "untracked" and not w.open):
                return ("claimed", 0)
            if a.mode == "run" and w.open and w.revision == 1 and w.beat == a.beat:
                return ("claimed", 1)
        if e.paused and a.mode != "pass":
            return ("paused",)
        until = vars(a).get("owed_until")
        owed = until and a.start <= until and {e.fingerprint[:4], a.fingerprint[:4]} == {"def:"}
        if e.fingerprint != a.fingerprint and not owed:
            return ("superseded",)
        if moved:
            return ("moved", e.cursor)
        for passed_over in a.missed:
            self._take_over(passed_over, a)
        mine, known = not w.claimer, w.open or w.kind
        if mine:
            w.claimer, w.claimer_until = a.beat, self.after(a.marker_ttl)
        e.cursor = a.start
        if a.mode == "pass":
            return ("claimed", 0)
        if known and (a.mode == "run" or w.open):
            self._take_over(w, a)
            return ("moved", a.start)
        if a.mode == "run" and self.rule("a claim opens the window"):
            self._open(w, a.beat, self.after(a.expires) if a.expires else None, 0)
            self._deadline(w, "a claim gives a deadline", self.after(a.claim_lease))
        elif a.mode == "run":
            w.revision, w.beat = 1, a.beat
        return ("claimed", int(a.mode == "run")) if mine else ("moved", a.start)

    def _take_over(self, w: Window, a: Args) -> None:
        """What ran or runs though the cursor didn't know it: the store lost its last writes, or it was ordered."""
        self._look(None, w, a)
        if w.open:
            w.backfill = False
        elif w.kind in {"run", "wait"}:
            if w.kind == "wait":  # from now on the account outlives the wait for a worker
                w.until = self.later(self.after(-a.retention, w.until), self.after(self.MARGIN))
            self._open(w, a.beat, None, self.after(self.MARGIN, w.until))
            w.owner, w.publishes, w.revision = w.by, 0, 2
            if w.kind == "run":
                w.attempts, w.fence = 1, w.number
            else:
                w.retry, w.state = w.number, RETRY

    def confirm(self, e: Entry, w: Window, a: Args) -> Reply:
        """Say what became of the message of a window that was claimed or taken."""
        kind = self._look(e, w, a)
        end_as = {IMPOSSIBLE: "failed", ASTRAY: "untracked"}.get(a.published)
        closer = f"/{a.revision}"  # revisions differ: who sends it again knows its own
        if kind == "done" and w.number == end_as and str(w.by).endswith(closer):
            return (end_as,)
        if not w.open or (a.published == NOT_YET and w.message == SENT):
            return ("unchanged",)
        if w.revision != a.revision and self.rule("a confirm says its revision"):
            return ("unchanged",)
        if end_as == "untracked" or (end_as and w.publishes >= e.max_attempts):
            self._close(e, w, a, end_as, f"{w.beat}{closer}")
            return (end_as,)
        if a.published == NOT_YET:
            w.deadline = self.after(a.claim_lease)
            return ("confirmed",)
        doubled = 2 ** min(max(w.publishes - 1, 0), 30)
        w.message, w.queue = SENT if a.published == SENT else NO_MESSAGE, a.queue
        if a.published == SENT:
            wait = min(a.start_timeout * doubled, max(DAY, a.start_timeout))
            if w.state == WAITS_TURN:  # others wait for it
                wait = min(wait, 60 * SECOND * doubled)
        else:
            wait = min(SECOND * doubled, a.publish_timeout)
        self._deadline(w, "a confirm keeps a deadline", self.after(wait))
        return ("confirmed",)

    def take(self, e: Entry, w: Window, a: Args) -> Reply:  # noqa: PLR0911  # each reply where it is decided
        """Take what is overdue, to publish it again."""
        kind = self._look(e, w, a)
        if not w.open:
            return ("closed", w.number) if kind == "done" and w.by == a.beat else ("no", "closed")
        if e.fingerprint != a.fingerprint:
            return ("no", "superseded")
        if w.state == WAITS_TURN and w.message == NO_MESSAGE:  # whoever freed the turn has made it overdue, or not yet
            w.deadline = self.some_time()
        if not self.passed(w.deadline) and self.rule("a take waits for the deadline"):
            repeats = w.message == TAKEN and w.beat == a.beat and not kind
            if repeats and self.rule("a take sent again answers its beat"):
                return ("taken", w.revision, w.retry, w.attempts)
            return ("no", "not overdue")
        if kind:
            w.deadline = self.after(self.MARGIN, w.until)
            return ("no", "busy")
        if (outcome := self._limit(e, w, a)) and self.rule("a take knows the limits"):
            self._close(e, w, a, outcome, a.beat)
            return ("closed", outcome)
        out = w.message == SENT and w.queue != "-"
        out = out and bool(a.consumed) and f" {w.queue} " not in a.consumed
        if out and self.may("no later window of its entry is done"):
            w.deadline = self.between(self.MARGIN, 600 * SECOND)
            return ("no", "unconsumed")
        is_new = not w.fence and not w.backfill and w.state != WAITS_TURN
        if not is_new and e.skips and e.overlap != "allow" and self.may(ANOTHER_RUNS):
            self._wait(w)
            return ("no", "waits")
        w.revision += self.rule("a take moves the revision")
        w.message, w.beat, w.publishes = TAKEN, a.beat, w.publishes + 1
        if w.state == AGAIN:
            w.state = AGAIN_DUE
        self._deadline(w, "a take gives a deadline", self.after(a.claim_lease))
        return ("taken", w.revision, w.retry, w.attempts)

    def _wait(self, w: Window) -> None:
        """It waits for its turn: whatever frees that makes it overdue, see ``take``."""
        w.revision, w.message, w.publishes, w.state = w.revision + 1, NO_MESSAGE, 0, WAITS_TURN

    def some_time(self) -> Any:
        """A time that the model doesn't know."""
        return self.NEVER

    def postpone(self, e: Entry, w: Window, a: Args) -> Reply:  # noqa: PLR0911  # each reply where it is decided
        """Put off, or end, what is overdue and no living beat can take."""
        kind = self._look(e, w, a)
        if not w.open and kind == "done" and (w.by, w.number) == (a.beat, "dropped"):
            return ("closed", "dropped")
        if w.state == WAITS_TURN and w.message == NO_MESSAGE:  # as in take
            w.deadline = self.some_time()
        if not w.open or not self.passed(w.deadline):
            return ("no",)
        if e.cursor is None:
            w.open = False
            return ("forgotten",)
        if self.may("another beat has the entry"):
            return ("no",)
        if kind:
            w.deadline = self.after(self.MARGIN, w.until)
            return ("no",)
        if a.why == "untracked":
            self._close(e, w, a, "dropped", a.beat)
            return ("closed", "dropped")
        w.deadline = self.after(a.delay)
        return ("postponed",)

    def backfill(self, e: Entry, w: Window, a: Args) -> Reply:
        """Open a window once more, by order."""
        if e.cursor is None:
            self._look(e, w, a)
            return ("unknown",)
        kind = self._look(e, w, a)
        if w.open:
            repeats = w.backfill and w.beat == a.beat and w.revision == 1 and not kind
            return ("claimed", 1) if repeats else ("open",)
        if kind and kind != "done":
            return ("open",)
        w.kind = ""
        w.claimer, w.claimer_until = a.beat, self.after(a.marker_ttl)
        self._open(w, a.beat, None, self.after(a.overdue_in))
        w.backfill, w.ordered, w.ended = True, True, 0
        return ("claimed", 1)

    def abandon(self, e: Entry, w: Window, a: Args) -> Reply:
        """Give a window up, by order."""
        kind = self._look(e, w, a)
        if not w.open:
            return ("finished",) if kind == "done" and w.by == a.owner else ("unchanged",)
        if kind == "run" and not a.running:
            return ("busy", "running")
        self._close(e, w, a, "cancelled", a.owner)
        return ("finished",)

    # -- workers ----------------------------------------------------------------------------------------------

    def receive(self, e: Entry, w: Window, a: Args) -> Reply:
        """Say that a message waits in a worker."""
        kind = self._look(e, w, a)
        if not w.open or kind in {"run", "done"} or (kind == "wait" and w.number != a.retry):
            return ("unchanged",)
        if a.retry < w.retry or w.state == AGAIN or (a.by_schedule and w.backfill):
            return ("unchanged",)
        if w.state == WAITS_TURN and w.message == NO_MESSAGE:
            return ("unchanged",)
        in_line = w.state in {WAITS_TURN, AGAIN_DUE}
        w.revision, w.message = w.revision + 1, NO_MESSAGE if w.publishes <= 1 and not in_line else SENT
        at = self.after(a.length)
        at = self.later(at, w.until) if kind else at
        self._deadline(w, "receiving keeps a deadline", self.after(self.MARGIN, at))
        return ("received",)

    def begin(self, e: Entry, w: Window, a: Args) -> Reply:  # noqa: PLR0911, PLR0912  # each reply where it is decided
        """Take the right to execute the window."""
        kind = self._look(e, w, a)
        overlap = a.overlap if e.overlap == "-" else e.overlap
        closed = kind == "done" or (not w.open and a.tracked and self._passed_by(e, a))
        is_open = w.open and a.tracked
        if kind == "done" and w.by == a.owner and w.number in LIMITS:
            return ("closed", w.number)
        if self.rule("begin refuses what is closed") and (kind == "done" or (a.by_schedule and is_open and w.backfill)):
            return ("closed", "")
        began = is_open and not kind and w.owner == a.owner and w.state == PLAIN
        began = began and not (e.skips and overlap != "allow" and self.may(ANOTHER_RUNS))
        if (began or (kind == "run" and w.by == a.owner)) and self.rule("begin sent again answers its owner"):
            fence = w.fence if began else w.number
            self._mark(w, "run", a.owner, fence, self.after(a.lease))
            if is_open:
                w.deadline = self.after(a.lease + self.MARGIN)
            return ("begun", fence, w.attempts if is_open else 1)
        if kind == "run" and not (is_open or (a.tracked and self._passed_by(e, a))):
            return ("busy", "runs alone")
        if kind == "run" and self.rule("begin refuses what runs"):
            return ("busy", "running")
        if kind == "wait" and w.number != a.retry and self.rule("begin refuses older copies"):
            return ("busy", "waiting to run again" if w.number == NO_RETRY else f"waiting for retry {w.number}")
        if closed and self.rule("begin refuses what is closed"):
            return ("closed", "")
        fence = self.new_fence(max(e.fence, w.fence if is_open else 0) + self.rule("begin raises the fence"))
        if not is_open:  # the marker alone decides: an untracked entry's, a key's, or of a time that the store forgot
            e.fence = fence
            self._mark(w, "run", a.owner, fence, self.after(a.lease))
            return ("begun", fence, 1)
        if w.state == AGAIN and self.rule("begin waits to run again"):
            return ("busy", "waiting to run again")
        if a.retry < w.retry and self.rule("begin refuses older copies"):
            return ("busy", f"handed over to retry {w.retry}")
        outcome = self._limit(e, w, a) if self.rule("begin knows the limits") else None
        waits = not outcome and overlap != "allow" and self.may(ANOTHER_RUNS)
        if waits and not (w.fence or w.backfill):
            outcome, waits = "skipped", False
        if waits:
            w.kind = ""
            self._wait(w)
            return ("waits",)
        if outcome:
            self._close(e, w, a, outcome, a.owner)
            return ("closed", outcome)
        w.attempts, w.revision = w.attempts + 1, w.revision + self.rule("begin moves the revision")
        w.fence, w.owner, w.retry = fence, a.owner, a.retry
        w.state, w.message, w.publishes = PLAIN, NO_MESSAGE, 0
        e.fence, e.skips = fence, e.skips or overlap != "allow"
        self._mark(w, "run", a.owner, fence, self.after(a.lease))
        self._deadline(w, "begin gives a deadline", self.after(a.lease + self.MARGIN))
        return ("begun", fence, w.attempts)

    def renew(self, e: Entry, w: Window, a: Args) -> Reply:
        """Keep the right to execute it."""
        self._look(e, w, a)
        if self._holds(e, w, a) != "run":
            return ("stale",)
        self._mark(w, "run", w.by if w.kind else a.owner, w.number if w.kind else a.fence, self.after(a.lease))
        if w.open:
            w.deadline = self.after(a.lease + self.MARGIN)
        return ("renewed",)

    def hand_over(self, e: Entry, w: Window, a: Args) -> Reply:
        """Give it to the retry that is about to be published."""
        self._look(e, w, a)
        verdict = self._holds(e, w, a)
        if verdict == "wait" and w.number == a.retry:
            return ("handed over",)
        waits = w.open and not w.kind and (w.state, w.retry) == (RETRY, a.retry)
        mine = self._is_owner(w.owner, a) and a.fence == w.fence
        if waits and mine and self.rule("handing over sent again answers its owner"):  # however late
            return ("handed over",)
        if verdict != "run":
            return ("stale",)
        hold_for = a.delay + self.MARGIN
        self._mark(w, "wait", a.owner, a.retry, self.after(hold_for if w.open else hold_for + a.retention))
        if w.open:
            w.attempts, w.retry, w.state = max(w.attempts - 1, 0), a.retry, RETRY
            w.publishes, w.message, w.revision = 1, NO_MESSAGE, w.revision + 1
            at = self.after(a.delay + max(a.start_timeout, self.MARGIN))
            self._deadline(w, "handing over gives a deadline", at)
        return ("handed over",)

    def finish(self, e: Entry, w: Window, a: Args) -> Reply:  # noqa: PLR0911  # each reply where it is decided
        """Record how an execution ended; ``again``: so much later it runs again, where the entry says nothing else."""
        kind = self._look(e, w, a)
        if kind == "done":
            return ("finished",) if w.by == a.owner else ("stale",)
        verdict = self._holds(e, w, a)
        given_back = w.state in {AGAIN, AGAIN_DUE} and self._is_owner(w.owner, a)
        if not verdict and w.open and not kind and given_back:
            return ("again",)
        if verdict == "wait" and w.number == NO_RETRY:
            return ("again",)
        if not verdict or (verdict == "wait" and a.outcome != "revoked"):
            return ("stale",)
        if not w.open and a.again and a.keyed:
            self._mark(w, "wait", a.owner, NO_RETRY, self.after(a.again))
            return ("again",)
        if not w.open:
            self._mark(w, "done", a.owner, a.outcome, self.after(a.retention))
            return ("finished",)
        again = e.again if a.again is not None and e.again is not None else a.again
        if again and w.attempts < e.max_attempts:
            w.kind = ""
            w.state, w.retry, w.publishes, w.message, w.revision = AGAIN, 0, 0, NO_MESSAGE, w.revision + 1
            self._deadline(w, "to run again gives a deadline", self.after(again))
            return ("again",)
        self._close(e, w, a, a.outcome, a.owner)
        return ("finished",)

    def close(self, e: Entry, w: Window, a: Args) -> Reply:  # each reply where it is decided
        """Say that a message was discarded before its task saw it."""
        kind = self._look(e, w, a)
        if not w.open:
            return ("closed", a.outcome) if kind == "done" and w.by == a.owner else ("unchanged",)
        if a.by_schedule and w.backfill:
            return ("unchanged",)
        expires = a.expires or w.expires
        if a.outcome == "unknown" or (a.outcome == "expired" and expires is not None and not self.passed(expires)):
            if kind == "run" or not w.publishes or w.retry != a.retry:
                return ("unchanged",)
            step = SECOND * 2 ** min(w.publishes - 1, 30)
            soon = self.between(min(step, a.publish_timeout), step)
            if kind == "wait":
                soon = self.after(self.MARGIN, w.until)
            w.revision, w.message, w.deadline = w.revision + 1, SENT, self.earlier(soon, w.deadline)
            return ("sooner",)
        idle = not kind and (not w.fence or w.state == RETRY or a.outcome == "revoked")
        idle = idle or kind == "wait" or not self.rule("close leaves alone what runs")
        if idle and w.retry == a.retry:
            self._close(e, w, a, a.outcome, a.owner)
            return ("closed", a.outcome)
        return ("unchanged",)
