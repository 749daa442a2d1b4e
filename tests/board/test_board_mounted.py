"""The board in applications of users' own, as docs/board.md shows them, with real servers; and behind a proxy."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import timedelta
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
    assert not re.search(r'(?:href|src|action)="/', page.text), "a proxy may strip a part of the path"
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


@pytest.mark.parametrize("mounted", ["mounted fastapi"], indirect=True)
@pytest.mark.long
def test_mounted_in_a_browser(system: System, mounted: Mounted, visit: Visit) -> None:
    """Live, a story, and in it an order."""
    address = f"{mounted.board.url}{PATH}/"
    known = {"username": "anna", "password": PASSWORDS["anna"], "send": "always"}
    page = visit(address, http_credentials=known, live=True)
    page.locator(".cells .done").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Note").fill("from a mount")
    dialog.get_by_role("button", name="Pause").press("Enter")
    expect(page.locator("p.done")).to_contain_text("hourly: Paused.")
    assert page.url.startswith(address)
    assert system.account("hourly").paused_for == "from a mount"
    assert "Traceback" not in mounted.board.proc.log
