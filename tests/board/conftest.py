"""What the board's tests ask for: a board in a process of its own, and a real Chromium."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from boards import TOKEN, Board, start_board
from needs import need
from system import System

if TYPE_CHECKING:  # loaded also where the folder's extra isn't installed
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page

#: What a page may complain of: that a connection was cut by the test, that a form was refused.
_CUT = re.compile(r"net::ERR_|with a status of (409|422)")


@pytest.fixture(autouse=True)
def no_law(request: pytest.FixtureRequest) -> None:
    """What is looked at here is written by hand: no account has to balance."""
    if "system" in request.fixturenames:
        request.getfixturevalue("system").check_law = False


@pytest.fixture
def board(system: System) -> Callable[..., Board]:
    """Start a board for the system's app, with these options of the command, and this environment."""
    return partial(start_board, system)


@pytest.fixture
def acting(board: Callable[..., Board]) -> Board:
    """A board on which whoever knows the token may act."""
    return board("--actions", ONCE_BOARD_TOKEN=TOKEN)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for a file's tests: it has an event loop in this thread, beside which others can't run theirs."""
    from playwright.sync_api import expect, sync_playwright

    executable = need("chromium")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=[*root, "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page as one viewer; an error of its script, a breach of its policy or an alert fails the test.

    ``live``: returns once it says that it is.
    """
    from playwright.sync_api import expect

    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not _CUT.search(message.text):
            complaints.append(f"{message.type}: {message.text}")

    def alerted(dialog: Dialog) -> None:
        complaints.append(f"alert: {dialog.message}")
        dialog.dismiss()

    def open_page(url: str, *, live: bool = False, **options: Any) -> Page:
        contexts.append(chromium.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", alerted)
        page.on("console", said)
        page.goto(url)
        if live:
            expect(page.locator("#connection")).to_have_text("live")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints, complaints
