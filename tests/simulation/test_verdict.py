"""What only the simulator knows: what it finds wrong besides the judge, and what it takes back of what that found."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from simulation.episode import Result
from simulation.judge_history import QUEUE, Wait
from simulation.test_judge import History
from simulation.verdict import judged, rule_of

BEATS, WORKERS = ["beat1", "beat2"], ["worker1", "worker2"]
END = 5000.0


class Books(History):
    """A history, and what the simulator noted besides."""

    def __init__(self, **description: Any) -> None:
        self.description = {"starts": [100, 200], "task": "once", "max_attempts": 3, **description}
        settings = {"wait_replicas": 0, "recovery_interval": 1, "longest": 60}
        super().__init__({"e": self.description}, beats=BEATS, workers=WORKERS, **settings)
        self.sent: dict[tuple[str, float], list[tuple[float, str]]] = {}
        self.stale: list[tuple[str, float, int | None, float]] = []
        self.refused: list[tuple[str, float, str, float, tuple[str, ...]]] = []
        self.waited: list[Wait] = []
        self.children: dict[tuple[str, float], float] = {}

    def send(self, start: float, *sends: tuple[float, str]) -> Books:
        self.sent["e", start] = list(sends)
        return self

    def execute(self, start: float, at: float, until: float, how: str = "done", n: int = 1, **fact: Any) -> Books:
        """An execution in the worker of this number; its fence is the time in ms, unless another is given."""
        one = self.begin(start, at, f"worker{n}", fence=fact.pop("fence", round(at * 1000)))
        self.tell("ended", until, entry="e", start=start, execution=one, how=how, **fact)
        return self

    def judged(self) -> tuple[set[str], set[str]]:  # type: ignore[override]
        """The rules that are broken, and what was taken back."""
        self.tell("paused", 4000.0, entry="other")  # as at each episode's end: until then all has to be calm
        lines = [json.loads(line) for line in self.lines(END, 2000.0)]
        result = Result(
            lines, 2, 0, sent=self.sent, stale=self.stale, refused=self.refused, waited=self.waited,
            told={"e": self.description}, children=self.children,
        )  # fmt: skip
        return {rule_of(line) for line in judged(result)}, set(result.counted)


def fine(**description: Any) -> Books:
    """One window is done; the other one, too."""
    books = Books(**description)
    for start in (100, 200):
        books.execute(start, start + 0.1, start + 1).record(start, start + 1)
    return books


def second(books: Books) -> Books:
    """The second window is done."""
    return books.execute(200, 200.1, 201).record(200, 201)


def killed(books: Books) -> Books:
    """The first window's worker is killed in its body."""
    return books.fault("killed", 101.0, target="worker1", until=103.0)


def test_what_is_fine() -> None:
    """Nothing is wrong, and nothing had to be taken back."""
    assert fine().judged() == (set(), set())


def test_a_child_that_is_lost() -> None:
    """One that was opened for certain has to end; one that has its outcome isn't lost."""
    for name, wrong in (("e", set()), ("child:t@e:key", {"child"})):
        books = fine()
        books.children = {(name, 100): 101.0}
        assert books.judged() == (wrong, {"children"})


def untold(*, told: bool) -> Books:
    """Two executions of a window end as done, the first one behind the second one's begin."""
    books = Books().fault("frozen", 101, target="worker1", until=140)
    books.execute(100, 100.1, 150).execute(100, 135, 150.5, n=2).record(100, 150.5)
    books.stale += [("e", 100, 100_100, 150.0)] if told else []
    return second(books)


def told_stale(*, another: bool) -> Books:
    """An execution is told that another one began."""
    books = Books().execute(100, 100.1, 150)
    if another:
        books.fault("frozen", 100.5, target="worker1", until=149).execute(100, 135, 150.5, n=2)
    books.stale.append(("e", 100, 100_100, 149.0))
    return second(books.record(100, 151))


def sent_twice(*, slow: bool) -> Books:
    books = fine().send(100, (100.0, "beat1-1"), (100.1, "beat2-1"))
    if slow:
        books.fault("frozen", 99.5, target="beat1", until=100.05)
    return books


def copied(*, lost: bool, by: str = "beat1-1") -> Books:
    """A window's message is sent again after 20 s: the first one waits in the queue, or was lost with its broker."""
    books = Books().execute(100, 121, 122).record(100, 122).send(100, (100, "beat1-1"), (120, by))
    if lost:
        books.fault("away", 99, target="broker", until=103)
    books.waited.append(Wait(99, 121, QUEUE))
    return second(books)


def refused(at: float) -> Books:
    """A copy is refused since another runs; that one runs until 101."""
    books = fine()
    books.refused.append(("e", 100, "running", at, ("worker2",)))
    return books


def again_after_failure(wait: float) -> Books:
    books = Books(retry_failed_after=10.0, retry_failed=True)
    books.execute(100, 100.1, 101, "failed", final=True)
    return second(books.execute(100, 101 + wait, 102 + wait).record(100, 102 + wait))


def ends(how: str, outcome: str) -> Books:
    return second(Books().execute(100, 100.1, 101, how, final=how == "failed").record(100, 101, outcome))


def fences(*, failover: bool) -> Books:
    """A worker dies, and its pool gives what it had to another child, which begins with the same fence."""
    books = killed(Books()).execute(100, 100.1, 101, "killed", fence=7).execute(100, 104, 105, fence=7).record(100, 105)
    if failover:
        books.fault("failover", 103, lose=5.0)
    return second(books)


#: A rule → a history that keeps it, or breaks it.
OWN: dict[str, Callable[[bool], Books]] = {
    "untold": lambda keeps: untold(told=keeps),
    "no-stale": lambda keeps: told_stale(another=keeps),
    "mutex": lambda keeps: sent_twice(slow=keeps),
    "copies": lambda keeps: copied(lost=keeps),
    "refused": lambda keeps: refused(100.9 if keeps else 110),
    "soon": lambda keeps: again_after_failure(10.5 if keeps else 5),
    "stale-end": lambda keeps: ends("done" if keeps else "failed", "done"),
    "given-up": lambda keeps: ends("failed" if keeps else "retried", "failed"),
    "same-fence": lambda keeps: fences(failover=keeps),
}


@pytest.mark.parametrize("rule", OWN)
def test_a_rule_of_the_books(rule: str) -> None:
    """A history that keeps it is clean, one that breaks it is found."""
    assert OWN[rule](True).judged()[0] == set()
    assert rule in OWN[rule](False).judged()[0]


def test_a_parent_that_was_held_up_sends_its_child_too() -> None:
    """By then a beat has sent it; the worker refuses the copy."""
    assert copied(lost=False, by="worker1-1").judged()[0] == set()


def given_up(*, ordered: bool) -> Books:
    """People give up a window while it runs; the next one begins beside it."""
    books = Books(starts=[100, 105, 200], overlap="skip")
    if ordered:
        books.tell("revoked", 103, entry="e", start=100).record(100, 103, "revoked")
    books.execute(100, 100.1, 108).execute(105, 105.1, 106, n=2).record(105, 106)
    return second(books if ordered else books.record(100, 108))


def paused(until: float) -> Books:
    """An entry is paused; after it runs what only a pause can owe."""
    books = Books()
    books.execute(100, 100.1, 101).record(100, 101)
    books.tell("paused", 140, entry="e", asked=140).tell("resumed", until, entry="e", asked=until)
    return second(books.execute(150, 160.5, 161).record(150, 161))


def left(how: str) -> Books:
    """An entry leaves the schedule while one of its windows is open."""
    books = fine(starts=[100, 150, 200])
    return books.tell("schedule", 1000, entry="e", description=None, how=how, asked=1000)


def deaths(*, unseen: bool) -> Books:
    """A window fails at its limit of two; it is seen to begin once, and once its worker is killed before that."""
    books = killed(Books(max_attempts=2))
    books.execute(100, 100.1, 101, "killed")
    if unseen:
        for worker in WORKERS:
            books.tell("received", 135, entry="e", start=100, process=worker)
        books.fault("killed", 135.1, target="worker2", until=137)
    return second(books.record(100, 170, "failed"))


def skipped(*, newer: bool) -> Books:
    """A window is skipped as a newer one runs, or as none does."""
    books = Books(starts=[100, 105, 200], overlap="skip").fault("lost", 100.1, entry="e", start=100)
    if newer:
        books.execute(105, 105.1, 109)
    return second(books.record(100, 106, "skipped").record(105, 109))


def by_fence(fence: int) -> Books:
    """An execution that was frozen ends as done, with this fence; the other one, with a 5, began meanwhile."""
    books = Books().fault("frozen", 134, target="worker2", until=135)
    books.fault("frozen", 100.2, target="worker1", until=150)
    books.execute(100, 100.1, 151, fence=fence).execute(100, 135, 152, "stale", n=2, fence=5)
    return second(books.record(100, 151))


def executed(times: int, *, ordered: bool) -> Books:
    """A window that may be executed twice runs more often, by order or without."""
    books = Books(max_attempts=2, retry_failed=True)
    for at in range(100, 100 + 10 * times, 10):
        books.execute(100, at + 0.1, at + 1, "failed", final=True)
    books.record(100, 100 + 10 * times, "failed")
    return second(books.tell("asked", 115, entry="e", start=100) if ordered else books)


def abandoned(*, ordered: bool) -> Books:
    """A window ends as revoked, by an order of which it is heard only later, or by none."""
    books = Books().record(100, 103, "revoked")
    return second(books.tell("revoked", 106, entry="e", start=100) if ordered else books)


def given_up_early(*, slept: bool) -> Books:
    """A window runs after it was given up: its worker slept between its begin and its first line, or didn't."""
    books = Books().tell("revoked", 103, entry="e", start=100).record(100, 103, "revoked")
    books.tell("received", 100.15, entry="e", start=100, process="worker1")
    if slept:
        books.fault("frozen", 100.2, target="worker1", until=110)
    return second(books.execute(100, 110, 111, "stale", fence=100_200))


def by_place(*, ordered: bool) -> Books:
    """Of two windows that share one place the first is given up while it runs, or isn't."""
    books = Books(starts=[100, 105, 200], limit="few")
    books.settings["limits"] = {"few": 1}
    if ordered:
        books.tell("revoked", 103, entry="e", start=100).record(100, 103, "revoked")
    books.execute(100, 100.1, 108).execute(105, 105.1, 106, n=2).record(105, 106)
    return second(books if ordered else books.record(100, 108))


#: What is taken back, and its rule → a history in which it is, or one in which the rule stays broken.
EXCUSES: dict[tuple[str, str], Callable[[bool], Books]] = {
    ("beside one that was given up", "beside"): lambda excused: given_up(ordered=excused),
    ("beside one that was given up", "limit"): lambda excused: by_place(ordered=excused),
    ("given up by order", "outcome"): lambda excused: abandoned(ordered=excused),
    ("given up before its first line", "again"): lambda excused: given_up_early(slept=excused),
    ("told apart by the fence", "outcome"): lambda excused: by_fence(9 if excused else 3),
    ("of a pause", "not-owed"): lambda excused: paused(160 if excused else 145),
    ("of an entry that left", "lost"): lambda excused: left("deploy" if excused else "edit"),
    ("given up after deaths", "outcome"): lambda excused: deaths(unseen=excused),
    ("skipped for another", "outcome"): lambda excused: skipped(newer=excused),
    ("ordered: as many again", "attempts"): lambda excused: executed(4, ordered=excused),
}


@pytest.mark.parametrize("case", EXCUSES, ids=" ".join)
def test_what_is_taken_back(case: tuple[str, str]) -> None:
    """What the judge can't know is taken back and counted, and no more than that."""
    why, rule = case
    excused, broken = (EXCUSES[case](excused).judged() for excused in (True, False))
    assert excused[0] == set()
    assert why in excused[1]
    assert rule in broken[0]
    assert why not in broken[1]
