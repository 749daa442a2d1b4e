"""The project's settings, read once from a Celery app's configuration, validated and frozen.

``options`` has each with its check. All times are seconds. A wrong value is a
:class:`~celery_once_beat.errors.SettingError` that names the setting, what was found and what was expected. So is an
unknown name: a misspelt ``once_beat_leese`` would otherwise be ignored. Settings stand in the app's ``conf``, in lower
case, or with the app's namespace in front (``CELERY_ONCE_BEAT_LEASE`` in Django).
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from celery import Celery
from celery.app import utils
from celery.app.defaults import _OLD_DEFAULTS, DEFAULTS  # type: ignore[attr-defined]  # celery-types lacks one
from kombu.utils.url import url_to_parts

from .errors import SettingError
from .identity import digest
from .options import DEFAULT_PREFIX, REDIS_SCHEMES, ROWS, Options, fits_prefix, scheme_of, wrong
from .wording import did_you_mean, without_passwords

PREFIX = "once_beat_"
#: After this many seconds without a heartbeat a beat counts as gone.
BEAT_TTL = 15.0
#: Seconds after which a worker counts as gone; it reports every ``WORKER_REPORTS`` seconds.
WORKER_TTL, WORKER_REPORTS = 30.0, 10.0
#: For so many seconds it is shown that the store lost its data.
LOSS_SHOWN = 3 * 86_400
#: Where the heartbeat file's path is if no setting says it: it is the machine's, and the app runs on several.
_HEARTBEAT_FILE = "ONCE_BEAT_HEARTBEAT_FILE"
_AMQP_SCHEMES = ("amqp", "amqps", "pyamqp", "librabbitmq")


@dataclass(frozen=True, kw_only=True)
class Settings(Options):
    """What ``once_beat_…`` settings say; each field is the setting of that name, times are seconds."""

    @classmethod
    def from_app(cls, app: Celery, *, connects: bool = True) -> Settings:
        """Read and validate the settings of ``app``; raises :class:`SettingError` for the first wrong one.

        ``connects=False``: the caller won't ask Redis, so none has to be set.
        """
        conf = app.conf
        values = {name: ROWS[name].check(PREFIX + name, conf[PREFIX + name]) for name in _given(app, _OURS)}
        try:
            app.timezone  # noqa: B018  # else each entry would say it
        except Exception:  # noqa: BLE001  # what zoneinfo raises differs
            raise wrong("timezone", conf.timezone, "the name of a time zone, like 'Europe/Berlin'") from None
        deadline = "beat_cron_starting_deadline"
        values["cron_starting_deadline"] = ROWS["cron_starting_deadline"].check(deadline, conf.get(deadline))
        if "key_prefix" not in values:
            values["key_prefix"] = ROWS["key_prefix"].check(PREFIX + "key_prefix", _own_prefix(conf) + DEFAULT_PREFIX)
        if values.get("heartbeat_file") is None:
            path = os.environ.get(_HEARTBEAT_FILE) or None
            values["heartbeat_file"] = ROWS["heartbeat_file"].check(_HEARTBEAT_FILE, path)
        if values.get("redis_url") is None:
            try:
                values["redis_url"], found = _find_redis(app)
            except SettingError:
                if connects:
                    raise
                values["redis_url"], found = "", {}
            values["redis_options"] = {**found, **values.get("redis_options", {})}
        return cls(**values)

    def check_runtime_task(self, what: str, task: str) -> None:
        """Raise SettingError, which begins with ``what``, if a schedule of run time may not send ``task``."""
        allowed = self.runtime_tasks
        if allowed is not None and not any(fnmatch.fnmatchcase(task, pattern) for pattern in allowed):
            raise wrong(what, task, f"one that once_beat_runtime_tasks allows, which has {list(allowed)!r}")

    def of_task(self, name: str, task: object) -> Any:
        """Return what the task's attribute ``once_<name>`` says, else the setting of that name."""
        own = getattr(task, "once_" + name, None)
        return getattr(self, name, None) if own is None else own


#: The settings that this package has: ``once_beat_<name>``.
_OURS = [each.name for each in fields(Options) if ROWS[each.name].setting is None]
#: If unset, these follow the app's other settings: ``app.conf`` shows None.
_DERIVED = ("redis_url", "redis_options", "key_prefix", "heartbeat_file")
#: Settings that this package had before its first release, and what to do instead.
_GONE = {
    "publish_without_store": "while Redis is away, nothing is claimed; once_beat_catch_up says what runs afterwards",
    "run_without_store": "while Redis is away, messages of windows wait; what must run all the same is no OnceTask",
}
#: So that ``app.conf.once_beat_lease`` can be read where it is unset.
_SHOWN = {
    PREFIX + name: None if name in _DERIVED else value for name, value in vars(Options()).items() if name in _OURS
}
# What ``celery report`` and ``celery inspect conf`` don't show: both ask this pattern of each setting's name.
_HIDDEN: re.Pattern[str] = utils.HIDDEN_SETTINGS  # type: ignore[attr-defined]  # celery-types lacks it
utils.HIDDEN_SETTINGS = re.compile(  # type: ignore[attr-defined]
    f"{_HIDDEN.pattern}|{PREFIX}(redis|effects)_url", re.IGNORECASE
)
DEFAULTS.update(_SHOWN)  # type: ignore[arg-type]  # no namespace of options, as celery-types has it
_OLD_DEFAULTS.update(_SHOWN)


def _given(app: Celery, known: Iterable[str]) -> list[str]:
    """Return which of ``known`` the app's configuration sets, with its namespace or without.

    Raises SettingError for an unknown name that begins like ours.
    """
    namespace = (getattr(app, "namespace", None) or "").lower()
    if namespace and not namespace.endswith("_"):
        namespace += "_"
    given = []
    app.conf.finalize()
    for key in app.conf.without_defaults():
        written = str(key)
        name = written.lower().removeprefix(namespace)
        if not name.startswith(PREFIX):
            continue
        rest = name.removeprefix(PREFIX)
        if rest in known and (written == name or namespace):
            if written == name or written.lower() != name:  # Django's other settings are none of the app's
                given.append(rest)
            continue
        if rest in _GONE:
            raise SettingError(f"{written}: there is no such setting any more, remove it; {_GONE[rest]}")
        before = written[: len(written) - len(rest)] if namespace else PREFIX
        names = [setting.upper() for setting in known] if before.isupper() else known
        hint = did_you_mean(rest.upper() if before.isupper() else rest, names, before.__add__)
        raise SettingError(f"{written}: there is no such setting{hint}")
    return given


def _own_prefix(conf: Any) -> str:
    """Return the prefix that the app's broker or result backend has for keeping it apart from other apps, or ''."""
    for options in (conf.broker_transport_options, conf.result_backend_transport_options):
        own = (options or {}).get("global_keyprefix")
        if isinstance(own, str) and own:
            # With a hash tag, as '{queue}:', Celery is in one slot of a cluster. So are these keys, then.
            return own if fits_prefix(own) else re.sub(r"[{}\s]", "_", own)
    urls = conf.broker_write_url or conf.broker_url or ""
    url = next(iter(urls), "") if isinstance(urls, (list, tuple)) else urls
    if not isinstance(url, str):  # not shown: it may hold a password
        raise SettingError(f"broker_url: found {type(url).__name__}, expected a URL, or a list of them")
    url = url.partition(";")[0]
    if scheme_of(url) not in _AMQP_SCHEMES:
        return ""
    try:
        vhost = url_to_parts(url).path or conf.get("broker_vhost") or "/"
    except ValueError:  # Celery reports it
        return ""
    return "" if vhost == "/" else re.sub(r"[{}\s]", "_", vhost) + ":"


def describe_app(app: Celery) -> str:
    """Describe the app to beats of other apps that have the same keys; holds no secret."""
    return json.dumps({"app": app.main or "", "apart": _own_prefix(app.conf)})


def name_broker(connection: Any) -> str:
    """Return what tells the broker of a connection from others; holds no secret. Equal names are one broker."""
    return digest(re.sub(r"//[^@/]*@", "//", connection.as_uri())).hex()


def _find_redis(app: Celery) -> tuple[str, dict[str, Any]]:
    """Return URL and client options of the app's broker if it is Redis, else of its result backend."""
    conf = app.conf
    broker = conf.broker_write_url or conf.broker_url or ""
    backend = conf.result_backend or ""
    if not isinstance(broker, str):
        broker = ";".join(broker)
    # A broker's list of URLs is for failover between brokers; only Sentinel's names one Redis.
    if scheme_of(broker) in REDIS_SCHEMES and (";" not in broker or scheme_of(broker) == "sentinel"):
        return broker, _client_options(conf.broker_transport_options, conf.broker_use_ssl)
    if isinstance(backend, str) and scheme_of(backend) in REDIS_SCHEMES:
        options = _client_options(conf.result_backend_transport_options, conf.get("redis_backend_use_ssl"))
        return backend, {**_credentials(conf, backend), **options}
    raise SettingError(
        "once_beat_redis_url: not set, and neither broker_url "
        f"({without_passwords(broker.partition(';')[0]) or 'not set'}) nor result_backend is a Redis; "
        "set it to the Redis that coordinates your beats and workers, like redis://host:6379/0"
    )


def _credentials(conf: Any, url: str) -> dict[str, Any]:
    """Return what the result backend's own settings say of its user, as far as its URL doesn't."""
    of_url = url_to_parts(url.partition(";")[0])
    named = {"username": conf.get("redis_username"), "password": conf.get("redis_password")}
    found = {name: value for name, value in named.items() if value and getattr(of_url, name) is None}
    if "credential_provider" not in of_url.query and (provider := conf.get("redis_backend_credential_provider")):
        found["credential_provider"] = provider
    return found


def _client_options(transport: Mapping[str, Any] | None, tls: Any) -> dict[str, Any]:
    """Return those of a transport's options that our own Redis client needs too."""
    passed = ("master_name", "sentinel_kwargs", "socket_keepalive", "socket_keepalive_options", "client_name")
    options = {key: value for key, value in (transport or {}).items() if key in passed}
    if tls:
        options["ssl"] = True
        if isinstance(tls, Mapping):
            options.update(tls)
    return options
