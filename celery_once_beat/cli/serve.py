"""The commands that serve: ``dashboard`` and ``metrics``. They need extras, and write nothing."""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial

import click

from celery_once_beat.errors import SettingError
from celery_once_beat.status import View
from celery_once_beat.web.loopback import bind

from .context import Project, needs_extra, pass_project

_PORT = click.IntRange(0, 65535)


@click.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; one that others reach needs a token."
)
@click.option("--port", type=_PORT, default=5566, show_default=True, help="0: a free one.")
@click.option(
    "--token",
    envvar="ONCE_BOARD_TOKEN",
    help="Token that viewers must know. Better set ONCE_BOARD_TOKEN: ps shows options to everybody on the machine.",
)
@click.option("--actions", is_flag=True, help="Who knows the token may also run, pause, abandon and edit.")
@pass_project(reads_schedule=True)
def dashboard(project: Project, host: str, port: int, token: str | None, *, actions: bool) -> None:
    """Serve the window board, a live page, and /metrics.

    It only reads, unless --actions. Without a token it is for this machine alone. Needs the extra dashboard; /metrics
    needs the extra metrics, too.
    """
    with needs_extra("dashboard"):
        from celery_once_beat.web.board.guard import Access
        from celery_once_beat.web.board.server import listen, serve
        from celery_once_beat.web.board.site import make_site
    if actions and token is None:
        raise SettingError("--actions: found no token, expected one in ONCE_BOARD_TOKEN: who knows it may act")
    with closing(View(project.app, project.settings, project.scheduler)) as view:
        listener = listen(host, port, token)
        click.echo(f"once: the board is at {_url(listener.getsockname())}" + (", with its token" if token else ""))
        # Each order is a line in the log.
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        serve(partial(make_site, view, Access(token, actions)), listener)


@click.command()
@click.option("--port", type=_PORT, help="Serve /metrics on this port instead, without a token; 0: a free one.")
@click.option(
    "--host", help="With --port: address to listen on. Whoever reaches it reads the metrics.  [default: 127.0.0.1]"
)
@click.option(
    "--entries",
    type=click.IntRange(0, 10_000),
    default=200,
    show_default=True,
    help="How many entries have series of their own, those that need attention first.",
)
@pass_project(reads_schedule=True)
def metrics(project: Project, port: int | None, host: str | None, entries: int) -> None:
    """Print or serve what Prometheus reads.

    Windows by outcome, how late, how long, what is overdue, which beats live. Needs the extra metrics; --port
    needs the extra dashboard, too.
    """
    if host is not None and port is None:
        raise click.UsageError("--host says where to serve, and needs --port")
    with needs_extra("metrics"):
        from celery_once_beat.status.metrics import OnceCollector
    with closing(View(project.app, project.settings, project.scheduler, windows=1)) as view:
        if port is None:
            _, text = OnceCollector(entries).expose(view.snapshot().report)
            click.echo(text, nl=False)
            return
        with needs_extra("metrics --port", "dashboard"):
            from celery_once_beat.web.board.server import serve
            from celery_once_beat.web.exporter import make_exporter
        listener = bind("127.0.0.1" if host is None else host, port)
        address = listener.getsockname()
        click.echo(f"once: the metrics are at {_url(address)}/metrics")
        serve(lambda _: make_exporter(view, entries, address[0]), listener)


def _url(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
