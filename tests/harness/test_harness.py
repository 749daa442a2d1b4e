"""The harness does what other tests rely on, shown with stock Celery; above all, its checks can fail."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import needs
import pytest
from ledger import Counts, Ledger, WindowKey
from needs import NEEDS, left_out
from preloaded import Forked, Preloaded
from processes import TESTS, Processes, environ, wait_until
from servers import RedisServer, keys_without_expiry

STOCK = "celery.beat:Scheduler"
README = Path(TESTS, "README.md").read_text()


@pytest.fixture
def env(redis_url: str, ledger: Ledger) -> dict[str, str]:
    return {"BROKER_URL": redis_url, "LEDGER": str(ledger.path)}


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


# ---------------------------------------------------------------------------------------------------- ledger


def test_ledger_counts_what_was_written(ledger: Ledger):
    """Starts and finishes are counted by window; a line that isn't whole yet isn't read."""
    assert ledger.read() == []
    for start in ("a", "b", "b"):
        ledger.write("start", entry="e", start=start)
        ledger.write("finish", entry="e", start=start)
    ledger.write("start", entry="e", start="c")
    ledger.write("start", entry="f", start="a")
    ledger.write("note", text="of no window")
    with ledger.path.open("a") as file:
        file.write('{"kind": "fin')

    assert ledger.windows() == [("e", "a"), ("e", "b"), ("e", "c"), ("f", "a")]
    assert ledger.summary("e") == {
        WindowKey("e", "a"): Counts(1, 1),
        WindowKey("e", "b"): Counts(2, 2),
        WindowKey("e", "c"): Counts(1, 0),
    }
    assert ledger.finished("e") == [("e", "a"), ("e", "b")]
    assert ledger.finished_twice() == ledger.started_twice() == [("e", "b")]
    assert ledger.unfinished() == [("e", "c"), ("f", "a")]
    assert [event["pid"] for event in ledger.read("note", text="of no window")] == [os.getpid()]


# --------------------------------------------------------------------------------------------------- servers


def test_server_forgets_or_keeps(start_redis: Callable[..., RedisServer]):
    """A killed server starts again on its port; its data survives only with ``appendonly``."""
    for appendonly in (False, True):
        server = start_redis(appendonly=appendonly)
        with server.client() as client:
            client.set("kept", "yes", ex=600)
        port = server.port
        server.kill()
        assert not server.alive
        server.restart()
        assert server.port == port
        with server.client() as client:
            assert client.get("kept") == ("yes" if appendonly else None)


def test_key_without_expiry_is_found(any_server: RedisServer):
    """Keys of ours without a time to live are found in every database, and only those."""
    with any_server.client() as first, any_server.client(3) as other:
        first.set("once:forever", 1)
        first.set("once:limited", 1, ex=600)
        first.set("theirs", 1)
        other.set("once:other", 1)
        try:
            assert keys_without_expiry(any_server) == ["db0 once:forever", "db3 once:other"]
        finally:
            first.flushall()
        assert keys_without_expiry(any_server) == []


def test_server_clock_moves(start_redis: Callable[..., RedisServer]):
    """A server's clock can be moved both ways while it runs; keys expire by it, and it goes on answering."""
    server = start_redis("valkey", faketime=0)
    with server.client() as client:
        client.set("hour", 1, ex=1800)
        client.set("day", 1, ex=86400)

        def check_ahead_by(seconds: float) -> None:
            sooner = time.time()
            told, micros = client.time()
            assert sooner - 1 < told + micros / 1e6 - seconds < time.time() + 1

        server.set_clock_offset(3600)
        check_ahead_by(3600)
        assert client.get("hour") is None
        assert 0 < client.ttl("day") <= 86400 - 3600
        server.set_clock_offset(-5)
        check_ahead_by(-5)
        assert client.ping()


_COMPUTE = """
import sys, threading

sys.setswitchinterval(1000)
steps = []

def compute(name):
    steps.append(name)
    for _ in range(1_000_000):
        pass
    steps.append(name)

threads = [threading.Thread(target=compute, args=(name,)) for name in "abcd"]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("".join(steps))
"""


def test_who_waits_under_a_fake_clock_does_not_spin(procs: Processes):
    """A thread that waits for the GIL waits as long as it is told to: here nobody asks for it within 1,000 seconds."""
    proc = procs.start([sys.executable, "-c", _COMPUTE], name="computes", faketime=0)
    assert proc.wait(60) == 0
    assert proc.log.strip() == "aabbccdd"


# ------------------------------------------------------------------------------------------------- processes


def test_two_stock_beats_double_windows(procs: Processes, env: dict[str, str], ledger: Ledger):
    """The check can fail: two stock beats with one schedule run windows twice, and the ledger says so."""
    procs.start_worker("apps.stock", env=env)
    for name in ("a", "b"):
        procs.start_beat("apps.stock", env=env, scheduler=STOCK, name=name)
    doubled = wait_until(ledger.finished_twice, "stock beats doubled a window", timeout=60)
    assert ledger.summary()[doubled[0]].finishes >= 2


def test_killed_worker_leaves_nothing(procs: Processes, env: dict[str, str], ledger: Ledger):
    """SIGKILL in the middle of a task: a start without a finish, and no process of the pool is left."""
    worker = procs.start_worker("apps.stock", env={**env, "WORK_SECONDS": "600"})
    procs.start_beat("apps.stock", env=env, scheduler=STOCK)
    wait_until(lambda: ledger.read("start"), "a task is running", timeout=60)
    worker.pause()
    worker.kill()
    assert worker.exit_code == -signal.SIGKILL
    assert not worker.members()
    assert ledger.unfinished()
    assert not ledger.finished()


def test_whatever_was_started_is_ended(tmp_path: Path):
    """A paused group and the orphans of a killed parent are ended with the rest."""
    fork = "import os, time; os.fork(); time.sleep(600)"
    with Processes(tmp_path) as procs:
        stopped, orphaned = (procs.start([sys.executable, "-c", fork], name=name) for name in "ab")
        for proc in (stopped, orphaned):
            wait_until(proc.children, f"{proc!r} has forked", timeout=60)
        stopped.pause()
        orphaned.kill(main_only=True)
        assert not orphaned.alive
        assert len(orphaned.children()) == 1
    assert not stopped.members()
    assert not orphaned.members()


def test_failures_say_what_was_missing(procs: Processes):
    """Waiting fails with what was waited for, the last value, and the log of a process that has ended."""
    with pytest.raises(AssertionError, match=r"not within 0 s: rain; last value: 0"):
        wait_until(lambda: 0, "rain", timeout=0)
    proc = procs.start([sys.executable, "-c", "print('only this'); raise SystemExit(3)"], name="short")
    with pytest.raises(AssertionError, match=r"(?s)ended with 3 before it logged 'more'.*only this"):
        proc.wait_log("more")
    assert proc.wait() == 3


# An app that says what it finds when it is imported.
_FACTS = """
import json, os, signal, sys, threading
from celery import Celery, signals

app = Celery("facts")
facts = {
    "arguments": sys.argv,
    "directory": os.getcwd(),
    "environment": dict(os.environ),
    "files": sorted(os.listdir("/proc/self/fd")),
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "leads its session": os.getsid(0) == os.getpgid(0) == os.getpid(),
    "main": sys.modules["__main__"].__name__,
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
            proc = each.start(command, name="facts", env={"GIVEN": "this"}, cwd=tmp_path)
            assert proc.wait() == 0, proc.log
            found.append((type(proc._popen), json.loads(re.search("^facts: (.*)$", proc.log, re.MULTILINE)[1])))
    (_, by_start), (kind, by_fork) = found
    assert kind is Forked
    assert by_fork == by_start
    assert by_fork["environment"]["GIVEN"] == "this"


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("-m", "celery", "-A", "app", "worker", "-P", "gevent"), {}),
        (("-m", "celery", "-A", "app", "beat"), {"PYTHONPATH": "elsewhere"}),
        (("-m", "celery", "-A", "app", "beat"), {"LD_PRELOAD": "libfaketime.so"}),
        (("-m", "celery", "-A", "app", "worker"), {"REMAP_SIGTERM": "SIGQUIT"}),
        (("-m", "celery", "-A", "app", "beat"), {"COVERAGE_PROCESS_CONFIG": "measured"}),
        (("-m", "django", "migrate"), {}),
        (("-c", "import celery"), {}),
    ],
)
def test_what_a_fork_would_be_too_late_for_is_started(
    preloaded: Callable[[], Preloaded], words: tuple[str, ...], env: dict[str, str]
):
    """What patches other modules, or reads its environment when Python starts, is no fork."""
    assert preloaded().can_become([sys.executable, "-m", "celery", "-A", "app", "beat"], environ({}))
    assert not preloaded().can_become([sys.executable, *words], environ(env))


# ------------------------------------------------------------------------------------------ a bare machine


def test_what_a_machine_lacks_is_left_out_but_not_in_ci(
    procs: Processes, start_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
):
    """Wherever a test asks for it: here a process and a server whose clocks are to be moved."""
    nowhere = dataclasses.replace(NEEDS["libfaketime"], of_machine=lambda: None, of_wheel=lambda: None)
    monkeypatch.setitem(NEEDS, "libfaketime", nowhere)
    for in_ci, outcome in ((False, pytest.skip.Exception), (True, pytest.fail.Exception)):
        monkeypatch.setattr(needs, "IN_CI", in_ci)
        with pytest.raises(outcome, match="libfaketime isn't installed"):
            procs.start([sys.executable, "-c", ""], name="moved", faketime=0)
        with pytest.raises(outcome, match="libfaketime isn't installed"):
            start_redis(faketime=0)


def test_what_was_left_out_is_one_command_away(monkeypatch: pytest.MonkeyPatch):
    """The line names what was lacking and the command that installs it; what has no package, its address."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert left_out({"rabbitmq-server": 20, "libfaketime": 3}) == (
        "left out: 23 tests that need libfaketime, rabbitmq-server; to run them: "
        "sudo apt-get update && sudo apt-get install faketime rabbitmq-server"
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert left_out({"promtool": 1}) == (
        "left out: 1 test that needs promtool; to run it: apt-get update && apt-get install prometheus"
    )
    assert left_out({"test-docs": 2, "test-board": 1}).endswith("to run them: pip install -e '.[test-board,test-docs]'")
    assert left_out({"docker compose": 1}).endswith("to run it: https://docs.docker.com/compose/install")


# --------------------------------------------------------------------------------------- checks after a test

_CHECKED = """
import sys

def test_forever(redis_server):
    with redis_server.client() as client:
        client.set("once:forever", 1)

def test_not_to_blame(redis_server):
    pass

def test_own_server(start_redis):
    with start_redis().client() as client:
        client.set("once:own", 1)

def test_logs(procs):
    procs.start([sys.executable, "-c", "print('said before the end')"], name="speaker").wait()
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
    assert "keys without expiry: ['db0 once:own']" in run.log
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
    everything = run("--collect-only", "--rest", file).split()
    run("--short", passed)
    left = run("--collect-only", "--rest", file).split()
    assert set(everything) - set(left) >= {passed}
    assert f"{file}::test_a_delivery_to_nobody_known_has_a_name" in left
