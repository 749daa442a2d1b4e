"""Metrics: what Prometheus reads says what the store knows, with labels that stay few, whatever names there are."""

from __future__ import annotations

import asyncio
import os
import re
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import filled
import pytest
from boards import WORK, Board, loaded_of, start_board
from celery import Celery
from processes import Proc, wait_until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from queries import PREFIX, check_query, documented_metrics
from servers import RedisServer, free_port
from system import System

from celery_once_beat.errors import StoreDataError
from celery_once_beat.features.times.store import BOUNDS, Histogram
from celery_once_beat.status import BeatStatus, EntryStatus, Report, StuckQueue, View, WindowStatus, WorkerStatus
from celery_once_beat.status.metrics import OTHERS, OnceCollector
from celery_once_beat.store import Loss, shard_of
from celery_once_beat.web.exporter import make_exporter

ROOT = Path(__file__).resolve().parents[2]

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Samples:
    """Samples by name and labels; a series that is told twice is an error, as it is for Prometheus."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.name.startswith(PREFIX)
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, f"told twice: {key}"
            samples[key] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[PREFIX + name, frozenset(labels.items())]


def entries(samples: Samples, name: str) -> set[str]:
    return {dict(labels)["entry"] for found, labels in samples if found == PREFIX + name}


def metrics(system: System, *arguments: str, name: str = "metrics", **env: Any) -> Proc:
    return system.celery("once", "metrics", *arguments, name=name, **env)


def serve(system: System, name: str = "metrics") -> Board:
    """An exporter: it is asked as a board is."""
    proc = metrics(system, "--port", "0", name=name)
    return Board(proc, proc.wait_log(r"the metrics are at (http://127\.0\.0\.\d:\d+)/metrics")[1])


def test_one_look_is_told_alike_everywhere(system: System) -> None:
    """The command, its server and the board say what the store has; in Prometheus's text and as OpenMetrics."""
    # Weeks: no window's time comes between two looks.
    system.entries = {name: {"task": WORK, "every": 7 * 86_400.0} for name in ("a", "b")}
    filled.fill(system.store, loaded_of(system), 3, timedelta(days=22), ["done", "failed"])
    system.store.set_paused("b", paused=True)
    system.entries["wrong"] = {"task": WORK, "every": 1.0, "options": {"once": {"grce": 1}}}
    system.entries["later"] = {"task": WORK, "cron": "30 2 29 2 *"}
    alone = serve(system, name="alone")
    board = start_board(system)
    filled.beat_lives(system.store)  # for a quarter of a minute: a busy machine may need that for each of the three
    once = metrics(system, name="once")
    assert once.wait() == 0

    def steady(text: str) -> dict[Any, float]:
        return {
            key: number
            for key, number in read(text).items()
            if not key[0].endswith(("latency_seconds", "paused_seconds"))
        }

    assert value(read(once.log), "paused_seconds", entry="b") >= 0
    said = steady(once.log)
    assert value(said, "store_up") == value(said, "beats_alive") == 1
    histograms = ("window_lateness_seconds", "window_queue_seconds", "window_duration_seconds")
    for entry in ("a", "b"):
        for name in ("open_windows", "overdue_windows", "refused_copies_total"):
            assert value(said, name, entry=entry) == 0
        for outcome, number in {"done": 2, "failed": 1, "missed": 0}.items():
            assert value(said, "windows_total", entry=entry, outcome=outcome) == number
        for name in histograms:
            assert value(said, f"{name}_count", entry=entry) == 3
        newest = value(said, "last_window_start_timestamp_seconds", entry=entry)
        assert newest == system.account(entry).cursor.timestamp()
        assert value(said, "last_window_lateness_seconds", entry=entry) > 86_400
        assert value(said, "last_window_duration_seconds", entry=entry) < 60
    assert [value(said, "paused", entry=entry) for entry in ("a", "b")] == [0, 1]
    assert "later" not in entries(said, "last_window_lateness_seconds")
    assert value(said, "next_window_start_timestamp_seconds", entry="later") > newest
    assert value(said, "attention", entry="wrong") == 1
    kinds = {kind: value(said, "entries", kind=kind) for kind in ("scheduled", "left out", "stranger")}
    assert kinds == {"scheduled": 3, "left out": 1, "stranger": 0}
    filled.beat_lives(system.store)
    assert steady(alone.ask("/metrics").text) == said
    filled.beat_lives(system.store)
    answer = board.ask("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert steady(answer.text) == said
    form = {"accept": "application/openmetrics-text; version=1.0.0"}
    for answer in (alone.ask("/metrics", headers=form), board.ask("/metrics", headers=form)):
        assert answer.status == 200
        families = {family.name: family for family in parse_openmetrics(answer.text)}
        assert families[PREFIX + "windows"].type == "counter"
    assert alone.proc.log.count("\n") == 1
    alone.proc.terminate()
    assert alone.proc.wait(60) == 0


def test_the_server_is_for_this_machine(system: System) -> None:
    """It listens on loopback, refuses names that aren't this machine's, methods that don't read, other paths."""
    there = serve(system)
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        assert there.ask("/metrics", headers={"host": host}).status == 400
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert there.ask("/metrics", method).status == 405
    for path in ("/", "/metrics/", "/metrics/../..", "/etc/passwd"):
        assert there.ask(path).status == 404
    head = there.ask("/metrics", "HEAD")
    assert (head.status, head.text) == (200, "")
    named = there.ask("/metrics?name[]=celery_once_beat_beats_alive", headers={"host": "localhost:1"})
    assert named.status == 200
    assert there.proc.log.count("\n") == 1


@pytest.mark.parametrize(("address", "status"), [("127.0.0.1", 400), ("::1", 400), ("0.0.0.0", 200), ("10.1.2.3", 200)])
def test_who_listens_for_others_answers_to_any_name(system: System, address: str, status: int) -> None:
    """Prometheus calls a pod by its address or its name. On a loopback another name is another site's."""
    view = View(Celery("exported", broker=system.broker_url, set_as_current=False), system.store.settings)
    scope = {"type": "http", "method": "GET", "path": "/metrics", "query_string": b"", "root_path": "",
             "headers": [(b"host", b"metrics.pod:9466")]}  # fmt: skip
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(make_exporter(view, 10, address)(scope, None, send))
    assert sent[0]["status"] == status
    assert (b"celery_once_beat_store_up 1.0" in sent[1]["body"]) == (status == 200)
    view.close()


@pytest.mark.long
def test_without_redis(system: System, start_redis: Any) -> None:
    """The command says so in one line; what serves goes on, tells that Redis is away and nothing old, and recovers."""
    nowhere = metrics(system, STORE_URL=f"redis://127.0.0.1:{free_port()}/0")
    assert nowhere.wait() == os.EX_UNAVAILABLE
    assert nowhere.log.startswith("once: Redis: ")
    assert nowhere.log.count("\n") == 1
    server: RedisServer = start_redis()
    system.use_store(server.url())
    alone, board = serve(system, name="serving"), start_board(system)

    def up() -> list[Samples]:
        return [read(each.ask("/metrics").text) for each in (alone, board)]

    for told in up():
        assert value(told, "store_up") == 1
        assert value(told, "beats_alive") == 0
    server.stop()
    wait_until(
        lambda: all(told == {(PREFIX + "store_up", frozenset()): 0} for told in up()), "it is told to be away", 60
    )
    server.restart()
    wait_until(lambda: all(value(told, "store_up") for told in up()), "it is told to be back", 60)
    assert alone.proc.log.count("\n") == 1
    assert "Traceback" not in board.proc.log


# -- labels ---------------------------------------------------------------------------------------------------------


HOUR = datetime(2026, 11, 21, 1, tzinfo=timezone.utc)


def expose(told: Report, accept: str = "", entries: int = 200) -> str:
    return OnceCollector(entries).expose(told, accept)[1].decode()


#: Of four windows, in a version that had one bucket more.
TIMES = {
    name: Histogram({BOUNDS[0]: 1, BOUNDS[0] + 1: 1, BOUNDS[2]: 1, float("inf"): 1}, 20_000_123)
    for name in ("late", "queued", "ran")
}


def report(names: list[str], took: float | None = None) -> Report:
    lags = [(0.1, -3.0), (0.5, 1.0), (None, None)]
    beats = [BeatStatus(offset, lag, 1, 0, "1", beat=f"host:{n}:x", heard=0.1) for n, (lag, offset) in enumerate(lags)]
    entries = [
        EntryStatus(
            name, "scheduled", "t", "s", tracked=True, last=_last(n, took), next=HOUR + timedelta(hours=2), open=1,
            overdue=2, refused=3, outcomes={"done": 10, "what is this": 1}, backfilled={"done": 1}, attention=("look",),
            oldest_open=60.0, oldest_running=30.0, paused_for=60.0,
            urgency=1, times=TIMES,
        )
        for n, name in enumerate(names)
    ]  # fmt: skip
    workers, queues = (WorkerStatus("celery@a", 1.0, 0),), (StuckQueue("mail", 2),)
    more = {"memory": 0.5, "lost": Loss(1, HOUR)}
    return Report(HOUR + timedelta(hours=1), 0.0, 0.001, tuple(beats), tuple(entries), workers, queues, **more)


def _last(n: int, took: float | None) -> WindowStatus:
    start = HOUR + timedelta(seconds=n % 60)
    return WindowStatus(start, "done", start, "b", start, start, "w", 1, float(n), took, 0, 0, None, None)


def test_labels_are_bounded() -> None:
    """So many entries have series of their own; of the others only how their windows ended is told."""
    names = [f"entry-{n:03}" for n in range(50)]
    told = read(expose(report(names), entries=10))
    assert entries(told, "windows_total") == {*names[:10], OTHERS}
    assert entries(told, "refused_copies_total") == entries(told, "overdue_windows") == {*names[:10]}
    assert value(told, "windows_total", entry="entry-003", outcome="done") == 10
    assert value(told, "windows_total", entry="entry-003", outcome="other") == 1, "outcomes too"
    assert value(told, "windows_total", entry=OTHERS, outcome="done") == 0, "they count from the first look on"
    assert value(told, "overdue_windows", entry="entry-003") == 2
    assert value(told, "attention", entry="entry-003") == 1
    assert value(told, "last_window_lateness_seconds", entry="entry-003") == 3
    assert PREFIX + "last_window_duration_seconds" not in {name for name, _ in told}, "what nobody has isn't told"
    assert value(told, "lag_seconds") == 0.5
    assert value(told, "clock_offset_seconds") == 3, "in either direction"
    beats = ("beats_alive", "lag_seconds", "clock_offset_seconds")
    assert [set(labels) for name, labels in told if name.endswith(beats)] == [set()] * 3, "beats come and go"
    assert len(told) < 11 * 75
    assert len(read(expose(report([f"entry-{n}" for n in range(5000)])))) < 201 * 75


def one_collector(entries: int) -> Callable[..., Samples]:
    """A look by it: of what the store has counted."""
    collector = OnceCollector(entries)
    return lambda *found: read(collector.expose(Report(HOUR, 0.0, 0.001, (), found))[1].decode())


def status(name: str, done: int = 0, failed: int = 0, urgency: int = 0, **more: Any) -> EntryStatus:
    outcomes = {"done": done, "failed": failed} if done or failed else {}
    times = {"ran": Histogram({BOUNDS[0]: done, BOUNDS[3]: failed}, done + failed * 3_000)}
    return EntryStatus(name, "scheduled", outcomes=outcomes, urgency=urgency, **{"times": times, **more})


def test_what_needs_attention_has_series_first() -> None:
    """The entries somebody should look at, the most urgent first; then who had series, until others need the place."""
    look = one_collector(3)
    calm = [status(f"a{n}") for n in range(5)]
    assert entries(look(*calm), "open_windows") == {"a0", "a1", "a2"}
    told = look(*calm, status("zebra", urgency=3), status("yak", urgency=1))
    assert entries(told, "open_windows") == {"zebra", "yak", "a0"}
    told = look(*calm, status("zebra", urgency=3), *(status(f"x{n}", urgency=2) for n in range(5)))
    assert entries(told, "open_windows") == {"zebra", "x0", "x1"}
    assert entries(look(*calm, status("zebra")), "open_windows") == {"zebra", "a0", "a1"}
    told = look(*calm, status("zebra"), status("yak", urgency=1))
    assert entries(told, "open_windows") == {"yak", "a0", "a1"}


def test_what_others_counted_never_falls_and_never_jumps() -> None:
    """They count each increase that no series of its own shows; entries that come, go and begin anew change nothing."""
    look = one_collector(1)
    busy = status("busy", urgency=9)

    def others(*each: EntryStatus) -> tuple[float, float]:
        told = look(busy, *each)
        counted = [value(told, "windows_total", entry=OTHERS, outcome=name) for name in ("done", "failed")]
        return counted[0], counted[1]

    assert others(status("a", 500, 50), status("b", 10)) == (0, 0)
    assert others(status("a", 501, 50), status("b", 12)) == (3, 0)
    assert others(status("a", 501, 50), status("b", 12)) == (3, 0), "nothing happened"
    assert others(status("a", 501, 51), status("b", 12), status("c", 70)) == (3, 1), "a new one brings nothing along"
    assert others(status("b", 12), status("c", 71)) == (4, 1), "nor does one that has gone take away"
    unreadable = EntryStatus("b", "scheduled")
    assert others(unreadable, status("c", 71)) == (4, 1)
    assert others(status("b", 13), status("c", 71)) == (5, 1), "the store can be read again"
    assert others(status("b", 2), status("c", 71)) == (7, 1), "it has begun anew"
    busy = status("b", 2, 1, urgency=9)
    told = look(busy, status("busy"), status("c", 71))
    assert value(told, "windows_total", entry=OTHERS, outcome="failed") == 2, "what gave it series of its own"
    busy = status("b", 5, 4, urgency=9)
    assert others(status("busy"), status("c", 72)) == (8, 2), "its own series show the rest"


def test_what_cant_be_read_is_not_0() -> None:
    """It would look as if it had begun anew, and then as if it had all happened at once."""
    look = one_collector(3)
    told = look(status("a", 500, 50), EntryStatus("new", "scheduled"))
    assert value(told, "windows_total", entry="new", outcome="failed") == 0, "no beat has loaded it yet"
    told = look(EntryStatus("a", "scheduled"), status("new", 1))
    assert entries(told, "windows_total") == entries(told, "refused_copies_total") == {"new"}
    assert "a" in entries(told, "attention")
    told = look(status("a", 500, 51), EntryStatus("new", "left out", urgency=8))
    assert entries(told, "windows_total") == {"a"}
    assert "new" in entries(told, "attention"), "what is left out is named"
    foreign = StoreDataError("the key has no histograms")
    told = look(status("a", 501, 51, times=foreign), status("new", 2))
    assert entries(told, "windows_total") == {"a", "new"}
    assert entries(told, "window_duration_seconds_count") == {"new"}


def test_histograms_are_prometheus_own() -> None:
    """Buckets in order, each with those before it; the last is the count; the sum is in seconds."""
    told = read(expose(report(["a"])))
    for name in ("window_lateness_seconds", "window_queue_seconds", "window_duration_seconds"):
        buckets = {
            dict(labels)["le"]: number for (found, labels), number in told.items() if found == f"{PREFIX}{name}_bucket"
        }
        assert [float(bound) for bound in buckets] == [*(bound / 1000 for bound in BOUNDS), float("inf")]
        assert list(buckets.values()) == [1, 2, 3, *[3] * (len(BOUNDS) - 3), 4]
        assert value(told, f"{name}_count", entry="a") == 4
        assert value(told, f"{name}_sum", entry="a") == pytest.approx(20_000.123)


def test_a_foreign_histogram_is_left_out_and_named_once(system: System) -> None:
    """That one of that entry alone; nothing else is missing."""
    system.entries = {name: {"task": WORK, "every": 7 * 86_400.0} for name in ("a", "b")}
    filled.fill(system.store, loaded_of(system), 3, timedelta(days=22))
    with system.client() as client:
        client.hset(system.store.entry_key("b"), "times", "\x1b[31mgarbage")
    there = serve(system)
    for _ in range(3):
        told = read(there.ask("/metrics").text)
        assert entries(told, "window_duration_seconds_count") == {"a"}
        assert value(told, "window_duration_seconds_count", entry="a") == 3
        assert value(told, "windows_total", entry="b", outcome="done") == 3
        system.store.set_paused("a", paused=True)  # so that the next look sees something else
    wait_until(lambda: "no histograms" in there.proc.log, "it is named", 60)
    assert there.proc.log.count("no histograms") == 1
    assert system.store.entry_key("b") in there.proc.log
    assert "\x1b" not in there.proc.log


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_hostile_names(accept: str) -> None:
    """Quotes, newlines, halves of surrogates, our own word for the others: read back, and no series is told twice."""
    names = [f'"}} 1\n{PREFIX}beats_alive 99', "back\\slash", "new\nline", "half\udcff", OTHERS, "'new\\nline'",
             "x" * 300, "x" * 250, "ünï", '{entry="a"}', "a" * 60_000]  # fmt: skip
    text = expose(report(names), accept)
    if accept:
        assert list(parse_openmetrics(text))
        return
    told = read(text)
    assert value(told, "beats_alive") == 3
    assert entries(told, "open_windows") == {
        r"""'"} 1\ncelery_once_beat_beats_alive 99'""", "back\\slash", r"'new\nline'", r"'half\udcff'", "x" * 200,
        "ünï", '{entry="a"}', "a" * 200,
    }  # fmt: skip


def test_strangers_have_no_label(system: System) -> None:
    """What Redis holds beside our schedule is counted, and named by nobody: it may be any number."""
    system.entries = {"tick": {"task": WORK, "every": 3600.0}}
    with system.client() as client:
        for n in range(300):
            name = f"stranger-{n}"
            client.zadd(system.store.keys.of_shard("open", shard_of(name)), {f"{name}@2026-11-21T02:00:00.000000Z": 1})
        for shard in range(16):
            client.expire(system.store.keys.of_shard("open", shard), 600)
    proc = metrics(system)
    assert proc.wait() == 0
    told = read(proc.log)
    assert entries(told, "overdue_windows") == {"tick"}
    assert value(told, "entries", kind="stranger") == 300


def test_every_metric_is_documented() -> None:
    """docs/metrics.md has each with its labels, and no other."""
    found = {}
    for family in text_string_to_metric_families(expose(report(["a"], took=1.0))):
        name = family.name if family.type == "histogram" else family.samples[0].name
        found[name] = list(family.samples[0].labels)
    assert documented_metrics() == found


# -- the docs ------------------------------------------------------------------------------------------------------


def test_the_documented_query_asks_for_what_there_is() -> None:
    """docs/metrics.md shows one."""
    (query,) = re.findall(r"<!-- query -->\n```promql\n(.*?)\n```", (ROOT / "docs" / "metrics.md").read_text())
    labels: dict[str, set[str]] = defaultdict(set)
    for name, given in read(expose(report(["a"], took=1.0))):
        labels[name].update(dict(given))
    check_query(query, labels)
