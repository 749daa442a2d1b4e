"""The board for everybody: rules of accessibility, colours and shapes, phones, no script, a thousand entries."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from importlib.resources import files
from typing import Any

import filled
import pytest
from boards import WORK, Start, Visit, check_page, loaded_of
from playwright.sync_api import Browser, expect
from system import System

from celery_once_beat.web.board.axis import ZOOMS, make_axis
from celery_once_beat.web.board.site import make_templates
from celery_once_beat.web.board.words import STATES

pytestmark = pytest.mark.xdist_group("chromium")


LONG = "anamethatnobrowserbreaksbyitselfandnophoneisaswideas" * 3


@pytest.fixture
def varied(system: System) -> System:
    """Entries in several states."""
    system.entries = {
        "nightly-report": {"task": WORK, "every": 600.0},
        "failing": {"task": WORK, "every": 600.0},
        LONG: {"task": WORK, "every": 600.0},
        "new": {"task": WORK, "cron": "30 2 29 2 *"},
        "wrong": {"task": WORK, "every": 600.0, "options": {"once": {"grce": 1}}},
    }
    rows = {row.name: row for row in loaded_of(system).entries}
    store = system.store
    filled.load(store, [rows[name] for name in ("nightly-report", "failing", LONG)], timedelta(hours=3, minutes=31))
    (last,) = filled.claim(store, [rows["nightly-report"]])
    while claimed := filled.claim(store, [rows["nightly-report"]]):
        filled.execute(store, [last])
        (last,) = claimed
    store.begin(last, "host-b:1:delivery/1", 600.0)
    for _ in range(18):
        filled.execute(store, filled.claim(store, [rows[LONG]]))
    filled.claim(store, [rows[LONG]])
    filled.execute(store, filled.claim(store, [rows["failing"]]), "failed")
    filled.beat_lives(system.store)
    return system


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.long
def test_the_rules_of_accessibility(varied: System, board: Start, visit: Visit, scheme: str, width: int) -> None:
    """axe-core finds nothing: the page, filtered, a story in it and by itself, an error; light, dark, on a phone."""
    page = visit(board().url, color_scheme=scheme, viewport={"width": width, "height": 800}, live=True)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert check_page(page) == set()
    page.locator(".cells .failed").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert check_page(page) == set()
    page.keyboard.press("Escape")
    page.get_by_role("link", name="failing", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("The newest windows")
    assert check_page(page) == set()
    page.keyboard.press("Escape")
    page.locator("#fold input").evaluate("fold => fold.click()")
    page.get_by_text("Legend").click()
    assert check_page(page) == set()
    page.get_by_text("Legend").click()
    page.get_by_text("Group: none").click()
    assert check_page(page) == set()
    page.get_by_role("link", name="prefix").click()
    expect(page.locator(".group")).to_have_count(5)
    assert check_page(page) == set()
    page.goto(f"{page.url.partition('?')[0]}?zoom=6h")
    page.locator("#look-failing").click()
    expect(page.locator("[role=rowheader]")).to_have_count(1)
    assert check_page(page) == set()
    address = page.locator(".cells .failed").get_attribute("href")
    page.goto(f"{page.url.partition('?')[0]}{address}")
    assert check_page(page) == set()


LOOKS = """() => Object.fromEntries([...document.querySelectorAll('#legend i')].map(icon => {
    const look = getComputedStyle(icon, '::before');
    const colour = look.borderTopWidth === '0px' ? look.backgroundColor : look.borderTopColor;
    return [icon.className, {colour, shape: [look.clipPath, look.borderRadius, look.borderTopWidth].join()}];
}))"""


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    channels = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.long
def test_shapes_tell_states_apart(varied: System, board: Start, visit: Visit, scheme: str) -> None:
    """Each state has a shape of its own, whoever sees no colours, and each stands out from its ground by 3:1."""
    page = visit(board().url, color_scheme=scheme)
    looks: dict[str, Any] = page.evaluate(LOOKS)
    assert set(looks) == set(STATES)
    assert len({look["shape"] for look in looks.values()}) == len(STATES)
    ground = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    for state, look in looks.items():
        lighter, darker = sorted((luminance(look["colour"]), ground), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 3, (state, look)


@pytest.mark.long
def test_without_colours_of_its_own(varied: System, board: Start, visit: Visit) -> None:
    """Where the system forces its colours, shapes stay; where less motion is asked for, nothing moves."""
    there = board()
    forced = visit(there.url, forced_colors="active")
    looks: dict[str, Any] = forced.evaluate(LOOKS)
    assert len({look["shape"] for look in looks.values()}) == len(STATES)
    text = forced.evaluate("getComputedStyle(document.body).color")
    assert {look["colour"] for look in looks.values()} == {text}
    moves = "getComputedStyle(document.querySelector('.cells .running'), '::before').animationName"
    assert visit(there.url, reduced_motion="no-preference").evaluate(moves) == "breathe"
    assert visit(there.url, reduced_motion="reduce").evaluate(moves) == "none"


@pytest.mark.long
def test_on_a_phone(varied: System, board: Start, visit: Visit) -> None:
    """At 360 pixels nothing is wider than the screen, every window is there, and a finger hits what it means."""
    page = visit(
        f"{board().url}/?zoom=6h", viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True, live=True
    )
    width = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
    assert page.evaluate(width) == 360
    folded = page.locator("#grid").bounding_box()["y"]
    page.locator("#fold").tap()
    assert page.locator("#grid").bounding_box()["y"] > folded + 100
    page.get_by_text("Sort: attention").tap()
    page.locator("#sort-name").tap()
    expect(page.get_by_text("Sort: name")).to_be_visible()
    page.set_viewport_size({"width": 640, "height": 360})
    page.set_viewport_size({"width": 360, "height": 640})
    heads = page.locator("[role=rowheader]")
    assert heads.evaluate_all("heads => heads.filter(head => head.getBoundingClientRect().right > 360).length") == 0
    sizes = page.locator(".cells a").evaluate_all("links => links.map(link => link.getBoundingClientRect().toJSON())")
    assert len(sizes) > 18
    for size in sizes:
        assert size["width"] >= 24
        assert size["height"] >= 24
    assert page.locator(".cells a").last.evaluate("link => link.getBoundingClientRect().right") <= 360, "the newest"
    page.locator(".cells .failed").tap()
    story = page.get_by_role("dialog")
    expect(story).to_contain_text("failed: ")
    box = story.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
    page.get_by_role("button", name="Close").tap()
    expect(story).to_be_hidden()


#: Of what the axis says, which texts stand on one another, by where they are painted.
OVERLAPS = """() => [...document.querySelectorAll('#axis')].flatMap(axis => {
    const marks = [...axis.querySelectorAll('.times span')].map(mark => {
        const range = document.createRange();
        range.selectNodeContents(mark);
        return [mark.textContent, range.getBoundingClientRect()];
    }).filter(([, box]) => box.width);
    return marks.slice(1).flatMap(([text, box], at) => box.left < marks[at][1].right ? [[marks[at][0], text]] : []);
})"""


@pytest.mark.parametrize("width", [360, 1000, 1920])
def test_the_axis_can_be_read(chromium: Browser, width: int) -> None:
    """At each hour of a day and each zoom: no time stands on another one."""
    board = files("celery_once_beat.web.board")
    templates = make_templates("shop", timezone.utc)
    axis, columns = templates.get_template("axis.html"), templates.get_template("columns.css")
    begin = datetime(2026, 11, 23, 0, 8, tzinfo=timezone.utc)
    moments = [begin + timedelta(hours=hours, minutes=7 * hours) for hours in range(48)]
    shown = [
        f'<div id="grid" class="zoom-{zoom.name}">'
        + axis.render(axis=make_axis(zoom, moment, timezone.utc), zone="Europe/Berlin", tenth=0)
        + "</div>"
        for zoom in ZOOMS.values()
        for moment in moments
    ]
    page = chromium.new_page(viewport={"width": width, "height": 800})
    page.set_content("<main>" + "".join(shown) + "</main>")
    page.add_style_tag(content=(board / "static" / "board.css").read_text() + columns.render())
    assert page.locator(".times span").count() > 1000
    assert page.evaluate(OVERLAPS) == []
    page.close()


@pytest.mark.long
def test_without_javascript(varied: System, board: Start, visit: Visit) -> None:
    """The page shows everything of its moment; filter and stories are links. It doesn't say that it is live."""
    page = visit(board().url, java_script_enabled=False)
    filled.beat_lives(varied.store)  # once more: the board may have started slowly
    page.reload()
    expect(page.locator("#connection")).to_have_text("not live")
    expect(page.locator("[role=rowheader]")).to_have_count(5)
    expect(page.locator(".cells .done").nth(5)).to_be_attached()
    expect(page.get_by_role("searchbox")).to_be_hidden()
    expect(page.locator("#beats")).to_contain_text(filled.BEAT)
    page.locator("#look-attention").click()
    expect(page.locator("[role=rowheader]")).to_have_count(4)
    expect(page.get_by_text("nightly-report", exact=True)).to_be_hidden()
    expect(page.locator("[role=rowheader]").filter(has_text="failing")).to_have_count(1)
    page.locator(".cells .failed").click()
    expect(page.get_by_role("heading")).to_have_text("failing")
    expect(page.get_by_text("failed: its task failed, and so did the task's own retries")).to_be_visible()
    page.get_by_role("link", name="All entries").click()
    expect(page.locator("[role=rowheader]")).to_have_count(5)
    page.get_by_text("Group: none").click()
    page.get_by_role("link", name="task").click()
    expect(page.locator(".group")).to_have_count(2)
    page.get_by_role("link", name=WORK).click()
    expect(page.locator("[role=rowheader]")).to_have_count(6)


@pytest.mark.long
def test_a_thousand_entries(system: System, board: Start, visit: Visit) -> None:
    """All can be found, in parts of a hundred rows; what changes costs what changed."""
    # Weeks: when the time of a next window comes, all rows change.
    system.entries = {f"entry-{n:04}": {"task": WORK, "every": 7 * 86_400.0} for n in range(1000)}
    loaded = loaded_of(system)
    filled.fill(system.store, loaded, 3, timedelta(days=30))
    page = visit(f"{board().url}/?zoom=month&sort=name", live=True)
    assert page.locator(".cells a").count() == 300
    painted = page.evaluate(
        """[...document.querySelectorAll('[role=row]')]
            .filter(row => row.firstElementChild.checkVisibility({contentVisibilityAuto: true})).length"""
    )
    assert painted < 150, "those out of sight cost nothing"
    page.evaluate(
        """() => {
            window.changed = 0;
            new MutationObserver(changes => { window.changed += changes.length; })
                .observe(document.getElementById('grid'), {subtree: true, childList: true});
        }"""
    )
    some = [row for row in loaded.entries if row.name in ("entry-0007", "entry-0050", "entry-0099")]
    filled.execute(system.store, filled.claim(system.store, some), "failed")
    for name in ("entry-0007", "entry-0050", "entry-0099"):
        row = page.locator("[role=row]").filter(has=page.get_by_text(name, exact=True))
        expect(row.locator(".cells a")).to_have_count(4)
        expect(row.locator(".attention")).to_contain_text("last window failed")
    assert 3 <= page.evaluate("window.changed") <= 60, "three rows changed, not a hundred"
    page.locator("#rows-after").click()
    expect(page.locator("#rows")).to_contain_text("101 to 200 of 1000 rows")
    assert page.url.endswith("/?sort=name&zoom=month&page=2")
    page.get_by_role("searchbox").fill("0998")
    expect(page.locator("[role=rowheader]")).to_have_count(1)
    page.get_by_role("searchbox").fill("")
    expect(page.locator("[role=rowheader]")).to_have_count(100)
    page.locator("[role=row] a").first.focus()
    page.keyboard.press("Control+End")
    expect(page.locator(":focus")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
