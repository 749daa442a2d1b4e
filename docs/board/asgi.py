# proj/asgi.py
import io
import os
from importlib import import_module

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
django = get_asgi_application()

from asgiref.sync import sync_to_async
from celery_once_beat import board
from django.conf import settings
from django.contrib.auth import get_user
from django.core.handlers.asgi import ASGIRequest
from proj.celery import app

PATH = "/ops/board"
window_board = board.asgi(app, hosts=settings.ALLOWED_HOSTS, actions=lambda user: user.is_superuser)
sessions = import_module(settings.SESSION_ENGINE)


@sync_to_async
def user_of(scope):
    request = ASGIRequest(scope, io.BytesIO())
    request.session = sessions.SessionStore(request.COOKIES.get(settings.SESSION_COOKIE_NAME))
    return get_user(request)


async def application(scope, receive, send):
    if scope["type"] == "http" and scope["path"].startswith(PATH + "/"):
        user = await user_of(scope)
        if user.is_active and user.is_staff:
            await window_board({**scope, "root_path": PATH, "user": user}, receive, send)
            return
    await django(scope, receive, send)
