"""The alert rules: silent before a fault, firing while it lasts, silent after it; and what status and doctor say then.

promtool evaluates the rules on what a report exports. Faults that people are told of are real ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from processes import wait_until
from prometheus import PHASE, AlertmanagerServer, Recording, tell
from servers import RedisServer
from system import System

from celery_once_beat.features.times.store import Histogram
from celery_once_beat.status import BeatStatus, EntryStatus, Report, StuckQueue, WindowStatus
from celery_once_beat.status.metrics import OnceCollector
from celery_once_beat.store import Loss

pytestmark = pytest.mark.long

RULES = Path(__file__).resolve().parents[2] / "docs" / "alerts.yml"
WORK = "apps.once_app.work"
#: Longer than any rule waits, and before what it looks back at has passed.
END = PHASE - 1


def rule(name: str) -> dict[str, Any]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    (found,) = (rule for group in groups for rule in group["rules"] if rule["alert"] == name)
    return dict(found)


NOW = datetime(2026, 11, 21, 2, tzinfo=timezone.utc)
BEAT = BeatStatus(offset=0.1, lag=0.5, beat="host:1:a", heard=0.1)


def look(*entries: EntryStatus, beats: Sequence[BeatStatus] = (BEAT, BEAT), **more: Any) -> Report:
    return Report(NOW, 0.0, 0.001, tuple(beats), entries, **more)


def tick(**fields: Any) -> EntryStatus:
    return EntryStatus("tick", "scheduled", **{"times": {"ran": Histogram({}, 0)}, **fields})


def ended(late: float) -> EntryStatus:
    return tick(last=WindowStatus(NOW, "done", NOW, "b", NOW, NOW, "w", 1, late, 1.0, 0, 0, None, None))


class Fault(NamedTuple):
    """What is exported while all is well and while it isn't; '' where nobody exports, None where Redis is away."""

    alert: str
    #: Labels beside the rule's own, and the summary.
    fires: dict[str, str]
    fault: Report | str | None
    #: Minutes at which it doesn't fire yet, if there are some, and at which it does.
    silent: float = 0
    by: float = 2
    well: Report = look(tick())
    #: It fires while the fault lasts; else a counter's rise is over in a quarter of an hour.
    lasts: bool = True


FAULTS = [
    Fault("OnceNoBeat", {"summary": "No beat lives, so nothing is scheduled"}, look(beats=[])),
    Fault(
        "OnceOneBeat", {"summary": "Only one beat can claim, so nobody takes over when it dies"},
        look(beats=[BEAT]), 14, 17,
    ),
    Fault(
        "OnceBeatFails", {"summary": "The ticks of a beat fail, so it schedules nothing"},
        look(beats=[BEAT, replace(BEAT, failing="boom")]),
    ),
    Fault("OnceRedisFull", {"summary": "Redis has used 90% of its maxmemory"}, look(memory=0.9), well=look(memory=0.7)),
    Fault(
        "OnceRedisAway", {"summary": "Redis can't be read, so nothing is claimed and workers put windows back"}, None,
    ),
    Fault(
        "OnceNotWatched", {"summary": "The metrics are missing, so none of these other alerts can fire"}, "", 9, 12
    ),
    Fault("OnceOverdue", {"entry": "tick", "summary": "tick: 2 windows are overdue"}, look(tick(overdue=2))),
    Fault(
        "OnceWindowLate", {"entry": "tick", "summary": "tick: 1 windows aren't done by their deadline"},
        look(tick(late=1)),
    ),
    Fault(
        "OnceWindowFailed", {"entry": "tick", "summary": "tick: a window failed"}, look(tick(outcomes={"failed": 1})),
        lasts=False,
    ),
    *(
        Fault(
            "OnceWindowLost",
            {"entry": "tick", "outcome": how, "summary": f"tick: a window is {how}, and won't run any more"},
            look(tick(outcomes={how: 1})), lasts=False,
        )
        for how in ("abandoned", "dropped", "expired")
    ),
    # Who resumes an entry isn't paged for what it missed meanwhile; who stopped all beats is.
    Fault(
        "OnceWindowLost",
        {"entry": "tick", "outcome": "missed", "summary": "tick: a window is missed, and won't run any more"},
        look(tick(outcomes={"missed": 1}), replace(tick(outcomes={"missed": 1}), entry="paused")), lasts=False,
        well=look(tick(), replace(tick(paused=True), entry="paused")),
    ),
    Fault(
        "OnceLate", {"entry": "tick", "summary": "tick begins 2m 5s late"}, look(ended(125.0)), 4, 6, look(ended(1.0)),
    ),
    Fault("OnceUnclaimed", {"summary": "Beats claim 1m 15s late"}, look(beats=[BEAT, replace(BEAT, lag=75.0)])),
    Fault(
        "OnceClocksApart", {"summary": "A beat's clock is 1m 0s off the server's"},
        look(beats=[BEAT, replace(BEAT, offset=-60.0)]), 9, 12,
    ),
    Fault(
        "OnceSetUpWrongly",
        {"entry": "tick", "summary": "tick doesn't run as it should: `celery once doctor` says why"},
        look(tick(misconfigured=("unknown key",))), 4, 6,
    ),
    Fault(
        "OnceBrokerAway", {"summary": "No beat can use the broker, so nothing is claimed"},
        look(beats=[replace(BEAT, broker="refused")] * 2),
    ),
    Fault("OnceDataLost", {"summary": "Redis lost its data"}, look(lost=Loss(1, NOW)), by=1),
    Fault("OnceHung", {"entry": "tick", "summary": "tick: 1 windows run for far too long"}, look(tick(hung=1))),
    Fault(
        "OnceWorkerSilent", {"entry": "tick", "summary": "tick: the worker of 1 windows hasn't renewed their leases"},
        look(tick(silent=1)), 0.5,
    ),
    Fault(
        "OnceStuck", {"entry": "tick", "summary": "tick: the workers of its queue don't begin 2 windows"},
        look(tick(stuck=2)),
    ),
    Fault(
        "OnceNoWorker", {"queue": "mail", "summary": "No worker consumes the queue mail: 2 windows wait"},
        look(stuck_queues=(StuckQueue("mail", 2),)),
    ),
    Fault(
        "OnceStopped", {"entry": "tick", "summary": "tick is paused, since its windows failed"},
        look(tick(stopped=True)), by=1,
    ),
    Fault(
        "OncePausedForLong", {"entry": "tick", "summary": "tick is paused for 1d 1h 0m 0s"},
        look(tick(paused_for=90_000.0)), by=1, well=look(tick(paused_for=86_000.0)),
    ),
    Fault("OnceSkipping", {"entry": "tick", "summary": "tick: the last 3 windows were skipped"}, look(tick(skipped=3))),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.alert)
def test_a_rule_fires_while_its_fault_lasts(tmp_path: Path, fault: Fault) -> None:
    """Silent before, firing in time and for as long as it lasts, silent after it."""
    recording, collector = Recording(tmp_path), OnceCollector()
    for each in (fault.well, fault.fault, fault.well if fault.lasts else fault.fault):
        recording.phase("" if each == "" else collector.expose(each)[1].decode())
    fires = [fault.fires]
    expected = {(0, END): [], (1, fault.by): fires, (1, END): fires if fault.lasts else [], (2, END): []}
    recording.check(rule(fault.alert), expected | ({(1, fault.silent): []} if fault.silent else {}))


@pytest.mark.parametrize(
    ("fires", "told"),
    [
        (["OnceBrokerAway", "OnceOverdue", "OnceWindowLate", "OnceWindowFailed"], {"OnceBrokerAway"}),
        (["OnceNoBeat", "OnceOverdue", "OnceOneBeat"], {"OnceNoBeat", "OnceOneBeat"}),
        (["OnceHung", "OnceStuck", "OnceWindowFailed"], {"OnceHung", "OnceWindowFailed"}),
        (["OnceNoWorker", "OnceOverdue"], {"OnceNoWorker"}),
        (["OnceOverdue", "OnceStuck"], {"OnceOverdue", "OnceStuck"}),
    ],
)
def test_one_cause_is_one_message(fires: list[str], told: set[str]) -> None:
    """docs/alertmanager.yml, in a real Alertmanager: what causes other alerts inhibits them."""
    of_entry = {name for name in fires if " by (entry" in rule(name)["expr"]}
    alerts = [
        {
            "alertname": name,
            "severity": rule(name)["labels"]["severity"],
            **({"entry": "tick"} if name in of_entry else {}),
        }
        for name in fires
    ]
    with AlertmanagerServer.start(RULES.with_name("alertmanager.yml")) as server:
        server.heard(*alerts)
        wait_until(lambda: server.heard(*alerts) == told, f"{told} are told", 30)


def test_every_rule_has_its_fault() -> None:
    """A rule that no fault has tried may never fire."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} == {fault.alert for fault in FAULTS}


# -- real faults ----------------------------------------------------------------------------------------------------


def wait_metric(system: System, name: str, shows: Callable[[float], object] = bool, **labels: str) -> float:
    """Wait until a metric is told that is as ``shows`` says."""

    def seen() -> list[float]:
        found = tell(system.once("metrics")).get((f"celery_once_beat_{name}", frozenset(labels.items())))
        return [] if found is None or not shows(found) else [found]

    return wait_until(seen, f"{name} {labels} is as it should be", 150, every=0.5)[0]


def test_the_broker_goes_away(system: System, start_redis: Callable[..., RedisServer]) -> None:
    """Status says it first, and entries give it as the reason."""
    broker = start_redis()
    system.broker_url = broker.url()
    system.beat().wait_ready()
    broker.kill()
    wait_metric(system, "beats_without_broker")
    seen = wait_until(lambda: "held up" in (found := system.status())["entry"]["reasons"] and found, "it is due", 60)
    (trouble,) = seen["troubles"]
    assert (trouble["reason"], trouble["stops_all"]) == ("broker away", True)
    assert re.search(
        r"claims nothing: for .* the broker doesn't answer: redis://\S+ OperationalError", trouble["words"]
    )
    assert set(seen["entry"]["reasons"]) == {"held up"}
    assert "and beats can't use the broker" in seen["attention"]
    assert system.once("status", exit_code=1).splitlines()[1].startswith("broker away: beat ")
    doctor = system.once("doctor", exit_code=1)
    assert "warn  broker: beat " in doctor
    assert "warn  entry" not in doctor


def test_redis_loses_its_data(system: System, start_redis: Callable[..., RedisServer]) -> None:
    """One error of each beat that was there; status and doctor say it for an hour. What was paused stays so."""
    server = start_redis()
    system.use_store(server.url())
    system.entries = {name: {"task": WORK, "every": 1.0} for name in ("tick", "tock")}
    beat = system.beat().wait_ready()
    wait_until(lambda: system.store.account("tick") and system.store.account("tock"), "both are loaded", 60)
    system.once("pause", "tock", "--by", "anna", "--note", "the mail server moves")
    beat.wait_log("'tock': it is paused")
    with system.client() as client:
        client.flushall()
    wait_metric(system, "data_lost_age_seconds", lambda age: age >= 0)
    beat.wait_log("Redis has lost its data, or evicts keys: it doesn't know 'tick', 'tock' any more")
    assert beat.log.count("has lost its data") == 1
    seen = wait_until(lambda: (found := system.status("tock"))["attention"] and found, "it is paused again", 60)
    assert [trouble["reason"] for trouble in seen["troubles"]] == ["data lost"], seen
    assert re.search(r"paused .* ago by anna: the mail server moves", seen["attention"])
    assert seen["entry"]["open"] == 0
    assert "warn  data lost: Redis lost its data at " in system.once("doctor", exit_code=1)
    after = system.beat("after").wait_ready()
    wait_until(lambda: len(system.store.snapshot().beats) == 2, "both live", 60)
    beat.stop()
    after.stop()
    seen = wait_until(lambda: not (found := system.status("tock"))["beats"] and found, "none is left", 60)
    assert [trouble["reason"] for trouble in seen["troubles"]] == ["no beat", "data lost"], "it is seen on"
