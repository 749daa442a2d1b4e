"""Who may ask, who may act, and what every answer says to a browser. Stands before everything else.

- Only GET and HEAD; POST where somebody may act.
- Where a server on this machine may be asked without a token, it answers only if the Host header names this machine, or
  one of ``hosts``: a page of another site whose name points here (DNS rebinding) gets nothing.
- Pages of other sites, of other ports too, may link to it and no more: no fetch, no event stream, no image, no form.
- With a token: as ``Authorization: Bearer``, or once by a form, which sets a cookie. The cookie isn't the token. An
  address never holds it: addresses are logged, and kept by browsers.
- Wrong tokens are answered the later the more of them there are.
- Whom the application around the board has authenticated, the scope's ``user``, needs no token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import time
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from inspect import isawaitable, iscoroutine
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_once_beat.errors import SettingError
from celery_once_beat.identity import digest
from celery_once_beat.options import wrong
from celery_once_beat.web.loopback import is_loopback, names_this_machine
from celery_once_beat.wording import expect

from . import words

_COOKIE = "once_board"
_VISITOR = "once_board.visitor"
_UNAUTHORIZED = 401

#: Shorter ones could be guessed.
LEAST_TOKEN = 16
_FORM = "application/x-www-form-urlencoded"
#: Most bytes of the form that has it, and most fields of any form.
_MOST_FORM = 4096
_MOST_FIELDS = 10_000
#: Seconds by which each wrong token is answered later than the one before, the most, and when they are forgotten.
_DELAY, _MOST_DELAY, _FORGOTTEN = 0.05, 5.0, 60.0
#: Files are given only to those who have the token, so this page has its style in itself.
_ENTRANCE = (files(__package__) / "templates" / "token.html").read_text("utf-8")
_STYLE = b64encode(hashlib.sha256(re.split("</?style>", _ENTRANCE)[1].encode()).digest()).decode()
_STYLED = "style-src 'self'", f"style-src 'sha256-{_STYLE}'"
#: Of every answer: load nothing from elsewhere, run no script but ours, keep nothing.
HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types board"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
#: Of a page with a form: it may be sent to the board, and says from where it comes.
FORM_HEADERS: Mapping[str, str] = {
    "content-security-policy": HEADERS["content-security-policy"].replace("form-action 'none'", "form-action 'self'"),
    "referrer-policy": "same-origin",
}
_ENTRANCE_HEADERS = {name: value.replace(*_STYLED) for name, value in FORM_HEADERS.items()}


def check_token(token: str | None) -> None:
    """Raise SettingError where a token could be guessed, or no browser could send it."""
    if token is not None and (len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable()):
        raise SettingError(
            f"the board's token: found {len(token)} characters, expected at least {LEAST_TOKEN}, of ASCII, like those "
            "that 'openssl rand -hex 16' prints; change ONCE_BOARD_TOKEN, --token, or board.asgi's token"
        )


@dataclass(frozen=True)
class Access:
    """Who may look, and who may act."""

    token: str | None = None
    #: True: who knows the token, and whom the scope's ``user`` names. A function: those users for whom it is true.
    actions: bool | Callable[[Any], object] = False
    #: Host headers that are answered besides those that name this machine.
    hosts: Collection[str] = ()

    def __post_init__(self) -> None:
        """Raise SettingError for what could let in more than was meant."""
        fits = isinstance(self.actions, bool) or callable(self.actions)
        expect("actions", self.actions, fits, "True, False or a function of a user", SettingError)
        expect("hosts", self.hosts, not isinstance(self.hosts, str), "a list of hosts", SettingError)

    def lets_act(self, user: object) -> bool:
        """Whether ``user``, whom the application has authenticated, may act."""
        if not callable(self.actions):
            return self.actions
        found = self.actions(user)
        if isawaitable(found):  # true, whoever it is
            if iscoroutine(found):
                found.close()
            raise wrong("actions", found, "a function that isn't async")
        return bool(found)


@dataclass(frozen=True)
class Visitor:
    """Who asks."""

    #: As the application around the board knows them; '' for nobody it knows.
    name: str = ""
    acts: bool = False

    @classmethod
    def of(cls, scope: Scope) -> Visitor:
        """Return who asks, of a request that the guard has passed on."""
        visitor: Visitor = scope[_VISITOR]
        return visitor


class Guard:
    """Passes allowed requests on to ``app``. Without a token only this machine, and authenticated users, may ask."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._token = access.token
        #: How many wrong tokens came of late, and when the last one did, monotonic.
        self._wrong, self._wrong_at = 0, 0.0
        self._cookie = hmac.new((access.token or "").encode(), b"cookie of the board", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let answer."""
        if scope["type"] != "http":  # lifespan and websocket: neither is served
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        answer: ASGIApp
        try:
            if self._token is not None and request.method == "POST" and _path_of(request) == "/token":
                answer = await self._enter(request)
            else:
                scope, answer = {**scope, _VISITOR: self._check(request)}, self._app
        except HTTPException as exc:
            if exc.status_code == _UNAUTHORIZED and _offers_token(request):
                await self._slow_down()
            answer = _refusal(exc, request)
        await answer(scope, receive, send_with_headers)

    def _check(self, request: Request) -> Visitor:
        """Return who asks; raises HTTPException."""
        allowed = "GET, HEAD, POST" if self._access.actions else "GET, HEAD"
        if request.method not in allowed.split(", "):
            what = "The board takes" if self._access.actions else "The board only reads:"
            raise HTTPException(405, f"{what} {allowed}", {"allow": allowed})
        if self._token is None and not self._is_host(request):
            raise HTTPException(
                400,
                f"Host: found {_header(request, 'host')}, expected localhost or 127.0.0.1, since the board has no "
                "token. Set one (ONCE_BOARD_TOKEN, or board.asgi's token), or name this host in board.asgi's hosts",
            )
        if request.method == "POST":
            if not _is_same_origin(request):
                raise HTTPException(
                    403,
                    f"Only the board's own pages may act: found Origin {_header(request, 'origin')}, expected the "
                    f"host {_header(request, 'host')}. A proxy has to pass on Host as the browser sent it",
                )
        elif not _may_read(request):
            raise HTTPException(403, "Another site's page may link to the board, and no more")
        visitor = self._visitor(request)
        if request.method == "POST" and not visitor.acts:
            raise HTTPException(403, "You may look at the board, and not act")
        return visitor

    def _is_host(self, request: Request) -> bool:
        host = request.headers.get("host", "")
        named = host != "" and {host, host.partition(":")[0]} & set(self._access.hosts)
        return not _may_be_loopback(request) or names_this_machine(host) or bool(named)

    def _visitor(self, request: Request) -> Visitor:
        user = request.scope.get("user")
        if getattr(user, "is_authenticated", False) is True:
            return Visitor(_name_of(user), self._access.lets_act(user))
        if self._token is not None:
            self._check_token(request)
            return Visitor(acts=self._access.actions is True)
        if _may_be_loopback(request) and names_this_machine(request.headers.get("host")):
            return Visitor()
        raise HTTPException(403, "The board is for those who have logged in")

    def _check_token(self, request: Request) -> None:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        knows_it = scheme.lower() == "bearer" and self._is_token(bearer.strip())
        if not knows_it and not _are_same(request.cookies.get(_COOKIE, ""), self._cookie):
            raise _unauthorized()

    async def _enter(self, request: Request) -> Response:
        """Take the token from the form that asks for it, and set the cookie."""
        if not _is_same_origin(request):
            raise HTTPException(403, "Only the board's own form takes the token")
        form = await read_form(request, _MOST_FORM)
        if not self._is_token(form.get("token", [""])[0]):
            raise _unauthorized()
        answer = RedirectResponse("./", 303)  # relative, for a proxy with a path before
        answer.set_cookie(_COOKIE, self._cookie, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer

    async def _slow_down(self) -> None:
        now = time.monotonic()
        self._wrong = self._wrong + 1 if now < self._wrong_at + _FORGOTTEN else 0
        self._wrong_at = now
        await asyncio.sleep(min(_DELAY * self._wrong, _MOST_DELAY))

    def _is_token(self, given: str) -> bool:
        return self._token is not None and _are_same(given, self._token)


def root_of(request: Request) -> str:
    """Return how an address begins that leads from a page to another one of the board, wherever that is mounted."""
    return "../" * max(_path_of(request).count("/") - 1, 0)


def _path_of(request: Request) -> str:
    return request.url.path.removeprefix(request.scope.get("root_path", ""))


async def read_form(request: Request, most: int) -> Mapping[str, Sequence[str]]:
    """Return the fields of a form of at most so many bytes; raises HTTPException."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise HTTPException(415, f"Expected a form: {_FORM}")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413, f"Expected a form of up to {most} bytes")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError as exc:
        raise HTTPException(400, "Expected a form in UTF-8") from exc


def _unauthorized() -> HTTPException:
    return HTTPException(
        _UNAUTHORIZED,
        "The board wants its token: open it in a browser, or send 'Authorization: Bearer …'",
        {"www-authenticate": "Bearer"},
    )


def _refusal(why: HTTPException, request: Request) -> Response:
    """Return a refusal as an answer; a browser without the token is given the form for it."""
    if why.status_code == _UNAUTHORIZED and "text/html" in request.headers.get("accept", ""):
        headers = {**(why.headers or {}), **_ENTRANCE_HEADERS}
        return HTMLResponse(_ENTRANCE.replace("{action}", root_of(request) + "token"), _UNAUTHORIZED, headers)
    return PlainTextResponse(f"{why.detail}.\n", why.status_code, why.headers)


def _are_same(given: str, known: str) -> bool:
    """Compare digests: they are of one length whatever was given."""
    return hmac.compare_digest(digest(given, 32), digest(known, 32))


def _may_be_loopback(request: Request) -> bool:
    """Whether this machine alone may be what reaches the server's address. Where it isn't known, it may."""
    host = (request.scope.get("server") or ("",))[0]
    try:
        return is_loopback(host) or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return True


def _offers_token(request: Request) -> bool:
    """Whether a request that was refused tried a token or a cookie."""
    return request.method == "POST" or "authorization" in request.headers or _COOKIE in request.cookies


def _header(request: Request, name: str) -> str:
    """Return what a header says, for people; it comes from outside."""
    return repr(words.plain(request.headers.get(name, "")))


def _name_of(user: Any) -> str:
    """Return the name of a user of Django's, of Starlette's, or of another's."""
    name = user.get_username() if hasattr(user, "get_username") else getattr(user, "display_name", None) or user
    return words.plain(name).strip() or "a user without a name"


def _may_read(request: Request) -> bool:
    """Whether no other site's page, or one of another port, made a browser ask; or a person followed a link there.

    Then it is no script's fetch, and no frame.
    """
    headers = request.headers
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return True
    return (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")


def _is_same_origin(request: Request) -> bool:
    """Whether a browser says that a page of this board made it ask. Some say so only over TLS, or on this machine."""
    headers = request.headers
    if "sec-fetch-site" in headers:
        return headers["sec-fetch-site"] == "same-origin"
    origin, host = headers.get("origin", "").lower(), headers.get("host", "").lower()
    return host != "" and origin in (f"http://{host}", f"https://{host}")
