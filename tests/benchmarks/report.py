"""What was measured, for people: the goals with what was reached, all figures, and the plots."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chaos.report import machine

__all__ = ("about", "between", "write")

Figures = Mapping[str, Mapping[str, float]]

MARKS = ("<!-- benchmarks -->", "<!-- /benchmarks -->")
#: Of the takeover: the lease in seconds, and how much later a window is overdue; ours are a recovery interval and 1 s.
LEASE, MARGIN, INTERVAL = 5.0, 1.0, 2.0
PEERS = {
    "loop": "`apply_async` loop", "once": "celery-once-beat", "stock": "stock beat", "redbeat": "RedBeat",
    "django": "django-celery-beat (SQLite)",
}  # fmt: skip
COUNTS = (100, 1000, 10_000, 100_000)
PACKAGES = ("celery-redbeat", "django-celery-beat", "celery-once", "celery-singleton")


def about(rounds: int, server: str) -> dict[str, str]:
    """Where, when and with what it was measured."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return {
        "machine": f"{machine()}, {server}, {packages}",
        "how": f"`make bench`, medians of {rounds} rounds",
    }


def between(text: str) -> str:
    """What stands between the marks."""
    return text.partition(MARKS[0])[2].partition(MARKS[1])[0].strip()


def write(found: Mapping[str, Any], root: Path) -> None:
    """Write the report, its plots and docs/scaling.md's tables, and print the table."""
    from benchmarks.plots import plot

    folder = root / "docs/reports"
    folder.mkdir(parents=True, exist_ok=True)
    figures = found["figures"]
    table = goals(figures)
    print(table)
    (folder / "benchmarks.md").write_text(_page(found, table))
    plot(figures, folder)
    source = f"{found['machine']}; {found['how']}"
    _put(root / "docs/scaling.md", f"{_costs(figures)}\n\n{table}\n\n{source}. [All figures](reports/benchmarks.md).")


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
        "a worker, what begin and finish add to a task (solo)":
            f["worker solo windows"]["each"] - f["worker solo plain"]["each"],
    }  # fmt: skip
    return _table(
        ["", "µs", "a second, on one core"],
        [[what, f"{cost:,.0f}", f"{_two_digits(1e6 / cost):,}"] for what, cost in costs.items()],
    )


def _two_digits(value: float) -> int:
    digits = 10 ** max(len(str(int(value))) - 2, 0)
    return int(value / digits) * digits


# -- the goals -----------------------------------------------------------------------------------------------------


def goals(f: Figures) -> str:
    """A row for each goal: what it is, what was reached, and whether."""
    big = {subject: f[f"burst {subject} 10000"]["rate"] for subject in PEERS}
    cpu = [f[f"burst once {count}"]["cpu"] for count in COUNTS]
    one, two = f["beats 1"], f["beats 2"]
    loop_1000 = 1000 / f["burst loop 1000"]["rate"]
    rows = [
        _row("burst of 10,000, one beat: rate of the `apply_async` loop's", big["once"] / big["loop"], least=0.85),
        _row("… of RedBeat's", big["once"] / big["redbeat"], least=2, unit=" times"),
        _row("… of stock beat's", big["once"] / big["stock"], least=50, unit=" times"),
        _row("… CPU an entry, the most of 100 to 100,000 entries: of the least", max(cpu) / min(cpu), most=1.25),
        _row("two beats: CPU a window over both, of one beat's", two["cpu"] / one["cpu"], most=1.15),
        _row("… the smaller share", two["least"] * 100, least=40, unit=" %"),
        _row("10,000 due, two beats, one paused 20 s in the middle: run twice", f["paused once"]["twice"], most=0),
        _row("… lost", f["paused once"]["lost"], most=0),
        _row("idle, 10,000 entries: a tick", f["idle once"]["tick"] * 1e3, most=0.2, unit=" ms"),
        _row("… of a core", f["idle once"]["core"] * 100, most=1, unit=" %"),
        _row("first start with 10,000 entries", f["start once"]["seconds"], most=0.5, unit=" s"),
        _row("publish, 10 entries a second: lateness p99", f["late 10"]["p99"] * 1e3, most=20, unit=" ms"),
        _row(
            "… 1,000 entries a second: until the last, of the loop's time", f["late 1000"]["last"] / loop_1000, most=1.2
        ),
        *(
            _row(
                f"worker, tasks that do nothing, {pool}: rate of a plain task's",
                _worker(f, f"worker {pool}"),
                least=0.85,
            )
            for pool in ("solo", "prefork", "threads")
        ),
        *(
            _row(f"… tasks of 50 ms, {pool}", _worker(f, f"50 ms {pool}"), least=0.99)
            for pool in ("solo", "prefork", "threads")
        ),
        *(
            _row(
                f"… an `OnceTask` sent without a window, {pool}",
                _worker(f, f"worker {pool}", "without window"),
                least=0.98,
            )
            for pool in ("solo", "prefork", "threads")
        ),
        _row(
            "takeover from a killed worker, lease 5 s",
            f["takeover"]["last"],
            most=LEASE + MARGIN + INTERVAL + 1,
            unit=" s",
        ),
        _row("Redis, an entry at rest, one beat", f["memory once"]["bytes"], most=900, unit=" bytes"),
        _row("… with 50 windows of history", f["history"]["bytes"], most=5000, unit=" bytes"),
    ]
    return "\n".join(["| what | goal | measured | |", "| --- | --- | ---: | --- |", *rows])


def _worker(f: Figures, which: str, name: str = "windows") -> float:
    return f[f"{which} plain"]["each"] / f[f"{which} {name}"]["each"]


def _row(what: str, value: float, *, least: float | None = None, most: float | None = None, unit: str = "") -> str:
    goal = f"at least {least:g}{unit}" if least is not None else f"at most {most:,g}{unit}"
    reached = (least is None or value >= least) and (most is None or value <= most)
    return f"| {what} | {goal} | {_number(value)}{unit} | {'' if reached else 'missed'} |"


def _number(value: float) -> str:
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# -- all figures ---------------------------------------------------------------------------------------------------


def _page(found: Mapping[str, Any], table: str) -> str:
    f: Figures = found["figures"]
    parts = [
        "# Benchmarks",
        (
            f"{found['machine']}; {found['how']}. One server for store and broker, on loopback, without persistence; "
            "messages and bodies are counted, and each must be there once."
        ),
        "## Goals",
        table,
        "## A burst: entries a second",
        (
            "All entries are due at once; until the last message is out, ours confirmed too. Stock beat and "
            "django-celery-beat compare the whole schedule for each message; of 10,000 they were watched for 10 s."
        ),
        _bursts(f, "rate"),
        "![rates](benchmarks-burst.svg)",
        "CPU of the beat, µs an entry:",
        _bursts(f, "cpu"),
        "![CPU](benchmarks-growth.svg)",
        "Commands an entry, of clients and of their scripts (a burst of 100):",
        _table(
            ["", "clients", "scripts"],
            [
                [PEERS[s], f"{f[f'traffic {s}']['commands']:.1f}", f"{f[f'traffic {s}']['of_scripts']:.1f}"]
                for s in ("once", "stock", "redbeat", "django")
            ],
        ),
        "## Several beats that share a burst of 10,000",
        _table(
            ["beats", "seconds", "CPU of all, µs a window", "shares"],
            [
                [
                    str(n),
                    f"{f[f'beats {n}']['seconds']:.1f}",
                    f"{f[f'beats {n}']['cpu']:.0f}",
                    f"{f[f'beats {n}']['least']:.0%} to {f[f'beats {n}']['most']:.0%}",
                ]
                for n in (1, 2, 4)
            ],
        ),
        (
            "Two beats, 10,000 due at once, one paused for 20 s after a quarter of them; then a worker runs all that "
            "was sent:"
        ),
        _table(
            ["", "run twice", "lost", "copies refused"],
            [
                [PEERS[s], *(_number(f[f"paused {s}"][key]) for key in ("twice", "lost", "refused"))]
                for s in ("once", "redbeat")
            ],
        ),
        "## Idle and start, 10,000 entries",
        _table(
            ["", "tick, ms", "of a core", "first start, s"],
            [
                [
                    PEERS[s],
                    f"{f[f'idle {s}']['tick'] * 1e3:.3f}" if f"idle {s}" in f else "",
                    f"{f[f'idle {s}']['core']:.2%}" if f"idle {s}" in f else "",
                    f"{f[f'start {s}']['seconds']:.2f}",
                ]
                for s in ("once", "stock", "redbeat", "django")
            ],
        ),
        "## Lateness of the publish",
        _table(
            ["entries a second", "p50, ms", "p99, ms", "until the last of a second's, ms"],
            [[n, *(f"{f[f'late {n}'][key] * 1e3:.1f}" for key in ("p50", "p99", "last"))] for n in ("10", "1000")],
        ),
        "## Workers: µs a task",
        "Tasks that do nothing (3,000), and of 50 ms; with windows each is begun and finished in Redis.",
        _table(
            ["", *(f"{pool}" for pool in ("solo", "prefork, 2", "threads, 4"))],
            [
                [name, *(_cell(f, f"worker {pool} {name}", "each") for pool in ("solo", "prefork", "threads"))]
                for name in ("plain", "windows", "without window", "celery-once", "celery-singleton")
            ]
            + [
                [
                    f"50 ms, {name}",
                    *(_cell(f, f"50 ms {pool} {name}", "each") for pool in ("solo", "prefork", "threads")),
                ]
                for name in ("plain", "windows")
            ],
        ),
        "## What it costs Redis",
        _table(
            ["", "bytes an entry"],
            [
                ["celery-once-beat, at rest", _cell(f, "memory once", "bytes")],
                ["… with 50 windows of history", _cell(f, "history", "bytes")],
                ["RedBeat", _cell(f, "memory redbeat", "bytes")],
            ],
        ),
        "With so many windows open:",
        _table(
            ["open windows", "µs a claim, in a pipeline of 100", "a look at what is overdue, ms"],
            [
                [f"{n:,}", f"{f[f'open {n}']['claim'] * 1e6:.0f}", f"{f[f'open {n}']['look'] * 1e3:.2f}"]
                for n in (100, 1000, 10_000)
            ],
        ),
        "## Takeover",
        (
            f"Eight bodies run in a worker that is killed; with a lease of 5 s the first ran again after "
            f"{f['takeover']['first']:.1f} s, the last after {f['takeover']['last']:.1f} s."
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _bursts(f: Figures, key: str) -> str:
    return _table(
        ["", *(f"{count:,}" for count in COUNTS)],
        [[label, *(_cell(f, f"burst {subject} {count}", key) for count in COUNTS)] for subject, label in PEERS.items()],
    )


def _cell(f: Figures, what: str, key: str) -> str:
    return f"{f[what][key]:,.0f}" if what in f else ""


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
