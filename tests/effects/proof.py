"""A run with faults inside bodies: what each window has written, where it was recorded and where it wasn't."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from celery import Celery
from databases import Base
from pages import machine, table
from processes import Proc, wait_until
from system import System

__all__ = ("Proof", "Verdict", "fill")

#: Entries of each kind, with a window a second.
RECORDED, UNRECORDED = 4, 2
LEASE = 1.0
#: Seconds for which a process stands still: its lease runs out, and another execution begins.
FROZEN = 2.5


class Verdict(NamedTuple):
    """Of one kind of windows or calls: how many there are, and how often each has written its row."""

    kind: str
    number: int
    executions: int
    refused: int
    once: int
    missing: int
    doubled: int


class Proof:
    """Two beats and two workers over one database, until so many bodies were struck."""

    def __init__(self, system: System, base: Base, directory: Path) -> None:
        self.system = system
        self.base = base
        self.enough = directory / "enough"
        self.struck: Counter[tuple[str, str]] = Counter()
        self.calls: list[str] = []
        self._frozen: list[tuple[float, int]] = []
        self._read = 0
        system.ledger.path.touch()
        self._workers: list[Proc] = []
        system.app = "apps.faulty_app"
        system.entries = {
            **{f"recorded-{n}": {"task": "apps.faulty_app.invoice", "every": 1.0} for n in range(RECORDED)},
            **{f"bare-{n}": {"task": "apps.faulty_app.unrecorded", "every": 1.0} for n in range(UNRECORDED)},
        }
        system.settings = {
            "once_beat_lease": LEASE,
            "once_beat_max_attempts": 1000,
            "once_beat_catch_up": "all",
            "once_beat_start_timeout": 5.0,
            "broker_transport_options": {"visibility_timeout": 8},
        }
        self._env = {"DATABASE": base.url, "ENOUGH": str(self.enough)}

    def run(self, faults: int) -> None:
        """Returns when all windows and calls have ended."""
        self._keep_workers()
        for worker in self._workers:
            worker.wait_ready()
        beats = [self.system.beat(f"beat{n}", **self._env) for n in (1, 2)]
        with Celery(broker=self.system.broker_url, set_as_current=False) as app:
            app.conf.task_default_queue = self.system.queue
            while self.struck.total() < faults:
                self._call_twice(app)
                self._follow()
                self._keep_workers()
                time.sleep(0.25)
        self.enough.touch()
        for entry in self.system.entries:
            self.system.store.set_paused(entry, paused=True)
        wait_until(self._is_over, "every window has its outcome, every call its row", 400)
        for beat in beats:
            beat.stop()
        for worker in self._workers:
            worker.stop()

    def _keep_workers(self) -> None:
        living = [worker for worker in self._workers if worker.alive]
        while len(living) < 2:
            living.append(self.system.worker(f"worker{uuid.uuid4().hex[:4]}", concurrency=4, env=self._env))
        self._workers = living

    def _call_twice(self, app: Celery) -> None:
        """A call without a window: nobody but its row keeps its two messages from writing twice."""
        self.calls.append(f"call-{uuid.uuid4().hex}")
        for _ in range(2):
            app.send_task("apps.faulty_app.invoice", task_id=self.calls[-1])

    def _follow(self) -> None:
        """Count who was struck, and let those go on who stood still for long enough."""
        for event in self._events():
            if event["kind"] == "strike":
                self.struck[event["point"], event["strike"]] += 1
                if event["strike"] == "freeze":
                    self._frozen.append((event["mono"] + FROZEN, event["pid"]))
        due = [pid for at, pid in self._frozen if at <= time.monotonic()]
        self._frozen = [(at, pid) for at, pid in self._frozen if pid not in due]
        for pid in due:
            with contextlib.suppress(ProcessLookupError):  # its worker was killed
                os.kill(pid, signal.SIGCONT)

    def _events(self) -> Iterator[dict[str, Any]]:
        with self.system.ledger.path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if line.endswith(b"\n"):
                    self._read += len(line)
                    yield json.loads(line)

    def _is_over(self) -> bool:
        self._follow()
        self._keep_workers()
        if self._frozen or any(self.system.account(entry).open for entry in self.system.entries):
            return False
        with self.system.client() as client:
            if client.llen(self.system.queue) or client.hlen("unacked"):
                return False
        return set(self.calls) <= set(self._written())

    def _written(self) -> Counter[str]:
        return Counter(self.base.written())

    def verdicts(self) -> list[Verdict]:
        """Of windows and of calls, recorded and not."""
        written = self._written()
        names = {
            kind: [f"{entry} {start}" for entry in self.system.entries if entry.startswith(prefix)
                   for start in self.system.starts(entry)]
            for kind, prefix in (("windows, recorded", "recorded"), ("windows, not recorded", "bare"))
        }  # fmt: skip
        names["calls sent twice, recorded"] = self.calls
        executed = Counter(event["name"] for event in self.system.ledger.read("start"))
        refused = Counter(event["name"] for event in self.system.ledger.read("was_recorded"))
        assert set(written) <= {name for of_kind in names.values() for name in of_kind}
        return [
            Verdict(
                kind, len(of_kind), sum(executed[name] for name in of_kind), sum(refused[name] for name in of_kind),
                sum(written[name] == 1 for name in of_kind), sum(written[name] == 0 for name in of_kind),
                sum(written[name] > 1 for name in of_kind),
            )
            for kind, of_kind in names.items()
        ]  # fmt: skip

    def text(self) -> str:
        """The tables, and where they were measured."""
        strikes = {"process killed": "kill", "worker killed": "kill worker", "frozen for 2.5 s": "freeze"}
        points = sorted({point for point, _ in self.struck}, key=_order)
        rows = [[point, *(self.struck[point, strike] for strike in strikes.values())] for point in points]
        head = [
            "", "windows or calls", "executions", "refused by `record`", "**rows once**", "no row", "two rows or more"
        ]  # fmt: skip
        about = f"{self.struck.total()} executions were struck, of all three kinds. {self._where()}."
        return "\n\n".join([about, table(head, self.verdicts()), table(["struck", *strikes], rows)]) + "\n"

    def _where(self) -> str:
        with self.base.engine.connect() as connection:
            server = str(connection.execute(sa.text("SHOW server_version")).scalar()).split()[0]
        return (
            f"{machine('SQLAlchemy', 'psycopg')}, PostgreSQL {server}, `make effects`: two workers of four processes, "
            f"leases of {LEASE:g} s"
        )


def _order(point: str) -> int:
    order = ("before record", "between record and commit", "behind the commit", "before the end is recorded")
    return order.index(point)


def fill(page: Path, text: str) -> None:
    """Write the tables where the page has them."""
    marked = re.compile(r"(<!-- proof -->\n).*?(<!-- /proof -->)", re.DOTALL)
    old = page.read_text()
    assert marked.search(old), page
    page.write_text(marked.sub(lambda found: f"{found[1]}{text}{found[2]}", old))
