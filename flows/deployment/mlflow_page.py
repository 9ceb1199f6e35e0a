"""How MLflow's pages open: on the runs of the current task, and without the panel of an assistant that is switched off here.

MLflow 3.17 has no setting for either. What a page keeps in the browser (localStorage) decides, so the server writes what is
not there yet into the page that it sends; what a person chooses there later stays. An experiment's runs come before its
traces by the tag of steps/project/store.py.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from environments.kit import http_client
from steps.core.errors import UserError

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
