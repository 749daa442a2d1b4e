"""Redis clients from Celery's URLs, since redis-py knows only some of them.

``redis://``, ``rediss://``, ``redis+socket://``, ``sentinel://…;sentinel://…`` and
``redis+cluster://…;redis+cluster://…``, of which any node will do that is up. :attr:`Settings.redis_options` go before
the URL's options. Only a cluster's client connects here, since it has to know its nodes.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from kombu.utils.url import url_to_parts
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_once_beat.errors import SettingError
from celery_once_beat.settings import Settings, unreadable_url

#: Options that say how long a connection is waited for.
_PATIENCE = ("socket_timeout", "socket_connect_timeout", "retry")


def connect(settings: Settings) -> Any:
    """Return a client for ``settings.redis_url``; raises SettingError where URL or options can't be understood."""
    options: dict[str, Any] = {
        "decode_responses": True,
        # A foreign key may hold any bytes: reading it must not fail.
        "encoding_errors": "surrogateescape",
        # A beat must not hang here. The store repeats commands itself, since releases of redis-py differ in what they
        # repeat.
        "socket_timeout": 2.0,
        "socket_connect_timeout": 2.0,
        "retry": Retry(NoBackoff(), 0),
    }
    given = dict(settings.redis_options)
    scheme = settings.redis_url.partition("://")[0].lower()
    if scheme == "sentinel":
        return _sentinel(settings.redis_url, {**options, **given})
    if scheme == "redis+cluster":
        return _cluster(settings.redis_url, {**options, **given})
    try:
        of_url = dict(parse_url(_redis_py_url(settings.redis_url)))  # type: ignore[no-untyped-call]
    except ValueError:
        raise unreadable_url(settings.redis_url) from None
    given = {key: value for key, value in given.items() if key not in ("master_name", "sentinel_kwargs")}
    if given.pop("ssl", False):
        of_url["connection_class"] = redis.SSLConnection
    pool = redis.ConnectionPool(**{**options, **of_url, **given})
    _check_options(pool)
    client = redis.Redis(connection_pool=pool)
    client.auto_close_connection_pool = True
    return client


def check_client(settings: Settings) -> None:
    """Raise SettingError if URL or options can't be understood. Connects to nothing, so it leaves out a cluster."""
    if not settings.redis_url.lower().startswith("redis+cluster:"):
        connect(settings).close()


def _check_options(pool: Any) -> None:
    """Make a connection, without connecting it: an option that it doesn't know is said now."""
    try:
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError, redis.RedisError) as exc:
        raise SettingError(f"once_beat_redis_options: {exc}; expected options of redis-py's connections") from exc


def _redis_py_url(url: str) -> str:
    """The same URL as redis-py writes it."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    if "ssl_cert_reqs" in query:
        # Celery writes CERT_NONE or none, redis-py only none.
        query["ssl_cert_reqs"] = query["ssl_cert_reqs"].lower().removeprefix("cert_")
    scheme = parts.scheme.lower()
    if scheme == "redis+socket":
        scheme, query["db"] = "unix", query.pop("virtual_host", "0").strip("/")
    return f"{scheme}://{parts.netloc}{parts.path}" + (f"?{urlencode(query)}" if query else "")


def _sentinel(url: str, options: dict[str, Any]) -> Any:
    master = options.pop("master_name", None)
    if not master:
        raise SettingError(
            "once_beat_redis_options: found no master_name, expected the name of the master that the sentinels of "
            "once_beat_redis_url watch (or set it in broker_transport_options)"
        )
    try:
        servers = [url_to_parts(part) for part in url.split(";") if part]
        first = servers[0]
        options.setdefault("db", int(first.path or 0))
    except (ValueError, IndexError):
        raise unreadable_url(url) from None
    sentinel_kwargs = options.pop("sentinel_kwargs", {})
    for option, value in (("username", first.username), ("password", first.password)):
        if value is not None:
            options.setdefault(option, value)
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        [(server.hostname or "localhost", server.port or 26379) for server in servers],
        # A sentinel that is gone must not hold up the next: redis-py's own retries take seconds.
        sentinel_kwargs={**{name: options[name] for name in _PATIENCE if name in options}, **sentinel_kwargs},
        **options,
    )
    return sentinel.master_for(master)  # type: ignore[no-untyped-call]


def _cluster(url: str, options: dict[str, Any]) -> Any:
    try:
        servers = [url_to_parts(part) for part in url.split(";") if part]
        nodes = [
            ClusterNode(server.hostname or "localhost", server.port or 6379)  # type: ignore[no-untyped-call]
            for server in servers
        ]
    except ValueError:
        raise unreadable_url(url) from None
    for option, value in (("username", servers[0].username), ("password", servers[0].password)):
        if value is not None:
            options.setdefault(option, value)
    for unknown in ("master_name", "sentinel_kwargs"):
        options.pop(unknown, None)
    try:
        return RedisCluster(startup_nodes=nodes, **options)
    except TypeError as exc:
        raise SettingError(f"once_beat_redis_options: {exc}; expected options of redis-py's RedisCluster") from exc
