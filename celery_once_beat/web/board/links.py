"""Links of a window to other tools, made from the user's templates. Pure.

``once_beat_board_links`` maps a link's name to a template like ``https://flower.example/task/{task_id}``. What fills it
comes from outside, so each value is percent-encoded: it can't leave its place in the address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import quote

from celery_once_beat.options import LINK_FIELDS
from celery_once_beat.status import WindowStatus
from celery_once_beat.windows import format_instant

from . import words


def links_of(
    templates: Mapping[str, str], window: WindowStatus, entry: str, task: str | None, task_id: str
) -> Iterator[tuple[str, str]]:
    """Yield name and address of each link; one that needs what isn't known of the window is left out."""
    known = {
        "entry": entry,
        "task": task or "",
        "task_id": task_id,
        "state": words.state_of(window.state).name,
        "beat": window.beat or "",
        "worker": window.worker,
        "start": format_instant(window.start),
        "begun": format_instant(window.begun) if window.begun else "",
        "ended": format_instant(window.closed) if window.closed else "",
    }
    assert known.keys() == LINK_FIELDS
    quoted = {name: quote(value, safe="", errors="surrogatepass") for name, value in known.items()}
    for name, template in templates.items():
        if all(value or f"{{{field}}}" not in template for field, value in known.items()):
            yield words.plain(name, 40), _filled(template, quoted)


def _filled(template: str, values: Mapping[str, str]) -> str:
    for field, value in values.items():
        template = template.replace(f"{{{field}}}", value)
    return template
