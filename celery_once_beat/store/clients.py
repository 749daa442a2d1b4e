"""Redis clients from Celery's URLs, since redis-py knows only some of them.

``redis://``, ``rediss://``, ``redis+socket://``, ``sentinel://…;sentinel://…``, and ``redis+cluster://…;…`` or
``rediss+cluster://…;…``, of whose nodes any will do that is up. :attr:`Settings.redis_options` go before the URL's
options. Only a cluster's client connects here, since it has to know its nodes.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from kombu.utils.imports import symbol_by_name
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import parse_url
from redis.credentials import CredentialProvider
from redis.exceptions import RedisClusterException
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_once_beat.errors import SettingError
from celery_once_beat.options import unreadable_url
from celery_once_beat.settings import Settings
from celery_once_beat.wording import shown, without_passwords

#: Celery's schemes, and the one of a URL to one server as redis-py writes it.
_SCHEMES = {"redis+socket": "unix", "sentinel": "redis", "redis+cluster": "redis", "rediss+cluster": "rediss"}
#: Options of connections to sentinels, too: how long they are waited for, and what they speak.
_ALIKE = ("socket_timeout", "socket_connect_timeout", "retry", "protocol")


def connect(settings: Settings) -> Any:
    """Return a client for ``settings.redis_url``; raises SettingError where none can be made of URL and options."""
    try:
        return _connect(settings.redis_url, dict(settings.redis_options))
    except SettingError:
        raise
    except Exception as exc:
        if _is_cluster(settings) and isinstance(exc, (redis.RedisError, RedisClusterException, OSError)):
            raise  # it is away
        raise SettingError(
            f"once_beat_redis_url, once_beat_redis_options: no client can be made of them: {_words(exc)}; expected a "
            "URL of a Redis and options of redis-py's connections"
        ) from exc


def check_client(settings: Settings) -> None:
    """Raise SettingError if URL or options can't be understood. Connects to nothing, so it leaves out a cluster."""
    if not _is_cluster(settings):
        connect(settings).close()


def _connect(url: str, given: dict[str, Any]) -> Any:
    scheme = url.partition("://")[0].lower()
    servers, of_url = _read(url)
    options: dict[str, Any] = {
        "decode_responses": True,
        # A foreign key may hold any bytes: reading it must not fail.
        "encoding_errors": "surrogateescape",
        # A beat must not hang here. The store repeats commands itself, since releases of redis-py differ in what they
        # repeat.
        "socket_timeout": 2.0,
        "socket_connect_timeout": 2.0,
        "retry": Retry(NoBackoff(), 0),
        # What every server and proxy understands. redis-py 8 would say HELLO first; releases before 5 know no other.
        **({"protocol": 2} if redis.VERSION >= (5,) else {}),
        **of_url,
        **given,
    }
    if redis.VERSION < (5,) and "path" in of_url:
        del options["socket_connect_timeout"]  # those releases have none for a Unix socket
    _set_credentials(options)
    if scheme == "sentinel":
        client = _sentinel(servers, options)
    else:
        for of_sentinels in ("master_name", "sentinel_kwargs"):
            options.pop(of_sentinels, None)
        if scheme.endswith("+cluster"):
            return _cluster(servers, options)
        if len(servers) > 1:
            raise unreadable_url(url)
        if options.pop("ssl", False):
            options["connection_class"] = redis.SSLConnection
        # A Unix socket has neither.
        options.update({name: value for name, value in zip(("host", "port"), servers[0], strict=True) if value})
        client = redis.Redis(connection_pool=redis.ConnectionPool(**options))
        client.auto_close_connection_pool = True
    pool = client.connection_pool
    pool.connection_class(**pool.connection_kwargs)  # doesn't connect: raises now for an option that it doesn't know
    return client


def _read(url: str) -> tuple[list[tuple[str, int | None]], dict[str, Any]]:
    """Return the servers of a URL and the options of connections to them; of several URLs the first one's go before."""
    servers: list[tuple[str, int | None]] = []
    options: dict[str, Any] = {}
    try:
        for one in filter(None, url.split(";")):
            found = dict(parse_url(_redis_py_url(one)))  # type: ignore[no-untyped-call]
            servers.append((found.pop("host", ""), found.pop("port", None)))
            options = {**found, **options}
    except ValueError:
        raise unreadable_url(url) from None
    return servers, options


def _redis_py_url(url: str) -> str:
    """The same URL as redis-py writes it; raises ValueError where its database isn't a number."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    if "ssl_cert_reqs" in query:
        # Celery writes CERT_NONE or none, redis-py only none.
        query["ssl_cert_reqs"] = query["ssl_cert_reqs"].lower().removeprefix("cert_")
    scheme = parts.scheme.lower()
    if scheme == "redis+socket":
        query["db"] = query.pop("virtual_host", "0").strip("/")
    else:
        int(parts.path.strip("/") or 0)
    return f"{_SCHEMES.get(scheme, scheme)}://{parts.netloc}{parts.path}" + (f"?{urlencode(query)}" if query else "")


def _set_credentials(options: dict[str, Any]) -> None:
    """Make the provider that is named, as kombu and Celery do; it goes before user and password."""
    provider = options.pop("credential_provider", None)
    if provider is None:
        return
    expected = "the name of a class like 'proj.Provider', or an object, of redis.CredentialProvider"
    if isinstance(provider, str):
        try:
            provider = symbol_by_name(provider)()
        except (Exception, SystemExit) as exc:
            raise SettingError(f"credential_provider: {shown(provider)}: {_words(exc)}; expected {expected}") from exc
    if not isinstance(provider, CredentialProvider):
        raise SettingError(f"credential_provider: found {type(provider).__name__}, expected {expected}")
    options.update(credential_provider=provider, username=None, password=None)


def _sentinel(servers: list[tuple[str, int | None]], options: dict[str, Any]) -> Any:
    master = options.pop("master_name", None)
    if not master:
        raise SettingError(
            "once_beat_redis_options: found no master_name, expected the name of the master that the sentinels of "
            "once_beat_redis_url watch (or set it in broker_transport_options)"
        )
    sentinel_kwargs = options.pop("sentinel_kwargs", None) or {}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        [(host or "localhost", port or 26379) for host, port in servers],
        # A sentinel that is gone must not hold up the next: redis-py's own retries take seconds.
        sentinel_kwargs={**{name: options[name] for name in _ALIKE if name in options}, **sentinel_kwargs},
        **options,
    )
    return sentinel.master_for(master)  # type: ignore[no-untyped-call]


def _cluster(servers: list[tuple[str, int | None]], options: dict[str, Any]) -> Any:
    if options.pop("db", 0):
        raise SettingError("once_beat_redis_url: found another database than 0, and a cluster has no other")
    if options.pop("connection_class", None) is not None:  # of rediss+cluster
        options["ssl"] = True
    nodes = [ClusterNode(host or "localhost", port or 6379) for host, port in servers]  # type: ignore[no-untyped-call]
    return RedisCluster(startup_nodes=nodes, **options)


def _is_cluster(settings: Settings) -> bool:
    return settings.redis_url.partition("://")[0].lower().endswith("+cluster")


def _words(error: BaseException) -> str:
    return without_passwords(f"{type(error).__name__}: {error}")[:300]
