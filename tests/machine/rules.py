"""What the rules of the state machine have in common: the run's limits, and what a verb may say."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from machine.world import OFF, Told, World

from celery_once_beat.rules.policy import EntryPolicy
from celery_once_beat.store import model as r
from celery_once_beat.windows import WindowKey

START_TIMEOUT = 600.0 + OFF

several = st.integers(0, 50)
maybe = st.booleans()
rarely = st.sampled_from([False, False, False, True])
entries = st.sampled_from(["tracked", "tracked", "other", "untracked"])


class Rules(RuleBasedStateMachine):
    """One run's world and limits; ``begun`` are the fences under which a window began, since its last backfill."""

    world: World
    policy: EntryPolicy
    expires: float | None
    #: What is to be said of windows: the limits of that.
    told: dict[str, object]
    begun: dict[tuple[WindowKey, int], set[int]]
    names: int

    def new_name(self, what: str) -> str:
        self.names += 1
        return f"{what}{self.names}"

    @staticmethod
    def pick(items, which):
        return items[which % len(items)]

    def ends(self, window: WindowKey, outcome: str = ""):
        """What a verb says that may close ``window``: with the outcome that it was given, or that it names."""

        def told(reply, *_):
            if isinstance(reply, r.Finished):
                return Told([(window, outcome)], entry=window.entry)
            if isinstance(reply, r.Closed) and reply.outcome:
                self.check_limit(window, reply.outcome)
                return Told([(window, reply.outcome)], entry=window.entry)
            return Told(entry=window.entry)

        return told

    def check_limit(self, window: WindowKey, outcome: str) -> None:
        """Nothing is given up but by a limit that somebody set and that was reached."""
        owners = [e.owner for e in self.world.running if e.message.window == window and e.until > self.world.time]
        assert self.world.lossy or not owners, f"{window} is {outcome} while {owners} have it"
        executions = len(self.begun.get((window, self.world.backfills[window]), ()))
        allowed = {
            "abandoned": executions >= self.limits["max_attempts"],
            "dropped": not self.limits["recover"] and executions >= 1,
            "expired": self.expires is not None,
            "missed": self.limits["grace"] is not None and not executions,
        }
        assert self.world.lossy or allowed.get(outcome, True), f"{window} is {outcome} after {executions} executions"


def nothing(*_):
    return Told()
