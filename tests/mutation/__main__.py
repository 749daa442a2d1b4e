"""``make mutants``: small changes of the pure core and of the Lua, and whether a test fails of each.

``python -m mutation --only lua --seed 7 --sample 200``, with ``tests`` on the path; with ``--at claim.lua:57`` or
``--at rules/starts.py`` those of a line or a file. Verdicts are kept in ``build/mutants-*.jsonl``: run again, it goes
on where it stopped, and tries once more what survived or took too long. Without these files it begins anew.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path

import pytest

from .trial import Mutant, Part, Trial, Verdict

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "celery_once_beat"
#: How many in a hundred have to be found, and what isn't found.
ENOUGH = 90
ALIVE = ("survived", "unreached")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mutation")
    parser.add_argument("--only", choices=["python", "lua"])
    parser.add_argument("--seed", type=int, default=1, help="of the sample and of the order")
    parser.add_argument("--sample", type=int, help="so many of each part; else all")
    parser.add_argument("--at", nargs="*", default=[], help="files, or file:line")
    asked = parser.parse_args()
    if asked.only is None:  # each in a process of its own: they import another package
        command = [sys.executable, "-m", "mutation", *sys.argv[1:], "--only"]
        sys.exit(max([subprocess.run([*command, part], check=False).returncode for part in ("python", "lua")]))
    os.chdir(ROOT)
    os.environ["CI"] = "1"  # the tests' random examples are the same each time
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="once-mutants-") as folder:
        part, tests, mutants = _python(Path(folder)) if asked.only == "python" else _lua(Path(folder))
        random.Random(asked.seed).shuffle(mutants)
        chosen = mutants[: asked.sample]
        if asked.at:
            chosen = [each for each in mutants if {each.path, f"{each.path}:{each.line}"} & set(asked.at)]
        print(f"{asked.only}: {len(mutants)} mutants, of which {len(chosen)} are tried", flush=True)
        if not _try(asked.only, part, tests, chosen):
            sys.exit(f"found less than {ENOUGH} % of them")


def _python(folder: Path) -> tuple[Part, list[str], list[Mutant]]:
    from . import python

    return python.Python(), python.TESTS, python.mutants(PACKAGE, folder)


def _lua(folder: Path) -> tuple[Part, list[str], list[Mutant]]:
    from . import lua

    return lua.Lua(folder, PACKAGE), lua.TESTS, lua.mutants(PACKAGE)


def _try(name: str, part: Part, tests: list[str], mutants: list[Mutant]) -> bool:
    """Whether enough of them are found."""
    kept = ROOT / "build" / f"mutants-{name}.jsonl"
    lines = kept.read_text().splitlines() if kept.exists() else []
    verdicts = {_key(verdict): verdict for verdict in (Verdict(**json.loads(line)) for line in lines)}
    done = {key for key, verdict in verdicts.items() if verdict.status not in (*ALIVE, "timeout")}
    left = [each for each in mutants if _key(each) not in done]
    with kept.open("a") as file:

        def write(verdict: Verdict) -> None:
            verdicts[_key(verdict)] = verdict
            file.write(json.dumps(asdict(verdict)) + "\n")
            file.flush()
            print(f"{verdict.status:9} {verdict.seconds:6.1f} s  {_shown(verdict)}  {verdict.by}", flush=True)

        arguments = ["-q", "-s", "--tb=no", "-p", "no:xdist", "-p", "no:cacheprovider", *tests]
        known = ROOT / "build" / f"mutants-{name}-tests.json"
        changed = max(path.stat().st_mtime for path in PACKAGE.rglob("*") if path.suffix in (".py", ".lua"))
        if left:
            pytest.main(arguments, plugins=[Trial(part, left, known, changed, write)])
    of_file: defaultdict[str, Counter[str]] = defaultdict(Counter)
    tried = [verdicts[_key(each)] for each in mutants if _key(each) in verdicts]
    for verdict in tried:
        for path in (verdict.path, "all"):
            of_file[path][verdict.status] += 1
    print(
        "\nalive:", *(f"{verdict.status:9} {_shown(verdict)}" for verdict in tried if verdict.status in ALIVE), sep="\n"
    )
    score = 0.0
    for path, found in sorted(of_file.items(), key=lambda each: (each[0] == "all", each)):
        dead, alive = found["killed"], sum(found[status] for status in ALIVE)
        score = 100 * dead / max(dead + alive, 1)
        print(f"{path}: {dead} of {dead + alive}, {score:.1f} %, {dict(found)}")
    return score >= ENOUGH


def _key(each: Mutant | Verdict) -> tuple[str, int, str, str]:
    return each.path, each.line, each.was, each.now


def _shown(each: Verdict) -> str:
    return f"{each.path}:{each.line}  {each.was.strip()}  =>  {each.now.strip()}"


if __name__ == "__main__":
    main()
