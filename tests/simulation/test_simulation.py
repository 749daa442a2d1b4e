"""The simulation runs the same way each time, strikes as it says, and sees a rule of the protocol that is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from needs import need
from simulation.ablations import ABLATIONS, SURVIVORS

TESTS = Path(__file__).parents[1]
KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))


def simulate(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    need("gcc")
    return subprocess.run(
        [sys.executable, "-m", "simulation", *map(str, arguments)], cwd=TESTS, env={**os.environ, **env},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def told(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def digest(run: subprocess.CompletedProcess[str]) -> str:
    return told(run).splitlines()[-1]


@pytest.mark.long
def test_one_seed_is_one_run(tmp_path: Path) -> None:
    """The same seed gives the same history to the byte; another one gives another."""
    one, other = tmp_path / "one", tmp_path / "other"
    first = digest(simulate("--seed", 7, "--episode", 0, "--history", one, PYTHONHASHSEED="1"))
    again = digest(simulate("--seed", 7, "--episode", 0, "--history", other, PYTHONHASHSEED="2", TZ="Asia/Tokyo"))
    assert first == again
    assert one.read_bytes() == other.read_bytes()
    assert digest(simulate("--seed", 8, "--episode", 0)) != first


@pytest.mark.long
def test_nothing_of_an_episode_is_left_to_the_next(tmp_path: Path) -> None:
    """An episode runs the same by itself and behind others: so it can be shrunk."""
    behind, alone = tmp_path / "behind", tmp_path / "alone"
    # A worker of the first dies with an end that waits; one of the second gets its process id.
    digest(simulate("--seed", 7, "--first", 2, "--windows", 400, "--history", behind))
    digest(simulate("--seed", 7, "--episode", 3, "--history", alone))
    second = [at for at, line in enumerate(behind.read_text().splitlines()) if '"what": "settings"' in line][1]
    assert behind.read_text().splitlines()[second:] == alone.read_text().splitlines()


@pytest.mark.long
def test_two_processes_play_what_one_plays() -> None:
    """The digest doesn't depend on how many cores play."""
    one = digest(simulate("--seed", 5, "--windows", 400))
    assert digest(simulate("--seed", 5, "--windows", 400, "--cores", 2)) == one


@pytest.mark.parametrize("rule", ["fence", "renew-extends", "limit-counts", "close-counts"])
@pytest.mark.long
def test_a_rule_that_is_missing_is_seen(rule: str) -> None:
    """Without a rule of the protocol the simulation fails; the table of all is docs/reports/simulation.md."""
    run = simulate("--seed", 1, "--windows", 5000, "--until-wrong", "--without", rule)
    assert run.returncode == 1, run.stdout + run.stderr
    assert any(line.startswith("seed 1, episode ") for line in run.stdout.splitlines())


@pytest.mark.long
def test_the_model_goes_along() -> None:
    """With ``--model`` each answer of the store is held against the model: a verb that says otherwise is named."""
    run = simulate("--seed", 1, "--episode", 0, "--model", "--without", "confirm-moves")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "seed 1, episode 0: model: " in run.stdout
    assert "histories that the model allows " in told(simulate("--seed", 1, "--episode", 0, "--model"))


def test_every_ablation_changes_what_it_says() -> None:
    """There are thirty at least, and those that survive are among them."""
    assert len(ABLATIONS) >= 30
    assert ABLATIONS.keys() > SURVIVORS.keys()
    package = TESTS.parent / "celery_once_beat"
    for name, ablation in ABLATIONS.items():
        for file, old, new in ablation.changes:
            assert (package / file).read_text().count(old) == 1, f"{name}: {file} doesn't hold {old!r} once"
            assert old != new, name


def test_the_report_has_each_rule_and_each_kept_plan() -> None:
    """A rule or a plan that is new stands in the report, and none that is gone does."""
    report = (TESTS.parent / "docs" / "reports" / "simulation.md").read_text()

    def rows(header: str) -> list[list[str]]:
        lines = report.partition(header)[2].partition("\n\n")[0].splitlines()[2:]
        return [line.strip("| ").split(" | ") for line in lines]

    found = {ablation.rule for name, ablation in ABLATIONS.items() if name not in SURVIVORS}
    survive = {(ABLATIONS[name].rule, survivor.why) for name, survivor in SURVIVORS.items()}
    assert {row[0] for row in rows("| rule | found by |")} == found
    assert {(row[0], row[1]) for row in rows("| rule | why the simulation bears it |")} == survive
    assert f"Without {len(found)} of the {len(ABLATIONS)} rules the simulation fails" in report
    assert {row[0] for row in rows("| kept as |")} == {f"`{plan.name}`" for plan in KEPT}


@pytest.mark.long
@pytest.mark.parametrize("rule", [rule for rule, survivor in SURVIVORS.items() if survivor.seen_by])
def test_what_the_simulation_bears_another_test_sees(rule: str) -> None:
    """Where the simulation doesn't need a rule, a test of the verbs or of beat does."""
    package = TESTS.parent / "celery_once_beat"
    run = (
        "import pathlib, sys, pytest; sys.path.insert(0, '.'); from simulation.ablations import take_out; "
        "take_out(sys.argv[1], pathlib.Path(sys.argv[2])); "
        "sys.exit(pytest.main(['-q', '-x', '-p', 'no:xdist', '-p', 'no:cacheprovider', '-m', '', sys.argv[3]]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", run, rule, package, SURVIVORS[rule].seen_by], cwd=TESTS, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout + ran.stderr


@pytest.mark.long
def test_two_thousand_windows_and_the_model() -> None:
    """Under faults no window is lost, late without a reason or done twice, and the store answers as the model does."""
    told(simulate("--seed", 7, "--windows", 2000, "--model"))


@pytest.mark.long
def test_what_was_found_once_stays_mended() -> None:
    """Shrunk histories of faults that were mended; each was seen to fail before. What is printed counts them from 0."""
    run = simulate("--plan", *KEPT)
    assert run.returncode == 0, f"{[plan.name for plan in KEPT]}\n{run.stdout}{run.stderr}"


@pytest.mark.long
def test_a_plan_that_fails_is_made_smaller(tmp_path: Path) -> None:
    """What is left of it fails in the same way, and needs a few faults instead of dozens."""
    small = tmp_path / "small.json"
    told(simulate("--seed", 1, "--episode", 0, "--without", "renew-extends", "--shrink", small))
    plan = json.loads(small.read_text())
    assert len(plan["faults"]) < 3
    assert len(plan["entries"]) < 3
    assert simulate("--plan", small, "--without", "renew-extends").returncode == 1
    told(simulate("--plan", small))


@pytest.mark.long
def test_faults_strike_everywhere() -> None:
    """Each kind of fault occurs, and most verbs are struck in every way; what wasn't is named."""
    lines = told(simulate("--seed", 3, "--windows", 5000)).splitlines()
    said = {line.partition(": ")[0]: line.partition(": ")[2] for line in lines}
    for kind in (
        "beat killed", "worker killed", "child killed", "stopped", "frozen", "suspended", "asleep",
        "frozen until its lease ends", "frozen while its child dies", "cut off behind a renewal",
        "request lost", "request late", "reply lost", "reply late", "store away",
        "broker away", "cut off from the store", "cut off from the broker", "failover", "scripts forgotten", "clock",
        "message lost", "message twice", "message late", "message overtakes", "queue purged", "edit: set",
        "edit: delete", "edit: pause", "edit: resume", "edit: backfill", "edit: abandon", "visibility timeout",
    ):  # fmt: skip
        assert f"{kind} " in said["happened"], kind
    assert len(said["never reached"].split(", ")) < 50
