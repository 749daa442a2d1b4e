"""docs/moving: the settings of each peer are those that its installed source has, all of them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest
from celery import Celery
from celery.app.defaults import NAMESPACES
from celery.schedules import schedule
from doc_pages import ROOT, the_block
from processes import Processes, wait_until

from celery_once_beat import Schedules


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

    def said(text: str) -> int:
        return sum(beat.log.count(text) for beat in beats)

    wait_until(lambda: said("Sending due task sync") >= 3, "it was due three times", 60)
    with redis_server.client() as client:
        wait_until(lambda: client.llen("celery"), "it is sent", 60)
        if base == "QueueOnce":
            wait_until(lambda: said("AlreadyQueued"), "the others are refused", 60)
        else:
            assert not said("AlreadyQueued"), "celery-singleton returns the other's result"
        assert client.llen("celery") == 1, "it is sent once"
    assert all(beat.alive for beat in beats)

    worker = procs.start_worker("locked", env=env, pool="solo")
    wait_until(lambda: worker.log.count("succeeded") >= 3, "it runs again and again", 60)


PROJ = """\
from celery import Celery
from celery_once_beat import OnceTask

app = Celery("proj", broker="{url}", task_cls=OnceTask)
app.conf.update(redbeat_redis_url="{url}", redbeat_redis_options={{}}, once_beat_recovery_interval=0.5)


@app.task
def note():
    pass
"""


@pytest.mark.long
def test_to_redbeat_and_here_again(procs: Processes, redis_url: str, tmp_path: Path) -> None:
    """What ran here counts as run there, so RedBeat sends none of it; imported again, windows go on without a gap."""
    from redbeat.schedulers import RedBeatSchedulerEntry

    (tmp_path / "proj.py").write_text(PROJ.format(url=redis_url))
    env = {"PYTHONPATH": str(tmp_path)}
    app = Celery("proj", broker=redis_url, set_as_current=False)
    app.conf.update(redbeat_redis_url=redis_url, redbeat_redis_options={})
    RedBeatSchedulerEntry("two", "proj.note", schedule(2.0), app=app).save()
    procs.start_worker("proj", env=env, pool="solo").wait_ready()

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], env={**os.environ, **env}, check=True, capture_output=True, text=True
        )
        return done.stdout

    with closing(Schedules(app)) as schedules:
        for turn in (1, 2):
            run("-m", "celery", "-A", "proj", "once", "schedules", "import", "redbeat")
            beat = procs.start_beat("proj", name=f"beat{turn}", env=env, scheduler="once")
            wait_until(lambda least=3 * turn: len(schedules.history("two", 50)) >= least, "windows are done", 60)
            beat.stop()
            wait_until(lambda: not schedules.status("two").open, "no window is open", 60)
            run("-c", the_block("docs/moving/redbeat.md", "back.py").text)
            starts = sorted(window.start for window in schedules.history("two", 50))
            assert RedBeatSchedulerEntry.from_key("redbeat:two", app=app).last_run_at == starts[-1]
            assert starts == [starts[0] + number * timedelta(seconds=2) for number in range(len(starts))]
    assert "Every account balances." in run("-m", "celery", "-A", "proj", "once", "audit")
