"""The board as a client that means no good meets it: where it listens, whom it answers, what its answers say."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime, timedelta, timezone
from http.client import HTTPResponse
from types import SimpleNamespace
from typing import Any

import filled
import pytest
from boards import TOKEN, WORK, Answer, Board, Start, bearer, loaded_of
from processes import Proc, wait_until
from servers import RedisServer, free_port
from system import System, once_soon

from celery_once_beat.status import Report, Sight
from celery_once_beat.web.board import feed
from celery_once_beat.web.board.site import MOST_VIEWERS

POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types board",
}
ALWAYS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def dashboard(system: System, *arguments: str, **env: Any) -> Proc:
    return system.celery("once", "dashboard", *arguments, name="dashboard", **env)


# -- where it listens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "own"])
def test_it_listens_elsewhere_only_with_a_token(system: System, host: str) -> None:
    """Addresses that others reach are refused without one, before anything listens."""
    if host == "own":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            host = probe.getsockname()[0]
    port = str(free_port())
    refused = dashboard(system, "--host", host, "--port", port)
    assert refused.wait() == os.EX_CONFIG
    assert refused.log == (
        f"once: --host: found {host!r}, which others can reach, and no token; expected a loopback address like "
        "127.0.0.1, or a token in ONCE_BOARD_TOKEN\n"
    )
    short = dashboard(system, "--host", host, "--port", port, ONCE_BOARD_TOKEN="short")
    assert short.wait() == os.EX_CONFIG
    assert "found 5 characters, expected at least 16" in short.log
    assert "'short'" not in short.log


def test_with_a_token_it_listens_elsewhere(system: System, board: Start) -> None:
    """Then every answer needs it, whatever the Host header says."""
    there = board("--host", "0.0.0.0", ONCE_BOARD_TOKEN=TOKEN)
    assert there.ask(headers={"host": "board.example"}).status == 401
    assert there.ask(headers={"host": "board.example", **bearer()}).status == 200


def test_a_port_that_is_taken(system: System) -> None:
    """One line, no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        proc = dashboard(system, "--port", str(port))
        assert proc.wait() == os.EX_CONFIG
    assert re.fullmatch(
        rf"once: --host, --port: can't listen on '127.0.0.1', port {port}: Address already in use\n", proc.log
    )


@pytest.mark.long
def test_what_it_needs_is_said(system: System) -> None:
    """Without its extra the command says what to install."""
    code = "import sys; sys.modules['{}'] = None; from celery.__main__ import main; sys.exit(main())"
    for command, module in (("dashboard", "starlette"), ("metrics", "prometheus_client")):
        arguments = ["-A", "apps.once_app", "once", command]
        proc = system.procs.start(
            [sys.executable, "-c", code.format(module), *arguments], name=command, env=system.env()
        )
        assert proc.wait() == 2
        assert proc.log.startswith(f"once: {command} needs an extra: pip install 'celery-once-beat[{command}]' (")
        assert proc.log.count("\n") == 1


def test_it_ends_in_order(system: System, board: Start) -> None:
    """SIGTERM ends it with 0, also while somebody looks; nothing is logged."""
    there = board()
    with follow(there) as news:
        next(news)
        there.proc.terminate()
        assert there.proc.wait(60) == 0
    assert there.proc.log == f"once: the board is at {there.url}\n"


def enter(there: Board, token: str = TOKEN, **headers: str) -> Answer:
    """Send the form that asks for the token, as a browser does."""
    form = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin", "Accept": "text/html"}
    return there.ask("/token", "POST", {**form, **headers}, body=f"token={token}")


# -- what every answer says -----------------------------------------------------------------------------------------


def test_every_answer_carries_the_policy(system: System, board: Start) -> None:
    """Pages, files, errors, refusals: nothing from elsewhere, nothing inline, nothing kept."""
    plain, guarded = board(), board(name="guarded", ONCE_BOARD_TOKEN=TOKEN)
    html = {"accept": "text/html"}
    answers = {
        200: [plain.ask(), plain.ask("/static/board.js"), plain.ask("/metrics"), plain.ask("/events", "HEAD")],
        404: [plain.ask("/nowhere"), plain.ask("/window/x/y", headers=html), plain.ask("/static/nothing")],
        405: [plain.ask("/", "POST")],
        400: [plain.ask(headers={"host": "evil.example"})],
        403: [plain.ask("/events", headers={"sec-fetch-site": "cross-site"})],
        401: [guarded.ask()],
        303: [enter(guarded)],
    }
    for status, given in answers.items():
        for answer in given:
            assert answer.status == status
            assert set(answer.headers["content-security-policy"].split("; ")) == POLICY
            assert ALWAYS.items() <= answer.headers.items()
            assert "server" not in answer.headers
    for answer in (plain.ask(), plain.ask("/window/x/y", headers=html)):
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:|https?://", answer.text)


def test_only_get_and_head(system: System, board: Start) -> None:
    """It only reads: everything else is refused, for every address."""
    there = board()
    for path in ("/", "/events", "/metrics", "/static/board.css", "/nowhere"):
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
            answer = there.ask(path, method)
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    for path in ("/", "/static/board.css", "/metrics"):
        head = there.ask(path, "HEAD")
        assert (head.status, head.text) == (200, "")


def test_nothing_is_written(system: System, board: Start) -> None:
    """Whatever is looked at, Redis stays as it was."""
    system.entries = {"tick": {"task": WORK, "every": 3600.0}}
    there = board()
    with system.client() as client:
        there.ask()
        assert client.keys() == []
        loaded = loaded_of(system)
        filled.fill(system.store, loaded, 1, timedelta(minutes=61))
        before = {key: client.dump(key) for key in client.scan_iter()}
        (window,) = wait_until(lambda: re.findall(r"window/\w+/[\w:.-]+", there.ask().text), "its window is shown", 60)
        for path in ("/", "/metrics", f"/{window}"):
            assert there.ask(path).status == 200
        assert {key: client.dump(key) for key in client.scan_iter()} == before


# -- hosts, sites, paths --------------------------------------------------------------------------------------------


def test_other_sites_may_link_and_no_more(system: System, board: Start) -> None:
    """A page elsewhere, on another port of this machine too, opens no stream and reads nothing."""
    there = board()
    for site, mode, dest, status in (
        ("none", "navigate", "document", 200),
        ("same-origin", "cors", "empty", 200),
        ("cross-site", "navigate", "document", 200),
        ("cross-site", "navigate", "iframe", 403),
        ("cross-site", "no-cors", "image", 403),
        ("cross-site", "cors", "empty", 403),
        ("same-site", "cors", "empty", 403),
        ("anything", "no-cors", "script", 403),
    ):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
        for path in ("/", "/metrics", "/static/board.css"):
            assert there.ask(path, headers=headers).status == status, (path, headers)


def test_no_path_leads_out(system: System, board: Start) -> None:
    """There are the board's own few files, and nothing else."""
    there = board()
    for path in (
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/static/%2e%2e%2f%2e%2e%2ferrors.py",
        "/static/....//server.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..\\server.py",
        "/static/board.js%00.css",
        "/static/board.js/",
        "/static/",
        "/static",
        "/templates/board.html",
        "/static/__init__.py",
        "//static/board.js",
        "/../../../../etc/passwd",
        "http://evil.example/",
    ):
        answer = there.ask(path)
        assert answer.status in (307, 400, 404), path
        assert "import" not in answer.text, path
        assert "root:" not in answer.text, path


def test_garbage_is_refused(system: System, board: Start) -> None:
    """Bytes that are no request, headers without end, odd positions in the news: an answer or none, and it goes on."""
    there = board()
    parts = there.connect()
    for garbage in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ):
        with socket.create_connection((parts.host, parts.port), 60) as connection:
            connection.sendall(garbage)
            try:
                answer = connection.recv(100)
            except ConnectionResetError:
                answer = b""
            assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), garbage[:60]
    for path in ("/window/%ff%fe/x", "/window/" + "a" * 5000 + "/b", "/?only=%00", "/window/a/b/c"):
        assert there.ask(path).status in (200, 404)
    for position in ("x", "-1", "x-99999999999999999999999999", "%d9%a1", "%00", "-", "a-b-c"):
        with follow(there, position) as news:
            assert next(news)["event"] == "anew"
    assert "Traceback" not in there.proc.log


# -- the token ------------------------------------------------------------------------------------------------------


def test_the_token(system: System, board: Start) -> None:
    """As a header each time; or once in a form, for a cookie that isn't it. Nothing else lets in."""
    there = board("--token", TOKEN)
    for path in ("/", "/metrics", "/events", "/static/board.js", "/nowhere"):
        refused = there.ask(path)
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert "set-cookie" not in refused.headers
    for headers in (
        bearer(TOKEN[:-1]),
        bearer(TOKEN + "x"),
        bearer(TOKEN.upper()),
        bearer(""),
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": f"once_board={TOKEN}"},
        {"cookie": "once_board="},
        {"cookie": 'once_board="\\377"'},
    ):
        assert there.ask(headers=headers).status == 401, headers
    assert there.ask(f"/?token={TOKEN}").status == 401, "none is taken from an address"
    assert there.ask(headers=bearer()).status == 200
    assert there.ask("/metrics", headers={"authorization": f"bearer  {TOKEN}"}).status == 200

    asked = there.ask("/entry/x", headers={"Accept": "text/html"})
    assert (asked.status, 'action="../token"' in asked.text) == (401, True)
    assert enter(there, "wrong-" + TOKEN).status == 401
    assert enter(there, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert enter(there, "x" * 5000).status == 413
    let_in = enter(there)
    assert (let_in.status, let_in.headers["location"]) == (303, "./")
    name, value, attributes = re.fullmatch(r"(\w+)=(\w+); (.*)", let_in.headers["set-cookie"]).groups()
    assert {attribute.lower() for attribute in attributes.split("; ")} == {"httponly", "path=/", "samesite=strict"}
    assert TOKEN not in let_in.headers["set-cookie"]
    assert there.ask("/", headers={"cookie": f"{name}={value[:-1]}0"}).status == 401
    cookie = {"cookie": f"{name}={value}"}
    assert there.ask("/", headers=cookie).status == 200
    # No redirect to an absolute address, whose host would be what the request says.
    for path in ("/events/", "/entry/x/", "/window/x/y/", "/static/board.css/"):
        assert there.ask(path, headers=cookie).status == 404, path
    assert TOKEN not in there.proc.log
    assert TOKEN not in there.ask(headers=bearer()).text


# -- the news -------------------------------------------------------------------------------------------------------


@contextmanager
def follow(
    board: Board, position: str = "", headers: dict[str, str] | None = None
) -> Iterator[Iterator[dict[str, str]]]:
    """The events of one viewer."""

    def read(answer: HTTPResponse) -> Iterator[dict[str, str]]:
        event: dict[str, str] = {}
        while line := answer.readline():
            name, separator, value = line.decode().rstrip("\n").partition(": ")
            if separator:
                event[name] = value
                continue
            if "event" in event:
                yield event
            event = {}

    with closing(board.connect()) as connection:
        connection.request("GET", f"/events?since={position}", headers=headers or {})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield read(answer)


def test_the_news_go_on_where_they_stopped(system: System, board: Start) -> None:
    """A viewer who was away for a moment gets what it missed; one with a position of another process starts anew."""
    system.entries = {"tick": {"task": WORK, "every": 3600.0}}
    there = board()
    position = re.search(r'data-position="(\S+?)"', there.ask().text)
    with follow(there, position[1]) as news:
        first = next(news)
    filled.fill(system.store, loaded_of(system), 1, timedelta(minutes=61))
    with follow(there, "forged-0", {"last-event-id": first["id"]}) as news:
        row = ""
        for _, event in zip(range(60), news, strict=False):  # a look may have come between its claim and its end
            assert event["event"] == "news"
            row = "".join(json.loads(event["data"])["rows"].values()) or row
            if 'class="done"' in row:
                break
    assert 'class="done"' in row
    with follow(there, "another-3") as news:
        assert next(news)["event"] == "anew"


def test_a_flood_of_viewers(system: System, board: Start) -> None:
    """Beyond a number they are refused, and the others go on; who goes makes room; nobody costs Redis more."""
    there = board()
    with ExitStack() as stack:
        viewers = [stack.enter_context(follow(there)) for _ in range(MOST_VIEWERS)]
        refused = there.ask("/events")
        assert (refused.status, refused.headers["retry-after"]) == (503, "30")
        assert there.ask().status == 200
        for viewer in viewers:
            assert next(viewer)["event"] == "anew"
            assert next(viewer)["event"] == "news"

    def room() -> bool:
        with closing(there.connect()) as connection:
            connection.request("GET", "/events")
            return connection.getresponse().status == 200

    wait_until(room, "there is room again", 60)
    assert "Traceback" not in there.proc.log


def test_one_look_serves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many watch the board or ask for metrics: Redis is read once, and not again before a second has passed."""
    now, looks = [100.0], []
    monkeypatch.setattr(feed, "time", SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: 0.0))
    seen = Sight(Report(datetime(2026, 1, 1, tzinfo=timezone.utc), 0.0, 0.0, (), ()), {})
    shared = feed.Feed(lambda: looks.append(now[0]) or seen, timezone.utc)

    async def ask() -> None:
        for now[0] in (100.0, 100.9, 101.0, 105.0):
            pages = await asyncio.gather(*(shared.fresh() for _ in range(20)))
            assert len({id(page) for page in pages}) == 1

    asyncio.run(ask())
    assert looks == [100.0, 101.0, 105.0]


@pytest.mark.long
def test_who_takes_nothing_holds_nobody_up(system: System, board: Start) -> None:
    """A viewer that never reads its news doesn't delay the others'."""
    system.entries = {f"entry-{n}": {"task": WORK, "every": 1.0} for n in range(300)}
    there = board()
    with closing(there.connect()) as stuck, follow(there) as news:
        stuck.request("GET", "/events")
        assert next(news)["event"] == "anew"
        for _ in range(3):
            assert next(news)["event"] == "news"


# -- what it shows ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_board_shows_what_the_beats_run(system: System, board: Start) -> None:
    """Also where its own code is another one, which it says in a line; and a story has the words of a failure."""
    system.entries = {
        "there": {"task": WORK, "every": 3600.0},
        "fails": {"task": "apps.once_app.ending", "args": ["fails"], **once_soon()},
        "sends": {"task": "apps.once_app.parent", "args": ["ann"], **once_soon()},
    }
    system.settings = {"once_beat_board_links": {"Flower": "https://flower.example/{task}/{task_id}"}}
    system.worker(concurrency=1).wait_ready()
    system.beat()
    wait_until(lambda: system.outcomes("fails").get("failed"), "one has failed", 60)
    wait_until(lambda: system.outcomes("sends").get("done"), "one has sent its child", 60)
    there = board(entries={"here": {"task": WORK, "every": 60.0}})
    page = wait_until(lambda: "no beat runs" in (text := there.ask("/").text) and text, "the beat has loaded all", 60)
    line = re.search(r'<p id="code">(.*)</p>', page)
    assert "no beat runs &#39;here&#39;; not in this code: &#39;fails&#39;, &#39;sends&#39;, &#39;there&#39;" in line[1]
    assert page.count('role="rowheader"') == 3
    assert "last window failed: ValueError: this task fails" in page
    (window,) = re.findall(r'class="failed" href="(window/[^"]+)"', page)
    story = there.ask(f"/{window}").text
    assert "<dt>Failure</dt><dd>ValueError: this task fails</dd>" in story
    (window,) = re.findall(r'href="(window/[^"]+)" aria-label="sends,', page)
    child, told = "child:apps.once_app.work@sends:ann", there.ask(f"/{window}").text
    assert re.search(rf'{child} <span>task (\S+)</span> <a .*href="https://flower.example/apps.once_app.work/\1"', told)


# -- secrets --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_no_secret_is_shown(system: System, board: Start, start_redis: Callable[..., RedisServer]) -> None:
    """Neither the store's password, whether Redis is there or not, nor what tasks are called with."""
    server = start_redis()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "board", "on", ">st0re-p@ss", "~*", "&*", "+@all")
    secrets = ("st0re-p", "p@ss", "p%40ss", "an-argument", "a-keyword", "from-the-options")
    system.store_url = f"redis://board:st0re-p%40ss@127.0.0.1:{server.port}/0"
    system.entries = {
        "tick": {"task": WORK, "every": 1.0, "args": ["an-argument", {"a-keyword": 1}],
                 "options": {"headers": {"from-the-options": 1}}}
    }  # fmt: skip
    there = board()

    def look() -> str:
        texts = [there.ask(path, headers={"accept": "text/html"}).text for path in ("/", "/metrics", "/nowhere")]
        with follow(there) as news:
            return "".join([*texts, next(news)["data"], next(news)["data"]])

    live = look()
    assert "tick" in live
    server.stop()
    wait_until(lambda: "Redis can" in there.ask().text, "it says that Redis is away", 60)
    away = look() + there.proc.log
    for secret in secrets:
        assert secret not in live + away


@pytest.mark.long
def test_half_sent_requests_keep_nobody_out(system: System, board: Start) -> None:
    """A head has so much time as a whole; so has a body that nobody waits for, and the next request's head."""
    started = board("--token", TOKEN)
    half = [b"GET / HTTP/1.1\r\nHost: x\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"]
    half.append(b"GET /static/board.css HTTP/1.1\r\nHost: x\r\n\r\n" + half[0])
    address = started.connect()
    with ExitStack() as clients:
        slow = [
            clients.enter_context(socket.create_connection((address.host, address.port), timeout=30))
            for _ in range(260)
        ]
        for number, client in enumerate(slow):
            client.send(half[number % len(half)])

        def answers_beside_them() -> bool:
            for client in slow:
                with suppress(OSError):
                    client.send(b"x")
            return started.ask("/", headers=bearer()).status == 200

        wait_until(answers_beside_them, "it answers beside them", 60, every=0.5)
