"""What Prometheus is told: the report of one look, as metrics. Needs the extra ``metrics``.

The counters are the store's own: it doesn't matter which process is asked, or when it started. Labels are bounded: at
most ``entries`` entries have series of their own, the others are summed under OTHERS; outcomes are a fixed set; beats,
whose names change with each start, have no label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from celery_once_beat.outcomes import COUNTED, OTHER
from celery_once_beat.wording import printable

from .report import BeatStatus, EntryStatus, Report

#: Entries with series of their own, unless another number is given.
ENTRIES = 200
#: What the label ``entry`` says of all others.
OTHERS = "(others)"

#: Begins the name of each metric.
_PREFIX = "celery_once_beat_"
_MOST_NAME = 200
#: Queues that have a label.
_MOST_QUEUES = 50
#: Seconds within which a worker has begun something, to be counted.
_RECENT = 300.0
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

#: Name, help, what it is of one entry, and what of several.
_GAUGES: tuple[tuple[str, str, Callable[[EntryStatus], float | None], Callable[[Iterable[float]], float]], ...] = (
    ("open_windows", "Windows that still owe their outcome.", lambda e: e.open, sum),
    ("running_windows", "Windows that a worker executes.", lambda e: e.running, sum),
    (
        "overdue_windows",
        "Windows past their deadline: something that should have happened didn't.",
        lambda e: e.overdue,
        sum,
    ),
    ("paused", "1 where the entry is paused.", lambda e: e.paused, sum),
    ("hung_windows", "Running windows that take far longer than their entry's history.", lambda e: e.hung, sum),
    ("silent_windows", "Running windows whose worker hasn't renewed the lease in time.", lambda e: e.silent, sum),
    (
        "stuck_windows",
        "Windows that no worker began within a minute of their publish.",
        lambda e: e.stuck,
        sum,
    ),
    ("skipped_in_a_row", "Skipped windows in a row, from three on; of others the most.", lambda e: e.skipped, max),
    (
        "oldest_open_window_age_seconds",
        "Since the oldest open window was claimed; of others the largest.",
        lambda e: e.oldest_open,
        max,
    ),
    (
        "oldest_running_window_age_seconds",
        "Since the oldest window that runs began; of others the largest.",
        lambda e: e.oldest_running,
        max,
    ),
    (
        "attention",
        "1 where somebody should look at the entry; 'celery once status' says why.",
        lambda e: bool(e.attention),
        sum,
    ),
    (
        "last_window_lateness_seconds",
        "From the start of the last window that ended to the begin of its last execution; of others the largest.",
        lambda e: e.last.late if e.last else None,
        max,
    ),
    (
        "last_window_duration_seconds",
        "From the begin of that execution to its end; of others the largest.",
        lambda e: e.last.took if e.last else None,
        max,
    ),
    (
        "last_window_start_timestamp_seconds",
        "Start of the last window that ended; of others the oldest.",
        lambda e: _timestamp(e.last.start) if e.last else None,
        min,
    ),
    (
        "next_window_start_timestamp_seconds",
        "Start of the next window; of others the nearest.",
        lambda e: _timestamp(e.next) if e.next else None,
        min,
    ),
)


class OnceCollector(Collector):
    """Metrics of what ``look`` returns: the report of one look, or None where Redis can't be read."""

    def __init__(self, look: Callable[[], Report | None], entries: int = ENTRIES) -> None:
        self._look = look
        self._most = entries

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering it doesn't ask Redis."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Look once, and yield what was seen."""
        report = self._look()
        up = report is not None
        yield _gauge("store_up", "1 where Redis could be read, else 0, and then nothing else is told.", up)
        if report is None:
            return
        yield _gauge("store_latency_seconds", "Seconds of one round trip to Redis.", report.latency)
        yield from _beats(report.beats)
        yield from _workers(report)
        yield from _entries(report.entries, self._most)


def expose(report: Report | None, accept: str = "", entries: int = ENTRIES) -> tuple[str, bytes]:
    """Return content type and text of the metrics of one look, in the form that ``accept``, an HTTP header, asks for.

    ``report`` None: Redis couldn't be read.
    """
    registry = CollectorRegistry()
    registry.register(OnceCollector(lambda: report, entries))
    encode, content_type = choose_encoder(accept)
    text: bytes = encode(registry)
    return content_type, text


def _beats(beats: tuple[BeatStatus, ...]) -> Iterator[Metric]:
    yield _gauge("beats_alive", "Beats that Redis has heard of in the last 15 seconds.", len(beats))
    lags = [beat.lag for beat in beats if beat.lag is not None]
    if lags:
        yield _gauge("lag_seconds", "How late the latest beat is with what is due.", max(lags))
    offsets = [abs(beat.offset) for beat in beats if beat.offset is not None]
    if offsets:
        help_ = "By how much the clock of a beat's machine is off the server's; of all beats the most."
        yield _gauge("clock_offset_seconds", help_, max(offsets))


def _workers(report: Report) -> Iterator[Metric]:
    recent = [each for each in report.workers if each.running or (each.heard is not None and each.heard < _RECENT)]
    yield _gauge("workers", "Workers that began a window within five minutes, or run one.", len(recent))
    stuck = _gauges(
        "idle_queue_stuck_windows", "Stuck windows of a queue of which no worker has begun anything since.", "queue"
    )
    for name, number in {_label(each.queue): each.stuck for each in report.idle_queues[:_MOST_QUEUES]}.items():
        stuck.add_metric([name], number)
    yield stuck


def _entries(entries: tuple[EntryStatus, ...], most: int) -> Iterator[Metric]:
    kinds = _gauges(
        "entries",
        "Entries of the schedule; those left out, as wrong; strangers: overdue, and not in this schedule.",
        "kind",
    )
    for kind in ("scheduled", "left out", "stranger"):
        kinds.add_metric([kind], sum(entry.kind == kind for entry in entries))
    yield kinds
    labelled = _labelled(entries, most)
    yield _counted(labelled, "windows", "Windows that ended so, under the entry's present definition.", "outcomes")
    yield _counted(
        labelled,
        "windows_apart",
        "Backfills that ended so, and windows of the entry's earlier definitions.",
        "backfilled",
    )
    refused = _counters(
        "refused_copies", "Copies of messages that were refused: duplicated, late, redelivered.", "entry"
    )
    for name, group in labelled.items():
        refused.add_metric([name], sum(entry.refused for entry in group))
    yield refused
    for metric, help_, value, together in _GAUGES:
        family = _gauges(metric, help_, "entry")
        for name, group in labelled.items():
            values = [float(found) for entry in group if (found := value(entry)) is not None]
            if values:
                family.add_metric([name], together(values))
        yield family


def _labelled(entries: Iterable[EntryStatus], most: int) -> dict[str, list[EntryStatus]]:
    """Return the entries that each value of the label stands for.

    By name, so that the same ones have series of their own each time. Entries that aren't in the schedule are summed:
    Redis may hold any number of them.
    """
    labelled: dict[str, list[EntryStatus]] = {}
    others = []
    for entry in sorted(entries, key=lambda entry: entry.entry):
        label = _label(entry.entry)
        if entry.kind != "scheduled" or len(labelled) >= most or label == OTHERS or label in labelled:
            others.append(entry)
        else:
            labelled[label] = [entry]
    if others:
        labelled[OTHERS] = others
    return labelled


def _label(name: str) -> str:
    """A name as the value of a label: printable, and cut if it is very long."""
    return printable(name[:_MOST_NAME])


def _counted(labelled: dict[str, list[EntryStatus]], name: str, help_: str, key: str) -> CounterMetricFamily:
    family = _counters(name, help_, "entry", "outcome")
    for entry, group in labelled.items():
        # Outcomes that haven't happened yet are 0: Prometheus sees no increase from nothing to 1.
        counts = dict.fromkeys(COUNTED, 0) if key == "outcomes" else {}
        for status in group:
            for outcome, number in getattr(status, key).items():
                known = outcome if outcome in COUNTED else OTHER.name
                counts[known] = counts.get(known, 0) + number
        for outcome, number in counts.items():
            family.add_metric([entry, outcome], number)
    return family


def _gauge(name: str, help_: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, help_, value=float(value))


def _gauges(name: str, help_: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, help_, labels=[label])


def _counters(name: str, help_: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(_PREFIX + name, help_, labels=labels)


def _timestamp(instant: datetime) -> float:
    return (instant - _EPOCH) / timedelta(seconds=1)
