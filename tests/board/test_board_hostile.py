"""Names and keys that somebody means ill with: shown as what they are, never run, and nothing else is lost for them."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import filled
import pytest
from boards import WORK, Start, Visit, loaded_of, row
from playwright.sync_api import expect
from system import System

pytestmark = pytest.mark.xdist_group("chromium")


#: A name, and how the page writes it.
NAMES = {
    "<script>alert(1)</script>": "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>': '"><img src=x onerror=alert(1)>',
    "' onfocus='alert(1)' autofocus='": "' onfocus='alert(1)' autofocus='",
    "{{ 7 * 7 }}{% raw %}": "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)//../../static": "javascript:alert(1)//../../static",
    "a\nevent: anew\ndata: {}\n\n": r"'a\nevent: anew\ndata: {}\n\n'",
    "bell\x07escape\x1b[2J": r"'bell\x07escape\x1b[2J'",
    "\u202egnp.exe": r"'\u202egnp.exe'",
    "nul\x00": r"'nul\x00'",
    "</title></main><base href=//evil>": "</title></main><base href=//evil>",
    "ünïcödé 🦔": "ünïcödé 🦔",
    "__proto__": "__proto__",
}


@pytest.mark.long
def test_names_are_shown_as_they_are(system: System, board: Start, visit: Visit) -> None:
    """Markup, quotes, control characters, marks that turn text around: text on the page, in labels and stories."""
    system.entries = {name: {"task": WORK, "every": 3600.0} for name in NAMES}
    loaded = loaded_of(system)
    filled.load(system.store, list(loaded.entries), timedelta(hours=2, minutes=1))
    filled.execute(system.store, filled.claim(system.store, list(loaded.entries)))
    page = visit(board().url, live=True)
    assert sorted(page.locator("[role=rowheader] a").all_text_contents()) == sorted(NAMES.values())
    filled.execute(system.store, filled.claim(system.store, list(loaded.entries)), "failed")
    for shown in NAMES.values():
        found = row(page, shown)
        expect(found.locator(".cells a")).to_have_count(2)
        expect(found.locator(".failed")).to_have_attribute("aria-label", says(shown))
        found.locator(".failed").click()
        expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text(shown)
        page.keyboard.press("Escape")
        found.get_by_role("rowheader").get_by_role("link").click()
        expect(page.get_by_role("dialog").get_by_role("heading").first).to_have_text(shown)
        page.keyboard.press("Escape")
    assert page.locator("img, base, script:not([src])").count() == 0
    for group in ("prefix", "task"):
        page.goto(f"{page.url.partition('?')[0]}?group={group}&open=*")
        assert set(NAMES.values()) <= set(page.locator("[role=rowheader] a").all_text_contents())
        assert page.locator("img, base, script:not([src])").count() == 0
    page.goto(page.url.partition("?")[0])
    address = page.locator(".cells .failed").first.get_attribute("href")
    page.goto(page.url + (address or ""))
    assert page.locator("h1").text_content() in NAMES.values()
    page.goto(page.url.partition("/window")[0])
    assert page.locator("img, base, script:not([src])").count() == 0


def says(shown: str) -> re.Pattern[str]:
    return re.compile("^" + re.escape(shown) + r", \d+ ")


def test_foreign_keys(system: System, board: Start, visit: Visit) -> None:
    """Keys that aren't ours, or were spoilt, are said at their entry; the others are shown as ever."""
    system.entries = {name: {"task": WORK, "every": 3600.0} for name in ("good", "typed", "past")}
    store = system.store
    filled.fill(store, loaded_of(system), 1, timedelta(hours=1, minutes=1))
    filled.beat_lives(store)
    with system.client() as client:
        client.delete(store.entry_key("typed"))
        client.set(store.entry_key("typed"), "not ours", ex=600)
        client.lpush(store.keys.of_entry("history", "past"), b'\xff\xfe"><script>alert(1)</script> done 1 2 3 4 x y')
        unknown = "0001-01-01T00:00:00 postponed 1 2 3 4 x:<script>alert(1)</script> z"
        client.lpush(store.keys.of_entry("history", "good"), unknown)
        client.zadd(
            store.keys.of_shard("open", 3),
            {b"no member": 1, b"\xff<script>alert(1)</script>@2026-11-21T02:00:00.000000Z": 1},
        )
        client.hset(store.keys.of_entry("refused", "good"), "<script>", "many")
        for key in (store.keys.of_shard("open", 3), store.keys.of_entry("refused", "good")):
            client.expire(key, 600)
    there = board()
    page = visit(there.url)
    with system.client() as client:  # now: a beat that isn't heard of for 15 s is gone
        client.hset("once:{once:beats}:reports", "<script>alert(1)</script>", "nan nan <b> x y")
        client.expire("once:{once:beats}:reports", 600)
        client.zadd("once:beats", {"<script>alert(1)</script>": time.time() * 1000})
        client.expire("once:beats", 600)
    expect(page.locator("#beats")).to_contain_text("<script>alert(1)</script>")

    expect(row(page, "typed").locator(".attention")).to_contain_text("expected a hash")
    expect(row(page, "past").locator(".attention")).to_contain_text("can't be read")
    expect(row(page, "good").locator(".attention")).to_contain_text("can't be read")
    expect(page.get_by_role("row").filter(has_text=r"\udcff<script>alert(1)</script>")).to_be_visible()
    row(page, "good").get_by_role("rowheader").get_by_role("link").click()
    page.get_by_role("dialog").get_by_role("link", name="1 January").click()
    expect(page.get_by_role("dialog")).to_contain_text("this version doesn't know it")
    assert there.ask("/metrics").status == 200
    assert "Traceback" not in there.proc.log


def test_the_list_of_beats_is_no_list(system: System, board: Start, visit: Visit) -> None:
    """What concerns all entries is said above them, by the key's name."""
    with system.client() as client:
        client.set("once:beats", "not ours", ex=600)
    page = visit(board().url)
    expect(page.get_by_role("alert")).to_contain_text("the key 'once:beats' holds a string, expected a zset")
