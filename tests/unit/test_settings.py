"""Settings: read from an app's conf once, each validated, a wrong one named, and documented."""

from __future__ import annotations

import dataclasses
import pickle
import re
import ssl
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import settings_page
from celery import Celery
from celery.bin.celery import celery as command
from click.testing import CliRunner

from celery_once_beat.errors import SettingError
from celery_once_beat.options import TASK_CHECKS, TaskOptions
from celery_once_beat.settings import Settings
from celery_once_beat.wording import shown

REDIS = "redis://localhost:6379/3"
SECRET = "s3cret-word"

# name, default, other values that are right, values that are wrong
_SECONDS = [-1, -0.001, "10", None, True, float("nan"), float("inf"), 1e12, [], "ten"]
TABLE: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("key_prefix", "once:", ["x", "app-1/once:", "ключ:"], ["", "a b", "a{b", "}", "a\nb", None, 1, "x" * 129]),
    ("claim_lease", 1.5, [0.1, 1, 20], [*_SECONDS, 0, 0.09, 20.5]),
    # A beat that publishes for half of the one and then waits for the other still lives: 15 s.
    ("publish_timeout", 10.0, [0.1, 1, 20], [*_SECONDS, 0, 0.09, 20.5]),
    ("recovery_interval", 2.0, [0.1, 1, 5], [*_SECONDS, 0, 0.09, 5.5]),
    ("start_timeout", 600.0, [0.1, 1, 86_400], [*_SECONDS, 0, 0.09]),
    ("lease", 30.0, [0.5, 1, 3600], [*_SECONDS, 0, 0.49]),
    ("max_attempts", 3, [1, 2, 1_000_000], [0, -1, 1.0, "3", None, True, 1_000_001]),
    ("recover", True, [False], [None, 0, 1, "yes", "False"]),
    ("fast", True, [False], [None, 0, 1, "yes", "False"]),
    ("retry_failed_after", None, [0, 1.5, 3600, None], [each for each in _SECONDS if each is not None]),
    ("deadline", None, [1, 1.5, 900, None], [*(each for each in _SECONDS if each is not None), 0, 0.9]),
    ("pause_after_failures", None, [1, 5, 1_000_000, None], [0, -1, 1.0, "3", True, 1_000_001]),
    ("on_failure", None, ["proj.tell_somebody", "tell", None], ["", "a b", "a\nb", 1, True, ["t"], "x" * 501]),
    ("overlap", "allow", ["skip", "buffer_one", "buffer_all"], ["", "never", "buffer_first", None, True, 1, ["skip"]]),
    ("marker_ttl", 600.0, [1, 2.5], [*_SECONDS, 0, 0.9]),
    ("retention", 86_400.0, [1, 2.5], [*_SECONDS, 0, 0.9]),
    ("catch_up", "latest", ["all", "none"], ["", "newest", None, True, 1, ["all"]]),
    ("grace", None, [0, 1.5, 3600, None], [each for each in _SECONDS if each is not None]),
    ("max_catch_up", 1000, [0, 1, 5000], [-1, 1.5, "3", None, False]),
    ("tolerance", 60.0, [0, 1, 3600], _SECONDS),
    ("wait_replicas", 0, [1, 5], [-1, 1.0, "1", None, True]),
    ("history_size", 50, [0, 1, 5000], [-1, 1.0, "1", None, True]),
    ("failure_text", "message", ["message", "type", "none"], ["text", True, None, 1]),
    (
        "board_url",
        None,
        ["https://board.example", "http://127.0.0.1:5566/once/?a=b", None],
        ["", "board.example", "javascript:alert(1)", "ftp://board", "http://", "https:///x", "http://a b", 1],
    ),
    ("runtime_tasks", None, [None, (), ("proj.*", "a")], ["proj.*", [1], [""], True, {"a": 1}]),
    ("effects_schema", None, ["jobs", "Jobs_2", None], ["", "a b", "a.b", 'a"', "a;", 1, "x" * 64]),
    ("heartbeat_file", None, ["/run/beat/heartbeat", None], ["", "heartbeat", "./a", "/run/", "/", "/a\0b", 1, b"/a"]),
]
WRONG = [(name, value) for name, _, _, values in TABLE for value in values]


def read(**conf: Any) -> Settings:
    """Those of an app with this configuration; its broker is a Redis if nothing else is said."""
    app = Celery("tests", set_as_current=False)
    app.conf.update({"broker_url": REDIS, **conf})
    return Settings.from_app(app)


@pytest.mark.parametrize(("name", "default"), [row[:2] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_setting_has_its_documented_default(name: str, default: Any) -> None:
    """An app that says nothing gets the defaults."""
    found = getattr(read(), name)
    assert found == default
    assert type(found) is type(default)


def test_a_right_value_is_taken() -> None:
    """What fits is taken as it is."""
    for name, _, values, _ in TABLE:
        assert [getattr(read(**{f"once_beat_{name}": value}), name) for value in values] == values


def test_the_table_names_every_setting() -> None:
    """No setting is without a test; the two about Redis, the board's links and what holds a password have their own."""
    names = {f.name for f in dataclasses.fields(Settings)}
    apart = {"redis_url", "redis_options", "board_links", "limits", "effects_url"}
    apart |= {"cron_starting_deadline"}  # Celery's own
    assert names == {row[0] for row in TABLE} | apart, "give each a row of TABLE"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([("reports", 3)], "once_beat_limits: found .*, expected a dict of names and numbers of slots"),
        ({"reports": 0}, r"once_beat_limits\['reports'\]: found 0, expected a whole number, at least 1"),
        ({"reports": True}, r"once_beat_limits\['reports'\]: found True"),
        ({"a b": 1}, "once_beat_limits, a name: found 'a b', expected 1 to 64 letters"),
        ({"x" * 65: 1}, "once_beat_limits, a name"),
        ({3: 1}, "once_beat_limits, a name: found 3"),
    ],
)
def test_wrong_limits(limits: Any, expected: str) -> None:
    """The error names the setting, the limit, and what was expected."""
    with pytest.raises(SettingError, match=expected):
        read(once_beat_limits=limits)


def test_the_url_of_effects() -> None:
    """Any that SQLAlchemy could know; nothing of a wrong one is shown, as it may hold a password."""
    for url in ("postgresql+psycopg://u:p@host/db", "sqlite:////tmp/x.db", "mysql+pymysql://host/db", None):
        assert read(once_beat_effects_url=url).effects_url == url
    assert "secret" not in repr(read(once_beat_effects_url="postgresql://u:secret@host/db"))
    for wrong in ("", "host/db?secret", "secret", 1, b"sqlite://secret"):
        with pytest.raises(SettingError, match=r"once_beat_effects_url: found (str|int|bytes), expected SQLA") as found:
            read(once_beat_effects_url=wrong)
        assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ("https://flower.example", "a dict of names and URLs"),
        ({"x": None}, "a dict of names and URLs"),
        ({"x": "javascript:alert({entry})"}, "http:// or https://"),
        ({"x": "//x.example/{entry}"}, "http:// or https://"),
        ({"x": "https://{entry}.example/"}, "a host without a field in it"),
        ({"x": "https://x.example/\n{entry}"}, "a host without a field in it"),
        ({"x": "https://x.example/{taskid}"}, "did you mean task_id?"),
        ({"x": "https://x.example/{task_id"}, "fields of attempt, beat, begun"),
        ({"x": "https://x.example/{entry.__class__}"}, "fields of attempt, beat, begun"),
    ],
)
def test_a_link_that_could_lead_anywhere_is_refused(links: Any, expected: str) -> None:
    """Only http and https; scheme and host are the template's own; fields are those that there are."""
    with pytest.raises(SettingError, match=f"once_beat_board_links.*{re.escape(expected)}"):
        read(once_beat_board_links=links)


@pytest.mark.parametrize(("name", "value"), WRONG, ids=map(repr, WRONG))
def test_a_wrong_value_is_named(name: str, value: Any) -> None:
    """The error says which setting, what was found and what was expected."""
    with pytest.raises(SettingError, match=rf"^once_beat_{name}: found .*{re.escape(shown(value))}.*, expected"):
        read(**{f"once_beat_{name}": value})


def test_the_heartbeat_file_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where beat runs says it; a setting goes first. What is wrong there is named."""
    monkeypatch.setenv("ONCE_BEAT_HEARTBEAT_FILE", "/run/beat/here")
    assert read().heartbeat_file == "/run/beat/here"
    assert read(once_beat_heartbeat_file=None).heartbeat_file == "/run/beat/here"
    assert read(once_beat_heartbeat_file=Path("/run/beat/set")).heartbeat_file == "/run/beat/set"
    monkeypatch.setenv("ONCE_BEAT_HEARTBEAT_FILE", "here")
    with pytest.raises(SettingError, match="ONCE_BEAT_HEARTBEAT_FILE: found 'here', expected the absolute path"):
        read()


# -- namespaces


OTHERS = {"CELERY_BROKER_URL": REDIS, "BILLING_ONCE_BEAT_REPORTS": True, "ONCE_BEAT_LEASE": 99}


@pytest.mark.parametrize(
    ("namespace", "conf", "found"),
    [
        ("CELERY", {**OTHERS, "CELERY_ONCE_BEAT_LEASE": 7, "CELERY_ONCE_BEAT_KEY_PREFIX": "shop:"}, (7.0, "shop:")),
        ("CELERY", OTHERS, (30.0, "once:")),  # a project's own setting may have our words in it
        ("CELERY", {**OTHERS, "CELERY_ONCE_BEAT_LEESE": 7}, r"CELERY_ONCE_BEAT_LEESE: .*mean CELERY_ONCE_BEAT_LEASE\?"),
        ("CELERY", {**OTHERS, "CELERY_ONCE_BEAT_LEASE": "7"}, "once_beat_lease: found '7', expected a number"),
        (None, {"broker_url": REDIS, "once_beat_lease": 7}, (7.0, "once:")),
        (None, {"broker_url": REDIS, "once_beat_leese": 5}, "once_beat_leese: .*did you mean once_beat_lease"),
        (None, {"broker_url": REDIS, "once_beat_run_without_store": 1}, "no such setting any more, .*while Redis is"),
        (None, {"BROKER_URL": REDIS, "ONCE_BEAT_LEASE": 7}, r"ONCE_BEAT_LEASE: .*did you mean once_beat_lease\?"),
    ],
)
def test_names_in_a_namespace(namespace: str | None, conf: dict[str, Any], found: Any) -> None:
    """CELERY_ONCE_BEAT_LEASE in Django, else lower case alone. A misspelt name is an error that shows how it is set."""
    app = Celery("tests", set_as_current=False)
    app.config_from_object(type("Conf", (), conf) if namespace else conf, namespace=namespace)
    if isinstance(found, str):
        with pytest.raises(SettingError, match=found):
            Settings.from_app(app)
    else:
        settings = Settings.from_app(app)
        assert (settings.lease, settings.key_prefix, settings.redis_url) == (*found, REDIS)


# -- Celery's own


def test_beats_starting_deadline_is_no_grace() -> None:
    """It limits what a beat catches up on; only grace ends what waits in a queue."""
    settings = read(beat_cron_starting_deadline=120)
    assert (settings.grace, settings.cron_starting_deadline) == (None, 120.0)
    with pytest.raises(SettingError, match="once_beat_cron_starting_deadline: there is no such setting"):
        read(once_beat_cron_starting_deadline=120)
    for wrong in ("soon", [], -5):
        with pytest.raises(SettingError, match="beat_cron_starting_deadline"):
            read(beat_cron_starting_deadline=wrong)


# -- where Redis is found


SENTINELS = ["sentinel://a:26379", "sentinel://b:26379"]
FAILOVER = "redis://a:1/0;redis://b:1/0"
TLS = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/ca.pem"}
OF_BROKER = {"broker_url": "redis://b:1/0", "result_backend": "redis://r:1/0"}
OF_BACKEND = {"broker_url": "amqp://guest@b//", "result_backend": "redis://r:1/0"}


@pytest.mark.parametrize(
    ("conf", "url", "options"),
    [
        (OF_BROKER, "redis://b:1/0", {}),
        (OF_BACKEND, "redis://r:1/0", {}),
        # An explicit one counts before all others, and then their options have no say.
        (
            {**OF_BROKER, "once_beat_redis_url": "redis://other:1/2", "broker_use_ssl": True,
             "broker_transport_options": {"master_name": "m"}},
            "redis://other:1/2", {},
        ),
        # Where messages are sent.
        ({"broker_read_url": "redis://r:1/0", "broker_write_url": "redis://w:1/0"}, "redis://w:1/0", {}),
        # What is needed to find the same master; a broker's URLs may be a list.
        (
            {"broker_url": SENTINELS, "broker_transport_options": {
                "master_name": "m", "sentinel_kwargs": {"password": SECRET}, "visibility_timeout": 60}},
            ";".join(SENTINELS), {"master_name": "m", "sentinel_kwargs": {"password": SECRET}},
        ),
        # Two servers that know nothing of each other can't coordinate.
        ({"broker_url": FAILOVER, "result_backend": "redis://r:1/0"}, "redis://r:1/0", {}),
        # Our own options add to what is found, and have the last word.
        (
            {"broker_transport_options": {"master_name": "m", "client_name": "c"},
             "once_beat_redis_options": {"master_name": "mine", "socket_timeout": 1}},
            REDIS, {"master_name": "mine", "client_name": "c", "socket_timeout": 1},
        ),
        ({"broker_use_ssl": TLS}, REDIS, {"ssl": True, **TLS}),
        ({"broker_use_ssl": False}, REDIS, {}),
        # The backend's own, and not the broker's.
        (
            {**OF_BACKEND, "broker_use_ssl": {"ca_certs": "/amqp.pem"},
             "broker_transport_options": {"client_name": "broker"}, "redis_backend_use_ssl": {"ssl_cert_reqs": "none"},
             "result_backend_transport_options": {"client_name": "backend"}},
            "redis://r:1/0", {"ssl": True, "client_name": "backend", "ssl_cert_reqs": "none"},
        ),
    ],
)  # fmt: skip
def test_where_redis_is_found(conf: dict[str, Any], url: str, options: dict[str, Any]) -> None:
    """What is set, else the broker if it is Redis, else the result backend; each with its own options and TLS."""
    settings = read(**conf)
    assert (settings.redis_url, settings.redis_options) == (url, options)


@pytest.mark.parametrize(
    "conf",
    [
        {"broker_url": f"amqp://me:{SECRET}@b//"},
        {"broker_url": f"amqp://me:{SECRET}@b//", "result_backend": f"db+postgresql://me:{SECRET}@d/x"},
        {"broker_url": "memory://"},
        {"broker_url": FAILOVER},
    ],
)
def test_without_any_redis_the_error_says_what_to_set(conf: dict[str, Any]) -> None:
    """It names the setting and shows a URL; never a password."""
    with pytest.raises(SettingError, match=r"^once_beat_redis_url: .*redis://") as caught:
        read(**conf)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"http://me:{SECRET}@h:1/0",
        f"me:{SECRET}@h",
        f"redis:/me:{SECRET}@h",
        f"sentinels://:{SECRET}@a:1;sentinels://:{SECRET}@b:1",
        "",
        5,
        {"url": f"redis://:{SECRET}@h"},
    ],
)
def test_a_wrong_url_is_named_without_its_password(url: Any) -> None:
    """Also one that isn't whole, or of a scheme that nobody knows; of a broker too."""
    if not isinstance(url, str | list):
        with pytest.raises(SettingError, match=r"^broker_url: found (int|dict), expected a URL"):
            Settings.from_app(Celery(broker=url, set_as_current=False))
    with pytest.raises(SettingError, match=r"^once_beat_redis_url: found .*redis\+cluster") as caught:
        read(once_beat_redis_url=url)
    assert SECRET not in str(caught.value)


PROVIDER = "proj.Provider"


@pytest.mark.parametrize(
    ("url", "conf", "options"),
    [
        ("redis://h", {"redis_username": "me", "redis_password": "pw"}, {"username": "me", "password": "pw"}),
        ("redis://:own@h", {"redis_username": "me", "redis_password": "pw"}, {"username": "me"}),
        ("redis://h", {"redis_backend_credential_provider": PROVIDER}, {"credential_provider": PROVIDER}),
        ("redis://h?credential_provider=a.B", {"redis_backend_credential_provider": PROVIDER}, {}),
    ],
)
def test_the_result_backends_user_is_read_as_celery_reads_it(url: str, conf: Any, options: dict[str, Any]) -> None:
    """Where it is the Redis that coordinates; its URL goes first, and what is set for ours before all."""
    app = Celery("proj", broker="amqp://h", backend=url, set_as_current=False)
    app.conf.update(**conf)
    assert Settings.from_app(app).redis_options == options
    app.conf.once_beat_redis_url = "redis://other"
    assert Settings.from_app(app).redis_options == {}


@pytest.mark.parametrize(
    ("conf", "prefix"),
    [
        ({}, "once:"),
        ({"broker_transport_options": {"global_keyprefix": "shop:"}}, "shop:once:"),
        ({"result_backend_transport_options": {"global_keyprefix": "shop_"}}, "shop_once:"),
        ({"broker_transport_options": {"global_keyprefix": "{shop} "}}, "_shop__once:"),
        ({"broker_transport_options": {"global_keyprefix": "{shop}:"}}, "{shop}:once:"),
        ({"broker_url": "amqp://u:p@h//"}, "once:"),
        ({"broker_url": "amqp://u:p@h/shop;amqp://u:p@h2/shop"}, "shop:once:"),
        ({"broker_url": ["pyamqp://h/%2Fshop"]}, "/shop:once:"),
        ({"broker_url": "amqp://h/shop", "broker_transport_options": {"global_keyprefix": "a:"}}, "a:once:"),
        ({"broker_url": "amqp://h:port/shop", "once_beat_redis_url": "redis://h"}, "once:"),
        ({"broker_url": "amqp://h/shop", "once_beat_key_prefix": "once:"}, "once:"),
    ],
)
def test_what_keeps_apps_apart_keeps_their_windows_apart(conf: dict[str, Any], prefix: str) -> None:
    """Two apps with the same entry names, of two key prefixes or virtual hosts, share no window; what is set wins."""
    app = Celery("proj", set_as_current=False)
    app.conf.update(result_backend="redis://h/1", **conf)
    assert Settings.from_app(app).key_prefix == prefix


# -- app.conf

DERIVED = {"redis_url", "redis_options", "key_prefix", "heartbeat_file"}


class _Django:
    CELERY_BROKER_URL = "redis://localhost"
    CELERY_ONCE_BEAT_LEASE = 7
    ONCE_BEAT_GRACE = 5
    CELERY_BEAT_CRON_STARTING_DEADLINE = 120


@pytest.mark.parametrize("source", [None, _Django])
def test_an_unset_setting_can_be_read(source: Any) -> None:
    """It is the default, None where that follows the app's other settings; one that is set is what was set."""
    app = Celery("tests", set_as_current=False)
    if source:
        app.config_from_object(source, namespace="CELERY")
    conf = app.conf
    assert conf.once_beat_lease == (7 if source else 30.0)
    assert conf.once_beat_max_attempts == 3
    assert {conf[f"once_beat_{name}"] for name in DERIVED} == {None}
    ours = {f.name for f in fields(Settings)} - {"cron_starting_deadline"}  # that one is Celery's
    assert {f.name for f in fields(Settings) if f"once_beat_{f.name}" in conf} == ours
    with pytest.raises(AttributeError):
        _ = conf.once_beat_leese


def test_reports_and_pickles_have_what_was_set() -> None:
    """``celery report`` and an app that is pickled have no line of ours but those that the app has set."""
    app = Celery("tests", set_as_current=False)
    app.conf.update(broker_url="redis://localhost", once_beat_lease=7)
    app.set_current()
    shown = CliRunner().invoke(command, ["report"], obj=None)
    for text in (app.conf.humanize(), app.bugreport(), shown.output):
        assert text.count("once_beat") <= 1, text
    assert "once_beat_lease: 7" in app.conf.humanize()
    assert pickle.loads(pickle.dumps(app)).conf.once_beat_lease == 7


# -- the page of settings


def test_the_page_is_made_of_the_rows() -> None:
    """If it isn't: python tests/settings_page.py writes it."""
    page = settings_page.PAGE.read_text()
    assert settings_page.fill(page) == page


def test_attributes_of_tasks() -> None:
    """Type checkers know each; all are unset by default, so that the app's setting counts."""
    attributes = {name: value for name, value in vars(TaskOptions).items() if name.startswith("once_")}
    assert set(attributes) == set(TASK_CHECKS)
    assert set(attributes.values()) == {None}
