"""docs/moving: the settings of each peer are those that its installed source has, all of them."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.app.defaults import NAMESPACES
from celery.beat import PersistentScheduler
from celery.schedules import crontab, schedule
from doc_pages import ROOT, the_block
from processes import Proc, Processes, wait_until

from celery_once_beat import Schedules
from celery_once_beat.rules import is_polled
from celery_once_beat.schedules import RRule
from celery_once_beat.windows import next_start


def table_words(page: str) -> set[str]:
    """What stands in backticks in the first cells of a page's tables."""
    text = (ROOT / "docs/moving" / page).read_text()
    rows = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    return {word for row in rows for word in re.findall(r"[A-Za-z_]\w+", " ".join(re.findall(r"`([^`]+)`", row)))}


def sources(package: str) -> Iterator[ast.AST]:
    spec = find_spec(package)
    assert spec, f"{package} isn't installed"
    for path in Path(spec.origin).parent.rglob("*.py"):
        if "migrations" not in path.parts and "tests" not in path.parts:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of old ways to write a text
                tree = ast.parse(path.read_text())
            yield from ast.walk(tree)


def texts(package: str, pattern: str) -> set[str]:
    """String constants of a package's source that are like `pattern` as a whole."""
    constants = (node.value for node in sources(package) if isinstance(node, ast.Constant))
    return {text for text in constants if isinstance(text, str) and re.fullmatch(pattern, text)}


def asked_for(package: str, *objects: str) -> set[str]:
    """The keys for which a package's source asks these of its objects: ``settings.get("url")``, ``settings["url"]``."""
    found = set()
    for node in sources(package):
        of = key = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
            of, key = node.func.value, node.args[0]
        elif isinstance(node, ast.Subscript):
            of, key = node.value, node.slice
        if of is not None and isinstance(key, ast.Constant) and ast.unparse(of) in objects:
            found.add(key.value)
    return found


def test_stock_beat() -> None:
    """Each setting of Celery's that begins with beat_, and nothing that Celery doesn't have."""
    real = {f"beat_{name}" for name in NAMESPACES["beat"]}
    documented = {word for word in table_words("stock.md") if word.startswith("beat_")}
    newer = {"beat_enable_remote_control", "beat_remote_control_max_tick_age"}  # older releases of Celery lack them
    assert documented - newer == real - newer
    assert documented >= newer


def test_redbeat() -> None:
    """Each redbeat_… setting, each option that RedBeat keeps for itself, and the key of its default prefix."""
    real = texts("redbeat", "redbeat_[a-z_]+") - {"redbeat_redis", "redbeat_sentinel", "redbeat_conf"}
    assert len(real) >= 6
    documented = table_words("redbeat.md")
    assert {word for word in documented if word.startswith("redbeat_")} == real
    from redbeat import schedulers

    options = set(getattr(schedulers, "REDBEAT_INTERNAL_OPTIONS", ())) or {"retry_period", "sentinels"}
    assert options <= documented


def test_celery_once() -> None:
    """Each key of ONCE and its settings, and each of a task's ``once``."""
    of_app = asked_for("celery_once", "settings", "self.once_config['settings']", "config", "self.once_config")
    of_task = asked_for("celery_once", "self.once", "once_options")
    assert {"url", "backend", "settings"} <= of_app
    assert {"graceful", "keys", "unlock_before_run", "timeout"} <= of_task
    assert of_app | of_task <= table_words("celery-once.md")


def test_celery_singleton() -> None:
    """Each singleton_… setting and each attribute of its task."""
    real = texts("celery_singleton", "singleton_[a-z_]+")
    documented = table_words("celery-once.md")
    assert {word for word in documented if word.startswith("singleton_")} == real
    from celery_singleton import Singleton

    attributes = {name for name, value in vars(Singleton).items() if value is None and not name.startswith("_")}
    assert attributes == {"unique_on", "raise_on_duplicate", "lock_expiry"}
    assert attributes <= documented


def test_django_celery_beat() -> None:
    """Each field of PeriodicTask and each setting of its own."""
    fields = {
        target.id
        for node in sources("django_celery_beat")
        if isinstance(node, ast.ClassDef) and node.name == "PeriodicTask"
        for assigned in node.body
        if isinstance(assigned, ast.Assign) and ast.unparse(assigned.value).startswith("models.")
        for target in assigned.targets
        if isinstance(target, ast.Name)
    }
    assert {"crontab", "one_off", "start_time"} <= fields
    settings = texts("django_celery_beat", "DJANGO_CELERY_[A-Z_]+")
    assert settings
    assert fields | settings <= table_words("django-celery-beat.md")


@pytest.mark.parametrize("page", ["stock.md", "redbeat.md", "celery-once.md", "django-celery-beat.md"])
def test_what_it_says_of_ours_is_there(page: str) -> None:
    """Each once_… name on the page is a setting or a task's attribute."""
    from celery_once_beat import OnceTask
    from celery_once_beat.settings import Settings

    names = set(re.findall(r"`[^`\n]*?\b(once_\w+)", (ROOT / "docs/moving" / page).read_text()))
    known = {f"once_beat_{name}" for name in vars(Settings(redis_url="redis://localhost"))}
    known |= {name for name in dir(OnceTask) if name.startswith("once_")}
    assert names <= known, names - known


# ------------------------------------------------------------------------------------- what the pages say of both


LOCKED = """\
from celery import Celery
from {module} import {base}
from celery_once_beat import OnceTask

app = Celery("locked", broker="{url}")
app.conf.ONCE = {{"backend": "celery_once.backends.Redis", "settings": {{"url": "{url}"}}}}
app.conf.beat_schedule = {{
    "sync": {{"task": "locked.sync", "schedule": 1.0, "options": {{"once": {{"tracked": False}}}}}}
}}


@app.task(base={base})
def sync():
    pass
"""


@pytest.mark.parametrize(("module", "base"), [("celery_once", "QueueOnce"), ("celery_singleton", "Singleton")])
def test_a_peers_task_under_these_beats(module: str, base: str, procs, redis_server, redis_url, tmp_path) -> None:
    """Its lock refuses what is due while one is queued, beat goes on; with a worker it runs again and again."""
    (tmp_path / "locked.py").write_text(LOCKED.format(module=module, base=base, url=redis_url))
    env = {"PYTHONPATH": str(tmp_path)}
    beats = [procs.start_beat("locked", name=f"beat{n}", env=env) for n in (1, 2)]

    def sent() -> int:
        return sum(beat.log.count("Sending due task sync") for beat in beats)

    wait_until(lambda: sent() >= 3, "it was due three times", 60)

    def refused() -> int:
        return sum(beat.log.count("AlreadyQueued") for beat in beats)

    with redis_server.client() as client:
        wait_until(lambda: client.llen("celery"), "it is sent", 60)
        if base == "QueueOnce":
            wait_until(refused, "the others are refused", 60)
        else:
            assert not refused(), "celery-singleton returns the other's result"
        assert client.llen("celery") == 1, "it is sent once"
    assert all(beat.alive for beat in beats)

    worker = procs.start_worker("locked", env=env, pool="solo")
    wait_until(lambda: worker.log.count("succeeded") >= 3, "it runs again and again", 60)


def test_redbeats_rrule() -> None:
    """RedBeat's own is polled, as the page says; the one that takes its place has the rule's instants."""
    from redbeat.schedules import rrule

    app = Celery("rrule", set_as_current=False)
    begin = datetime(2026, 11, 21, 5, tzinfo=timezone.utc)
    assert is_polled(rrule("MINUTELY", dtstart=begin, interval=7, app=app))
    seven = RRule("MINUTELY", dtstart=begin, interval=7)
    assert next_start(seven, begin + timedelta(minutes=20)) == begin + timedelta(minutes=21)


PROJ = """\
import json
import time
from pathlib import Path

from celery import Celery
from celery_once_beat import OnceTask

app = Celery("proj", broker="{url}", task_cls=OnceTask)
app.conf.update(
    redbeat_redis_url="{url}", redbeat_redis_options={{}}, beat_max_loop_interval=1, once_beat_recovery_interval=0.5
)


@app.task(bind=True)
def note(self, name):
    start = self.window.start.timestamp() if self.window.scheduled else None
    with Path("{runs}").open("a") as file:
        print(json.dumps([name, start]), file=file)
"""
EVERY = {"two": 2.0, "three": 3.0}


class Move:
    """A project that moves from RedBeat and back: its beats of both kinds, and what each has run."""

    def __init__(self, procs: Processes, url: str, folder: Path) -> None:
        self.procs = procs
        self.folder = folder
        self.runs = folder / "runs"
        self.env = {"PYTHONPATH": str(folder)}
        (folder / "proj.py").write_text(PROJ.format(url=url, runs=self.runs))
        self.app = Celery("proj", broker=url, set_as_current=False)
        self.app.conf.update(redbeat_redis_url=url, redbeat_redis_options={})
        self.redbeats: list[Proc] = []

    def redbeat(self) -> Proc:
        beat = self.procs.start_beat(
            "proj", name=f"redbeat{len(self.redbeats)}", env=self.env, scheduler="redbeat.RedBeatScheduler"
        )
        self.redbeats.append(beat)
        return beat

    def ours(self, name: str) -> Proc:
        return self.procs.start_beat("proj", name=name, env=self.env, scheduler="once")

    def import_(self, *words: str, exit_code: int = 0) -> str:
        done = self._import(*words)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def import_at_last(self) -> None:
        """Again and again, as its words say: RedBeat's lock outlives a killed beat, its last run may be to come."""
        wait_until(lambda: self._import().returncode == 0, "all is imported", 60, 0.5)

    def _import(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "celery", "-A", "proj", "once", "schedules", "import", "redbeat", *words]
        return subprocess.run(
            command, env={**os.environ, **self.env}, cwd=self.folder, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    def audit(self) -> None:
        """Each account balances, over what was set once and again."""
        command = [sys.executable, "-m", "celery", "-A", "proj", "once", "audit"]
        done = subprocess.run(
            command, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, "Every account balances." in done.stdout) == (0, True), done.stdout + done.stderr

    def go_back(self) -> None:
        """As the page has it."""
        code = the_block("docs/moving/redbeat.md", "back.py").text
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **self.env}, check=True, timeout=60)

    def last_runs(self) -> dict[str, float]:
        keys = {name: f"redbeat:{name}" for name in (*EVERY, "minute")}
        return {name: entry_of(key, self.app).last_run_at.timestamp() for name, key in keys.items()}

    def sent_by_redbeat(self, name: str) -> list[float]:
        """When RedBeat sent an entry, by its beats' logs: Unix times, in order."""
        line = re.compile(rf"^\[(\S+ \S+),(\d+): .* Sending due task {name} ", re.MULTILINE)
        found = (match for beat in self.redbeats for match in line.finditer(beat.log))
        return sorted(datetime.fromisoformat(f"{match[1]}.{match[2]}").timestamp() for match in found)

    def ran(self, name: str) -> list[float | None]:
        """The starts of the windows that were executed; None for each run that RedBeat sent."""
        lines = [json.loads(line) for line in self.runs.read_text().splitlines()] if self.runs.exists() else []
        return [start for found, start in lines if found == name]

    def windows(self, name: str) -> list[float]:
        return sorted(start for start in self.ran(name) if start is not None)

    def wait_for_ours(self, number: int) -> None:
        before = {name: len(self.windows(name)) for name in EVERY}
        wait_until(lambda: all(len(self.windows(n)) >= before[n] + number for n in EVERY), "ours has run windows", 90)

    def wait_for_redbeat(self, number: int) -> None:
        before = {name: len(self.sent_by_redbeat(name)) for name in EVERY}
        wait_until(lambda: all(len(self.sent_by_redbeat(n)) >= before[n] + number for n in EVERY), "RedBeat sends", 90)


def entry_of(key: str, app: Celery) -> Any:
    from redbeat.schedulers import RedBeatSchedulerEntry

    return RedBeatSchedulerEntry.from_key(key, app=app)


@pytest.mark.long
def test_beats_of_both_kinds_in_turn(procs: Processes, redis_url: str, tmp_path: Path) -> None:
    """From RedBeat, back, and again: no window is run by both or by none.

    Each of our windows follows what RedBeat ran last, and RedBeat doesn't begin before it is due by what ran here.
    """
    from redbeat.schedulers import RedBeatSchedulerEntry

    move = Move(procs, redis_url, tmp_path)
    for name, when in (*((name, schedule(every)) for name, every in EVERY.items()), ("minute", crontab())):
        RedBeatSchedulerEntry(name, "proj.note", when, args=[name], app=move.app).save()
    worker = procs.start_worker("proj", env=move.env, pool="solo")
    worker.wait_ready()
    redbeats = [move.redbeat(), move.redbeat()]
    move.wait_for_redbeat(3)
    assert "holds redbeat::lock: stop all of them" in move.import_(exit_code=1)
    assert "4 to import, 0 left out." in move.import_("--dry-run"), "RedBeat's beat added celery.backend_cleanup"

    with closing(Schedules(move.app)) as schedules:
        last_of_redbeat: list[dict[str, float]] = []
        for turn in (1, 2):
            for beat in redbeats:
                beat.stop()
            last_of_redbeat.append(move.last_runs())
            begun = {name: len(move.windows(name)) for name in EVERY}
            move.import_at_last()
            ours = [move.ours(f"ours{turn}{number}") for number in (1, 2)]
            stray = move.redbeat()
            move.wait_for_ours(4)
            assert not re.search("Sending due task|Acquired lock", stray.log), "it waits for the lock"
            for beat in ours:
                beat.stop()
            wait_until(lambda: not any(schedules.status(name).open for name in EVERY), "no window is open", 60)
            for name, every in EVERY.items():
                starts = move.windows(name)[begun[name] :]
                expected = [last_of_redbeat[-1][name] + every * number for number in range(1, len(starts) + 1)]
                assert starts == pytest.approx(expected, abs=1e-5), "each once, from RedBeat's last run on, no gap"
            move.audit()
            if turn == 1:
                before = {name: len(move.sent_by_redbeat(name)) for name in EVERY}
                move.go_back()
                move.wait_for_redbeat(3)
                for name, every in EVERY.items():
                    due = move.windows(name)[-1] + every
                    assert move.sent_by_redbeat(name)[before[name]] >= due - 0.002, "its log has whole milliseconds"
                redbeats = [stray]

    for name in EVERY:
        sent = len(move.sent_by_redbeat(name))
        # It logs that it sends before it does: one that is stopped in between, twice at the most, has sent one less.
        wait_until(lambda name=name, least=sent - 2: move.ran(name).count(None) >= least, "what it sent has run", 60)
        assert move.ran(name).count(None) <= sent
    minutes = sorted([*move.windows("minute"), *(at // 60 * 60 for at in move.sent_by_redbeat("minute"))])
    assert minutes == [minutes[0] + 60 * number for number in range(len(minutes))]


def test_the_crontab_of_another_zone() -> None:
    """django-celery-beat's own crontab, in code: in its zone, whatever the app's is."""
    code = """\
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

from django.conf import settings

settings.configure()
from celery import Celery
from django_celery_beat.tzcrontab import TzAwareCrontab
from celery_once_beat.windows import next_start

app = Celery("zones")
app.conf.timezone = "Europe/Berlin"
tokyo = TzAwareCrontab(minute="0", hour="9", tz=ZoneInfo("Asia/Tokyo"))
assert next_start(tokyo, datetime(2026, 11, 21, 5, tzinfo=timezone.utc)) == datetime(2026, 11, 22, tzinfo=timezone.utc)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_back_to_stock_beat(tmp_path: Path) -> None:
    """By an old celerybeat-schedule stock beat sends at once what is overdue; without one it counts from now."""
    app = Celery("back", set_as_current=False)
    app.conf.beat_schedule = {"hourly": {"task": "back.hourly", "schedule": 3600.0}}
    file = str(tmp_path / "celerybeat-schedule")
    old = PersistentScheduler(app, schedule_filename=file)
    old.schedule["hourly"].last_run_at -= timedelta(hours=3)
    old.close()
    assert PersistentScheduler(app, schedule_filename=file).schedule["hourly"].is_due().is_due
    assert not PersistentScheduler(app, schedule_filename=f"{file}-new").schedule["hourly"].is_due().is_due
