"""What Prometheus is told: the report of one look, as metrics. Needs the extra ``metrics``.

The counters of an entry are the store's own: it doesn't matter which process is asked, or when it started. Labels are
bounded: so many entries have series of their own, the others are told together under OTHERS; outcomes are a fixed set;
beats, whose names change with each start, have no label.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from celery_once_beat.errors import StoreDataError
from celery_once_beat.logs import about, guarded
from celery_once_beat.outcomes import COUNTED, OTHER
from celery_once_beat.store import BOUNDS, Histogram
from celery_once_beat.wording import short

from .report import KINDS, BeatStatus, EntryStatus, Report

logger = guarded(logging.getLogger(__name__))

#: Entries with series of their own, unless another number is given.
ENTRIES = 200
#: What the label ``entry`` says of all others.
OTHERS = "(others)"

#: Begins the name of each metric.
_PREFIX = "celery_once_beat_"
#: Queues that have a label.
_MOST_QUEUES = 50
#: Seconds within which a worker has begun something, to be counted.
_RECENT = 300.0

#: What an entry has counted: numbers by metric, and within it by outcome or by bucket.
_Counts = dict[str, dict[str, float]]

#: Counters: name, help, and the label beside the entry, if there is one.
_COUNTERS = (
    ("windows", "Windows that ended so, under the entry's present definition.", "outcome"),
    ("windows_apart", "Backfills that ended so, and windows of the entry's earlier definitions.", "outcome"),
    ("late_notices", "Windows that weren't done by their deadline, and were said to be late.", ""),
    ("refused_copies", "Copies of messages that were refused: duplicated, late, redelivered.", ""),
)

#: Histograms: name, help, and the store's name for it.
_HISTOGRAMS = (
    ("window_lateness_seconds", "From the start of a window to the begin of its last execution.", "late"),
    ("window_queue_seconds", "From a window's claim by a beat to its begin, of windows that began once.", "queued"),
    ("window_duration_seconds", "From the begin of that execution to its end.", "ran"),
)

#: Name, help, what it is of one entry, and what of several.
_GAUGES: tuple[tuple[str, str, Callable[[EntryStatus], float | None], Callable[[Iterable[float]], float]], ...] = (
    ("open_windows", "Windows that still owe their outcome.", lambda e: e.open, sum),
    (
        "buffered_windows",
        "Open windows that wait for another one of their entry, or for a slot of a limit.",
        lambda e: e.buffered,
        sum,
    ),
    ("running_windows", "Windows that a worker executes.", lambda e: e.running, sum),
    (
        "overdue_windows",
        "Open windows to which something should have happened by now, and didn't.",
        lambda e: e.overdue,
        sum,
    ),
    ("paused", "1 where the entry is paused.", lambda e: e.paused, sum),
    ("hung_windows", "Running windows that take far longer than their entry's history.", lambda e: e.hung, sum),
    ("silent_windows", "Running windows whose worker hasn't renewed the lease in time.", lambda e: e.silent, sum),
    ("stuck_windows", "Windows that no worker began within a minute of their publish.", lambda e: e.stuck, sum),
    (
        "late_windows",
        "Open windows that aren't done by their entry's deadline; the oldest unclaimed one counts too.",
        lambda e: e.late,
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
        "misfit",
        "1 where the entry doesn't run for its set-up; 'celery once doctor' says why.",
        lambda e: bool(e.misfit),
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
        lambda e: e.last.start.timestamp() if e.last else None,
        min,
    ),
    (
        "next_window_start_timestamp_seconds",
        "Start of the next window; of others the nearest.",
        lambda e: e.next.timestamp() if e.next else None,
        min,
    ),
)


class OnceCollector(Collector):
    """The metrics of one look after another; for one thread at a time.

    At most ``entries`` entries have series of their own: those that need attention first, and then those that had them
    at the last look, so that series stay. Of the others' counters it tells what they grew by since it was made: their
    sum would jump with each entry that comes or goes.
    """

    def __init__(self, entries: int = ENTRIES) -> None:
        self._most = entries
        self._report: Report | None = None
        #: What each value of the label stands for.
        self._own: dict[str, EntryStatus] = {}
        self._others: list[EntryStatus] = []
        self._counted_by_others = _nothing()
        self._counted_by_others |= {name: _buckets(Histogram({}, 0)) for name, _, _ in _HISTOGRAMS}
        #: By entry of the schedule.
        self._seen: dict[str, _Seen] = {}
        self._unreadable: set[str] = set()

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
        yield _gauge("store_up", "1 where Redis could be read, else 0, and then nothing else is told.", up)
        if report is None:
            return
        yield _gauge("store_latency_seconds", "Seconds of one round trip to Redis.", report.latency)
        yield from _beats(report.beats)
        yield from _workers(report)
        yield _kinds(report.entries)
        yield from self._counters()
        yield from self._gauges()

    def _see(self, entries: Iterable[EntryStatus]) -> None:
        had_own, self._own, self._others = self._own.keys(), {}, []
        by_need = sorted(entries, key=lambda e: (-e.urgency, short(e.entry) not in had_own, e.entry))
        seen = {}
        for entry in by_need:
            # Of entries that aren't in the schedule, Redis may hold any number.
            label, ours = short(entry.entry), entry.kind != "stranger"
            own = ours and len(self._own) < self._most and label != OTHERS and label not in self._own
            if own:
                self._own[label] = entry
            else:
                self._others.append(entry)
            if ours:
                self._name_unreadable(entry)
                before = self._seen.get(entry.entry)
                now = seen[entry.entry] = _Seen.of(entry, before)
                if before is not None and not (own and label in had_own):
                    _add_growth(self._counted_by_others, before.ever, now.counts)
        self._seen = seen

    def _name_unreadable(self, entry: EntryStatus) -> None:
        if not isinstance(entry.times, StoreDataError):
            self._unreadable.discard(entry.entry)
        elif entry.entry not in self._unreadable:
            self._unreadable.add(entry.entry)
            logger.warning("once: %s", entry.times, extra=about("histograms_unreadable", entry=entry.entry))

    def _counters(self) -> Iterator[Metric]:
        exposed = {label: self._seen[entry.entry].shown for label, entry in self._own.items()}
        if self._others:
            exposed[OTHERS] = self._counted_by_others
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
        exposed = {label: [entry] for label, entry in self._own.items()}
        if self._others:
            exposed[OTHERS] = self._others
        for name, help_, value, together in _GAUGES:
            gauge = _gauges(name, help_, "entry")
            for label, entries in exposed.items():
                values = [float(found) for entry in entries if (found := value(entry)) is not None]
                if values:
                    gauge.add_metric([label], together(values))
            yield gauge


def _beats(beats: tuple[BeatStatus, ...]) -> Iterator[Metric]:
    yield _gauge("beats_alive", "Beats that Redis has heard of in the last 15 seconds.", len(beats))
    failing = sum(bool(beat.failing) for beat in beats)
    yield _gauge("beats_failing", "Beats that live and whose ticks fail: they claim and publish nothing.", failing)
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
    for name, number in {short(each.queue): each.stuck for each in report.idle_queues[:_MOST_QUEUES]}.items():
        stuck.add_metric([name], number)
    yield stuck


def _kinds(entries: Iterable[EntryStatus]) -> Metric:
    kinds = _gauges(
        "entries",
        "Entries of the schedule; those left out, as wrong; those disabled in their database; strangers: overdue, and "
        "not in this schedule.",
        "kind",
    )
    found = [entry.kind for entry in entries]
    for kind in KINDS:
        kinds.add_metric([kind], found.count(kind))
    return kinds


@dataclass(frozen=True)
class _Seen:
    """What an entry had counted at one look."""

    #: What its counts were made of.
    exposed: tuple[object, ...]
    counts: _Counts
    #: With what couldn't be read at this look, as it was before.
    ever: _Counts

    @classmethod
    def of(cls, entry: EntryStatus, before: _Seen | None) -> _Seen:
        """Make it of what the report says; most entries say what they said before."""
        exposed = (entry.outcomes, entry.backfilled, entry.refused, entry.said_late, entry.times)
        if before is not None and before.exposed == exposed:
            return before
        counts = _counts(entry)
        return cls(exposed, counts, {**before.ever, **counts} if before else counts)

    @property
    def shown(self) -> _Counts:
        """Its counts. Nothing of what can't be read now: a 0 would look as if it had begun anew."""
        return self.counts if self.ever else _nothing()


def _nothing() -> _Counts:
    """Outcomes that haven't happened yet are 0: Prometheus sees no increase from nothing to 1."""
    return {
        "windows": dict.fromkeys(COUNTED, 0.0),
        "windows_apart": {},
        "refused_copies": {"": 0.0},
        "late_notices": {"": 0.0},
    }


def _counts(entry: EntryStatus) -> _Counts:
    """What an entry has counted; nothing where the store has no account of it, or can't read that."""
    if not entry.times:
        return {}
    found = _nothing()
    found["windows"] |= _by_outcome(entry.outcomes)
    found["windows_apart"] = _by_outcome(entry.backfilled)
    found["refused_copies"] = {"": entry.refused}
    found["late_notices"] = {"": entry.said_late}
    if not isinstance(entry.times, StoreDataError):
        for name, _, stored in _HISTOGRAMS:
            if stored in entry.times:
                found[name] = _buckets(entry.times[stored])
    return found


def _by_outcome(numbers: Mapping[str, int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for outcome, number in numbers.items():
        known = outcome if outcome in COUNTED else OTHER.name
        found[known] = found.get(known, 0) + number
    return found


def _buckets(histogram: Histogram) -> dict[str, float]:
    """Return the buckets as Prometheus has them, each with those before it, and at last ``sum``; seconds."""
    found: dict[str, float] = {}
    for bound in BOUNDS:
        up_to = sum(number for other, number in histogram.counts.items() if other <= bound)
        found[str(bound / 1000)] = up_to
    found["+Inf"] = sum(histogram.counts.values())
    found["sum"] = histogram.sum / 1000
    return found


def _add_growth(to: _Counts, before: _Counts, now: _Counts) -> None:
    """Add what grew. Counters that fell have begun anew, and grew by all they have."""
    for name, numbers in now.items():
        old = before.get(name, numbers)  # what is told for the first time may be of any age
        if any(numbers.get(key, 0) < number for key, number in old.items()):
            old = {}
        sums = to.setdefault(name, dict.fromkeys(numbers, 0.0))
        for key, number in numbers.items():
            sums[key] = sums.get(key, 0) + number - old.get(key, 0)


def _gauge(name: str, help_: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, help_, value=float(value))


def _gauges(name: str, help_: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, help_, labels=[label])
