"""``make failover KILLS=50``: so many kills of each kind, a table, and the report ``docs/reports/failover.md``.

``python -m failover --kills 50 --jobs 2 --seed 1``, with ``tests`` on the path.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from failover.topology import KINDS
from failover.trial import MOMENTS, Figures, Trial
from pages import machine, row, table
from processes import Processes
from servers import find_servers

ROOT = Path(__file__).resolve().parents[2]
CASES = [(kind, wait, moment) for moment in MOMENTS for wait in (0, 1) for kind in KINDS]


def run_one(case: tuple[str, int, str], kills: int, seed: int) -> Figures:
    kind, wait, moment = case
    with tempfile.TemporaryDirectory(prefix="once-failover-") as name, contextlib.suppress(FileNotFoundError):
        directory = Path(name)
        with Processes(directory) as procs:
            trial = Trial(
                kind, wait, moment, procs=procs, directory=directory, binary=find_servers()["valkey"], seed=seed
            )
            return trial.run(kills)
    raise AssertionError("unreachable")


def broken(figures: Figures) -> list[str]:
    """What of the promise this trial broke; with wait_replicas=0 a failover may let a window run twice."""
    names = ["acted_on", "lost", "uneven", "tracebacks"]
    if figures.wait_replicas:
        names += ["claimed_twice", "finished_twice", "recorded_twice"]
    found = [f"{name} {getattr(figures, name)}" for name in names if getattr(figures, name)]
    if figures.moment == "attaching" and not figures.wait_replicas and not figures.claimed_twice:
        found.append("nothing claimed twice: the check isn't shown to be able to fail")
    return found


HEAD = [
    "killed during", "Redis", "wait_replicas", "kills", "windows", "claims", "uncertain", "acted on without leave",
    "claimed twice", "by so many kills", "finished twice", "lost", "law uneven",
    "claims went on after (s): median", "max",
]  # fmt: skip


def cells(figures: Figures) -> list[object]:
    f = figures
    found = (f.uncertain, f.acted_on, f.claimed_twice, f.kills_that_doubled, f.finished_twice, f.lost, f.uneven)
    seconds = (f"{statistics.median(f.seconds):.1f}", f"{max(f.seconds):.1f}")
    return [f.moment, f.topology, f.wait_replicas, f.kills, f.windows, f.claims, *found, *seconds]


def report(results: list[Figures], kills: int, seed: int) -> str:
    binary = find_servers()["valkey"]
    server = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.split(" sha")[0]
    said = sum(figures.said_away for figures in results)
    killed = sum(figures.kills for figures in results)
    about = (
        f"`make failover KILLS={kills} SEED={seed}`, {machine('celery-once-beat')}: {server}. Sentinel: three "
        "sentinels, a master, a replica. Cluster: three masters, each with a replica. All are real processes, a "
        "master is dead for the others after 1.5 s of silence, and what was killed comes back empty, as a replica of "
        "the new master."
    )
    return f"""# Failover: masters killed under load

{textwrap.fill(about, 118)}

{table(HEAD, map(cells, results), 2)}

- Two beats, two workers with four processes each, eight entries that are due every second, bodies of 0.4 s.
  *executions*: the master dies while one runs. *attaching*: while its replica, cut off, still copies it.
- *windows* are those that the schedules define between the first and the last cursor. *uncertain*: a process was told
  that fewer replicas than `wait_replicas` have its write. *acted on without leave*: a message published without an
  answer Claimed or Taken since the last, or a body run without Begun. *law uneven*: entries whose windows aren't the
  sum of their outcomes.
- *claims went on* after the master's death includes that it is found dead, and with `wait_replicas` 1 also that the
  killed server is back as a replica: nothing is certain before.
- The two beats said {said} times in {killed} kills that Redis can't be used; no process ended, no log has a traceback.
- With `wait_replicas` 0 a failover takes back what the replica hadn't got: those windows are claimed and executed a
  second time. None is lost, and the law holds: what is left is an earlier state of the store, as a whole.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="failover")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="0: another each time")
    parser.add_argument("--report", type=Path, default=ROOT / "docs/reports/failover.md")
    given = parser.parse_args()
    seed = given.seed or random.SystemRandom().randrange(1, 10**6)
    print(f"seed {seed}, {given.kills} kills of each of {len(CASES)} kinds\n\n{table(HEAD, [], 2)}", flush=True)
    results: dict[int, Figures] = {}
    failed = False
    with ProcessPoolExecutor(given.jobs) as pool:
        running = {pool.submit(run_one, case, given.kills, seed + n): n for n, case in enumerate(CASES)}
        for future in as_completed(running):
            case = CASES[running[future]]
            try:
                figures = results[running[future]] = future.result()
            except Exception:  # noqa: BLE001  # the others go on
                failed = True
                print(f"{case}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
                continue
            print(row(cells(figures)), *broken(figures), flush=True)
            failed |= bool(broken(figures))
    if len(results) == len(CASES):
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(report([results[n] for n in sorted(results)], given.kills, seed))
        print(f"\n{given.report}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
