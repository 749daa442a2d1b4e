"""A real Prometheus reads real exporters; docs/grafana.json asks it for what there is."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until
from prometheus import PrometheusServer
from queries import PREFIX, check_query, documented_metrics
from system import System

pytestmark = pytest.mark.long

DASHBOARD = json.loads((Path(__file__).resolve().parents[2] / "docs" / "grafana.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
WORK = "apps.once_app.work"


def filled_in(query: str) -> str:
    """A query as Grafana sends it."""
    query = query.replace("$entry", ".*").replace("$__rate_interval", "20s")
    assert "$" not in query, query
    return query


def test_every_query_of_the_dashboard_is_answered(system: System, start_redis: Any, request: Any) -> None:
    """Each parses and asks for metrics and labels that are told; Prometheus answers each with numbers."""
    system.use_store(start_redis(args=("--maxmemory", "1gb")))
    system.entries = {
        "tick": {"task": WORK, "every": 1.0},
        "failing": {"task": "apps.once_app.ending", "every": 1.0, "args": ["fails"]},
        "later": {"task": WORK, "every": 7 * 86_400.0},
        "long": {"task": WORK, "every": 7 * 86_400.0, "args": [600]},
        "waiting": {"task": WORK, "every": 1.0, "options": {"queue": "nobody"}},
    }
    system.settings = {"once_beat_start_timeout": 600.0}
    exporter = system.celery("once", "metrics", "--port", "0", name="exporter")
    server = PrometheusServer.start(exporter.wait_log(r"the metrics are at http://(127\.0\.0\.1:\d+)/metrics")[1])
    request.addfinalizer(server.__exit__)
    workers = [system.worker(f"worker{n}").wait_ready() for n in (1, 2)]
    beats = [system.beat(f"beat{n}").wait_ready() for n in (1, 2)]
    assert all(proc.pid for proc in (*workers, *beats))
    system.wait_done(2)
    system.store.set_paused("waiting", paused=True)
    system.once("run", "long")
    system.once("run", "later")
    wait_until(lambda: server.values(f"{PREFIX}windows_apart_total"), "an order is counted apart", 60)
    system.once("run", "later")
    labels: dict[str, set[str]] = {}
    for found in server.query(f'{{__name__=~"{PREFIX}.*"}}'):
        labels.setdefault(found["metric"]["__name__"], set()).update(found["metric"])
    idle = f"{PREFIX}idle_queue_stuck_windows"
    wait_until(lambda: server.query(idle), "nobody begins what is in the queue nobody", 120, every=1.0)
    labels[idle] = {"queue"}
    for query in QUERIES:
        check_query(filled_in(query), labels)

        def answered(query: str = query) -> bool:
            return any(math.isfinite(float(found["value"][1])) for found in server.query(filled_in(query)))

        wait_until(answered, f"a number for {query}", 60, every=0.5)


def test_the_dashboard_can_be_imported() -> None:
    """Panels don't overlap, have ids and descriptions of their own, and ask the Prometheus that the user chooses."""
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert {source["datasource"]["uid"] for source in (panel, *panel["targets"])} == {"${datasource}"}
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEF"[: len(panel["targets"])])
    for one, other in combinations((panel["gridPos"] for panel in everything), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "entry"]


def test_the_dashboard_shows_every_metric() -> None:
    """What is told and nowhere shown would have to be found by its name."""
    shown = " ".join(QUERIES)
    assert {name for name in documented_metrics() if name not in shown} == UNSHOWN


#: Of windows the histograms say more; data is lost rarely, and an alert says so.
UNSHOWN = {
    f"{PREFIX}{name}"
    for name in ("last_window_lateness_seconds", "last_window_duration_seconds", "data_lost_age_seconds")
}
