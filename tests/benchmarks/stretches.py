"""What a worker is given: stretches of messages, each of one kind, in turns.

A machine's speed changes by the minute, and two workers differ too. So all kinds that are compared are executed by one
worker, and each stretch is compared with the plain one of its round. The first round warms the worker up.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: The kinds of messages, and whose task each calls. Of ours a worker begins and finishes the ``windows`` in the store.
KINDS = {
    "plain": "plain", "windows": "once", "without window": "once",
    "celery-once": "celery-once", "celery-singleton": "celery-singleton",
}  # fmt: skip
#: How long the bodies last that do something, ms.
LASTING = (5, 20, 50)


class Body(NamedTuple):
    """A body that ran: its number, when, in which process, and the CPU seconds that this and others had used."""

    number: int
    moment: float
    process: int
    cpu: float
    others: float = 0.0


class Stretches(NamedTuple):
    """``count`` messages of each of ``kinds``, ``rounds`` times and once more at first."""

    kinds: Sequence[str]
    count: int
    rounds: int
    task: str = ""

    @property
    def in_order(self) -> list[str]:
        """The kind of each stretch."""
        return [*self.kinds] * (self.rounds + 1)

    @property
    def total(self) -> int:
        return len(self.in_order) * self.count

    def figures(self, bodies: Iterable[Body]) -> dict[str, float]:
        """Of each kind the µs a task and the CPU µs of the process that runs it; beside them, those of a plain one.

        Medians of the rounds: ``{"windows": 700.0, "windows cpu": …, "windows rate": 0.8, "windows more cpu": …}``, and
        ``more of all``: with the CPU of the worker's main process and of the server.
        """
        each: dict[int, list[Body]] = defaultdict(list)
        for body in sorted(bodies, key=lambda body: body.moment):
            each[body.number // self.count].append(body)
        found: dict[str, list[float]] = defaultdict(list)
        for place, kind in enumerate(self.in_order):
            if place < len(self.kinds):
                continue
            plain = place - place % len(self.kinds)
            found[kind].append(_time(each[place]))
            found[f"{kind} cpu"].append(_cpu(each[place]))
            found[f"{kind} rate"].append(_time(each[plain]) / _time(each[place]))
            found[f"{kind} more cpu"].append(_cpu(each[place]) - _cpu(each[plain]))
            found[f"{kind} more of all"].append(_of_all(each[place]) - _of_all(each[plain]))
        return {name: statistics.median(values) for name, values in found.items()}


def _time(bodies: Sequence[Body]) -> float:
    """µs from one body to the next."""
    return (bodies[-1].moment - bodies[0].moment) / (len(bodies) - 1) * 1e6


def _of_all(bodies: Sequence[Body]) -> float:
    """CPU µs from one body to the next, over all processes."""
    return _cpu(bodies) + (bodies[-1].others - bodies[0].others) / (len(bodies) - 1) * 1e6


def _cpu(bodies: Sequence[Body]) -> float:
    """CPU µs from one body to the next of the same process."""
    processes: dict[int, list[float]] = defaultdict(list)
    for body in bodies:
        processes[body.process].append(body.cpu)
    used = sum(values[-1] - values[0] for values in processes.values())
    return used / (len(bodies) - len(processes)) * 1e6
