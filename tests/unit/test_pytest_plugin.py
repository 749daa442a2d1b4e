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
from celery_once_beat import once


@pytest.mark.parametrize("number", range(4))
def test_an_empty_store(once_store, number):
    for first in (True, False):
        with once("report", every="366d", url=once_store.url) as window:
            assert (window is not None) == first
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
    ran = 0 if "def test_" in text else pytest.ExitCode.NO_TESTS_COLLECTED
    assert done.returncode == ran, done.stdout + done.stderr
    return done.stdout


BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/testing.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_docs_are_right(tmp_path: Path, block: str) -> None:
    """Each block of docs/testing.md runs as it stands, and its tests pass, where it has some."""
    number = block.count("def test_")
    assert (f"\n{number} passed" if number else "no tests ran") in f"\n{run(tmp_path, block)}"


def test_pytest_finds_it() -> None:
    """The package names it as pytest's entry point."""
    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(rf'^\[project\.entry-points\.pytest11\]\ncelery_once_beat = "{PLUGIN}"$', text, re.MULTILINE)


def test_the_fixtures(tmp_path: Path) -> None:
    """Each test has an empty store; here two processes run two each."""
    assert "4 passed" in run(tmp_path, SUITE, "-p", "xdist", "-n", "2")


def test_a_suite_that_uses_none(tmp_path: Path) -> None:
    """It imports this module and nothing that it stands on, and needs no app."""
    assert "1 passed" in run(tmp_path, UNUSED)
