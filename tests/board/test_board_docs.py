"""docs/board.md and docs/metrics.md are followed to the letter, on free ports: what is served, and what is scraped."""

from __future__ import annotations

import http.client
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from needs import find
from processes import Proc, Processes, environ

ROOT = Path(__file__).resolve().parents[2]
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("board", "metrics")}
SERVED = re.compile(r"^<!-- served -->\n```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = [line for page in PAGES.values() for block in SERVED.findall(page) for line in block.splitlines()]

Serve = Callable[..., Proc]


@pytest.fixture
def serve(procs: Processes, redis_url: str, tmp_path: Path) -> Serve:
    """Run a command of the page beside the quickstart's app; it prints first what the page shows, but for the port."""
    (tmp_path / "proj.py").write_text((ROOT / "examples" / "quickstart" / "proj.py").read_text())

    def start(command: str, **env: str) -> Proc:
        assert command in COMMANDS
        shown = COMMANDS[COMMANDS.index(command) + 1]
        words = shlex.split(command.removeprefix("$ "))
        if "--port" in words:
            del words[words.index("--port") : words.index("--port") + 2]
        given = {"CELERY_BROKER_URL": redis_url, "PYTHONPATH": str(tmp_path), **env}
        proc = procs.start([sys.executable, "-m", *words, "--port", "0"], name="served", env=given)
        proc.wait_log(re.sub(r":\d+(?=\D*$)", lambda _: r":\d+", re.escape(shown)))
        return proc

    return start


def get(proc: Proc, path: str, **headers: str) -> tuple[int, str]:
    port = re.search(r":(\d+)", proc.log.partition("//")[2])
    with closing(http.client.HTTPConnection("127.0.0.1", int(port[1]), timeout=30)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def job_of(name: str) -> dict[str, Any]:
    """What the page gives Prometheus to scrape."""
    found = re.search(rf"<!-- {name} -->\n```yaml\n(.*?)```", PAGES["metrics"], re.DOTALL)
    assert found, name
    (job,) = yaml.safe_load(found[1])["scrape_configs"]
    return job


def test_the_extras_are_there() -> None:
    """What pip is asked for is what the project offers."""
    asked = {extra for line in COMMANDS for extras in re.findall(r"\[([\w,]+)\]", line) for extra in extras.split(",")}
    assert asked == {"dashboard", "metrics"}
    assert asked <= set(metadata("celery-once-beat").get_all("Provides-Extra") or ())


@pytest.mark.long
def test_the_board_as_it_stands(serve: Serve) -> None:
    """The board of the quickstart's app, and one that others reach, with a token."""
    status, text = get(serve("$ celery -A proj once dashboard"), "/")
    assert status == 200
    assert "report" in text
    assert "$ export ONCE_BOARD_TOKEN=$(openssl rand -hex 16)" in COMMANDS
    token, openssl = secrets.token_hex(16), find("openssl")
    if openssl:
        made = subprocess.run([openssl, "rand", "-hex", "16"], capture_output=True, text=True, check=True)
        token = made.stdout.strip()
    proc = serve("$ celery -A proj once dashboard --host 0.0.0.0", ONCE_BOARD_TOKEN=token)
    assert get(proc, "/")[0] == 401
    job = job_of("scrape")
    assert job["authorization"].keys() == {"credentials_file"}, "Prometheus then sends Bearer and the file's text"
    assert get(proc, "/metrics", authorization=f"Bearer {token}")[0] == 200
    acting = serve("$ celery -A proj once dashboard --actions", ONCE_BOARD_TOKEN=token)
    assert get(acting, "/orders", authorization=f"Bearer {token}")[0] == 200


def test_the_metrics_as_they_stand(serve: Serve, redis_url: str, tmp_path: Path) -> None:
    """Served, and printed into a file."""
    status, text = get(serve("$ celery -A proj once metrics --port 9466"), "/metrics")
    assert status == 200
    (target,) = job_of("scrape server")["static_configs"][0]["targets"]
    assert f"once: the metrics are at http://{target}/metrics" in COMMANDS
    command = "$ celery -A proj once metrics > once.prom"
    assert command in COMMANDS
    shell = f"{shlex.quote(sys.executable)} -m {command.removeprefix('$ ')}"
    env = environ({"CELERY_BROKER_URL": redis_url, "PYTHONPATH": str(tmp_path)})
    subprocess.run(["bash", "-c", shell], cwd=tmp_path, env=env, check=True, timeout=60)
    printed = (tmp_path / "once.prom").read_text()
    for told in (text, printed):
        assert "celery_once_beat_store_up 1.0" in told
        assert 'celery_once_beat_open_windows{entry="report"} 0.0' in told
