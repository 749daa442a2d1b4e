"""Which faults there are, and a plan of them from a seed: the same seed, the same plan."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One fault of a plan, ``at`` seconds after the beginning, for ``seconds`` where it lasts; ``who`` picks whom."""

    at: float
    kind: str
    who: int
    seconds: float


#: Kind → how often it comes beside the others, and for how many seconds: from, to.
_EVERYWHERE = {
    "beat killed": (8, 0, 0),
    "worker killed": (8, 0, 0),
    "pool child killed": (4, 0, 0),
    "beat frozen": (5, 0.5, 20),
    "worker frozen": (6, 0.5, 6),
    "beat ended": (3, 0, 0),
    "worker ended": (3, 0, 0),
    "store killed, restarted from its AOF": (3, 0, 2),
    "store frozen": (3, 0.5, 4),
    "store slow": (3, 1, 4),
    "store flushed": (0.4, 0, 0),
    "store connections cut": (6, 0, 0),
    "store black hole": (5, 0.5, 5),
    "replies of the store lost": (6, 0.3, 2),
    "store link slow": (3, 1, 4),
    "broker frozen": (2, 0.5, 4),
    "broker connections cut": (4, 0, 0),
    "broker black hole": (3, 0.5, 5),
    "clock jumps": (6, 0, 0),
    "messages doubled": (6, 0, 0),
    "queue purged": (3, 1, 3),
}
#: Kind of broker → its faults: all of them befall both, but what it starts again from.
FAULTS = {
    "redis": {**_EVERYWHERE, "broker killed, restarted from its AOF": (2, 0, 2)},
    "rabbitmq": {**_EVERYWHERE, "broker killed, restarted with its durable queues": (2, 0, 2)},
}


def plan(seed: int, seconds: float, every: float, kinds: Mapping[str, tuple[float, float, float]]) -> list[Fault]:
    """Faults for a run of ``seconds``, one every ``every`` seconds on average; each kind in turn comes first once."""
    rng = random.Random(seed)
    names, weights = list(kinds), [weight for weight, _, _ in kinds.values()]
    # Each kind at least once, if there is time: a short run misses none by chance.
    coming = rng.sample(names, len(names))
    faults, at = [], 0.0
    while True:
        at += rng.uniform(0.2, 1.8) * every
        if at > seconds:
            return faults
        kind = coming.pop() if coming else rng.choices(names, weights)[0]
        _, least, most = kinds[kind]
        faults.append(Fault(at, kind, rng.randrange(1_000_000), rng.uniform(least, most)))
