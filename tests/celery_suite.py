"""Celery's own integration suite with our task base: whatever passes with plain tasks passes with OnceTask.

``python celery_suite.py``, in ``tests/``: takes the suite from the sources of the installed Celery on the package
index, and changes nothing of it but its app's ``task_cls``. Ends with 1 if a test passes with plain tasks alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import celery
from servers import RedisServer, need_server

FOLDER = Path(__file__).parents[1] / "build" / f"celery-{celery.__version__}"
FILES = [f"t/integration/test_{name}.py" for name in ("tasks", "canvas", "inspect")]
#: By the name of a run, the app's ``task_cls``; '' is Celery's.
BASES = {"plain": "", "once": "celery_once_beat:OnceTask"}
#: Seconds that one run may take. It takes five minutes.
LONGEST = 1800
#: Its tests are flaky by their own account: what fails is run again, so often.
AGAIN = 3

#: What is put beside the suite. Its markers are of plugins that it doesn't need here.
BESIDE = {
    "pytest.ini": "[pytest]\npython_classes = test_*\nmarkers =\n    flaky\n    timeout\n",
    "conftest.py": """
import os
import pytest


@pytest.fixture(scope="session")
def celery_parameters():
    base = os.environ["SUITE_TASK_CLS"]
    return {"task_cls": base} if base else {}
""",
}


def fetch() -> None:
    """Put the suite into FOLDER, unless it is there."""
    if (FOLDER / "conftest.py").exists():  # the last that is written
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = f"celery=={celery.__version__}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "celery"]
    subprocess.run([*pip, "--dest", str(FOLDER), wanted], check=True, timeout=600)
    (source,) = FOLDER.glob("celery-*.tar.gz")
    with tarfile.open(source) as archive:
        for member in archive.getmembers():
            _, _, member.name = member.name.partition("/")
            if member.name.startswith("t/") and member.isfile():
                archive.extract(member, FOLDER, filter="data")
    for name, text in BESIDE.items():
        (FOLDER / name).write_text(text)


def run(name: str, tests: list[str]) -> dict[str, str]:
    """Run ``tests`` over a Redis of their own; by name of a test, passed, skipped or failed."""
    report = FOLDER / f"{name}.xml"
    report.unlink(missing_ok=True)
    with RedisServer.start(need_server()) as server:
        url = server.url()
        env = {
            **os.environ,
            "SUITE_TASK_CLS": BASES[name],
            "TEST_BROKER": url,
            "TEST_BACKEND": url,
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(server.port),
        }
        options = ["-q", "-p", "celery.contrib.pytest", "-p", "no:cacheprovider", f"--junitxml={report}"]
        with (FOLDER / f"{name}.log").open("w") as log:
            subprocess.run(
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=FOLDER, env=env, stdout=log, stderr=log, timeout=LONGEST, check=False,
            )  # fmt: skip
    return {_name_of(case): _outcome_of(case) for case in ET.parse(report).iter("testcase")}


def _name_of(case: ET.Element) -> str:
    module, _, group = case.attrib["classname"].partition(".test_")[2].partition(".")
    return f"t/integration/test_{module}.py::{f'{group}::' if group else ''}{case.attrib['name']}"


def _outcome_of(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def main() -> int:
    fetch()
    with ThreadPoolExecutor() as pool:
        plain, once = pool.map(run, BASES, [FILES] * len(BASES))
    print(f"Celery {celery.__version__}, of {len(plain)} tests pass:")
    for name, found in (("plain tasks", plain), ("OnceTask", once)):
        print(f"  {list(found.values()).count('passed'):4} with {name}")
    lost = [test for test, outcome in plain.items() if outcome == "passed" and once.get(test) == "failed"]
    lost += [test for test in plain if test not in once]
    for _ in range(AGAIN):
        if lost:
            print(f"once more, {len(lost)}: {', '.join(lost)}")
            again = run("once", lost)
            lost = [test for test in lost if again.get(test) != "passed"]
    for test in lost:
        print(f"fails with OnceTask alone: {test}")
    return 1 if lost or "passed" not in plain.values() else 0


if __name__ == "__main__":
    sys.exit(main())
