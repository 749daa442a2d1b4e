"""All that beats and workers can do by the model, and what must hold in each state: two of each, two windows.

Time counts in ticks: a lease is one, and each deadline lies one behind its marker. What can go wrong is everywhere, as
often as it likes:

- A process stops between any two steps, and goes on whenever it likes, or never: slow, frozen, killed.
- A reply is lost: the call is carried out, and its process sends it again, or ends, or reads the reply late.
- Every message that was ever published may be delivered at any time, any number of times: late, twice, or never.

For each state ``nothing is lost`` says: let all messages be lost, and one beat and one worker be left, or come anew;
then some steps of theirs, without a fault, end all windows. What else must hold stands in ``_check_…``;
``model.PROPERTIES`` has it in words.

States are one state where they differ only in names, in numbers that are only compared, or in what makes no difference
any more. With ``tell_apart`` the last of these is left alone where it rests on a rule.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from simulation import model as m
from simulation.model import Args, Entry, Model, Window, pack

#: How often a window may begin and die, and how many retries of its own a body makes.
MAX_ATTEMPTS, MOST_RETRIES = 2, 1
_SPANS = {
    "lease": 1, "claim_lease": 1, "publish_timeout": 1, "start_timeout": 1, "length": 1, "delay": 0, "marker_ttl": 2,
    "retention": 2, "starts_at": 0, "expires": None,
}  # fmt: skip
_OTHERS = {
    "fingerprint": "", "mode": "run", "missed": (), "tracked": True, "by_schedule": False, "queue": "-", "consumed": "",
    "keyed": False, "overlap": "allow", "again": None,
}  # fmt: skip
#: Names: a beat's is 11 or 12. An execution's is 1 or 2, by which worker it is of: once that one does something else,
#: the name means nobody. A worker's main process that closes a window doesn't ask again.
_BEAT, _NOBODY, _MAIN = 11, 0, 9
#: What a body can end with, by what its worker is doing then.
_ENDS = {
    "ends": ("finish", {"outcome": "done"}),
    "gives up": ("finish", {"outcome": "failed", "again": 1}),
    "gives": ("hand_over", {}),
}
#: What a worker is told again however late it asks, as long as nobody else came; after how many ticks all has passed.
_HOWEVER_LATE, _LONGEST = {"begun", "renewed", "handed over"}, 4


class State(NamedTuple):
    """All that there is."""

    cursor: int
    #: The entry's, and the largest that was given.
    fence: int
    top: int
    #: Packed.
    windows: tuple[tuple[Any, ...], ...]
    #: Of each window the largest retry number that was published; -1: no message.
    sent: tuple[int, ...]
    #: The cursor that each knows; what it is to confirm: window (0: none), revision, attempts till then.
    beats: tuple[tuple[int, int, int, int], ...]
    #: () or what each does, the window, the message's retry number, ticks that are left of its lease, its fence.
    workers: tuple[tuple[Any, ...], ...]


class Call(NamedTuple):
    verb: str
    start: int
    args: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{self.verb} of {self.start}, {', '.join(f'{k} {v}' for k, v in self.args)}"


class Found(NamedTuple):
    """How much was looked at: states, steps, and states in which one of each is left."""

    states: int
    steps: int
    left_alone: int


class BrokenError(AssertionError):
    """A property that doesn't hold; ``steps`` lead there."""

    def __init__(self, what: str, steps: Iterable[Any] = ()) -> None:
        self.what, self.steps = what, list(steps)
        lines = [" ".join(map(str, step)) for step in self.steps]
        super().__init__("\n".join([f"{what}: {m.PROPERTIES[what]}. Not after:", *lines]))


class Explorer:
    """So many of each, by the model ``without`` some of its rules; only these ``properties`` are looked at."""

    def __init__(
        self, windows: int = 2, beats: int = 2, workers: int = 2, without: Iterable[str] = (),
        properties: Iterable[str] = tuple(m.PROPERTIES), *, tell_apart: bool = False,
    ) -> None:  # fmt: skip
        self.model = Model(without)
        self.windows = windows
        self.properties = frozenset(properties)
        self.tell_apart = tell_apart or bool(self.model.without)
        first = (pack(Window()),) * windows
        self.first = State(0, 0, 0, first, (-1,) * windows, ((0, 0, 0, 0),) * beats, ((),) * workers)
        self._calls: dict[Call, Call] = {}
        self._answers: dict[Any, Any] = {}
        self._ticked: dict[Any, Any] = {}
        self._tidied: dict[Any, Any] = {}

    # -- the search -------------------------------------------------------------------------------------------

    def explore(self) -> Found:
        """Raise :class:`BrokenError` with the shortest way there, or say how much holds."""
        first = self._tidy(self.first)
        seen, order, parents, whys, steps = {first}, [first], array("q", [-1]), [()], 0
        alone: dict[State, int] = {}

        def way_to(at: int) -> list[Any]:
            way = []
            while at > 0:
                way.append(whys[at])
                at = parents[at]
            return way[::-1]

        for number, state in enumerate(order):  # it grows
            try:
                for why, reached in self._steps(state, faults=True):
                    steps += 1
                    if reached not in seen:
                        seen.add(reached)
                        order.append(reached)
                        parents.append(number)
                        whys.append(why)
            except BrokenError as broken:
                raise BrokenError(broken.what, [*way_to(number), *broken.steps]) from None
            for left in self._left_alone(state):
                alone.setdefault(left, number)
        if "nothing is lost" in self.properties:
            stuck = self._stuck(alone)
            if stuck is not None:
                raise BrokenError("nothing is lost", [*way_to(alone[stuck]), ("what is left:", stuck)])
        return Found(len(order), steps, len(alone))

    def _left_alone(self, state: State) -> Iterator[State]:
        """All messages are lost, and of all processes one beat and one worker are left, or come anew."""
        none = (-1,) * self.windows
        for beat in {*state.beats, (0, 0, 0, 0)}:
            number = state.beats.index(beat) if beat in state.beats else None
            for worker in {*state.workers, ()}:
                at = state.workers.index(worker) if worker in state.workers else None
                windows = tuple(_keep_names(w, at, number) for w in state.windows)
                yield state._replace(windows=windows, sent=none, beats=(beat,), workers=(worker,))

    def _stuck(self, alone: Iterable[State]) -> State | None:
        """Return one of these states from which not all windows can end, without another fault; or None."""
        seen: dict[State, int] = {}
        numbers = {state: seen.setdefault(self._tidy(state), len(seen)) for state in alone}
        order, edges = list(seen), []
        for state in order:  # it grows
            edges.append(array("l"))
            for _, reached in self._steps(state, faults=False):
                if reached not in seen:
                    seen[reached] = len(order)
                    order.append(reached)
                edges[-1].append(seen[reached])
        ends = bytearray(
            state.cursor == self.windows and all(w[_ENDED] and not w[_OPEN] for w in state.windows) for state in order
        )
        goes_on = True
        while goes_on:
            goes_on = False
            for number in reversed(range(len(order))):
                if not ends[number] and any(ends[each] for each in edges[number]):
                    ends[number] = goes_on = True
        return next((state for state, number in numbers.items() if not ends[number]), None)

    # -- what can happen --------------------------------------------------------------------------------------

    def _steps(self, s: State, *, faults: bool) -> Iterator[tuple[Any, State]]:
        for why, reached in self._all_steps(s, faults=faults):
            if reached is not s:
                self._check_state(reached, why)
                tidy = self._tidy(reached)
                if tidy != s:
                    yield why, tidy

    def _all_steps(self, s: State, *, faults: bool) -> Iterator[tuple[Any, State]]:
        yield ("time passes",), self._tick(s)
        for number, beat in enumerate(s.beats):
            yield from self._beat_steps(s, number, beat, faults=faults)
        for number, worker in enumerate(s.workers):
            if worker:
                yield from self._execution_steps(s, number, worker, faults=faults)
            else:
                yield from self._idle_steps(s, number, faults=faults)

    def _tick(self, s: State) -> State:
        windows = tuple(map(self._ticked_window, s.windows))
        workers = tuple((*w[:3], 0, w[4]) if w and w[3] else w for w in s.workers)
        return s._replace(windows=windows, workers=workers) if (windows, workers) != (s.windows, s.workers) else s

    def _ticked_window(self, packed: tuple[Any, ...]) -> tuple[Any, ...]:
        found = self._ticked.get(packed)
        if found is None:
            w = Window(*packed)
            w.until = max(w.until - 1, 0)
            if w.deadline != self.model.NEVER:
                w.deadline = max(w.deadline - 1, 0)
            found = self._ticked[packed] = pack(w)
        return found

    def _beat_steps(self, s: State, number: int, beat: tuple[int, int, int, int], *, faults: bool) -> Iterator[Any]:  # noqa: PLR0912
        known, of, revision, attempts = beat
        name, who = _BEAT + number, f"beat {number + 1}"

        def now(state: State, *knows: int) -> State:
            return state._replace(beats=(*state.beats[:number], knows, *state.beats[number + 1 :]))

        if of:
            for said in (m.SENT, m.UNSURE, m.NOT_YET):
                call = self._call("confirm", of, revision=revision, published=said)
                reply, after = self._ask(s, call)
                if reply == ("confirmed",) and s.windows[of - 1][_ATTEMPTS] != attempts:
                    self._broken("deadlines stand", (who, call, reply))
                if faults or said == m.NOT_YET:
                    yield (who, call, reply, "lost"), after
                if said != m.NOT_YET:
                    yield (who, call, reply), now(after, known, 0, 0, 0)
            if faults:
                yield (who, "forgets what it was to confirm"), now(s, known, 0, 0, 0)
            return
        if known < self.windows:
            call = self._call("claim", known + 1, beat=name, from_cursor=known)
            reply, after = self._ask(s, call)
            if faults:
                yield (who, call, reply, "lost"), after
            if reply[0] == "claimed":
                after = _published(now(after, known + 1, known + 1, reply[1], 0), known + 1, 0)
            else:
                after = now(after, reply[1], 0, 0, 0)
            yield (who, call, reply), after
        for start in range(1, self.windows + 1):
            if s.windows[start - 1][_OPEN]:
                call = self._call("take", start, beat=name)
                reply, after = self._ask(s, call)
                if faults or reply[0] != "taken":
                    yield (who, call, reply, "lost"), after
                if reply[0] == "taken":
                    _, revision, retry, attempts = reply
                    yield (who, call, reply), _published(now(after, known, start, revision, attempts), start, retry)

    def _idle_steps(self, s: State, number: int, *, faults: bool) -> Iterator[Any]:
        who = f"worker {number + 1}"
        for start in range(1, self.windows + 1):
            for retry in range(s.sent[start - 1] + 1):
                yield from self._begin(s, number, start, retry, 1, faults=faults)
                call = self._call("receive", start, retry=retry)
                reply, after = self._ask(s, call)
                yield (who, call, reply), after
                if faults:
                    call = self._call("close", start, retry=retry, owner=_MAIN, outcome="revoked")
                    reply, after = self._ask(s, call)
                    yield (who, call, reply), after

    def _begin(self, s: State, number: int, start: int, retry: int, trust: int, *, faults: bool) -> Iterator[Any]:
        who = f"worker {number + 1}"
        call = self._call("begin", start, owner=number + 1, retry=retry)
        reply, after = self._ask(s, call)
        if reply[0] != "begun":
            yield (who, call, reply), _doing(after, number)
            return
        fence = reply[1]
        after = after._replace(top=max(after.top, fence))
        yield (who, call, reply), _doing(after, number, "runs", start, retry, trust, fence)
        if faults:
            yield (who, call, reply, "under way"), _doing(after, number, "asks", start, retry, trust, fence)

    def _execution_steps(self, s: State, number: int, worker: tuple[Any, ...], *, faults: bool) -> Iterator[Any]:
        does, start, retry, trust, fence = worker
        who = f"worker {number + 1}"
        if faults:
            yield (who, "dies"), _doing(s, number)
        if does == "asks":
            late = trust if self.model.rule("a lease counts from before the request") else 1
            yield (who, "reads the reply"), _doing(s, number, "runs", start, retry, late, fence)
            yield from self._begin(s, number, start, retry, late, faults=faults)
            return
        call = self._call("renew", start, owner=number + 1, fence=fence)
        reply, after = self._ask(s, call)
        if reply == ("stale",):
            yield (who, call, reply), _doing(after, number)
        else:
            if faults:
                yield (who, call, reply, "lost"), after
            yield (who, call, reply), _doing(after, number, does, start, retry, int(does == "runs"), fence)
        for doing, (verb, more) in _ENDS.items():
            if does not in {"runs", doing} or (verb == "hand_over" and retry >= MOST_RETRIES):
                continue
            given = {"retry": retry + 1} if verb == "hand_over" else more
            call = self._call(verb, start, owner=number + 1, fence=fence, **given)
            reply, after = self._ask(s, call)
            if faults:  # the body is over: it executes no more
                yield (who, call, reply, "lost"), _doing(after, number, doing, start, retry, 0, fence)
            after = _doing(after, number)
            yield (who, call, reply), _published(after, start, retry + 1) if reply == ("handed over",) else after
        if faults and does == "runs":
            call = self._call("finish", start, owner=number + 1, fence=0, outcome="revoked")
            reply, after = self._ask(s, call)
            yield (who, call, reply), _doing(after, number)

    # -- the server -------------------------------------------------------------------------------------------

    def _call(self, verb: str, start: int, **given: Any) -> Call:
        call = Call(verb, start, tuple(given.items()))
        return self._calls.setdefault(call, call)

    def _ask(self, s: State, call: Call) -> tuple[Any, State]:
        """What the server answers, and what there is then."""
        at = call.start - 1
        before = s.windows[at]
        key = (call, s.cursor, s.fence, s.top, before)
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = self._answer(s, call, before)
        reply, cursor, fence, after = found
        if after == before and cursor == s.cursor and fence == s.fence:
            return reply, s
        if after[_ENDED] > before[_ENDED]:
            caller = dict(call.args).get("owner")
            for name, worker in enumerate(s.workers, 1):
                if worker and worker[:2] == ("runs", call.start) and worker[3] and name != caller:
                    self._broken("nothing is taken away", (call, reply))
        windows = (*s.windows[:at], after, *s.windows[at + 1 :])
        return reply, State(cursor, fence, s.top, windows, s.sent, s.beats, s.workers)

    def _answer(self, s: State, call: Call, packed: tuple[Any, ...]) -> tuple[Any, ...]:
        entry, window = Entry(cursor=s.cursor, fence=s.fence, born=0, max_attempts=MAX_ATTEMPTS), Window(*packed)
        args = Args(**{**_SPANS, **_OTHERS, "start": call.start, **dict(call.args)})
        verb = getattr(self.model, call.verb)
        reply = verb(entry, window, args)
        answer = reply, entry.cursor, entry.fence, pack(window)
        again = verb(entry, window, args)
        if again != reply:
            self._broken("the same answer", (call, reply, "sent again:", again))
        if reply[0] in _HOWEVER_LATE:
            late = Window(*packed)
            late_entry = Entry(cursor=s.cursor, fence=s.fence, born=0, max_attempts=MAX_ATTEMPTS)
            verb(late_entry, late, args)
            for _ in range(_LONGEST):
                late = Window(*self._ticked_window(pack(late)))
            if (again := verb(late_entry, late, args)) != reply:
                self._broken("the same answer", (call, reply, "sent again late:", again))
        self._check_call(s, call, args, Window(*packed), reply, Window(*answer[3]))
        return answer

    # -- what must hold ---------------------------------------------------------------------------------------

    def _broken(self, what: str, *steps: Any) -> None:
        if what in self.properties:
            raise BrokenError(what, steps)

    def _check_call(self, s: State, call: Call, args: Args, before: Window, reply: Any, after: Window) -> None:
        """What a verb must not do, whoever sends it."""
        step = (call, reply)
        if after.ended > 1 or (reply[0] == "begun" and before.ended):
            self._broken("ends once", step)
        if reply[0] == "claimed" and s.cursor >= call.start and before.beat != args.beat:
            self._broken("one claims", step)
        if reply[0] == "taken":
            if before.deadline > 0 and not (before.message == m.TAKEN and before.beat == args.beat):
                self._broken("in time", step)
            if before.attempts >= MAX_ATTEMPTS:
                self._broken("limits", step)
        lapsed = before.open and (not before.kind or before.until <= 0)
        if reply[0] in {"renewed", "finished", "handed over"} and lapsed and before.owner != args.owner:
            self._broken("the last one goes on", step)
        if reply[0] == "renewed" and before.owner == args.owner and before.state != m.PLAIN:
            self._broken("retries go on", step)
        if reply[0] == "begun":
            repeats = args.owner in {before.owner, before.by if before.kind == "run" else None}
            if reply[1] <= s.top and not repeats:
                self._broken("fences grow", step)
            if reply[2] > MAX_ATTEMPTS:
                self._broken("limits", step)
            if before.state == m.AGAIN and not repeats:
                self._broken("in time", step)
            if args.retry < before.retry:
                self._broken("retries go on", step)

    def _check_state(self, s: State, why: Any) -> None:
        have: list[Any] = [worker[1] for worker in s.workers if worker and worker[3] and worker[0] == "runs"]
        if len(have) != len(set(have)):
            self._broken("one executes", why)
        have = [of for _, of, revision, _ in s.beats if of and _is_revision(s.windows[of - 1], revision)]
        if len(have) != len(set(have)):
            self._broken("one publishes", why)

    # -- what makes two states one ----------------------------------------------------------------------------

    def _tidy(self, s: State) -> State:
        beats, windows, workers = s.beats, s.windows, s.workers
        if not self.tell_apart:
            beats = tuple([self._tidy_beat(s, name, beat) for name, beat in enumerate(beats, _BEAT)])
            workers = tuple(
                [
                    () if worker and not worker[3] and _is_stale(windows[worker[1] - 1], name) else worker
                    for name, worker in enumerate(workers, 1)
                ]
            )
        swap: tuple[tuple[int, int], ...] = ()
        if len(beats) == 2 and beats[1] < beats[0]:
            beats = beats[::-1]
            swap = ((_BEAT, _BEAT + 1), (_BEAT + 1, _BEAT))
        if len(workers) == 2 and workers[1] < workers[0]:
            workers = workers[::-1]
            swap = (*swap, (1, 2), (2, 1))
        tidied, fences = [], {0, s.fence, s.top}
        for number, packed in enumerate(windows, 1):
            living = tuple([bool(worker) and worker[1] == number for worker in workers])
            behind = tuple([beat[0] < number for beat in beats])
            key = (packed, living, behind, swap)
            found = self._tidied.get(key)
            if found is None:
                found = self._tidied[key] = self._tidy_window(*key)
            tidied.append(found[0])
            fences.update(found[1])
        for at, (known, of, revision, attempts) in enumerate(beats):
            if of:  # a revision is this one or another
                now = tidied[of - 1][_REVISION] if revision == windows[of - 1][_REVISION] else 0
                beats = (*beats[:at], (known, of, now, attempts), *beats[at + 1 :])
        fences.update([worker[4] for worker in workers if worker])
        if max(fences) >= len(fences):  # fences only compare
            rank = {fence: rank for rank, fence in enumerate(sorted(fences))}
            for at, w in enumerate(tidied):
                number = rank[w[_NUMBER]] if w[_KIND] == "run" else w[_NUMBER]
                tidied[at] = (*w[:_NUMBER], number, *w[_NUMBER + 1 : _FENCE], rank[w[_FENCE]], *w[_FENCE + 1 :])
            workers = tuple((*worker[:4], rank[worker[4]]) if worker else () for worker in workers)
            return State(s.cursor, rank[s.fence], rank[s.top], tuple(tidied), s.sent, beats, workers)
        return State(s.cursor, s.fence, s.top, tuple(tidied), s.sent, beats, workers)

    @staticmethod
    def _tidy_beat(s: State, name: int, beat: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """A claim from an old cursor says where it is now, unless it was this beat's; an old revision says nothing."""
        known, of, revision, attempts = beat
        if of and not _is_revision(s.windows[of - 1], revision):
            of = revision = attempts = 0
        if known < s.cursor:
            w = s.windows[known]
            if not (w[_OPEN] and w[_REVISION] == 1 and w[_CLAIMER] == name):
                known = s.cursor
        return known, of, revision, attempts

    def _tidy_window(
        self,
        packed: tuple[Any, ...],
        living: tuple[bool, ...],
        behind: tuple[bool, ...],
        swap: Iterable[tuple[int, int]],
    ) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """Forget what nobody can see any more. Returns the window, and its fences."""
        w, names = Window(*packed), dict(swap)
        for what in ("by", "owner", "beat", "claimer"):
            setattr(w, what, names.get(getattr(w, what), getattr(w, what)))

        def lives(name: Any) -> bool:
            return isinstance(name, int) and 1 <= name <= len(living) and living[name - 1]

        if w.until <= 0:
            w.kind = ""
        if w.kind and not lives(w.by):
            w.by = _NOBODY
            w.number = 0 if w.kind == "run" else w.number
        if not w.kind or (w.kind == "done" and not w.open and w.by == _NOBODY):
            w.kind, w.by, w.number, w.until = "", _NOBODY, 0, 0
        if not w.open:
            ended = Window(w.kind, w.by, w.number, w.until, ended=w.ended)
            if self.tell_apart:  # whose turn it was, where a rule is missing
                ended.revision, ended.beat = w.revision, w.beat
            return pack(ended), ()
        if not lives(w.owner) or (not self.tell_apart and not w.kind and w.state not in _KNOWS_OWNER):
            w.owner, w.fence = _NOBODY, min(w.fence, 1)
        if w.deadline <= 0 or w.message != m.TAKEN:
            w.message = m.NO_MESSAGE
        if not (w.revision == 1 and w.claimer == w.beat != _NOBODY and behind[w.beat - _BEAT]):
            w.claimer, w.claimer_until, w.revision = "", 0, 2  # its claim isn't sent again
            w.beat = w.beat if w.message != m.NO_MESSAGE else _NOBODY
        w.publishes = 1
        return pack(w), (w.fence, w.number) if w.kind == "run" else (w.fence,)


def _doing(s: State, number: int, *what: Any) -> State:
    return s._replace(workers=(*s.workers[:number], what, *s.workers[number + 1 :]))


def _published(s: State, start: int, retry: int) -> State:
    if s.sent[start - 1] >= retry:
        return s
    return s._replace(sent=(*s.sent[: start - 1], retry, *s.sent[start:]))


def _is_revision(w: tuple[Any, ...], revision: int) -> bool:
    return bool(w[_OPEN]) and w[_REVISION] == revision


def _is_stale(w: tuple[Any, ...], name: int) -> bool:
    """Whether nothing comes of what an execution of that name says, other than to begin."""
    if not w[_OPEN]:
        return True
    if w[_KIND] and w[_UNTIL] > 0:
        return bool(w[_BY] != name)
    return w[_OWNER] != name or w[_STATE] not in _KNOWS_OWNER


def _keep_names(packed: tuple[Any, ...], worker: int | None, beat: int | None) -> tuple[Any, ...]:
    """Of the names that a window knows, those of the two that are left, who are the first from now on."""
    names = {} if worker is None else {worker + 1: 1}
    names |= {} if beat is None else {_BEAT + beat: _BEAT}
    return tuple([names.get(value, _NOBODY) if place in _NAMES else value for place, value in enumerate(packed)])


_PLACES = {name: place for place, name in enumerate(Window.__slots__)}
_KIND, _BY, _NUMBER = (_PLACES[name] for name in ("kind", "by", "number"))
_UNTIL, _CLAIMER, _OPEN = (_PLACES[name] for name in ("until", "claimer", "open"))
_ATTEMPTS, _FENCE, _REVISION, _STATE, _OWNER, _ENDED = (
    _PLACES[name] for name in ("attempts", "fence", "revision", "state", "owner", "ended")
)
#: As long as nobody else came: the last owner goes on, or is told again that it has handed over.
_KNOWS_OWNER = {m.PLAIN, m.RETRY}
_NAMES = {_BY, _CLAIMER, _OWNER, _PLACES["beat"]}
