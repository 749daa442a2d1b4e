"""The alert rules, on series of real faults: silent before, firing while it lasts, silent after it.

A fault is caused with real beats, workers and servers. A real exporter tells of it, and promtool evaluates the rule.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import filled
import pytest
import yaml
from boards import loaded_of
from processes import Proc, wait_until
from prometheus import PHASE, AlertmanagerServer, Recording, tell
from servers import RedisServer
from system import System, rare

from celery_once_beat.store.model import BeatReport
from celery_once_beat.windows import format_instant, parse_instant, task_id

pytestmark = pytest.mark.long

RULES = Path(__file__).resolve().parents[2] / "docs" / "alerts.yml"
WORK = "apps.once_app.work"
PREFIX = "celery_once_beat_"
#: Longer than any rule waits, and before what it looks back at has passed.
SOON, END = 6, PHASE - 1


def rule(name: str) -> dict[str, Any]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    (found,) = (rule for group in groups for rule in group["rules"] if rule["alert"] == name)
    return dict(found)


class Watched:
    """A system with an exporter, and the recording of a fault."""

    def __init__(self, system: System, directory: Path) -> None:
        self.system = system
        self.recording = Recording(directory)

    def export(self, *arguments: str, **env: Any) -> Proc:
        """Start the exporter; returns once it listens."""
        proc = self.system.celery("once", "metrics", "--port", "0", *arguments, name="exporter", **env)
        self._address = proc.wait_log(r"the metrics are at http://(127\.0\.0\.1:\d+)/metrics")[1]
        return proc

    def look(self) -> str:
        with closing(http.client.HTTPConnection(self._address, timeout=30)) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

    def phase(self, name: str, shows: Callable[[float], object] = lambda _: True, **labels: str) -> None:
        """Record looks until the metric ``name`` has a value as ``shows`` says; that look goes on for a whole phase."""
        looks = []

        def seen() -> bool:
            looks.append(self.look())
            found = tell(looks[-1]).get((PREFIX + name, frozenset(labels.items())))
            return found is not None and bool(shows(found))

        wait_until(seen, f"{name} {labels} is as it should be", 150, every=0.5)
        # The last ones: so what it comes to stands near the phase's beginning.
        self.recording.phase(*looks[-4:])

    def last(self, name: str, **labels: str) -> float:
        """The metric ``name``, as the last phase goes on with it."""
        return self.recording.phases[-1][-1][PREFIX + name, frozenset(labels.items())]

    def check(self, alert: str, expected: dict[tuple[int, float], list[dict[str, str]]]) -> None:
        self.recording.check(rule(alert), expected)


@pytest.fixture
def watched(system: System, tmp_path: Path) -> Watched:
    return Watched(system, tmp_path)


def test_beats_die_one_after_the_other(watched: Watched) -> None:
    """One that is left is a warning in a quarter of an hour; none is critical in a minute."""
    system = watched.system
    beats = [system.beat(f"beat{n}") for n in (1, 2)]
    for beat in beats:
        beat.wait_ready()
    watched.export()
    watched.phase("beats_alive", lambda alive: alive == 2)
    for left, beat in ((1, beats[0]), (0, beats[1])):
        beat.kill()
        system.count_as_gone(beat)
        watched.phase("beats_alive", lambda alive, left=left: alive == left)
    system.beat("beat3").wait_ready()
    system.beat("beat4").wait_ready()
    watched.phase("beats_alive", lambda alive: alive == 2)
    one = [{"summary": "Only one beat can claim, so nobody takes over when it dies"}]
    none = [{"summary": "No beat lives, so nothing is scheduled"}]
    watched.check("OnceOneBeat", {(0, END): [], (1, 14): [], (1, 17): one, (2, END): [], (3, END): []})
    watched.check("OnceNoBeat", {(0, END): [], (1, END): [], (2, 2): none, (2, END): none, (3, END): []})


def test_the_ticks_of_a_beat_fail(watched: Watched, tmp_path: Path) -> None:
    """Critical after a minute, though the beat lives; until they work again."""
    system, fails = watched.system, tmp_path / "fails"
    system.scheduler = "apps.failing_beat:Failing"
    system.beat(FAILS=str(fails)).wait_ready()
    watched.export()
    watched.phase("beats_alive", lambda alive: alive == 1)
    assert watched.last("beats_failing") == 0
    fails.touch()
    watched.phase("beats_failing", lambda failing: failing == 1)
    fails.unlink()
    watched.phase("beats_failing", lambda failing: failing == 0)
    fires = [{"summary": "The ticks of a beat fail, so it schedules nothing"}]
    watched.check("OnceBeatFails", {(0, END): [], (1, 2): fires, (1, END): fires, (2, END): []})


def test_the_broker_goes_away(watched: Watched, start_redis: Callable[..., RedisServer]) -> None:
    """Critical within a minute: status says it first, and entries give it as the reason; until it is back."""
    system, broker = watched.system, start_redis()
    system.broker_url = broker.url()
    system.beat().wait_ready()
    watched.export()
    watched.phase("beats_without_broker", lambda away: away == 0)
    broker.kill()
    watched.phase("beats_without_broker", lambda away: away == 1)
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
    broker.restart()
    watched.phase("beats_without_broker", lambda away: away == 0)
    fires = [{"summary": "No beat can use the broker, so nothing is claimed"}]
    watched.check("OnceBrokerAway", {(0, END): [], (1, 2): fires, (1, END): fires, (2, END): []})


def test_redis_loses_its_data(watched: Watched, start_redis: Callable[..., RedisServer]) -> None:
    """One error of each beat that was there; status, doctor and an alert for an hour. What was paused stays so."""
    server = start_redis()
    system = watched.system
    system.use_store(server.url())
    system.entries = {name: {"task": WORK, "every": 1.0} for name in ("tick", "tock")}
    beat = system.beat().wait_ready()
    wait_until(lambda: system.store.account("tick") and system.store.account("tock"), "both are loaded", 60)
    system.once("pause", "tock", "--by", "anna", "--note", "the mail server moves")
    beat.wait_log("'tock': it is paused")
    watched.export()
    watched.phase("paused", lambda paused: paused == 1, entry="tock")
    with system.client() as client:
        client.flushall()
    watched.phase("data_lost_age_seconds")
    beat.wait_log("Redis has lost its data, or evicts keys: it doesn't know 'tick', 'tock' any more")
    assert beat.log.count("has lost its data") == 1
    seen = system.status("tock")
    assert [trouble["reason"] for trouble in seen["troubles"]] == ["data lost"], seen
    assert re.fullmatch(r"paused .* ago by anna: the mail server moves", seen["attention"])
    assert seen["entry"]["open"] == 0
    assert "warn  data lost: Redis lost its data at " in system.once("doctor", exit_code=1)
    after = system.beat("after").wait_ready()
    wait_until(lambda: len(system.store.snapshot().beats) == 2, "both live", 60)
    beat.stop()
    after.stop()
    seen = wait_until(lambda: not (found := system.status("tock"))["beats"] and found, "none is left", 60)
    assert [trouble["reason"] for trouble in seen["troubles"]] == ["no beat", "data lost"], "it is seen on"
    fires = [{"summary": "Redis lost its data"}]
    watched.check("OnceDataLost", {(0, END): [], (1, 1): fires, (2, 1): fires})


def test_redis_is_nearly_full(watched: Watched, start_redis: Callable[..., RedisServer]) -> None:
    """From four fifths of its maxmemory on: a warning, until there is room again."""
    watched.system.use_store(start_redis().url())
    watched.export()
    with watched.system.client() as client:
        for share, is_full in ((2, False), (1.1, True), (2, False)):
            client.config_set("maxmemory", int(client.info("memory")["used_memory"] * share))
            watched.phase("store_memory_ratio", lambda ratio, is_full=is_full: (ratio >= 0.8) == is_full)
    percent = f"{watched.recording.phases[1][-1][PREFIX + 'store_memory_ratio', frozenset()] * 100:.4g}%"
    fires = [{"summary": f"Redis has used {percent} of its maxmemory"}]
    watched.check("OnceRedisFull", {(0, END): [], (1, 2): fires, (1, END): fires, (2, END): []})


def test_an_entry_is_paused(watched: Watched, start_redis: Callable[..., RedisServer]) -> None:
    """By its failures: critical at once. By somebody: a warning after a day. Both until it is resumed."""
    server = start_redis(faketime=0)
    system = watched.system
    system.use_store(server.url())
    failing = {"task": "apps.once_app.ending", "args": ["fails"], "options": {"once": {"pause_after_failures": 2}}}
    system.entries = {"failing": {**failing, "every": 1.0}, "tick": {"task": WORK, "every": 1.0}}
    watched.export()
    watched.phase("stopped", lambda stopped: stopped == 0, entry="failing")
    system.worker().wait_ready()
    beat = system.beat().wait_ready()
    watched.phase("stopped", lambda stopped: stopped == 1, entry="failing")
    seen = system.status("failing")
    assert seen["entry"]["reasons"][0] == "stopped"
    assert re.match(r"paused .* ago by pause_after_failures: 2 windows in a row failed: ", seen["attention"])
    system.once("pause", "tick", "--by", "anna", "--note", "a \x1b[2Jnote")
    beat.stop()
    server.set_clock_offset(90_000)
    watched.phase("paused_seconds", lambda seconds: seconds > 90_000, entry="tick")
    assert re.fullmatch(r"paused 1 d 1 h ago by anna: .*note", system.status("tick")["attention"])
    for entry in system.entries:
        system.once("resume", entry)
    watched.phase("stopped", lambda stopped: stopped == 0, entry="failing")
    stopped = [{"entry": "failing", "summary": "failing is paused, since its windows failed"}]
    watched.check("OnceStopped", {(0, END): [], (1, 1): stopped, (3, END): []})
    seconds = {
        name: int(watched.recording.phases[2][-1][PREFIX + "paused_seconds", frozenset({("entry", name)})])
        for name in system.entries
    }
    long = [
        {"entry": name, "summary": f"{name} is paused for 1d 1h {number % 3600 // 60}m {number % 60}s"}
        for name, number in seconds.items()
    ]
    watched.check("OncePausedForLong", {(1, END): [], (2, 1): long, (3, END): []})


def test_redis_goes_away(watched: Watched, start_redis: Callable[..., RedisServer]) -> None:
    """Critical after a minute."""
    server = start_redis()
    watched.system.use_store(server.url())
    watched.export()
    watched.phase("store_up", bool)
    server.stop()
    watched.phase("store_up", lambda up: up == 0)
    server.restart()
    watched.phase("store_up", bool)
    fires = [{"summary": "Redis can't be read, so nothing is claimed and workers put windows back"}]
    watched.check("OnceRedisAway", {(0, END): [], (1, 2): fires, (1, END): fires, (2, END): []})


def test_the_exporter_dies(watched: Watched) -> None:
    """Without metrics no other alert fires, so this one does."""
    exporter = watched.export()
    watched.phase("store_up", bool)
    exporter.kill()
    with pytest.raises(ConnectionRefusedError):
        watched.look()
    watched.recording.phase("")
    watched.export()
    watched.phase("store_up", bool)
    fires = [{"summary": "The metrics are missing, so none of these other alerts can fire"}]
    watched.check("OnceNotWatched", {(0, END): [], (1, 9): [], (1, 12): fires, (2, END): []})


def test_nobody_is_left_to_recover_a_window(watched: Watched) -> None:
    """A window whose worker died and whom no beat publishes again is overdue, until beat and worker are back."""
    system = watched.system
    system.entries = {"tick": {"task": WORK, "every": 1.0}}
    system.kill_point = "worker.body:KILL"
    watched.export(kill_point="")
    watched.phase("overdue_windows", lambda overdue: overdue == 0, entry="tick")
    worker, beat = system.worker().wait_ready(), system.beat(kill_point="").wait_ready()
    system.killed_in()
    beat.kill()
    worker.end()
    system.count_as_gone(beat)
    watched.phase("overdue_windows", lambda overdue: overdue > 0, entry="tick")
    (overdue,) = (
        number for (name, _), number in watched.recording.phases[-1][-1].items() if name == PREFIX + "overdue_windows"
    )
    system.kill_point = ""
    system.store.set_paused("tick", paused=True)
    system.worker("worker2").wait_ready()
    system.beat("beat2").wait_ready()
    watched.phase("open_windows", lambda number: number == 0, entry="tick")
    fires = [{"entry": "tick", "summary": f"tick: {overdue:g} windows are overdue"}]
    watched.check("OnceOverdue", {(0, END): [], (1, SOON): fires, (2, END): []})


def test_a_body_hangs(watched: Watched) -> None:
    """Its lease is renewed for ever, and those behind it are begun by nobody: each is an alert of its own."""
    system = watched.system
    system.entries = {"tick": {"task": WORK, "every": 1.0, "args": [0.05]}}
    system.settings = {"once_beat_start_timeout": 600.0}
    system.worker().wait_ready()
    beat = system.beat().wait_ready()
    system.wait_done(4)
    watched.export()
    watched.phase("hung_windows", lambda hung: hung == 0, entry="tick")
    beat.stop()
    system.entries["tick"]["args"] = [600]
    beat = system.beat("hanging").wait_ready()
    wait_until(lambda: len(system.account().open) > 2, "one runs, others wait", 60)
    system.store.set_paused("tick", paused=True)
    behind = len(system.account().open) - 1
    watched.phase("stuck_windows", lambda stuck: stuck == behind, entry="tick")
    assert watched.last("hung_windows", entry="tick") == watched.last("workers") == 1
    for name in ("oldest_running_window_age_seconds", "oldest_open_window_age_seconds"):
        assert watched.last(name, entry="tick") > 60
    seen = system.status()
    assert re.search(r"1 running for \d+ min on .*, the longest before took 0\.", seen["attention"])
    assert seen["entry"]["reasons"][:2] == ["hung", "stuck"], "who hangs is said first"
    assert f"the queue '{system.queue}' has 1 worker, busy with 1 window, of which 'tick' hangs" in seen["attention"]
    assert (seen["entry"]["silent"], seen["entry"]["overdue"]) == (0, 0)
    doctor = system.once("doctor", exit_code=1)
    assert re.search(r"note  workers: the queue '\S+' has 1 worker, .*; it has \d+ messages?, the broker says", doctor)
    (hangs,) = (w for w in json.loads(system.once("history", "tick", "--json"))["windows"] if w["state"] == "running")
    story = system.once("history", "tick", "--window", hangs["start"])
    assert f"control -d {hangs['worker']} terminate SIGTERM {hangs['task_id']}\n" in story
    assert hangs["task_id"] == task_id("once:", "tick", parse_instant(hangs["start"]))
    beat.stop()
    system.once("abandon", "tick", "--running", "--yes")
    watched.phase("open_windows", lambda number: number == 0, entry="tick")
    hangs = [{"entry": "tick", "summary": "tick: 1 windows run for far too long"}]
    waits = [{"entry": "tick", "summary": f"tick: the workers of its queue don't begin {behind} windows"}]
    for alert, fires in (("OnceHung", hangs), ("OnceStuck", waits), ("OnceNoWorker", [])):
        watched.check(alert, {(0, END): [], (1, 2): fires, (1, END): fires, (2, END): []})


def test_nobody_consumes_a_queue(watched: Watched) -> None:
    """That is an alert of the queue, and none of its entries; a worker that isn't heard of consumes nothing."""
    system = watched.system
    system.entries = {"tick": {"task": WORK, **rare()}}
    system.settings = {"once_beat_start_timeout": 600.0}
    worker = system.worker().wait_ready()
    watched.export()
    watched.phase("workers", lambda number: number == 1)
    worker.kill()
    beat = system.beat().wait_ready()
    watched.phase("idle_queue_stuck_windows", lambda stuck: stuck > 0, queue=system.queue)
    assert watched.last("stuck_windows", entry="tick") == watched.last("workers") == 0
    stuck = watched.last("idle_queue_stuck_windows", queue=system.queue)
    seen = system.status()
    assert seen["entry"]["reasons"] == ["no consumer"]
    why = f"no worker consumes the queue '{system.queue}': {worker.name}@"
    assert why in seen["attention"]
    assert f"warn  workers: {why}" in system.once("doctor", exit_code=1)
    system.store.set_paused("tick", paused=True)
    system.worker("worker2").wait_ready()
    watched.phase("open_windows", lambda number: number == 0, entry="tick")
    beat.stop()
    fires = [{"queue": system.queue, "summary": f"No worker consumes the queue {system.queue}: {stuck:g} windows wait"}]
    watched.check("OnceNoWorker", {(0, END): [], (1, 2): fires, (1, END): fires, (2, END): []})
    watched.check("OnceStuck", {(1, END): []})


def test_windows_are_skipped(watched: Watched) -> None:
    """Three in a row, while one runs; until one runs again."""
    system = watched.system
    options = {"once": {"overlap": "skip"}}
    system.entries = {"tick": {"task": WORK, "every": 1.0, "args": [600], "options": options}}
    watched.export()
    watched.phase("skipped_in_a_row", lambda skipped: skipped == 0, entry="tick")
    worker, beat = system.worker(concurrency=2).wait_ready(), system.beat().wait_ready()
    watched.phase("skipped_in_a_row", lambda skipped: skipped >= 3, entry="tick")
    skipped = watched.last("skipped_in_a_row", entry="tick")
    assert re.search(r"the last \d+ windows are skipped", system.status()["attention"])
    worker.kill()
    beat.stop()
    system.entries["tick"]["args"] = [0.05]
    system.purge()
    system.worker("worker2").wait_ready()
    system.beat("beat2").wait_ready()
    watched.phase("skipped_in_a_row", lambda skipped: skipped == 0, entry="tick")
    fires = [{"entry": "tick", "summary": f"tick: the last {skipped:g} windows were skipped"}]
    watched.check("OnceSkipping", {(0, END): [], (1, 2): fires, (1, END): fires, (2, END): []})


def test_a_worker_stands_still(watched: Watched) -> None:
    """Its window runs, and its lease isn't renewed; until it goes on."""
    system = watched.system
    system.entries = {"tick": {"task": WORK, "every": 1.0, "args": [600]}}
    system.settings = {"once_beat_lease": 60.0}
    watched.export()
    watched.phase("silent_windows", lambda silent: silent == 0, entry="tick")
    worker, beat = system.worker().wait_ready(), system.beat().wait_ready()
    wait_until(lambda: system.ledger.read("start"), "one runs", 60)
    beat.stop()
    with system.procs_paused(worker):
        watched.phase("silent_windows", lambda silent: silent == 1, entry="tick")
        assert re.search(r"1 running, not heard of for .*, on (worker|celery)@", system.status()["attention"])
    watched.phase("silent_windows", lambda silent: silent == 0, entry="tick")
    fires = [{"entry": "tick", "summary": "tick: the worker of 1 windows hasn't renewed their leases"}]
    watched.check("OnceWorkerSilent", {(0, END): [], (1, 1): [], (1, 3): fires, (1, END): fires, (2, END): []})


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
    text = Path(__file__).read_text()
    assert [rule["alert"] for group in groups for rule in group["rules"] if f'"{rule["alert"]}"' not in text] == []


def test_windows_end_badly(watched: Watched) -> None:
    """A window that failed is a warning, one that won't run any more is critical; each for a quarter of an hour."""
    system = watched.system
    system.entries = {
        "failing": {"task": "apps.once_app.ending", "every": 1.0, "args": ["fails"]},
        "expiring": {"task": WORK, "every": 1.0, "options": {"expires": 1, "queue": "nobody"}},
        "fine": {"task": WORK, "every": 1.0},
    }
    watched.export()
    watched.phase("windows_total", lambda number: number == 0, entry="failing", outcome="failed")
    system.worker().wait_ready()
    beat = system.beat().wait_ready()
    wait_until(lambda: system.outcomes("failing").get("failed"), "one has failed", 60)
    wait_until(lambda: system.outcomes("expiring").get("expired"), "one has expired", 60)
    system.wait_done(1, "fine")
    for entry in system.entries:
        system.store.set_paused(entry, paused=True)
    wait_until(lambda: not any(system.account(entry).open for entry in system.entries), "all have ended", 60)
    beat.stop()
    counts = {entry: system.outcomes(entry) for entry in system.entries}
    watched.phase("windows_total", lambda n: n == counts["failing"]["failed"], entry="failing", outcome="failed")
    failed = [{"entry": "failing", "summary": "failing: a window failed"}]
    lost = [
        {"entry": "expiring", "outcome": "expired", "summary": "expiring: a window is expired, and won't run any more"}
    ]
    watched.check("OnceWindowFailed", {(0, END): [], (1, 2): failed, (1, END): []})
    watched.check("OnceWindowLost", {(0, END): [], (1, 2): lost, (1, END): []})


def test_windows_that_a_pause_made_late(watched: Watched) -> None:
    """Who resumes an entry isn't paged for what it missed meanwhile; who stopped all beats is."""
    system = watched.system
    system.entries = {name: {"task": WORK, "every": 1.0} for name in ("paused", "alone")}
    system.settings = {"once_beat_tolerance": 2.0}
    watched.export()
    system.worker().wait_ready()
    beat = system.beat().wait_ready()
    for name in system.entries:
        system.wait_done(1, name)
    system.store.set_paused("paused", paused=True)
    beat.stop()
    watched.phase("paused", bool, entry="paused")
    cursor = system.account("alone").cursor
    wait_until(lambda: datetime.now(timezone.utc) > cursor + timedelta(seconds=6), "windows pass", 30)
    system.store.set_paused("paused", paused=False)
    system.beat().wait_ready()
    watched.phase("windows_total", bool, entry="alone", outcome="missed")
    assert watched.last("windows_total", entry="paused", outcome="missed")
    lost = [{"entry": "alone", "outcome": "missed", "summary": "alone: a window is missed, and won't run any more"}]
    watched.check("OnceWindowLost", {(0, END): [], (1, 2): lost})


def test_an_entry_among_many_fails(watched: Watched) -> None:
    """It had no series of its own before: the others' count says that a window failed, and its attention says whose."""
    system = watched.system
    # Its one window comes when all are loaded and looked at: what isn't loaded yet needs attention too.
    anchor = format_instant(datetime.now(timezone.utc) + timedelta(seconds=20))
    system.entries = {
        **{f"a{n}": {"task": WORK, "every": 7 * 86_400.0} for n in range(5)},
        "zebra": {"task": "apps.once_app.ending", "every": 7 * 86_400.0, "anchor": anchor, "args": ["fails"]},
    }
    watched.export("--entries", "2")
    system.worker().wait_ready()
    system.beat().wait_ready()
    watched.phase("windows_total", lambda number: number == 0, entry="(others)", outcome="failed")
    assert (PREFIX + "attention", frozenset({("entry", "zebra")})) not in watched.recording.phases[0][-1]
    watched.phase("attention", bool, entry="zebra")
    fires = [{"entry": "(others)", "summary": "(others): a window failed"}]
    watched.check("OnceWindowFailed", {(0, END): [], (1, 2): fires, (1, END): []})


def test_a_window_begins_late(watched: Watched) -> None:
    """Minutes late is a warning; the next one that is in time ends it."""
    system = watched.system
    system.entries = {"hourly": {"task": WORK, "every": 60.0}}
    watched.export()
    loaded = loaded_of(system)
    rows = list(loaded.entries)
    filled.load(system.store, rows, timedelta(minutes=6))
    watched.phase("open_windows", lambda number: number == 0, entry="hourly")
    filled.execute(system.store, filled.claim(system.store, rows))
    watched.phase("last_window_lateness_seconds", lambda late: late > 60, entry="hourly")
    late = watched.recording.phases[-1][-1][PREFIX + "last_window_lateness_seconds", frozenset({("entry", "hourly")})]
    assert 240 < late < 420
    while owed := filled.claim(system.store, rows):
        filled.execute(system.store, owed)
    watched.phase("last_window_lateness_seconds", lambda late: late <= 60, entry="hourly")
    minutes, seconds = divmod(int(late), 60)
    fires = [{"entry": "hourly", "summary": f"hourly begins {minutes}m {seconds}s late"}]
    watched.check("OnceLate", {(0, END): [], (1, 4): [], (1, SOON): fires, (2, END): []})


def test_beats_claim_late(watched: Watched) -> None:
    """As a beat says it with its heartbeat."""
    store = watched.system.store

    def say(lag: float) -> None:
        store.overdue("host:1:a", datetime.now(timezone.utc), 0, report=BeatReport(0.0, lag, 5, 0, "0.1.0"))

    watched.export()
    for lag in (0.5, 75.0, 0.5):
        say(lag)
        watched.phase("lag_seconds", lambda found, lag=lag: found == lag)
    fires = [{"summary": "Beats claim 1m 15s late"}]
    watched.check("OnceUnclaimed", {(0, END): [], (1, 1): fires, (2, END): []})


def test_a_clock_is_wrong(watched: Watched) -> None:
    """A beat whose machine's clock is a minute ahead."""
    system = watched.system
    watched.export()
    right = system.beat("right").wait_ready()
    watched.phase("clock_offset_seconds", lambda offset: offset < 2)
    wrong = system.beat("wrong", faketime=60).wait_ready()
    watched.phase("clock_offset_seconds", lambda offset: offset > 2)
    ((_, offset),) = (
        item for item in watched.recording.phases[-1][-1].items() if item[0][0] == PREFIX + "clock_offset_seconds"
    )
    assert 50 < offset < 70
    wrong.kill()
    system.count_as_gone(wrong)
    watched.phase("clock_offset_seconds", lambda offset: offset < 2)
    right.stop()
    fires = [{"summary": f"A beat's clock is {_as_humanized(offset)} off the server's"}]
    watched.check("OnceClocksApart", {(0, END): [], (1, 9): [], (1, 12): fires, (2, END): []})


def test_an_entry_is_set_up_wrongly(watched: Watched) -> None:
    """One that is left out, and one whose schedule raises: until they are put right."""
    good = {"tick": {"task": WORK, "every": 3600.0}}
    wrong = {
        **good,
        "wrong": {"task": WORK, "every": 1.0, "options": {"once": {"grce": 1}}},
        "raises": {"task": WORK, "broken": True},
    }
    for entries, is_wrong in ((good, False), (wrong, True), (good, False)):
        beat, exporter = watched.system.beat(entries=entries), watched.export(entries=entries)
        if is_wrong:
            watched.phase("misconfigured", bool, entry="raises")
        else:
            watched.phase("misconfigured", lambda wrong: not wrong, entry="tick")
        beat.stop()
        exporter.stop()
    fires = [
        {"entry": name, "summary": f"{name} doesn't run as it should: `celery once doctor` says why"}
        for name in ("raises", "wrong")
    ]
    watched.check("OnceSetUpWrongly", {(1, 4): [], (1, SOON): fires, (2, END): []})


def _as_humanized(seconds: float) -> str:
    """As Prometheus writes a duration of a minute or so."""
    if seconds < 60:
        return f"{seconds:.4g}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m {rest}s"


def test_a_window_is_late(watched: Watched) -> None:
    """By the deadline of its entry, also while no beat lives to say it."""
    system = watched.system
    options = {"once": {"deadline": 5.0}}
    system.entries = {"tick": {"task": WORK, "every": 1.0, "options": options}}
    system.worker().wait_ready()
    beat = system.beat().wait_ready()
    system.wait_done(2)
    watched.export()
    watched.phase("late_windows", lambda late: late == 0, entry="tick")
    beat.kill()
    system.count_as_gone(beat)
    watched.phase("late_windows", bool, entry="tick")
    beat = system.beat("beat2").wait_ready()
    watched.phase("late_windows", lambda late: late == 0, entry="tick")
    fires = [{"entry": "tick", "summary": "tick: 1 windows aren't done by their deadline"}]
    watched.check("OnceWindowLate", {(0, END): [], (1, SOON): fires, (2, END): []})
