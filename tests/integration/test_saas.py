"""``examples/saas``: the service keeps its word when a worker is killed, and its own tests pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from needs import need
from processes import environ
from servers import free_port

ROOT = Path(__file__).resolve().parents[2]
SAAS = ROOT / "examples" / "saas"


@pytest.fixture(autouse=True)
def _fastapi() -> None:
    need("saas")


def run(folder: Path, *arguments: str) -> str:
    """What a module printed, once it has ended well."""
    env = environ({"PYTHONPATH": str(ROOT), "PORT": str(free_port())})
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_the_service_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Started by one command, with its worker killed under way: as its README shows it."""
    said = run(tmp_path, "examples.saas", "--try")
    number, ann, bob = re.search(r"^(\d+) reports, (\d+) mails to ann, (\d+) to bob$", said, re.MULTILINE).groups()
    assert number == ann == bob
    assert "the worker is killed" in said


def test_its_own_tests_pass(tmp_path: Path) -> None:
    """As a user would have them."""
    run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", str(SAAS / "test_app.py"))


def test_the_page_shows_what_runs() -> None:
    """docs/two-stores.md has its blocks of the service."""
    page = (ROOT / "docs" / "two-stores.md").read_text()
    blocks = re.findall(r"^<!-- examples/saas -->\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```") / 2
    assert all(block in (SAAS / "app.py").read_text() for block in blocks)
