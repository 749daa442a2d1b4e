# proj/wsgi.py
import os
from importlib import import_module

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
django = get_wsgi_application()

from a2wsgi import ASGIMiddleware
from celery_once_beat import board
from django.conf import settings
from django.contrib.auth import get_user
from django.core.handlers.wsgi import WSGIRequest
from proj.celery import app

PATH = "/ops/board"
window_board = board.asgi(app, hosts=settings.ALLOWED_HOSTS, actions=lambda user: user.is_superuser)
sessions = import_module(settings.SESSION_ENGINE)


async def with_user(scope, receive, send):
    await window_board({**scope, "user": scope["wsgi_environ"]["board.user"]}, receive, send)


in_wsgi = ASGIMiddleware(with_user)


def application(environ, start_response):
    path = environ["PATH_INFO"]
    if path.startswith(PATH + "/"):
        request = WSGIRequest(environ)
        request.session = sessions.SessionStore(request.COOKIES.get(settings.SESSION_COOKIE_NAME))
        user = get_user(request)
        if user.is_active and user.is_staff:
            there = {"SCRIPT_NAME": PATH, "PATH_INFO": path.removeprefix(PATH), "board.user": user}
            return in_wsgi({**environ, **there}, start_response)
    return django(environ, start_response)
