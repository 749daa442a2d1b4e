"""What Prometheus is asked: whether a query parses, and asks for what there is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from promql_parser import Expr, VectorSelector, parse, walk

PREFIX = "celery_once_beat_"


def documented_metrics() -> dict[str, list[str]]:
    """The metrics of docs/metrics.md, each with its labels."""
    page = (Path(__file__).resolve().parents[1] / "docs" / "metrics.md").read_text()
    table = page.partition("<!-- metrics -->")[2].partition("<!--")[0]
    return {
        PREFIX + name: re.findall(r"`(\w+)`", labels)
        for names, labels in re.findall(r"^\| (`[^|]*) \| ([^|]*)\|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }


def check_query(query: str, labels: Mapping[str, set[str]]) -> None:
    """``labels``: those of each sample that is told, by its name. A histogram's are those of its buckets too."""
    selectors: list[VectorSelector] = []

    def collect(node: Expr) -> None:
        if isinstance(node, VectorSelector):
            selectors.append(node)

    walk(parse(query), pre_visit=collect)
    assert selectors, f"{query} asks for nothing"
    for selector in selectors:
        assert selector.name in labels, f"{query}: nothing is told of {selector.name}"
        for label in re.findall(r"(\w+)\s*[=!]", str(selector.matchers)):
            assert label in labels[selector.name], f"{query}: {selector.name} has no label {label}"
    known = set.union(*(set(labels[str(selector.name)]) for selector in selectors))
    for grouped in re.findall(r" by \(([^)]*)\)", query):
        for label in re.split(r",\s*", grouped):
            assert label in known, f"{query}: none has a label {label}"
