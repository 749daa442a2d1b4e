"""docs/works-with.md to the letter: the quickstart's app with the page's code, by the page's commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from observed import Receiver, SentryServer
from processes import Proc, Processes, wait_until
from servers import free_port

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "works-with.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def blocks_of(text: str, language: str = r"\w*") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


APP = (ROOT / "examples" / "quickstart" / "proj.py").read_text()
BINARIES = Path(sys.executable).parent
BOTH = ["celery -A proj beat", "celery -A proj worker"]
#: Instead of the quickstart's: a window each second, of entries whose interval Sentry knows.
SOON = """

from datetime import datetime, timedelta, timezone

app.conf.beat_schedule = {
    f"report{n}": {
        "task": "proj.report",
        "schedule": 120.0,
        "options": {"once": {"anchor": datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=n)}},
    }
    for n in range(120)
}
"""


class Section:
    """A tool's section of the page: its code in the quickstart's app, and what its commands start."""

    def __init__(self, tool: str, procs: Processes, folder: Path, url: str, **env: str) -> None:
        code = "".join(blocks_of(SECTIONS[tool], "python"))
        (folder / "proj.py").write_text(f"{APP}\n{code}{SOON}")
        self.commands = re.findall(r"^\$ (.+)$", "".join(blocks_of(SECTIONS[tool], "console")), re.MULTILINE)
        self.procs = procs
        path = f"{BINARIES}{os.pathsep}{os.environ['PATH']}"
        self.env = {"CELERY_BROKER_URL": url, "PYTHONPATH": str(folder), "PATH": path, **env}
        self.started: dict[str, Proc] = {}

    def start(self, commands: list[str]) -> None:
        """Run the commands of a shell: what is exported is there for those that follow."""
        for command in commands:
            program, *arguments = shlex.split(command)
            if program == "export":
                self.env |= dict(argument.split("=", 1) for argument in arguments)
                continue
            what = next(word for word in ("beat", "worker", "flower") if word in arguments)
            options = ["-l", "info"] if what != "flower" else []
            ready = {"beat": r"beat: Starting", "worker": r" ready\.$", "flower": "Connected to redis"}[what]
            self.started[what] = self.procs.start(
                [str(BINARIES / program), *arguments, *options], name=what, env=self.env, ready=ready
            ).wait_ready()

    def windows(self, number: int) -> list[str]:
        """Wait until so many windows were executed; the ids of their tasks."""
        worker = self.started["worker"]

        def succeeded() -> list[str]:
            return re.findall(r"Task proj\.report\[(\S+)\] succeeded", worker.log)

        found = wait_until(lambda: len(succeeded()) >= number and succeeded(), f"{number} windows are executed", 90)
        assert len(set(found)) == len(found)
        return found

    def stop(self) -> None:
        for proc in self.started.values():
            proc.stop()
            assert "Traceback" not in proc.log, proc.log


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    return folder


def test_each_section_is_here() -> None:
    """And each has code or commands that are run."""
    assert set(SECTIONS) == {"Sentry Crons", "Datadog", "OpenTelemetry", "Flower", "Celery's own settings"}
    assert len(blocks_of(PAGE)) == len(SECTIONS) - 1, "settings need no code"


def test_sentry(procs: Processes, redis_url: str, folder: Path) -> None:
    """Monitors are told of windows by beat and worker."""
    with SentryServer().running() as sentry:
        section = Section("Sentry Crons", procs, folder, redis_url, SENTRY_DSN=sentry.dsn)
        assert not section.commands
        section.start(BOTH)
        section.windows(2)
        section.stop()
        told = [[each["status"] for each in sentry.check_ins(f"report{n}")] for n in range(120)]
    assert told.count(["in_progress", "ok"]) >= 2
    assert {tuple(each) for each in told} <= {(), ("in_progress",), ("in_progress", "ok")}


def test_datadog(procs: Processes, redis_url: str, folder: Path) -> None:
    """Its agent gets traces; with the page's variable, messages carry them."""
    with Receiver().running() as agent:
        section = Section("Datadog", procs, folder, redis_url, DD_TRACE_AGENT_URL=agent.url)
        section.start(section.commands)
        assert section.env["DD_CELERY_DISTRIBUTED_TRACING"] == "true"
        section.windows(2)
        section.stop()
    sent = b"".join(body for path, body in agent.requests if path.endswith("/traces"))
    for name in (b"celery.beat.apply_entry", b"celery.apply", b"celery.run"):
        assert name in sent


def test_opentelemetry(procs: Processes, redis_url: str, folder: Path) -> None:
    """The exporter prints a publish's span in beat and its run's, a child of it, in the worker."""
    section = Section("OpenTelemetry", procs, folder, redis_url)
    assert not section.commands
    section.start(BOTH)
    section.windows(2)

    def traces(what: str, span: str) -> list[str]:
        log = section.started[what].log
        return re.findall(rf'"name": "{span}/proj\.report",\s+"context": {{\s+"trace_id": "(\w+)"', log)

    wait_until(lambda: len(traces("worker", "run")) >= 2, "spans of runs are exported", 60)
    section.stop()
    ran = traces("worker", "run")
    assert len(set(ran)) == len(ran)
    assert set(ran) <= set(traces("beat", "apply_async"))


def test_flower(procs: Processes, redis_url: str, folder: Path) -> None:
    """It lists the windows' tasks."""
    port = str(free_port())
    env = {"FLOWER_ADDRESS": "127.0.0.1", "FLOWER_PORT": port, "FLOWER_UNAUTHENTICATED_API": "true"}
    section = Section("Flower", procs, folder, redis_url, **env)
    section.start([*section.commands, BOTH[0]])

    def listed() -> set[str]:
        with urlopen(f"http://127.0.0.1:{port}/api/tasks?state=SUCCESS", timeout=60) as reply:
            return set(json.load(reply))

    # Those that ran before it listened it can't know.
    wait_until(lambda: len(listed() & {*section.windows(2)}) >= 2, "Flower lists the windows", 60)
    section.stop()
