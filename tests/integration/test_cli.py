"""``celery once …`` as a person types it: a real pair, real processes, their output and exit status."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

import filled
import pytest
from boards import loaded_of
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner
from kombu import Connection
from processes import environ, wait_until
from servers import RedisServer, free_port
from system import SLOWLY, System, once_soon

from celery_once_beat.cli import once as once_group
from celery_once_beat.settings import name_broker
from celery_once_beat.store import Begun, Confirmation, Published
from celery_once_beat.windows import WindowKey, format_instant, parse_instant, task_id

HOST = socket.gethostname()


class Said(NamedTuple):
    """What a command printed, and its exit status."""

    exit_code: int
    log: str


Once = Callable[..., Said]


@pytest.fixture
def once(system: System) -> Once:
    """Run a command to its end; ``apart``: what it says on stderr isn't shown."""

    def run(*arguments: str, typed: str | None = None, apart: bool = False, **env: Any) -> Said:
        if typed is None and not apart:
            proc = system.celery("once", *arguments, **env)
            return Said(proc.wait(), proc.log)
        done = subprocess.run(
            command(*arguments), input=typed or "", stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if apart else subprocess.STDOUT, text=True, timeout=60, check=False,
            env=environ(system.env(**env)), cwd=system.directory,
        )  # fmt: skip
        return Said(done.returncode, done.stdout)

    return run


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "apps.once_app", "once", *arguments]


@pytest.mark.long
def test_the_status_of_a_pair(system: System, once: Once) -> None:
    """Beats, each entry's last window, what needs attention first; the same as JSON, and nothing is written."""
    system.entries = {
        "good": {"task": "apps.once_app.work", "every": 1.0},
        "failing": {"task": "apps.once_app.ending", "every": 1.0, "args": ["fails"]},
        "later": {"task": "apps.once_app.work", "cron": "30 2 29 2 *"},
        "wrong": {"task": "apps.once_app.work", "every": 1.0, "options": {"once": {"grce": 1}}},
        "over\nthere": {"task": "apps.once_app.work", "cron": "30 2 29 2 *"},
    }
    system.settings = SLOWLY
    system.check_law = False
    beats, _ = system.pair(pool="solo")
    wait_until(lambda: len(system.store.snapshot().beats) == 2, "both live", 60)
    system.wait_done(2, "good")
    wait_until(lambda: system.outcomes("failing").get("failed"), "one has failed", 60)
    (start,) = list(system.recorded("good"))[-1:]

    told = json.loads(once("status", "--json").log)
    assert {beat["beat"].split(":")[1] for beat in told["beats"]} == {str(beat.pid) for beat in beats}
    for beat in told["beats"]:
        assert beat["heard"] < 15
        assert abs(beat["offset"]) < 2
        assert beat["entries"] == 4, "one is left out"
        assert beat["untracked"] == 0
    assert [entry["entry"] for entry in told["entries"]] == ["wrong", "failing", "good", "later", "over\nthere"]
    by_name = {entry["entry"]: entry for entry in told["entries"]}
    assert "did you mean 'grace'?" in by_name["wrong"]["attention"][0]
    assert by_name["failing"]["attention"] == ["last window failed: ValueError: this task fails"]
    good = by_name["good"]
    assert not good["attention"]
    assert good["last"]["state"] == "done"
    assert good["last"]["worker"] == f"celery@{HOST}" or good["last"]["worker"].startswith("worker")
    assert good["last"]["start"] >= start
    assert 0 <= good["last"]["late"] < 60
    assert parse_instant(good["next"]) > parse_instant(told["now"])
    assert by_name["later"]["last"] is None
    assert by_name["later"]["next"].endswith("-02-29T02:30:00.000000Z")

    table = once("status")
    assert table.exit_code == 0
    lines = table.log.splitlines()
    assert "\x1b" not in table.log, "no colours but on a terminal"
    assert "'over\\nthere'" in table.log, "an entry's name can't break the table"
    assert next(line for line in lines if line.startswith("ENTRY")).split() == [
        *("ENTRY", "LAST", "WINDOW", "OUTCOME", "LATE", "NEXT", "OPEN")
    ]
    assert re.search(r"^good +\d\d:\d\d:\d\d +done +\d+\.\d s +\d\d:\d\d:\d\d +\d+$", table.log, re.MULTILINE)
    row = next(at for at, line in enumerate(lines) if line.startswith("failing "))
    assert lines[row + 1] == "  last window failed: ValueError: this task fails", "the reason is below its row"
    assert max(map(len, lines)) <= 80
    urgent = once("status", "--attention").log
    assert [name in urgent for name in ("failing", "wrong", "good", "later")] == [True, True, False, False]
    in_full = once("status", "failing").log
    last = json.loads(once("history", "failing", "--json").log)["windows"]
    assert re.search(r"^  task id   (\S+)$", in_full, re.MULTILINE)[1] in {window["task_id"] for window in last}
    assert "good" not in in_full
    assert once("status", "tock").exit_code == 2
    for beat in beats:
        beat.stop()
    alone = once("status")
    assert "no beat lives, so nothing is claimed: start one with -S once" in alone.log
    assert alone.exit_code == 1, "nobody claims"


def test_next_says_when_in_local_time_and_utc(system: System, once: Once) -> None:
    """No Redis is asked; days on which the clocks change are marked, and what doesn't exist then runs after it."""
    system.entries = {
        "nightly": {"task": "apps.once_app.work", "cron": "30 2 * * *"},
        "hourly": {"task": "apps.once_app.work", "cron": "0 * * * *"},
    }
    away = {"STORE_URL": f"redis://127.0.0.1:{free_port()}/0", "settings": {"timezone": "Europe/Berlin"}}
    shown = once("next", "nightly", "-n", "3", "--from", "2027-03-27", **away)
    assert shown.exit_code == 0, shown.log
    assert [line.rstrip() for line in shown.log.splitlines()] == [
        "ENTRY    LOCAL TIME                 UTC",
        "nightly  2027-03-27 02:30:00+01:00  01:30:00Z",
        "nightly  2027-03-28 03:00:00+02:00  01:00:00Z  the clocks change",
        "nightly  2027-03-29 02:30:00+02:00  00:30:00Z",
    ]
    merged = json.loads(once("next", "-n", "4", "--from", "2026-10-25T00:30Z", "--json", **away).log)
    assert [(window["entry"], window["start"][11:16], window["clocks_change"]) for window in merged] == [
        ("hourly", "01:00", True),
        ("hourly", "02:00", True),
        ("hourly", "03:00", True),
        ("hourly", "04:00", True),
    ]
    assert merged[0]["local"] == "2026-10-25T02:00:00+01:00", "the second 02:00 of that night"
    rows = {entry.name: entry for entry in loaded_of(system).entries}
    filled.load(system.store, [rows["hourly"]], timedelta(0))
    system.store.set_paused("hourly", paused=True)
    system.check_law = False
    paused = json.loads(once("next", "-n", "30", "--json").log)
    assert {(window["entry"], window["paused"]) for window in paused} == {("hourly", True), ("nightly", False)}
    lines = once("next", "-n", "30").log.splitlines()[1:]
    assert {(line.split()[0], line.rstrip().endswith("paused")) for line in lines} >= {("hourly", True)}
    wrong = once("next", "nigthly", **away)
    assert (wrong.exit_code, wrong.log) == (2, "once: the schedule has no entry 'nigthly' (did you mean 'nightly'?)\n")
    wrong = once("next", "--from", "soon", **away)
    assert wrong.exit_code == 2
    assert wrong.log.startswith("once: --from: found 'soon', expected a time like 2026-11-21T02:00 (Europe/Berlin)")


@pytest.mark.long
def test_run_and_backfill(system: System, once: Once) -> None:
    """An order is carried out by a beat and counted apart; what is done or open is skipped; it asks before many."""
    newest = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(minutes=20)  # no other is due while it runs
    anchor = format_instant(newest)
    system.entries = {"hourly": {"task": "apps.once_app.work", "every": 3600.0, "anchor": anchor}}
    unknown = once("run", "hourly")
    assert unknown.exit_code == 2
    assert "no beat has loaded 'hourly': start one that has it in its schedule" in unknown.log
    beat = system.beat()
    wait_until(lambda: system.store.account("hourly"), "it is loaded", 60)
    worker = system.worker(pool="solo").wait_ready()

    revoked = task_id("once:", "hourly", newest)
    Celery(broker=system.broker_url, set_as_current=False).control.revoke(revoked)
    worker.wait_log(f"Tasks flagged as revoked: {revoked}")  # its window would be discarded from now on
    ordered = once("run", "hourly")
    start = format_instant(newest)
    assert ordered.exit_code == 0
    assert ordered.log.split()[0] == start
    wait_until(lambda: start in system.recorded("hourly"), "it ran all the same", 60)
    worker.wait_log(ordered.log.split()[1])
    (past,) = json.loads(once("history", "hourly", "--json").log)["windows"]
    assert past["beat"] == f"{HOST}:order"
    earlier = newest - timedelta(hours=5)
    odd = once("run", "hourly", "--window", format_instant(earlier + timedelta(minutes=1)))
    assert odd.exit_code == 2
    assert "is no window of 'hourly'; see: once next --from" in odd.log

    since = (earlier + timedelta(minutes=1)).isoformat()
    shown = once("backfill", "hourly", since, "9999-12-31", "--dry-run")
    assert [line.split(maxsplit=1) for line in shown.log.splitlines()] == [["1", "done, skipped"], ["4", "to run"]]
    counted = json.loads(once("backfill", "hourly", since, "9999-12-31", "--dry-run", "--json", apart=True).log)
    none = {"ordered": 0, "open": 0}
    assert counted == {"entry": "hourly", "to_run": 4, "skipped": {"done": 1}, **none}
    refused = once("backfill", "hourly", since, newest.isoformat(), typed="n\n")
    assert refused.exit_code == 1
    assert "Run 4 windows of hourly? [y/N]" in refused.log
    assert len(system.recorded("hourly")) == 1, "it was only asked"
    agreed = once("backfill", "hourly", since, newest.isoformat(), typed="y\n")
    assert agreed.exit_code == 0
    assert "4 ordered" in agreed.log
    wait_until(lambda: len(system.recorded("hourly")) == 5, "all ran", 60)
    assert set(system.recorded("hourly").values()) == {1}
    assert system.account("hourly").apart == {"done": 5}
    again = once("backfill", "hourly", since, newest.isoformat(), "--yes", "--again")
    assert "5 ordered" in again.log
    wait_until(lambda: system.account("hourly").apart == {"done": 10}, "all ran once more", 60)

    worker.stop()
    told = json.loads(once("run", "hourly", "--json").log)
    last = told.pop("task_id")
    assert told == {"entry": "hourly", "start": start, **none, "ordered": 1}
    still = once("run", "hourly")
    assert (still.exit_code, still.log) == (1, f"once: window {start} of 'hourly' still owes its outcome\n")
    system.purge()
    message = wait_until(system.peek, "a beat publishes it again", 60)
    assert json.loads(message)["headers"]["id"] == last, "under the same id"
    future = once("backfill", "hourly", "2999-01-01", "2999-01-02")
    assert (future.exit_code, future.log) == (2, "once: FROM lies in the future: no window has begun since\n")
    backwards = once("backfill", "hourly", "now", "2020-01-01")
    assert (backwards.exit_code, backwards.log) == (2, "once: TO lies before FROM\n")
    system.worker("other", pool="solo").wait_ready()
    system.settle([beat], "hourly")


def test_an_order_waits_for_a_beat(system: System, once: Once) -> None:
    """It needs no broker, and says so where no beat lives: the next one that starts publishes the window."""
    beat = system.beat()
    wait_until(lambda: system.store.account("tick"), "it is loaded", 60)
    beat.stop()
    system.purge()
    ordered = once("run", "tick", BROKER_URL=f"redis://127.0.0.1:{free_port()}/0")
    start, _, words = ordered.log.partition(" ")
    assert ordered.exit_code == 0
    assert words.endswith("\nonce: no beat lives; the next one to start publishes the ordered windows\n")
    system.worker(pool="solo").wait_ready()
    last = system.beat()
    wait_until(lambda: start in system.recorded(), "it ran", 60)
    system.settle([last])


@pytest.mark.long
def test_pause_and_resume(system: System, once: Once) -> None:
    """Paused, nothing is claimed, over a restart too; --from-now records what passed as missed, and the law holds."""
    worker, beat = system.worker(pool="solo").wait_ready(), system.beat()
    system.wait_done(1)
    assert json.loads(once("pause", "tick", "--json").log) == [{"entry": "tick", "paused": True}]
    assert once("pause", "tick", "--by", "anna", "--note", "the database moves").log == "tick: paused\n"
    wait_until(lambda: not system.account().open, "all is done", 60)
    cursor = system.account().cursor
    beat.stop()
    beat = system.beat()
    beat.wait_log("it is paused, until somebody resumes it: celery once resume tick", 60)
    wait_until(lambda: datetime.now(timezone.utc) > cursor + timedelta(seconds=3), "windows pass", 60)
    assert system.account().cursor == cursor
    told = json.loads(once("status", "--json").log)["entries"][0]
    assert (told["paused"], told["attention"]) == (True, [told["attention"][0]])
    assert re.fullmatch(r"paused .* ago by anna: the database moves", told["attention"][0])
    resumed = once("resume", "tick", "--from-now")
    passed = int(re.fullmatch(r"tick: resumed, (\d+) windows cancelled\n", resumed.log).group(1))
    assert passed >= 3
    system.wait_done(2)
    assert system.account().counts["cancelled"] == passed
    assert json.loads(once("audit", "--json").log)["balances"]
    assert once("resume", "tick", "--from-now").log == "once: 'tick' isn't paused\n"
    assert json.loads(once("resume", "tick", "--json").log) == [{"entry": "tick", "paused": False, "cancelled": 0}]
    assert once("pause", "tock").exit_code == 2
    orders = [(each["what"], each["entry"], each["about"]) for each in json.loads(once("orders", "--json").log)]
    assert orders[0] == ("pause", "tock", "refused: no beat has loaded 'tock': start one that has it in its schedule")
    assert orders[1:3] == [("resume", "tick", ""), ("resume", "tick", "refused: 'tick' isn't paused")]
    system.settle([beat])
    worker.stop()


@pytest.mark.long
def test_abandon(system: System, once: Once) -> None:
    """What is open is given up, and what runs only by request; the account balances, and the log says who did it."""
    system.entries = {"tick": {"task": "apps.once_app.work", "every": 1.0}}
    beat = system.beat()
    wait_until(lambda: system.store.account("tick"), "the entry is loaded", 60)
    wait_until(lambda: len(system.account().open) > 2, "windows are open", 60)
    beat.stop()
    starts = sorted(system.account().open)
    newest = WindowKey("tick", starts[-1])
    assert isinstance(system.store.begin(newest, "celery@host:1:delivery/1", 600.0), Begun)
    refused = once("abandon", "tick", typed="n\n")
    assert refused.exit_code == 1
    assert f"Give up {len(starts)} open windows of tick? [y/N]" in refused.log
    one = once("abandon", "tick", "--window", starts[0].isoformat(), "--yes", "--by", "anna", "--note", "stuck")
    assert (one.exit_code, one.log) == (0, "tick: 1 cancelled\n")
    rest = once("abandon", "tick", "--yes", "--json", apart=True)
    assert rest.exit_code == 1
    told = json.loads(rest.log)
    assert told == {
        "entry": "tick",
        "cancelled": [format_instant(start) for start in starts[1:-1]],
        "running": [format_instant(starts[-1])],
    }
    assert once("abandon", "tick", "--yes", "--running").log == "tick: 1 cancelled\n"
    assert not system.account().open
    assert system.account().counts["cancelled"] == len(starts)
    assert json.loads(once("audit", "--json").log)["balances"]
    assert once("abandon", "tick", "--yes").log == "tick: 0 cancelled\n"
    assert "that starts then is open" in once("abandon", "tick", "--window", starts[0].isoformat()).log
    assert once("abandon", "tock").exit_code == 2
    logged = json.loads(once("orders", "--json").log)
    assert {**logged[-1], "at": ""} == {
        "at": "", "what": "abandon", "entry": "tick", "about": format_instant(starts[0]), "by": "anna", "note": "stuck"
    }  # fmt: skip
    assert len(logged) == 3, "what was refused wasn't ordered"
    system.check_law = False


@pytest.mark.long
def test_republish(system: System, once: Once) -> None:
    """After a purge its windows are published again at once: those of an entry, or of a queue. A copy is refused."""
    system.settings = {**SLOWLY, "once_beat_recovery_interval": 0.3}
    queues = {name: f"{system.queue}-{name}" for name in ("lost", "there")}
    system.entries = {
        name: {"task": "apps.once_app.work", **once_soon(), "options": {"queue": queue}}
        for name, queue in queues.items()
    }
    system.beat().wait_log("Sending due task lost")
    with Connection(system.broker_url) as connection:
        channel = connection.default_channel
        wait_until(lambda: all(map(channel._size, queues.values())), "both are published", 60)
        system.store.consume("busy", name_broker(connection), queues.values())
        assert channel.queue_purge(queues["lost"]) == 1
        refused = once("republish")
        assert (refused.exit_code, "name entries, or a --queue" in refused.log) == (2, True)
        assert once("republish", "--queue", queues["there"], "--by", "anna").log == "there: 1 published again\n"
        (start,) = system.account("lost").open
        told = json.loads(once("republish", "lost", "--json", "--note", "purged").log)
        assert told == [{"entry": "lost", "republished": [format_instant(start)]}]
        sizes = {"lost": 1, "there": 2}
        wait_until(lambda: {name: channel._size(queue) for name, queue in queues.items()} == sizes, "it is out", 60)
    system.worker(extra_args=["-Q", ",".join(queues.values())]).wait_ready()
    for name in queues:
        wait_until(lambda name=name: system.outcomes(name) == {"done": 1}, f"{name} is done", 60)
    wait_until(lambda: system.account("there").refused == 1, "of two copies one is refused", 60)
    assert once("republish", "lost").log == "lost: 0 published again\n"
    logged = json.loads(once("orders", "--json").log)
    assert [each["entry"] for each in logged if each["what"] == "republish"] == ["lost", "lost", "there"]
    assert once("republish", "tock").exit_code == 2


def test_many_entries_are_few_lines(system: System, once: Once) -> None:
    """500 entries don't print 507 lines, unless that is asked; those in a queue are found; so is a task's id."""
    system.check_law = False
    system.entries = {f"entry-{n:03}": {"task": "apps.once_app.work", "every": 7 * 86_400.0} for n in range(500)}
    rows = loaded_of(system).entries
    filled.load(system.store, [rows.get(name) for name in ("entry-300", "entry-301")], timedelta(days=15))
    (window, _) = filled.claim(system.store, [rows.get("entry-300"), rows.get("entry-301")])
    system.store.confirm_many([Confirmation(window, 1, Published.SENT, 600.0, "mail")])
    short = once("status").log
    assert len(short.splitlines()) < 100
    assert "… and 460 more, " in short
    assert len(once("status", "--all").log.splitlines()) > 500
    found = json.loads(once("status", "--queue", "mail", "--json").log)["entries"]
    assert [entry["entry"] for entry in found] == ["entry-300"]
    assert found[0]["queues"] == ["mail"]
    story = once("history", "entry-300", "--window", format_instant(window.start)).log
    assert f"task_id   {task_id('once:', 'entry-300', window.start)}" in story
    assert once("history", "entry-300", "--window", "2026-01-01").log == "No such window is known.\n"
    (later,) = filled.claim(system.store, [rows.get("entry-300")])
    filled.execute(system.store, [later, window])  # the last that started isn't the last that ended
    (newest,) = json.loads(once("history", "entry-300", "-n", "1", "--json").log)["windows"]
    assert newest["start"] == format_instant(later.start)


@pytest.mark.long
def test_the_log_of_orders(system: System, once: Once) -> None:
    """Each command that orders something says who and why."""
    assert once("orders").log == "Nobody has ordered anything in the last 90 days.\n"
    system.worker(pool="solo").wait_ready()
    beat = system.beat()
    system.wait_done(1)
    for words in (["pause", "tick"], ["resume", "tick", "--from-now"], ["run", "tick"]):
        assert once(*words, "--by", "anna", "--note", "\u202ewhy").exit_code == 0
    shown = once("orders").log.splitlines()
    assert [line.split()[2] for line in shown[1:]] == ["run", "resume", "pause"]
    assert all(line.endswith(r"anna  '\u202ewhy'") for line in shown[1:])
    beat.stop()


@pytest.mark.long
def test_audit_finds_what_doesnt_balance(system: System, once: Once) -> None:
    """Exit 1 and the entry's name where a counter is wrong; 0 where the law holds."""
    system.entries = {name: {"task": "apps.once_app.work", "every": 1.0} for name in ("one", "two")}
    system.worker(pool="solo").wait_ready()
    beat = system.beat()
    for entry in system.entries:
        system.wait_done(2, entry)
    even = once("audit")
    assert even.exit_code == 0
    assert even.log.endswith("Every account balances.\n")
    system.settle([], *system.entries)
    with system.client() as client:
        client.hincrby(system.store.entry_key("two"), "c:done", -1)
    uneven = once("audit")
    assert uneven.exit_code == 1
    assert re.search(r"^one .* balances$", uneven.log, re.MULTILINE)
    assert re.search(r"^two .* doesn't balance: 1 windows have no account$", uneven.log, re.MULTILINE)
    told = json.loads(once("audit", "--json").log)
    assert [entry["verdict"] for entry in told["entries"]] == ["balances", "doesn't balance"]
    with system.client() as client:
        client.hincrby(system.store.entry_key("two"), "c:done", 1)
    beat.stop()


@pytest.mark.long
def test_a_server_whose_clock_went_back_is_seen(system: System, once: Once) -> None:
    """Entries aren't claimed until the old time is reached: beat, status and doctor say so at once, and what to do."""
    system.settings = SLOWLY
    beat = system.beat()
    wait_until(system.waiting, "a window is published", 60)
    ahead = datetime.now(timezone.utc) + timedelta(hours=1)
    with system.client() as client:
        client.hset(system.store.entry_key("tick"), "cursor", format_instant(ahead))
    beat.wait_log("claimed: their cursors are in the future, up to " + re.escape(format_instant(ahead)))
    status = once("status")
    assert status.exit_code == 1
    assert "clock is 59" in status.log or "clock is 60" in status.log
    assert f"isn't claimed until {ahead:%Y-%m-%d %H:%M}" in " ".join(status.log.split())
    doctor = once("doctor")
    assert doctor.exit_code == 1
    assert "isn't claimed until" in doctor.log
    facts = json.loads(once("status", "--json").log)
    assert facts["behind"] > 3000
    assert facts["entries"][0]["next"] > format_instant(ahead)
    system.check_law = False


def test_the_doctor_names_what_to_set(start_redis: Callable[..., RedisServer], system: System, once: Once) -> None:
    """A Redis that may lose or evict keys, a lonely beat, a wrong entry, a stock scheduler: each with its advice."""
    system.use_store(start_redis(args=("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")))
    system.check_law = False
    system.settings = {"once_beat_lease": 7200.0}
    system.entries = {
        "tick": {"task": "apps.once_app.work", "every": 1.0},
        "plain": {"task": "apps.once_app.plain", "every": 60.0},
        "typo": {"task": "apps.once_app.wrok", "every": 60.0},
        "<f at 0x7f00>": {"task": "apps.once_app.work", "every": 60.0},
        "wrong": {"task": "apps.once_app.work", "every": 1.0, "options": {"once": {"grce": 1}}},
    }
    first = json.loads(once("doctor", "--json").log)
    found = {check["check"]: check for check in first["checks"]}
    assert not first["healthy"]
    assert found["beats"]["verdict"] == "warn"
    assert found["scheduler"]["advice"] == "beat_scheduler = 'once', or start beat with -S once"
    beats = [system.beat(f"beat{number}") for number in (1, 2)]
    wait_until(lambda: len(system.store.snapshot().beats) == 2 and system.store.account("tick"), "both live", 60)
    sick = once("doctor")
    assert sick.exit_code == 1
    for line in (
        r"warn  eviction: maxmemory-policy is allkeys-lru with a maxmemory of 104,857,600 bytes",
        r"      → set 'maxmemory-policy noeviction' in redis.conf: an evicted key is a forgotten window",
        r"warn  persistence: no append-only file",
        r"warn  untracked: plain$",
        r"warn  entry typo: this app has no task 'apps\.once_app\.wrok' \(did you mean 'apps\.once_app\.work'\?\)",
        r"warn  names: with a value of the moment in them: '<f at 0x7f00>' \(an address\)",
        r"warn  entry wrong: can't run: .* \(did you mean 'grace'\?\)",
        r"note  beats: 2 live, all on one machine",
        r"note  scheduler: conf says celery\.beat:PersistentScheduler",
        r"ok    clocks: within 2 s",
        r"ok    versions: celery-once-beat \S+, celery \S+",
    ):
        assert re.search(f"^{line}", sick.log, re.MULTILINE), line
    assert re.search(r"^\d things to set; 1 entry needs attention: see status\.$", sick.log, re.MULTILINE)
    for beat in beats:
        beat.stop()


@pytest.mark.long
def test_the_doctors_last_line(start_redis: Callable[..., RedisServer], system: System, once: Once) -> None:
    """All is well; or it is set up right, and entries need attention. What is to be set is shown elsewhere."""
    system.use_store(start_redis(appendonly=True))
    system.settings = {**SLOWLY, "beat_scheduler": "once"}
    system.check_law = False
    beats, _ = system.pair(pool="solo")
    system.wait_done(2)

    def last(exit_code: int = 0) -> str:
        said = once("doctor")
        return said.log.splitlines()[-1] if said.exit_code == exit_code else said.log

    wait_until(lambda: last() == "Set up right, and all is well.", "all is well", 60)
    once("pause", "tick")
    assert last() == "Set up right; 1 entry needs attention: see status."
    beats[0].stop()
    assert last(1) == "1 thing to set; 1 entry needs attention: see status."
    once("resume", "tick")
    assert last(1) == "1 thing to set."


def test_no_page_mixes_time_zones(system: System, once: Once) -> None:
    """What somebody reads is in the app's zone, also instants within reasons, findings and the log of orders."""
    system.settings = {"timezone": "Asia/Tokyo", "once_beat_deadline": 1.0}
    system.check_law = False
    beat = system.beat()
    wait_until(lambda: system.waiting() > 1, "windows are published", 60)
    beat.stop()
    newest = max(system.account().open)
    system.store.note_loss(2, newest)
    assert once("run", "tick", "--window", format_instant(newest)).exit_code == 1, "it is open"
    there = format_instant(newest + timedelta(hours=9))[:19].replace("T", " ")
    for page, says in {
        "status": "Redis lost its data at",
        "doctor": "warn  data lost: Redis lost its data at",
        "ping --entries": " is late: claimed at",
        "orders": there,
        f"history tick --window {format_instant(newest)}": f"start     {there}",
    }.items():
        shown = once(*page.split()).log
        assert says in shown, page
        assert not re.search(r"2\d{3}-\d\d-\d\dT[\d:.]+Z", shown), shown


def test_apps_that_share_their_keys_are_named(system: System, once: Once) -> None:
    """By each of their beats once, by status and by doctor; where nothing is set, they share none."""
    system.check_law = False
    shop: dict[str, Any] = {"broker_transport_options": {"global_keyprefix": "shop:"}}
    beats = [system.beat("own", settings=shop), system.beat("one")]
    wait_until(system.store.beats, "it lives", 60)
    with system.client() as client:
        wait_until(lambda: client.keys("shop:once:*:entry:tick"), "the other has keys of its own", 60)
    assert len(system.store.snapshot().beats) == 1
    beats.append(system.beat("two", settings={**shop, "once_beat_key_prefix": "once:"}))
    for beat, names in (
        (beats[1], "'once_app' ('shop:'), this one of 'once_app'"),
        (beats[2], "this one of 'once_app'"),
    ):
        beat.wait_log("is of the app ")
        assert names in beat.log
    said = once("status")
    assert "Beats of 2 apps use the same keys: 'once_app', 'once_app' ('shop:'); see doctor." in said.log
    doctor = once("doctor")
    assert doctor.exit_code == 1
    assert re.search(r"^warn  apps: beats of 2 apps use the keys once:…", doctor.log, re.MULTILINE)
    told = [beat.log.count("is of the app ") for beat in beats]
    beats[2].stop()
    assert told == [0, 1, 1]
    with system.client() as client:
        for key in client.keys("shop:once:*"):
            client.delete(key)


@pytest.mark.long
def test_errors_are_one_line(system: System, once: Once) -> None:
    """Redis away, a wrong setting, a foreign key: each command says it in one line and its own status."""
    system.check_law = False
    away = {"STORE_URL": f"redis://:geheim@127.0.0.1:{free_port()}/0"}
    for command in (
        ["status"],
        ["audit"],
        ["doctor"],
        ["ping"],
        ["history", "tick"],
        ["pause", "tick"],
        ["run", "tick"],
    ):
        said = once(*command, **away)
        assert said.exit_code == os.EX_UNAVAILABLE, command
        assert said.log.count("\n") == 1, said.log
        assert said.log.startswith("once: Redis: ConnectionError:")
        assert "geheim" not in said.log
    wrong = once("status", settings={"once_beat_lease": "soon"})
    assert (wrong.exit_code, wrong.log.count("\n")) == (os.EX_CONFIG, 1)
    for text in ("0001-01-01T00:00", "soon"):
        odd = once("next", "--from", text, settings={"timezone": "Asia/Tokyo"})
        assert (odd.exit_code, odd.log.count("\n")) == (2, 1)
    broken = once("doctor", BROKER_URL="nonsense://here")
    assert "warn  broker: can't be used: KeyError" in broken.log
    none = once("status", "-S", "nowhere:Scheduler")
    assert none.exit_code == os.EX_CONFIG
    assert none.log.startswith("once: beat_scheduler: found 'nowhere:Scheduler', expected a scheduler's class:")
    with system.client() as client:
        client.set(system.store.entry_key("tick"), "mine", ex=600)
        foreign = once("history", "tick")
        assert foreign.exit_code == os.EX_DATAERR
        assert foreign.log.startswith("once: the key 'once:{")
        status = once("status")
        assert status.exit_code == 1, "no beat lives"
        assert "holds a string, expected a hash" in status.log
        client.delete(system.store.entry_key("tick"))


def test_the_help_of_each_command() -> None:
    """All are listed with what they do, in words alone: nothing is cut, and no mark of click's is left in the text."""
    context = CLIContext(app=Celery("help", set_as_current=False), no_color=True, workdir=None)

    def help_of(*words: str) -> str:
        shown = CliRunner().invoke(once_group, [*words, "--help"], obj=context)
        assert (shown.exit_code, "\b" in shown.output, "\\b" in shown.output) == (0, False, False), words
        return shown.output

    for group in ((), ("schedules",)):
        listed = help_of(*group).partition("Commands:")[2]
        assert "..." not in listed
        names = re.findall(r"^  (\w+) {2,}\S", listed, re.MULTILINE)
        assert len(names) >= 10
        for name in names:
            assert name in help_of(*group, name)


@pytest.mark.parametrize("broker", ["amqp://nowhere.example//", "redis://127.0.0.1:1/0"])
def test_next_without_a_redis(broker: str) -> None:
    """On a laptop: it says what the schedule says, and where no Redis is set that no store was asked."""
    app = Celery("bare", broker=broker, set_as_current=False)
    app.conf.beat_schedule = {"hourly": {"task": "t", "schedule": 3600.0}}
    context = CLIContext(app=app, no_color=True, workdir=None)
    shown = CliRunner().invoke(once_group, ["next", "-n", "1", "--from", "2027-03-27T02:30Z"], obj=context)
    assert (shown.exit_code, "no Redis is set" in shown.output) == (0, broker.startswith("amqp")), shown.output
    assert re.search("^hourly  2027-03-27 03:00:00", shown.output, re.MULTILINE)
    if broker.startswith("amqp"):
        assert CliRunner().invoke(once_group, ["status"], obj=context).exit_code == os.EX_CONFIG


@pytest.mark.long
def test_names_and_texts_from_outside_move_no_cursor(system: System, once: Once) -> None:
    """A beat's name, an outcome in a history and a counter's name that nobody of ours wrote are written out."""
    system.check_law = False
    beat = system.beat()
    wait_until(lambda: system.store.account("tick"), "it is loaded", 60)
    beat.stop()
    with system.client() as client:
        client.zadd("once:beats", {"a\x1b[2J:1:b": 1e15})
        client.expire("once:beats", 600)
        client.lpush(system.store.keys.of_entry("history", "tick"), "2026-11-21T00:00:00 do\x1b[2Jne 1 0 0 1 a:1 b")
        client.expire(system.store.keys.of_entry("history", "tick"), 600)
        for command in (["ping"], ["status"], ["history", "tick"], ["audit"], ["ping", "--json"]):
            assert "\x1b" not in once(*command).log, command
        assert json.loads(once("ping", "--json").log)["alive"]
        client.hset(system.store.entry_key("tick"), "c:\x1b[2J", 1)
        assert "\x1b" not in once("audit").log
