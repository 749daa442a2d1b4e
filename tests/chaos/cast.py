"""The system under chaos: beats, workers, store and broker, each process with links of its own; and what befalls it.

Everything that is done to it goes into the ledger: what happened, to whom (``of``: a process, or None for all), when.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.brokers import Broker
from chaos.entries import ENTRIES, ONCE
from ledger import Ledger
from needs import find
from processes import Proc, Processes
from proxy import Link
from servers import RedisServer
from system import System

#: Of each worker: one alone has to catch up with what piled up while the other was away.
CONCURRENCY = 12


@dataclass
class Member:
    """A beat or a worker: always started again when it is gone, with the same links."""

    kind: str
    name: str
    store: Link
    broker: Link
    pool: str = "prefork"
    clock: bool = False
    proc: Proc | None = None
    #: When it is to be started again; None while it runs.
    again_at: float | None = 0.0
    busy: bool = False

    @property
    def up(self) -> bool:
        return self.proc is not None and self.proc.alive and not self.busy


class Cast:
    """The system with its two servers: two beats and two workers, one of each with a clock that may jump.

    Who is gone is started again.
    """

    def __init__(
        self, directory: Path, processes: Processes, ledger: Ledger, store: RedisServer, broker: Broker
    ) -> None:
        self.store = store
        self.broker = broker
        self.ledger = ledger
        self._open = ExitStack()
        self.system = System(processes, ledger, store.url(), directory)
        self.system.app = "chaos.app"
        self.system.broker_url = broker.url()
        self.system.settings = {**self.system.settings, **broker.settings}
        self.system.entries = {
            entry: {"task": task, "every": every, "args": [seconds], "options": {"once": ONCE.get(entry, {})}}
            for entry, (task, every, seconds) in ENTRIES.items()
        }
        jumps = find("libfaketime") is not None
        self.members = [
            self._member("beat", "beat1"),
            self._member("beat", "beat2", clock=jumps),
            self._member("worker", "worker1", clock=jumps),
            self._member("worker", "worker2", pool="threads"),
        ]
        #: Processes that ended, and nobody had told them to.
        self.ended_alone: list[str] = []
        #: Faults that last: when each is over, and what ends it.
        self.ending: list[tuple[float, Callable[[], None]]] = []
        self._rng = random.Random(0)
        ledger.write("clock", epoch=time.monotonic() - time.time())

    def __enter__(self):
        return self

    def __exit__(self, *exc: object) -> None:
        self.system.store.close()
        self._open.close()

    def _member(self, kind: str, name: str, **more: Any) -> Member:
        store, broker = (self._open.enter_context(Link(port)) for port in (self.store.port, self.broker.server.port))
        return Member(kind, name, store, broker, **more)

    def tend(self) -> None:
        """End faults whose time is over; start processes whose time has come."""
        now = time.monotonic()
        for over in [each for each in self.ending if each[0] <= now]:
            self.ending.remove(over)
            over[1]()
        for member in self.members:
            if member.proc is not None and not member.proc.alive and member.again_at is None:
                self.ended_alone.append(f"{member.name}: exit {member.proc.exit_code}\n{member.proc.tail()}")
                self.gone(member)
            if member.again_at is not None and member.again_at <= now:
                self._start(member)

    def heal(self) -> None:
        """End all that lasts."""
        for _, over in self.ending:
            over()
        self.ending.clear()

    def _start(self, member: Member) -> None:
        if member.proc is not None:
            member.proc.end()
        env = {
            "STORE_URL": f"redis://127.0.0.1:{member.store.port}/0",
            "BROKER_URL": self.broker.url(member.broker.port),
        }
        faketime = 0 if member.clock else None
        if member.kind == "beat":
            member.proc = self.system.beat(member.name, faketime, **env)
        else:
            member.proc = self.system.worker(
                member.name, env=env, faketime=faketime, pool=member.pool, concurrency=CONCURRENCY
            )
        member.again_at = None

    def gone(self, member: Member) -> None:
        """Its process has ended; it is started again in a while."""
        member.busy = False
        member.again_at = time.monotonic() + self._rng.uniform(0, 3)
