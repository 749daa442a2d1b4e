"""What a worker or a beat checks when it starts: its tasks, its settings, and who else claims windows."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

from celery import Celery
from celery.signals import beat_init, celeryd_after_setup

from celery_once_beat.errors import OnceError, SettingError
from celery_once_beat.logs import about, ending_if_wrong, get_logger
from celery_once_beat.options import TASK_CHECKS, check_among
from celery_once_beat.settings import Settings
from celery_once_beat.store import Store, check_client, make_of_executions
from celery_once_beat.wording import did_you_mean, shown

from .task import OnceTask

logger = get_logger(__name__)

#: Seconds after which a stock beat looks again whether there are others.
_OTHERS_LOOKED_FOR = 30.0
#: The attributes that a task may set.
_KNOWN = [*TASK_CHECKS, "once_closes_windows"]


def check_tasks(app: Celery) -> list[OnceTask]:
    """Return the OnceTasks of ``app``; raises SettingError if one sets ``window`` or a wrong attribute."""
    tasks = [task for task in app.tasks.values() if isinstance(task, OnceTask)]
    settings = Settings.from_app(app, connects=False) if tasks else Settings()
    for task in tasks:
        _check_task(task)
        limit = _attribute(task, "once_limit")
        if limit is not None:
            check_among("limits", f"task {task.name!r}, once_limit", limit, settings)
    return tasks


def _check_task(task: OnceTask) -> None:
    for base in type(task).__mro__:
        if base is OnceTask:
            break
        if "window" in vars(base):
            raise SettingError(
                f"task {task.name!r}: {base.__name__} defines 'window', which is where OnceTask puts the window; "
                "rename it"
            )
        for name in vars(base):
            if name.startswith("once_") and name not in _KNOWN:
                raise SettingError(
                    f"task {task.name!r}, {name}: there is no such attribute{did_you_mean(name, _KNOWN)}"
                )
    for name, check in TASK_CHECKS.items():
        check(f"task {task.name!r}, {name}", _attribute(task, name))


def _attribute(task: OnceTask, name: str) -> Any:
    """Return what a task sets; raises SettingError where a property of its class raises."""
    try:
        return getattr(task, name)
    except Exception as exc:
        raise SettingError(f"task {task.name!r}, {name}: can't be read: {shown(exc)}") from exc


@celeryd_after_setup.connect(weak=False)
def _start_worker(instance: Any, **_: Any) -> None:
    """A worker with a wrong setting or task ends at its start, and not at its first window.

    The import connects it to the signals of messages that no task sees, even if it has no OnceTask yet.
    """
    from .request import request_class  # noqa: PLC0415  # only a worker needs it

    with ending_if_wrong(logger):
        check_client(Settings.from_app(instance.app))
        tasks = check_tasks(instance.app)
        for task in tasks:
            request_class(task)
    if tasks:
        make_of_executions()


@beat_init.connect(weak=False)
def _start_beat(sender: Any, **_: Any) -> None:
    """A beat with a wrong task ends at its start. Celery's own beat is warned about if others claim windows beside it.

    It would send what they claim once more: all looks well, and everything runs twice. Alone, it may be intended.
    """
    with ending_if_wrong(logger):
        check_tasks(sender.app)
    if not getattr(sender.scheduler, "claims_windows", False):
        threading.Thread(target=_warn_of_others, args=[sender], name="once-others", daemon=True).start()


def _warn_of_others(service: Any) -> None:
    """Warn a stock beat once others claim windows beside it: they may have started at the same time, or days later."""
    stopped = service._is_stopped  # noqa: SLF001  # Celery's, an Event; nothing else shows that a beat has ended
    others = _beats_that_claim(service.app)
    while others == 0 and not stopped.wait(_OTHERS_LOOKED_FOR):
        others = _beats_that_claim(service.app) or 0
    if others == 0:
        return
    text = (
        "once: this beat runs %s, which sends each window once more than %s: start it with -S once, or set "
        "beat_scheduler = 'once'"
    )
    whom = "any beats that claim windows" if others is None else f"the {others} that claim windows"
    logger.warning(text, type(service.scheduler).__name__, whom, extra=about("scheduler_stock"))


def _beats_that_claim(app: Any) -> int | None:
    """How many beats claim windows now; None if Redis doesn't say."""
    try:
        with closing(Store(Settings.from_app(app))) as store:
            return len(store.snapshot().beats)
    except OnceError:
        return None
