"""A run as a picture: a lane for each process, with what it claimed, published and executed. Light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from xml.sax.saxutils import escape

from .ledger import Event, WindowKey
from .telling import Act

__all__ = ("STYLE", "draw")

#: Colours follow the reader's scheme, and the picture brings its own background: it can be read on any page.
STYLE = """\
svg{--bg:#fff;--fg:#1f2328;--dim:#59636e;--line:#d1d9e0;--run:#54aeff;--hit:#bf8700;--dead:#cf222e}
@media(prefers-color-scheme:dark){svg{--bg:#151b23;--fg:#e6edf3;--dim:#9198a1;--line:#3d444d;--run:#1f6feb;--hit:#d29922;--dead:#f85149}}
text{font:13px system-ui,sans-serif;fill:var(--fg)}.dim{fill:var(--dim)}.small{font-size:11px}
.life{stroke:var(--line);stroke-width:2}.grid{stroke:var(--line);stroke-dasharray:2 4}
.run{fill:var(--run)}.hit{fill:var(--hit)}.lost{fill:none;stroke:var(--hit);stroke-width:2;stroke-dasharray:4 3}
.dead{stroke:var(--dead);stroke-width:3;fill:none}.by{stroke:var(--hit);stroke-width:1.5;fill:none}
"""
LEGEND = "A dot is a claim or a repeated publish, a bar an execution. The lease is 3 s; the default is 30 s."
WIDTH, LABEL, LANE, TOP, NOTE = 560, 82, 40, 34, 20


class _Scale:
    def __init__(self, at: float, before: float, after: float) -> None:
        self.at, self.before, self.after = at, before, after

    def x(self, at: float) -> float:
        seconds = max(-self.before, min(self.after, at - self.at))
        return round(LABEL + (seconds + self.before) / (self.before + self.after) * (WIDTH - LABEL - 14), 1)

    def shows(self, at: float) -> bool:
        return -self.before <= at - self.at <= self.after


def draw(told: Iterable[Act | Event], lanes: Sequence[str], victim: str, at: float, before: float, after: float) -> str:
    """The picture of what was told from ``before`` seconds before ``at``, when the victim was killed, to ``after``."""
    scale = _Scale(at, before, after)
    events = [what for what in told if isinstance(what, Event)]
    events.sort(key=lambda event: event.at - (event.kind == "published") / 10)  # which is noted after the worker has it
    promoted = [act.at for act in told if isinstance(act, Act) and act.text.endswith("promoted")]
    hit = _hit(events, victim, at)
    notes = list(_notes(events, hit, victim, at, promoted))
    bottom = TOP + LANE * len(lanes)
    height = bottom + 50 + NOTE * len(notes)
    body = [
        *_grid(scale, bottom),
        *(part for number, name in enumerate(lanes) for part in _lane(name, number, victim, scale)),
        *_marks(events, lanes, hit, scale),
        *(f'<path class="by" d="M{scale.x(when)} {_y(lanes, "redis-2") - 9}v18"/>' for when in promoted),
        *(f'<text x="14" y="{bottom + 28 + NOTE * number}">{escape(text)}</text>' for number, text in enumerate(notes)),
        f'<text class="dim small" x="14" y="{height - 14}">{LEGEND}</text>',
    ]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">',
        f"<title>{escape('; '.join(notes))}</title>", f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="var(--bg)"/>', *body, "</svg>", "",
    ])  # fmt: skip


def _hit(events: Sequence[Event], victim: str, at: float) -> WindowKey | None:
    """The window that the death interrupts: the victim's last claim or execution, if that didn't finish before."""
    kinds = {"claimed", "start"}
    mine = [event.window for event in events if event.who == victim and event.at <= at + 0.1 and event.kind in kinds]
    return mine[-1] if mine else None


def _notes(
    events: Sequence[Event], hit: WindowKey | None, victim: str, at: float, promoted: Sequence[float]
) -> Iterator[str]:
    """What happens to that window, in order; over a failover, when windows run again."""

    def after(when: float) -> str:
        return f"{when - at:.1f} s"

    doing = "before it publishes" if victim.startswith("beat") else "while it runs"
    yield f"0.0 s  {victim} is killed" + (f" {doing} {hit}" if hit else "")
    for when in promoted:
        yield f"{after(when)}  redis-2 is the master"
        first = {kind: min(e.at for e in events if e.kind == kind and e.at > when) for kind in ("claimed", "start")}
        yield f"{after(first['claimed'])}  beats claim again; {after(first['start'])}  workers begin again"
        yield "Each window was executed once."
    for event in events:
        if event.window == hit and event.at > at:
            what = {
                "published": "publishes it again" if event.again else "publishes it",
                "start": f"executes it, attempt {event.attempt}",
                "finish": "is done",
            }
            if event.kind in what:
                yield f"{after(event.at)}  {event.who} {what[event.kind]}"


def _grid(scale: _Scale, bottom: int) -> Iterator[str]:
    for second in range(-int(scale.before), int(scale.after) + 1):
        x = scale.x(scale.at + second)
        yield f'<path class="grid" d="M{x} {TOP - 6}V{bottom}"/>'
        yield f'<text class="dim small" x="{x}" y="{TOP - 14}" text-anchor="middle">{second} s</text>'


def _y(lanes: Sequence[str], name: str) -> int:
    return TOP + LANE * lanes.index(name) + LANE // 2


def _lane(name: str, number: int, victim: str, scale: _Scale) -> Iterator[str]:
    y = TOP + LANE * number + LANE // 2
    end = scale.x(scale.at) if name == victim else scale.x(scale.at + scale.after)
    yield f'<text x="14" y="{y + 4}">{name}</text><path class="life" d="M{LABEL} {y}H{end}"/>'
    if name == victim:
        yield f'<path class="dead" d="M{end - 7} {y - 7}l14 14m0 -14l-14 14"/>'


def _marks(events: Sequence[Event], lanes: Sequence[str], hit: WindowKey | None, scale: _Scale) -> Iterator[str]:
    """Claims and repeated publishes as dots, bodies as bars; those of the window that was hit stand out."""
    before: tuple[float, float] | None = None
    busy: dict[tuple[str, int], float] = {}
    for event in (event for event in events if event.who in lanes and scale.shows(event.at)):
        x, y, kind = scale.x(event.at), float(_y(lanes, event.who)), "hit" if event.window == hit else "run"
        if event.kind == "start":
            ends = [each.at for each in events if each.kind == "finish" and event.same_run(each)]
            end = max(scale.x(min([*ends, scale.at + scale.after])), x + 4)
            row = next(row for row in count() if busy.get((event.who, row), 0) <= x)
            busy[event.who, row] = end
            y += (0, -11, 11)[row % 3]
            if not ends and event.window == hit:
                kind, end = "lost", max(scale.x(scale.at), x + 4)
            yield f'<rect class="{kind}" x="{x}" y="{y - 5}" width="{end - x:.1f}" height="10" rx="3"/>'
        elif event.kind == "claimed" or event.again:
            yield f'<circle class="{kind}" cx="{x}" cy="{y}" r="5"/>'
        if event.window == hit and (event.kind in ("claimed", "start") or event.again):
            if before:
                yield f'<path class="by" d="M{before[0]} {before[1]}L{x} {y}"/>'
            before = x, y
