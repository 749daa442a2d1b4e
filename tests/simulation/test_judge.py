"""The judge of histories: each rule is broken by a small history, and what delays a window does so to the instant."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from simulation.judge import RULES, Judgement, judge
from simulation.judge_history import QUEUE, Settings, Wait, settling
from simulation.judge_times import HistoryError

SETTINGS = {
    "lease": 30,
    "renew": 10,
    "claim_lease": 3,
    "start_timeout": 60,
    "beat_late": 4,
    "worker_late": 34,
    "longest": 10,
    "place_late": 79,
    "told_late": 694,
    "tolerance": 60,
    "beats": ["beat-1", "beat-2"],
    "workers": ["worker-1", "worker-2"],
}
END = 5000.0


def _pair(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


class History:
    """Writes a history in which nothing happens but what is told."""

    def __init__(self, entries: dict[str, Any] | None = None, **settings: Any) -> None:
        self.settings = {**SETTINGS, **settings}
        self.entries = entries if entries is not None else {"e": {"starts": [100]}}
        self.facts: list[tuple[float, dict[str, Any]]] = []
        self.records: list[tuple[float, dict[str, Any]]] = []
        self.executions = 0

    def tell(self, what: str, at: float, **fact: Any) -> History:
        (self.records if what in {"recorded", "counted"} else self.facts).append((at, {"what": what, **fact}))
        return self

    def fault(self, kind: str, at: float, **fact: Any) -> History:
        return self.tell("fault", at, kind=kind, **fact)

    def after(self, faults: str) -> History:
        """What befalls the window of 100: ``kind [target] at[..until] [name=value]``, between semicolons."""
        for each in filter(None, faults.split("; ")):
            kind, *words = each.split()
            target = None if words[0][0].isdigit() else words.pop(0)
            at, *until = map(json.loads, words.pop(0).split(".."))
            fact = {"entry": "e", "start": 100} if kind in {"got", "lost", "delayed", "duplicated"} else {}
            fact |= {"until": until[0]} if until else {}
            fact |= {name: value if value.isalpha() else json.loads(value) for name, value in map(_pair, words)}
            if kind == "got":
                self.tell("received", at, process=target, **fact)
            else:
                self.fault(kind, at, **fact, **({"target": target} if target else {}))
        return self

    def begin(self, start: float, at: float, worker: str = "worker-1", entry: str = "e", **fact: Any) -> str:
        self.executions += 1
        execution = f"x{self.executions}"
        self.tell("received", at, entry=entry, start=start, process=worker)
        self.tell("started", at, entry=entry, start=start, process=worker, execution=execution, **fact)
        return execution

    def end(self, start: float, at: float, execution: str, how: str = "done", entry: str = "e") -> History:
        return self.tell("ended", at, entry=entry, start=start, execution=execution, how=how)

    def record(self, start: float, at: float, outcome: str = "done", entry: str = "e", **fact: Any) -> History:
        return self.tell("recorded", at, entry=entry, start=start, outcome=outcome, **fact)

    def run(self, start: float, at: float | None = None, worker: str = "worker-1", entry: str = "e") -> History:
        """A window is executed within a second, and done."""
        at = start + 0.1 if at is None else at
        self.end(start, at + 1, self.begin(start, at, worker, entry), entry=entry)
        return self.record(start, at + 1.01, entry=entry)

    def runs(self, *starts: float, back: float = 0) -> History:
        """These are executed when they are due, or once somebody is back."""
        for start in starts:
            self.run(start, max(start + 0.1, back))
        return self

    def missed(self, at: float, *starts: float) -> History:
        for start in starts:
            self.record(start, at, "missed")
        return self

    def lines(self, end: float = END, healed: float | None = 2000.0) -> list[str]:
        facts = sorted([*self.facts, *([(healed, {"what": "healed"})] if healed else [])], key=lambda pair: pair[0])
        first = (0.0, {"what": "settings", "entries": self.entries, **self.settings})
        return [
            json.dumps({"at": at, **fact}, sort_keys=True)
            for at, fact in [first, *facts, *self.records, (end, {"what": "end"})]
        ]

    def judged(self, end: float = END, healed: float | None = 2000.0) -> Judgement:
        return judge(self.lines(end, healed))


def frozen(until: float = 140.0) -> History:
    """A worker is frozen in a body, for longer than its lease, and another one executes the window."""
    history = History()
    late = history.begin(100, 100.1)
    history.fault("frozen", 101, target="worker-1", until=until)
    return history.end(100, 141, late, "stale").run(100, 135, "worker-2")


def killed(again: float | None = 120.0, **settings: Any) -> History:
    """A worker is killed in a body, and another one executes the window."""
    history = History(**settings)
    first = history.begin(100, 100.1)
    history.fault("killed", 105, target="worker-1", until=110).end(100, 105, first, "killed")
    return history if again is None else history.run(100, again, "worker-2")


def claimed_again(failover: float, lose: float, catch_up: str = "latest") -> History:
    """A window is executed; beats claim it once more when the next one is due, as missed."""
    history = History({"e": {"starts": [100, 200], "catch_up": catch_up}}).fault("failover", failover, lose=lose)
    history.end(100, 102, history.begin(100, 100.1))
    return history.record(100, 200.1, "missed").run(200)


def outage(catch_up: str, run: list[float], *, tolerance: float = 60, **description: Any) -> History:
    """No beat runs from 95 to 305, an entry is due at 100, 200 and 300; these run, the others are missed."""
    starts = [100, 200, 300]
    history = History({"e": {"starts": starts, "catch_up": catch_up, **description}}, tolerance=tolerance)
    history.fault("killed", 95, target="beat-1", until=305).fault("frozen", 90, target="beat-2", until=400)
    for number, start in enumerate(starts):
        if start in run:
            history.run(start, 305.5 + 2 * number)
    return history.missed(305.5, *(start for start in starts if start not in run))


def edited(**change: Any) -> History:
    """An entry that is due each 100 s is changed at 450 to 455, to be due each 70 s."""
    history = History({"e": {"every": 100, "from": 0}}).runs(100, 200, 300, 400)
    return history.tell("schedule", 455, asked=450, entry="e", **change)


def faster(until: float, *starts: float) -> History:
    """The same, until it is left out; these windows run."""
    history = edited(description={"every": 70, "from": 0}).tell("schedule", until, entry="e", description=None)
    return history.runs(*starts, back=456)


def skipping(second: float, outcome: str = "done", *, due: float = 105) -> History:
    """Two windows of an entry whose overlap is skip, the first of which runs from 100 to 108."""
    history = History({"e": {"starts": [100, due], "overlap": "skip"}})
    history.end(100, 108, history.begin(100, 100)).record(100, 108)
    if outcome == "done":
        return history.run(due, second, "worker-2")
    return history.record(due, due + 0.1, outcome)


def fences(first: int, second: int) -> History:
    history = History()
    one = history.begin(100, 100, fence=first)
    history.fault("killed", 102, target="worker-1", until=103).end(100, 102, one, "killed")
    two = history.begin(100, 133, "worker-2", fence=second)
    return history.end(100, 134, two).record(100, 134)


def graced(at: float) -> History:
    """A window with a grace of 50 s, while all workers are away until 140."""
    history = History({"e": {"starts": [100], "grace": 50}})
    for worker in ("worker-1", "worker-2"):
        history.fault("killed", 95, target=worker, until=at - 5)
    return history.run(100, at)


def attempts(number: int, limit: int | None, outcome: str = "failed") -> History:
    """A window whose worker dies so often."""
    history = History({"e": {"starts": [100], "max_attempts": limit}})
    for at in range(100, 100 + 35 * number, 35):
        one = history.begin(100, at)
        history.fault("killed", at + 1, target="worker-1", until=at + 2).end(100, at + 1, one, "killed")
    return history.record(100, 100 + 35 * number, outcome)


def failed(outcome: str) -> History:
    history = History()
    return history.end(100, 101, history.begin(100, 100), "failed").record(100, 101, outcome)


def again(lose: float | None = None, *, asked: bool = False) -> History:
    """What is done at 101 is executed again at 200."""
    history = History().run(100)
    if lose is not None:
        history.fault("failover", 103, lose=lose)
    if asked:
        history.tell("asked", 190, entry="e", start=100)
    two = history.begin(100, 200)
    history.end(100, 201, two)
    return history.record(100, 201) if asked or lose else history


def law(counted: dict[str, int]) -> History:
    return History({"e": {"starts": [100, 200]}}).run(100).run(200).tell("counted", END, entry="e", outcomes=counted)


def resumed(*starts: float) -> History:
    """An entry that is due each 100 s, paused from 250 to 450; these windows run."""
    history = History({"e": {"every": 100, "from": 0}})
    history.tell("paused", 250, entry="e").tell("resumed", 450, entry="e")
    return history.tell("schedule", 650, entry="e", description=None).runs(*starts)


def deployed(until: float, *starts: float) -> History:
    """A deploy at 98 brings an entry that is due each 5 s; both beats are frozen then, so none has loaded it yet."""
    history = History({}).tell("schedule", 98, asked=97, entry="e", description={"every": 5, "from": 0}, how="deploy")
    for beat in ("beat-1", "beat-2"):
        history.fault("frozen", 97.9, target=beat, until=until)
    return history.tell("schedule", 113, entry="e", description=None).runs(*starts)


def redeployed(how: str, *starts: float, missed: Iterable[float] = ()) -> History:
    """An entry that is due each 100 s is left out from 250 to 450, then deployed again."""
    history = History({"e": {"every": 100, "from": 0}}).run(100).run(200)
    history.tell("schedule", 250, entry="e", description=None, how=how)
    history.tell("schedule", 450, entry="e", description={"every": 100, "from": 0}, how=how)
    history.tell("schedule", 550, entry="e", description=None)
    return history.runs(*starts, back=450.5).missed(450.5, *missed)


def test_another_limit_counts_from_its_edit_on():
    """A changed option moves no window; of an old and a new limit, the larger one may have counted."""
    for before, after, rules in ((1, 2, set()), (2, 1, set()), (1, 1, {"attempts"})):
        history = attempts(2, before)
        history.tell("schedule", 110, entry="e", description={"starts": [100], "max_attempts": after})
        assert set(history.judged().found) == rules


def test_an_entry_that_is_edited_while_it_is_paused():
    """Its new windows count from its return on."""
    history = History({"e": {"every": 100, "from": 0}}).run(100).tell("paused", 150, entry="e")
    history.tell("schedule", 250, entry="e", description={"every": 70, "from": 0})
    history.tell("resumed", 300, entry="e").tell("schedule", 400, entry="e", description=None)
    assert history.run(350).judged().clean
    assert set(history.run(280).judged().found) == {"not-owed"}
    history.tell("schedule", 200, entry="e", description={"every": 0})
    with pytest.raises(HistoryError, match="expected starts, or every and from"):
        history.judged()


def hit(faults: str, begins: float, **settings: Any) -> History:
    """The window of 100 begins then, and this befalls it."""
    return History(**settings).after(faults).run(100, begins)


def untracked(outcome: str, **description: Any) -> History:
    history = History({"e": {"starts": [100], **description}})
    return history.end(100, 101, history.begin(100, 100)).record(100, 101, outcome)


def told(what: str, outcome: str) -> History:
    """Nothing runs; what is told explains the outcome, or doesn't."""
    history = History({"e": {"starts": [100], "expires": 30}})
    for worker in ("worker-1", "worker-2"):
        history.fault("killed", 95, target=worker, until=140)
    if what == "revoked":
        history.tell("revoked", 110, entry="e", start=100)
    return history.record(100, 145, outcome)


def in_turn(overlap: str, *outcomes: tuple[float, float | str], limit: str | None = None) -> History:
    """Windows due at 105 and 110 come to a worker while that of 100 runs, until 120; then each begins, or ends."""
    history = History({"e": {"starts": [100, 105, 110], "overlap": overlap, "limit": limit}}, limits={"few": 1})
    history.end(100, 120, history.begin(100, 100)).record(100, 120)
    for start, outcome in outcomes:
        history.tell("received", start + 0.1, entry="e", start=start, process="worker-2")
        if isinstance(outcome, str):
            history.record(start, 110.1, outcome)
        else:
            history.run(start, outcome, "worker-2")
    return history


def put_back(again: float) -> History:
    """The worker that got the message of 105 was frozen; it comes to another one, perhaps to run in five seconds."""
    history = History({"e": {"starts": [100, 105, 110], "overlap": "buffer_all"}}, recovery_interval=5)
    history.end(100, 120, history.begin(100, 100)).record(100, 120)
    history.tell("received", 105.1, entry="e", start=105, process="worker-1")
    history.fault("frozen", 105.2, target="worker-1", until=105.4)
    history.tell("received", again, entry="e", start=105, process="worker-2")
    history.tell("received", 110.1, entry="e", start=110, process="worker-2")
    return history.run(110, 120.2, "worker-2").run(105, 121.5, "worker-2")


def sharing(third: float, *, until: float = 108, frozen: bool = False) -> History:
    """Three entries share two places; two of them run from 100 on, the third begins then."""
    entries = {name: {"starts": [100], "limit": "few"} for name in "abc"}
    history = History(entries, limits={"few": 2}, concurrency=5)
    for name in "ab":
        history.end(100, until, history.begin(100, 100, entry=name), "done", name).record(100, until, entry=name)
    if frozen:
        history.fault("frozen", 100.5, target="worker-1", until=until)
    return history.run(100, third, "worker-2", "c")


def informed(how: str, *told: tuple[str, str | None], at: float = 101, **description: Any) -> History:
    """A window ends so, and people are told of it."""
    history = History({"e": {"starts": [100], **description}})
    history.end(100, at, history.begin(100, 100), how).record(100, at, how)
    for kind, outcome in told:
        history.tell("told", at + 1, entry="e", start=100, kind=kind, outcome=outcome)
    return history


def held_by_nobody(at: float, *, hit: bool) -> History:
    """A place of a limit is held for 50 s behind its window, where a worker was hit; another window is due at 110."""
    entries = {"e": {"starts": [100], "limit": "few"}, "f": {"starts": [110], "limit": "few"}}
    history = History(entries, limits={"few": 1}, place_late=50).run(100, 100.1)
    if hit:
        history.fault("killed", 100.5, target="worker-2", until=101.5)
    return history.run(110, at, entry="f")


def told_twice(again: float | None = None) -> History:
    """A failure is told at 102, and once more; who doesn't tell is late after 8 s."""
    history = History({"e": {"starts": [100], "on_failure": True}}, told_late=8)
    history.end(100, 101, history.begin(100, 100), "failed").record(100, 101, "failed")
    for at in (102, again):
        if at is not None:
            history.tell("told", at, entry="e", start=100, kind="ended", outcome="failed")
    return history


def no_rest(until: float, at: float) -> History:
    """A window is done late, and isn't told as late: each beat is hit again before it could have said so."""
    history = informed("done", at=at, deadline=20)
    for beat, since in (("beat-1", 118), ("beat-2", 119)):
        for begin in range(since, round(until), 10):
            history.fault("frozen", begin, target=beat, until=begin + 2)
    return history


BREAK: list[tuple[str, Callable[[], History]]] = [
    ("early", lambda: hit("", 99.9)),
    ("not-owed", lambda: History().run(100).run(150)),
    ("not-owed", lambda: edited(description=None).run(500)),
    ("not-owed", lambda: faster(580, 420, 490, 560)),
    ("not-owed", lambda: resumed(100, 200, 300, 500, 600)),
    ("not-owed", lambda: redeployed("edit", 400, 500)),
    ("late", lambda: held_by_nobody(151, hit=False)),
    ("late", lambda: held_by_nobody(153, hit=True)),
    ("late", lambda: hit("", 102)),
    ("late", lambda: hit("lost 100 entry=f", 103)),
    ("late", lambda: in_turn("buffer_all", (105, 156), (110, 157.5))),
    ("late", lambda: in_turn("skip", (105, 120.2))),
    ("late", lambda: sharing(190)),
    ("late-again", lambda: killed(141)),
    ("overlap", lambda: frozen(110)),
    ("beside", lambda: skipping(105.5)),
    ("beside", lambda: in_turn("buffer_all", (105, 106), (110, 121.2))),
    ("limit", lambda: sharing(105)),
    ("limit", lambda: sharing(105, frozen=True)),
    ("turn", lambda: in_turn("buffer_all", (105, 121.5), (110, 120.2))),
    ("turn", lambda: in_turn("buffer_all", (105, 122.5), (110, 120.2)).fault("failover", 122, lose=0.1)),
    ("turn", lambda: put_back(112)),
    ("repeat", again),
    ("again", again),
    ("again", lambda: again(0.5)),
    ("attempts", lambda: attempts(4, 3)),
    ("fence", lambda: fences(2, 2)),
    ("fence", lambda: fences(2, 1)),
    ("grace", lambda: graced(160)),
    ("catch-up", lambda: outage("latest", [100, 300])),
    ("catch-up", lambda: outage("none", [200, 300])),
    ("missed", lambda: History().record(100, 101, "missed")),
    ("missed", lambda: claimed_again(103, lose=1)),
    ("missed", lambda: claimed_again(103, lose=3, catch_up="all")),
    ("missed", lambda: outage("all", [100, 300])),
    ("missed", lambda: outage("latest", [200])),
    ("missed", lambda: outage("latest", [300], tolerance=1000)),
    ("missed", lambda: redeployed("deploy", 500, missed=[300, 400])),
    ("outcome", lambda: failed("done")),
    ("outcome", lambda: attempts(2, 3)),
    ("outcome", lambda: attempts(2, None)),
    ("outcome", lambda: told("nothing", "revoked")),
    ("outcome", lambda: told("nothing", "done")),
    ("outcome", lambda: untracked("untracked")),
    ("outcome", lambda: untracked("failed")),
    ("outcome", lambda: skipping(110, "skipped", due=110)),
    ("outcome", lambda: in_turn("buffer_one", (105, 120.2), (110, "skipped"))),
    ("outcome", lambda: in_turn("buffer_all", (105, "skipped"), (110, 120.2))),
    ("outcome", lambda: in_turn("buffer_all", (105, 120.2), (110, "skipped"))),
    ("lost", History),
    ("lost", lambda: killed(None)),
    ("lost", lambda: redeployed("deploy", 500, missed=[300])),
    ("lost", lambda: deployed(99, 110)),
    ("told", lambda: informed("failed", on_failure=True)),
    ("told", lambda: informed("failed", ("ended", "missed"), on_failure=True)),
    ("told", lambda: informed("done", ("ended", "failed"), on_failure=True)),
    ("told-late", lambda: informed("done", at=900, deadline=20)),
    ("told-late", lambda: informed("failed", deadline=20)),
    ("told-twice", lambda: told_twice(120)),
    ("told-twice", lambda: told_twice(900).fault("frozen", 500, target="beat-1", until=501)),
    ("told-twice", lambda: told_twice(120).fault("killed", 0, target="beat-1", until=None)),
    ("told-twice", lambda: told_twice(105).fault("killed", 103, target="worker-1", until=104)),
    ("told-late", lambda: no_rest(140, at=900)),
    ("told-late", lambda: informed("done", ("late", None), deadline=20)),
    ("law", lambda: law({"done": 1})),
    ("law", lambda: law({"done": 2, "missed": 1})),
    ("short", lambda: History().fault("killed", 4900, target="beat-1", until=4901).run(100)),
]


@pytest.mark.parametrize(("rule", "number"), [(rule, i) for i, (rule, _) in enumerate(BREAK)])
def test_a_history_that_breaks_a_rule_is_found(rule, number):
    """What breaks a rule is found by its name, with entry, start and times."""
    made = BREAK[number][1]()
    judgement = made.judged(healed=4950.0 if rule == "short" else 2000.0)
    assert rule in judgement.found, judgement
    found = next(one for one in judgement.violations if one.rule == rule)
    assert "at" in found.facts
    assert rule in {"law", "short"} or found.start is not None


def test_each_rule_is_broken_here():
    """No rule is without a history that breaks it."""
    assert {rule for rule, _ in BREAK} == set(RULES)


# How late a window may be


def others_busy(history: History, *workers: str) -> History:
    """These workers execute windows of another entry until 108."""
    history.entries["f"] = {"starts": [97, 98]}
    for start, worker in zip((97, 98), workers, strict=False):
        one = history.begin(start, start, worker, "f")
        history.end(start, 108, one, entry="f").record(start, 108, entry="f")
    return history if len(workers) == 2 else history.run(98, 98, "worker-2", "f")


def left_out() -> History:
    history = History().tell("schedule", 50, entry="e", description=None, how="deploy")
    return history.tell("schedule", 130, asked=120, entry="e", description={"starts": [100]}, how="deploy")


def resumed_at(at: float, **settings: Any) -> History:
    return History(**settings).tell("paused", 80, entry="e").tell("resumed", at, entry="e")


def set_at(at: float, description: dict[str, Any]) -> History:
    return History(recovery_interval=2).tell("schedule", at, entry="e", description=description)


SLOW = 60 + 600 + 34
EXPIRES = {"entries": {"e": {"starts": [100], "expires": 50}}}
#: How late it may begin, with what befalls it and the history's settings, or with all that is told before.
LATEST: dict[str, tuple[Any, ...]] = {
    "nothing": (101, ""),
    "a beat is hit": (105.1, "killed beat-1 100.1..101"),
    "both are, one after the other": (109, "killed beat-1 100.1..101; frozen beat-2 104..105"),
    "a beat was hit before": (101, "killed beat-1 95..300"),
    "no beat": (155, "killed beat-1 95..150; killed beat-2 95..150"),
    "no beat was there just before": (103, "killed beat-1 95..98; killed beat-2 95..98"),
    "no beat was there before that": (101, "killed beat-1 95..95.5; killed beat-2 95..95.5"),
    "no beat is there, one is restarted before it would have woken": (
        125, "frozen beat-1 90..900; frozen beat-2 91..900; killed beat-1 95..120"
    ),
    "a beat that is cut off is killed and restarted": (
        155, "cut beat-1 90..150 from=server; frozen beat-2 91..900; killed beat-1 95..120"
    ),
    "the server is away": (185, "away server 100.2..150"),
    "workers try seldom": (211, "away server 100.2..150", {"recovery_interval": 60}),
    "the broker is away": (185, "away broker 99..150"),
    "no worker": (175, "killed worker-1 95..140; killed worker-2 95..140"),
    "its message is lost": (100 + SLOW, "lost 100"),
    "a message was lost before, or later": (101, "lost 102"),
    "its message is delayed": (901, "delayed 100..900"),
    "its message comes twice": (101, "duplicated 100"),
    "a failover": (100.5 + SLOW, "failover 100.5 lose=0"),
    "a failover that takes a while": (120 + SLOW, "failover 100.5..120 lose=0"),
    "a worker's clock goes back": (101, "clock worker-1 99 by=-20"),
    "its worker's clock is ahead, and it expires": (139, "clock worker-1 99 by=51; got worker-1 100", EXPIRES),
    "its worker's clock is ahead, and it expires later": (101, "clock worker-1 99 by=40; got worker-1 100", EXPIRES),
    "another worker's clock is ahead": (101, "clock worker-2 99 by=51; got worker-1 100", EXPIRES),
    "its worker is killed, and had it": (136, "got worker-1 100; killed worker-1 101..102"),
    "its worker is cut off, and had it": (136, "got worker-1 100; cut worker-1 101..130 from=server"),
    "its worker is killed, and had just got it": (100.5 + SLOW, "got worker-1 100; killed worker-1 100.5..102"),
    "another worker is killed": (101, "got worker-1 100; killed worker-2 100.5..102"),
    "all workers are busy": (109, lambda: others_busy(History(), "worker-1", "worker-2")),
    "one worker is busy": (101, lambda: others_busy(History(), "worker-1")),
    "its worker is busy": (109, lambda: others_busy(History(), "worker-1").after("got worker-1 100")),
    "one worker is busy, the other one away": (
        107, lambda: others_busy(History(), "worker-1").after("killed worker-2 99.5..106")
    ),
    "workers execute two at once": (101, lambda: others_busy(History(concurrency=2), "worker-1", "worker-2")),
    "a deploy left it out": (135, left_out),
    "it was resumed just before": (102, lambda: resumed_at(99, recovery_interval=2)),
    "it was resumed before that": (101, lambda: resumed_at(97, recovery_interval=2)),
    "it was set just before": (102, lambda: set_at(99, {"starts": [50, 100]})),
    "it was set when it was due": (101, lambda: set_at(100.5, {"starts": [100], "catch_up": "all"})),
    "its options were set just before": (101, lambda: set_at(99, {"starts": [100], "catch_up": "all"})),
}  # fmt: skip


def befallen(what: str | Callable[[], History], settings: dict[str, Any] | None = None) -> History:
    return History(**(settings or {})).after(what) if isinstance(what, str) else what()


@pytest.mark.parametrize("case", LATEST)
def test_a_window_may_be_so_late_and_no_later(case):
    """The bound follows from the settings and the faults, to the instant."""
    latest, *made = LATEST[case]
    for at, rules in ((latest - 0.05, set()), (latest + 0.05, {"late"})):
        history = befallen(*made)
        history.end(100, at + 0.02, history.begin(100, at, "worker-2")).record(100, at + 0.02)
        assert set(history.judged().found) == rules


@pytest.mark.parametrize("case", LATEST)
def test_a_window_that_never_begins_is_late_too(case):
    """What never began is judged when the history ends, even if nothing says that the faults are over."""
    latest, *made = LATEST[case]
    if latest > max((at for at, _ in befallen(*made).facts), default=0):
        assert set(befallen(*made).judged(latest - 0.05, healed=None).found) == set()
    assert set(befallen(*made).judged(latest + 200, healed=None).found) == {"late"}


def test_when_all_has_ended_is_stated():
    """After the last fault: a message that is lost, one more execution, and what waits for workers."""
    assert settling(Settings.read({**SETTINGS, "entries": {}})) == SLOW + 34 + 20 + 4
    backlog = {"e": {"starts": [90 + number for number in range(8)]}}
    # Eight windows wait, each takes up to ten seconds, and two are executed at once.
    needed = SLOW + 34 + 20 + 4 + 8 * 10 / 2
    assert set(History(backlog).judged(healed=100, end=100 + needed - 1).found) >= {"short"}
    assert set(History(backlog).judged(healed=100, end=100 + needed + 1).found) == {"lost"}


# When another execution may begin


def second_at(at: float, faults: str, *, known: float = END, **settings: Any) -> set[str]:
    """The first execution runs from 100 to 200; which rules break if another one begins at that time."""
    history = History(**settings).after(faults).after("got worker-1 99.5")
    history.facts = [fact for fact in history.facts if fact[0] <= known]
    one, two = history.begin(100, 100), history.begin(100, at, "worker-2")
    history.end(100, at + 0.2, two).end(100, max(200, at + 1), one, "stale")
    return set(history.record(100, at + 0.2).judged().found)


CUT = "cut worker-1 101..150 from=server"
EARLIEST = {
    # 30 s of lease, of which the last renewal may have taken 10 and noise 1.
    "cut off": (120, CUT),
    "frozen": (120, "frozen worker-1 101..150"),
    "the server is away": (120, "away server 101..150"),
    "cut off and back, but for less than a second": (
        120, "cut worker-1 101..110 from=server; cut worker-1 110.95..150 from=server"
    ),
    "cut off, and again after a second": (
        130.1, "cut worker-1 101..110 from=server; cut worker-1 111.1..150 from=server"
    ),
    "a failover that lost its begin": (109.9, "failover 109.9 lose=9"),
    "a failover that lost its renewals": (125, "failover 125 lose=19"),
}  # fmt: skip
NEVER = {
    "nothing": "",
    "another worker is cut off": "cut worker-2 101..140 from=server",
    "only the broker doesn't hear of it": "cut worker-1 101..150 from=broker",
    "cut off for less": "cut worker-1 101..119.9 from=server",
    "cut off before it began": "cut worker-1 60..98.9 from=server",
    "a worker's clock goes on": "clock worker-1 105 by=100",
    "a failover that lost what was written later": "failover 110.1 lose=9",
    "a failover that lost less than a lease": "failover 125 lose=18.9",
    "a failover that lost nothing": "failover 102 lose=0",
    "a failover after it": "failover 160 lose=100",
    "a failover before it": "failover 98 lose=100",
    "its message comes twice": "duplicated 101",
}


@pytest.mark.parametrize("case", EARLIEST)
def test_another_execution_may_begin_then_and_no_earlier(case):
    """An overlap is allowed from the instant on at which the first one may have lost its lease."""
    earliest, faults = EARLIEST[case]
    assert second_at(earliest + 0.05, faults) == set()
    assert second_at(earliest - 0.05, faults, known=earliest - 0.05) == {"overlap"}


@pytest.mark.parametrize("case", NEVER)
def test_another_execution_may_never_begin(case):
    """What isn't out of contact for longer than its lease keeps its window."""
    assert second_at(150, NEVER[case]) == {"overlap"}


def test_the_noise_of_renewals_may_be_less_than_that_of_begins():
    """Where a simulation knows it, an overlap is allowed no earlier than the lease may really have passed."""
    assert second_at(120.5, CUT) == set()
    assert second_at(120.5, CUT, renew_noise=0.1) == {"overlap"}
    assert second_at(121, CUT, renew_noise=0.1) == set()


def test_replicas_that_are_waited_for_lose_nothing():
    """With wait_replicas a failover allows no second execution."""
    assert second_at(150, "failover 102 lose=100") == set()
    assert second_at(150, "failover 102 lose=100", wait_replicas=1) == {"overlap"}


def repeated(kind: str, at: float, **fault: Any) -> set[str]:
    """What is done from 100 to 105 runs again at 150; which rules break."""
    history = History().fault(kind, at, **fault)
    history.end(100, 105, history.begin(100, 100))
    return set(history.run(100, 150, "worker-2").judged().found)


@pytest.mark.parametrize(
    ("kind", "first", "last", "fault"),
    [
        ("killed", 104, 107, {"target": "worker-1", "until": 400}),
        ("frozen", 104, 107, {"target": "worker-1", "until": 400}),
        ("away", 104, 107, {"target": "server", "until": 107}),
        ("failover", 99, 115, {"lose": 9}),
    ],
)
def test_an_end_may_be_unknown_only_if_its_process_was_hit_then(kind, first, last, fault):
    """What was hit a second before its end, or two after it, or lost by a failover, may run again; nothing else."""
    if kind != "failover":
        assert repeated(kind, first + 0.05, **fault) == set()
    assert repeated(kind, last - 0.05, **fault) == set()
    assert repeated(kind, last + 0.05, **fault) == {"repeat"}
    if "until" in fault:
        fault = {**fault, "until": first - 0.02}
    assert repeated(kind, first - 0.05, **fault) == {"repeat"}


# A task's own retries


def test_the_retries_of_a_task_are_one_attempt():
    """Between two of them the window has not ended, and it counts as one execution of max_attempts."""
    history = History({"e": {"starts": [100], "max_attempts": 1}})
    for at in (100, 110, 120):
        history.end(100, at + 1, history.begin(100, at), "retried")
    assert history.run(100, 130).judged().clean
    assert set(history.run(100, 140).judged().found) == {"attempts", "repeat", "again"}
    history = History()
    history.end(100, 101, history.begin(100, 100), "retried")
    assert set(history.record(100, 102).judged().found) == {"outcome"}


@pytest.mark.parametrize(
    ("waited", "found"),
    [
        ((), "late"),
        ([Wait(99, 105, QUEUE)], None),
        ([Wait(99, 105, "worker-1")], None),
        ([Wait(90, 137, "beat-1"), Wait(95, 135, "beat-2")], None),
        ([Wait(90, 137, "beat-1"), Wait(95, 120, "beat-2")], "late"),
        ([Wait(99, 105, "worker-2")], "late"),
        ([Wait(99, 103, QUEUE)], "late"),
        ([Wait(141, 150, QUEUE)], "late"),
    ],
)
def test_what_waits_unseen_may_be_late(waited, found):
    """Only what delays this window: its worker, a queue, or beats that all wait. It is as late as if they were away."""
    assert set(judge(hit("", 139).lines(), waited).found) == ({found} if found else set())


def test_what_waits_doesnt_make_a_fault_of_others_its_own():
    """Another worker that is hit while one beat waits allows nothing."""
    history = hit("", 139).fault("killed", 103, target="worker-2", until=104)
    assert set(judge(history.lines(), [Wait(100, 105, "beat-1")]).found) == {"late"}


@pytest.mark.parametrize(
    ("who", "found"),
    [(["beat-1", "beat-2"], None), ([""], None), (["beat-1"], "missed"), (["worker-1", "worker-2", QUEUE], "missed")],
)
def test_what_no_beat_claimed_while_each_waited_may_be_missed(who, found):
    """It is missed only if no beat could claim it: that another one waits excuses none."""
    history = History({"e": {"starts": [100, 200], "catch_up": "latest"}}).record(100, 200.1, "missed").run(200, 200.5)
    judged = judge(history.lines(), [Wait(95, 199, each) for each in who])
    assert set(judged.found) == ({found} if found else set())


def test_what_no_beat_claimed_before_a_deploy_is_lost_only_if_one_could():
    """A deploy overtakes what is due, as each beat waits to try again (docs/failures.md)."""
    history = History({"e": {"starts": [100, 200]}}).run(200)
    history.tell("schedule", 112, asked=111, entry="e", description={"starts": [200]}, how="deploy")
    both = [Wait(95, 110, beat) for beat in ("beat-1", "beat-2")]
    assert judge(history.lines(), both).clean
    assert set(judge(history.lines(), both[:1]).found) == {"lost"}


# Reading


def test_a_history_without_begin_or_end_is_refused():
    """A history that was cut off isn't judged."""
    lines = History().lines()
    for part, expected in ((lines[:-1], "without its end"), (lines[1:], "first line"), ([], "empty")):
        with pytest.raises(HistoryError, match=expected):
            judge(part)


def test_a_lease_that_says_nothing_is_refused():
    """Settings with which every overlap would be allowed are no settings."""
    with pytest.raises(HistoryError, match="lease: found 2, expected more than renew and its noise together"):
        History(lease=2, renew=1).judged()
