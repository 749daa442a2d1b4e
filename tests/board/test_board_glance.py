"""What somebody sees on the board at first glance, finds, and does there: at any width, by mouse and by keyboard."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import filled
import pytest
from boards import WORK, Board, Start, Visit, bearer, check_page, loaded_of, row
from playwright.sync_api import Locator, Page, expect
from system import System

from celery_once_beat.features.orders.store import read_orders

pytestmark = [pytest.mark.xdist_group("chromium"), pytest.mark.long]

FAILURE = "TimeoutError: no answer of the mail server within 30 s, which is said in a sentence that is rather long"
#: By the strip's name of what they need.
LOOKS = {
    "failing": ["failing"], "hung": ["hung"], "overdue": ["overdue"], "late": ["late"], "paused": ["paused"],
    "left out": ["wrong"], "attention": ["failing", "hung", "late", "overdue", "paused", "wrong"],
}  # fmt: skip


@pytest.fixture
def night(system: System) -> Iterator[System]:
    """A beat lives, and of each kind of trouble there is one entry."""
    names = ["fine", "failing", "hung", "overdue", "late", "paused"]
    system.entries = {name: {"task": WORK, "every": 3600.0} for name in names}
    system.entries["wrong"] = {"task": WORK, "every": 3600.0, "options": {"once": {"grce": 1}}}
    store, rows = system.store, list(loaded_of(system).entries)
    filled.load(store, rows, timedelta(hours=1, minutes=1))
    hour = timedelta(hours=1)
    with system.client() as client:
        while windows := filled.claim(store, rows):
            for window in windows:
                if window.entry in ("fine", "paused"):
                    filled.execute(store, [window])
                elif window.entry == "failing":
                    filled.execute(store, [window], "failed", failure=FAILURE)
                elif window.entry == "hung":
                    store.begin(window, "jobs-1:1:delivery/1", 86_400.0)
                    filled.backdate(client, store, window, 2 * hour, 24 * hour)
                elif window.entry == "late":
                    client.hset(store.entry_key("late"), "deadline", 1000)
                else:
                    filled.backdate(client, store, window, timedelta(0), -hour)
    store.set_paused("paused", paused=True)
    with filled.beating(store):
        yield system


def names(page: Page) -> Locator:
    return page.locator("[role=rowheader] a")


def test_what_needs_attention_is_seen_at_first_glance(night: System, board: Start, visit: Visit) -> None:
    """A count of each kind, which shows its entries; the gravest reason comes first, whole, below name and schedule."""
    page = visit(board().url, live=True)
    expect(page.locator("#headline")).to_contain_text(re.compile(r"^6 entries need attention · .* ran as planned"))
    for look, found in LOOKS.items():
        chip = page.locator(f"#look-{look.replace(' ', '-')}")
        expect(chip.locator("b")).to_have_text(str(len(found)))
        chip.click()
        expect(chip).to_have_attribute("aria-current", "true")
        expect(names(page)).to_have_count(len(found))
        assert sorted(names(page).all_text_contents()) == found
    assert names(page).all_text_contents()[0] == "wrong", "the gravest"
    page.locator("#look-all").click()
    expect(names(page)).to_have_count(7)
    reason = row(page, "failing").locator(".attention")
    expect(reason).to_have_text(f"last window failed: {FAILURE}.")
    assert reason.evaluate("cell => cell.scrollWidth <= cell.clientWidth && cell.clientHeight < 30")
    expect(row(page, "overdue").locator(".attention")).to_contain_text(re.compile(r"1 overdue, first .*, since"))
    head, below = (row(page, "failing").locator(part).bounding_box() for part in ("[role=rowheader]", ".attention"))
    assert head["y"] + head["height"] <= below["y"] + 1
    night.store.set_paused("paused", paused=False)
    expect(page.locator("#look-paused b")).to_have_text("0")
    expect(page.locator("#look-attention b")).to_have_text("5")


#: The cells that nobody can reach, names that don't stay in sight, counts that leave their cells, reasons that are cut.
MISSED = """() => {
    const grid = document.getElementById('grid'), missed = [];
    const inside = (one, other) => one.left >= other.left - 1 && one.right <= other.right + 1;
    const box = node => node.getBoundingClientRect();
    for (const cell of document.querySelectorAll('.cells a')) {
        cell.scrollIntoView({block: 'center', inline: 'nearest'});
        const {x, y, width, height} = box(cell);
        if (!cell.contains(document.elementFromPoint(x + width / 2, y + height / 2))) missed.push(cell.ariaLabel);
        const count = cell.querySelector('small');
        if (count && box(count).width && !inside(box(count), box(cell))) missed.push(`the count of ${cell.ariaLabel}`);
    }
    for (const left of [0, grid.scrollWidth]) {
        grid.scrollLeft = left;
        for (const node of document.querySelectorAll('[role=rowheader], .attention, .cells .none')) {
            if (!inside(box(node), box(grid))) missed.push(`${left}: ${node.textContent}`);
        }
    }
    for (const node of document.querySelectorAll('.attention, [role=rowheader] > a')) {
        if (node.scrollWidth > node.clientWidth + 1) missed.push(`cut: ${node.textContent}`);
    }
    return [missed.slice(0, 9), document.documentElement.scrollWidth, document.querySelectorAll('.cells a').length];
}"""
WIDTHS = (390, 768, 1024, 1440)


@pytest.mark.parametrize("entries", [26, 200, 5000])
def test_nothing_is_lost_at_any_width(system: System, board: Start, visit: Visit, entries: int) -> None:
    """Each cell can be reached, names and reasons stay in sight, whole, counts fit: with few entries and thousands."""
    week, few = 7 * 86_400.0, range(25)
    system.entries = {
        f"entry-{n:04}{'-long-name' * (n % 4)}": {"task": WORK, "every": 3600.0 if n in few else week}
        for n in range(entries)
    }
    system.entries["each-minute"] = {"task": WORK, "every": 60.0}
    rows = list(loaded_of(system).entries)
    busy = [row for row in rows if system.entries[row.name]["every"] < week]
    filled.load(system.store, busy, timedelta(hours=30))
    filled.load(system.store, [row for row in rows if row not in busy], timedelta(0))
    for n in range(30):
        filled.execute(system.store, filled.claim(system.store, busy), "failed" if n == 29 else "done", failure=FAILURE)
    with filled.beating(system.store):
        page = visit(board().url, live=True)
        for zoom in ("day", "month", "hour"):
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                page.goto(f"{page.url.partition('?')[0]}?zoom={zoom}")
                expect(page.locator("#connection")).to_have_text("live")
                missed, wide, cells = page.evaluate(MISSED)
                assert (missed, wide) == ([], width), (zoom, width)
                assert cells > 20 or zoom == "hour"


def test_how_long_and_when(night: System, board: Start, visit: Visit) -> None:
    """Bars show what ran long, a line where now is; each time says how far it is; the zone is the reader's choice."""
    night.settings = {"timezone": "Europe/Berlin"}
    page = visit(f"{board().url}/?zoom=hour", live=True, timezone_id="America/New_York")
    bar = row(page, "hung").locator("rect.running")
    area = row(page, "hung").locator(".cells").bounding_box()
    assert bar.bounding_box()["width"] == pytest.approx(area["width"], abs=2), "it has run for longer than is shown"
    look = "getComputedStyle(document.querySelector('.cells'), '::after')"
    line, border = page.evaluate(f"[{look}.marginLeft, {look}.borderLeftWidth]")
    assert (border, 0 <= float(line.removesuffix("px")) < area["width"] / 30 + 1) == ("0px", True), "no mark is struck"
    coming = row(page, "fine").locator(".next time")
    expect(coming).to_have_attribute("data-away", re.compile(r"^in \d+ (min|s)$"))
    expect(page.locator("#as-of")).to_contain_text("Europe/Berlin")
    there = coming.inner_text()
    for link, zone in (("#zone-utc", "UTC"), ("#zone-own", "America/New_York"), ("#zone-app", "Europe/Berlin")):
        page.locator("#menu-zone summary").click()
        page.locator(link).click()
        expect(page.locator("#menu-zone summary")).to_have_text(f"Times: {zone}")
        expect(page.locator("#as-of")).to_contain_text(zone)
        expect(page.locator(".corner")).to_have_text(zone)
        assert (row(page, "fine").locator(".next time").inner_text() == there) == (zone == "Europe/Berlin")
        names(page).first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert ("zone=" in page.url) == (zone != "Europe/Berlin")
        page.keyboard.press("Escape")


def test_a_story_has_an_address(night: System, board: Start, visit: Visit) -> None:
    """Whoever opens it sees the story on the board; Back closes it, Esc does, and another one takes its place."""
    page = visit(f"{board().url}/?zoom=6h", live=True)
    story = page.get_by_role("dialog")
    names(page).first.click()
    expect(page).to_have_url(re.compile(r"/\?zoom=6h#entry/\w+$"))
    expect(story).to_be_visible()
    page.go_back()
    expect(story).to_be_hidden()
    expect(page).to_have_url(re.compile(r"\?zoom=6h$"))
    page.go_forward()
    expect(story).to_be_visible()
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile(r"\?zoom=6h$"))
    row(page, "failing").locator("[role=rowheader] a").click()
    story.locator(".windows a").first.click()
    expect(page).to_have_url(re.compile(r"#window/\w+/[\w:.-]+$"))
    expect(story).to_contain_text("no answer of the mail server")
    other = visit(page.url)
    expect(other.get_by_role("dialog", name="failing")).to_contain_text("no answer of the mail server")
    page.go_back()
    expect(story).to_be_hidden()
    for foreign in ("javascript:alert(1)", "//evil.example/x", "entry/../static/board.js"):
        page.goto(f"{page.url.partition('#')[0]}#{foreign}")
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.get_by_role("dialog")).to_be_hidden()
    row(page, "hung").locator("a.running").click()
    first = re.compile(r"^\s*hung\s+It hangs: 1 running for 2 h \d min on jobs-1.* --window 2\S+Z prints", re.DOTALL)
    expect(story.locator("article")).to_contain_text(first)
    with night.client() as client:
        client.zadd(night.store.keys.workers, {"jobs-1 redis celery": int(time.time()) * 1000 - 300_000})
        client.expire(night.store.keys.workers, 600)
    expect(story).to_contain_text(re.compile("worker jobs-1 hasn't reported since .*Kill it \\(kill -9", re.DOTALL))


def test_acting_where_one_looks(night: System, acting: Board, visit: Visit) -> None:
    """Several rows at once, or one in its story, by a name that is asked for once; one that fails keeps none back."""
    page = visit(acting.url, live=True, extra_http_headers=bearer())
    form, done, refused = page.locator("#act"), page.locator("p.done"), page.locator("p.refused")
    expect(form).to_be_hidden()
    for name in ("fine", "failing"):
        row(page, name).get_by_role("checkbox").check()
    expect(form).to_be_visible()
    assert check_page(page) == set()
    night.store.set_paused("late", paused=True)
    expect(page.locator("#look-paused b")).to_have_text("2")
    expect(page.get_by_role("checkbox", checked=True)).to_have_count(2)
    form.get_by_label("Note").fill("the mail server moves")
    form.get_by_label("Your name").fill("anna")
    form.get_by_label("Your name").press("Enter")
    assert not night.account("fine").paused, "Enter presses no button"
    form.get_by_role("button", name="Pause").click()
    expect(done).to_contain_text("Paused. Open windows continue.")
    expect(row(page, "fine").locator(".attention")).to_contain_text("by anna (by token): the mail server moves")
    assert [night.account(name).paused for name in ("fine", "failing", "hung")] == [True, True, False]
    expect(page.locator("#look-paused b")).to_have_text("4")

    row(page, "fine").get_by_role("checkbox").check()
    row(page, "wrong").get_by_role("checkbox").check()
    expect(form.get_by_label("Your name")).to_have_value("anna")
    form.get_by_role("button", name="Run the newest window").click()
    expect(done).to_have_text("✓ fine: Ordered 1 window. A beat publishes it at once.")
    expect(refused).to_have_text(re.compile("^✕ wrong: not done: it can't run: "))
    assert len({line.evaluate("line => getComputedStyle(line).borderColor") for line in (done, refused)}) == 2
    row(page, "failing").get_by_role("checkbox").check()
    form.get_by_role("button", name="Publish again").click()
    expect(refused).to_have_text(re.compile("^✕ failing: not done: no window is open"))

    page.goto(f"{acting.url}/?only=paused&zoom=6h")
    row(page, "failing").locator("[role=rowheader] a").click()
    story = page.get_by_role("dialog")
    expect(story.get_by_label("Your name")).to_have_value("anna")
    assert check_page(page) == set()
    story.get_by_role("button", name="Resume").click()
    expect(done).to_contain_text("failing: Resumed.")
    expect(page).to_have_url(re.compile(r"\?only=paused&zoom=6h&done=.*#entry/\w+$"))
    expect(story.get_by_role("button", name="Pause")).to_be_visible()
    story.locator(".windows a").first.click()
    story.get_by_role("button", name="Run it again").click()
    expect(done).to_contain_text("failing: Ordered 1 window.")
    ordered = [(each.order.what, each.order.entry) for each in read_orders(night.store)]
    assert ordered[:2] == [("run", "failing"), ("resume", "failing")]
    assert sorted(ordered[2:]) == [("pause", "failing"), ("pause", "fine"), ("republish", "failing"), ("run", "fine")]


def test_what_is_so_when_there_is_nothing_to_see(system: System, board: Start, visit: Visit) -> None:
    """An empty schedule, no beat, a beat's first second: each says so, and what to type."""
    system.entries = {}
    page = visit(board().url, live=True)
    expect(page.locator("#nothing")).to_contain_text("no entries. Add one to app.conf.beat_schedule")
    expect(page.locator("#grid")).to_be_hidden()
    expect(page.locator("#headline .well")).to_have_count(0)
    expect(page.locator("#beats")).to_have_text("None. Start one: celery -A proj beat -S once")
    expect(page.get_by_role("alert")).to_contain_text("No beat lives, so nothing is claimed: start one")
    system.entries = {"hourly": {"task": WORK, "every": 3600.0}}
    with filled.beating(system.store):
        first = visit(board(name="first").url, live=True)
        expect(first.locator("#nothing")).to_contain_text("No beat has loaded 1 of the 1 entries yet.")
        expect(row(first, "hourly").locator(".attention")).to_have_count(0)
        expect(row(first, "hourly").locator(".cells")).to_have_text("no window yet")
        expect(first.locator("#beats")).to_contain_text("has yet to load 1")
        first.get_by_role("searchbox").fill("nightly")
        expect(first.locator("#nothing")).to_contain_text("No entry is as asked for.")
        first.get_by_role("link", name="Show all entries").click()
        expect(names(first)).to_have_count(1)


#: What of the page is written while nothing changes, but for the clock, how far times are, and the line for now.
CHURN = """() => new Promise(done => {
    const written = [];
    new MutationObserver(all => written.push(...all
        .filter(one => !/^data-/.test(one.attributeName) && !one.target.closest?.('#as-of'))
        .filter(one => ![...one.addedNodes, ...one.removedNodes].some(node => node.id === 'axis'))
        .map(one => one.target.outerHTML.slice(0, 200)))
    ).observe(document.body, {subtree: true, childList: true, characterData: true, attributes: true});
    const clock = document.getElementById('as-of');
    let seconds = 0;
    new MutationObserver(() => { if ((seconds += 1) === 5) done(written); }).observe(clock, {childList: true});
})"""


def test_by_keyboard_on_paper_and_in_large(night: System, acting: Board, visit: Visit) -> None:
    """Single keys, a skip link, nothing written while nothing changes, 200 % zoom, and a page to print."""
    page = visit(acting.url, live=True, extra_http_headers=bearer())
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the entries")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#grid")).to_be_focused()
    at = "document.activeElement.closest('[role=row]')?.querySelector('[role=rowheader] a').textContent"
    order = names(page).all_text_contents()
    for key, expected in (("j", 0), ("Home", 0), ("j", 1), ("j", 2), ("k", 1)):
        page.keyboard.press(key)
        assert page.evaluate(at) == order[expected], key
    page.keyboard.press("x")
    expect(page.get_by_role("checkbox", checked=True)).to_have_count(1)
    page.keyboard.press("x")
    page.keyboard.press("?")
    expect(page.get_by_role("region", name="Legend")).to_be_visible()
    page.keyboard.press("?")
    page.keyboard.press("/")
    page.keyboard.type("j/k?")
    expect(page.get_by_role("searchbox")).to_have_value("j/k?")
    page.goto(f"{acting.url}/?only=failing")
    expect(page.locator("#connection")).to_have_text("live")
    assert page.evaluate(CHURN) == []

    page.set_viewport_size({"width": 640, "height": 400})  # as 1280 pixels are at 200 %
    assert page.evaluate("document.documentElement.scrollWidth") == 640
    assert check_page(page) == set()
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator("#controls")).to_be_hidden()
    expect(page.locator("#legend")).to_be_visible()
    expect(page.locator("#axis")).to_have_css("display", "table-header-group")  # its times stand on each page
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    printed: Any = page.locator("[role=row]").evaluate_all(
        "rows => rows.map(row => getComputedStyle(row).contentVisibility)"
    )
    assert set(printed) == {"visible"}
