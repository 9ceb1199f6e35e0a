"""How MLflow's pages open: what the server writes into the first one, and which address `make mlflow` prints."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flows.deployment.mlflow_server import FIRST_VISIT, address_of_runs, with_first_visit
from tests.conftest import ROOT


def sent(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """What reaches the browser."""
    arrived: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        arrived.append(message)

    async def through() -> None:
        rewritten = with_first_visit(send)
        for message in messages:
            await rewritten(message)

    asyncio.run(through())
    return arrived


def test_the_page_gets_the_settings_of_a_first_visit() -> None:
    headers = [(b"Content-Length", b"26"), (b"content-type", b"text/html")]
    start, body, end = sent(
        {"type": "http.response.start", "status": 200, "headers": headers},
        {"type": "http.response.body", "body": b"<html><head></head></html>", "more_body": True},
        {"type": "http.response.body", "body": b""},
    )
    assert start["headers"] == [(b"content-type", b"text/html")], "it is longer than MLflow says"
    assert body["body"].startswith(b"<html><head><script>")
    assert all(key.encode() in body["body"] for key in FIRST_VISIT)
    assert b"localStorage.getItem(key) === null" in body["body"], "what a person chose stays"
    assert (body["more_body"], end["body"]) == (True, b"")


def test_the_installed_mlflow_knows_these_settings() -> None:
    """Another version may name them otherwise."""
    spec = find_spec("mlflow")
    assert spec is not None
    assert spec.origin is not None
    scripts = Path(spec.origin).parent / "server/js/build/static/js"
    [main] = scripts.glob("main.*.js")
    text = main.read_text()
    for key in FIRST_VISIT:
        name, _, version = key.rpartition("_v")
        assert f'"{name}"' in text, f"MLflow's pages no longer have {key}"
        assert version == "1"


@pytest.fixture
def server() -> Iterator[str]:
    """Answers as MLflow does for the experiment email_search, which has the id 7, to whoever has the key."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/api/2.0/mlflow/experiments/get-by-name?experiment_name=email_search"
            signed_in = self.headers["authorization"] == f"Basic {b64encode(b'flywheel:key').decode()}"
            self.send_response(401 if not signed_in else 200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"experiment": {"experiment_id": "7"}}).encode())

        def log_message(self, format: str, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


def test_the_address_leads_to_the_runs_of_the_current_task(tmp_path: Path, server: str) -> None:
    assert address_of_runs(tmp_path, server, "flywheel", "key") == server, "no params.yaml"
    shutil.copy(ROOT / "params.yaml", tmp_path)
    (tmp_path / "tasks_data").symlink_to(ROOT / "tasks_data")
    assert address_of_runs(tmp_path, server, "flywheel", "key") == f"{server}/#/experiments/7/runs"
    assert address_of_runs(tmp_path, server, "flywheel", "wrong") == server
    text = (tmp_path / "params.yaml").read_text().replace("task: email_search", "task: multiplication")
    (tmp_path / "params.yaml").write_text(text)
    assert address_of_runs(tmp_path, server, "flywheel", "key") == server, "nothing of this task is logged yet"
