"""What the board costs with many entries: ``make boardcost``.

Prints, as medians over ROUNDS, when Chromium first paints the page, how long the server takes to answer, how many
bytes travel, and the seconds of CPU that a look costs the board and Redis while nothing changes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import filled
from boards import Board, start_board
from ledger import Ledger
from needs import need
from playwright.sync_api import Browser, expect, sync_playwright
from processes import Processes
from servers import RedisServer, need_server
from system import System

from celery_once_beat.beat.schedule import load_schedule
from celery_once_beat.settings import Settings

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
#: Each look says when it was.
COUNT_LOOKS = """() => {
    window.looks = 0;
    new MutationObserver(() => { window.looks += 1; })
        .observe(document.getElementById('as-of'), {subtree: true, childList: true, characterData: true});
}"""
#: Seconds for which looks are measured.
LOOKED_FOR = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=5000)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="once-cost-") as folder,
        RedisServer.start(need_server()) as server,
        Processes(Path(folder)) as procs,
    ):
        system = System(procs, Ledger(Path(folder) / "ledger"), server.url(), Path(folder))
        system.app, system.entries = "apps.many_app", {}
        os.environ.update(COUNT=str(asked.entries), **system.env())
        from apps.many_app import app

        loaded = load_schedule(app, Settings.from_app(app))
        outcomes = ["done"] * 11 + ["failed"]
        filled.fill(system.store, loaded, asked.windows, timedelta(hours=asked.windows, minutes=1), outcomes)
        board = start_board(system, COUNT=str(asked.entries))
        with sync_playwright() as playwright:
            root = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=need("chromium"), args=root)
            figures = [visited(browser, board) for _ in range(asked.rounds)]
            for name in figures[0]:
                print(f"{name:42}{statistics.median(figure[name] for figure in figures):12,.0f}")
            for name, value in looks(browser, board, server).items():
                print(f"{name:42}{value:12,.1f}")
            browser.close()


def visited(browser: Browser, board: Board) -> dict[str, float]:
    """Open the page as a new viewer."""
    page = browser.new_context(viewport={"width": 1920, "height": 1080}).new_page()
    page.goto(board.url, timeout=120_000)
    told: dict[str, Any] = page.evaluate("performance.getEntriesByType('navigation')[0].toJSON()")
    page.wait_for_function(PAINT, timeout=120_000)
    first = page.evaluate(PAINT)
    page.context.close()
    return {
        "first paint, ms": first,
        "the server's answer, ms": told["responseEnd"] - told["requestStart"],
        "bytes of the page": told["decodedBodySize"],
        "bytes that travel": told["encodedBodySize"],
    }


def looks(browser: Browser, board: Board, server: RedisServer) -> dict[str, float]:
    """What looks cost while one viewer sees the page and nothing changes."""
    page = browser.new_context().new_page()
    page.goto(board.url, timeout=120_000)
    expect(page.locator("#connection")).to_have_text("live", timeout=120_000)
    page.evaluate(COUNT_LOOKS)
    time.sleep(LOOKED_FOR / 5)
    before, counted = (cpu(board.proc.pid), cpu(server.pid)), page.evaluate("window.looks")
    time.sleep(LOOKED_FOR)
    after, number = (cpu(board.proc.pid), cpu(server.pid)), page.evaluate("window.looks") - counted
    page.context.close()
    return {
        "looks a second": number / LOOKED_FOR,
        "a look: CPU of the board, ms": (after[0] - before[0]) / number * 1000,
        "a look: CPU of Redis, ms": (after[1] - before[1]) / number * 1000,
    }


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
