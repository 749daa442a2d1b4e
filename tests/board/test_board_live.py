"""The window board in a real Chromium: what people see, hear and do, with a real pair behind it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import filled
import pytest
from boards import WORK, Start, Visit, loaded_of, row
from playwright.sync_api import Locator, Page, expect
from processes import wait_until
from servers import RedisServer, free_port
from system import System

from celery_once_beat.store import Ending
from celery_once_beat.windows import parse_instant, task_id

pytestmark = pytest.mark.xdist_group("chromium")  # one browser is enough for all of them


ENTRIES = {
    "tick": {"task": WORK, "every": 1.0},
    "failing": {"task": "apps.once_app.ending", "every": 2.0, "args": ["fails"]},
    "nightly-report": {"task": WORK, "cron": "30 2 29 2 *"},
}


def cells(page: Page, name: str) -> Locator:
    return row(page, name).locator(".cells a")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.tagName"))


@pytest.mark.long
def test_it_follows_a_pair(system: System, board: Start, visit: Visit) -> None:
    """Beats and windows come, end and go without a reload; a failure is marked; so is that no beat is left."""
    system.entries = ENTRIES
    page = visit(f"{board().url}/?zoom=hour", live=True)
    expect(page.locator("#beats")).to_have_text("None. Start one: celery -A proj beat -S once")
    expect(row(page, "tick").locator(".cells")).to_have_text("no window yet")
    page.evaluate("window.loaded = 'once'")

    beats, _ = system.pair(pool="solo")
    expect(page.locator("#beats b")).to_have_count(2)
    for beat in beats:
        expect(page.locator("#beats")).to_contain_text(f":{beat.pid}:")
    hears = re.compile(r"^tick, \d+ [A-Z]\w+ \d\d:\d\d to \d\d:\d\d, \d+ windows: .*\b\d+ done$")
    expect(cells(page, "tick").first).to_have_accessible_name(hears)
    expect(row(page, "failing").locator(".attention")).to_contain_text("last window failed")
    expect(row(page, "failing")).to_have_class("worry")
    expect(cells(page, "failing").first).to_have_class("failed")
    expect(page).to_have_title(re.compile(r"^\([1-9]\) once"))
    expect(row(page, "nightly-report").locator(".next")).to_contain_text("29 Feb 02:30")

    said = cells(page, "tick").last.get_attribute("aria-label")
    expect(cells(page, "tick").last).not_to_have_attribute("aria-label", said or "")
    for beat in beats:
        beat.stop()
    expect(page.locator("#beats")).to_contain_text("None. Start one:")
    assert page.evaluate("window.loaded") == "once", "the page was never loaded again"


@pytest.mark.long
def test_a_window_tells_its_story(system: System, board: Start, visit: Visit) -> None:
    """Click, and it says who claimed and began it, how late it was, its task's id; never an argument of its task.

    It leads to the windows beside it, and to the tools that the setting names.
    """
    system.entries = {"tick": {"task": WORK, "every": 1.0, "args": [0.0625]}}
    system.settings = {
        "timezone": "Europe/Berlin",
        "once_beat_board_links": {"Flower": "https://flower.example/task/{task_id}?of={entry}&at={start}"},
        # Nothing is published or executed again since the machine is busy.
        "once_beat_claim_lease": 10.0,
        "once_beat_publish_timeout": 10.0,
        "once_beat_start_timeout": 60.0,
        "once_beat_lease": 15.0,
    }
    worker, beat = system.worker(pool="solo").wait_ready(), system.beat()
    system.wait_done(3)
    beat.stop()
    worker.stop()
    page = visit(f"{board().url}/?zoom=hour")
    cells(page, "tick").last.click()
    story = page.get_by_role("dialog", name="tick")
    expect(story).to_contain_text("Windows of ")
    chosen = story.get_by_role("link", name=re.compile("^22|:")).first
    start = (chosen.get_attribute("href") or "").split("/")[-1]
    chosen.click()
    expect(story).to_contain_text("Outcome")
    told = dict(zip(story.locator("dt").all_inner_texts(), story.locator("dd").all_inner_texts(), strict=True))
    assert f":{beat.pid}" in told["Claimed"]
    assert re.search(r"by worker \S+", told["Begun"])
    assert (told["Attempts"], told["Refused copies"]) == ("1", "0")
    assert told["Task"] == WORK
    assert told["Task id"] == task_id("once:", "tick", parse_instant(start))
    away = story.get_by_role("link", name="Flower")
    expect(away).to_have_attribute(
        "href", f"https://flower.example/task/{told['Task id']}?of=tick&at={start.replace(':', '%3A')}"
    )
    expect(away).to_have_attribute("rel", "noopener noreferrer")
    assert "0.0625" not in page.content()
    story.get_by_role("link", name="before").click()
    expect(story.locator("dd").first).not_to_have_text(told["Window"])
    story.get_by_role("link", name="after").click()
    expect(story.locator("dd").first).to_have_text(told["Window"])
    page.get_by_role("button", name="Close").click()
    expect(story).to_be_hidden()

    page.goto(f"{page.url.partition('?')[0]}window/{row(page, 'tick').get_attribute('id')[1:]}/{start}")
    expect(page.get_by_role("heading", name="tick")).to_be_visible()
    assert "0.0625" not in page.content()


@pytest.mark.long
def test_a_story_that_is_open_goes_on(system: System, board: Start, visit: Visit) -> None:
    """While its window runs and ends, the story on the page is told on; the keyboard stays where it is."""
    system.entries = {"long": {"task": WORK, "every": 3600.0, "args": [5]}}
    loaded = loaded_of(system)
    filled.load(system.store, list(loaded.entries), timedelta(hours=1, minutes=1))
    (window,) = filled.claim(system.store, list(loaded.entries))
    page = visit(board().url)
    expect(cells(page, "long")).to_have_class("published")
    cells(page, "long").first.click()
    story = page.get_by_role("dialog")
    expect(story).to_contain_text("waits: no worker has begun it yet")
    begun = system.store.begin(window, "host-b:1:delivery/1", 30.0)
    expect(story).to_contain_text("running: a worker executes it")
    expect(story).to_contain_text("by worker host-b")
    expect(story).to_contain_text("Running for")
    system.store.finish(Ending(window, "host-b:1:delivery/1", begun.fence, "failed"))
    expect(story).to_contain_text("failed: its task failed, and so did the task's own retries")
    expect(story.get_by_role("button")).to_be_focused()
    page.keyboard.press("Escape")
    expect(cells(page, "long").first).to_be_focused()


@pytest.mark.long
def test_the_keyboard_alone(system: System, board: Start, visit: Visit) -> None:
    """One stop of Tab leads into the grid; arrows, Home, End, Page keys go through it; Enter opens, Esc comes back."""
    system.entries = {f"entry-{n:02}": {"task": WORK, "every": 600.0} for n in range(30)}
    system.entries["never-ran"] = {"task": WORK, "cron": "30 2 29 2 *"}
    loaded = loaded_of(system)
    filled.fill(system.store, loaded, 3, timedelta(minutes=35))
    page = visit(f"{board().url}/?zoom=hour", live=True)
    rows = page.locator("[role=row]:has(a)")
    names = rows.locator("[role=rowheader] a").all_text_contents()

    def at() -> tuple[int, int]:
        """Row and cell; the name is the cell before the first."""
        index = rows.evaluate_all("rows => rows.findIndex(row => row.contains(document.activeElement))")
        return index, rows.nth(index).locator("a").evaluate_all("links => links.indexOf(document.activeElement)") - 1

    while not page.evaluate("document.activeElement.closest('#grid') !== null"):
        page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#grid') === null"), "the grid is one stop"
    page.keyboard.press("Shift+Tab")
    assert at() == (0, 2), "the newest window of the first entry"
    for keys, expected in (
        (["ArrowLeft"], (0, 1)),
        (["ArrowDown"], (1, 1)),
        (["Home"], (1, -1)),
        (["ArrowUp"], (0, -1)),
        (["End"], (0, 2)),
        (["ArrowRight"], (0, 2)),
        (["PageDown"], (10, 2)),
        (["PageDown", "PageDown", "PageDown"], (30, -1)),
        (["PageUp", "End"], (20, 2)),
        (["Control+Home"], (0, -1)),
        (["Control+End"], (30, -1)),
        (["ArrowUp", "ArrowRight", "ArrowRight"], (29, 1)),
    ):
        press(page, *keys)
        assert at() == expected, keys
    expect(page.locator(":focus")).to_be_in_viewport()
    label = focused(page)
    expect(page.locator("#hint")).to_have_text(label)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert focused(page) == label
    press(page, "Home", "Enter")
    expect(page.get_by_role("dialog", name=names[29])).to_contain_text("The newest windows")
    press(page, "Tab", "Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Attempts")
    page.keyboard.press("Escape")

    page.get_by_role("searchbox", name="Name").focus()
    page.keyboard.type("ENTRY-1")
    expect(page.locator("[role=row]:has(a)")).to_have_count(10)
    expect(page.locator("#found")).to_have_text("10 of 31 shown")
    expect(page).to_have_url(re.compile(r"\?zoom=hour&q=ENTRY-1$"))
    expect(page.get_by_role("searchbox")).to_be_focused()
    expect(page.get_by_role("searchbox")).to_have_value("ENTRY-1")
    press(page, "Tab", "Enter")
    expect(page.get_by_role("link", name="1 h")).to_be_focused()
    press(page, "Tab", "Enter")
    expect(page.get_by_role("link", name="6 h")).to_have_attribute("aria-current", "true")
    expect(page.get_by_role("link", name="6 h")).to_be_focused()
    while focused(page) != "SUMMARY":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#menu-state ul")).to_be_visible()
    press(page, "Tab", "Escape")
    expect(page.locator("#menu-state ul")).to_be_hidden()
    expect(page.locator("#menu-state summary")).to_be_focused()


def query_of(page: Page) -> dict[str, list[str]]:
    """What the page's address asks for."""
    return parse_qs(urlsplit(page.url).query)


@pytest.mark.long
def test_quick_clicks_all_count(system: System, board: Start, visit: Visit) -> None:
    """However slow the server is: what is chosen before the last choice is shown is added to it. A menu stays open."""
    system.entries = {f"{area}-{n}": {"task": WORK, "every": 600.0} for area in ("billing", "mail") for n in range(60)}
    loaded_of(system)
    there = board()
    page = visit(f"{there.url}/?sort=name&page=2")
    week, month, prefix, billing, mail = (
        page.get_by_role("link", name=name, exact=True) for name in ("7 days", "31 days", "prefix", "billing", "mail")
    )

    def click_at_once(*links: Locator) -> None:
        there.proc.pause()
        for link in links:
            link.click()
        there.proc.resume()

    click_at_once(week, page.get_by_text("Group: none"))
    expect(week).to_have_attribute("aria-current", "true")
    expect(prefix).to_be_visible()
    click_at_once(prefix, month)
    expect(month).to_have_attribute("aria-current", "true")
    expect(page.get_by_text("Group: prefix")).to_be_visible()
    expect(page.locator("[role=rowheader]")).to_have_count(2)
    assert query_of(page) == {"sort": ["name"], "zoom": ["month"], "group": ["prefix"]}

    click_at_once(billing, mail)
    expect(billing).to_have_attribute("aria-expanded", "true")
    expect(mail).to_have_attribute("aria-expanded", "true")
    click_at_once(billing, week)
    expect(week).to_have_attribute("aria-current", "true")
    expect(page.locator("[role=rowheader]")).to_have_count(62)
    assert query_of(page) == {"sort": ["name"], "zoom": ["week"], "group": ["prefix"], "open": ["mail"]}


@pytest.mark.long
def test_a_link_reproduces_the_view(system: System, board: Start, visit: Visit) -> None:
    """What is chosen stands in the address; whoever opens it sees the same; Back leads to the view before."""
    system.entries = {f"{area}-{n}": {"task": WORK, "every": 600.0} for area in ("billing", "mail") for n in range(3)}
    loaded = loaded_of(system)
    filled.fill(system.store, loaded, 2, timedelta(minutes=35), ("failed", "done"))
    there = board()
    page = visit(there.url)
    entries = page.locator("[role=rowheader]")
    page.get_by_role("link", name="7 days").click()
    page.get_by_text("Group: none").click()
    page.get_by_role("link", name="prefix").click()
    expect(entries).to_have_count(2)
    expect(page.locator(".group .failed")).not_to_have_count(0)
    page.get_by_role("link", name="mail").click()
    expect(entries).to_have_count(5)
    page.get_by_text("Sort: attention").click()
    page.get_by_role("link", name="name", exact=True).click()
    expect(page.get_by_text("Sort: name")).to_be_visible()
    page.get_by_role("searchbox").fill("-1")
    expect(entries).to_have_count(3)
    page.get_by_text("State: any").click()
    page.locator("#state-failed").click()
    expect(page.get_by_text("State: failed")).to_be_visible()
    wanted = {"q": "-1", "state": "failed", "group": "prefix", "open": "mail", "sort": "name", "zoom": "week"}
    assert query_of(page) == {name: [value] for name, value in wanted.items()}
    other = visit(page.url)
    assert other.locator("#grid").inner_text() == page.locator("#grid").inner_text()
    expect(other.get_by_role("searchbox")).to_have_value("-1")
    page.go_back()
    expect(page.get_by_text("State: any")).to_be_visible()
    expect(entries).to_have_count(3)
    # What begins to be as was asked for comes to be shown.
    other.get_by_text("State: failed").click()
    other.locator("#state-overdue").click()
    expect(other.locator("[role=rowheader]")).to_have_count(0)
    rows = [row for row in loaded.entries if row.name == "mail-1"]
    (window,) = filled.claim(system.store, rows)
    with system.client() as client:
        for shard in range(16):
            for member in client.zrange(system.store.keys.of_shard("open", shard), 0, -1):
                client.zadd(system.store.keys.of_shard("open", shard), {member: 1})
    expect(other.locator("[role=rowheader]")).to_have_count(2)
    assert window.entry == "mail-1"


@pytest.mark.long
def test_redis_goes_away_and_comes_back(
    system: System, board: Start, visit: Visit, start_redis: Callable[..., RedisServer]
) -> None:
    """The page says so, and keeps showing what it knew; nobody has to reload it. So it is when it starts without."""
    server = start_redis()
    system.use_store(server.url())
    system.entries = {"tick": {"task": WORK, "every": 3600.0}}
    filled.fill(system.store, loaded_of(system), 1, timedelta(hours=1, minutes=1))
    there = board()
    page = visit(there.url)
    expect(cells(page, "tick")).to_have_count(1)
    server.pause()
    expect(page.get_by_role("alert")).to_contain_text("Redis can't be read: ")
    expect(page.locator("#connection")).to_have_text("not live: Redis is away")
    expect(page.locator("main")).not_to_have_class(re.compile("live"))
    expect(page.get_by_role("alert")).to_contain_text("What is shown is older. celery -A proj once doctor says what")
    expect(page.locator("#as-of time")).to_have_attribute("data-away", re.compile(r"^([4-9]|\d\d) s ago$"))
    expect(cells(page, "tick")).to_have_count(1)
    cells(page, "tick").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("done: executed, and recorded")
    server.resume()
    expect(page.get_by_role("alert")).not_to_contain_text("Redis")
    server.stop()
    expect(page.get_by_role("alert")).to_contain_text("Redis can't be read: ")
    late = visit(board(name="late").url)
    expect(late.get_by_role("alert")).to_contain_text("Redis can't be read: ")
    expect(late.get_by_role("alert")).not_to_contain_text("older")
    expect(late.locator("#nothing")).to_contain_text("Nothing is known yet: Redis hasn't answered.")
    expect(late.locator("#headline")).to_have_text("Nothing is known yet")
    expect(late.locator("#beats li, #strip a")).to_have_count(0)
    server.restart()
    filled.load(system.store, list(loaded_of(system).entries), timedelta(minutes=1))
    expect(page.get_by_role("alert")).not_to_contain_text("Redis")
    expect(cells(page, "tick")).to_have_count(0)
    expect(late.get_by_role("alert")).not_to_contain_text("Redis")
    expect(row(late, "tick")).to_be_visible()
    assert "Traceback" not in there.proc.log


@pytest.mark.long
def test_the_board_goes_away_and_comes_back(system: System, board: Start, visit: Visit) -> None:
    """The page says that it isn't live, and is again when the board is; also where that one has other entries."""
    system.entries = {"tick": {"task": WORK, "every": 3600.0}}
    filled.fill(system.store, loaded_of(system), 1, timedelta(minutes=61))
    port = free_port()  # nobody gets it as long as the board is away
    there = board(port=port)
    page = visit(there.url, live=True)
    page.get_by_role("searchbox").fill("t")
    expect(page).to_have_url(re.compile("q=t$"))
    expect(page.locator("#connection")).to_have_text("live")
    there.proc.kill()
    expect(page.locator("#connection")).to_have_text("not live: trying again")
    cells(page, "tick").first.click()
    expect(page.get_by_role("dialog", name="The board can't be reached")).to_be_visible()
    page.keyboard.press("Escape")
    system.entries["tock"] = system.entries["tick"]
    board(name="again", port=port)
    expect(page.locator("#connection")).to_have_text("live")
    expect(row(page, "tock")).to_be_visible()
    expect(page.get_by_role("searchbox")).to_have_value("t")


def looks(system: System) -> int:
    """How often the list of beats was read: once a look."""
    with system.client() as client:
        return int(client.info("commandstats").get("cmdstat_zrange", {"calls": 0})["calls"])


@pytest.mark.long
def test_nobody_looks_and_nothing_is_asked(system: System, board: Start, visit: Visit) -> None:
    """Redis is read once for all viewers, and not at all for a page that is hidden or closed."""
    there = board()
    pages = [visit(there.url, live=True) for _ in range(5)]

    def quiet() -> bool:
        before = looks(system)
        pages[0].wait_for_timeout(2500)
        return looks(system) == before

    def asked() -> None:
        before = looks(system)
        wait_until(lambda: looks(system) > before, "Redis is read", 60)

    asked()
    told = pages[1].locator("#as-of").inner_text()
    expect(pages[1].locator("#as-of")).not_to_have_text(told)
    hide = """hidden => {
        Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    for page in pages[:2]:
        page.evaluate(hide, True)
    for page in pages[2:]:
        page.close()
    wait_until(quiet, "Redis is left alone", 60)
    pages[0].evaluate(hide, False)
    expect(pages[0].locator("#connection")).to_have_text("live")
    asked()
