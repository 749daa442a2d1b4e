"""``celery once …`` as a person types it: a real pair, real processes, their output and exit status."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

import filled
import pytest
import redis
from celery import Celery
from celery.bin.base import CLIContext
from celery.schedules import crontab
from click.testing import CliRunner
from kombu import Connection
from processes import wait_until
from servers import RedisServer, free_port
from system import SLOWLY, System, once_soon

from celery_once_beat.beat.schedule import LoadedSchedule, load_schedule
from celery_once_beat.cli import once as once_group
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.settings import name_broker
from celery_once_beat.store import Begun, Confirmation, LoadRequest, Published, Store
from celery_once_beat.windows import WindowKey, format_instant, parse_instant, task_id


class Said(NamedTuple):
    """What a command printed, and its exit status."""

    exit_code: int
    log: str


Once = Callable[..., Said]


@pytest.fixture
def once(system: System) -> Once:
    """Run a command to its end."""

    def run(*arguments: str, **env: Any) -> Said:
        proc = system.celery("once", *arguments, **env)
        return Said(proc.wait(), proc.log)

    return run


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

    told = json.loads(once("status", "--json").log)
    assert {beat["beat"].split(":")[1] for beat in told["beats"]} == {str(beat.pid) for beat in beats}
    assert {(beat["heard"] < 15, beat["entries"]) for beat in told["beats"]} == {(True, 4)}, "one is left out"
    assert [entry["entry"] for entry in told["entries"]] == ["wrong", "failing", "good", "later", "over\nthere"]
    by_name = {entry["entry"]: entry for entry in told["entries"]}
    assert "did you mean 'grace'?" in by_name["wrong"]["attention"][0]
    assert by_name["failing"]["attention"] == ["last window failed: ValueError: this task fails"]
    good = by_name["good"]
    assert (good["attention"], good["last"]["state"]) == ([], "done")
    assert parse_instant(good["next"]) > parse_instant(told["now"])
    assert by_name["later"]["last"] is None

    table = once("status")
    assert table.exit_code == 0
    lines = table.log.splitlines()
    assert "\x1b" not in table.log, "no colours but on a terminal"
    assert "'over\\nthere'" in table.log, "an entry's name can't break the table"
    assert re.search(r"^good +\d\d:\d\d:\d\d +done +\d+\.\d s +\d\d:\d\d:\d\d +\d+$", table.log, re.MULTILINE)
    row = next(at for at, line in enumerate(lines) if line.startswith("failing "))
    assert lines[row + 1] == "  last window failed: ValueError: this task fails", "the reason is below its row"
    assert max(map(len, lines)) <= 80
    urgent = once("status", "--attention").log
    assert [name in urgent for name in ("failing", "wrong", "good", "later")] == [True, True, False, False]
    in_full = once("status", "failing").log
    last = json.loads(once("history", "failing", "--json").log)["windows"]
    assert re.search(r"^  task id   (\S+)$", in_full, re.MULTILINE)[1] in {window["task_id"] for window in last}
    for beat in beats:
        beat.stop()
    alone = once("status")
    assert "no beat lives, so nothing is claimed: start one with -S once" in alone.log
    assert alone.exit_code == 1, "nobody claims"


class Local:
    """Commands in this process, of an app with these entries; no beat of it lives."""

    def __init__(self, broker: str, entries: dict[str, Any], **conf: Any) -> None:
        app = Celery("local", broker=broker, set_as_current=False)
        entry = {"task": "proj.work", "options": {"once": {"tracked": True}}}
        app.conf.update(conf, beat_schedule={name: {**entry, "schedule": when} for name, when in entries.items()})
        self.context, self.app = CLIContext(app=app, no_color=True, workdir=None), app

    def __call__(self, words: str, typed: str = "", exit_code: int = 0) -> str:
        done = CliRunner().invoke(once_group, shlex.split(words), obj=self.context, input=typed)
        assert done.exit_code == exit_code, done.output
        return done.output

    def schedule(self, store: Store) -> LoadedSchedule:
        return load_schedule(self.app, store.settings)


def test_next_says_when_in_local_time_and_utc(redis_url: str, store: Store) -> None:
    """No Redis is asked; days on which the clocks change are marked, and what doesn't exist then runs after it."""
    entries = {"nightly": crontab(hour=2, minute=30), "hourly": crontab(minute=0)}
    away = Local("redis://127.0.0.1:1/0", entries, timezone="Europe/Berlin")
    assert [line.rstrip() for line in away("next nightly -n 3 --from 2027-03-27").splitlines()] == [
        "ENTRY    LOCAL TIME                 UTC",
        "nightly  2027-03-27 02:30:00+01:00  01:30:00Z",
        "nightly  2027-03-28 03:00:00+02:00  01:00:00Z  the clocks change",
        "nightly  2027-03-29 02:30:00+02:00  00:30:00Z",
    ]
    merged = json.loads(away("next -n 4 --from 2026-10-25T00:30Z --json"))
    of_each = [(window["entry"], window["start"][11:16], window["clocks_change"]) for window in merged]
    assert of_each == [("hourly", f"0{hour}:00", True) for hour in (1, 2, 3, 4)]
    assert merged[0]["local"] == "2026-10-25T02:00:00+01:00", "the second 02:00 of that night"
    wrong = away("next nigthly", exit_code=2)
    assert wrong == "once: the schedule has no entry 'nigthly' (did you mean 'nightly'?)\n"
    here = Local(redis_url, entries)
    filled.load(store, [here.schedule(store).entries.get("hourly")], timedelta(0))
    store.set_paused("hourly", paused=True)
    paused = json.loads(here("next -n 30 --json"))
    assert {(window["entry"], window["paused"]) for window in paused} == {("hourly", True), ("nightly", False)}
    bare = Local("amqp://nowhere.example//", {"hourly": 3600.0})
    shown = bare("next -n 1 --from 2027-03-27T02:30Z")
    assert "no Redis is set" in shown
    assert re.search("^hourly  2027-03-27 03:00:00", shown, re.MULTILINE)
    bare("status", exit_code=os.EX_CONFIG)


def test_orders(store: Store) -> None:
    """Windows that are done or open are skipped, it asks before many, and who ordered what and why is kept."""
    once = Local(store.settings.redis_url, {"hourly": 3600.0})

    def still_open() -> list[datetime]:
        return sorted(store.account("hourly").open)

    assert once("orders") == "Nobody has ordered anything in the last 90 days.\n"
    assert "no beat has loaded 'hourly': start one that has it in its schedule" in once("run hourly", exit_code=2)
    filled.fill(store, once.schedule(store), 3, timedelta(hours=5))
    newest = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0)
    ordered = once("run hourly --by anna --note \u202ewhy")
    assert ordered.startswith(f"{format_instant(newest)} ")
    assert "no beat lives; the next one to start publishes the ordered windows" in ordered
    assert "still owes its outcome" in once("run hourly", exit_code=1)
    assert "is no window of 'hourly'; see: once next --from" in once(
        "run hourly --window 2026-01-01T00:01", exit_code=2
    )

    since = (newest - timedelta(hours=4)).isoformat()
    counted = {line.strip() for line in re.split(r"\n", once(f"backfill hourly {since} 9999-12-31 --dry-run"))}
    assert {"3 done, skipped", "1 to run"} <= {re.sub(" +", " ", line) for line in counted}
    again = f"backfill hourly {since} now --again"
    assert "Run 4 windows of hourly? [y/N]" in once(again, "n\n", exit_code=1)
    assert still_open() == [newest], "it was only asked"
    assert "4 ordered" in once(again, "y\n")
    assert len(still_open()) == 5
    assert "FROM lies in the future" in once("backfill hourly 2999-01-01 2999-01-02", exit_code=2)
    assert "TO lies before FROM" in once("backfill hourly now 2020-01-01", exit_code=2)

    running = WindowKey("hourly", still_open()[0], sent_as="of the order")
    assert isinstance(store.begin(running, "worker", 60.0), Begun)
    story = once(f"history hourly --window {format_instant(running.start)}")
    assert re.search(r"^To end this execution: celery .* control -d worker terminate SIGTERM \S+$", story, re.MULTILINE)
    assert "Give up 5 open windows of hourly? [y/N]" in once("abandon hourly", "n\n", exit_code=1)
    one = format_instant(still_open()[1])
    assert once(f"abandon hourly --window {one} --yes --by bob --note stuck") == "hourly: 1 cancelled\n"
    assert "that starts then is open" in once(f"abandon hourly --window {one}", exit_code=2)
    assert "hourly: 3 cancelled\nonce: 1 left, since they run; see --running" in once(
        "abandon hourly --yes", exit_code=1
    )
    assert once("abandon hourly --yes --running") == "hourly: 1 cancelled\n"
    assert still_open() == []

    assert once("pause hourly --by anna --note moving") == "hourly: paused\n"
    (paused,) = json.loads(once("status --json", exit_code=1))["entries"]
    assert re.match(r"paused .* ago by anna: moving$", paused["attention"][0])
    assert re.match(r"hourly: resumed, \d+ windows cancelled\n", once("resume hourly --from-now"))
    assert once("resume hourly --from-now", exit_code=2) == "once: 'hourly' isn't paused\n"
    for command in ("pause", "abandon", "republish", "status", "history"):
        once(f"{command} tock", exit_code=2)
    assert once("republish hourly") == "hourly: 0 published again\n"
    assert "name entries, or a --queue" in once("republish", exit_code=2)
    log = [(each["what"], each["about"], each["by"], each["note"]) for each in json.loads(once("orders --json"))]
    assert ("pause", "", "anna", "moving") in log
    assert ("abandon", one, "bob", "stuck") in log
    assert log[-2] == ("run", format_instant(newest), "anna", "\u202ewhy")
    assert r"'\u202ewhy'" in once("orders")


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
        assert once("republish", "--queue", queues["there"], "--by", "anna").log == "there: 1 published again\n"
        (start,) = system.account("lost").open
        told = json.loads(once("republish", "lost", "--json", "--note", "purged").log)
        assert told == [{"entry": "lost", "republished": [format_instant(start)]}]
    system.worker(extra_args=["-Q", ",".join(queues.values())]).wait_ready()
    for name in queues:
        wait_until(lambda name=name: system.outcomes(name) == {"done": 1}, f"{name} is done", 60)
    wait_until(lambda: system.account("there").refused == 1, "of two copies one is refused", 60)


def test_many_entries_are_few_lines(redis_url: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 entries don't print 507 lines, unless that is asked; those in a queue are found; so is a task's id."""
    once = Local(redis_url, {f"entry-{n:03}": 7 * 86_400.0 for n in range(500)})
    rows = [once.schedule(store).entries.get(name) for name in ("entry-300", "entry-301")]
    filled.load(store, rows, timedelta(days=15))
    (window, _) = filled.claim(store, rows)
    store.confirm_many([Confirmation(window, 1, Published.SENT, 600.0, "mail")])
    short = once("status", exit_code=1)
    assert len(short.splitlines()) < 100
    assert "… and 460 more, " in short
    assert len(once("status --all", exit_code=1).splitlines()) > 500
    monkeypatch.setattr("celery_once_beat.cli.queries.time.sleep", lambda _: signal.raise_signal(signal.SIGINT))
    assert "… and 460 more, " in once("watch"), "until Ctrl-C"
    (found,) = json.loads(once("status --queue mail --json", exit_code=1))["entries"]
    assert (found["entry"], found["queues"]) == ("entry-300", ["mail"])
    story = once(f"history entry-300 --window {format_instant(window.start)}")
    assert f"task_id   {task_id('once:', 'entry-300', window.start)}" in story
    assert once("history entry-300 --window 2026-01-01") == "No such window is known.\n"
    assert "No entries to show." in once("status --queue nobody", exit_code=1)
    (later,) = filled.claim(store, rows[:1])
    filled.execute(store, [later, window])  # the last that started isn't the last that ended
    (newest,) = json.loads(once("history entry-300 -n 1 --json"))["windows"]
    assert newest["start"] == format_instant(later.start)


def test_audit_finds_what_doesnt_balance(redis_url: str, store: Store, raw: redis.Redis) -> None:
    """Exit 1 and the entry's name where a counter is wrong; 0 where the law holds."""
    once = Local(redis_url, {"one": 3600.0, "two": 3600.0})
    filled.fill(store, once.schedule(store), 2, timedelta(hours=3))
    assert once("audit").endswith("Every account balances.\n")
    raw.hincrby(store.entry_key("two"), "c:done", -1)
    uneven = once("audit", exit_code=1)
    assert re.search(r"^one .* balances$", uneven, re.MULTILINE)
    assert re.search(r"^two .* doesn't balance: 1 windows have no account$", uneven, re.MULTILINE)


def test_a_probe_of_entries(redis_url: str, store: Store, raw: redis.Redis) -> None:
    """Without a beat, too, Redis says what should have been claimed; what isn't claimed for a pause isn't late."""
    once = Local(redis_url, {"tick": 60.0})
    assert "no entry has a deadline" in once("ping --entries", exit_code=2), "it could never fail"
    (row,) = once.schedule(store).entries
    policy = EntryPolicy(deadline=30.0)
    store.load_many([LoadRequest("tick", filled.BEAT, row.fingerprint, 86400.0, policy)])
    assert once("ping --entries") == "entries with a deadline: 1, late: none\n"
    ago = format_instant(datetime.now(timezone.utc) - timedelta(minutes=5))
    raw.hset(store.entry_key("tick"), mapping=dict.fromkeys(("born", "since", "cursor"), ago))
    assert re.match("tick: 2.* is late: no beat has claimed it\n", once("ping --entries", exit_code=1))
    report = json.loads(once("ping --entries --json", exit_code=1))
    assert (report["entries"], {each["state"] for each in report["late"]}) == (1, {"unclaimed"})
    (entry,) = json.loads(once("status --json", exit_code=1))["entries"]
    assert entry["late"]
    assert " late, first that of " in "".join(entry["attention"])
    assert 'celery_once_beat_late_windows{entry="tick"} ' in once("metrics")
    store.set_paused("tick", paused=True)
    once("ping --entries")


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
    found = {check["check"]: check for check in json.loads(once("doctor", "--json").log)["checks"]}
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
    with system.client() as client:
        wait_until(lambda: client.keys("shop:once:*:entry:tick"), "the other has keys of its own", 60)
    beats.append(system.beat("two", settings={**shop, "once_beat_key_prefix": "once:"}))
    for beat in beats[1:]:
        beat.wait_log("is of the app 'once_app'.* this one of 'once_app'")
    said = once("status")
    assert "Beats of 2 apps use the same keys: 'once_app', 'once_app' ('shop:'); see doctor." in said.log
    assert re.search(r"^warn  apps: beats of 2 apps use the keys once:…", once("doctor").log, re.MULTILINE)
    assert [beat.log.count("is of the app ") for beat in beats] == [0, 1, 1]
    beats[2].stop()
    with system.client() as client:
        client.delete(*client.keys("shop:once:*"))


@pytest.mark.long
def test_errors_are_one_line(system: System, once: Once) -> None:
    """Redis away, a wrong setting, a foreign key: each command says it in one line and its own status."""
    system.check_law = False
    away = {"STORE_URL": f"redis://:geheim@127.0.0.1:{free_port()}/0"}
    for command in ("status", "audit", "doctor", "ping", "history tick", "pause tick", "run tick"):
        said = once(*command.split(), **away)
        assert (said.exit_code, said.log.count("\n")) == (os.EX_UNAVAILABLE, 1), said.log
        assert said.log.startswith("once: Redis: ConnectionError:")
        assert "geheim" not in said.log
    for command, settings, status in (
        ("status", {"once_beat_lease": "soon"}, os.EX_CONFIG),
        ("status -S nowhere:Scheduler", {}, os.EX_CONFIG),
        ("next --from 0001-01-01T00:00", {"timezone": "Asia/Tokyo"}, 2),
        ("next --from soon", {}, 2),
    ):
        wrong = once(*command.split(), settings=settings)
        assert (wrong.exit_code, wrong.log.count("\n")) == (status, 1), wrong.log
    assert "warn  broker: can't be used: KeyError" in once("doctor", BROKER_URL="nonsense://here").log
    with system.client() as client:
        client.set(system.store.entry_key("tick"), "mine", ex=600)
        foreign = once("history", "tick")
        assert (foreign.exit_code, foreign.log[:21]) == (os.EX_DATAERR, "once: the key 'once:{")
        assert "holds a string, expected a hash" in once("status").log
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
        key = system.store.keys.of_entry("history", "tick")
        client.lpush(key, "2026-11-21T00:00:00 do\x1b[2Jne 1 0 0 1 a:1 b")
        client.expire(key, 600)
        client.hset(system.store.entry_key("tick"), "c:\x1b[2J", 1)
        for command in ("ping", "status", "history tick", "audit", "ping --json"):
            assert "\x1b" not in once(*command.split()).log, command
