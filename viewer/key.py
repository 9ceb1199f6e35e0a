"""Who may see the pages: whoever has the key that the command prints with their address.

The first page that is opened with `?key=…`, or the form that other pages show, sets a cookie; commands send
`Authorization: Bearer`. Other users of this machine, who reach the port as well, see nothing; and neither a name that points
here (DNS rebinding) nor a page of another site is answered (steps/kit/guard.py).
"""

from __future__ import annotations

import secrets
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from steps.core.keys import key
from steps.kit.guard import Call, Middleware, bearer, caller_fault, read, same

if TYPE_CHECKING:
    from starlette.types import ASGIApp

FILE = Path(".flywheel/viewer.key")
HOSTS = ("127.0.0.1", "localhost")
COOKIE = "flywheel-viewer"
LONGEST = 4096  # bytes of the form
FORM = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Sign in</title>
<link rel="stylesheet" href="/static/view.css"><main><h1>Sign in</h1>
<p>These pages ask for their key: the line in {file}, which the command has printed with their address.</p>
<form method="post" action="/sign-in"><input name="key" type="password" autocomplete="current-password" autofocus>
<button>Open</button></form></main></html>
"""


def key_of(root: Path) -> str:
    """The project's key, which is made once; one for this start alone where the folder cannot be written."""
    try:
        return key(root / FILE, user="")
    except OSError:
        return secrets.token_urlsafe(24)


class SignedIn(Middleware):
    """Lets in whoever has the key. /health and the style sheets are for everybody."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        super().__init__(app)
        self.key = key

    async def answer(self, call: Call) -> Response | None:
        """What is answered in place of the page, if anything is."""
        if call.scope["type"] != "http":
            return None
        request, path = Request(call.scope, call.receive), call.scope["path"]
        if (status := caller_fault(request.headers, HOSTS)) == 421:
            return PlainTextResponse(f"these pages answer only to the hosts {', '.join(HOSTS)}", status)
        if status:
            return PlainTextResponse("pages of other sites are not answered", status)
        if path == "/health" and request.method in ("GET", "HEAD"):
            return PlainTextResponse("ok")
        if path == "/sign-in":
            return await self.sign_in(request)
        if path.startswith("/static/"):
            return None
        query = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if request.method == "GET" and any(name == "key" and self.is_right(value) for name, value in query):
            rest = urlencode([(name, value) for name, value in query if name != "key"])
            return self.welcome(f"{path}?{rest}" if rest else path)
        return None if self.has_key(request.headers) else refused()

    async def sign_in(self, request: Request) -> Response:
        body, is_whole, _ = await read(request.receive, LONGEST)
        if not is_whole:
            return refused(413)
        given = dict(parse_qsl(body.decode("latin-1"))).get("key", "")
        return self.welcome("/") if request.method == "POST" and self.is_right(given.strip()) else refused()

    def welcome(self, to: str) -> Response:
        """On to the page, with the cookie. `//…` would be another server's."""
        answer = RedirectResponse("/" + to.lstrip("/"), 303)
        answer.set_cookie(COOKIE, self.key, httponly=True, samesite="lax")
        return answer

    def has_key(self, headers: Headers) -> bool:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        return self.is_right(bearer(headers)) or (cookie is not None and self.is_right(cookie.value))

    def is_right(self, given: str) -> bool:
        return same(given, self.key)


def refused(status: int = 401) -> Response:
    return HTMLResponse(FORM.format(file=FILE), status)
