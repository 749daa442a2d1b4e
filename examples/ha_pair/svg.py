"""Frames of a terminal as an animated SVG: no script, nothing from elsewhere, fit for ``<img>``.

Each distinct line is drawn once, among the definitions. Where it was on the screen it is used, and the times at which
it was there are a CSS animation of its visibility. Who wants no motion, or can't show any, sees the last frame.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple
from xml.sax.saxutils import escape

__all__ = ("BACKGROUND", "FOREGROUND", "Frame", "Line", "Span", "film")

BACKGROUND, FOREGROUND = "#0d1117", "#e6edf3"
BORDER, MUTED = "#484f58", "#8b949e"
#: A character cell, and what stands around the screen, in the SVG's own units.
CELL, LINE, FONT = 8.4, 18, 14
BASELINE, MARGIN, BAR = 13, 14, 30
FONTS = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace'
#: Words with single spaces between them; what stands further apart is a column of its own.
_WORDS = re.compile("[^ ]+(?: [^ ]+)*")
#: Characters that XML can't hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Span(NamedTuple):
    """Text of one style; ``style`` is CSS. Each character takes one cell."""

    text: str
    style: str = ""


Line = tuple[Span, ...]
#: Where a line was on the screen: from which to before which frame.
Times = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Frame:
    """What the screen showed from ``at`` on, seconds; lines from the top."""

    at: float
    lines: tuple[Line, ...]


def film(frames: Sequence[Frame], *, columns: int, rows: int, hold: float, title: str) -> str:
    """The frames as one SVG that loops; the last of them stays for ``hold`` seconds."""
    defs: dict[Line, str] = {}
    styles: dict[str, str] = {}
    times: dict[Times, str] = {}
    uses = []
    for (row, line), when in _on_screen(frames).items():
        name = defs.setdefault(line, f"l{len(defs)}")
        kinds = []
        if when != ((0, len(frames)),):
            kinds.append("a " + times.setdefault(when, f"t{len(times)}"))
            if when[-1][1] == len(frames):
                kinds.append("z")
        kind = f' class="{" ".join(kinds)}"' if kinds else ""
        uses.append(f'<use href="#{name}" y="{row * LINE}"{kind}/>')
    drawn = [f'<g id="{name}">{"".join(_draw(line, styles))}</g>' for line, name in defs.items()]
    width, height = round(columns * CELL + 2 * MARGIN), rows * LINE + BAR + MARGIN
    size = f'width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size} role="img">',
            f"<title>{_escape(title)}</title>",
            "<style>",
            *_css(frames, hold, styles, times),
            "</style>",
            "<defs>",
            *drawn,
            "</defs>",
            f'<rect {size} rx="9" fill="{BORDER}"/>',
            f'<rect x="1" y="1" width="{width - 2}" height="{height - 2}" rx="8" fill="{BACKGROUND}"/>',
            *(f'<circle cx="{MARGIN + 6 + 18 * number}" cy="16" r="5" fill="{BORDER}"/>' for number in range(3)),
            f'<text x="{width / 2:g}" y="20" text-anchor="middle" style="fill:{MUTED}">{_escape(title)}</text>',
            f'<g transform="translate({MARGIN} {BAR})">',
            *uses,
            "</g>",
            "</svg>",
            "",
        ]
    )


def _on_screen(frames: Sequence[Frame]) -> dict[tuple[int, Line], Times]:
    """For each row and line that was on it: when."""
    found: dict[tuple[int, Line], list[tuple[int, int]]] = {}
    for number, frame in enumerate(frames):
        for row, line in enumerate(frame.lines):
            if not any(span.text.strip() for span in line):
                continue
            spells = found.setdefault((row, line), [])
            if spells and spells[-1][1] == number:
                spells[-1] = (spells[-1][0], number + 1)
            else:
                spells.append((number, number + 1))
    return {key: tuple(spells) for key, spells in found.items()}


def _css(frames: Sequence[Frame], hold: float, styles: dict[str, str], times: dict[Times, str]) -> Iterator[str]:
    began = frames[0].at
    length = frames[-1].at - began + hold
    yield f"text{{font:{FONT}px {FONTS};white-space:pre;fill:{FOREGROUND}}}"
    for style, name in styles.items():
        yield f".{name}{{{style}}}"
    # What is seen without the animation is the last frame.
    yield f".a{{visibility:hidden;animation:{length:.2f}s step-end infinite}}.z{{visibility:visible}}"
    for when, name in times.items():
        steps = {0: "hidden"}
        for first, end in when:
            steps[first] = "visible"
            if end < len(frames):
                steps[end] = "hidden"
        stops = "".join(
            f"{_percent((frames[number].at - began) / length)}{{visibility:{seen}}}" for number, seen in steps.items()
        )
        yield f".{name}{{animation-name:{name}}}@keyframes {name}{{{stops}}}"
    yield "@media(prefers-reduced-motion:reduce){.a{animation:none}}"


def _percent(part: float) -> str:
    return f"{100 * part:.3f}".rstrip("0").rstrip(".") + "%"


def _draw(line: Line, styles: dict[str, str]) -> Iterator[str]:
    """The line's text elements, each at its column and as wide as its cells, whatever the font."""
    column = 0
    for span in line:
        kind = f' class="{styles.setdefault(span.style, f"s{len(styles)}")}"' if span.style else ""
        # A symbol may come from another font: it stands alone, so that it shifts nothing else.
        for symbol, group in groupby(span.text, key=lambda char: "" if char.isascii() else char):
            text = "".join(group)
            for words in _WORDS.finditer(text):
                shown, start = words[0], column + words.start()
                fit = f' textLength="{len(shown) * CELL:g}"' if len(shown) > 1 else ""
                if symbol and fit:  # a rule, say: without gaps
                    fit += ' lengthAdjust="spacingAndGlyphs"'
                yield f'<text x="{start * CELL:g}" y="{BASELINE}"{fit}{kind}>{_escape(shown)}</text>'
            column += len(text)


def _escape(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))
