"""What was measured, for people: the goals with what was reached, all figures, and the plots."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.sampled import PLACES
from benchmarks.stretches import KINDS, LASTING
from pages import machine, table

Figures = Mapping[str, Mapping[str, float]]
Value = Callable[[Figures], list[float]]

MARKS = ("<!-- benchmarks -->", "<!-- /benchmarks -->")
#: Of the takeover: the lease in seconds, and how much later a window is overdue; ours are a recovery interval and 1 s.
LEASE, MARGIN, INTERVAL = 5.0, 1.0, 2.0
PEERS = {
    "loop": "`apply_async` loop", "once": "celery-once-beat", "stock": "stock beat", "redbeat": "RedBeat",
    "django": "django-celery-beat (SQLite)",
}  # fmt: skip
BEATS = ("once", "stock", "redbeat", "django")
WORKERS = ("worker", "far", *(f"{ms} ms" for ms in LASTING), "peers")
#: The pools of the workers, and how many tasks each runs at a time.
POOLS = {"solo": 1, "prefork": 2, "threads": 4, "gevent": 10}
#: Seconds of a round trip to the store, for workers that have it elsewhere.
AWAY = 0.001
COUNTS = (100, 1000, 10_000, 100_000)
#: From due to the body: how many entries, and which beats.
FELT = (1, 100, 1000, 10_000)
FEELERS = {
    ("once", 2): "celery-once-beat, two beats", ("once", 1): "celery-once-beat, one beat", ("stock", 1): PEERS["stock"],
    ("redbeat", 1): PEERS["redbeat"], ("django", 1): PEERS["django"],
}  # fmt: skip
PACKAGES = ("celery-redbeat", "django-celery-beat", "celery-once", "celery-singleton")


def about(rounds: int, server: str) -> dict[str, str]:
    """Where, when and with what it was measured."""
    return {
        "machine": f"{machine(*PACKAGES)}, {server}",
        "how": f"`make bench`, medians of {rounds} rounds; what takes long, once",
    }


def write(found: Mapping[str, Any], root: Path) -> None:
    """Put the figures into the report, and into docs/scaling.md's table of costs; draw the plots, print the goals."""
    from benchmarks.plots import plot

    figures, page = found["figures"], root / "docs/reports/benchmarks.md"
    print(goals(figures))
    about = f"{found['machine']}; {found['how']}."
    page.write_text(fill(page.read_text(), about, _tables(figures)))
    plot(figures, page.parent)
    source = f"{found['machine'].partition(', celery-redbeat')[0]}; {found['how']}"
    _put(
        root / "docs/scaling.md",
        f"{_felt(figures)}\n\n{_costs(figures)}\n\n{source}. [All figures and goals](reports/benchmarks.md).",
    )


def fill(page: str, about: str, tables: list[str]) -> str:
    """The page with what was measured: its third line, and its tables in their order."""
    title, blank, _, *lines = page.splitlines()
    texts = re.split(r"(?:^\|.*\n)+", "\n".join([title, blank, about, *lines, ""]), flags=re.MULTILINE)
    return "".join(f"{text}{made}" for text, made in zip(texts, [*(f"{each}\n" for each in tables), ""], strict=True))


def _put(file: Path, shown: str) -> None:
    before, _, rest = file.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    file.write_text(f"{before}{MARKS[0]}\n{shown}\n{MARKS[1]}{after}")


def _costs(f: Figures) -> str:
    """What a window costs each process, and so how many of them a core of it bears."""
    costs = {
        "a beat, a window it publishes": f["burst once 10000"]["cpu"],
        "a beat, a window that another publishes": max((f["beats 2"]["cpu"] - f["beats 1"]["cpu"]), 1.0),
        "the store, a window from claim to finish": f["history"]["server"],
        "a worker, what begin and finish add to a task (solo)": f["worker solo"]["windows more cpu"],
        "beside it: a task of Celery's that does nothing": f["worker solo"]["plain cpu"],
    }  # fmt: skip
    return table(
        ["", "µs", "a second, on one core"],
        [[what, f"{cost:,.0f}", f"{_two_digits(1e6 / cost):,}"] for what, cost in costs.items()],
    )


def _felt(f: Figures) -> str:
    """From the instant at which so many entries are due to the first line of their bodies."""

    def cell(beats: tuple[str, int], count: int) -> str:
        found = f.get(f"felt {beats[0]} {beats[1]} {count}")
        return "; ".join(f"{found[key]:.2f}" for key in ("p50", "p99", "last")) if found else ""

    return table(
        ["seconds from due to the body: half, 99 %, all", *(f"{count:,}" for count in FELT)],
        [[label, *(cell(beats, count) for count in FELT)] for beats, label in FEELERS.items()],
    )


def _two_digits(value: float) -> int:
    digits = 10 ** max(len(str(int(value))) - 2, 0)
    return int(value / digits) * digits


# -- the goals -----------------------------------------------------------------------------------------------------


def goals(f: Figures) -> str:
    """A row for each goal: what it is, what was reached, and whether; without those of which a part wasn't measured."""
    rows = []
    for what, value, goal in GOALS:
        with suppress(KeyError):
            rows.append(_row(what, _values(f, value) if isinstance(value, str) else value(f), goal))
    return "\n".join(["| what | goal | measured | |", "| --- | --- | ---: | --- |", *rows])


def _values(f: Figures, spec: str) -> list[float]:
    """``RUN, RUN / OTHER: FIGURE``: the figure of each run, as it is or as a part of the other's."""
    runs, _, key = spec.partition(": ")
    runs, _, other = runs.partition(" / ")
    return [f[run][key] / (f[other][key] if other else 1.0) for run in runs.split(", ")]


def _growth(f: Figures) -> list[float]:
    cpu = [f[f"burst once {count}"]["cpu"] for count in COUNTS]
    return [max(cpu) / min(cpu)]


def _of_each(which: str, pools: Iterable[str] = POOLS) -> str:
    return ", ".join(f"{which} {pool}" for pool in pools)


BURST, SEVERAL = "burst once 10000", ("prefork", "threads", "gevent")
#: What it is, what was measured (in several pools, perhaps), and what it should be: at least or at most, or its unit.
GOALS: list[tuple[str, str | Value, str]] = [
    ("1,000 due at once, two beats: from due to the body, half of them", "felt once 2 1000: p50", "at most 0.45 s"),
    ("… the last", "felt once 2 1000: last", "at most 0.9 s"),
    (
        "… of the time that the worker needs for plain tasks from a full queue",
        lambda f: [f["felt once 2 1000"]["last"] / (f["worker threads"]["plain"] / 1e3)], "at most 1.3 times",
    ),
    (
        "burst of 10,000, one beat: rate of the `apply_async` loop's",
        f"{BURST} / burst loop 10000: rate", "at least 1.5",
    ),
    ("… CPU a message, of the loop's", f"{BURST} / burst loop 10000: cpu", "at most 0.6"),
    ("… rate over RabbitMQ", "rabbitmq once 10000 / rabbitmq loop 10000: rate", "at least 1"),
    ("… CPU a message over RabbitMQ, and the loop's", "rabbitmq once 10000, rabbitmq loop 10000: cpu", "µs"),
    ("… of RedBeat's", f"{BURST} / burst redbeat 10000: rate", "at least 2 times"),
    ("… of stock beat's", f"{BURST} / burst stock 10000: rate", "at least 50 times"),
    ("… CPU an entry, the most of 100 to 100,000 entries: of the least", _growth, "at most 1.25"),
    ("two beats: CPU a window over both, of one beat's", "beats 2 / beats 1: cpu", "at most 1.15"),
    ("… the smaller share", "beats 2: least", "at least 40 %"),
    ("10,000 due, two beats, one paused 20 s in the middle: run twice", "paused once: twice", "at most 0"),
    ("… lost", "paused once: lost", "at most 0"),
    ("idle, 10,000 entries: a tick", "idle once: tick", "at most 0.2 ms"),
    ("… of a core", "idle once: core", "at most 1 %"),
    ("first start with 10,000 entries", "start once: seconds", "at most 0.4 s"),
    ("100,000 schedules that people have set: until all are loaded", "stored: seconds", "s"),
    ("… a change of one: CPU of the beat", "stored: change", "ms"),
    ("20,000 schedules that people have set: CPU of `set_many`", "managed: set", "at most 2 s"),
    ("… of `status`", "managed: status", "at most 3 s"),
    ("… of `schedules apply` of a file that changes nothing", "managed: apply", "at most 3 s"),
    ("1,000,000 entries: until all are loaded", "million: seconds", "at most 60 s"),
    ("… memory beside Celery's entries and the configuration", "million: own", "at most 1 GB"),
    ("… of a core, idle", "million: core", "at most 1 %"),
    ("publish, 10 entries a second: lateness p99", "late 10: p99", "at most 20 ms"),
    (
        "… 1,000 entries a second: until the last, of the loop's time",
        lambda f: [f["late 1000"]["last"] * f["burst loop 1000"]["rate"] / 1000], "at most 0.8",
    ),
    (
        "worker, tasks that do nothing, rate of plain ones: prefork, threads, gevent",
        f"{_of_each('worker', SEVERAL)}: windows rate", "at least 0.8",
    ),
    ("… solo, where everything waits for each round trip", "worker solo: windows rate", "at least 0.68"),
    (
        "… CPU of a window over worker, main process and server, beside a plain task: solo, threads",
        "worker solo, worker threads: windows more of all", "at most 400 µs",
    ),
    ("… prefork", "worker prefork: windows more of all", "at most 500 µs"),
    (
        "… of the time that the plain task takes: solo, threads, prefork",
        lambda f: [
            f[f"worker {pool}"]["windows more of all"] / f[f"worker {pool}"]["plain"]
            for pool in ("solo", "threads", "prefork")
        ],
        "",
    ),
    ("… the store 1 ms away: prefork, threads, gevent", f"{_of_each('far', SEVERAL)}: windows rate", "at least 0.75"),
    ("… the store 1 ms away: solo", "far solo: windows rate", ""),
    *(
        (f"… tasks of {ms} ms: solo, prefork, threads, gevent", f"{_of_each(f'{ms} ms')}: windows rate", goal)
        for ms, goal in zip(LASTING, ("", "at least 0.97", "at least 0.99"), strict=True)
    ),
    (
        "… an `OnceTask` sent without a window: solo, prefork, threads, gevent",
        f"{_of_each('worker')}: without window rate", "at least 0.98",
    ),
    ("… CPU of its process beside a plain task", f"{_of_each('worker')}: without window more cpu", "µs"),
    ("begin and finish, one process", "calls: each", "at most 260 µs"),
    ("claim to finish, CPU of the server", "history: server", "at most 200 µs"),
    ("takeover from a killed worker, lease 5 s", "takeover: last", f"at most {LEASE + MARGIN + INTERVAL + 1:g} s"),
    ("Redis, an entry at rest, one beat", "memory once: bytes", "at most 900 bytes"),
    ("… with 50 windows of history", "history: bytes", "at most 5,000 bytes"),
]  # fmt: skip
#: What a figure is multiplied by where it is shown in these.
UNITS = {"ms": 1e3, "%": 100.0, "GB": 1e-9}


def _row(what: str, values: list[float], goal: str) -> str:
    bound, limit, unit = re.fullmatch(r"(?:at (least|most) ([\d,.]+) ?)?(.*)", goal).groups()
    values = [value * UNITS.get(unit, 1.0) for value in values]
    most = float(limit.replace(",", "")) if bound else 0.0
    missed = bound and any(value < most if bound == "least" else value > most for value in values)
    each = " each" if len(values) > 1 else ""
    measured = f"{', '.join(map(_number, values))} {unit}".strip()
    return f"| {what} | {goal + each if bound else ''} | {measured} | {'missed' if missed else ''} |"


def _number(value: float) -> str:
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# -- all figures ---------------------------------------------------------------------------------------------------


def _tables(f: Figures) -> list[str]:
    """All tables of the page, in its order."""
    beats = "beats seconds .1f; beats cpu .0f; beats least .0%; beats most .0%"
    late = "late p50 .1f 1000; late p99 .1f 1000; late last .1f 1000"
    takeover = f["takeover"]
    return [
        _felt(f),
        _costs(f),
        goals(f),
        _bursts(f, "rate"),
        _bursts(f, "cpu"),
        _each(f, "beats | seconds | CPU of all, µs a window | the smallest share | the largest", (1, 2, 4), beats),
        _each(f, " | run twice | lost | copies refused", ("once", "redbeat"),
              "paused twice ,.0f; paused lost ,.0f; paused refused ,.0f"),
        _each(f, " | tick, ms | of a core | first start, s", BEATS,
              "idle tick .3f 1000; idle core .2%; start seconds .2f"),
        _each(f, "entries a second | p50, ms | p99, ms | until the last of a second's, ms", (10, 1000), late),
        *(_workers(f, which) for which in WORKERS),
        table(
            ["", "a plain task", "a window"],
            [[place, *(_cell(f, "sampled", f"{kind} {place}") for kind in ("plain", "windows"))] for place in PLACES],
        ),
        table(
            ["", "bytes an entry"],
            [
                ["celery-once-beat, at rest", _cell(f, "memory once", "bytes")],
                ["… with 50 windows of history", _cell(f, "history", "bytes")],
                ["RedBeat", _cell(f, "memory redbeat", "bytes")],
            ],
        ),
        table(["the first, s", "the last, s"], [[f"{takeover[which]:.1f}" for which in ("first", "last")]], words=0),
    ]  # fmt: skip


def _workers(f: Figures, which: str) -> str:
    """µs and CPU µs a task, by pool."""
    pools = {f"{pool}, {size}": f[f"{which} {pool}"] for pool, size in POOLS.items() if f"{which} {pool}" in f}
    kinds = [kind for kind in KINDS if f"{kind} cpu" in next(iter(pools.values()))]
    return table(
        ["", *pools],
        [
            [kind, *(f"{found[kind]:,.0f}, CPU {found[f'{kind} cpu']:,.0f}" for found in pools.values())]
            for kind in kinds
        ],
    )


def _each(f: Figures, head: str, names: Sequence[str | int], cells: str) -> str:
    """A row of each name; ``cells``: of each the run, the figure, its format and by what it is multiplied."""

    def cell(name: str | int, run: str, key: str, spec: str, times: str = "1") -> str:
        what = f"{run} {name}"
        return format(f[what][key] * float(times), spec) if what in f else ""

    columns = [column.split() for column in cells.split("; ")]
    rows = [[PEERS.get(str(name)) or f"{name:,}", *(cell(name, *column) for column in columns)] for name in names]
    return table(head.split(" | "), rows)


def _bursts(f: Figures, key: str) -> str:
    return table(
        ["", *(f"{count:,}" for count in COUNTS)],
        [[label, *(_cell(f, f"burst {subject} {count}", key) for count in COUNTS)] for subject, label in PEERS.items()],
    )


def _cell(f: Figures, what: str, key: str) -> str:
    return f"{f[what][key]:,.0f}" if key in f.get(what, ()) else ""
