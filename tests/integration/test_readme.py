"""README is followed to the letter: its app runs, its commands work, its links lead somewhere, its words are kept."""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import sqlite3
import subprocess
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

import pytest
from celery import Celery
from figures import fill, report_of
from processes import Proc, Processes, environ, wait_until

import celery_once_beat
from celery_once_beat.outcomes import OPEN, OTHER
from celery_once_beat.windows import Window, encode_headers

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
EVIDENCE = (ROOT / "docs" / "reports" / "evidence.md").read_text()
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
START = (ROOT / "docs" / "index.md").read_text()
(APP,) = PYTHON.findall(START)


(ADOPTED,) = PYTHON.findall((ROOT / "docs" / "adopting.md").read_text())


def commands_of(page: str) -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line.removeprefix("$ ").partition("  #")[0].strip() for line in lines]


CELERY = [command for command in commands_of(README) if re.match(r"celery -A proj (beat|worker)", command)]
ONCE = [command for command in commands_of(START) if command.startswith("celery -A proj once ")]


def start(procs: Processes, command: str, folder: Path, url: str, name: str) -> Proc:
    """A command of README's in that folder; its broker is one on a free port instead of the one on the usual."""
    program, *arguments = shlex.split(command, comments=True)
    assert program == "celery"
    if "worker" in arguments:
        arguments += ["-c", "1", "-n", f"{name}@%h"]  # two on one machine need names of their own
    env = {"CELERY_BROKER_URL": url, "PYTHONPATH": str(folder)}
    return procs.start([sys.executable, "-m", "celery", *arguments], name=name, env=env, ready=r"beat: Start| ready\.$")


@pytest.mark.long
def test_the_app_as_it_stands(procs: Processes, redis_url: str, tmp_path: Path) -> None:
    """The app of docs/index.md by README's two commands, twice each: every report runs once, also without one beat."""
    beat, worker = CELERY
    (tmp_path / "proj.py").write_text(APP)
    workers = [start(procs, worker, tmp_path, redis_url, f"worker{n}").wait_ready() for n in (1, 2)]
    beats = [start(procs, beat, tmp_path, redis_url, f"beat{n}").wait_ready() for n in (1, 2)]

    def reports() -> Counter[str]:
        return Counter(re.findall(r"report for (\S+ \S+)", "".join(proc.log for proc in workers)))

    wait_until(lambda: len(reports()) >= 1, "a report is there", 60)
    beats[0].kill()
    wait_until(lambda: len(reports()) >= 3, "reports go on without a beat that was killed", 90)
    for command in ONCE:
        said = run(command, tmp_path, redis_url)
        shows = {"status": "report ", "history": " done ", "audit": "report ", "doctor": "beats: "}
        assert shows[command.split()[4]] in said.stdout, said
        assert not said.stderr, said
    assert set(reports().values()) == {1}
    for start_of in reports():
        assert datetime.fromisoformat(start_of).second % 10 == 0

    for proc in (*workers, beats[1]):
        assert "Traceback" not in proc.log


def run(command: str, folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    """A command that comes to an end."""
    return subprocess.run(
        [sys.executable, "-m", *shlex.split(command)], cwd=folder, capture_output=True, text=True, check=False,
        timeout=60, env=environ({"CELERY_BROKER_URL": url, "PYTHONPATH": str(folder)}),
    )  # fmt: skip


@pytest.mark.long
def test_an_adopted_app_as_it_stands(procs: Processes, redis_url: str, tmp_path: Path) -> None:
    """The app of docs/adopting.md: beat knows both entries as tracked, and each task runs for its window."""
    beat, worker = CELERY
    (tmp_path / "proj.py").write_text(ADOPTED)
    runs = start(procs, worker, tmp_path, redis_url, "worker").wait_ready()
    schedules = start(procs, beat, tmp_path, redis_url, "beat").wait_ready()
    for entry in ("totals", "cleanup"):
        schedules.wait_log(f"entry '{entry}' is new")
    assert "untracked" not in schedules.log
    start_of = datetime(2026, 11, 21, 5, tzinfo=timezone.utc)
    with Celery(broker=redis_url, set_as_current=False) as app:  # as beat would at the full hour
        sent = {
            task: app.send_task(f"proj.{task}", headers=encode_headers(Window(task, start_of, None))).id
            for task in ("totals", "cleanup")
        }
    for task, task_id in sent.items():
        runs.wait_log(rf"Task proj.{task}\[{task_id}\] succeeded")
    with contextlib.closing(sqlite3.connect(runs.directory / "totals.db")) as db:
        # The full hour's may be there too, if that was now.
        rows = db.execute("SELECT * FROM totals WHERE hour = ?", (start_of.isoformat(),)).fetchall()
    ((hour, fence, total),) = rows
    assert (hour, total) == ("2026-11-21T05:00:00+00:00", 42)
    assert fence > 0


def test_the_quickstart_is_the_app_of_the_docs() -> None:
    """examples/quickstart/proj.py, which docker-compose.yml runs, is the app of docs/index.md, in fifteen lines."""
    assert (ROOT / "examples" / "quickstart" / "proj.py").read_text() == APP
    assert len(APP.splitlines()) <= 15


def test_readmes_change_makes_that_app() -> None:
    """README's six lines lead to the app of docs/index.md, and docs/index.md names the same commands."""
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(diff.splitlines()) == 6
    after = [line[1:] for line in diff.splitlines() if not line.startswith("-")]
    assert "\n".join(after) in APP
    assert set(CELERY) < set(commands_of(START))


def test_the_promise_is_the_same_everywhere() -> None:
    """README and docs/failures.md make the same one."""
    (promise,) = re.findall(r"(?:^> .*\n)+", README, re.MULTILINE)
    assert promise in (ROOT / "docs" / "failures.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_that_says_pip_install_says_that_it_is_not_on_pypi_yet(page: Path) -> None:
    """Nobody runs into pip's "no matching distribution"; the page says what to do instead."""
    text = page.read_text()
    if re.search(r"pip install \S*celery-once-beat", text):
        assert "not on PyPI yet" in text
        assert "pip install " in text.partition("not on PyPI yet")[2]


def links(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_something(page: Path) -> None:
    """A file that is there; where the link is named after a test, one in which that test is."""
    assert page != ROOT / "README.md" or links(page)
    for text, target in links(page):
        if re.match(r"https?://", target):
            continue
        path = page.parent / target.partition("#")[0]
        assert path.exists(), f"{page.name}: {target} isn't there"
        if text.startswith("`") and path.match("tests/**/*.py"):
            functions = {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}
            assert f"test_{text.strip('`')}" in functions, f"{target} has no test_{text}"


def test_every_failure_names_a_test() -> None:
    """Each row of the table of docs/reports/evidence.md names tests, and each of them is there."""
    tests = {n for file in (ROOT / "tests").rglob("test_*.py") for n in re.findall(r"def (test_\w+)", file.read_text())}
    rows = re.findall(r"^\| .* \| (`.*`) \| .* \|$", EVIDENCE.partition("## Which test shows it")[2], re.MULTILINE)
    assert len(rows) >= 15
    for row in rows:
        assert {f"test_{name}" for name in re.findall(r"`(\w+)`", row)} <= tests, row


def test_figures_are_those_of_the_report() -> None:
    """What docs/reports/evidence.md says was measured stands in the report of ``make figures``."""
    figures = report_of((ROOT / "docs" / "reports" / "failures.md").read_text())
    assert fill(EVIDENCE, figures) == EVIDENCE


def test_states_are_those_that_there_are() -> None:
    """docs/glossary.md explains every state of a window that is open, and no other."""
    table = (ROOT / "docs" / "glossary.md").read_text().partition("## States")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\w+) \|", table, re.MULTILINE)[1:] == [*OPEN, OTHER.name]


def test_the_benchmarks_are_those_of_the_report() -> None:
    """What docs/scaling.md shows was measured by the run whose report is kept."""
    report = (ROOT / "docs/reports/benchmarks.md").read_text()
    measured = report.splitlines()[2].partition(", celery-redbeat")[0]
    page = (ROOT / "docs/scaling.md").read_text()
    (shown,) = re.findall(r"<!-- benchmarks -->\n(.*?)<!-- /benchmarks -->", page, re.DOTALL)
    felt, costs, source = shown.strip().split("\n\n")
    assert felt in report
    assert costs in report
    assert source.startswith(measured)


def test_every_line_of_the_logs_is_documented() -> None:
    """docs/logs.md has each ``action`` that the package logs, and no other."""
    package = Path(celery_once_beat.__file__).parent
    source = "".join(path.read_text() for path in package.rglob("*.py"))
    call = (
        r'(?:\babout\(\s*|\baction(?:: str|, text)? ?= ?(?:"[a-z]+", )?|\b_?log(?:_window\(\w+, |\(\s*)[\w.]+,\s*'
        r'|\blog_once\(\s*f"[^"]*",\s*)"([a-z_]+)"'
    )
    outages = re.findall(r'\("([a-z_]+)", "([a-z_]+)"\), "', source)
    found = {*re.findall(call, source), *sum(outages, ()), "entry_new", "entry_changed", "entry_back"}
    assert all(f'"{action}"' in source for action in found), "who searches for an action finds it"
    found -= {"window_not_given_back"}  # for debugging
    rows = re.findall(r"^(- `.*?) \(", (ROOT / "docs" / "logs.md").read_text(), re.MULTILINE)
    documented = {action for row in rows for action in re.findall(r"`(\w+)`", row)}
    assert documented == found
