"""What is ordered on the board: by keyboard, with real beats and workers; who may, and what the log says of it."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlencode

import filled
import pytest
from boards import TOKEN, WORK, Answer, Board, Start, Visit, bearer, check_page, loaded_of
from playwright.sync_api import Locator, Page, expect
from processes import wait_until
from system import System

from celery_once_beat import Schedules
from celery_once_beat.features.orders.store import backfill_many, read_orders
from celery_once_beat.store import Busy
from celery_once_beat.windows import WindowKey, format_instant

pytestmark = pytest.mark.xdist_group("chromium")


@pytest.fixture(autouse=True)
def hourly(system: System) -> None:
    system.entries = {"hourly": {"task": WORK, "every": 3600.0}}


def fill(system: System, windows: int = 4) -> None:
    """Windows of the last hours, done."""
    filled.fill(system.store, loaded_of(system), windows, timedelta(hours=windows, minutes=1))


# -- by keyboard ----------------------------------------------------------------------------------------------------


def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until this has the focus."""
    expect(wanted).to_be_visible()
    for _ in range(80):
        page.keyboard.press("Tab")
        if wanted.evaluate("node => node === document.activeElement"):
            return
    raise AssertionError(f"Tab doesn't lead to {wanted}")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def enter(page: Page, role: str, name: str) -> None:
    """Press Tab until what has this role and name has the focus, and then Enter."""
    tab_to(page, page.get_by_role(role, name=name, exact=True).first)
    press(page, "Enter")


def fill_in(page: Page, form: str, *keys: str, **fields: str) -> None:
    """Type into fields of the form with this heading, which Tab leads to; then press these keys."""
    for label, text in fields.items():
        tab_to(page, page.get_by_role("form", name=form).get_by_label(label.replace("_", " "), exact=False).first)
        press(page, "ControlOrMeta+a")
        page.keyboard.type(text)
    press(page, *(keys or ["Enter"]))


def to_orders(page: Page, entry: str = "hourly") -> None:
    """From the board to the page of an entry's orders."""
    enter(page, "link", "Orders")
    tab_to(page, page.get_by_role("textbox", name="Entry").first)
    page.keyboard.type(entry)
    press(page, "Enter")
    enter(page, "link", entry)
    expect(page.get_by_role("heading", name=entry, exact=True)).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.long
def test_everything_by_keyboard(system: System, acting: Board, visit: Visit, scheme: str) -> None:
    """Run now, backfill with what it would run shown first, pause with a note, resume; each page is clean for axe."""
    fill(system)
    system.worker(pool="solo").wait_ready()
    beat = system.beat()
    page = visit(acting.url, extra_http_headers=bearer(), color_scheme=scheme, viewport={"width": 400, "height": 800})
    expect(page.get_by_text("hourly", exact=True).first).to_be_visible()
    to_orders(page)
    assert check_page(page) == set()

    fill_in(page, "Run a window now", Your_name="anna", Note="after the fix")
    expect(page.get_by_role("status")).to_have_text("Ordered 1 window. A beat publishes it at once.")
    expect(page.locator("tbody tr").first).to_contain_text("anna (by token)")
    wait_until(lambda: system.account("hourly").apart.get("done") == 1, "a worker ran it", 60)

    history = system.store.account("hourly")
    since, until = (history.cursor - timedelta(hours=n) for n in (3, 0))
    also_done = ("Shift+Tab", "Shift+Tab", "Space", "Tab", "Enter")
    span = {"From": format_instant(since), "To": format_instant(until)}
    fill_in(page, "Run a range of windows", *also_done, **span, Your_name="anna", Note="twice")
    expect(page.get_by_role("status")).to_contain_text("4 windows")
    expect(page.get_by_role("listitem")).to_have_count(4)
    assert system.account("hourly").apart == {"done": 1}, "nothing runs before it is agreed to"
    assert check_page(page) == set()
    enter(page, "button", "Run 4 windows")
    expect(page.get_by_role("status")).to_contain_text("Ordered 4 windows.")
    wait_until(lambda: system.account("hourly").apart.get("done") == 5, "workers ran them", 60)

    fill_in(page, "Pause", Your_name="anna", Note="the database moves")
    expect(page.get_by_role("status")).to_contain_text("Paused.")
    assert system.account("hourly").paused_for == "the database moves"
    assert check_page(page) == set()
    enter(page, "link", "All entries")
    expect(page.locator(".attention").first).to_contain_text("ago by anna (by token): the database moves")
    to_orders(page)
    fill_in(page, "Resume", Your_name="anna")
    expect(page.get_by_role("status")).to_contain_text("Resumed.")
    assert not system.account("hourly").paused
    assert [record.order.what for record in read_orders(system.store)] == ["resume", "pause", "backfill", "run"]
    enter(page, "link", "All orders")
    expect(page.locator("tbody tr")).to_have_count(4)
    assert check_page(page) == set()
    beat.stop()


@pytest.mark.long
def test_open_windows_are_given_up(system: System, acting: Board, visit: Visit) -> None:
    """Those that are ticked; what runs only by request. A wrong form says so, and keeps what was typed."""
    (row,) = loaded_of(system).entries
    filled.load(system.store, [row], timedelta(hours=3, minutes=1))
    windows = [filled.claim(system.store, [row])[0] for _ in range(3)]
    system.store.begin(windows[2], "celery@host:1:delivery/1", 600.0)
    page = visit(acting.url, extra_http_headers=bearer())
    to_orders(page)
    fill_in(page, "Give up open windows", Your_name="anna", Note="a note to keep")
    expect(page.get_by_role("alert")).to_have_text("found no window, expected one or more to give up")
    assert check_page(page) == set()
    form = page.get_by_role("form", name="Give up open windows")
    expect(form.get_by_label("Note")).to_have_value("a note to keep")
    for boxes, said in (
        ("[name=start]", "Gave up 2 windows; left 1"),
        ("[name=start], [name=running]", "Gave up 1 windows; left 0"),
    ):
        for box in form.locator(boxes).all():
            box.focus()
            press(page, "Space")
        form.get_by_label("Your name").focus()
        page.keyboard.type("anna")
        press(page, "Enter")
        expect(page.get_by_role("status")).to_contain_text(said)
    assert not system.account("hourly").open
    assert system.account("hourly").counts == {"cancelled": 3}
    assert isinstance(system.store.begin(windows[2], "late", 30.0), Busy) is False


@pytest.fixture
def schedules(system: System) -> Iterator[Schedules]:
    with closing(Schedules(url=system.store_url)) as made:
        yield made


@pytest.mark.long
def test_a_schedule_that_was_set_at_run_time_is_edited(
    system: System, schedules: Schedules, acting: Board, visit: Visit
) -> None:
    """When it starts, and nothing else; not over somebody else's change; what it is called with isn't shown."""
    schedules.set("user-42", task=WORK, schedule=3600.0, args=["a-secret"], by="web")
    page = visit(acting.url, extra_http_headers=bearer())
    expect(page.get_by_text("user-42")).to_be_visible()
    to_orders(page, "user-42")
    assert check_page(page) == set()
    assert "a-secret" not in page.content()
    form = page.get_by_role("form", name="Edit the schedule")
    field = form.get_by_label("schedule")
    assert "3600" in field.input_value()
    changed = field.input_value().replace("3600", "7200")
    schedules.set("user-42", task=WORK, schedule=1800.0, args=["a-secret"], by="web")

    def send(text: str) -> None:
        field.fill(text)
        form.get_by_label("Your name").fill("anna")
        form.get_by_label("Note").fill("too often")
        form.get_by_label("Note").press("Enter")

    for text, refused in (
        (changed, "expected version 1, it has version 2"),
        ("{", "expected JSON"),
        ('{"type": "interval"}', "found"),
    ):
        send(text)
        expect(page.get_by_role("alert")).to_contain_text(refused)
    send(changed)
    expect(page.get_by_role("status")).to_contain_text("Changed.")
    found = schedules.get("user-42")
    assert (found.schedule.run_every, list(found.args)) == (timedelta(hours=2), ["a-secret"])
    assert (found.changed_by, found.note, found.version) == ("anna (by token)", "too often", 3)
    assert "a-secret" not in page.content()


def test_a_foreign_log_of_orders(system: System, acting: Board, visit: Visit) -> None:
    """The pages say so, and nothing is ordered that couldn't be written down."""
    fill(system, 1)
    with system.client() as client:
        client.set("once:orders", "not ours", ex=600)
    page = visit(acting.url, extra_http_headers=bearer())
    page.goto(f"{acting.url}/orders")
    expect(page.get_by_role("alert")).to_contain_text("'once:orders' holds a string, expected a zset")
    assert not system.account("hourly").paused


# -- who may --------------------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """A form of the board's, as a browser has it."""

    board: Board
    path: str
    cookie: str
    csrf: str

    def send(self, order: str = "pause", /, headers: dict[str, str] | None = None, **fields: str) -> Answer:
        """Send it as a browser does, but for what is given; a header '' isn't sent."""
        given = {"csrf": self.csrf, "by": "anna", **fields}
        sent = {
            "content-type": "application/x-www-form-urlencoded",
            "cookie": self.cookie,
            "origin": self.board.url,
            "authorization": f"Bearer {TOKEN}",
            **(headers or {}),
        }
        left = {name: value for name, value in sent.items() if value}
        return self.board.ask(f"{self.path}/{order}", "POST", left, urlencode(given))


def open_form(system: System, board: Board) -> Form:
    fill(system, 1)
    return form_of(board, *set(found(board, r'id="e(\w+)"')))


def found(board: Board, pattern: str, path: str = "/") -> list[Any]:
    """What a page has of it, once it has any."""
    return wait_until(lambda: re.findall(pattern, board.ask(path, headers=bearer()).text), f"{pattern} is shown", 60)


def form_of(board: Board, line: str) -> Form:
    shown = board.ask(f"/orders/{line}", headers=bearer())
    csrf = re.search(r'name="csrf" value="(\w+)"', shown.text)
    return Form(board, f"/orders/{line}", shown.headers["set-cookie"].partition(";")[0], csrf[1])


def test_it_only_reads_unless_told_otherwise(system: System, board: Start) -> None:
    """No page of orders, no link to one, no form that could be sent; --actions needs a token."""
    there = board(ONCE_BOARD_TOKEN=TOKEN)
    assert there.ask("/orders", headers=bearer()).status == 404
    assert there.ask("/orders/x/pause", "POST", bearer()).status == 405
    assert "orders" not in there.ask(headers=bearer()).text
    assert "form-action 'none'" in there.ask(headers=bearer()).headers["content-security-policy"]
    refused = system.celery("once", "dashboard", "--port", "0", "--actions")
    assert refused.wait() == os.EX_CONFIG
    assert refused.log == "once: --actions: found no token, expected one in ONCE_BOARD_TOKEN: who knows it may act\n"


def test_nobody_acts_who_may_not(system: System, acting: Board) -> None:
    """Each guard by itself: the token, the origin, the form's own token, its type. Then the same form is taken."""
    form = open_form(system, acting)
    for headers, status in (
        ({"authorization": ""}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://["}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 403),
        ({"cookie": ""}, 403),
        ({"cookie": "once_board_csrf=" + "0" * 32}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
    ):
        assert form.send(headers=headers).status == status, headers
    for fields, status in (
        ({"csrf": ""}, 403),
        ({"csrf": "0" * 64}, 403),
        ({"csrf": "ü"}, 403),
        ({"by": " "}, 422),
        ({"by": "x" * 500}, 422),
        ({"note": "x" * 5000}, 422),
        ({"note": "x" * 300_000}, 413),
    ):
        assert form.send(**fields).status == status, fields
    # Nobody else can make a form's token: not for no cookie, not for another's, and not for the board's own.
    for cookie in ("", "x", "0" * 31, "é" * 32, "A" * 32, form.cookie.partition("=")[2]):
        csrf = hmac.new(cookie.encode(), b"form of ", hashlib.sha256).hexdigest()
        sent = {"cookie": f"once_board_csrf={cookie}" if cookie.isascii() else ""}
        assert form.send(headers=sent, csrf=csrf).status == 403, cookie
    assert form.send("nothing").status == 404
    rows, (line,) = form._replace(path=""), re.findall(r"\w+$", form.path)
    for fields, status in (({"csrf": ""}, 403), ({"order": "edit"}, 404), ({"order": "_pause"}, 404)):
        assert rows.send("orders", **{"line": line, "order": "pause", **fields}).status == status, fields
    for by, view, back in (
        ("", "//evil.example/#window/x", r"\./\?done=%E2%9C%95\+Nothing\+was\+ordered"),
        ("anna", "?zoom=6h&x=\r\nx: y&only=late#javascript:x", r"\./\?only=late&zoom=6h&done=%E2%9C%95\+No\+entry"),
        ("anna", "?page=2#window/a/b", r"\./\?page=2&done=%E2%9C%95\+No\+entry.*#window/a/b$"),
    ):
        answer = rows.send("orders", line=line if not by else "x", order="pause", by=by, view=view)
        assert (answer.status, bool(re.match(back, answer.headers["location"]))) == (303, True), answer.headers
    assert form._replace(path="/orders/nobody").send().status == 404
    assert form.send(headers={"authorization": ""}, token=TOKEN).status == 401
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert acting.ask(f"{form.path}/pause", method, bearer()).headers["allow"] == "GET, HEAD, POST"
    assert acting.ask(f"{form.path}/pause", headers=bearer()).status == 405
    assert not system.account("hourly").paused
    assert read_orders(system.store) == [], "nothing was carried out"
    taken = form.send()
    assert taken.status == 303
    location = taken.headers["location"]
    assert location.startswith(f"..{form.path.removeprefix('/orders')}?done=Paused.")
    cookie = {**bearer(), "cookie": form.cookie}
    told = acting.ask(f"/orders{location.removeprefix('..')}", headers=cookie)
    assert "Paused. Open windows continue." in told.text
    for forged in (location.replace("done=Paused", "done=Resumed"), location.partition("&seal")[0], location + "0"):
        shown = acting.ask(f"/orders{forged.removeprefix('..')}", headers=cookie)
        assert 'class="done"' not in shown.text, "a link from elsewhere says nothing of what was done"
    elsewhere = acting.ask(f"/orders{location.removeprefix('..')}", headers=bearer())
    assert 'class="done"' not in elsewhere.text
    assert system.account("hourly").paused
    assert form.send("resume", {"origin": "", "sec-fetch-site": "same-origin"}).status == 303
    assert not system.account("hourly").paused
    assert acting.proc.log.count("once: ordered resume of hourly by anna (by token): ") == 1
    assert TOKEN not in acting.proc.log
    assert "Traceback" not in acting.proc.log


def test_what_was_shown_is_what_runs(system: System, acting: Board) -> None:
    """As many windows, and others than those that somebody agreed to: they are shown anew, and nothing is ordered."""
    form = open_form(system, acting)
    (row,) = loaded_of(system).entries
    filled.load(system.store, [row], timedelta(hours=1))
    newest = system.account("hourly").cursor
    windows = [WindowKey("hourly", newest - timedelta(hours=hours)) for hours in (2, 1, 0)]
    backfill_many(system.store, [(windows[0], "order")], 5.0)
    span = {"since": format_instant(windows[0].start), "until": format_instant(newest), "again": "1"}

    def show(**agreed: str) -> str:
        return form.send("backfill", **span, **agreed).text

    (agreed,) = re.findall(r'name="agreed" value="(\w+)"', show())
    filled.execute(system.store, windows[:1])
    backfill_many(system.store, [(windows[1], "order")], 5.0)
    again = show(agreed=agreed)
    assert "What would run has changed meanwhile. Nothing was ordered." in again
    assert "2 windows; 1 open, left out" in again
    assert list(system.account("hourly").open) == [windows[1].start]
    (agreed,) = re.findall(r'name="agreed" value="(\w+)"', again)
    assert form.send("backfill", **span, agreed=agreed).status == 303
    assert len(system.account("hourly").open) == 3


def test_what_cant_be_ordered_is_said(system: System, board: Start) -> None:
    """A window that is open, or has ended, times at the ends of the calendar: no page fails, and nothing is ordered."""
    system.entries = {"hourly": {"task": WORK, "every": 3600.0}, "leap": {"task": WORK, "cron": "0 0 29 2 *"}}
    system.settings = {"timezone": "Europe/Berlin"}
    filled.load(system.store, list(loaded_of(system).entries), timedelta(hours=1))
    acting = board("--actions", ONCE_BOARD_TOKEN=TOKEN)
    for line, name in set(found(acting, r'<a href="entry/(\w+)">(\w+)</a>')):
        form = form_of(acting, line)
        for text in ("0001-01-01T00:00Z", "0001-01-02", "1969-12-31T23:00Z", "9999-12-31T23:59:59Z", "soon"):
            assert form.send("run", window=text).status == 422, text
        far = form.send("backfill", since="0001-01-01T00:00Z", until="9999-12-31T00:00Z")
        assert (far.status, "windows or more" in far.text) == ((422, True) if name == "hourly" else (200, False))
        assert form.send("run").status == 303
        again = form.send("run")
        assert (again.status, "still owes its outcome, and is left alone" in again.text) == (422, True)
        (start,) = system.account(name).open
        assert form.send("abandon", start=format_instant(start)).status == 303
        gone = form.send("abandon", start=format_instant(start))
        assert (gone.status, "none of them is open any more" in gone.text) == (422, True)
        odd = form.send("abandon", start="x")
        assert (odd.status, "ValueError" in odd.text) == (422, False)
        for order, fields in (("republish", {}), ("backfill", {}), ("edit", {"version": "x"})):
            assert form.send(order, **fields).status == 422, order
    assert "Traceback" not in acting.proc.log


def test_what_beats_run_can_be_ordered_whatever_code_the_board_has(system: System, acting: Board) -> None:
    """A deploy has a new entry, and the board is the one from before it."""
    wait_until(lambda: acting.ask(headers=bearer()).status == 200, "the board is there", 60)
    system.entries = {"new": {"task": WORK, "every": 3600.0}}
    system.worker(pool="solo").wait_ready()
    beat = system.beat()
    wait_until(lambda: system.store.account("new"), "the entry is loaded", 60)
    lines = found(acting, r'<a href="orders/(\w+)">new</a>', "/orders?entry=new")
    assert form_of(acting, lines[0]).send("run").status == 303
    wait_until(lambda: system.account("new").apart == {"done": 1}, "a worker ran it", 60)
    beat.stop()


def test_the_pages_of_orders_carry_the_policy(system: System, acting: Board) -> None:
    """As all pages, but that a form may be sent to the board itself, and says from where it comes."""
    form = open_form(system, acting)
    for answer in (acting.ask("/orders", headers=bearer()), acting.ask(form.path, headers=bearer()), form.send(by="")):
        policy = answer.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy)
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:|https?://", answer.text)
    cookie = acting.ask("/orders", headers=bearer()).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
