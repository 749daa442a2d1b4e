"""Who may ask, and what every answer says to a browser. Stands before everything else.

- Only GET and HEAD.
- Without a token the board listens to this machine alone, and answers only where the Host header says so: a page of
  another site whose name points here (DNS rebinding) gets nothing.
- Pages of other sites, of other ports too, may link to it and no more: no fetch, no event stream, no image.
- With a token: as ``Authorization: Bearer``, or once as ``?token=``, which sets a cookie and leads to the same address
  without it. The cookie is made from the token, and isn't it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_once_beat.web.loopback import names_this_machine

_COOKIE = "once_board"

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


class Guard:
    """Passes allowed requests on to ``app``. ``token`` None: none is needed, and only this machine may ask."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token and _digest(token)
        self._cookie = token and hmac.new(token.encode(), b"cookie of the board", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let answer."""
        if scope["type"] != "http":  # lifespan and websocket: neither is served
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = [*message.get("headers", ())]
                named = {name.lower() for name, _ in given}
                given += [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in named]
                message = {**message, "headers": given}
            await send(message)

        answer = self._refusal(Request(scope)) or self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("The board only reads: GET and HEAD.\n", 405, {"allow": "GET, HEAD"})
        headers = request.headers
        if self._token is None and not names_this_machine(headers.get("host")):
            return PlainTextResponse("Without a token the board is for localhost only.\n", 400)
        # A person followed a link: no script's fetch, and no frame.
        link = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
        if _is_foreign(request) and not link:
            return PlainTextResponse("Another site's page may link to the board, and no more.\n", 403)
        return None if self._token is None else self._check_token(request)

    def _check_token(self, request: Request) -> Response | None:
        given = request.query_params.get("token")
        if given is not None and self._is_token(given):
            return self._let_in(request)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(bearer.strip()):
            return None
        if self._is_cookie(request.cookies.get(_COOKIE, "")):
            return None
        return PlainTextResponse(
            "The board wants its token: open it once with ?token=…, or send 'Authorization: Bearer …'.\n",
            401,
            {"www-authenticate": "Bearer"},
        )

    def _let_in(self, request: Request) -> Response:
        """Set the cookie, and lead to the same address without the token; relative, for a proxy with a path before."""
        rest = [(name, value) for name, value in parse_qsl(request.url.query) if name != "token"]
        address = "./" + quote(request.url.path.rpartition("/")[2], safe=":") + (f"?{urlencode(rest)}" if rest else "")
        if _is_foreign(request):
            # A browser doesn't send the cookie along a redirect that another site began. It does after this refresh.
            answer: Response = PlainTextResponse("", headers={"refresh": f"0; url={address}"})
        else:
            answer = RedirectResponse(address, 303)
        assert self._cookie
        answer.set_cookie(_COOKIE, self._cookie, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer

    def _is_token(self, given: str) -> bool:
        # Digests: what is compared is of one length whatever was given.
        assert self._token
        return hmac.compare_digest(_digest(given), self._token)

    def _is_cookie(self, given: str) -> bool:
        assert self._cookie
        return hmac.compare_digest(_digest(given), _digest(self._cookie))


def _is_foreign(request: Request) -> bool:
    """Whether a browser says that another site's page made it ask, or one of another port."""
    return request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
