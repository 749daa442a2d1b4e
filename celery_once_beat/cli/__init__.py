"""``celery -A proj once …``: what people ask and order. Reads and prints only; the store is imported in a command.

Exit statuses: 0 as asked, 1 no (nothing lives, say), 2 wrong usage, 69 Redis doesn't answer, 78 a wrong setting.
"""

from __future__ import annotations

import os

import click

from ..errors import OnceError, SettingError

__all__ = ("once",)


@click.group()
def once() -> None:
    """Any number of beats side by side, every window once: celery-once-beat."""


@once.command()
@click.option("--beat", metavar="ID", help="This beat: its ID, or the host name that its ID begins with.")
@click.pass_context
def ping(ctx: click.Context, beat: str | None) -> None:
    """Exit with 0 where a beat lives, with 1 where none does: for probes.

    A beat lives if Redis has heard of it in the last 15 seconds. It is for a beat's own container to ask for
    its own: --beat $HOSTNAME.
    """
    from ..settings import Settings
    from ..store import Store

    try:
        store = Store(Settings.from_app(ctx.obj.app))
        alive = store.beats()
        store.close()
    except OnceError as exc:
        click.echo(f"once: {exc}", err=True)
        ctx.exit(os.EX_CONFIG if isinstance(exc, SettingError) else os.EX_UNAVAILABLE)
    found = [name for name in alive if beat is None or name == beat or name.startswith(f"{beat}:")]
    if not found:
        whose = "no beat lives" if beat is None else f"no beat {beat} lives"
        click.echo(f"{whose}; alive: {', '.join(alive) or 'none'}", err=True)
        ctx.exit(1)
    click.echo("\n".join(found))
