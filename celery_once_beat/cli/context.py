"""What the commands share: the app's store and schedules, and how entries, times and options are read."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone, tzinfo
from functools import cached_property, wraps
from typing import Any, NoReturn, TypeVar

import click
from celery.app.utils import find_app

from celery_once_beat.beat import BeatEntry, LoadedSchedule, load_schedule
from celery_once_beat.client import Schedules
from celery_once_beat.errors import OnceError, SettingError, StoreUnavailableError
from celery_once_beat.features.runtime.beat import add_defined
from celery_once_beat.lookup import Lookup, Overview
from celery_once_beat.settings import Settings
from celery_once_beat.status import take_snapshot
from celery_once_beat.store import Store
from celery_once_beat.windows import is_child
from celery_once_beat.wording import did_you_mean, printable, read_time
from celery_once_beat.worker import check_tasks

F = TypeVar("F", bound=Callable[..., Any])


class Project:
    """One command's view of the app. Made before anything is asked; connects when something is."""

    def __init__(self, app: Any, scheduler: str | None = None, *, needs_store: bool = True) -> None:
        self.app = app
        self.settings = Settings.from_app(app, connects=needs_store)
        self.scheduler = scheduler
        self._needs_store = needs_store
        #: Why the schedule lacks what people set at run time; '': it doesn't.
        self.store_trouble = ""

    @cached_property
    def store(self) -> Store:
        """The app's store."""
        return Store(self.settings)

    @cached_property
    def schedules(self) -> Schedules:
        """What people set at run time. The app's modules are there, as in a beat: tasks, and entries that they add."""
        self.app.loader.import_default_modules()
        self.app.finalize()
        return Schedules(self.app)

    def close(self) -> None:
        """Give the connections back."""
        for name in vars(self).keys() & {"store", "schedules"}:
            getattr(self, name).close()

    @cached_property
    def lookup(self) -> Lookup:
        """What the store knows."""
        return Lookup(self.store)

    @cached_property
    def schedule(self) -> LoadedSchedule:
        """The schedule as a beat would have it. A command that doesn't need the store goes without its schedules."""
        check_tasks(self.app)
        loaded = load_schedule(self.app, self.settings, self.scheduler)
        if self.settings.redis_url:
            try:
                add_defined(loaded, self.app, self.store)
            except StoreUnavailableError as exc:
                if self._needs_store:
                    raise
                self.store_trouble = printable(str(exc))
        return loaded

    def overview(self, names: Iterable[str] = ()) -> Overview:
        """Look at all entries: the schedule's, those that beats have loaded, and tracked children of ``names``."""
        return take_snapshot(self.lookup, self.schedule, children=filter(is_child, names))

    def messages(self, queue: str) -> int | None:
        """Return how many messages a queue has, by the broker; None if that isn't known."""
        try:
            with self.app.connection_for_read(transport_options={"socket_timeout": 4.0}) as connection:
                connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
                try:
                    return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
                except connection.channel_errors:
                    return 0  # there is no such queue: over Redis it is empty
        except Exception:  # noqa: BLE001  # every transport has errors of its own
            return None

    def read_again(self) -> None:
        """Have the schedule read once more when it is asked for next: a database's may have changed."""
        self.__dict__.pop("schedule", None)

    @property
    def zone(self) -> tzinfo:
        """The app's time zone: of times that name none, and of those that are shown."""
        return self.app.timezone  # type: ignore[no-any-return]

    def entry(self, name: str) -> BeatEntry:
        """The schedule's entry of that name; ends the command where there is none, or it is left out as wrong."""
        entries = self.schedule.entries
        entry = entries.get(name)
        if entry is not None:
            return entry
        if name in entries.wrong:
            raise SettingError(f"entry {name!r} is left out: {entries.wrong[name]}")
        names = [entry.name for entry in entries]
        hint = did_you_mean(name, names, repr) or f": it has {len(names)}, see 'once next'"
        return fail(f"the schedule has no entry {name!r}{hint}")

    def instant(self, text: str, name: str) -> datetime:
        """Read a time as people write it: ISO 8601, in the app's time zone where it names none, or ``now``."""
        if text == "now":
            return datetime.now(timezone.utc)
        found = read_time(text, self.zone)
        if found is None:
            fail(f"{name}: found {text!r}, expected a time like 2026-11-21T02:00 ({self.zone}) or 2026-11-21T01:00Z")
        return found


class WrongUsageError(OnceError):
    """What was asked for isn't there, or can't be."""

    exit_status = 2


def fail(text: str) -> NoReturn:
    """End the command: it was used wrongly."""
    raise WrongUsageError(text)


@contextmanager
def needs_extra(command: str, extra: str | None = None) -> Iterator[None]:
    """Import what an extra brings, else say which one it is; None: it is called as the command."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("celery_once_beat"):
            raise
        fail(f"{command} needs an extra: pip install 'celery-once-beat[{extra or command}]' ({exc})")


def open_project(ctx: click.Context, scheduler: str | None = None, *, needs_store: bool = True) -> Project:
    """Return the command's project, open until it ends."""
    project = Project(ctx.obj.app, scheduler, needs_store=needs_store)
    ctx.call_on_close(project.close)
    return project


def pass_project(
    *, reads_schedule: bool = False, needs_store: bool = True, json: bool = False
) -> Callable[[Callable[..., None]], Any]:
    """Give the command its project, as :func:`open_project`; ``-S`` where it ``reads_schedule``, and ``--json``."""

    def decorate(command: Any) -> Any:
        @click.pass_context
        @wraps(command)
        def with_project(ctx: click.Context, /, *, scheduler: str | None = None, **given: Any) -> None:
            command(open_project(ctx, scheduler, needs_store=needs_store), **given)

        made = _json_option(with_project) if json else with_project
        return _scheduler_option(made) if reads_schedule else made

    return decorate


# -- options and arguments --------------------------------------------------------------------------------------


_scheduler_option = click.option(
    "-S",
    "--scheduler",
    metavar="CLASS",
    help="Scheduler whose schedule is read, as beat's -S. Default: beat_scheduler.",
)
_json_option = click.option("--json", "json_", is_flag=True, help="Print JSON, for programs.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Don't ask.")


def login_name() -> str:
    """Name who uses the command; '' where the system doesn't know."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return ""


def words_options(command: F) -> F:
    """``--by`` and ``--note``, which stand in the log of what people order and change."""
    command = click.option(
        "--note", metavar="TEXT", default="", help="Why; 'orders', or 'schedules changes', shows it."
    )(command)
    return click.option("--by", metavar="NAME", default=login_name, help="Who does it. Default: your login name.")(
        command
    )


def entry_argument(**options: Any) -> Callable[[F], F]:
    """``ENTRY``, which the shell completes."""
    return click.argument("entry", shell_complete=_complete_entry, **options)


def _complete_entry(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of entries; none where the app can't be loaded: the shell has no place for an error."""
    try:
        app: Any = ctx.find_root().params.get("app") or os.environ.get("CELERY_APP")
        app = find_app(app) if isinstance(app, str) else app
        names = [entry.name for entry in load_schedule(app, Settings.from_app(app, connects=False)).entries]
    except Exception:  # noqa: BLE001  # whatever a user's app raises
        return []
    return [name for name in names if name.startswith(incomplete)]
