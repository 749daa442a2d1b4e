"""Redis clients from Celery's URLs. Nothing here connects: what a client would do is read from its pool."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from apps.credentials import Provider
from redis.sentinel import SentinelConnectionPool
from servers import free_port
from steps import heard

from celery_once_beat.errors import SettingError, StoreUnavailableError
from celery_once_beat.settings import Settings
from celery_once_beat.store.clients import connect
from celery_once_beat.store.verbs import Store

SECRET = "s3cret-word"
_open: list[Any] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Every client that a test made is closed."""
    yield
    while _open:
        _open.pop().close()


def client_of(url: str, **options: Any) -> Any:
    client = connect(Settings(redis_url=url, redis_options=options))
    _open.append(client)
    return client


def arguments(url: str, **options: Any) -> dict[str, Any]:
    """What each connection of the client is made with."""
    return client_of(url, **options).connection_pool.connection_kwargs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", {"host": "h"}),
        ("REDIS://h:7/3", {"host": "h", "port": 7, "db": 3}),
        ("redis://h:7/0?db=4", {"host": "h", "db": 4}),
        ("redis://me:p%40ss@h", {"host": "h", "username": "me", "password": "p@ss"}),
        ("redis://[::1]:7/3", {"host": "::1", "port": 7, "db": 3}),
        ("redis://h?client_name=a%20b", {"client_name": "a b"}),
        ("redis+socket://:pw@/run/r.sock?virtual_host=3", {"path": "/run/r.sock", "db": 3, "password": "pw"}),
    ],
)
def test_a_url_is_read_as_celery_reads_it(url: str, expected: dict[str, Any]) -> None:
    """Host, port, database, user and password stand where they do in a broker's URL."""
    found = arguments(url)
    assert {name: found.get(name) for name in expected} == expected


def test_a_client_gives_up_soon() -> None:
    """A beat must not hang on one server: two seconds a try; redis-py adds none, the store tries again itself."""
    found = arguments("redis://h")
    assert (found["socket_timeout"], found["socket_connect_timeout"]) == (2.0, 2.0)
    assert found["retry"]._retries == 0
    if redis.VERSION >= (5,):  # some proxies know no HELLO, which RESP3 begins with
        assert [int(arguments(url)["protocol"]) for url in ("redis://h", "redis://h?protocol=3")] == [2, 3]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://:old@h:7/3?socket_timeout=9", {"socket_timeout": 1.5}),
        ("sentinel://:old@a/3;sentinel://b", {"master_name": "m", "password": "new", "db": 5}),
    ],
)
def test_options_win_over_the_urls(url: str, options: dict[str, Any]) -> None:
    """Where URL and options both say it, the options count."""
    found = arguments(url, **options)
    assert found.items() >= {name: value for name, value in options.items() if name != "master_name"}.items()


PROVIDER = "apps.credentials.Provider"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"redis://me:pw@h?credential_provider={PROVIDER}", {}),
        (f"sentinel://me:pw@a?credential_provider={PROVIDER};sentinel://b", {"master_name": "m"}),
        ("redis://me:pw@h", {"credential_provider": PROVIDER}),
        ("redis://me:pw@h", {"credential_provider": Provider()}),
    ],
)
def test_a_credential_provider_goes_before_user_and_password(url: str, options: dict[str, Any]) -> None:
    """It is named or given as kombu and Celery take it."""
    found = arguments(url, **options)
    assert isinstance(found["credential_provider"], Provider)
    assert (found["username"], found["password"]) == (None, None)


@pytest.mark.parametrize("url", ["redis://h", "sentinel://a;sentinel://b", "redis+cluster://h"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"credential_provider": "apps.credentials.Nothing"}, r"Nothing'.*expected the name of a class"),
        ({"credential_provider": "apps.credentials.NoProvider"}, "found NoProvider, expected"),
        ({"credential_provider": "apps.credentials.Unmade"}, r"RuntimeError: no region.*me:\*\*\*@"),
        ({"credential_provider": "apps.credentials.ExitsUnmade"}, r"SystemExit: 3; expected the name of a class"),
    ],
)
def test_whatever_fails_while_a_client_is_made_is_the_settings_error(
    url: str, options: dict[str, Any], words: str
) -> None:
    """Each kind of URL; no secret in it, and no other kind of error."""
    with pytest.raises(SettingError, match=words) as caught:
        client_of(url, master_name="m", **options)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("provider", "words"), [("Away", r"LookupError: the .*me:\*\*\*@"), ("Exits", r"SystemExit\('no .*me:\*\*\*@")]
)
def test_a_provider_that_fails_is_a_redis_that_is_away(redis_url: str, provider: str, words: str) -> None:
    """Its service may be back in a moment; it can't end the process."""
    store = Store(Settings(redis_url=redis_url, redis_options={"credential_provider": f"apps.credentials.{provider}"}))
    with pytest.raises(StoreUnavailableError, match=words) as caught:
        heard(store, "beat-1")
    assert SECRET not in str(caught.value)
    store.close()


def test_sentinels_are_all_asked_for_the_master() -> None:
    """Celery's list of sentinels, with the name of their master; the database is the first one's."""
    url, given = "sentinel://me:pw@a:1/4;sentinel://b;sentinel://c:3", {"password": "s"}
    client = client_of(url, master_name="m", sentinel_kwargs=given)
    pool = client.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.service_name == "m"
    sentinels = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in sentinels] == [("a", 1), ("b", 26379), ("c", 3)]
    assert all(each["password"] == "s" for each in sentinels)
    assert all(each["socket_timeout"] == each["socket_connect_timeout"] == 2.0 for each in sentinels)
    assert all(each["retry"]._retries == 0 for each in sentinels), "a sentinel that is gone holds up the next"
    found = pool.connection_kwargs
    assert (found["db"], found["username"], found["password"]) == (4, "me", "pw")
    _open.extend(pool.sentinel_manager.sentinels)


def test_sentinels_without_a_masters_name_are_an_error() -> None:
    """The error says what is missing and where it may stand."""
    with pytest.raises(SettingError, match=r"once_beat_redis_options.*master_name.*broker_transport_options"):
        client_of(f"sentinel://:{SECRET}@a;sentinel://b")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://h:port/0", {}),
        ("redis://a;redis://b", {}),
        ("redis+cluster://h:1/3", {}),
        ("redis://h?socket_timeout=soon", {}),
        ("sentinel://a:port;sentinel://b", {"master_name": "m"}),
        (f"redis://:{SECRET}/with/slashes@h:1/0", {}),
        (f"redis://me:{SECRET}#hash@h:1/0", {}),
    ],
)
def test_a_url_that_cant_be_understood_is_an_error_of_the_setting(url: str, options: dict[str, Any]) -> None:
    """It names the setting, and no part of a password, also of one that should have been quoted."""
    with pytest.raises(SettingError) as caught:
        client_of(url, **options)
    assert "once_beat_redis_url" in str(caught.value)
    assert SECRET not in str(caught.value)


OF_SENTINELS = {"master_name": "m", "sentinel_kwargs": {"password": f"{SECRET}-of-sentinels"}}


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("redis+cluster://:{0}@127.0.0.1:{1}", {}, "127.0.0.1"),
        # Some releases of redis-py print each sentinel's client, with all of its options, in this error.
        ("sentinel://:{0}@127.0.0.1:{1};sentinel://127.0.0.1:{1}", OF_SENTINELS, "No master found for 'm'"),
    ],
)
def test_a_server_that_is_away_is_no_wrong_setting(url: str, options: dict[str, Any], words: str) -> None:
    """What is down at start is waited for, instead of ending beat; no password is shown."""
    store = Store(Settings(redis_url=url.format(SECRET, free_port()), redis_options=options))
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match=words) as caught:
            heard(store, "beat-1")
        assert SECRET not in str(caught.value)
    store.close()


REQUIREMENTS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@pytest.mark.parametrize("of_url", [True, False])
@pytest.mark.parametrize("written", [each for name in REQUIREMENTS for each in (name, f"CERT_{name.upper()}")])
def test_tls_requirements_are_read_in_either_style(written: str, of_url: bool) -> None:
    """Celery's URLs say CERT_NONE, redis-py's none; broker_use_ssl with a redis:// URL speaks TLS, too."""
    expected = REQUIREMENTS[written.removeprefix("CERT_").lower()]
    if of_url:
        client = client_of(f"rediss://h:7/3?ssl_cert_reqs={written}&ssl_ca_certs=/ca.pem")
    else:
        given = expected if written.isupper() else written
        client = client_of("redis://h:7/3", ssl=True, ssl_cert_reqs=given, ssl_ca_certs="/ca.pem")
    connection = client.connection_pool.make_connection()
    assert isinstance(connection, redis.SSLConnection)
    assert (connection.cert_reqs, connection.ca_certs) == (expected, "/ca.pem")


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "sentinel://127.0.0.1:1"])
def test_an_option_that_no_client_knows_is_an_error_of_the_setting(url: str) -> None:
    """At the latest when the first connection is made; here without one."""
    store = Store(Settings(redis_url=url, redis_options={"sokket_timeout": 1, "master_name": "m"}))
    with pytest.raises(SettingError, match="once_beat_redis_options"):
        heard(store, "beat-1")
