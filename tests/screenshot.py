"""Takes docs/board*.png: the board over a store with a day's past, light and dark, wide and on a phone.

``make screenshot``. The past is made by the store's own verbs. Whenever that is, the newsletter has failed, and
its newest window runs.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import filled
from needs import need
from playwright.sync_api import Browser, Page, expect, sync_playwright
from processes import Processes
from servers import RedisServer, need_server

from celery_once_beat.beat.schedule import load_schedule
from celery_once_beat.schedules import check_words
from celery_once_beat.settings import Settings
from celery_once_beat.store.verbs import Store
from celery_once_beat.windows import WindowKey

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEATS = ("web-1:4211:8d1f03ab", "web-2:3980:77aa91c2")
#: Its newest window runs, and the one before has failed.
FAILS = "mail-newsletter"
FAILURE = "TimeoutError: no answer within 30 s"


def main() -> None:
    server = RedisServer.start(need_server())
    with tempfile.TemporaryDirectory(prefix="once-shot-") as folder, server, Processes(Path(folder)) as procs:
        env = {"CELERY_BROKER_URL": server.url(), "PYTHONPATH": str(Path(__file__).parent / "apps")}
        os.environ.update(env)
        sys.path.append(env["PYTHONPATH"])
        from shop import MINUTES, app

        store = Store(Settings.from_app(app))
        make_past(store, app, MINUTES)
        command = [sys.executable, "-m", "celery", "-A", "shop", "once", "dashboard", "--port", "0"]
        board = procs.start(command, name="board", env=env)
        url = board.wait_log(r"the board is at (\S+)")[1]
        with filled.beating(store, *BEATS, entries=len(app.conf.beat_schedule)), sync_playwright() as playwright:
            root = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=need("chromium"), args=root)
            take_all(browser, url)
            browser.close()
        store.close()


def make_past(store: Store, app: Any, minutes: Mapping[str, int]) -> None:
    """Let a day's windows be claimed and end; some of the youngest run, or wait."""
    chance = random.Random(11)
    rows = list(load_schedule(app, Settings.from_app(app)).entries)
    filled.load(store, rows, timedelta(hours=25))
    rows = [row for row in rows if row.name != "year-end-report"]
    while windows := filled.claim(store, rows, chance.choice(BEATS)):
        for window in windows:
            outcome = how_it_stands(window, minutes, chance)
            if outcome == "running":
                store.begin(window, "jobs-2:1:delivery/1", 600.0)
            elif outcome != "waiting":
                failure = FAILURE if outcome == "failed" else ""
                filled.execute(store, [window], outcome, f"jobs-{chance.randint(1, 2)}", failure)
    store.set_paused("crm-dedupe", check_words("anna", "while the CRM moves"), paused=True)


def how_it_stands(window: WindowKey, minutes: Mapping[str, int], chance: random.Random) -> str:
    newer = (datetime.now(timezone.utc) - window.start) // timedelta(minutes=minutes.get(window.entry, 1))
    if window.entry == FAILS and newer < 2:
        return ("running", "failed")[newer]
    if newer == 0:
        return chance.choices(["done", "running", "waiting"], [5, 3, 2])[0]
    return chance.choices(["done", "failed", "revoked"], [97, 2, 1])[0]


def take_all(browser: Browser, url: str) -> None:
    take(browser, "board", url, 1440, 980, "light")
    take(browser, "board-groups", f"{url}/?group=prefix&open=mail&zoom=6h", 1440, 560, "dark")
    take(browser, "board-phone", url, 400, 780, "light")
    story = open_page(browser, f"{url}/?zoom=6h", 1000, 640, "dark")
    story.get_by_role("row", name=FAILS).locator("[href*='window/'].running").click()
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
