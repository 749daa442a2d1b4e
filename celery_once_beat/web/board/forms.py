"""Pages with forms, for those who may act: a form's token, what was done by one, and the name that was given once."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from typing import Any
from urllib.parse import quote, unquote

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from .guard import FORM_HEADERS, Visitor, root_of

_COOKIE, _NAME = "once_board_csrf", "once_board_by"
_LONGEST_NAME = 180
#: What only this process knows: so nobody else makes a form's token, or a link that says what was done.
_SECRET = secrets.token_bytes(32)


def answer_page(templates: Environment, template: str, request: Request, status: int = 200, **values: Any) -> Response:
    """Render a page. Who may act gets one with forms; a browser that has no cookie for them gets one."""
    page, visitor = templates.get_template(template), Visitor.of(request.scope)
    values |= {"root": root_of(request), "done": _done_of(request)}
    if not visitor.acts:
        return HTMLResponse(page.render(values, acts=False), status)
    cookie = _cookie(request)
    new = "" if cookie else secrets.token_hex(16)
    by = unquote(request.cookies.get(_NAME, ""))[:_LONGEST_NAME]
    text = page.render(values, acts=True, visitor=visitor, csrf=_csrf(new or cookie, visitor), by=by)
    answer = HTMLResponse(text, status, FORM_HEADERS)
    if new:
        _keep(answer, request, _COOKIE, new)
    return answer


def keep_name(answer: Response, request: Request, name: str) -> None:
    """Have the browser give this name in its next forms."""
    _keep(answer, request, _NAME, quote(name[:_LONGEST_NAME]))


def check_form(request: Request, csrf: str) -> None:
    """Raise HTTPException for a form that this board didn't give to this browser and visitor."""
    cookie = _cookie(request)
    if not cookie or not hmac.compare_digest(csrf.encode(), _csrf(cookie, Visitor.of(request.scope)).encode()):
        raise HTTPException(403, "This form isn't of your session with the board: open its page again")


def seal(request: Request, done: str) -> str:
    """Return what only this browser and the board can write below what was done."""
    return _sign("done", _cookie(request) or secrets.token_hex(), request.path_params.get("line", ""), done)


def _done_of(request: Request) -> str:
    """Return what an address says was done; '' for a link from elsewhere, which must not say so."""
    done, given = request.query_params.get("done", ""), request.query_params.get("seal", "")
    return done if hmac.compare_digest(given.encode(), seal(request, done).encode()) else ""


def _keep(answer: Response, request: Request, name: str, value: str) -> None:
    answer.set_cookie(name, value, httponly=True, samesite="strict", secure=request.url.scheme == "https")


def _cookie(request: Request) -> str:
    """Return the cookie of whom forms are for; '' where the browser has none that the board made."""
    found = request.cookies.get(_COOKIE, "")
    return found if re.fullmatch("[0-9a-f]{32}", found) else ""


def _csrf(cookie: str, visitor: Visitor) -> str:
    return _sign("form", cookie, visitor.name)


def _sign(*words: str) -> str:
    return hmac.new(_SECRET, json.dumps(words).encode(), hashlib.sha256).hexdigest()
