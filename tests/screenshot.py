"""Takes docs/board*.png: the board over a store with a day's past, light and dark, wide and on a phone.

``make screenshot``. The past is made by the store's own verbs, the same whenever the pictures are taken.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import filled
from needs import need
from playwright.sync_api import Browser, Page, expect, sync_playwright
from processes import Processes
from servers import RedisServer, need_server

from celery_once_beat.beat.schedule import load_schedule
from celery_once_beat.settings import Settings
from celery_once_beat.store.verbs import Store
from celery_once_beat.windows import WindowKey

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEATS = ("web-1:4211:8d1f03ab", "web-2:3980:77aa91c2")
#: A window that is younger hasn't always ended.
YOUNG = timedelta(minutes=12)


def main() -> None:
    server = RedisServer.start(need_server())
    with tempfile.TemporaryDirectory(prefix="once-shot-") as folder, server, Processes(Path(folder)) as procs:
        env = {"CELERY_BROKER_URL": server.url(), "PYTHONPATH": str(Path(__file__).parent / "apps")}
        os.environ.update(env)
        sys.path.append(env["PYTHONPATH"])
        from shop import app

        store = Store(Settings.from_app(app))
        make_past(store, app)
        over = threading.Event()
        alive = threading.Thread(target=beat_on, args=(store, over))
        alive.start()
        command = [sys.executable, "-m", "celery", "-A", "shop", "once", "dashboard", "--port", "0"]
        board = procs.start(command, name="board", env=env)
        url = board.wait_log(r"the board is at (\S+)")[1]
        with sync_playwright() as playwright:
            root = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=need("chromium"), args=root)
            take_all(browser, url)
            browser.close()
        over.set()
        alive.join()
        store.close()


def make_past(store: Store, app: Any) -> None:
    """Let a day's windows be claimed and end; some of the youngest run, or wait."""
    chance = random.Random(11)
    rows = list(load_schedule(app, Settings.from_app(app)).entries)
    filled.load(store, rows, timedelta(hours=25))
    while windows := filled.claim(store, [row for row in rows if row.name != "year-end-report"]):
        for window in windows:
            if datetime.now(timezone.utc) - window.start > YOUNG:
                filled.execute(store, [window], how_it_ends(window, chance), worker=f"jobs-{chance.randint(1, 2)}")
            elif chance.random() < 0.6:
                store.begin(window, "jobs-2:1:delivery/1", 600.0)
    store.pause("crm-dedupe")


def how_it_ends(window: WindowKey, chance: random.Random) -> str:
    if window.entry == "mail-newsletter" and window.start.hour % 6 == 1:
        return "failed"
    return chance.choices(["done", "failed", "revoked"], [97, 2, 1])[0]


def beat_on(store: Store, over: threading.Event) -> None:
    while not over.wait(2):
        filled.beat_lives(store, *BEATS)


def take_all(browser: Browser, url: str) -> None:
    take(browser, "board", url, 1440, 980, "light")
    take(browser, "board-groups", f"{url}/?group=prefix&open=mail&zoom=6h", 1440, 560, "dark")
    take(browser, "board-phone", url, 400, 780, "light")
    story = open_page(browser, url, 1000, 640, "dark")
    story.locator("[href^=window].running").first.click()
    expect(story.get_by_role("dialog")).to_contain_text("Running for")
    story.screenshot(path=DOCS / "board-story.png")


def take(browser: Browser, name: str, url: str, width: int, height: int, scheme: str) -> None:
    open_page(browser, url, width, height, scheme).screenshot(path=DOCS / f"{name}.png")


def open_page(browser: Browser, url: str, width: int, height: int, scheme: Any) -> Page:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce")
    page.goto(url)
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#beats b")).to_have_count(len(BEATS))
    return page


if __name__ == "__main__":
    main()
