"""What only the simulator knows: what it finds wrong besides the judge, and what it takes back of what that found."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from simulation.judge_history import QUEUE, Wait
from simulation.test_judge import History
from simulation.verdict import judged, rule_of
from simulation.world import Books

BEATS, WORKERS = ["beat1", "beat2"], ["worker1", "worker2"]
END = 5000.0


class Noted(History):
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

    def send(self, start: float, *sends: tuple[float, str]) -> Noted:
        self.sent["e", start] = list(sends)
        return self

    def execute(self, start: float, at: float, until: float, how: str = "done", n: int = 1, **fact: Any) -> Noted:
        """An execution in the worker of this number; its fence is the time in ms, unless another is given."""
        one = self.begin(start, at, f"worker{n}", fence=fact.pop("fence", round(at * 1000)))
        self.tell("ended", until, entry="e", start=start, execution=one, how=how, **fact)
        return self

    def judged(self) -> tuple[set[str], set[str]]:  # type: ignore[override]
        """The rules that are broken, and what was taken back."""
        self.tell("paused", 4000.0, entry="other")  # as at each episode's end: until then all has to be calm
        lines = [json.loads(line) for line in self.lines(END, 2000.0)]
        result = Books(
            lines, sent=self.sent, stale=self.stale, refused=self.refused, waited=self.waited,
            told={"e": self.description}, children=self.children,
        )  # fmt: skip
        return {rule_of(line) for line in judged(result)}, set(result.counted)


def fine(**description: Any) -> Noted:
    """One window is done; the other one, too."""
    books = Noted(**description)
    for start in (100, 200):
        books.execute(start, start + 0.1, start + 1).record(start, start + 1)
    return books


def second(books: Noted) -> Noted:
    """The second window is done."""
    return books.execute(200, 200.1, 201).record(200, 201)


def killed(books: Noted) -> Noted:
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


def untold() -> Noted:
    """Two executions of a window end as done, the first one behind the second one's begin, and isn't told so."""
    books = Noted().fault("frozen", 101, target="worker1", until=140)
    return second(books.execute(100, 100.1, 150).execute(100, 135, 150.5, n=2).record(100, 150.5))


def told_stale() -> Noted:
    """An execution is told that another one began, and none did."""
    books = Noted().execute(100, 100.1, 150)
    books.stale.append(("e", 100, 100_100, 149.0))
    return second(books.record(100, 151))


def copied(by: str) -> Noted:
    """A window's message is sent again after 20 s, while the first one waits in the queue."""
    books = Noted().execute(100, 121, 122).record(100, 122).send(100, (100, "beat1-1"), (120, by))
    books.waited.append(Wait(99, 121, QUEUE))
    return second(books)


def refused() -> Noted:
    """A copy is refused since another runs; that one ran until 101."""
    books = fine()
    books.refused.append(("e", 100, "running", 110, ("worker2",)))
    return books


def again_after_failure() -> Noted:
    """Sooner than after its ten seconds."""
    books = Noted(retry_failed_after=10.0, retry_failed=True)
    books.execute(100, 100.1, 101, "failed", final=True)
    return second(books.execute(100, 106, 107).record(100, 107))


def ends(how: str, outcome: str) -> Noted:
    return second(Noted().execute(100, 100.1, 101, how, final=how == "failed").record(100, 101, outcome))


def fences() -> Noted:
    """A worker dies, and its pool gives what it had to another child, which begins with the same fence."""
    books = killed(Noted()).execute(100, 100.1, 101, "killed", fence=7).execute(100, 104, 105, fence=7)
    return second(books.record(100, 105))


#: A rule → a history that breaks it.
OWN: dict[str, Callable[[], Noted]] = {
    "untold": untold,
    "no-stale": told_stale,
    "mutex": lambda: fine().send(100, (100.0, "beat1-1"), (100.1, "beat2-1")),
    "copies": lambda: copied("beat1-1"),
    "refused": refused,
    "soon": again_after_failure,
    "stale-end": lambda: ends("failed", "done"),
    "given-up": lambda: ends("retried", "failed"),
    "same-fence": fences,
}


@pytest.mark.parametrize("rule", OWN)
def test_a_rule_of_the_books(rule: str) -> None:
    """A history that breaks it is found."""
    assert rule in OWN[rule]().judged()[0]


def test_a_parent_that_was_held_up_sends_its_child_too() -> None:
    """By then a beat has sent it; the worker refuses the copy."""
    assert copied("worker1-1").judged()[0] == set()


def beside(**description: Any) -> Noted:
    """A window begins while another one runs."""
    books = Noted(starts=[100, 105, 200], **description)
    books.settings["limits"] = {"few": 1}
    books.execute(100, 100.1, 108).execute(105, 105.1, 106, n=2).record(105, 106)
    return second(books.record(100, 108))


def paused() -> Noted:
    """An entry is paused until 145; a window of 150 runs that it doesn't have."""
    books = Noted().execute(100, 100.1, 101).record(100, 101)
    books.tell("paused", 140, entry="e", asked=140).tell("resumed", 145, entry="e", asked=145)
    return second(books.execute(150, 160.5, 161).record(150, 161))


def left() -> Noted:
    """An edit takes an entry out of the schedule while one of its windows is open."""
    books = fine(starts=[100, 150, 200])
    return books.tell("schedule", 1000, entry="e", description=None, how="edit", asked=1000)


def skipped() -> Noted:
    """A window is skipped, and no newer one runs."""
    books = Noted(starts=[100, 105, 200], overlap="skip").fault("lost", 100.1, entry="e", start=100)
    return second(books.record(100, 106, "skipped").record(105, 109))


def by_fence() -> Noted:
    """An execution that was frozen ends as done; the other one, with a larger fence, began meanwhile."""
    books = Noted().fault("frozen", 134, target="worker2", until=135)
    books.fault("frozen", 100.2, target="worker1", until=150)
    books.execute(100, 100.1, 151, fence=3).execute(100, 135, 152, "stale", n=2, fence=5)
    return second(books.record(100, 151))


def executed() -> Noted:
    """A window that may be executed twice runs four times."""
    books = Noted(max_attempts=2, retry_failed=True)
    for at in range(100, 140, 10):
        books.execute(100, at + 0.1, at + 1, "failed", final=True)
    return second(books.record(100, 140, "failed"))


def given_up_early() -> Noted:
    """A window runs after it was given up, and its worker hadn't slept between its begin and its first line."""
    books = Noted().tell("revoked", 103, entry="e", start=100).record(100, 103, "revoked")
    return second(books.execute(100, 110, 111, "stale", fence=100_200))


#: What may be taken back, and its rule → a history in which the rule stays broken.
EXCUSES: dict[tuple[str, str], Callable[[], Noted]] = {
    ("beside one that was given up", "beside"): lambda: beside(overlap="skip"),
    ("beside one that was given up", "limit"): lambda: beside(limit="few"),
    ("given up by order", "outcome"): lambda: second(Noted().record(100, 103, "revoked")),
    ("given up before its first line", "again"): given_up_early,
    ("told apart by the fence", "outcome"): by_fence,
    ("of a pause", "not-owed"): paused,
    ("of an entry that left", "lost"): left,
    ("given up after deaths", "outcome"): lambda: second(
        killed(Noted(max_attempts=2)).execute(100, 100.1, 101, "killed").record(100, 170, "failed")
    ),
    ("skipped for another", "outcome"): skipped,
    ("ordered: as many again", "attempts"): executed,
}


@pytest.mark.parametrize("case", EXCUSES, ids=" ".join)
def test_what_is_not_taken_back(case: tuple[str, str]) -> None:
    """What the judge can't know is taken back and counted under ``happened:``, and no more than that."""
    why, rule = case
    wrong, taken_back = EXCUSES[case]().judged()
    assert rule in wrong
    assert why not in taken_back
