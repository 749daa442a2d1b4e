"""Redis clients from Celery's URLs, since redis-py knows only some of them.

``redis://``, ``rediss://``, ``redis+socket://``, ``sentinel://…;sentinel://…`` and ``redis+cluster://``. Options of
:attr:`Settings.redis_options` win over the URL's. Nothing connects here; the first command does.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import redis
from kombu.utils.url import url_to_parts
from redis.backoff import ExponentialBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from .errors import SettingError
from .settings import Settings

__all__ = ("connect",)


def connect(settings: Settings) -> Any:
    """Return a client for ``settings.redis_url``; raises SettingError where the URL can't be understood."""
    options: dict[str, Any] = {
        "decode_responses": True,
        # A process that beats must not hang on one: two seconds, three tries, then it is told.
        "socket_timeout": 2.0,
        "socket_connect_timeout": 2.0,
        "retry": Retry(ExponentialBackoff(cap=0.5, base=0.05), 2),
        "retry_on_error": [redis.ConnectionError, redis.TimeoutError],
        **settings.redis_options,
    }
    scheme = settings.redis_url.partition("://")[0].lower()
    try:
        if scheme == "sentinel":
            return _sentinel(settings.redis_url, options)
        if scheme == "redis+cluster":
            return _cluster(settings.redis_url, options)
        return redis.Redis.from_url(_redis_py_url(settings.redis_url), **_plain(options))
    except (ValueError, TypeError, redis.RedisError) as exc:
        raise SettingError(f"once_beat_redis_url or once_beat_redis_options: {exc}") from exc


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Without what only Sentinel understands, and with kombu's names for TLS requirements as redis-py's."""
    plain = {key: value for key, value in options.items() if key not in ("master_name", "sentinel_kwargs")}
    if plain.pop("ssl", False):
        plain["connection_class"] = redis.SSLConnection
    return plain


def _redis_py_url(url: str) -> str:
    parts = urlsplit(url)
    query = dict(url_to_parts(url).query)
    if "ssl_cert_reqs" in query:
        # Celery writes CERT_NONE or none, redis-py only none.
        query["ssl_cert_reqs"] = query["ssl_cert_reqs"].lower().removeprefix("cert_")
    if parts.scheme.lower() == "redis+socket":
        query["db"] = query.pop("virtual_host", "0")
        return urlunsplit(("unix", parts.netloc, parts.path, urlencode(query), ""))
    return urlunsplit((parts.scheme.lower(), parts.netloc, parts.path, urlencode(query), ""))


def _database(path: str | None) -> int:
    return int(path) if path else 0


def _sentinel(url: str, options: dict[str, Any]) -> Any:
    servers = [url_to_parts(part) for part in url.split(";") if part]
    master = options.pop("master_name", None)
    if not master:
        raise SettingError(
            "once_beat_redis_options: found no master_name, expected the name of the master that the sentinels "
            "of once_beat_redis_url watch (or set it in broker_transport_options)"
        )
    first = servers[0]
    sentinel_kwargs = options.pop("sentinel_kwargs", {})
    for option, value in (("username", first.username), ("password", first.password)):
        if value is not None:
            options.setdefault(option, value)
    options.setdefault("db", _database(first.path))
    sentinel = Sentinel(
        [(server.hostname or "localhost", server.port or 26379) for server in servers],
        sentinel_kwargs={"socket_timeout": options["socket_timeout"], **sentinel_kwargs},
        **options,
    )
    return sentinel.master_for(master)


def _cluster(url: str, options: dict[str, Any]) -> Any:
    from redis.cluster import RedisCluster

    parts = url_to_parts(url)
    for option, value in (("username", parts.username), ("password", parts.password)):
        if value is not None:
            options.setdefault(option, value)
    for unknown in ("master_name", "sentinel_kwargs", "retry_on_error"):
        options.pop(unknown, None)
    return RedisCluster(host=parts.hostname or "localhost", port=parts.port or 6379, **options)
