"""The project's settings, read once from a Celery app's configuration, validated and frozen.

An entry's own options are in ``rules.policy``, a task's attributes in ``worker.task``.

All times are seconds. A wrong value is a :class:`~celery_once_beat.errors.SettingError` that names the setting,
what was found and what was expected. So is an unknown name: a misspelt ``once_beat_leese`` would otherwise be ignored.
Settings stand in the app's ``conf``, in lower case, or with the app's namespace in front (``CELERY_ONCE_BEAT_LEASE`` in
Django).
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from celery.app import utils
from celery.app.defaults import _OLD_DEFAULTS, DEFAULTS  # type: ignore[attr-defined]  # celery-types lacks one
from kombu.utils.url import maybe_sanitize_url, url_to_parts

from .errors import SettingError
from .wording import did_you_mean

if TYPE_CHECKING:
    from celery import Celery

__all__ = (
    "BEAT_TTL",
    "CATCH_UP",
    "LINK_FIELDS",
    "OVERLAP",
    "TICKS",
    "Settings",
    "check_choice",
    "check_count",
    "check_lease",
    "check_limit",
    "check_limit_name",
    "check_seconds",
    "check_task_name",
    "describe_app",
    "unreadable_url",
)

PREFIX = "once_beat_"
CATCH_UP = ("latest", "all", "none")
OVERLAP = ("allow", "skip", "buffer_one", "buffer_all")
FAILURE_TEXT = ("message", "type", "none")
_MILLION = 1_000_000
_LONGEST_NAME = 500
_TEN_YEARS = 10 * 366 * 86_400.0
_LONGEST_PREFIX = 128
_PREFIX = re.compile(r"[^{}\s]+|[^{}\s]*\{[^{}\s]+\}[^{}\s]*")
#: After this many seconds without a heartbeat a beat counts as gone.
BEAT_TTL = 15.0
#: After the heartbeat file's path: the file that says that beat looks at its work, whether Redis answers or not.
TICKS = ".ticks"
#: Where the heartbeat file's path is if no setting says it: it is the machine's, and the app runs on several.
_HEARTBEAT_FILE = "ONCE_BEAT_HEARTBEAT_FILE"
_DEFAULT_PREFIX = "once:"
#: What a template of the board's links may name.
LINK_FIELDS = frozenset({"entry", "task", "task_id", "state", "beat", "worker", "start", "begun", "ended"})
#: Up to its path nothing of a template is filled in.
_LINK_HOST = re.compile(r"https?://[^\s/?#{}]+([/?#]\S*)?$", re.ASCII)
_AMQP_SCHEMES = ("amqp", "amqps", "pyamqp", "librabbitmq")
_REDIS_SCHEMES = ("redis", "rediss", "redis+socket", "sentinel", "redis+cluster", "rediss+cluster")

Check = Callable[[str, Any], Any]


def _wrong(name: str, value: object, expected: str) -> SettingError:
    found = repr(value)
    return SettingError(f"{name}: found {found[:80]}, expected {expected}")


def check_seconds(minimum: float, maximum: float = _TEN_YEARS, *, optional: bool = False) -> Check:
    """A number of seconds from ``minimum`` to ``maximum``; with ``optional`` None stays None."""
    expected = f"a number of seconds, at least {minimum:g}"
    if maximum < _TEN_YEARS:
        expected = f"a number of seconds from {minimum:g} to {maximum:g}"
    if optional:
        expected += ", or None"

    def check(name: str, value: Any) -> float | None:
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _wrong(name, value, expected)
        if not minimum <= value <= maximum:  # also refuses NaN
            raise _wrong(name, value, expected)
        return float(value)

    return check


def check_count(minimum: int, *, optional: bool = False) -> Check:
    """A whole number from ``minimum`` to a million; with ``optional`` None stays None."""
    expected = f"a whole number, at least {minimum}" + (", or None" if optional else "")

    def check(name: str, value: Any) -> int | None:
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _MILLION:
            raise _wrong(name, value, expected)
        return value

    return check


def check_choice(*choices: object) -> Check:
    """One of ``choices``."""

    def check(name: str, value: Any) -> Any:
        if not any(value == choice and type(value) is type(choice) for choice in choices):
            raise _wrong(name, value, "one of " + ", ".join(map(repr, choices)))
        return value

    return check


def check_task_name(name: str, value: Any) -> str | None:
    """Return the name of a task, or None; raises SettingError, which begins with ``name``."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME or not value.isprintable() or " " in value:
        raise _wrong(name, value, "the name of a task like 'proj.tell_somebody', or None")
    return str.__str__(value)


def check_limit_name(name: str, value: Any) -> str:
    """Return the name of a limit, which is part of its keys and of a message header."""
    if not isinstance(value, str) or not re.fullmatch(r"[\w.-]{1,64}", value, re.ASCII):
        raise _wrong(name, value, "1 to 64 letters, digits, '_', '.' and '-'")
    return value


def check_limit(name: str, value: Any, known: Mapping[str, int]) -> str:
    """Return the name of a limit that ``once_beat_limits`` has."""
    limit = check_limit_name(name, value)
    if limit not in known:
        have = ", ".join(map(repr, sorted(known))) or "none"
        raise _wrong(name, value, f"a name in once_beat_limits, which has {have}{did_you_mean(limit, known, repr)}")
    return limit


def _check_patterns(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) and each for each in value):
        raise _wrong(name, value, "a list of patterns of task names like ['proj.*'], or None")
    return tuple(value)


def _check_prefix(name: str, value: Any) -> str:
    # With a hash tag of its own it has all keys in one slot of a cluster. Half of one would spread a script's keys.
    if not isinstance(value, str) or len(value) > _LONGEST_PREFIX or not _PREFIX.fullmatch(value):
        raise _wrong(name, value, "a short text without white space, and without braces but for one {hash tag}")
    return value


def _check_mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(name, type(value).__name__, "a dict of options for the Redis client")
    return dict(value)


def _check_limits(name: str, value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "a dict of names and numbers of places like {'reports': 3}")
    return {
        check_limit_name(f"{name}, a name", limit): check_count(1)(f"{name}[{limit!r}]", number)
        for limit, number in value.items()
    }


def _check_links(name: str, value: Any) -> dict[str, str]:
    """Names of links, each with a template; what fills it can't change where it leads."""
    expected = "a dict of names and URLs like {'Flower': 'https://flower.example/task/{task_id}'}"
    if not isinstance(value, Mapping) or not all(isinstance(part, str) for pair in value.items() for part in pair):
        raise _wrong(name, value, expected)
    for link, template in value.items():
        host, fields = _LINK_HOST.match(template), set(re.findall(r"{(.*?)}", template))
        if not host:
            raise _wrong(f"{name}[{link!r}]", template, "http:// or https://, and a host without a field in it")
        unknown = sorted(fields - LINK_FIELDS)
        if unknown or re.search(r"[{}]", re.sub(r"{\w+}", "", template)):
            hint = did_you_mean(unknown[0], LINK_FIELDS) if unknown else ""
            raise _wrong(f"{name}[{link!r}]", template, "fields of " + ", ".join(sorted(LINK_FIELDS)) + hint)
    return dict(value)


def _check_url(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or _scheme(value) not in _REDIS_SCHEMES:
        # An unknown URL may hold a password anywhere: only its scheme is shown.
        found = type(value).__name__
        if isinstance(value, str):
            found = f"{_scheme(value)}://…" if re.fullmatch(r"[\w+.-]{1,32}", _scheme(value)) else "no URL"
        raise SettingError(f"{name}: found {found}, expected a URL with one of " + ", ".join(_REDIS_SCHEMES))
    try:
        for one in value.split(";"):
            _ = urlsplit(one).port
    except ValueError:
        raise unreadable_url(value) from None
    return value


def _check_path(name: str, value: Any) -> str | None:
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    if not isinstance(path, str) or not PurePath(path).is_absolute() or path.endswith("/") or "\0" in path:
        raise _wrong(name, value, "the absolute path of a file, like /run/beat/heartbeat")
    return path


def _check_page(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s/?#]+[^\s]*", value):
        raise _wrong(name, value, "an address like https://board.example/once/")
    return value


def _check_schema(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not re.fullmatch(r"[^\W\d]\w{0,62}", value):
        raise _wrong(name, value, "the name of a schema like 'jobs'")
    return value


def _check_database(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not re.match(r"[a-z][\w.-]*(\+\w+)?://", value):
        raise SettingError(  # it may hold a password
            f"{name}: found {type(value).__name__}, expected SQLAlchemy's URL of a database, like "
            "postgresql+psycopg://host/name"
        )
    return value


def unreadable_url(url: str) -> SettingError:
    """Return the error for a URL that can't be parsed; as it may hold a password anywhere, none of it is shown."""
    return SettingError(
        f"once_beat_redis_url: found a {_scheme(url)} URL that can't be parsed, expected one like "
        "redis://user:password@host:6379/0; quote special characters of user and password as %xx"
    )


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""


#: Of a lease.
check_lease = check_seconds(0.5)


def _setting(default: Any, check: Check) -> Any:
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What ``once_beat_…`` settings say; each field is the setting of that name, times are seconds."""

    #: Where windows are coordinated; empty until :meth:`from_app` has found it. May hold a password.
    redis_url: str = field(default="", repr=False, metadata={"check": _check_url})
    #: Passed to the Redis client as they are (``master_name``, ``sentinel_kwargs``, TLS, timeouts).
    redis_options: Mapping[str, Any] = field(default_factory=dict, repr=False, metadata={"check": _check_mapping})
    #: Before each key. :meth:`from_app` puts before it what keeps the app apart from others: kombu's global_keyprefix,
    #: or a virtual host of AMQP.
    key_prefix: str = _setting(_DEFAULT_PREFIX, _check_prefix)
    #: How long a claim holds unless its beat confirms or renews it; then another beat publishes the window.
    claim_lease: float = _setting(1.5, check_seconds(0.1, 20.0))
    #: For half of it a beat publishes what it has claimed, between two looks: it must still count as alive. It is also
    #: the longest time until a window is tried again that the broker refused.
    publish_timeout: float = _setting(10.0, check_seconds(0.1, 20.0))
    #: How often each beat looks for overdue windows and says that it lives. After one failed look it still counts as
    #: alive.
    recovery_interval: float = _setting(2.0, check_seconds(0.1, 5.0))
    #: How long a published message may wait for a worker before it is published again.
    start_timeout: float = _setting(600.0, check_seconds(0.1))
    #: For how long an execution owns its window without renewing; renewed every third of it.
    lease: float = _setting(30.0, check_lease)
    #: Executions that may begin and die before the window is given up as abandoned.
    max_attempts: int = _setting(3, check_count(1))
    #: Whether a window whose execution died runs again; False: it is dropped.
    recover: bool = _setting(True, check_choice(True, False))
    #: Seconds after which a window that failed runs again, up to ``max_attempts``; 0, None: never.
    retry_failed_after: float | None = _setting(None, check_seconds(0, optional=True))
    #: Whether windows of an entry may run at the same time. Else a newer one is skipped, or waits: the newest
    #: of them ("buffer_one"), or all ("buffer_all").
    overlap: str = _setting("allow", check_choice(*OVERLAP))
    #: Seconds after its start within which a window is to be done; else that is said once. None: no such deadline.
    deadline: float | None = _setting(None, check_seconds(1, optional=True))
    #: So many windows of an entry that failed in a row pause it; None: never.
    pause_after_failures: int | None = _setting(None, check_count(1, optional=True))
    #: The task that is sent once for each window that ends in anything but done; None: none.
    on_failure: str | None = _setting(None, check_task_name)
    #: What schedules that are set at run time may send, and their ``on_failure``: patterns of task names, as fnmatch
    #: has them. None: every task.
    runtime_tasks: tuple[str, ...] | None = _setting(None, _check_patterns)
    #: How many windows may run at once of all entries that name a limit: name → number.
    limits: Mapping[str, int] = field(default_factory=dict, metadata={"check": _check_limits})
    #: How long the NX markers live after a claim or a finish.
    marker_ttl: float = _setting(600.0, check_seconds(1))
    #: How long a done marker lives where it alone decides.
    retention: float = _setting(86_400.0, check_seconds(1))
    #: What becomes of windows that are later than ``tolerance`` because no beat ran.
    catch_up: str = _setting("latest", check_choice(*CATCH_UP))
    #: A window later than this is missed, also one that waits in a queue; None: never.
    grace: float | None = _setting(None, check_seconds(0, optional=True))
    max_catch_up: int = _setting(1000, check_count(0))
    #: Up to this late a window is on time.
    tolerance: float = _setting(60.0, check_seconds(0))
    #: Replicas that must have a claim, a begin or a finish before it is acted on (WAIT).
    wait_replicas: int = _setting(0, check_count(0))
    #: Windows of history kept for each entry, 0 for none.
    history_size: int = _setting(50, check_count(0))
    #: Where the board's stories lead: name → URL with fields of LINK_FIELDS.
    board_links: Mapping[str, str] = field(default_factory=dict, metadata={"check": _check_links})
    #: What is recorded of a failure: its type and the first line of its text, its type alone, or nothing.
    failure_text: str = _setting("message", check_choice(*FAILURE_TEXT))
    #: A file that a beat touches when Redis has heard of it. :meth:`from_app`: else ONCE_BEAT_HEARTBEAT_FILE.
    heartbeat_file: str | None = _setting(None, _check_path)
    #: Where people find the window board: Django's admin leads there.
    board_url: str | None = _setting(None, _check_page)
    #: The schema of the table of recorded windows, for SQLAlchemy; None: the connection's own.
    effects_schema: str | None = _setting(None, _check_schema)
    #: Where ``celery once prune`` finds that table; None: it doesn't. May hold a password.
    effects_url: str | None = field(default=None, repr=False, metadata={"check": _check_database})
    #: Celery's ``beat_cron_starting_deadline``: a beat claims no older window of a crontab; None: it does.
    cron_starting_deadline: float | None = field(default=None, metadata={"celery": True})

    @classmethod
    def from_app(cls, app: Celery, *, connects: bool = True) -> Settings:
        """Read and validate the settings of ``app``; raises :class:`SettingError` for the first wrong one.

        ``connects=False``: the caller won't ask Redis, so none has to be set.
        """
        known = {f.name: f for f in _ours()}
        conf = app.conf
        values = {
            name: known[name].metadata["check"](PREFIX + name, conf[PREFIX + name]) for name in _given(app, known)
        }
        deadline = "beat_cron_starting_deadline"
        values["cron_starting_deadline"] = check_seconds(0, optional=True)(deadline, conf.get(deadline))
        if "key_prefix" not in values:
            values["key_prefix"] = _check_prefix(PREFIX + "key_prefix", _own_prefix(conf) + _DEFAULT_PREFIX)
        if values.get("heartbeat_file") is None:
            values["heartbeat_file"] = _check_path(_HEARTBEAT_FILE, os.environ.get(_HEARTBEAT_FILE) or None)
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
            raise _wrong(what, task, f"one that once_beat_runtime_tasks allows, which has {list(allowed)!r}")

    def of_task(self, name: str, task: object) -> Any:
        """Return what the task's attribute ``once_<name>`` says, else the setting of that name."""
        own = getattr(task, "once_" + name, None)
        return getattr(self, name) if own is None else own


def _ours() -> list[Field[Any]]:
    """Return the settings that this package has: ``once_beat_<name>``."""
    return [each for each in fields(Settings) if "celery" not in each.metadata]


#: If unset, these follow the app's other settings: ``app.conf`` shows None.
_DERIVED = ("redis_url", "redis_options", "key_prefix", "heartbeat_file")
#: Settings that this package had before its first release, and what to do instead.
_GONE = {
    "publish_without_store": "while Redis is away, nothing is claimed; once_beat_catch_up says what runs afterwards",
    "run_without_store": "while Redis is away, messages of windows wait; what must run all the same is no OnceTask",
}
#: So that ``app.conf.once_beat_lease`` can be read where it is unset.
_SHOWN = {PREFIX + f.name: None if f.name in _DERIVED else f.default for f in _ours()}
_SHOWN[PREFIX + "board_links"] = {}
_SHOWN[PREFIX + "limits"] = {}
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
        if name.removeprefix(PREFIX) in known and (written == name or namespace):
            if written == name or written.lower() != name:  # Django's other settings are none of the app's
                given.append(name.removeprefix(PREFIX))
            continue
        rest = name.removeprefix(PREFIX)
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
            return own if _PREFIX.fullmatch(own) else re.sub(r"[{}\s]", "_", own)
    urls = conf.broker_write_url or conf.broker_url or ""
    url = (urls if isinstance(urls, str) else next(iter(urls), "")).partition(";")[0]
    if _scheme(url) not in _AMQP_SCHEMES:
        return ""
    try:
        vhost = url_to_parts(url).path or conf.get("broker_vhost") or "/"
    except ValueError:  # Celery reports it
        return ""
    return "" if vhost == "/" else re.sub(r"[{}\s]", "_", vhost) + ":"


def describe_app(app: Celery) -> str:
    """Describe the app to beats of other apps that have the same keys; holds no secret."""
    return json.dumps({"app": app.main or "", "apart": _own_prefix(app.conf)})


def _find_redis(app: Celery) -> tuple[str, dict[str, Any]]:
    """Return URL and client options of the app's broker if it is Redis, else of its result backend."""
    conf = app.conf
    broker = conf.broker_write_url or conf.broker_url or ""
    backend = conf.result_backend or ""
    if not isinstance(broker, str):
        broker = ";".join(broker)
    # A broker's list of URLs is for failover between brokers; only Sentinel's names one Redis.
    if _scheme(broker) in _REDIS_SCHEMES and (";" not in broker or _scheme(broker) == "sentinel"):
        return broker, _client_options(conf.broker_transport_options, conf.broker_use_ssl)
    if isinstance(backend, str) and _scheme(backend) in _REDIS_SCHEMES:
        options = _client_options(conf.result_backend_transport_options, conf.get("redis_backend_use_ssl"))
        return backend, {**_credentials(conf, backend), **options}
    raise SettingError(
        "once_beat_redis_url: not set, and neither broker_url "
        f"({maybe_sanitize_url(broker.partition(';')[0]) or 'not set'}) nor result_backend is a Redis; "
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
