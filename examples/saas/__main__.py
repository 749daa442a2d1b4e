"""Run the service: ``python -m examples.saas``. It starts a Redis of its own, a worker, a beat and the web.

With ``--try`` a tenant gets reports every two seconds, the worker is killed under way, and what came of it is shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from celery_once_beat.embedded import EmbeddedServer

PORT = int(os.environ.get("PORT", "8000"))
URL = f"http://127.0.0.1:{PORT}/tenants/acme"
#: Reports after which the worker is killed, and after which the tenant leaves.
KILLED_AFTER, ENOUGH = 2, 5


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """Start one of the service's processes."""
    return subprocess.Popen([sys.executable, "-m", *arguments])


def start_worker() -> subprocess.Popen[bytes]:
    """Start a worker; one process, to be killed as a whole."""
    return start("celery", "-A", "examples.saas.app:celery", "worker", "--pool", "solo", "-l", "warning")


def ask(method: str = "GET", body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask the web, once it answers."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(URL, data, {"Content-Type": "application/json"}, method=method)  # it is ours
    for _ in range(600):
        try:
            with urlopen(request) as answer:  # noqa: S310
                found: dict[str, Any] = json.load(answer)
                return found
        except ConnectionError:
            time.sleep(0.1)
        except OSError as exc:
            if not isinstance(getattr(exc, "reason", None), ConnectionError):
                raise
            time.sleep(0.1)
    raise SystemExit("the web doesn't answer")


def wait(number: int) -> dict[str, Any]:
    """Wait until the tenant has had so many reports."""
    while len((state := ask())["reports"]) < number:
        time.sleep(0.2)
    return state


def try_it(processes: list[subprocess.Popen[bytes]]) -> bool:
    """Kill the worker under way; returns whether each report and each mail was there once."""
    ask("PUT", {"line": "*/2 * * * * *", "users": ["ann", "bob"]})
    wait(KILLED_AFTER)
    processes[-1].kill()
    print("the worker is killed")
    processes.append(start_worker())
    wait(ENOUGH)
    ask("DELETE")
    until = time.monotonic() + 60
    while True:
        state = ask()
        mails = Counter(state["mails"])
        once = len({*state["reports"]}) == len(state["reports"]) == mails["ann"] == mails["bob"]
        if once or time.monotonic() > until:
            print(f"{len(state['reports'])} reports, {mails['ann']} mails to ann, {mails['bob']} to bob")
            return once
        time.sleep(0.2)


def main() -> bool:
    """Run it until Ctrl-C, or until it has been tried."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DATABASE_URL"] = f"sqlite:///{Path(folder) / 'saas.db'}"
        server = EmbeddedServer()
        os.environ["REDIS_URL"] = server.url
        from examples.saas.app import create_tables  # noqa: PLC0415  # it reads these two

        create_tables()
        processes = [
            start("uvicorn", "examples.saas.app:web", "--port", str(PORT), "--log-level", "warning"),
            start("celery", "-A", "examples.saas.app:celery", "beat", "-l", "warning"),
            start_worker(),
        ]
        try:
            if "--try" in sys.argv:
                return try_it(processes)
            print(f'curl -X PUT {URL} --json \'{{"line": "*/10 * * * * *", "users": ["ann"]}}\'; curl {URL}')
            processes[0].wait()
        except KeyboardInterrupt:
            pass
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
            server.close()
    return True


if __name__ == "__main__":
    sys.exit(not main())
