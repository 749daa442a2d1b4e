"""RedBeat's Redis, for the move from there: its entries are read, its lock is taken, and nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu.utils.url import maybe_sanitize_url

from celery_once_beat.errors import OnceError, SettingError, StoreDataError
from celery_once_beat.settings import Settings

from . import codec
from .keys import Keys
from .roundtrip import RoundTrip, raised

if TYPE_CHECKING:
    from celery import Celery

__all__ = ("RedBeat", "RedBeatHash")

#: What stands in RedBeat's lock from an import on.
_HELD = "celery once schedules import redbeat"
_CHUNK = 500
_SCHEMES = ("redis", "rediss", "unix", "redis+socket", "sentinel", "redis+cluster")
#: Options that RedBeat keeps for itself.
_ITS_OWN = ("retry_period", "cluster", "sentinels", "service_name", "sentinel_kwargs", "startup_nodes")


@dataclass(frozen=True)
class RedBeatHash:
    """One entry as RedBeat has it."""

    name: str
    #: ``definition`` and ``meta``, JSON; None: it isn't there.
    fields: Mapping[str, str | None]
    #: RedBeat looks at it.
    scheduled: bool
    #: It was in ``beat_schedule`` when a RedBeat beat started last.
    static: bool
    #: Why its hash can't be read; None: it can.
    error: OnceError | None = None


class RedBeat:
    """The keys of one RedBeat. Its methods raise StoreUnavailableError where its Redis doesn't answer."""

    def __init__(self, settings: Settings, prefix: str, lock: str | None) -> None:
        self._trip = RoundTrip(settings, Keys(prefix))
        self._prefix = prefix
        #: The name of its lock; None: its beats are set up without.
        self.lock = lock

    @classmethod
    def of_app(cls, app: Celery, url: str | None = None) -> RedBeat:
        """Find it as RedBeat does, by the app's ``redbeat_…`` settings; ``url`` goes before theirs.

        Raises SettingError where they can't be understood.
        """
        prefix = _conf(app, "redbeat_key_prefix") or "redbeat:"
        lock = _conf(app, "redbeat_lock_key") or f"{prefix}:lock"
        if {"redbeat_lock_key", "REDBEAT_LOCK_KEY"} & {*app.conf.keys()} and not _conf(app, "redbeat_lock_key"):
            lock = None
        elif not lock.startswith(prefix):
            lock = prefix + lock
        return cls(_settings(app, url), prefix, lock)

    def close(self) -> None:
        """Give the connections back."""
        self._trip.close()

    @property
    def schedule_key(self) -> str:
        """The zset that holds the keys of its entries."""
        return f"{self._prefix}:schedule"

    def is_empty(self) -> bool:
        """Whether it has no entries: these may not be its keys."""
        return not self._readable(self._trip.read([("ZCARD", self.schedule_key)])[0])

    def held_by_beat(self) -> float | None:
        """Seconds until the lock of a RedBeat beat ends, unless the beat extends it; None: no beat holds it."""
        if self.lock is None:
            return None
        holder, left = map(raised, self._trip.read([("GET", self.lock), ("PTTL", self.lock)]))
        return None if holder in (None, _HELD) else max(left, 0) / 1000

    def hold(self) -> float | None:
        """Take the lock for good, so that no beat of RedBeat's works from now on; returns as :meth:`held_by_beat`.

        Beats that wait for it wait on, until somebody deletes the key.
        """
        if self.lock is not None:
            raised(self._trip.read([("SET", self.lock, _HELD, "NX")])[0])
        return self.held_by_beat()

    def entries(self) -> list[RedBeatHash]:
        """Return all entries that RedBeat looks at, by name."""
        scores, statics = self._trip.read(
            [("ZRANGE", self.schedule_key, 0, -1, "WITHSCORES"), ("SMEMBERS", f"{self._prefix}:statics")]
        )
        pairs, static = codec.as_pairs(self._readable(scores)), {*self._readable(statics)}
        found = []
        for position in range(0, len(pairs), _CHUNK):
            chunk = pairs[position : position + _CHUNK]
            replies = self._trip.read([("HMGET", key, "definition", "meta") for key, _ in chunk])
            for (key, score), reply in zip(chunk, replies, strict=True):
                error = StoreDataError("its key holds no hash") if isinstance(reply, OnceError) else None
                fields = {} if error else dict(zip(("definition", "meta"), reply, strict=True))
                name = key.removeprefix(self._prefix)
                found.append(RedBeatHash(name, fields, score >= 0, name in static, error))
        return sorted(found, key=lambda entry: entry.name)

    def _readable(self, reply: Any) -> Any:
        if isinstance(reply, OnceError):
            raise StoreDataError(f"the keys {self.schedule_key} and {self._prefix}:statics aren't RedBeat's")
        return reply


def _conf(app: Celery, name: str) -> Any:
    return app.conf.first(name, name.upper())


def _settings(app: Celery, url: str | None) -> Settings:
    url = url or _conf(app, "redbeat_redis_url") or app.conf.broker_url or ""
    options = _conf(app, "redbeat_redis_options")
    its_own = dict(options if options is not None else app.conf.broker_transport_options or {})
    passed = {name: value for name, value in (options or {}).items() if name not in _ITS_OWN}
    tls = _conf(app, "redbeat_redis_use_ssl") or app.conf.broker_use_ssl
    if isinstance(tls, Mapping):
        passed.update(tls)
    scheme = url.partition("://")[0]
    if scheme == "redis-sentinel" and its_own.get("sentinels"):
        url = ";".join(f"sentinel://{host}:{port}" for host, port in its_own["sentinels"])
        passed["master_name"] = its_own.get("service_name", "master")
        for name in ("sentinel_kwargs", "username", "password", "db", "socket_timeout"):
            if its_own.get(name) is not None:
                passed[name] = its_own[name]
        if isinstance(tls, Mapping):
            passed["ssl"] = True
    elif scheme == "redis-cluster":
        nodes = its_own.get("startup_nodes") or [{"host": "localhost", "port": 30001}]
        url = ";".join(f"redis+cluster://{node['host']}:{node['port']}" for node in nodes)
    elif its_own.get("cluster"):
        url = "redis+cluster" + url[len(scheme) :]
    elif scheme == "unix":
        url = "redis+socket" + url[len(scheme) :]
    elif scheme not in _SCHEMES:
        raise SettingError(
            f"redbeat_redis_url: found {maybe_sanitize_url(url) or 'none'}, expected RedBeat's Redis; or give --url"
        )
    return Settings(redis_url=url, redis_options=passed)
