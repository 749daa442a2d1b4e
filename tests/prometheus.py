"""A real Prometheus that scrapes real exporters, and faults recorded as the series by which promtool tests alert rules.

A :class:`Recording` is made of looks at ``/metrics``. A phase is what an exporter told one look after another, and then
goes on telling for PHASE minutes: so an alert that waits for half an hour is tested with what a few seconds showed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import yaml
from needs import need
from prometheus_client.parser import text_string_to_metric_families
from servers import ServerError, _Server

if TYPE_CHECKING:
    from typing_extensions import Self

#: Minutes that a phase of a recording lasts: longer than any rule waits or looks back.
PHASE = 40
#: Seconds from one look to the next, as promtool is told.
_BETWEEN = 15
_LOOKS = PHASE * 60 // _BETWEEN

_Look = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


class _Monitor(_Server):
    """A program of Prometheus' on the loopback."""

    name: str

    def __repr__(self) -> str:
        return f"<{self.name} on port {self.port}>"

    @classmethod
    def start(cls, *given: Any) -> Self:
        """A running server on a free port."""
        need(cls.name)
        return cls(*given)._launched()

    def _options(self) -> dict[str, object]:
        raise NotImplementedError

    def _launch(self) -> None:
        address = f"127.0.0.1:{self.port}"
        options = {"log.level": "warn", "web.listen-address": address, **self._options()}
        self._spawn([str(need(self.name)), *(f"--{name}={value}" for name, value in options.items())], {**os.environ})
        self._wait_until_answers()

    def _answers(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5):
                return self.alive
        except (URLError, ConnectionError, TimeoutError):
            return False


class PrometheusServer(_Monitor):
    """A Prometheus on the loopback that scrapes ``targets``, each ``host:port``, once a second."""

    name = "prometheus"

    def __init__(self, *targets: str) -> None:
        super().__init__()
        job = {"job_name": "once", "static_configs": [{"targets": [*targets]}]}
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}
        (self.directory / "prometheus.yml").write_text(json.dumps(config))

    def _options(self) -> dict[str, object]:
        return {"config.file": "prometheus.yml", "storage.tsdb.path": "data"}

    def query(self, query: str) -> list[dict[str, Any]]:
        """What it answers: of each series ``metric``, its labels, and ``value``, an instant and a text."""
        address = f"http://127.0.0.1:{self.port}/api/v1/query?{urlencode({'query': query})}"
        try:
            with urlopen(address, timeout=30) as answer:
                said = json.load(answer)
        except URLError as exc:
            raise ServerError(f"{query}: {exc.read().decode() if hasattr(exc, 'read') else exc}") from exc
        found: list[dict[str, Any]] = said["data"]["result"]
        return found

    def values(self, query: str) -> dict[str, float]:
        """The numbers by the label ``entry``; '' where there is none."""
        return {found["metric"].get("entry", ""): float(found["value"][1]) for found in self.query(query)}


class AlertmanagerServer(_Monitor):
    """An Alertmanager on the loopback with this configuration."""

    name = "alertmanager"

    def __init__(self, config: Path) -> None:
        super().__init__()
        self._config = config

    def _options(self) -> dict[str, object]:
        return {"config.file": self._config, "storage.path": "data", "cluster.listen-address": ""}

    def heard(self, *alerts: Mapping[str, str]) -> set[str]:
        """Fire alerts with these labels; returns the names of those about which somebody is told."""
        address = f"http://127.0.0.1:{self.port}/api/v2/alerts"
        told = json.dumps([{"labels": labels} for labels in alerts]).encode()
        with urlopen(Request(address, told, {"Content-Type": "application/json"}), timeout=30):
            pass
        with urlopen(address + "?inhibited=false", timeout=30) as answer:
            return {alert["labels"]["alertname"] for alert in json.load(answer)}


def tell(text: str) -> _Look:
    """What one look told, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@dataclass
class Recording:
    """What an exporter told during a fault: phases, each of some looks."""

    directory: Path
    phases: list[list[_Look]] = field(default_factory=list)

    def phase(self, *texts: str) -> None:
        """Add a phase of these looks; '' where the exporter didn't answer."""
        assert texts
        self.phases.append([tell(text) for text in texts])

    def check(self, rule: Mapping[str, Any], expected: Mapping[tuple[int, float], Sequence[Mapping[str, str]]]) -> None:
        """Let promtool say when an alert fires: of each (phase, minutes in it) labels, and ``summary``, as shown."""
        rules = self.directory / "rules.yml"
        rules.write_text(json.dumps({"groups": [{"name": "one", "rules": [rule]}]}))
        test = {
            "rule_files": [rules.name],
            "evaluation_interval": f"{_BETWEEN}s",
            "tests": [
                {
                    "interval": f"{_BETWEEN}s",
                    "input_series": self._series(),
                    "alert_rule_test": [
                        {
                            "eval_time": f"{round((phase * PHASE + minutes) * 60)}s",
                            "alertname": rule["alert"],
                            "exp_alerts": [_alert(rule, alert) for alert in alerts],
                        }
                        for (phase, minutes), alerts in expected.items()
                    ],
                }
            ],
        }
        path = self.directory / "test.yml"
        path.write_text(yaml.safe_dump(test, allow_unicode=True))
        done = subprocess.run(
            [need("promtool"), "test", "rules", path], cwd=self.directory, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _series(self) -> list[dict[str, str]]:
        looks = [look for phase in self.phases for look in (*phase, *[phase[-1]] * (_LOOKS - len(phase)))]
        found = []
        for key in dict.fromkeys(key for look in looks for key in look):
            values = [look.get(key) for look in looks]
            # A series that a scrape doesn't have any more is over, as Prometheus writes it.
            words = [
                str(value) if value is not None else "stale" if before is not None else "_"
                for before, value in zip([None, *values], values, strict=False)
            ]
            name, labels = key
            given = ",".join(f"{label}={json.dumps(value, ensure_ascii=False)}" for label, value in sorted(labels))
            found.append({"series": f"{name}{{{given}}}", "values": " ".join(words)})
        return found


def _alert(rule: Mapping[str, Any], expected: Mapping[str, str]) -> dict[str, Any]:
    labels = {**rule["labels"], **expected}
    summary = {"summary": labels.pop("summary")}
    return {"exp_labels": labels, "exp_annotations": {**rule["annotations"], **summary}}
