"""The window board, for an application of your own to mount: ``celery_once_beat.board.asgi(app)``.

Needs the extra ``dashboard``.
"""

from __future__ import annotations

from .web.board.mounted import asgi

__all__ = ("asgi",)
