"""docs/kubernetes.yaml and docs/systemd/: they are valid, and their commands and probes do what the pages say."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import kubernetes_validate
import pytest
import yaml
from doc_pages import DOCS, blocks_of, the_block
from needs import need
from processes import Proc, Processes, wait_until
from read_only import read_only
from servers import free_port

SYSTEMD = "docs/systemd.md"
UNITS = ["celery-beat.service", "celery-worker@.service"]
WATCH = ["celery-beat-watch.service", "celery-beat-watch.timer"]
#: Containers by their Deployments.
CONTAINERS = ["beat", "worker", "once-board"]

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
        #: What is mounted over, or made for it, and may be written to.
        self.run = folder.parent / "run"
        self.run.mkdir()
        self.env = {
            "CELERY_BROKER_URL": url,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(folder),
        }

    def start(self, command: list[str], name: str, cwd: str | None = None, **env: str) -> Proc:
        ready = r"beat: Starting| ready\.$|the board is at "
        command = [part.replace("/run/beat", str(self.run)) for part in command]
        return self.procs.start(
            read_only(command, self.run),
            name=name,
            env={**self.env, **env},
            ready=ready,
            cwd=cwd,
            host=env.get("HOSTNAME", POD),
        )  # fmt: skip

    def status(self, command: list[str], **env: str) -> int:
        proc = self.start(command, "probe", **env)
        try:
            return proc.wait(60)
        finally:
            proc.end()

    @property
    def heartbeat(self) -> Path:
        return self.run / "heartbeat"

    def grow_older(self, seconds: float, *names: str) -> None:
        """Let the heartbeat files be as they are so many seconds later."""
        for name in names:
            at = (self.run / name).stat().st_mtime - seconds
            os.utime(self.run / name, (at, at))


@pytest.fixture
def machine(procs: Processes, folder: Path, redis_url: str) -> Machine:
    return Machine(procs, folder, redis_url)


# ------------------------------------------------------------------------------------------------ Kubernetes


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], dict[str, Any]]:
    """The manifests by kind and name."""
    found = list(yaml.safe_load_all((DOCS / "kubernetes.yaml").read_text()))
    return {(found["kind"], found["metadata"]["name"]): found for found in found}


def container(objects: dict[tuple[str, str], dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = objects["Deployment", name]["spec"]["template"]["spec"]["containers"]
    return found


def env_of(objects: dict[tuple[str, str], dict[str, Any]], name: str) -> dict[str, str]:
    """A container's environment, each value looked up in the secret that it names."""
    found = {}
    for variable in container(objects, name)["env"]:
        if "value" in variable:
            found[variable["name"]] = variable["value"]
        else:
            ref = variable["valueFrom"]["secretKeyRef"]
            found[variable["name"]] = objects["Secret", ref["name"]]["stringData"][ref["key"]]
    return found


def test_the_manifests_are_valid(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    """By Kubernetes' own schema, with no field that it doesn't know; and labels that find what they are to find."""
    kinds = Counter(kind for kind, _ in objects)
    assert kinds == {"Secret": 1, "Deployment": 3, "PodDisruptionBudget": 2, "Service": 1}
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


def check_rights(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    (limited,) = pod["containers"]
    locked = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert limited["securityContext"] == locked
    assert set(limited["resources"]["limits"]) == {"memory"}
    mounted = [mount["name"] for mount in limited.get("volumeMounts", ())]
    assert mounted == [volume["name"] for volume in pod.get("volumes", ()) if "emptyDir" in volume]


def test_a_pod_may_do_what_it_needs_and_no_more(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Each container runs by no root, on a root that is read-only, in so much memory; what is mounted is a folder."""
    for name in CONTAINERS:
        check_rights(objects["Deployment", name]["spec"]["template"]["spec"])
    heartbeat = env_of(objects, "beat")["ONCE_BEAT_HEARTBEAT_FILE"]
    assert [mount["mountPath"] for mount in container(objects, "beat")["volumeMounts"]] == [str(Path(heartbeat).parent)]


def memory_of(proc: Proc) -> int:
    """Bytes that its processes have; what they share counts for each."""
    found = 0
    for pid in proc.members():
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        found += int(fields["VmRSS"].split()[0]) * 1024
    return found


def check_memory(objects: dict[tuple[str, str], dict[str, Any]], name: str, proc: Proc) -> None:
    limit: str = container(objects, name)["resources"]["limits"]["memory"]
    assert memory_of(proc) < int(limit.removesuffix("Mi")) * 1024 * 1024, name


@pytest.mark.long
def test_the_pods_commands_and_probes(objects, machine, start_redis) -> None:
    """Beat and worker run by their commands, in their memory, on a read-only root; probes say what the page says."""
    beat, worker = container(objects, "beat"), container(objects, "worker")
    probes = {name: beat[f"{name}Probe"]["exec"]["command"] for name in ("readiness", "liveness")}
    (block,) = [block for block in blocks_of("docs/cli.md") if block.comment == "probes"]
    shown = [re.sub(r"  +#.*", "", line).replace("'", '"') for line in block.text.splitlines()]
    assert shown[:2] == [command[-1] for command in probes.values()], "the page of commands has the same"
    assert "livenessProbe" not in worker
    redis = start_redis()
    machine.env["CELERY_BROKER_URL"] = redis.url()
    assert set(env_of(objects, "worker")) <= set(machine.env)  # what is set here is what is set there

    assert [mount["mountPath"] for mount in worker["volumeMounts"]] == ["/tmp"]
    workers = machine.start(worker["command"], "worker", TMPDIR=str(machine.run)).wait_ready()
    beats = machine.start(beat["command"], "beat", ONCE_BEAT_HEARTBEAT_FILE=str(machine.heartbeat)).wait_ready()
    workers.wait_log(r"Task proj\.tick\[\S+\] succeeded", 60)
    assert [machine.status(probe) for probe in probes.values()] == [0, 0]
    check_memory(objects, "beat", beats)
    check_memory(objects, "worker", workers)
    answers = worker["readinessProbe"]["exec"]["command"]
    wait_until(lambda: machine.status(answers) == 0, "the worker answers in the probe's five seconds", 120)

    redis.pause()
    beats.wait_log("nothing is claimed until Redis can be used again")
    machine.grow_older(16, "heartbeat")
    assert [machine.status(probe) for probe in probes.values()] == [1, 0], "no reason to restart a beat"
    redis.resume()
    wait_until(lambda: machine.status(probes["readiness"]) == 0, "Redis hears of it again", 60)

    beats.pause()
    machine.grow_older(61, "heartbeat", "heartbeat.ticks")
    assert [machine.status(probe) for probe in probes.values()] == [1, 1], "it hangs"
    beats.resume()
    for proc in (beats, workers):
        proc.terminate()
        assert proc.wait(60) == 0
    assert [machine.status(probe) for probe in probes.values()] == [1, 1], "it has ended"


def test_the_pod_of_board_and_metrics(objects: dict[tuple[str, str], dict[str, Any]], machine: Machine) -> None:
    """It serves both to who has the token, on a read-only root; the service leads to its port."""
    board = container(objects, "once-board")
    env = env_of(objects, "once-board")
    command = board["command"]
    assert command[command.index("--host") + 1] == "0.0.0.0"  # in the pod; here it is the loopback
    here = [word.replace("0.0.0.0", "127.0.0.1") for word in command]
    served = machine.start([*here, "--port", "0"], "board", ONCE_BOARD_TOKEN=env["ONCE_BOARD_TOKEN"]).wait_ready()
    (url,) = re.findall(r"the board is at (http\S+), with its token", served.log)

    def get(path: str, token: str = "") -> tuple[int, str]:
        request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as exc:
            return exc.code, ""

    assert get("/metrics")[0] == 401
    status, text = get("/metrics", env["ONCE_BOARD_TOKEN"])
    assert (status, "celery_once_beat_store_up 1.0" in text) == (200, True)
    assert "<title>" in get("/", env["ONCE_BOARD_TOKEN"])[1]
    check_memory(objects, "once-board", served)
    (port,) = board["ports"]
    (leads,) = objects["Service", "once-board"]["spec"]["ports"]
    assert (port["name"], port["containerPort"]) == (leads["targetPort"], leads["port"])
    assert board["readinessProbe"]["tcpSocket"]["port"] == port["name"]
    labels = objects["Deployment", "once-board"]["spec"]["template"]["metadata"]["labels"]
    assert objects["Service", "once-board"]["spec"]["selector"] == labels


def test_a_probe_has_the_time_that_it_needs(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    """One that starts a Python has time for it on a busy machine, and is rare; the others start none."""
    for name in CONTAINERS:
        for kind in ("readinessProbe", "livenessProbe"):
            probe = container(objects, name).get(kind, {})
            if "celery" in " ".join(probe.get("exec", {}).get("command", ())):
                assert probe["timeoutSeconds"] >= 15
                assert probe["periodSeconds"] >= 60
    assert container(objects, "beat")["livenessProbe"]["initialDelaySeconds"] >= 60, "its first look"


def test_the_pod_that_prometheus_scrapes(machine: Machine) -> None:
    """Its manifests are valid, name one port, and its command answers on it without a token."""
    found = {one["kind"]: one for one in yaml.safe_load_all((DOCS / "kubernetes-metrics.yaml").read_text())}
    for one in found.values():
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    spec, policy = found["Deployment"]["spec"], found["NetworkPolicy"]["spec"]
    (pod,) = spec["template"]["spec"]["containers"]
    (port,) = pod["ports"]
    check_rights(spec["template"]["spec"])
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


@pytest.fixture
def units(tmp_path: Path, folder: Path) -> dict[str, configparser.ConfigParser]:
    """The units as files, with this machine's program and folder; read as INI files."""
    found = {}
    for name in UNITS + WATCH:
        text = (DOCS / "systemd" / name).read_text()
        if name in UNITS:
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
    for name in UNITS:
        unit = units[name]
        assert set(unit) == {"DEFAULT", "Unit", "Service", "Install"}
        assert unit["Service"]["Type"] == "exec"
        assert unit["Service"]["RestartPreventExitStatus"] == str(os.EX_CONFIG)
        assert unit["Service"]["ProtectSystem"] == "strict"
        assert unit["Service"]["NoNewPrivileges"] == "true"
    beat = units["celery-beat.service"]["Service"]
    assert beat["Environment"].startswith(f"ONCE_BEAT_HEARTBEAT_FILE=/run/{beat['RuntimeDirectory']}/")
    assert Path(units["celery-beat-watch.timer"]["Install"]["WantedBy"]) == Path("timers.target")
    analyze = need("systemd-analyze")
    wrong = tmp_path / "wrong.service"
    wrong.write_text((tmp_path / UNITS[0]).read_text().replace("Restart=", "Restrat="))

    def verify(name: str) -> str:
        command = [analyze, "verify", "--man=no", str(tmp_path / name)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        said = [line for line in (done.stdout + done.stderr).splitlines() if str(tmp_path) in line or name in line]
        return "\n".join(said)

    assert "Restrat" in verify("wrong.service")
    for name in UNITS + WATCH:
        assert verify(name) == "", name


@pytest.mark.long
def test_the_units_commands(units, machine, redis_server, tmp_path) -> None:
    """One beat and the two workers of the page run by their units, with the file's environment, and end by SIGTERM."""
    text = (tmp_path / "proj.env").read_text().replace("redis.example:6379", f"127.0.0.1:{redis_server.port}")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    machine.env.update(line.split("=", 1) for line in lines)
    assert machine.env["CELERY_BROKER_URL"] == redis_server.url()
    (commands,) = [block for block in blocks_of(SYSTEMD) if block.not_run]
    enabled = commands.text.splitlines()[0].replace("celery-worker@{one,two}", "celery-worker@one celery-worker@two")
    enabled = [name for name in enabled.split()[4:] if name != "celery-beat-watch.timer"]
    names = Counter(re.sub("@.*", "@", name) for name in enabled)
    assert names == {"celery-beat": 1, "celery-worker@": 2}

    procs = {}
    for name in enabled:
        template, _, instance = name.partition("@")
        unit = units[f"{template}{'@' if instance else ''}.service"]["Service"]
        command = shlex.split(unit["ExecStart"].replace("%i", instance).replace("%%", "%"))
        more = dict(variable.split("=", 1) for variable in unit.get("Environment", "").split())
        more = {key: value.replace("/run/celery-beat", str(machine.run)) for key, value in more.items()}
        assert unit["PrivateTmp"] == "true"
        more["TMPDIR"] = str(machine.run)
        procs[name] = machine.start(command, name, cwd=unit["WorkingDirectory"], **more)
    beat, one, two = (procs[name].wait_ready() for name in enabled)
    assert f"one@{POD} ready" in one.log
    assert f"two@{POD} ready" in two.log
    wait_until(lambda: "succeeded" in one.log + two.log, "a window is executed", 60)

    (probe,) = [block.text for block in blocks_of(SYSTEMD) if block.comment == "probe"]
    hangs = units["celery-beat-watch.service"]["Service"]["ExecCondition"]

    def said() -> list[int]:
        commands = [command.replace("/run/celery-beat", str(machine.run)) for command in (probe, hangs)]
        return [machine.status(["/bin/sh", "-c", command]) for command in commands]

    wait_until(lambda: said() == [0, 1], "Redis has heard of it, and it doesn't hang", 60)
    beat.pause()
    machine.grow_older(61, "heartbeat", "heartbeat.ticks")
    assert said() == [1, 0], "it hangs: it is restarted"
    beat.resume()
    for proc in (beat, one, two):
        proc.terminate()
        assert proc.wait(60) == 0
    written = {path.name for path in machine.folder.iterdir()}
    assert written <= {"proj.py", "__pycache__"}, "beats and workers write no file"
