"""The harness does what other tests can't show while they pass: its checks can fail, and nothing is left out unseen."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import needs
import pytest
from needs import NEEDS, left_out
from preloaded import Forked
from processes import TESTS, Processes
from servers import RedisServer

README = Path(TESTS, "README.md").read_text()

# The test that tests/README.md offers to copy, as it stands there.
(_TO_COPY,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
exec(_TO_COPY)


def test_the_readme_names_what_is_there():
    """Every folder and module that tests/README.md names is there, and no folder of tests is forgotten."""
    named = {name.rstrip("/") for name in re.findall(r"`((?:[a-z_]+/)?[a-z_]+\.py|[a-z]+)`", README)}
    gone = {name for name in named if name.endswith(".py") and not Path(TESTS, name).exists()}
    assert not gone
    folders = {path.name for path in Path(TESTS).iterdir() if path.is_dir() and not path.name.startswith(("_", "."))}
    assert folders - named <= {"apps", "typing"}


# An app that says what it finds when it is imported.
_FACTS = """
import json, os, signal, sys, threading
from celery import Celery, signals

app = Celery("facts")
facts = {
    "arguments": sys.argv,
    "environment": dict(os.environ),
    "files": sorted(os.listdir("/proc/self/fd")),
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "leads its session": os.getsid(0) == os.getpgid(0) == os.getpid(),
    "path": sys.path,
    "receivers": [len(getattr(signals, name).receivers) for name in signals.__all__],
    "threads": threading.active_count(),
}
print("facts:", json.dumps(facts))
"""


def test_a_fork_is_what_a_start_would_be(procs: Processes, tmp_path: Path):
    """An app finds the same arguments, environment, files, signals and paths in a process of either kind."""
    (tmp_path / "facts.py").write_text(_FACTS)
    command = [sys.executable, "-m", "celery", "-A", "facts", "report"]
    found = []
    with Processes(tmp_path / "started") as started:
        for each in (started, procs):
            proc = each.start(command, name="facts", cwd=tmp_path)
            assert proc.wait() == 0, proc.log
            found.append((type(proc._popen), json.loads(re.search("^facts: (.*)$", proc.log, re.MULTILINE)[1])))
    (_, by_start), (kind, by_fork) = found
    assert kind is Forked
    assert by_fork == by_start


def test_what_a_machine_lacks_is_left_out_but_not_in_ci(
    start_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
):
    """The line at the end says how many tests were left out, and the command that installs what they need."""
    nowhere = dataclasses.replace(NEEDS["libfaketime"], of_machine=lambda: None, of_wheel=lambda: None)
    monkeypatch.setitem(NEEDS, "libfaketime", nowhere)
    for in_ci, outcome in ((False, pytest.skip.Exception), (True, pytest.fail.Exception)):
        monkeypatch.setattr(needs, "IN_CI", in_ci)
        with pytest.raises(outcome, match="libfaketime isn't installed"):
            start_redis(faketime=0)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert left_out({"rabbitmq-server": 20, "test-docs": 2, "docker compose": 1}) == (
        "left out: 23 tests that need docker compose, rabbitmq-server, test-docs; to run them: "
        "sudo apt-get update && sudo apt-get install rabbitmq-server; pip install -e '.[test-docs]'; "
        "https://docs.docker.com/compose/install"
    )


_CHECKED = """
def test_forever(redis_server):
    with redis_server.client() as client:
        client.set("once:forever", 1)

def test_not_to_blame(redis_server):
    pass

def test_own_server(start_redis):
    with start_redis().client() as client:
        client.set("once:own", 1)

def test_logs(procs):
    procs.start(["echo", "said before the end"], name="speaker").wait()
    assert False
"""


@pytest.mark.long
def test_checks_after_a_test_can_fail(procs: Processes, tmp_path: Path):
    """A key that never expires fails the test that left it, and no other; a failed test shows its logs."""
    (tmp_path / "test_checked.py").write_text(_CHECKED)
    command = [
        sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-rA", "--rootdir=.",
        f"--basetemp={tmp_path / 'inner'}", str(tmp_path / "test_checked.py"),
    ]  # fmt: skip
    run = procs.start(command, name="pytest", env={"PYTEST_ADDOPTS": ""})
    assert run.wait(180) == 1
    assert "ERROR at teardown of test_forever" in run.log
    assert "keys without expiry: ['db0 once:forever']" in run.log
    assert "ERROR at teardown of test_own_server" in run.log
    assert "said before the end" in run.log
    assert "1 failed, 3 passed, 2 errors" in run.log
    assert "left out" not in run.log


def test_the_rest_is_what_make_test_has_not_passed(tmp_path: Path):
    """What it has passed is left out once; what it hasn't run is there."""

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={tmp_path}", *arguments]
        return subprocess.run(command, cwd=Path(TESTS).parent, capture_output=True, text=True, check=True).stdout

    file = "tests/unit/test_identity.py"
    passed = f"{file}::test_workers_are_told_apart"
    everything = run("--collect-only", "--rest", file)
    run("--short", passed)
    left = run("--collect-only", "--rest", file)
    assert [name for name in everything.split() if "::" in name and name not in left] == [passed]
