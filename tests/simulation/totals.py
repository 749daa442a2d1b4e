"""What became of many episodes, whichever processes played them."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

from .faults import cells
from .world import Books


@dataclass
class Played:
    """What became of one episode: what is told of it when many are played, also from another process."""

    number: int
    #: Of its history.
    digest: str
    windows: int
    faults: int
    steps: int
    #: Seconds.
    cpu: float
    wrong: list[str]
    counted: dict[str, int]
    #: State, verb, fault, how often.
    coverage: list[tuple[str, str, str, int]]

    @classmethod
    def of(cls, number: int, result: Books, wrong: list[str], cpu: float) -> Played:
        digest = hashlib.sha256("".join(line + "\n" for line in result.lines()).encode()).hexdigest()
        coverage = [(*cell, times) for cell, times in result.coverage.items()]
        return cls(number, digest, result.windows, result.faults, result.steps, cpu, wrong, result.counted, coverage)

    def tell_wrong(self, seed: int) -> None:
        for line in self.wrong:
            print(f"seed {seed}, episode {self.number}: {line}", flush=True)


class Total:
    """What became of many episodes. The digest doesn't depend on how many processes played them."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.windows = self.faults = self.episodes = self.steps = self.wrong = 0
        self.cpu = 0.0
        self.counted: Counter[str] = Counter()
        self.coverage: Counter[tuple[str, str, str]] = Counter()

    def add(self, played: Played) -> None:
        """Add the next episode: they come by their numbers."""
        self.digest.update(bytes.fromhex(played.digest))
        self.windows += played.windows
        self.faults += played.faults
        self.steps += played.steps
        self.cpu += played.cpu
        self.counted.update(played.counted)
        for state, verb, fault, number in played.coverage:
            self.coverage[state, verb, fault] += number
        self.episodes += 1
        self.wrong += len(played.wrong)

    def tell(self) -> None:
        """Print all of it; the digest comes last."""
        print("happened: " + ", ".join(f"{what} {number}" for what, number in sorted(self.counted.items())))
        reached = {(verb, fault) for _, verb, fault in self.coverage}
        never = [f"{verb} {fault}" for verb, fault in cells() if (verb, fault) not in reached]
        print(
            f"reached: {len(self.coverage)} of (state, verb, fault), {len(reached)} of {len(cells())} of (verb, fault)"
        )
        print("never reached: " + (", ".join(never) or "none"))
        print(self)
        print(self.digest.hexdigest())

    def __str__(self) -> str:
        return (
            f"{self.windows} windows, {self.faults} faults, {self.episodes} episodes, {self.steps} steps, "
            f"{self.wrong} wrong, {self.cpu:.0f} s of CPU"
        )
