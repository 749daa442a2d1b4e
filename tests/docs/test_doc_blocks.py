"""Every command and code block of the docs is run: here, by a test of its own, or the page says why it isn't."""

from __future__ import annotations

import shutil
from pathlib import Path

import doc_pages
import pytest
from doc_pages import ROOT, Block, blocks_of, pages
from doc_runner import Page, missing_words
from processes import Processes
from servers import RedisServer

#: Pages that another test runs as a whole.
PAGES = {
    "README.md": "tests/integration/test_readme.py",
    "docs/adopting.md": "tests/integration/test_readme.py",
    "docs/index.md": "tests/integration/test_readme.py",
    "docs/works-with.md": "tests/workswith/test_works_with_docs.py",
}
#: Blocks that another test runs, by the file that they are or the comment above them. Of several with one name, all
#: but the first are.
BLOCKS = {
    ("docs/board.md", "served"): "tests/board/test_board_docs.py",
    ("docs/board.md", "mounted starlette"): "tests/board/test_board_mounted.py",
    ("docs/board.md", "mounted fastapi"): "tests/board/test_board_mounted.py",
    ("docs/board.md", "mounted django urls"): "tests/board/test_board_mounted.py",
    ("docs/metrics.md", "query"): "tests/board/test_metrics.py",
    ("docs/metrics.md", "scrape server"): "tests/board/test_board_docs.py",
    ("docs/metrics.md", "scrape"): "tests/board/test_board_docs.py",
    ("docs/metrics.md", "served"): "tests/board/test_board_docs.py",
    ("docs/cli.md", "probes"): "tests/docs/test_doc_deployment.py",
    ("docs/django.md", "admin app"): "tests/contrib/test_dj_admin.py",
    ("docs/django.md", "own admin"): "tests/contrib/test_dj_admin.py",
    ("docs/effects.md", "django app"): "tests/contrib/test_dj_effects.py",
    ("docs/effects.md", "django task"): "tests/contrib/test_dj_effects.py",
    ("docs/redis.md", "proj.py"): "tests/docs/test_doc_redis.py",
    ("docs/redis.md", "replica.conf"): "tests/docs/test_doc_redis.py",
    ("docs/redis.md", "sentinel.conf"): "tests/docs/test_doc_redis.py",
    ("docs/two-stores.md", "examples/saas"): "tests/integration/test_saas.py",
    ("docs/systemd.md", "/etc/proj.env"): "tests/docs/test_doc_deployment.py",
    ("docs/systemd.md", "probe"): "tests/docs/test_doc_deployment.py",
}
#: What no test can run, by its first line.
NOT_RUN = {
    ("docs/kubernetes.md", "$ kubectl apply -f kubernetes.yaml"),
    ("docs/systemd.md", "$ systemctl enable --now celery-beat celery-beat-watch.timer celery-worker@{one,two}"),
}

ALL = [block for page in pages() for block in blocks_of(page)]
RUN = [page for page in pages() if page not in PAGES and blocks_of(page)]


def taken(block: Block) -> bool:
    """Whether another test runs it."""
    named = [other for other in blocks_of(block.page) if other.name and other.name == block.name]
    first = block.language == "python" and named[:1] == [block]
    return not first and any((block.page, name) in BLOCKS for name in (block.name, block.comment))


def test_what_another_test_runs_is_there() -> None:
    """Each page and block that is left to another test is named in that test."""
    for page, test in PAGES.items():
        assert page in pages(), page
        assert Path(page).name in (ROOT / test).read_text(), f"{test} doesn't know {page}"
    for (page, name), test in BLOCKS.items():
        assert any(taken(block) for block in blocks_of(page) if name in (block.name, block.comment)), (page, name)
        assert Path(name).name in (ROOT / test).read_text(), f"{test} doesn't know {name}"


def test_what_is_not_run_says_why_and_is_one_of_these() -> None:
    """A block that can't be run says so in a comment; no other may."""
    found = {(block.page, block.text.partition("\n")[0]) for block in ALL if block.not_run}
    assert found == NOT_RUN


def test_no_line_is_wider_than_the_site_shows() -> None:
    """At 1,300 px a block has room for 120 characters; what one types fits, what a command prints may wrap."""
    for block in ALL:
        lines = block.text.splitlines()
        typed = [line for line in lines if block.language != "console" or line.startswith("$ ")]
        # A user is one line of redis.conf.
        wide = [line for line in typed if len(line) > 120 and not line.startswith("user ")]
        assert not wide, f"{block}: {wide}"


# What a project that moves here has already.
_REDBEAT = """\
from celery import Celery
from celery.schedules import crontab
from redbeat import RedBeatSchedulerEntry

app = Celery("proj", broker="redis://localhost")
app.conf.redbeat_redis_url = "redis://localhost"
app.conf.redbeat_redis_options = {}
app.conf.beat_schedule = {"in the code": {"task": "proj.tick", "schedule": 2.0}}
"""
_REDBEAT_ENTRIES = """\
from celery.schedules import schedule

RedBeatSchedulerEntry("in the code", "proj.tick", schedule(2.0), app=app).save()
RedBeatSchedulerEntry(
    "at night", "proj.report", crontab(hour=2, minute=30), args=["bolts"], kwargs={"kind": "daily"},
    options={"queue": "slow"}, app=app,
).save()
RedBeatSchedulerEntry("switched off", "proj.report", schedule(9.0), enabled=False, app=app).save()
"""
_DJANGO_SETTINGS = """\
from pathlib import Path

SECRET_KEY = "docs"
USE_TZ = True
INSTALLED_APPS = ["django_celery_beat"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(__file__).with_name("db"))}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
"""
_DJANGO_ROWS = """\
import django

django.setup()
from datetime import datetime, timezone
from django.core.management import call_command
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask

call_command("migrate", verbosity=0)
cron = CrontabSchedule.objects.create(minute="30", hour="2", day_of_week="1-5", timezone="Europe/Berlin")
quarter = IntervalSchedule.objects.create(every=15, period="minutes")
once = ClockedSchedule.objects.create(clocked_time=datetime(2027, 1, 1, tzinfo=timezone.utc))
PeriodicTask.objects.create(
    name="nightly report", task="proj.tasks.report", crontab=cron, kwargs='{"kind": "daily"}', expire_seconds=3600
)
PeriodicTask.objects.create(name="sync", task="proj.tasks.sync", interval=quarter, args='["bolts"]', queue="slow")
often = IntervalSchedule.objects.create(every=2, period="seconds")
PeriodicTask.objects.create(name="tick", task="proj.celery.tick", interval=often)
PeriodicTask.objects.create(name="once only", task="proj.tasks.sync", clocked=once, one_off=True)
PeriodicTask.objects.create(name="switched off", task="proj.tasks.sync", interval=quarter, enabled=False)
"""


def prepare(page: Page) -> None:
    """The project that the page speaks of, as it is before."""
    if page.page == "docs/lease.md":
        shutil.copy(ROOT / "docs" / "longest_pause.py", page.folder)
    if page.page == "docs/moving/redbeat.md":
        (page.folder / "proj.py").write_text(page.here(_REDBEAT))
        page.execute("from proj import *\n" + _REDBEAT_ENTRIES, "<RedBeat's entries>")
    if page.page in ("docs/django.md", "docs/moving/django-celery-beat.md"):
        page.env["DJANGO_SETTINGS_MODULE"] = "proj.settings"
        package = page.folder / "proj"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "settings.py.prepared").write_text(_DJANGO_SETTINGS)
        (package / "settings.py").write_text(_DJANGO_SETTINGS)
    if page.page == "docs/moving/django-celery-beat.md":
        page.execute(_DJANGO_ROWS, "<django-celery-beat's rows>")


@pytest.mark.parametrize("path", RUN)
@pytest.mark.long
def test_a_page_runs(path: str, procs: Processes, redis_server: RedisServer, redis_url: str, tmp_path: Path) -> None:
    """Its code raises nothing, its commands end with 0, its output is what it shows, its beats and workers run."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with Page(path, procs, folder, redis_server) as page:
        prepare(page)
        left = [block for block in blocks_of(path) if not taken(block) and not block.not_run]
        assert page.run(taken) == len(left)


# -- the runner itself


@pytest.mark.parametrize(
    ("shown", "real", "odd"),
    [
        ("ENTRY  OUTCOME\nsync  done\n", "ENTRY    OUTCOME\nother  done\nsync   done\n", []),
        ("ENTRY  OUTCOME\nsync  done\n", "ENTRY  OUTCOME  LATE\nsync  done  0.1 s\n", ["ENTRY OUTCOME"]),
        ("app:12:ab  4 s ago\n", "host:77:cd  11 s ago\n", []),
        ("sync: resumed, 1 windows missed\n", "sync: resumed\n", []),
        ("sync: resumed, 1 windows missed\n", "sync: paused\n", ["resumed"]),
        ("", "A\n", ["A"]),
    ],
)
def test_output_that_varies_is_compared_by_its_words(shown: str, real: str, odd: list[str]) -> None:
    """A column or a word that a command doesn't print is found; figures and hosts may differ."""
    assert missing_words(shown, real, ["windows", "missed"]) == odd


_UNKNOWN_SETTING = """\
from celery import Celery
app = Celery(broker="redis://localhost")
app.conf.once_beat_leese = 1
"""
_UNKNOWN_SCHEDULER = """\
# proj.py
from celery import Celery
app = Celery(broker="redis://localhost")
app.conf.beat_scheduler = "nothing:Nothing"
"""


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        ({"python": "raise KeyError('gone')"}, "KeyError: 'gone'"),
        ({"python": "print(1)", "text": "2"}, "shows\n2"),
        ({"console": "$ false"}, "ended with 1"),
        ({"console": "$ echo 1\n2"}, "shows\n2"),
        ({"console": "$ pip install celery-once-bear"}, "celery-once-bear"),
        ({"console": "$ pip install celery-once-beat[nothing]"}, "nothing"),
        ({"console": "$ make nothing"}, "make nothing"),
        ({"ruby": "puts 1"}, "nobody runs ruby"),
        ({"python": _UNKNOWN_SETTING}, "there is no such setting"),
        ({"python": _UNKNOWN_SCHEDULER, "console": "$ celery -A proj beat -l info"}, "ended with 1"),
    ],
)
def test_a_wrong_page_fails(blocks, why, procs, redis_server, redis_url, tmp_path, monkeypatch) -> None:
    """The runner finds what is wrong with a page."""
    text = "".join(f"```{language}\n{text.rstrip()}\n```\n\n" for language, text in blocks.items())
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setattr(doc_pages, "ROOT", tmp_path)
    with pytest.raises(AssertionError, match=why), Page("page.md", procs, tmp_path, redis_server) as page:
        page.run(lambda _: False)
