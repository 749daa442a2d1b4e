"""How a window stands, and how it ends: each state once. The CLI, the board, metrics, logs and docs read it here.

A new outcome is a row here, and the Lua that records it; CONTRIBUTING.md says where the docs name it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class State:
    """How a window that is open stands."""

    #: As in the store, in JSON and in the labels of metrics.
    name: str
    #: What it means, for people.
    meaning: str
    #: On a terminal. On the board ``board.css`` says that, and the shape; a state without a rule is an amber square.
    colour: str
    #: Another word for it, for people; '': its name.
    word: str = ""

    @property
    def said(self) -> str:
        """What people call it."""
        return self.word or self.name


@dataclass(frozen=True, slots=True)
class Outcome(State):
    """How a window ended."""

    #: The ``action`` of the log line that says so; '': nothing is logged.
    action: str = ""
    #: How much its entry needs attention while this is its last window; 0: not at all.
    urgency: int = 0


_OUTCOMES = (
    Outcome("done", "executed, and recorded", "green"),
    Outcome("failed", "its task failed, and so did the task's own retries", "red", action="window_failed", urgency=4),
    Outcome("abandoned", "too many of its executions died", "red", action="window_abandoned", urgency=5),
    Outcome("dropped", "its execution died, and it isn't to be recovered", "red", action="window_dropped", urgency=5),
    Outcome("expired", "its message expired before a worker took it", "yellow", action="window_expired", urgency=3),
    Outcome("revoked", "its task was revoked", "yellow", action="window_revoked"),
    Outcome("cancelled", "somebody gave it up, by abandon or resume --from-now", "yellow"),
    Outcome("missed", "it was too late for catch_up or grace", "yellow", action="window_missed", urgency=3),
    Outcome(
        "skipped", "another window of its entry was still running, or waited instead", "yellow", action="window_skipped"
    ),
)
_OPEN = (
    State("running", "a worker executes it", "cyan"),
    State("published", "no worker has begun it yet", "cyan", word="waits"),
    State("waiting", "for a retry, or to run again", "cyan", word="waits again"),
    State("buffered", "for another window of its entry, or for a slot of its limit", "cyan", word="waits its turn"),
    State("overdue", "it should have happened, and didn't: a beat publishes it again", "red"),
)
#: A state that a newer version or another program wrote.
OTHER = State("other", "this version doesn't know it", "")

#: How a window ends, by name, in the order in which people are shown the outcomes.
OUTCOMES = {outcome.name: outcome for outcome in _OUTCOMES}
#: How an open window stands, by name.
OPEN = {state.name: state for state in _OPEN}
#: All of them by name.
STATES: dict[str, State] = {"done": OUTCOMES["done"], **OPEN, **OUTCOMES, OTHER.name: OTHER}

#: The names under which the store counts an entry's windows. Untracked ones are closed when they are claimed.
COUNTED = (*OUTCOMES, "untracked")
#: Somebody has to act: at so much urgency an outcome counts as a failure of the entry (``pause_after_failures``).
_FAILURE = 4
#: The outcomes that count so. The others say nothing of whether the task works.
FAILED_AS = frozenset(name for name, outcome in OUTCOMES.items() if outcome.urgency >= _FAILURE)
#: The outcomes with which a rule of the entry ends a window, when a beat looks at what is overdue or a worker asks to
#: begin; or a feature's verdict does. A begin whose reply was lost is answered so again.
ENDED_BY_RULE = frozenset({"abandoned", "dropped", "expired", "missed", "skipped"})
#: A window that ended so is late no more: it is done, or the user wanted it to end so.
NOT_LATE = ("done", "cancelled", "skipped")
