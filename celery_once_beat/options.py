"""Every option once: the app's settings, what a task and an entry may set, and what the store is sent of it.

A row of :class:`Options` is a setting ``once_beat_<name>``; one of :class:`EntryOptions` stands at entries alone. It
has its type, default, check and where else it may stand. The comment above it says what it does, as docs/settings.md
does under the title above that. ``settings.Settings``, ``rules.EntryPolicy``, the checks of tasks and entries, and the
arguments of the store's ``load`` are made from it. All times are seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, tzinfo
from pathlib import PurePath
from typing import Any, Literal
from urllib.parse import urlsplit

from . import wording
from .errors import SettingError
from .wording import did_you_mean, expect, shown

DEFAULT_PREFIX = "once:"
OVERLAP = ("allow", "skip", "buffer_one", "buffer_all")
CATCH_UP = ("latest", "all", "none")
#: What a template of the board's links may name.
LINK_FIELDS = frozenset({"entry", "task", "task_id", "attempt", "state", "beat", "worker", "start", "begun", "ended"})
REDIS_SCHEMES = ("redis", "rediss", "redis+socket", "sentinel", "redis+cluster", "rediss+cluster")
_MILLION = 1_000_000
_LONGEST_NAME = 500
_TEN_YEARS = 10 * 366 * 86_400.0
_LONGEST_PREFIX = 128
_PREFIX = re.compile(r"[^{}\s]+|[^{}\s]*\{[^{}\s]+\}[^{}\s]*")
#: Up to its path nothing of a template is filled in.
_LINK_HOST = re.compile(r"https?://[^\s/?#{}]+([/?#]\S*)?$", re.ASCII)


def wrong(name: str, value: object, expected: str) -> SettingError:
    """Return the error for a value that isn't what was expected."""
    return SettingError(wording.wrong(name, value, expected))


def _type_name(value: object) -> str:
    return type(value).__name__


def _same(value: Any) -> Any:
    return value


def _is_set(value: object) -> bool:
    return value is not None


def is_buffer(overlap: str | None) -> bool:
    """Whether windows may wait for each other under this policy."""
    return overlap is not None and overlap.startswith("buffer_")


@dataclass(frozen=True)
class Check:
    """What a value must be.

    Called with the name under which it stands, it returns the value as it is used; else it raises SettingError, which
    begins with that name.
    """

    expected: str
    fits: Callable[[Any], bool]
    read: Callable[[Any], Any] = _same
    #: None stays None.
    optional: bool = False
    #: How a wrong value is shown, which may hold a password.
    found: Callable[[Any], str] = shown

    def __call__(self, name: str, value: Any) -> Any:
        """Return the value; raises SettingError."""
        if value is None and self.optional:
            return None
        if not self.fits(value):
            or_none = ", or None" if self.optional else ""
            raise SettingError(f"{name}: found {self.found(value)}, expected {self.expected}{or_none}")
        return self.read(value)


def _between(minimum: float, maximum: float, kinds: Any) -> Callable[[Any], bool]:
    """Whether a value is a number in these bounds; also refuses NaN."""
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool) and minimum <= value <= maximum


def check_seconds(minimum: float, maximum: float = _TEN_YEARS, *, optional: bool = False) -> Check:
    """A number of seconds from ``minimum`` to ``maximum``; with ``optional`` None stays None."""
    limits = f" from {minimum:g} to {maximum:g}" if maximum < _TEN_YEARS else f", at least {minimum:g}"
    return Check(f"a number of seconds{limits}", _between(minimum, maximum, (int, float)), float, optional)


def check_count(minimum: int, *, optional: bool = False) -> Check:
    """A whole number from ``minimum`` to a million; with ``optional`` None stays None."""
    return Check(f"a whole number, at least {minimum}", _between(minimum, _MILLION, (int,)), optional=optional)


def check_choice(*choices: object) -> Check:
    """One of ``choices``."""

    def fits(value: Any) -> bool:
        return any(value == choice and type(value) is type(choice) for choice in choices)

    return Check("one of " + ", ".join(map(repr, choices)), fits)


def _check_text(expected: str, pattern: str, flags: int = 0, **more: Any) -> Check:
    """Return the check of a text; see :class:`Check` for ``more``."""
    return Check(expected, lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value, flags)), **more)


def _is_task_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable() and " " not in value


#: Of a lease.
check_lease = check_seconds(0.5)
check_task_name = Check("the name of a task like 'proj.tell_somebody'", _is_task_name, str.__str__, optional=True)
#: The name of a limit, which is part of its keys and of a message header.
check_limit_name = _check_text("1 to 64 letters, digits, '_', '.' and '-'", r"[\w.-]{1,64}", re.ASCII)


def fits_prefix(value: Any) -> bool:
    """Whether a text can be the prefix of keys.

    With a hash tag of its own it has all keys in one slot of a cluster. Half of one would spread a script's keys.
    """
    return isinstance(value, str) and len(value) <= _LONGEST_PREFIX and _PREFIX.fullmatch(value) is not None


check_prefix = Check("a short text without white space, and without braces but for one {hash tag}", fits_prefix)


def _check_limits(name: str, value: Any) -> dict[str, int]:
    expected = "a dict of names and numbers of slots like {'reports': 3}"
    expect(name, value, isinstance(value, Mapping), expected, SettingError)
    return {
        check_limit_name(f"{name}, a name", limit): check_count(1)(f"{name}[{limit!r}]", number)
        for limit, number in value.items()
    }


def _check_links(name: str, value: Any) -> dict[str, str]:
    """Names of links, each with a template; what fills it can't change where it leads."""
    expected = "a dict of names and URLs like {'Flower': 'https://flower.example/task/{task_id}'}"
    fits = isinstance(value, Mapping) and all(isinstance(part, str) for pair in value.items() for part in pair)
    expect(name, value, fits, expected, SettingError)
    for link, template in value.items():
        host, named = _LINK_HOST.match(template), set(re.findall(r"{(.*?)}", template))
        if not host:
            raise wrong(f"{name}[{link!r}]", template, "http:// or https://, and a host without a field in it")
        unknown = sorted(named - LINK_FIELDS)
        if unknown or re.search(r"[{}]", re.sub(r"{\w+}", "", template)):
            hint = did_you_mean(unknown[0], LINK_FIELDS) if unknown else ""
            raise wrong(f"{name}[{link!r}]", template, "fields of " + ", ".join(sorted(LINK_FIELDS)) + hint)
    return dict(value)


def scheme_of(url: str) -> str:
    """Return a URL's scheme in lower case, or ''."""
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""


def _shown_url(value: Any) -> str:
    """An unknown URL may hold a password anywhere: only its scheme is shown."""
    if not isinstance(value, str):
        return type(value).__name__
    return f"{scheme_of(value)}://…" if re.fullmatch(r"[\w+.-]{1,32}", scheme_of(value)) else "no URL"


def _readable_url(url: str) -> str:
    try:
        for one in url.split(";"):
            _ = urlsplit(one).port
    except ValueError:
        raise unreadable_url(url) from None
    return url


def unreadable_url(url: str) -> SettingError:
    """Return the error for a URL that can't be parsed; as it may hold a password anywhere, none of it is shown."""
    return SettingError(
        f"once_beat_redis_url: found a {scheme_of(url)} URL that can't be parsed, expected one like "
        "redis://user:password@host:6379/0; quote special characters of user and password as %xx"
    )


def _is_path(value: Any) -> bool:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    return isinstance(path, str) and PurePath(path).is_absolute() and not path.endswith("/") and "\0" not in path


check_path = Check("the absolute path of a file, like /run/beat/heartbeat", _is_path, os.fspath, optional=True)
_URL = Check(
    "a URL with one of " + ", ".join(REDIS_SCHEMES),
    lambda value: isinstance(value, str) and scheme_of(value) in REDIS_SCHEMES,
    _readable_url,
    optional=True,
    found=_shown_url,
)
_MAPPING = Check(
    "a dict of options for the Redis client", lambda value: isinstance(value, Mapping), dict, found=_type_name
)
_PATTERNS = Check(
    "a list of patterns of task names like ['proj.*']",
    lambda value: isinstance(value, (list, tuple)) and all(isinstance(each, str) and each for each in value),
    tuple,
    optional=True,
)
_BOARD = _check_text("an address like https://board.example/once/", r"https?://[^\s/?#]+[^\s]*", optional=True)
_SCHEMA = _check_text("the name of a schema like 'jobs'", r"[^\W\d]\w{0,62}", optional=True)
_DATABASE = _check_text(
    "SQLAlchemy's URL of a database, like postgresql+psycopg://host/name",
    r"(?s)[a-z][\w.-]*(\+\w+)?://.*",
    optional=True,
    found=_type_name,  # it may hold a password
)


@dataclass(frozen=True)
class Row:
    """What an option is but for its name, type and default."""

    #: None: ``rules.policy`` has it, which knows instants and time zones.
    check: Any
    #: An entry has a value of its own. Where neither it nor, for ``"beat"``, its task says one, it is that of the
    #: setting; for ``"worker"`` it is None, and the worker reads its task.
    policy: Literal["beat", "worker"] | None = None
    #: Whether a task may set it: ``once_<name>``.
    task: bool = False
    #: Whether an entry may set it, as a key of ``once``.
    entry: bool = False
    #: Which values need the ends of windows: the entry has to be tracked. None: no value does.
    needs_ends: Callable[[Any], bool] | None = None
    #: The setting that has the names which a value may be.
    among: str | None = None
    #: The kind of the argument that carries it to the store, see ``store.scripts``.
    load: str | None = None
    #: Celery's own setting; else ``once_beat_<name>``.
    setting: str | None = None
    #: The default for docs/settings.md, if a value doesn't say it.
    shown: str | None = None


def row(default: Any, check: Any = None, *, secret: bool = False, **more: Any) -> Any:
    """Make the field of an option; see :class:`Row`. ``secret``: it may hold a password."""
    more.setdefault("entry", more.get("policy") is not None)
    metadata = {"row": Row(check, **more)}
    if isinstance(default, dict):
        return field(default_factory=dict, repr=not secret, metadata=metadata)
    return field(default=default, repr=not secret, metadata=metadata)


def _alert_row(check: Any, load: str) -> Any:
    return row(None, check, policy="beat", task=True, load=load, needs_ends=_is_set)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of an app, some of which tasks and entries may set for themselves."""

    # -- Where windows are coordinated

    #: `redis://`, `rediss://`, `redis+socket://`, `sentinel://…;sentinel://…`, `redis+cluster://…`: [ways to
    #: connect](redis.md#ways-to-connect)
    redis_url: str = row(
        "",
        _URL,
        secret=True,
        shown="the broker if it is Redis, else the result backend if it is, each with its transport options and "
        "TLS settings",
    )
    #: for the Redis client: `master_name`, `sentinel_kwargs`, TLS, timeouts
    redis_options: Mapping[str, Any] = row({}, _MAPPING, secret=True)
    #: the prefix of each key; by default it follows [the app's own](#the-default-prefix). Apps that share a Redis need
    #: different prefixes or entry names
    key_prefix: str = row(DEFAULT_PREFIX, check_prefix)
    #: how many replicas must have a write before anybody acts on it: [failover](redis.md#replicas-and-failover)
    wait_replicas: int = row(0, check_count(0))

    # -- Executions

    #: how long an execution owns its window; renewed while the body runs: [choosing it](lease.md)
    lease: float = row(30.0, check_lease, policy="worker", task=True)
    #: executions that may die before the window is abandoned
    max_attempts: int = row(3, check_count(1), policy="beat", task=True, load="number")
    #: False: a window whose execution died is dropped
    recover: bool = row(True, check_choice(True, False), policy="beat", task=True, load="number")
    #: a window that failed runs again after this time, up to `max_attempts` executions; 0: never
    retry_failed_after: float | None = row(
        None, check_seconds(0, optional=True), policy="worker", task=True, load="span"
    )
    #: `"skip"`, `"buffer_one"`, `"buffer_all"`: [what runs when](overlap.md#overlap)
    overlap: str = row("allow", check_choice(*OVERLAP), policy="worker", task=True, load="", needs_ends=is_buffer)
    #: how many windows may run at once under each [limit](overlap.md#limits), like `{"reports": 3}`
    limits: Mapping[str, int] = row({}, _check_limits)
    #: [an alert](alerts.md#a-deadline) is sent if a window isn't done this long (at least 1) after its start
    deadline: float | None = _alert_row(check_seconds(1, optional=True), "span")
    #: after so many failed windows in a row the entry [is paused](alerts.md#pause-after-failures)
    pause_after_failures: int | None = _alert_row(check_count(1, optional=True), "number")
    #: the name of a task that is [sent for each window](alerts.md#a-task-for-failures) that ends and isn't done
    on_failure: str | None = _alert_row(check_task_name, "")

    # -- When a window is overdue

    #: at most 20: how long a beat has to publish what it claimed; renewed while it publishes. If it dies, its windows
    #: are late by this, `recovery_interval` and half a second
    claim_lease: float = row(1.5, check_seconds(0.1, 20.0))
    #: at most 20: a beat publishes for half of this, then leaves the rest to any beat. Messages that a broker refuses
    #: are retried at doubling steps up to this. After it, another beat sends [a dead beat's
    #: alerts](alerts.md#once-and-when-twice)
    publish_timeout: float = row(10.0, check_seconds(0.1, 20.0))
    #: a published window that no worker has begun is published again after this time (a lost retry: after the app's
    #: value), then at doubling steps, as long as a worker [consumes its queue](failures.md#messages-and-the-broker)
    start_timeout: float = row(600.0, check_seconds(0.1), policy="beat")
    #: at most 5: how often each beat sweeps: it reports that it is alive, and reads overdue windows, orders and changes
    recovery_interval: float = row(2.0, check_seconds(0.1, 5.0))

    #: False: no [fast path](scaling.md#fast-path), to find out whether it is at fault
    fast: bool = row(True, check_choice(True, False))

    # -- What runs late

    #: a window up to this late is on time
    tolerance: float = row(60.0, check_seconds(0), policy="beat", entry=False)
    #: if a window is later, because no beat ran: `"latest"` runs only the newest that is due, `"all"` all in order,
    #: `"none"` only those on time. The others are missed
    catch_up: str = row("latest", check_choice(*CATCH_UP), policy="beat")
    #: how many late windows `"all"` runs
    max_catch_up: int = row(1000, check_count(0), policy="beat")
    #: a window older than this is missed, even if it waited in a queue
    grace: float | None = row(None, check_seconds(0, optional=True), policy="beat", load="span")
    #: Celery's own: a crontab's older windows are missed, unless they are in a queue
    cron_starting_deadline: float | None = row(
        None, check_seconds(0, optional=True), policy="beat", entry=False, setting="beat_cron_starting_deadline"
    )

    # -- What Redis keeps

    #: how long the keys of a claim, and of an end, live
    marker_ttl: float = row(600.0, check_seconds(1))
    #: how long ends of untracked entries and of keys of `once()` and `apply_once` are kept, and ends after a data loss
    retention: float = row(86_400.0, check_seconds(1))
    #: windows in an entry's history; 0: none
    history_size: int = row(50, check_count(0))
    #: patterns (`fnmatch`) of tasks that [run-time schedules](schedules.md), their `on_failure` and [tracked
    #: children](effects.md#child-tasks) may send, like `["proj.*"]`; None: every task
    runtime_tasks: tuple[str, ...] | None = row(None, _PATTERNS)
    #: what is kept of an entry's last ten failures: `"message"`: type and first line (200 characters; only URLs'
    #: passwords are masked); `"type"`: the type; `"none"`: nothing
    failure_text: str = row("message", check_choice("message", "type", "none"))

    # -- On the board

    #: links in a window's [story](board.md#a-windows-story), like `{"Flower": "https://flower.example/task/{task_id}"}`
    board_links: Mapping[str, str] = row({}, _check_links)
    #: where [the board](board.md) is: [Django's admin](django.md#windows-in-the-admin) links to it
    board_url: str | None = row(None, _BOARD)

    # -- Probes

    #: absolute path of a file that a beat touches for [probes](cli.md#probes-that-cost-next-to-nothing), a
    #: different one for each beat; also `ONCE_BEAT_HEARTBEAT_FILE` in the environment
    heartbeat_file: str | None = row(None, check_path)

    # -- Effects

    #: the schema of the table of [`self.window.record(session)`](effects.md) in SQLAlchemy; None: the connection's own
    effects_schema: str | None = row(None, _SCHEMA)
    #: SQLAlchemy's URL of the database in which [`celery once prune`](effects.md#delete-old-rows) deletes old rows
    effects_url: str | None = row(None, _DATABASE, secret=True)


@dataclass(frozen=True, kw_only=True)
class EntryOptions:
    """What entries alone may set, as keys of ``once``."""

    # -- Executions

    #: the limit of `once_beat_limits` that its windows share
    limit: str | None = row(None, check_limit_name, policy="beat", task=True, needs_ends=_is_set, among="limits")

    # -- What runs late

    #: an instant on an interval's grid: an aware datetime, or ISO 8601
    anchor: datetime | None = row(None, entry=True, shown="the epoch, or Monday 1970-01-05")
    #: the [time zone](windows.md#time-zones) of a schedule that names none, like `"Europe/Berlin"`
    tz: tzinfo | None = row(None, entry=True, shown="the app's")
    #: a fixed delay of 0 to this many seconds, derived from the entry's name: a thousand hourly entries don't all start
    #: at :00
    spread: float = row(0.0, check_seconds(0), entry=True)
    #: False: its task is no `OnceTask`, on purpose. True: it is one, though beat doesn't know the task
    tracked: bool | None = row(None, check_choice(True, False), entry=True, shown="as the task says")


def check_among(setting: str, where: str, name: str, settings: Options) -> str:
    """Return a name that ``setting`` has; raises SettingError, which begins with ``where``."""
    known: Mapping[str, Any] = getattr(settings, setting)
    if name not in known:
        have = ", ".join(map(repr, sorted(known))) or "none"
        expected = f"a name in once_beat_{setting}, which has {have}{did_you_mean(name, known, repr)}"
        raise wrong(where, name, expected)
    return name


class TaskOptions:
    """The attributes that a task may set, for type checkers; None: the app's setting."""

    once_lease: float | None = None
    once_recover: bool | None = None
    once_retry_failed_after: float | None = None
    once_overlap: str | None = None
    once_limit: str | None = None
    once_max_attempts: int | None = None
    once_deadline: float | None = None
    once_pause_after_failures: int | None = None
    once_on_failure: str | None = None


#: Every option's field, with its default, by its name.
FIELDS = {each.name: each for kind in (Options, EntryOptions) for each in fields(kind)}
#: Every option's row by its name.
ROWS: dict[str, Row] = {name: each.metadata["row"] for name, each in FIELDS.items()}
#: The checks of a task's attributes, by their names; None leaves it to the app.
TASK_CHECKS = {f"once_{name}": replace(row.check, optional=True) for name, row in ROWS.items() if row.task}
#: The checks of an entry's keys of ``once``. Where None means "as the task says" it is no value.
ENTRY_CHECKS = {
    name: replace(row.check, optional=False) if row.policy == "worker" else row.check
    for name, row in ROWS.items()
    if row.entry
}
