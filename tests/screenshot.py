"""Takes docs/board.png: the board over a pair that runs, with windows of many kinds: ``make screenshot``."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from needs import need
from playwright.sync_api import Page, expect, sync_playwright
from processes import Proc, Processes
from servers import RedisServer, need_server

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "board.png"
APP = "shop"
#: The picture is the same wherever it is taken: its machines have names of their own.
NAMED = "import os, socket\nname = os.environ.get('SHOWN_HOST')\nif name:\n    socket.gethostname = lambda: name\n"


def main() -> None:
    chromium = need("chromium")
    server = RedisServer.start(need_server())
    with tempfile.TemporaryDirectory(prefix="once-shot-") as folder, server, Processes(Path(folder)) as procs:
        (Path(folder) / "site").mkdir()
        (Path(folder) / "site" / "sitecustomize.py").write_text(NAMED)

        def on(host: str) -> dict[str, str]:
            paths = [f"{folder}/site", str(Path(__file__).parent / "apps"), os.environ.get("PYTHONPATH", "")]
            return {
                "SHOWN_HOST": host,
                "CELERY_BROKER_URL": server.url(),
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            }

        def beats() -> list[Proc]:
            return [procs.start_beat(APP, name=host, env=on(host)).wait_ready() for host in ("web-1", "web-2")]

        for host in ("jobs-1", "jobs-2"):
            options = {"pool": "threads", "concurrency": 4, "extra_args": ["-n", f"worker@{host}"]}
            procs.start_worker(APP, name=host, env=on(host), **options).wait_ready()
        first = beats()
        time.sleep(50)
        for beat in first:  # windows of the time without beats are missed
            beat.stop()
        time.sleep(20)
        beats()
        time.sleep(50)
        command = [sys.executable, "-m", "celery", "-A", APP, "once", "dashboard", "--port", "0"]
        board = procs.start(command, name="board", env=on("web-1"))
        url = board.wait_log(r"the board is at (\S+)")[1]
        with sync_playwright() as playwright:
            root = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=chromium, args=root)
            take(browser.new_page(viewport={"width": 1060, "height": 860}, reduced_motion="reduce"), url)
            browser.close()


def take(page: Page, url: str) -> None:
    """Take it while one window runs and another waits for its retry."""
    page.goto(url)
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator(".cells:has(.waiting)")).to_have_count(1, timeout=60_000)
    expect(page.locator(".cells .running").first).to_be_attached(timeout=60_000)
    page.screenshot(path=PICTURE, full_page=True)


if __name__ == "__main__":
    main()
