"""MLflow's server over the project's own store: pages and API for those who have the key, without MLflow's assistant.

    python -m flows.deployment.mlflow_server --port 5000     # `make mlflow` and `make ui` start it

By itself MLflow asks nobody for a key, and its assistant runs commands on this machine for whoever can reach the port. Here
each request must bring the key of .flywheel/mlflow.key, as the password of HTTP's basic authentication with any user name,
and the assistant's routes are refused to everybody. MLflow's own basic-auth needs a further package and keeps the assistant.
Artifacts are not uploaded through the server: runs on this machine write them to .flywheel/mlartifacts.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import os
import re
import secrets
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from flows.deployment.keys import key
from flows.deployment.services import MASK, private
from steps.core.terminal import served
from steps.project import store

KEY = Path(".flywheel/mlflow.key")
USER = "flywheel"  # what a client may give as the user name, which must not be empty
ASSISTANT = re.compile(r"/mlflow/assistant(/|$)")
ASK = f"MLflow asks for a key. User name: {USER}; password: the text in {KEY}."
ASK += " For commands, `. .flywheel/ui.env` sets both (after `make mlflow`: `. .flywheel/mlflow.env`)."
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """An ASGI application around another one, which gets only the requests that bring the key and may be answered."""

    def __init__(self, application: Application, password: str) -> None:
        self.application, self.password = application, password.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # the server is started without websockets
        refusal = self.refusal(scope)
        if refusal is None:
            await self.application(scope, receive, send)
            return
        code, text = refusal
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        if code == 401:
            headers.append((b"www-authenticate", f'Basic realm="MLflow, user {USER}, password in {KEY}"'.encode()))
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": f"{text}\n".encode()})

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the sentence with which a request is refused, if it is."""
        if scope["path"] == "/health":  # says no more than that the server runs
            return None
        headers = {name.lower(): value for name, value in scope["headers"]}
        if not self.opened_by(headers.get(b"authorization", b"")):
            return 401, ASK
        origin = headers.get(b"origin")  # a browser sends it with what another page asks for
        if origin is not None and origin.partition(b"://")[2] != headers.get(b"host"):
            return 403, "Pages of other sites are not answered."
        if ASSISTANT.search(scope["path"]):
            return 403, "MLflow's assistant is switched off here, because it runs commands on this machine."
        return None

    def opened_by(self, authorization: bytes) -> bool:
        """Whether this header holds the key."""
        scheme, _, encoded = authorization.partition(b" ")
        try:
            _, _, password = base64.b64decode(encoded, validate=True).partition(b":")
        except binascii.Error:
            return False
        return scheme.lower() == b"basic" and secrets.compare_digest(password, self.password)


def settings(state: Path) -> dict[str, str]:
    """MLflow's settings, as its own command passes them to the server."""
    return {
        "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{state}/mlflow.db",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": (state / "mlartifacts").as_uri(),
        "_MLFLOW_IN_JOB_EXECUTOR": "false",
        "_MLFLOW_SGI_NAME": "uvicorn",
        "MLFLOW_SERVER_ALLOWED_HOSTS": "127.0.0.1:*,localhost:*",  # its default allows each name that begins with 10.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def serve(root: Path, port: int) -> None:
    """Serve until Ctrl-C."""
    os.umask(MASK)
    state = private(root / ".flywheel")
    private(state / "mlartifacts")
    if not (state / "mlflow.db").exists():
        store.make_store(state / "mlflow.db")
    os.environ.update(settings(state))  # MLflow reads some of them when it is imported
    import uvicorn
    from mlflow.server import handlers
    from mlflow.server.fastapi_app import app

    uri = os.environ["_MLFLOW_SERVER_FILE_STORE"]
    handlers.initialize_backend_stores(uri, uri, os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"])
    guarded = Guard(app, key(root / KEY, user=""))
    options: dict[str, Any] = {"lifespan": "off", "ws": "none", "proxy_headers": False, "server_header": False}
    uvicorn.run(guarded, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=5, **options)


def main(words: list[str] | None = None) -> int:
    about = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m flows.deployment.mlflow_server", description=about)
    parser.add_argument("--port", type=int, default=5000, help="on 127.0.0.1 (default: 5000)")
    options = parser.parse_args(words)
    return served(lambda: serve(Path.cwd(), options.port))


if __name__ == "__main__":
    sys.exit(main())
