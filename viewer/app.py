"""View: a page on this machine to browse runs' trajectories: lists, groups side by side, before and after, analytics.

    make view                            # or: python -m viewer [--port 8600] [--run run]; `make ui` starts it, too

It shows the folder's run, and those of viewer/runs.py: deployed ones at work, stopped or kept. It writes nothing but
links to the files of the kept ones; what changes on disk shows at the next click. Every view has an address of its own, so
that a link can be sent. It answers 127.0.0.1 alone, loads nothing from elsewhere, and what an agent said is text,
never HTML. Not here: the run's metrics over time with all their tags (MLflow), and the state of a flow (Prefect).
"""

from __future__ import annotations

import argparse
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.terminal import exit_code

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Scripts and styles from here alone, none inside a page: a text taken for HTML could neither run nor call home.
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


class Guarded:
    """The application with HEADERS on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        await self.app(scope, receive, headed)


def application(run: Path) -> Starlette:
    """The pages of this run, which may not be there yet, and of the other runs of its project."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    from viewer.pages import PAGES, View
    from viewer.runs import Runs

    view = View(Runs(run))

    def problem(request: Request, error: Exception) -> Response:
        said = error.detail if isinstance(error, HTTPException) else str(error)
        code = error.status_code if isinstance(error, HTTPException) else 400
        return view.html("problem.html", request, None, code, problem=said)

    return Starlette(
        routes=[
            Route("/", view.page(view.list), methods=["GET"]),
            Route("/group", view.page(view.group), methods=["GET"]),
            Route("/compare", view.page(view.compare), methods=["GET"]),
            Route("/analytics", view.page(view.analytics), methods=["GET"]),
            Mount("/static", StaticFiles(directory=PAGES / "static")),
        ],
        # A page elsewhere whose name is made to point at 127.0.0.1 would still send its own name.
        middleware=[
            Middleware(Guarded),
            Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"], www_redirect=False),
        ],
        exception_handlers={UserError: problem, HTTPException: problem},
    )


def serve(run: Path, port: int) -> None:
    """Answer until Ctrl-C. UserError where the port is taken."""
    import uvicorn

    try:
        listening = socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError):
        raise UserError(f"port {port} on 127.0.0.1 is in use or not allowed: choose another with --port") from None
    with listening:
        app = application(run)
        print(f"view: http://127.0.0.1:{listening.getsockname()[1]} shows {run} (Ctrl-C stops it)", flush=True)
        settings = uvicorn.Config(
            app, log_level="warning", lifespan="off", ws="none", proxy_headers=False, server_header=False
        )
        uvicorn.Server(settings).run(sockets=[listening])


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m viewer", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--port", type=int, default=8600, help="on 127.0.0.1; 0: any that is free (default: 8600)")
    parser.add_argument("--run", type=Path, default=Path("run"), help="a run's folder (default: run)")
    options = parser.parse_args(words)
    return exit_code(lambda: serve(options.run, options.port))
