"""The report of one look, as metrics for Prometheus. Needs the extra ``metrics``.

The counters of an entry are the store's own: it doesn't matter which process is asked, or when it started. Labels are
bounded: so many entries have series of their own, and how windows of the others ended is counted under OTHERS; outcomes
are a fixed set; beats, whose names change with each start, have no label.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from celery_once_beat.errors import StoreDataError
from celery_once_beat.features.times.store import BOUNDS, Histogram
from celery_once_beat.logs import Logged, about, guarded
from celery_once_beat.outcomes import COUNTED, OTHER
from celery_once_beat.wording import short

from .report import KINDS, EntryStatus, Report

logger = guarded(logging.getLogger(__name__))

#: Entries with series of their own, unless another number is given.
ENTRIES = 200
#: What the label ``entry`` says of all others.
OTHERS = "(others)"

#: Begins the name of each metric.
_PREFIX = "celery_once_beat_"
#: Queues that have a label.
_MOST_QUEUES = 50

#: Outcomes that haven't happened yet are exported too: Prometheus sees no increase from nothing to 1.
_ZEROS: dict[str, float] = dict.fromkeys(COUNTED, 0.0)
#: What an entry has counted: numbers by metric, and within it by outcome or by bucket.
_Counts = dict[str, Mapping[str, float]]

#: Counters: name, help, and the label beside the entry, if there is one.
_COUNTERS = (
    ("windows", "Windows that ended so, under the entry's present definition.", "outcome"),
    ("windows_apart", "Backfills that ended so, and windows of the entry's earlier definitions.", "outcome"),
    ("late_notices", "Windows that weren't done by their deadline, and were reported as late.", ""),
    ("refused_copies", "Copies of messages that were refused: duplicated, late, redelivered.", ""),
)

#: Histograms: name, help, and the store's name for it.
_HISTOGRAMS = (
    ("window_lateness_seconds", "From the start of a window to the begin of its last execution.", "late"),
    ("window_queue_seconds", "From a window's claim by a beat to its begin, of windows that began once.", "queued"),
    ("window_duration_seconds", "From the begin of that execution to its end.", "ran"),
)

_ENTRIES_HELP = (
    "Entries of the schedule; those left out, as wrong; those disabled in their database; strangers: overdue, and "
    "not in this schedule."
)

#: Gauges: name, the field of an entry's status, and help.
_GAUGES = (
    ("open_windows", "open", "Windows without an outcome yet."),
    (
        "buffered_windows",
        "buffered",
        "Open windows that wait for another one of their entry, or for a slot of a limit.",
    ),
    ("running_windows", "running", "Windows that a worker executes."),
    ("overdue_windows", "overdue", "Open windows that didn't begin, renew their lease or retry in time."),
    ("paused", "paused", "1 where the entry is paused."),
    ("paused_seconds", "paused_for", "For how long a paused entry has been paused."),
    ("stopped", "stopped", "1 where pause_after_failures has paused the entry."),
    ("hung_windows", "hung", "Running windows that take far longer than their entry's history."),
    ("silent_windows", "silent", "Running windows whose worker hasn't renewed the lease in time."),
    ("stuck_windows", "stuck", "Windows that no worker began within a minute of their publish, though some consume."),
    ("late_windows", "late", "Open windows that aren't done by their deadline; the oldest unclaimed one counts too."),
    ("skipped_in_a_row", "skipped", "Skipped windows in a row, from three on."),
    ("oldest_open_window_age_seconds", "oldest_open", "Since the oldest open window was claimed."),
    ("oldest_running_window_age_seconds", "oldest_running", "Since the oldest window that runs began."),
    ("attention", "attention", "1 where somebody should look at the entry; 'celery once status' says why."),
    ("misconfigured", "misconfigured", "1 where set-up keeps the entry from running; 'celery once doctor' says why."),
    ("last_window_lateness_seconds", "last.late", "From the last ended window's start to its last execution's begin."),
    ("last_window_duration_seconds", "last.took", "From the begin of that execution to its end."),
    ("last_window_start_timestamp_seconds", "last.start", "Start of the last window that ended."),
    ("next_window_start_timestamp_seconds", "next", "Start of the next window."),
)


class OnceCollector(Collector):
    """The metrics of one look after another; for one thread at a time.

    At most ``entries`` entries have series of their own: those that need attention first, and then those that had them
    at the last look, so that series stay. Of the others it exports only how windows ended since it was made: a sum of
    their counters would jump with each entry that comes or goes.
    """

    def __init__(self, entries: int = ENTRIES) -> None:
        self._most = entries
        self._report: Report | None = None
        #: What each value of the label stands for.
        self._own: dict[str, EntryStatus] = {}
        #: Whether there are others, and how their windows ended.
        self._has_others = False
        self._of_others: Counter[str] = Counter()
        #: How windows of each entry of the schedule had ended, when that could be read last.
        self._ended: dict[str, Counter[str]] = {}
        #: Whose histograms can't be read.
        self._logged = Logged()

    def expose(self, report: Report | None, accept: str = "") -> tuple[str, bytes]:
        """Return content type and text of one look, in the form that ``accept``, an HTTP header, asks for.

        ``report`` None: Redis couldn't be read.
        """
        self._report = report
        if report is not None:
            self._see(report.entries)
        registry = CollectorRegistry()
        registry.register(self)
        encode, content_type = choose_encoder(accept)
        text: bytes = encode(registry)
        return content_type, text

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering it collects nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield what the last look saw."""
        report = self._report
        up = report is not None
        yield _gauge("store_up", "1 where Redis could be read, else 0, and then there are no other metrics.", up)
        if report is None:
            return
        for name, help_, value in _of_all(report):
            if value is not None:
                yield _gauge(name, help_, value)
        idle = [each for each in report.stuck_queues if not each.workers]
        stuck = {short(each.queue): each.stuck for each in idle[:_MOST_QUEUES]}
        help_ = "Stuck windows of a queue that no worker which knows windows consumes."
        yield _gauges("idle_queue_stuck_windows", help_, "queue", stuck)
        kinds = Counter(entry.kind for entry in report.entries)
        yield _gauges("entries", _ENTRIES_HELP, "kind", {kind: kinds[kind] for kind in KINDS})
        yield from self._counters()
        yield from self._gauges()

    def _see(self, entries: Sequence[EntryStatus]) -> None:
        had_own, self._own = self._own.keys(), {}
        by_need = sorted(entries, key=lambda e: (-e.urgency, short(e.entry) not in had_own, e.entry))
        last, self._ended = self._ended, {}
        for entry in by_need:
            # Of entries that aren't in the schedule, Redis may hold any number.
            label, ours, before = short(entry.entry), entry.kind != "stranger", last.get(entry.entry)
            own = ours and len(self._own) < self._most and label != OTHERS and label not in self._own
            if own:
                self._own[label] = entry
            if ours:
                if not isinstance(entry.times, StoreDataError):
                    self._logged.end(entry.entry)
                elif self._logged.is_new(entry.entry):
                    logger.warning("once: %s", entry.times, extra=about("histograms_unreadable", entry=entry.entry))
                now = _by_outcome(entry.outcomes) if entry.times else before
                if now is not None:
                    self._ended[entry.entry] = now
                if before is not None and now is not None and not (own and label in had_own):
                    self._of_others += now - before if before <= now else now  # it fell: it has begun anew
        self._has_others = len(self._own) < len(entries)

    def _counters(self) -> Iterator[Metric]:
        # What can't be read now isn't told: a 0 would look as if it had begun anew.
        told = {label: entry for label, entry in self._own.items() if entry.times or entry.entry not in self._ended}
        exposed = {label: _counts(entry) for label, entry in told.items()}
        if self._has_others:
            exposed[OTHERS] = {"windows": _ZEROS | self._of_others}
        for name, help_, label in _COUNTERS:
            counter = CounterMetricFamily(_PREFIX + name, help_, labels=["entry", label] if label else ["entry"])
            for entry, counts in exposed.items():
                for value, number in counts.get(name, {}).items():
                    counter.add_metric([entry, value] if label else [entry], number)
            yield counter
        for name, help_, _ in _HISTOGRAMS:
            histogram = HistogramMetricFamily(_PREFIX + name, help_, labels=["entry"])
            for entry, counts in exposed.items():
                if name in counts:
                    *buckets, (_, total) = counts[name].items()
                    histogram.add_metric([entry], buckets, total)
            yield histogram

    def _gauges(self) -> Iterator[Metric]:
        for name, field, help_ in _GAUGES:
            found = {label: _number(entry, field) for label, entry in self._own.items()}
            told = {label: value for label, value in found.items() if value is not None}
            yield _gauges(name, help_, "entry", told)


def _of_all(report: Report) -> Iterator[tuple[str, str, float | None]]:
    """Yield what is told of the whole: a gauge's name, its help, and its value; None isn't told."""
    beats = report.beats
    failing, away = sum(bool(beat.failing) for beat in beats), sum(bool(beat.broker) for beat in beats)
    lag = max((beat.lag for beat in beats if beat.lag is not None), default=None)
    offset = max((abs(beat.offset) for beat in beats if beat.offset is not None), default=None)
    lost = (report.now - report.lost.at).total_seconds() if report.lost else None
    yield "store_latency_seconds", "Seconds of one round trip to Redis.", report.latency
    yield "store_memory_ratio", "The share of its maxmemory that Redis has used.", report.memory or None
    yield "data_lost_age_seconds", "Since the store lost its data.", lost
    yield "beats_alive", "Beats that Redis has heard of in the last 15 seconds.", len(beats)
    yield "beats_failing", "Beats that live and whose ticks fail: they claim and publish nothing.", failing
    yield "beats_without_broker", "Beats that live and can't use the broker: they claim nothing.", away
    yield "lag_seconds", "How late the latest beat is with what is due.", lag
    off = "By how much the clock of a beat's machine is off the server's; of all beats the most."
    yield "clock_offset_seconds", off, offset
    yield "workers", "Workers that live and know windows.", sum(each.lives for each in report.workers)


def _number(entry: EntryStatus, name: str) -> float | None:
    """Return a field as a gauge has it: an instant as seconds, texts as whether there are some; None isn't told."""
    found: Any = entry
    for part in name.split("."):
        found = None if found is None else getattr(found, part)
    if isinstance(found, datetime):
        return found.timestamp()
    return None if found is None else float(bool(found) if isinstance(found, tuple) else found)


def _counts(entry: EntryStatus) -> _Counts:
    """What an entry has counted."""
    found: _Counts = {
        "windows": _ZEROS | _by_outcome(entry.outcomes),
        "windows_apart": _by_outcome(entry.backfilled),
        "refused_copies": {"": entry.refused},
        "late_notices": {"": entry.said_late},
    }
    if not isinstance(entry.times, StoreDataError):
        found |= {name: _buckets(entry.times[stored]) for name, _, stored in _HISTOGRAMS if stored in entry.times}
    return found


def _by_outcome(numbers: Mapping[str, int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for outcome, number in numbers.items():
        found[outcome if outcome in COUNTED else OTHER.name] += number
    return found


def _buckets(histogram: Histogram) -> dict[str, float]:
    """Return the buckets as Prometheus has them, each with those before it, and at last ``sum``; seconds."""
    counts = histogram.counts
    found = {str(bound / 1000): sum(of for other, of in counts.items() if other <= bound) for bound in BOUNDS}
    return {**found, "+Inf": sum(counts.values()), "sum": histogram.sum / 1000}


def _gauge(name: str, help_: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, help_, value=float(value))


def _gauges(name: str, help_: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(_PREFIX + name, help_, labels=[label])
    for of, value in values.items():
        gauge.add_metric([of], value)
    return gauge
