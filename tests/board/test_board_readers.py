"""The board shows what the beats run, and in what words a window failed."""

from __future__ import annotations

import re

import pytest
from boards import start_board
from processes import wait_until
from system import System, once_soon

WORK = "apps.once_app.work"


@pytest.mark.long
def test_the_board_shows_what_the_beats_run(system: System) -> None:
    """Also where its own code is another one, which it says in a line; and a story has the words of a failure."""
    system.entries = {
        "there": {"task": WORK, "every": 3600.0},
        "fails": {"task": "apps.once_app.ending", "args": ["fails"], **once_soon()},
    }
    system.worker(concurrency=1).wait_ready()
    system.beat()
    wait_until(lambda: system.outcomes("fails").get("failed"), "one has failed", 60)
    board = start_board(system, entries={"here": {"task": WORK, "every": 60.0}})
    page = wait_until(lambda: "no beat runs" in (text := board.ask("/").text) and text, "the beat has loaded all", 60)
    line = re.search(r'<p id="code">(.*)</p>', page)
    assert "no beat runs &#39;here&#39;; not in this code: &#39;fails&#39;, &#39;there&#39;" in line[1]
    assert page.count('role="rowheader"') == 2
    assert "last window failed: ValueError: this task fails" in page
    (window,) = re.findall(r'class="failed" href="(window/[^"]+)"', page)
    story = board.ask(f"/{window}").text
    assert "<dt>Failure</dt><dd>ValueError: this task fails</dd>" in story
