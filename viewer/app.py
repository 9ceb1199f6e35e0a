"""View: a page on this machine to browse runs' trajectories: lists, groups side by side, before and after, analytics.

    make view                            # or: python -m viewer [--port 8600] [--run run]; `make ui` starts it, too

It shows the run of a folder and the runs that viewer/runs.py finds: deployed runs that are at work, stopped or kept. It
writes nothing except links to the files of kept runs. Changes on disk show at the next click. Every view has its own
address, so that its link can be sent. The server answers only 127.0.0.1, to whoever has its key (viewer/key.py); pages load
nothing from elsewhere, and the agent's text is never treated as HTML. Metrics over time are in MLflow, and the state of
flows is in Prefect.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from steps.core.errors import UserError, explain
from steps.core.terminal import command_parser, served
from steps.kit.guard import LIMITED
from steps.kit.sockets import listen
from viewer.key import SignedIn, key_of
from viewer.pages import TEMPLATES, Pages
from viewer.runs import Runs, project

# Scripts and styles come only from files of this server, so that injected HTML could neither run nor send data.
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


async def guarded(request: Request, answer: RequestResponseEndpoint) -> Response:
    """The answer of the application with HEADERS."""
    response = await answer(request)
    response.headers.update(HEADERS)
    return response


def application(run: Path, key: str) -> Starlette:
    """The pages of this run, which may not exist yet, and of the other runs of its project, for whoever has the key."""
    pages = Pages(Runs(run))

    def problem(request: Request, error: Exception) -> Response:
        text, code = (error.detail, error.status_code) if isinstance(error, HTTPException) else (str(error), 400)
        if isinstance(error, OSError) and not isinstance(error, UserError):  # such as a .flywheel/ that is read-only
            text, code = explain(error)[0].strip().splitlines()[-1], 503
        return pages.html("problem.html", request, None, code, problem=text)

    return Starlette(
        routes=[
            Route("/", pages.page(pages.list)),
            Route("/group", pages.page(pages.group)),
            Route("/compare", pages.page(pages.compare)),
            Route("/analytics", pages.page(pages.analytics)),
            *(Route(page.PATH, partial(pages.of_addon, page)) for page in pages.brought),
            Mount("/static", StaticFiles(directory=TEMPLATES / "static")),
        ],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=guarded), Middleware(SignedIn, key=key)],
        exception_handlers={UserError: problem, HTTPException: problem, OSError: problem},
    )


def serve(run: Path, port: int) -> None:
    """Serve until Ctrl-C. UserError if the port is in use."""
    import uvicorn

    try:
        listening = listen("127.0.0.1", port)
    except (OSError, OverflowError):
        raise UserError(f"port {port} on 127.0.0.1 is in use or not allowed: choose another with --port") from None
    with listening:
        key = key_of(project(run))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        print(f"view: {address}/?key={key} shows {run} (Ctrl-C stops it)", flush=True)
        settings = uvicorn.Config(
            application(run, key),
            log_level="warning",
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            **LIMITED,
        )
        uvicorn.Server(settings).run(sockets=[listening])


def main(words: list[str] | None = None) -> int:
    parser = command_parser("viewer", __doc__)
    parser.add_argument("--port", type=int, default=8600, help="on 127.0.0.1; 0 takes any free port (default: 8600)")
    parser.add_argument("--run", type=Path, default=Path("run"), help="a run's folder (default: run)")
    options = parser.parse_args(words)
    return served(lambda: serve(options.run, options.port))
