"""Django's admin, with its real pages: how rows stand, and what one may do about them."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until
from shops import ONCE, Shop, block_of_docs

from celery_once_beat.features.orders.store import read_orders
from celery_once_beat.identity import page_id

pytestmark = pytest.mark.long

OUR_APP = "celery_once_beat.contrib.django"
_APPS = [f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "sessions", "messages")]
ADMIN: dict[str, Any] = {
    "INSTALLED_APPS": [*_APPS, "django_celery_beat", OUR_APP],
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    "ROOT_URLCONF": "apps.dj_shop.urls",
    "ALLOWED_HOSTS": ["testserver"],
    "STATIC_URL": "/static/",
    "CELERY_BEAT_SCHEDULER": "celery_once_beat.contrib.django:OnceDatabaseScheduler",
}
#: In the process of the project: its users, and what one of them sees and posts.
CLIENT = """
import re
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client

call_command("migrate", verbosity=0)
LIST = "/admin/django_celery_beat/periodictask/"
clients = {}
for name, rights in {"anna": ("view", "change"), "victor": ("view",)}.items():
    user = User.objects.create_user(name, password="secret", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=[f"{right}_periodictask" for right in rights]))
    clients[name] = Client(enforce_csrf_checks=True)
    clients[name].force_login(user)

def see(who, path=""):
    answer = clients[who].get(LIST + path)
    return [answer.status_code, answer.content.decode()]

def act(who, action, names, note="", token=True):
    page = clients[who].get(LIST).content.decode()
    found = re.search('name="csrfmiddlewaretoken" value="([^"]+)"', page)
    keys = PeriodicTask.objects.filter(name__in=names).values_list("pk", flat=True)
    data = {"action": action, "_selected_action": [str(key) for key in keys], "once_note": note, "index": "0"}
    if token:
        data["csrfmiddlewaretoken"] = found[1]
    answer = clients[who].post(LIST, data, follow=True)
    return [answer.status_code, answer.content.decode()]
"""


@pytest.fixture
def new_admin(new_shop: Callable[..., Shop]) -> Callable[..., Shop]:
    def make(**settings: Any) -> Shop:
        shop = new_shop(**{**ADMIN, **settings})
        shop.orm(CLIENT)
        return shop

    return make


@pytest.fixture
def admin(new_admin: Callable[..., Shop]) -> Shop:
    return new_admin()


def see(shop: Shop, who: str = "anna", path: str = "") -> str:
    status, page = shop.orm.value(f"see({who!r}, {path!r})")
    assert status == 200, page
    return page


def page_of(shop: Shop) -> str:
    """The list of a project with one row."""
    shop.orm("row('quick', interval=every(1))")
    return see(shop)


def act(shop: Shop, action: str, *names: str, who: str = "anna", note: str = "", token: bool = True) -> tuple[int, str]:
    """What the page says when an action was carried out: the status, and its messages."""
    status, page = shop.orm.value(f"act({who!r}, {action!r}, {names!r}, {note!r}, {token!r})")
    said = re.findall(r'<ul class="messagelist">(.*?)</ul>', page, re.DOTALL)
    return status, text_of(" ".join(said))


def text_of(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def cells(page: str, column: str) -> dict[str, str]:
    """A column of the list, by row; as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    found = {}
    for row in rows:
        name = re.search(r'<th class="field-name">(.*?)</th>', row, re.DOTALL)
        cell = re.search(rf'<td class="field-{column}[^"]*">(.*?)</td>', row, re.DOTALL)
        if name and cell:
            found[text_of(name[1])] = text_of(cell[1])
    return found


ROWS = """
row("quick", interval=every(1))
row("daily", crontab=CrontabSchedule.objects.create(minute="30", hour="2", timezone="Europe/Berlin"))
row("slow", task="apps.dj_shop.celery.slow", interval=every(3), headers='{"once": {"deadline": 1}}')
row("wrong", interval=every(60), headers='{"once": {"grase": 1}}')
row("off", interval=every(1), enabled=False)
row("<b>hostile</b>", interval=every(3600))
"""


def test_each_row_says_how_it_stands(admin: Shop) -> None:
    """In the list and in its form: the next start, the last windows with their outcome, why it is left out."""
    admin.orm(ROWS)
    admin.start()
    admin.wait_loaded("quick", "daily")
    admin.wait_ran("quick", 4)
    page = see(admin)
    coming, last, attention = (cells(page, column) for column in ("once_next", "once_last", "once_attention"))
    assert re.search(r"\d", coming["quick"])
    assert coming["daily"].endswith("02:30:00")
    assert (coming["off"], coming["wrong"]) == ("disabled", "-")
    assert last["quick"].count("done") >= 2
    assert last["daily"] == "-"
    assert attention["wrong"].startswith("can't run: ")
    assert "did you mean 'grace'?" in attention["wrong"], "all of it"
    assert '<span class="once-grave">can&#x27;t run: ' in page
    assert "celery_once_beat/admin.css" in page
    assert all("<br>" not in cell for cell in re.findall(r'<td class="field-once_last">(.*?)</td>', page, re.DOTALL))
    assert {attention[name] for name in ("quick", "daily", "off")} == {"-"}
    assert "<b>hostile" not in page

    key = admin.orm.value("PeriodicTask.objects.get(name='quick').pk")
    form = see(admin, path=f"{key}/change/")
    lines = form.partition("field-once_windows")[2].partition("field-once_attention")[0].split("<br>")
    assert any(re.search(r"done, .* s late, took .* s, on ", line) for line in lines), lines
    key = admin.orm.value("PeriodicTask.objects.get(name='slow').pk")
    wait_until(lambda: " s past its deadline" in see(admin, path=f"{key}/change/"), "its row says that it was late", 60)
    key = admin.orm.value("PeriodicTask.objects.get(name='wrong').pk")
    assert "grase" in see(admin, path=f"{key}/change/").partition("field-once_attention")[2]


def test_a_page_asks_the_store_once(admin: Shop) -> None:
    """However many rows it shows."""
    admin.orm("[row(f'row {n}', interval=every(3600)) for n in range(40)]")
    with admin.client() as client:
        before = client.info("commandstats").get("cmdstat_zrange", {}).get("calls", 0)
        assert len(cells(see(admin), "once_next")) == 40
        assert client.info("commandstats")["cmdstat_zrange"]["calls"] - before == 1


def test_the_newest_window_runs_by_order(admin: Shop) -> None:
    """As a window, also one that ran before, and by a beat; who ordered it stands in the row's history."""
    admin.orm(ROWS)
    admin.orm("row('hourly', interval=every(3600))")
    admin.start()
    admin.wait_loaded("hourly")
    assert admin.ran("hourly") == []
    status, said = act(admin, "once_run", "hourly", "off", "wrong")
    assert status == 200
    assert '"hourly": window ' in said
    assert '"off": it is disabled' in said
    assert '"wrong": it is left out: ' in said
    admin.wait_ran("hourly", 1)
    (start,) = admin.ran("hourly")
    assert start.endswith(":00:00.000000Z")
    admin.wait_recorded("hourly")
    assert '"hourly": window ' in act(admin, "once_run", "hourly")[1]
    admin.wait_ran("hourly", 2)
    assert admin.ran("hourly") == [start, start]
    history = admin.orm.value("list(LogEntry.objects.values_list('object_repr', 'user__username', 'change_message'))")
    assert [entry[:2] for entry in history] == [["hourly: every 3600 seconds", "anna"]] * 2
    assert all("is run by order" in entry[2] for entry in history)


def test_a_row_is_paused_with_a_note_and_resumed(admin: Shop) -> None:
    """Who paused it and why is shown wherever people look, until it is resumed, and stands in the log of orders."""
    admin.orm("row('quick', interval=every(1))")
    admin.start()
    admin.wait_ran("quick", 2)
    assert '"quick": paused by anna: too many <mails>' in act(admin, "once_pause", "quick", note="too many <mails>")[1]
    account = admin.account("quick")
    assert (account.paused, account.paused_by, account.paused_for) == (True, "anna", "too many <mails>")
    page = see(admin)
    assert re.fullmatch(r"paused .* ago by anna: too many <mails>", cells(page, "once_attention")["quick"])
    assert 'class="once-mild"' in page
    assert "<mails>" not in page
    assert "ago by anna: too many <mails>" in admin.once("status", "-S", ONCE)
    cursor = admin.account("quick").cursor

    assert '"quick": resumed by anna' in act(admin, "once_resume", "quick")[1]
    assert not admin.account("quick").paused_by
    wait_until(lambda: admin.account("quick").cursor > cursor, "it goes on", 60)
    messages = admin.orm.value("list(LogEntry.objects.order_by('pk').values_list('change_message', flat=True))")
    assert ["paused by anna" in messages[0], "resumed by anna" in messages[1]] == [True, True]
    assert "\u202e" not in act(admin, "once_pause", "quick", note="too\n many\u202e")[1]
    act(admin, "once_run", "quick", note="again")
    log = json.loads(admin.once("orders", "--json"))
    assert [(each["what"], each["entry"], each["by"], each["note"]) for each in log] == [
        ("run", "quick", "anna", "again"),
        ("pause", "quick", "anna", "too many\u202e"),
        ("resume", "quick", "anna", ""),
        ("pause", "quick", "anna", "too many <mails>"),
    ]
    act(admin, "once_resume", "quick")
    act(admin, "once_pause", "quick", note="x" * 5000)
    assert not admin.account("quick").paused


def test_only_who_may_change_a_row_does(admin: Shop) -> None:
    """Others don't see the actions, and aren't obeyed; nor is a POST without its token, or a GET."""
    admin.orm("row('quick', interval=every(3600))")
    admin.beats()
    admin.wait_loaded("quick")
    assert "once_pause" in see(admin)
    assert "enable_tasks" in see(admin)
    assert 'name="action"' not in see(admin, "victor"), "neither ours nor those of django-celery-beat"
    act(admin, "once_pause", "quick", who="victor")
    assert act(admin, "once_pause", "quick", token=False)[0] == 403
    key = admin.orm.value("PeriodicTask.objects.get().pk")
    see(admin, path=f"?action=once_pause&_selected_action={key}&e=1")
    assert not admin.account("quick").paused
    assert act(admin, "once_pause", "quick")[0] == 200
    assert admin.account("quick").paused
    assert admin.orm.value("LogEntry.objects.count()") == 1


def test_a_row_that_no_beat_has_loaded(admin: Shop) -> None:
    """What can't be done is said, and in the log of orders too; the row's history has nothing of it."""
    admin.orm("row('new', interval=every(3600))")
    for action in ("once_run", "once_pause", "once_resume"):
        assert '"new": no beat has loaded it yet' in act(admin, action, "new")[1]
    found = [(each.order.what, each.order.about) for each in read_orders(admin.store)]
    assert found == [(what, "refused: no beat has loaded it yet") for what in ("resume", "pause", "run")]
    assert admin.orm.value("LogEntry.objects.count()") == 0


@pytest.mark.parametrize("action", ["once_run", "once_pause"])
def test_redis_is_frozen(new_admin: Callable[..., Shop], start_redis: Callable[..., Any], action: str) -> None:
    """An action has one limit on time for all its rows, and one answer; the list has the same."""
    server = start_redis()
    shop = new_admin(CELERY_ONCE_BEAT_REDIS_URL=server.url())
    names = [f"row{number}" for number in range(10)]
    shop.orm(f"for name in {names!r}:\n    row(name, interval=every(3600))")
    server.pause()
    try:
        said = act(shop, action, *names)[1]
        assert said.count("Redis: no answer within 2 s") == 1
        assert all(f'"{name}"' in said for name in names)
        assert cells(see(shop), "once_attention") == dict.fromkeys(names, "Redis: no answer within 2 s")
        assert shop.orm.value("LogEntry.objects.count()") == 0
    finally:
        server.resume()


def test_many_rows_have_one_message(admin: Shop) -> None:
    """Ten of them are named, and the log of orders has one record; each row's history has its own."""
    names = [f"row{number:03}" for number in range(300)]
    admin.orm(f"for name in {names!r}:\n    row(name, interval=every(3600))")
    admin.beat().wait_ready()
    admin.wait_loaded(*names, beats=1)
    said = act(admin, "once_pause", *names)[1]
    assert said.count("paused by anna") == 1
    assert "and 290 more: paused" in said
    assert all(account.paused for account in admin.store.accounts(names))
    assert admin.orm.value("LogEntry.objects.count()") == 300
    (record,) = read_orders(admin.store)
    assert (record.order.what, record.order.about[:13]) == ("pause", "and 299 more ")


def test_a_link_to_the_board(new_admin: Callable[..., Shop]) -> None:
    """To the row's page there, when a setting gives the board's address; else there is none."""
    page = page_of(new_admin(CELERY_ONCE_BEAT_BOARD_URL="https://board.example/?a=1&b=2"))
    assert f'<a href="https://board.example/entry/{page_id("quick")}?a=1&amp;b=2">board</a>' in page


@pytest.mark.parametrize("theme", ["unfold", "jazzmin"])
def test_the_note_says_what_it_is_in_other_themes(new_admin: Callable[..., Shop], theme: str) -> None:
    """They show no labels beside the actions."""
    pytest.importorskip(theme)
    page = page_of(new_admin(INSTALLED_APPS=[theme, *ADMIN["INSTALLED_APPS"]]))
    (note,) = re.findall(r'<input[^>]*name="once_note"[^>]*>', page)
    assert 'aria-label="Note"' in note
    assert 'placeholder="Note: why"' in note
    assert "once-windows" in page


def test_disabled_rows_stay_visible(admin: Shop) -> None:
    """In status, with what they ran; what somebody should look at is a one-off that failed, until it is enabled."""
    admin.orm("row('quick', interval=every(1)); row('never', interval=every(1), enabled=False)")
    admin.orm("row('broke', interval=every(1), one_off=True, task='apps.dj_shop.celery.failing')")
    admin.start()
    admin.wait_ran("quick", 2)
    admin.orm("edit('quick', enabled=False)")
    admin.wait_left("quick")
    lines = {line.split()[0]: line for line in admin.once("status", "-S", ONCE).splitlines() if line}
    assert "disabled" in lines["never"]
    assert "disabled" in lines["quick"]
    assert "done" in lines["quick"]

    def told() -> dict[str, Any]:
        return {each["entry"]: each for each in json.loads(admin.once("status", "-S", ONCE, "--json"))["entries"]}

    wait_until(lambda: told()["broke"]["kind"] == "disabled", "the one-off is disabled", 60)
    attention = {name: entry["attention"] for name, entry in told().items() if entry["kind"] == "disabled"}
    assert attention == {"quick": [], "never": [], "broke": ["last window failed: ValueError: no rows"]}


ORDERS = {
    "ours last": ["django_celery_beat", "apps.dj_own", OUR_APP],
    "ours in between": ["django_celery_beat", OUR_APP, "apps.dj_own"],
    "ours first": [OUR_APP, "django_celery_beat", "apps.dj_own"],
}


@pytest.mark.parametrize("apps", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("mixin", [False, True])
def test_a_projects_own_admin_stays(new_admin, monkeypatch, apps: list[str], mixin: bool) -> None:
    """Whatever the order of the apps; with the mixin it has the columns and the actions, and decides who may."""
    if mixin:
        monkeypatch.setenv("MIXIN", "1")
    shop = new_admin(INSTALLED_APPS=[*_APPS, *apps])
    assert shop.orm("from django.core import checks; result = [str(found) for found in checks.run_checks()]") == []
    shop.orm("row('free', interval=every(3600)); row('locked', interval=every(3600))")
    page = see(shop)
    assert bool(cells(page, "once_next")) == mixin
    assert ("once_run" in page) == mixin
    assert set(cells(page, "task")) == {"free", "locked"}
    if mixin and apps == ORDERS["ours last"]:
        shop.beats()
        shop.wait_loaded("free", "locked")
        said = act(shop, "once_pause", "free", "locked")[1]
        assert '"locked": you may not change it' in said
        assert [shop.account(name).paused for name in ("free", "locked")] == [True, False]


def test_the_form_of_a_new_row(admin: Shop) -> None:
    """It has no windows yet."""
    admin.orm("clients['anna'].force_login(User.objects.create_superuser('root', password='secret'))")
    assert "once_windows" not in see(admin, path="add/")


def test_a_process_without_the_app(new_admin: Callable[..., Shop]) -> None:
    """The page says what is missing: Celery's own app knows neither Redis nor tasks."""
    shop = new_admin()
    shop.orm("row('quick', interval=every(1))")
    shop.orm("import celery._state as state; state.default_app = state._tls.current_app = None")
    assert cells(see(shop), "once_attention")["quick"].startswith("this process has no Celery app: import yours")


def test_the_app_as_the_docs_show_it(new_admin: Callable[..., Shop]) -> None:
    """These settings are enough."""
    settings: dict[str, Any] = {"INSTALLED_APPS": [*_APPS, "django_celery_beat"]}
    exec(block_of_docs("django.md", "admin app"), settings)
    page = page_of(new_admin(**{name: value for name, value in settings.items() if name.isupper()}))
    assert cells(page, "once_next")
    for action in ("enable_tasks", "disable_tasks", "toggle_tasks", "run_tasks", "once_run"):
        assert f'value="{action}"' in page, action
    assert settings["CELERY_ONCE_BEAT_BOARD_URL"] in page


def test_an_own_admin_as_the_docs_show_it(new_admin: Callable[..., Shop], tmp_path: Path) -> None:
    """It needs no app of ours."""
    (tmp_path / "docs_app").mkdir()
    (tmp_path / "docs_app" / "__init__.py").touch()
    (tmp_path / "docs_app" / "admin.py").write_text(block_of_docs("django.md", "own admin"))
    page = page_of(new_admin(INSTALLED_APPS=[*_APPS, "django_celery_beat", "docs_app"]))
    assert cells(page, "task") == {"quick": "apps.dj_shop.celery.work"}
    assert cells(page, "once_next")
    assert 'value="once_run"' in page
