"""The fixtures that pytest finds by itself: what they give, and that they cost nothing where nobody asks for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = "celery_once_beat.pytest_plugin"
ROOT = Path(__file__).resolve().parents[2]

SUITE = """\
import pytest
from celery import Celery
from celery_once_beat import OnceTask, once
from celery_once_beat.testing import window

app = Celery("proj", broker="redis://127.0.0.1:1/0", task_cls=OnceTask)
app.conf.task_always_eager = True
sent = []


@app.task(bind=True)
def mail(self, user):
    sent.append((user, self.window.start.day))


@app.task(bind=True)
def report(self):
    for user in ("ann", "bob"):
        mail.apply_once((user,), key=user, window=self.window)
    return self.window.attempt


@pytest.mark.parametrize("day", [21, 22])
def test_both(once_store, once_window, day):
    sent.clear()
    once_window(report, window("nightly", f"2026-11-{day}T02:00Z"))
    report()
    again = once_window(report, window("nightly", f"2026-11-{day}T02:00Z", attempt=2))
    assert report() == again.attempt == 2
    assert sent == [("ann", day), ("bob", day)]


def test_each_alone(once_window):
    sent.clear()
    once_window(report, window("nightly", "2026-11-21T02:00Z"))
    report()
    assert sent == [("ann", 21), ("bob", 21)]


@pytest.mark.parametrize("number", range(4))
def test_an_empty_store(once_store, number):
    assert once_store.url.startswith("redis+socket:///")
    with once("report", every="366d", url=once_store.url) as first, once("report", every="366d", app=app) as second:
        assert first is not None
        assert second is None


def test_without():
    assert not report.window.scheduled
"""
UNUSED = """\
import sys


def test_nothing_is_imported():
    assert "celery_once_beat.pytest_plugin" in sys.modules
    heavy = {"celery", "redis", "kombu", "asyncio", "celery_once_beat.testing", "celery_once_beat.worker"}
    assert not heavy & {name.partition("[")[0] for name in sys.modules} - ASYNCIO


ASYNCIO = {"asyncio"} if "pytest_asyncio" in sys.modules else set()
"""


def run(folder: Path, text: str, *options: str) -> str:
    (folder / "test_suite.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", PLUGIN, *options],
        cwd=folder, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/testing.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_docs_are_right(tmp_path: Path, block: str) -> None:
    """Each block of docs/testing.md runs as it stands, and its tests pass."""
    assert f"\n{block.count('def test_')} passed" in f"\n{run(tmp_path, block)}"


def test_pytest_finds_it() -> None:
    """The package names it as pytest's entry point."""
    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(rf'^\[project\.entry-points\.pytest11\]\ncelery_once_beat = "{PLUGIN}"$', text, re.MULTILINE)


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "xdist"])
def test_the_fixtures(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Each test has an empty store, and a window to its end; also where several processes run them."""
    assert "8 passed" in run(tmp_path, SUITE, *options)


def test_a_suite_that_uses_none(tmp_path: Path) -> None:
    """It imports this module and nothing that it stands on, and needs no app."""
    assert "1 passed" in run(tmp_path, UNUSED)
    assert "once_window(task, window)" in run(tmp_path, UNUSED, "--fixtures")
