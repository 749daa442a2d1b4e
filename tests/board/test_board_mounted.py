"""The board in applications of users' own, as docs/board.md shows them, with real servers; and behind a proxy."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import filled
import pytest
from boards import Answer, Board, Visit, loaded_of
from playwright.sync_api import expect
from processes import Proc, Processes, environ, wait_until
from servers import free_port
from system import System

from celery_once_beat.features.orders.store import read_orders

pytestmark = pytest.mark.xdist_group("chromium")

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "board.md").read_text()
PATH = "/ops/board"
PASSWORDS = {"anna": "her password", "bob": "his password"}


def example(name: str) -> str:
    """The page's block below that comment."""
    found = re.search(rf"<!-- {re.escape(name)} -->\n```python\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found, name
    return found[1]


@dataclass
class Mounted:
    """An application that runs, with a board in it."""

    board: Board
    #: By user: what a browser sends once that one has logged in.
    headers: dict[str, dict[str, str]] = field(default_factory=dict)

    def ask(self, path: str = "/", user: str = "anna", headers: dict[str, str] | None = None) -> Answer:
        return self.board.ask(f"{PATH}{path}", headers={**self.headers.get(user, {}), **(headers or {})})


PROJ = """
import os
from celery import Celery
from celery_once_beat import OnceTask

app = Celery("proj", broker=os.environ["STORE"], task_cls=OnceTask)
app.conf.beat_schedule = {"hourly": {"task": "apps.once_app.work", "schedule": 3600.0}}

@app.task(name="apps.once_app.work")
def work():
    pass
"""
AUTHENTICATION = """
import base64
import hmac
import json
import os

from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.responses import PlainTextResponse

PASSWORDS = json.loads(os.environ["PASSWORDS"])  # {"anna": "…"}


class Passwords(AuthenticationBackend):
    async def authenticate(self, connection):
        given = connection.headers.get("authorization", "").partition(" ")[2]
        try:
            name, _, password = base64.b64decode(given).decode().partition(":")
        except ValueError:
            name = password = ""
        if not hmac.compare_digest(PASSWORDS.get(name, "").encode(), password.encode()) or not password:
            raise AuthenticationError("name or password")
        return AuthCredentials(["authenticated"]), SimpleUser(name)


def ask_for_password(connection, exc):
    return PlainTextResponse(f"Wrong: {exc}", 401, {"www-authenticate": "Basic"})
"""
SETTINGS = """
SECRET_KEY = "tests"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "proj.urls"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = True
"""
URLS = """
from django.http import HttpResponse
from django.urls import path
urlpatterns = [path("", lambda request: HttpResponse("the shop"))]
"""
USERS = """
import json, os
os.environ["DJANGO_SETTINGS_MODULE"] = "proj.settings"
import django
django.setup()
from django.contrib.auth import SESSION_KEY, BACKEND_SESSION_KEY, HASH_SESSION_KEY, get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command

call_command("migrate", verbosity=0)
keys = {}
for name, staff, chief in (("anna", True, True), ("bob", True, False), ("customer", False, False)):
    user = get_user_model().objects.create_user(name, password="secret", is_staff=staff, is_superuser=chief)
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    keys[name] = session.session_key
print(json.dumps(keys))
"""
WSGI_SERVER = """
import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from proj.wsgi import application

class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

class Handler(WSGIRequestHandler):
    def log_message(self, *_):
        pass

server = make_server("127.0.0.1", int(sys.argv[1]), application, Server, Handler)
print("running", flush=True)
server.serve_forever()
"""


@pytest.fixture
def mounted(request: pytest.FixtureRequest, procs: Processes, system: System, tmp_path: Path) -> Mounted:
    """Run the page's example of this name."""
    system.entries = {"hourly": {"task": "apps.once_app.work", "every": 3600.0}}
    filled.fill(system.store, loaded_of(system), 3, timedelta(hours=3, minutes=1))
    folder, port, name = tmp_path / "mounted", free_port(), request.param
    folder.mkdir()
    env = {"STORE": system.store_url, "PYTHONPATH": str(folder), "PASSWORDS": json.dumps(PASSWORDS)}
    board = f"http://127.0.0.1:{port}"
    uvicorn = [sys.executable, "-m", "uvicorn", "--port", str(port), "--timeout-graceful-shutdown", "1"]

    def start(command: list[str], ready: str) -> Proc:
        proc = procs.start(command, name="mounted", env=env, cwd=folder, ready=ready)
        proc.wait_ready()
        return proc

    if name in ("mounted starlette", "mounted fastapi"):
        (folder / "proj.py").write_text(PROJ)
        (folder / "users.py").write_text(AUTHENTICATION)
        (folder / "web.py").write_text(example(name))
        proc = start([*uvicorn, "web:web"], "Uvicorn running on")
        headers = {
            user: {"authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
            for user, password in PASSWORDS.items()
        }
        return Mounted(Board(proc, board), headers)
    (folder / "proj").mkdir()
    files = {"__init__": "", "celery": PROJ, "settings": SETTINGS, "urls": URLS + example("mounted django urls")}
    files |= {kind: (ROOT / f"docs/board/{kind}.py").read_text() for kind in ("asgi", "wsgi")}
    for module, text in files.items():
        (folder / "proj" / f"{module}.py").write_text(text)
    made = subprocess.run(
        [sys.executable, "-c", USERS], cwd=folder, env=environ(env), check=True, capture_output=True, text=True
    )
    keys = json.loads(made.stdout.splitlines()[-1])
    if name == "mounted django asgi":
        proc = start([*uvicorn, "proj.asgi:application"], "Uvicorn running on")
    else:
        proc = start([sys.executable, "-c", WSGI_SERVER, str(port)], "running")
    return Mounted(Board(proc, board), {user: {"cookie": f"sessionid={key}"} for user, key in keys.items()})


ALL = ["mounted starlette", "mounted fastapi", "mounted django asgi", "mounted django wsgi"]


@pytest.mark.parametrize("mounted", ALL, indirect=True)
@pytest.mark.long
def test_an_example_runs_as_it_stands(system: System, mounted: Mounted) -> None:
    """Who isn't known gets nothing; who is looks; who may acts, and is in the log by the application's own name."""
    if "customer" in mounted.headers:
        for user, path in (("nobody", "/"), ("nobody", "/orders"), ("customer", "/")):
            led = mounted.ask(path, user)
            assert (led.status, led.headers["location"]) == (302, f"/admin/login/?next={PATH}/"), (user, path)
        led = mounted.ask("", "anna")
        assert (led.status, led.headers["location"]) == (302, f"{PATH}/")
    else:
        assert mounted.ask(user="nobody").status == 401
    lines = wait_until(lambda: re.findall(r'id="e(\w+)"', mounted.ask().text), "the entry is shown", 60)
    page = mounted.ask("/")
    assert page.status == 200
    assert 'href="orders"' in page.text
    linked = re.findall(r'(?:href|src)="(static/[^"]+|window/[^"]+)"', page.text)
    assert len(linked) > 3
    for link in linked:
        assert mounted.ask(f"/{link}").status == 200, link
    assert 'href="orders"' not in mounted.ask("/", "bob").text
    assert mounted.ask("/orders", "bob").status == 403
    wrong = mounted.ask("/window/x/y", headers={"accept": "text/html"})
    assert wrong.status == 404
    assert 'href="../../"' in wrong.text, "the way back is within the mounted path"
    rebound = mounted.ask("/", headers={"host": "evil.example"})
    assert rebound.status == 400
    assert "found 'evil.example', expected localhost" in rebound.text
    assert "board.asgi's hosts" in rebound.text

    shown = mounted.ask(f"/orders/{lines[0]}")
    assert shown.status == 200
    assert "You are anna." in shown.text
    csrf = re.search(r'name="csrf" value="(\w+)"', shown.text)
    cookie = shown.headers["set-cookie"].partition(";")[0]

    def send(user: str, **headers: str) -> Answer:
        given = {**mounted.headers[user], "content-type": "application/x-www-form-urlencoded"}
        given |= {"origin": mounted.board.url, **headers}
        given["cookie"] = "; ".join(filter(None, [given.get("cookie"), cookie]))
        form = urlencode({"csrf": csrf[1], "by": "forged", "note": "why"})
        return mounted.board.ask(f"{PATH}/orders/{lines[0]}/pause", "POST", given, form)

    assert send("bob").status == 403
    assert send("anna", origin="http://evil.example").status == 403
    assert not system.account("hourly").paused
    taken = send("anna")
    assert taken.status == 303
    assert taken.headers["location"].startswith(f"../{lines[0]}?done=Paused.")
    assert (system.account("hourly").paused_by, system.account("hourly").paused_for) == ("anna", "why")
    assert [record.order.by for record in read_orders(system.store)] == ["anna"]
    assert "Traceback" not in mounted.board.proc.log


class _Proxy(BaseHTTPRequestHandler):
    """Takes a path's first part off, and passes the rest on; Host as the browser sent it."""

    target = 0
    protocol_version = "HTTP/1.0"

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        with (
            closing(HTTPConnection("127.0.0.1", self.target, timeout=60)) as upstream,
            suppress(OSError, ValueError, HTTPException),  # the browser or the application has gone
        ):
            upstream.request(self.command, self.path.replace("/team", "", 1), body, headers)
            with upstream.getresponse() as answer:
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.end_headers()
                while part := answer.read1(65536):
                    self.wfile.write(part)
                    self.wfile.flush()

    do_GET = do_POST = _pass_on  # noqa: N815  # names of http.server

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxied(mounted: Mounted) -> Iterator[str]:
    """The address of the board behind a proxy that takes a part of the path off."""
    port = int(mounted.board.url.rpartition(":")[2])
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Proxy", (_Proxy,), {"target": port}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/team{PATH}/"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("mounted", ["mounted fastapi"], indirect=True)
@pytest.mark.long
def test_behind_a_proxy_in_a_browser(system: System, mounted: Mounted, proxied: str, visit: Visit) -> None:
    """Mounted, and below a path that the application doesn't know of: live, a story, and in it an order."""
    page = visit(
        proxied, http_credentials={"username": "anna", "password": PASSWORDS["anna"], "send": "always"}, live=True
    )
    page.locator(".cells .done").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Note").fill("from behind")
    dialog.get_by_role("button", name="Pause").press("Enter")
    expect(page.locator("p.done")).to_contain_text("hourly: Paused.")
    assert page.url.startswith(proxied)
    assert system.account("hourly").paused_for == "from behind"
    assert "Traceback" not in mounted.board.proc.log
