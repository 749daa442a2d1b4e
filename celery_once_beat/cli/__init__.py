"""``celery -A proj once …``: what people ask and order. The store is imported inside a command.

Exit statuses: 0 as asked; 1 no: nothing lives, an account doesn't balance, a check found something; 2 wrong usage;
65 a key in Redis isn't ours; 69 Redis or the broker doesn't answer; 78 a wrong setting.
"""

from __future__ import annotations

import click

from .audit import audit
from .context import OnceGroup
from .doctor import doctor
from .orders import backfill, pause, resume, run
from .queries import history, next_windows, ping, status, watch
from .serve import dashboard, metrics

__all__ = ("once",)


@click.group(cls=OnceGroup)
def once() -> None:
    r"""Any number of beats side by side, every window once: celery-once-beat.

    \b
    Exit statuses: 0 as asked; 1 no (nothing lives, an account doesn't balance,
    a check found something); 2 wrong usage; 65 a key in Redis isn't ours;
    69 Redis or the broker doesn't answer; 78 a wrong setting.
    """


for command in (
    status,
    watch,
    next_windows,
    history,
    audit,
    doctor,
    ping,
    run,
    backfill,
    pause,
    resume,
    dashboard,
    metrics,
):
    once.add_command(command)
