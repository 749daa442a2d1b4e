"""docs/works-with.md to the letter: the quickstart's app with the page's code, by the page's commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from observed import SentryServer
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


def traces(proc: Proc, span: str) -> set[str]:
    """The traces of the spans of that name that it has printed."""
    return {*re.findall(rf'"name": "{span}/proj\.report",\s+"context": {{\s+"trace_id": "(\w+)"', proc.log)}


def spans_sent(_: Section, server: SentryServer) -> bool:
    sent = b"".join(body for path, body in server.requests if path.endswith("/traces"))
    return all(name in sent for name in (b"celery.beat.apply_entry", b"celery.apply", b"celery.run"))


def listed(section: Section, _: SentryServer) -> set[str]:
    url = f"http://127.0.0.1:{section.env['FLOWER_PORT']}/api/tasks?state=SUCCESS"
    with urlopen(url, timeout=60) as reply:
        return {*json.load(reply)} & {*section.windows(1)}


#: Of each tool how it is seen that it has been told of windows: monitors by beat and worker, publishes and their runs.
SEEN: dict[str, Callable[[Section, SentryServer], object]] = {
    "Sentry Crons": lambda _, server: any(
        [each["status"] for each in server.check_ins(f"report{n}")] == ["in_progress", "ok"] for n in range(120)
    ),
    "Datadog": spans_sent,
    "OpenTelemetry": lambda section, _: (
        traces(section.started["worker"], "run") & traces(section.started["beat"], "apply_async")
    ),
    "Flower": listed,
}


def test_each_section_is_here() -> None:
    """And each has code or commands that are run."""
    assert set(SECTIONS) == {*SEEN, "Celery's own settings"}
    assert len(blocks_of(PAGE)) == len(SEEN), "settings need no code"


@pytest.mark.parametrize("tool", SEEN)
def test_a_section(procs: Processes, redis_url: str, tmp_path: Path, tool: str) -> None:
    """Its code in the quickstart's app, and its commands: the tool is told of windows."""
    (folder := tmp_path / "app").mkdir()
    with SentryServer().running() as server:
        env = {"SENTRY_DSN": server.dsn, "DD_TRACE_AGENT_URL": server.url, "FLOWER_ADDRESS": "127.0.0.1"}
        flower = {"FLOWER_PORT": str(free_port()), "FLOWER_UNAUTHENTICATED_API": "true"}
        section = Section(tool, procs, folder, redis_url, **env, **flower)
        section.start([*section.commands, *(each for each in BOTH if each.split()[-1] not in str(section.commands))])
        section.windows(2)
        wait_until(lambda: SEEN[tool](section, server), "the tool is told", 60)
        section.stop()
