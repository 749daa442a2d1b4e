"""Schedules that are edited while all else goes on: ``make edits EDITS=10000``.

Eight processes set, change, pause, resume, delete and run schedules, and conflict on purpose. Meanwhile two beats and
two workers are killed, frozen and started again, messages are doubled, and the master of the store dies.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from chaos.brokers import RedisBroker
from chaos.cast import Company, Member
from chaos.edited import TOLERANCE, EditVerdict, judge_edits
from chaos.editor import Editor
from chaos.entries import EDITED, EDITS_LEASE
from chaos.faults import Fault, plan
from chaos.havoc import Havoc
from chaos.report import write_edits_report
from failover.topology import SentinelSet
from ledger import Ledger
from processes import Proc, Processes, wait_until
from servers import need_server
from system import System

from celery_once_beat import Schedules
from celery_once_beat.errors import OnceError
from celery_once_beat.windows import format_instant

EDITORS = 8
#: Edits a second, of all editors.
PACE = 25
#: Seconds between two faults, on average.
EVERY = 2.0
FAULTS = {
    "beat killed": (8, 0, 0),
    "beat frozen": (6, 0.5, 20),
    "beat ended": (3, 0, 0),
    "worker killed": (8, 0, 0),
    "worker frozen": (6, 0.5, 12),
    "worker ended": (3, 0, 0),
    "pool child killed": (4, 0, 0),
    "messages doubled": (4, 0, 0),
    "master killed": (3, 0, 0),
}


class Edited(Company):
    """Two beats and two workers over a Sentinel; every write has to reach its replica."""

    def __init__(
        self, directory: Path, procs: Processes, ledger: Ledger, broker: RedisBroker, store: SentinelSet
    ) -> None:
        system = System(procs, ledger, broker.url(), directory)
        system.store.close()
        system.app, system.entries, system.store_url = "chaos.edited_app", {}, store.url
        #: Of beats and workers, and of the editors.
        self.settings = {
            "once_beat_redis_options": store.options,
            "once_beat_wait_replicas": 1,
            "once_beat_tolerance": TOLERANCE,
            "once_beat_history_size": 5000,
        }
        system.settings = self.settings
        super().__init__(system, ledger, broker)
        self.sentinels = store
        self.members = [Member(kind, f"{kind}{number}") for kind in ("beat", "worker") for number in (1, 2)]
        self.members[-1].pool = "threads"

    def given(self, name: str, seed: int) -> dict[str, Any]:
        """What an editor is told."""
        settings = {**self.settings, "once_beat_redis_url": self.sentinels.url}
        return {"name": name, "seed": seed, "ledger": str(self.ledger.path), "settings": settings}

    def start_editors(self, edits: int, seed: int) -> list[Proc]:
        started = []
        for number in range(EDITORS):
            given = self.given(f"editor{number}", seed)
            given |= {"edits": edits // EDITORS, "every": EDITORS / PACE}
            command = [sys.executable, "-m", "chaos.editor"]
            started.append(self.system.procs.start(command, name=given["name"], env={"EDITOR": json.dumps(given)}))
        return started


class EditHavoc(Havoc):
    """What befalls them, the death of the store's master among it."""

    cast: Edited

    def __init__(self, cast: Edited) -> None:
        super().__init__(cast)
        self.failing_over: threading.Thread | None = None
        self.failed: list[BaseException] = []

    def _master_killed(self, fault: Fault) -> bool:
        if self.failing_over is not None and self.failing_over.is_alive():
            return False
        self._note(fault, "out", None)
        self.failing_over = threading.Thread(target=self._fail_over, args=[self._number], daemon=True)
        self.failing_over.start()
        return True

    def _fail_over(self, number: int) -> None:
        sentinels = self.cast.sentinels
        try:
            victim = sentinels.choose()
            victim.kill()
            sentinels.wait_failover(victim)
            sentinels.restore(victim)
        except BaseException as exc:
            self.failed.append(exc)
            raise
        self.cast.ledger.write("over", number=number)


def accounts(schedules: Schedules) -> list[dict[str, Any]]:
    """The store's books, as lines of a ledger."""
    return [
        {
            "kind": "account",
            "entry": name,
            "start": format_instant(window.start),
            "outcome": window.state,
            "claimed": window.claimed and format_instant(window.claimed),
            "ordered": window.ordered is not None,
            "count": window.missed,
        }
        for name in EDITED
        for window in schedules.history(name, 5000)
    ]


@pytest.mark.long
def test_edits(start_redis, procs, ledger, tmp_path, request):
    """What each version of a schedule owes runs once, by it; whoever dies while who edits."""
    seed, edits = request.config.getoption("seed"), request.config.getoption("edits")
    broker = RedisBroker(start_redis(appendonly=True))
    with SentinelSet(need_server("valkey"), seed) as sentinels:
        cast = Edited(tmp_path, procs, ledger, broker, sentinels)
        cast.tend()
        editors = cast.start_editors(edits, seed)
        havoc = EditHavoc(cast)
        begin = time.monotonic()
        havoc.play(plan(seed, 3 * edits / PACE, EVERY, FAULTS), lambda: any(editor.alive for editor in editors))
        minutes = (time.monotonic() - begin) / 60
        assert [editor.exit_code for editor in editors] == [0] * EDITORS
        if havoc.failing_over is not None:
            havoc.failing_over.join()
        assert not havoc.failed
        last = Editor(cast.given("last", seed))
        with closing(last.schedules):
            calm = wait_for_outcomes(cast, last)
            for line in accounts(last.schedules):
                ledger.write(**line)
        write_edits_report(request.config.getoption("report"), calm, havoc.counts, seed, edits, minutes)
        assert calm.kept, stories(ledger, calm)
        cast.system.once("audit")
        procs.end()


def wait_for_outcomes(cast: Edited, editor: Editor) -> EditVerdict:
    """Let all that isn't deleted go on until nothing is owed; what still is after minutes is lost."""
    numbers = itertools.count()
    for name in EDITED:
        wait_until(
            lambda name=name: editor.edit("resume", name, f"last-{next(numbers)}") != "unknown", f"{name} goes on", 60
        )
    end = time.monotonic()

    def verdict() -> EditVerdict | None:
        cast.tend()
        try:
            found = judge_edits([*cast.ledger.read(), *accounts(editor.schedules)], end, EDITS_LEASE)
        except OnceError:  # its master is dead for a moment more
            return None
        return found if not (found.lost or found.lost_orders) or time.monotonic() > end + 120 else None

    return wait_until(verdict, "a verdict", 200, every=2)


def stories(ledger: Ledger, verdict: EditVerdict) -> str:
    """What is wrong, some of each kind, and where the lines about it are."""
    wrong = {what: found for what, found in verdict.faults().items() if found}
    told = [f"{what}: {len(found)}: {found[:5]}" for what, found in wrong.items()]
    return "\n".join([*told, f"all lines: {ledger.path}"])
