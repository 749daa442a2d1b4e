"""docs/kubernetes.md and docs/systemd.md: what they show is valid, and its commands and probes do what they say."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import kubernetes_validate
import pytest
import yaml
from doc_pages import Block, blocks_of, the_block
from needs import need
from processes import Proc, Processes, wait_until
from servers import RedisServer, free_port

KUBERNETES = "docs/kubernetes.md"
SYSTEMD = "docs/systemd.md"
UNITS = ["celery-beat.service", "celery-worker@.service"]

#: As long as a pod's may be; a container has it as its host's name, and in HOSTNAME.
POD = "beat-of-a-project-with-a-long-name-in-staging-02-7d4b9c6f5d-x2x"
assert len(POD) == 63

APP = """\
from celery import Celery
from celery_once_beat import OnceTask

app = Celery("proj", task_cls=OnceTask)
app.conf.beat_schedule = {"tick": {"task": "proj.tick", "schedule": 1.0}}


@app.task
def tick():
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An image's working directory: an app that finds its broker by the environment alone."""
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / "proj.py").write_text(APP)
    return folder


class Machine:
    """Where the page's commands run: the app, and an environment with the programs of this interpreter."""

    def __init__(self, procs: Processes, folder: Path, url: str) -> None:
        self.procs = procs
        self.folder = folder
        self.env = {
            "CELERY_BROKER_URL": url,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(folder),
        }

    def start(self, command: list[str], name: str, cwd: str | None = None, **env: str) -> Proc:
        ready = r"beat: Starting| ready\.$"
        return self.procs.start(
            command, name=name, env={**self.env, **env}, ready=ready, cwd=cwd, host=env.get("HOSTNAME", POD)
        )

    def status(self, command: list[str], **env: str) -> int:
        proc = self.start(command, "probe", **env)
        try:
            return proc.wait(60)
        finally:
            proc.end()


@pytest.fixture
def machine(procs: Processes, folder: Path, redis_url: str) -> Machine:
    return Machine(procs, folder, redis_url)


def wait_for_windows(worker: Proc) -> None:
    worker.wait_log(r"Task proj\.tick\[\S+\] succeeded", 60)


# ------------------------------------------------------------------------------------------------ Kubernetes


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], dict[str, Any]]:
    """The manifests by kind and name."""
    found = list(yaml.safe_load_all(the_block(KUBERNETES, "celery.yaml").text))
    return {(found["kind"], found["metadata"]["name"]): found for found in found}


def container(objects: dict[tuple[str, str], dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = objects["Deployment", name]["spec"]["template"]["spec"]["containers"]
    return found


def env_of(objects: dict[tuple[str, str], dict[str, Any]], name: str) -> dict[str, str]:
    """A container's environment, each value looked up in the secret that it names."""
    found = {}
    for variable in container(objects, name)["env"]:
        ref = variable["valueFrom"]["secretKeyRef"]
        found[variable["name"]] = objects["Secret", ref["name"]]["stringData"][ref["key"]]
    return found


def test_the_manifests_are_valid(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    """By Kubernetes' own schema, with no field that it doesn't know; and labels that find what they are to find."""
    assert Counter(kind for kind, _ in objects) == {"Secret": 1, "Deployment": 2, "PodDisruptionBudget": 2}
    newest = kubernetes_validate.latest_version()
    for found in objects.values():
        kubernetes_validate.validate(found, newest, strict=True)
    for name in ("beat", "worker"):
        spec = objects["Deployment", name]["spec"]
        assert spec["replicas"] == 2
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == labels
        assert objects["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"] == labels
    (spread,) = objects["Deployment", "beat"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == {"app": "beat"}


def test_a_field_that_kubernetes_does_not_know_is_found(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    """The check isn't an empty one."""
    wrong = yaml.safe_load(yaml.safe_dump(objects["Deployment", "beat"]))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenessProb"):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_pods_commands_and_probes(objects: dict[tuple[str, str], dict[str, Any]], machine: Machine) -> None:
    """Beat and worker run by their commands; each probe says what the page says, also with Redis away."""
    beat, worker = container(objects, "beat"), container(objects, "worker")
    for name in ("beat", "worker"):
        assert set(env_of(objects, name)) <= set(machine.env)  # what is set here is what is set there
    probes = {name: beat[f"{name}Probe"]["exec"]["command"] for name in ("readiness", "liveness")}
    assert "livenessProbe" not in worker

    workers = machine.start(worker["command"], "worker").wait_ready()
    beats = machine.start(beat["command"], "beat").wait_ready()
    wait_for_windows(workers)
    assert machine.status(probes["readiness"]) == 0
    assert machine.status(probes["liveness"]) == 0
    answers = worker["readinessProbe"]["exec"]["command"]
    wait_until(lambda: machine.status(answers) == 0, "the worker answers in the probe's five seconds", 120)
    assert machine.status(probes["readiness"], HOSTNAME="another-pod") == 1

    away = f"redis://127.0.0.1:{free_port()}/0"
    assert machine.status(probes["readiness"], CELERY_BROKER_URL=away) == os.EX_UNAVAILABLE
    assert machine.status(probes["liveness"], CELERY_BROKER_URL=away) == 0, "no reason to restart a beat"

    for proc in (beats, workers):
        proc.terminate()
        assert proc.wait(60) == 0
    assert machine.status(probes["liveness"]) == 1, "it has ended"


def test_a_probe_has_the_time_that_it_needs(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    """A Python that starts on a busy machine; and a beat isn't looked for before it can have said that it lives."""
    for name in ("beat", "worker"):
        for kind in ("readinessProbe", "livenessProbe"):
            probe = container(objects, name).get(kind)
            if probe:
                assert probe["timeoutSeconds"] >= 15
                assert probe["periodSeconds"] >= probe["timeoutSeconds"]
                assert probe["initialDelaySeconds"] >= 5


def test_the_pod_that_prometheus_scrapes(machine: Machine) -> None:
    """Its manifests are valid, name one port, and its command answers on it without a token."""
    found = {one["kind"]: one for one in yaml.safe_load_all(the_block(KUBERNETES, "metrics.yaml").text)}
    for one in found.values():
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    spec, policy = found["Deployment"]["spec"], found["NetworkPolicy"]["spec"]
    (pod,) = spec["template"]["spec"]["containers"]
    (port,) = pod["ports"]
    assert spec["replicas"] == 1
    assert spec["selector"] == policy["podSelector"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert [one["port"] for rule in policy["ingress"] for one in rule["ports"]] == [port["name"]]
    assert {pod[f"{kind}Probe"]["tcpSocket"]["port"] for kind in ("readiness", "liveness")} == {port["name"]}
    number = str(port["containerPort"])
    assert spec["template"]["metadata"]["annotations"]["prometheus.io/port"] == number
    # Nothing of the tests listens for others.
    here = {"0.0.0.0": "127.0.0.1", number: str(free_port())}
    assert set(here) <= set(pod["command"])
    proc = machine.start([here.get(word, word) for word in pod["command"]], "metrics")
    url = proc.wait_log(r"the metrics are at (http://127\.0\.0\.1:\d+/metrics)")[1]
    with urlopen(url, timeout=30) as answer:
        assert b"celery_once_beat_store_up 1.0" in answer.read()
    proc.terminate()
    assert proc.wait(60) == 0


# --------------------------------------------------------------------------------------------------- systemd


def unit_of(name: str) -> Block:
    return the_block(SYSTEMD, f"/etc/systemd/system/{name}")


@pytest.fixture
def units(tmp_path: Path, folder: Path) -> dict[str, configparser.ConfigParser]:
    """The units as files, with this machine's program and folder; read as INI files."""
    found = {}
    for name in UNITS:
        text = unit_of(name).text
        assert text.count("/srv/proj/venv/bin/celery") == 1
        assert text.count("WorkingDirectory=/srv/proj\n") == 1
        text = text.replace("/srv/proj/venv/bin/celery", str(Path(sys.executable).with_name("celery")))
        text = text.replace("=/srv/proj\n", f"={folder}\n").replace("=-/etc/proj.env", f"=-{tmp_path}/proj.env")
        (tmp_path / name).write_text(text)
        found[name] = configparser.ConfigParser(interpolation=None, strict=True)
        found[name].optionxform = str
        found[name].read_string(text)
    (tmp_path / "proj.env").write_text(the_block(SYSTEMD, "/etc/proj.env").text)
    return found


def test_the_units_are_valid(units: dict[str, configparser.ConfigParser], tmp_path: Path) -> None:
    """The machine's systemd finds no fault, where it is there; a misspelt setting it would name."""
    for unit in units.values():
        assert set(unit) == {"DEFAULT", "Unit", "Service", "Install"}
        assert unit["Service"]["Type"] == "exec"
        assert unit["Service"]["RestartPreventExitStatus"] == str(os.EX_CONFIG)
    analyze = need("systemd-analyze")
    wrong = tmp_path / "wrong.service"
    wrong.write_text((tmp_path / UNITS[0]).read_text().replace("Restart=", "Restrat="))

    def verify(name: str) -> str:
        command = [analyze, "verify", "--man=no", str(tmp_path / name)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        said = [line for line in (done.stdout + done.stderr).splitlines() if str(tmp_path) in line or name in line]
        return "\n".join(said)

    assert "Restrat" in verify("wrong.service")
    for name in UNITS:
        assert verify(name) == "", name


def test_the_units_commands(
    units: dict[str, configparser.ConfigParser], machine: Machine, redis_server: RedisServer, tmp_path: Path
) -> None:
    """One beat and the two workers of the page run by their units, with the file's environment, and end by SIGTERM."""
    text = (tmp_path / "proj.env").read_text().replace("redis.example:6379", f"127.0.0.1:{redis_server.port}")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    machine.env.update(line.split("=", 1) for line in lines)
    assert machine.env["CELERY_BROKER_URL"] == redis_server.url()
    (commands,) = [block for block in blocks_of(SYSTEMD) if block.not_run]
    enabled = commands.text.splitlines()[0].split()[4:]
    names = Counter(re.sub("@.*", "@", name) for name in enabled)
    assert names == {"celery-beat": 1, "celery-worker@": 2}

    procs = {}
    for name in enabled:
        template, _, instance = name.partition("@")
        unit = units[f"{template}{'@' if instance else ''}.service"]["Service"]
        command = shlex.split(unit["ExecStart"].replace("%i", instance).replace("%%", "%"))
        procs[name] = machine.start(command, name, cwd=unit["WorkingDirectory"])
    beat, one, two = (procs[name].wait_ready() for name in enabled)
    assert f"one@{POD} ready" in one.log
    assert f"two@{POD} ready" in two.log
    wait_until(lambda: "succeeded" in one.log + two.log, "a window is executed", 60)
    for proc in (beat, one, two):
        proc.terminate()
        assert proc.wait(60) == 0
    written = {path.name for path in machine.folder.iterdir()}
    assert written <= {"proj.py", "__pycache__"}, "beats and workers write no file"
