"""Build the wheel and the source archive, and test the wheel as ``pip install`` leaves it: ``make wheel``.

A file that the wheel forgot, or a test that only passes beside the sources, shows here. The tests run in a folder in
which the package's sources aren't, with an environment of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What the tests need beside the installed package.
BESIDE = (
    *("tests", "examples", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile"),
    *("docker-compose.yml", "pyproject.toml", ".github"),
)
#: Quick ones (not those of windows by the thousand), and those that a wheel could fail: entry points, scripts in Lua,
#: README as a user follows it.
TESTS = (
    *("tests/unit", "--ignore=tests/unit/test_windows_crontab.py"),
    *(f"tests/integration/test_{name}.py" for name in ("ping", "readme", "scheduler")),
)

IS_INSTALLED = """
import celery_once_beat, sysconfig
assert celery_once_beat.__file__.startswith(sysconfig.get_path("purelib")), celery_once_beat.__file__
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="once-wheel-") as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(ROOT))
        (wheel,) = (folder / "dist").glob("*.whl")
        (archive,) = (folder / "dist").glob("*.tar.gz")
        check_wheel(wheel)
        check_archive(archive)
        venv.create(folder / "venv", with_pip=True)
        python = str(folder / "venv" / "bin" / "python")
        install = f"{python} -m pip install --quiet --disable-pip-version-check"
        run(*install.split(), f"celery-once-beat[test] @ {wheel.as_uri()}")
        away = folder / "away"
        away.mkdir()
        for beside in BESIDE:
            source = ROOT / beside
            if source.is_dir():
                shutil.copytree(source, away / beside, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, away / beside)
        run(python, "-c", IS_INSTALLED, cwd=away)
        pytest = [python, "-m", "pytest", "-q", "-n", "4", "--dist", "loadgroup"]
        run(*pytest, *TESTS, cwd=away, find_links=folder / "dist")
    print(f"{wheel.name} works away from the sources")


def check_wheel(wheel: Path) -> None:
    """The package, all of it, its licence, and nothing else."""
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    info = next(name for name in names if name.endswith("/METADATA")).removesuffix("METADATA")
    package = {f"celery_once_beat/{p.relative_to(ROOT / 'celery_once_beat')}" for p in sources("celery_once_beat")}
    expected = package | {
        f"{info}{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    assert names == expected, f"too much: {sorted(names - expected)}; missing: {sorted(expected - names)}"


def check_archive(archive: Path) -> None:
    """All that ``make test`` needs."""
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    expected = {"LICENSE", "Makefile", "README.md", "pyproject.toml", "tests/conftest.py", "celery_once_beat/py.typed"}
    assert expected <= names, f"missing: {sorted(expected - names)}"


def sources(folder: str) -> list[Path]:
    return [p for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]


def run(*command: str, cwd: Path | None = None, find_links: str | Path = "") -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(command, cwd=cwd, env={**environ, "PIP_FIND_LINKS": str(find_links)}, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(command)}: ended with {result.returncode}")


if __name__ == "__main__":
    main()
