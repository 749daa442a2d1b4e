"""``celery -A proj once …``: what people ask and order. A command is a function in a module, and a line below."""

from __future__ import annotations

import gc
import io
import sys
from importlib import import_module
from typing import Any

import click

import celery_once_beat.settings  # noqa: F401  # so that celery report and workers don't show our passwords
from celery_once_beat.errors import OnceError
from celery_once_beat.wording import printable

__all__ = ("once",)

#: Modules, and the commands in each. They are imported when one is used: ``celery --help`` doesn't pay for the store.
_MODULES = {
    "queries": ("status", "watch", "next", "history"),
    "checks": ("audit", "doctor"),
    "ping": ("ping",),
    "orders": ("run", "backfill", "republish", "pause", "resume", "abandon", "orders", "prune"),
    "schedules": ("schedules",),
    "serve": ("dashboard", "metrics"),
}
_COMMANDS = {name: module for module, names in _MODULES.items() for name in names}


class _Commands(click.Group):
    """Our commands. An error of ours is one line and an exit status, never a traceback."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        return getattr(import_module(f".{_COMMANDS[name]}", __name__), name)  # type: ignore[no-any-return]

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.obj.no_color:
            ctx.color = False
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # where a name has no place in the terminal's encoding
        gc.set_threshold(100_000, 20)  # most of what is read stays: to look for garbage in it costs a quarter
        try:
            return super().invoke(ctx)
        except OnceError as exc:
            click.echo(f"once: {printable(str(exc))}", err=True)
            ctx.exit(exc.exit_status)


@click.group(cls=_Commands)
def once() -> None:
    """Look at the windows of the schedule, and order some: celery-once-beat.

    Exit statuses: 0 as asked; 1 no (nothing lives, a window is late, an account doesn't balance, a check found
    something, a window is still open, somebody else changed the schedule); 2 wrong usage; 65 a key in Redis isn't of
    this package; 69 Redis doesn't answer; 78 a wrong setting.
    """
