"""The plots of the report: SVG without a background, in colours that are read on white and on black."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from benchmarks.report import COUNTS, FEELERS, FELT, PEERS
from matplotlib import pyplot as plt

#: Of Okabe and Ito's palette, which the colour-blind tell apart; markers say the same. Grey: half-way to both grounds.
STYLES = {
    "loop": ("#808080", "--", "x"), "once": ("#d55e00", "-", "o"), "stock": ("#0a84c6", "-", "s"),
    "redbeat": ("#009e73", "-", "^"), "django": ("#cc79a7", "-", "D"),
}  # fmt: skip
INK = "#808080"


def plot(figures: Mapping[str, Mapping[str, float]], folder: Path) -> None:
    """Write all plots."""
    mpl.use("svg")
    with mpl.rc_context(
        {
            "svg.hashsalt": "celery-once-beat", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 11,
            "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
        }
    ):  # fmt: skip
        bursts = {f"burst {subject}": (style, PEERS[subject]) for subject, style in STYLES.items()}
        _lines(figures, bursts, COUNTS, "rate", "entries a second", folder / "benchmarks-burst.svg")
        _lines(figures, bursts, COUNTS, "cpu", "CPU of the beat, µs an entry", folder / "benchmarks-growth.svg")
        felt = {
            f"felt {subject} {beats}": ((STYLES[subject][0], ":" if beats == 1 else "-", STYLES[subject][2]), label)
            for (subject, beats), label in FEELERS.items()
        }
        _lines(figures, felt, FELT, "last", "seconds from due until all bodies run", folder / "benchmarks-felt.svg")


def _lines(
    figures: Mapping[str, Mapping[str, float]],
    lines: Mapping[str, tuple[tuple[str, str, str], str]],
    counts: Sequence[int],
    key: str,
    label: str,
    path: Path,
) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    for which, ((colour, line, marker), name) in lines.items():
        points = [(n, figures[f"{which} {n}"][key]) for n in counts if f"{which} {n}" in figures]
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, marker=marker, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axes.set_xlabel("entries due at once")
    axes.set_ylabel(label)
    axes.grid(visible=True, color=INK, alpha=0.25, linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, transparent=True, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)
