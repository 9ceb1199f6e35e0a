"""MLflow's server over the project's own store: pages and API for those who have the key, without MLflow's assistant.

    python -m flows.deployment.mlflow_server --port 5000                  # `make mlflow` and `make ui` start it
    python -m flows.deployment.mlflow_server --host 10.0.0.5              # for a team's machines

By itself MLflow asks nobody for a key, and its assistant runs commands on this machine for whoever can reach the port. Here
each request must bring the key of .flywheel/mlflow.key, as the password of HTTP's basic authentication with any user name,
or the name and key of a person (flows/deployment/people.py), who may do what flows/deployment/mlflow_writes.py lists. The
assistant's routes are refused to everybody. MLflow's own basic-auth needs a further package and keeps the assistant.

The store is .flywheel/mlflow.db, or the PostgreSQL database of MLFLOW_BACKEND_STORE_URI. Artifacts are not uploaded through
the server: runs on this machine write them to .flywheel/mlartifacts, and with MLFLOW_DEFAULT_ARTIFACT_ROOT=s3://bucket/path
every run writes them there, with keys of its own.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import sys
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from environments.kit import http_client
from flows.deployment import databases, mlflow_writes, people
from flows.deployment.services import MASK
from steps.core.errors import UserError
from steps.core.files import private_folder
from steps.core.keys import key
from steps.core.terminal import command_parser, served
from steps.kit.guard import LIMITED, Call, Middleware, is_foreign, read
from steps.project import store

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Scope

KEY = Path(".flywheel/mlflow.key")
LOOPBACK = "127.0.0.1"
USER = "flywheel"  # what a client may give as the user name, which must not be empty
ASSISTANT = re.compile(r"/mlflow/assistant(/|$)")
ASK = f"MLflow asks for a key. User name: {USER}; password: the text in {KEY}."
ASK += " For commands, `. .flywheel/ui.env` sets both (after `make mlflow`: `. .flywheel/mlflow.env`)."
OWNERS = f"This is for the owner of MLflow's server, who has the key in {KEY}."


class Guard(Middleware):
    """MLflow's application behind it gets only the requests that bring a key and may be answered."""

    def __init__(self, app: ASGIApp, password: str, root: Path | None = None) -> None:
        super().__init__(app)
        self.password, self.root = password.encode(), root

    async def answer(self, call: Call) -> Response | None:
        scope = call.scope
        if scope["type"] != "http":
            return PlainTextResponse("", 403)  # the server is started without websockets
        refusal, person = self.refusal(scope)
        if person and refusal is None and mlflow_writes.is_looked_at(scope["method"], scope["path"]):
            body, _, call.receive = await read(call.receive, mlflow_writes.LONGEST)
            if fault := mlflow_writes.fault(scope["path"], body, person.is_promoter):
                refusal = 403, f"Refused: {fault}"
        if refusal is None:
            if (scope["method"], scope["path"]) == ("GET", "/"):
                call.send = with_first_visit(call.send)
            return None
        code, text = refusal
        asks = {"www-authenticate": f'Basic realm="MLflow, user {USER}, password in {KEY}"'} if code == 401 else None
        return PlainTextResponse(f"{text}\n", code, asks)

    def refusal(self, scope: Scope) -> tuple[tuple[int, str] | None, people.Person | None]:
        """(the status and the sentence with which a request is refused, if it is; whose it is, unless it is the owner's)."""
        if scope["path"] == "/health" and scope["method"] in ("GET", "HEAD"):  # says no more than that the server runs
            return None, None
        headers = Headers(scope=scope)
        user, password = credentials(headers.get("authorization", ""))
        person = None
        if not secrets.compare_digest(password, self.password):
            try:
                person = self.person(user, password)
            except UserError as problem:  # a damaged file opens nothing
                return (503, str(problem)), None
            if person is None:
                return (401, ASK), None
        if is_foreign(headers.getlist("origin"), headers.getlist("host")):
            return (403, "Pages of other sites are not answered."), person
        if ASSISTANT.search(scope["path"]):
            return (403, "MLflow's assistant is switched off here, because it runs commands on this machine."), person
        if person and not mlflow_writes.may(scope["method"], scope["path"], person.is_promoter):
            is_promoters = mlflow_writes.may(scope["method"], scope["path"], is_promoter=True)
            return (403, mlflow_writes.NOT_PROMOTER if is_promoters else OWNERS), person
        return None, person

    def person(self, user: str, password: bytes) -> people.Person | None:
        """The person of this name, if the key is theirs."""
        person = people.read(self.root).get(user) if self.root else None  # read each time: a key may be taken back
        return person if person and people.is_key_of(person, password) else None


def credentials(authorization: str) -> tuple[str, bytes]:
    """(user name, password) of a header of basic authentication; both empty where it is none."""
    scheme, _, encoded = authorization.partition(" ")
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
    except ValueError:  # not base64, or not ASCII
        return "", b""
    return (user.decode(errors="replace"), password) if colon and scheme.lower() == "basic" else ("", b"")


def settings(state: Path, host: str = LOOPBACK) -> dict[str, str]:
    """MLflow's settings, as its own command passes them to the server. UserError where they contradict each other."""
    root = os.environ.get("MLFLOW_DEFAULT_ARTIFACT_ROOT") or (state / "mlartifacts").as_uri()
    if host != LOOPBACK and root.startswith("file:"):
        raise UserError(
            f"runs on other machines than {host} cannot write artifacts to {root}: set MLFLOW_DEFAULT_ARTIFACT_ROOT to a "
            "place that they reach, such as s3://bucket/mlflow (docs/team.md)"
        )
    names = ["127.0.0.1:*", "localhost:*"]  # MLflow's default allows each name that begins with 10.
    names += [f"{host}:*"] * (host != LOOPBACK) + [os.environ.get("MLFLOW_SERVER_ALLOWED_HOSTS", "")]
    return {
        "_MLFLOW_SERVER_FILE_STORE": databases.address("MLflow", os.environ) or f"sqlite:///{state}/mlflow.db",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": root,
        "_MLFLOW_IN_JOB_EXECUTOR": "false",
        "_MLFLOW_SGI_NAME": "uvicorn",
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(filter(None, names)),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def serve(root: Path, port: int, host: str = LOOPBACK) -> None:
    """Serve until Ctrl-C."""
    os.umask(MASK)
    state = private_folder(root / ".flywheel")
    private_folder(state / "mlartifacts")
    os.environ.update(settings(state, host))  # MLflow reads some of them when it is imported
    uri = os.environ["_MLFLOW_SERVER_FILE_STORE"]
    if uri.startswith("sqlite:") and not (state / "mlflow.db").exists():
        store.make_store(state / "mlflow.db")
    elif uri.startswith("sqlite:"):
        store.plan_for_many_runs(state / "mlflow.db")
    people.read(root)  # a damaged file is refused now
    import uvicorn
    from mlflow.server import handlers
    from mlflow.server.fastapi_app import app

    handlers.initialize_backend_stores(uri, uri, os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"])
    guarded = Guard(app, key(root / KEY, user=""), root)
    options: dict[str, Any] = {
        "lifespan": "off",
        "ws": "none",
        "proxy_headers": False,
        "server_header": False,
        **LIMITED,
    }
    uvicorn.run(guarded, host=host, port=port, log_level="warning", timeout_graceful_shutdown=5, **options)


# --- How MLflow's pages open: on the runs of the current task, and without the panel of an assistant that is switched off
# here. MLflow 3.17 has no setting for either. What a page keeps in the browser (localStorage) decides, so the server writes
# what is not there yet into the page that it sends; what a person chooses there later stays. An experiment's runs come
# before its traces by the tag of steps/project/store.py.

Send = Callable[[Any], Awaitable[None]]

FIRST_VISIT = {
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": True,  # it does so once
    "mlflow.workflowType_v1": "machine_learning",  # not "genai", whose first page is a plot of traces
    "mlflow.settings.telemetry.enabled_v1": False,
    "mlflow.telemetry.info.alert.dismissed_v1": True,
}
SCRIPT = (
    f"<script>for (const [key, value] of Object.entries({json.dumps(FIRST_VISIT)})) "
    "if (localStorage.getItem(key) === null) localStorage.setItem(key, JSON.stringify(value))</script>"
)


def with_first_visit(send: Send) -> Send:
    """Sends MLflow's page with FIRST_VISIT in its head."""

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":  # it becomes longer
            kept = [pair for pair in message["headers"] if pair[0].lower() not in (b"content-length", b"etag")]
            message = message | {"headers": kept}
        elif b"<head>" in message.get("body", b""):
            message = message | {"body": message["body"].replace(b"<head>", b"<head>" + SCRIPT.encode(), 1)}
        await send(message)

    return sent


def address_of_runs(root: Path, server: str, user: str, password: str) -> str:
    """The address of the runs of the task in params.yaml, or the server's own while there are none."""
    from steps.core.params import Params, load

    try:
        task = load(root / "params.yaml", Params).task
        wanted = f"{server}/api/2.0/mlflow/experiments/get-by-name?{urllib.parse.urlencode({'experiment_name': task})}"
        answer = http_client.asked("GET", wanted, seconds=10, auth=(user, password))
        if answer.status != 200:  # 404: no such experiment yet
            return server
        return f"{server}/#/experiments/{answer.json()['experiment']['experiment_id']}/runs"
    except (UserError, OSError, ValueError, LookupError, TypeError):
        return server


def main(words: list[str] | None = None) -> int:
    parser = command_parser("flows.deployment.mlflow_server", __doc__)
    parser.add_argument("--port", type=int, default=5000, help="(default: 5000)")
    parser.add_argument(
        "--host", default=LOOPBACK, help=f"the address of this machine to listen at (default: {LOOPBACK})"
    )
    options = parser.parse_args(words)
    return served(lambda: serve(Path.cwd(), options.port, options.host))


if __name__ == "__main__":
    sys.exit(main())
