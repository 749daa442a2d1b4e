"""The window board, for an application of your own to mount: ``celery_once_beat.board.asgi(app)``.

Needs the extra ``dashboard``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from .settings import Settings
from .status import View
from .web.board.guard import Access, check_token
from .web.board.site import make_site

if TYPE_CHECKING:
    from celery import Celery

__all__ = ("asgi",)


def asgi(
    app: Celery,
    *,
    actions: bool | Callable[[Any], object] = False,
    token: str | None = None,
    hosts: Collection[str] = (),
    scheduler: str | None = None,
) -> ASGIApp:
    """Return the window board of ``app``, to be mounted at any path of another ASGI application.

    Who may look: whom the scope's ``user`` names (its ``is_authenticated`` is true), as Starlette's
    AuthenticationMiddleware puts it there, or code of yours; who knows ``token``; and where there is no token, this
    machine. Who may act, ``actions``: False: nobody; True: all who may look, this machine excepted; a function, which
    isn't async: those users for whom it is true.

    A server on this machine answers only Host headers that name it, or one of ``hosts``, unless there is a token.
    ``scheduler`` is beat's ``-S``, where ``beat_scheduler`` doesn't name it. Raises SettingError where a setting is
    wrong.
    """
    check_token(token)
    access = Access(token, actions, hosts)
    settings = Settings.from_app(app)
    return make_site(View(app, settings, scheduler), access)
