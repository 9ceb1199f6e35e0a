"""Who reaches MLflow's server, and what of it: the guard by itself, and around the real server."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import time
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from flows.deployment.mlflow_server import Guard
from steps.core.errors import UserError
from steps.project import store
from tests.conftest import ROOT, MlflowServer, end, free_port, python, start

ASSISTANT = "/ajax-api/3.0/mlflow/assistant"


def basic(password: str, user: str = "flywheel") -> str:
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


def asked(path: str, **headers: str) -> int:
    """The status with which a guard with the key "right" answers; behind it, all is 200."""
    sent: list[Any] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        raise AssertionError("the guard reads no body")

    async def send(message: Any) -> None:
        sent.append(message)

    named = [(name.encode(), value.encode()) for name, value in ({"host": "127.0.0.1:5000"} | headers).items()]
    scope = {"type": "http", "method": "GET", "path": path, "headers": named}
    asyncio.run(Guard(behind, "right")(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Basic",
        "Basic right",
        "Basic !!",
        "Bearer right",
        basic("wrong"),
        basic(""),
        basic("right "),
        basic("rightright"),
    ],
)
@pytest.mark.parametrize(
    "path", ["/", "/api/2.0/mlflow/experiments/search", "/health/", "//health", f"{ASSISTANT}/config"]
)
def test_nothing_is_answered_without_the_key(path: str, authorization: str) -> None:
    assert asked(path, authorization=authorization) == 401


def test_the_key_opens_all_but_the_assistant() -> None:
    assert asked("/", authorization=basic("right")) == 200
    assert asked("/", authorization=basic("right", user="anybody")) == 200
    assert asked("/api/2.0/mlflow/runs/search", authorization=basic("right")) == 200
    assert asked("/health") == 200
    for path in (ASSISTANT, f"{ASSISTANT}/config", f"{ASSISTANT}/message", f"/prefix{ASSISTANT}/sessions/1/stream"):
        assert asked(path, authorization=basic("right")) == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://127.0.0.1:5000", 200), ("http://127.0.0.1:8600", 403), ("http://evil.example", 403), ("null", 403)],
)
def test_only_its_own_pages_are_answered(origin: str, status: int) -> None:
    assert asked("/", authorization=basic("right"), origin=origin) == status


# --- The real server


def ask(server: MlflowServer, path: str, method: str = "GET", body: object = None, **headers: str) -> int:
    data = None if body is None else json.dumps(body).encode()
    headers = {
        "Content-Type": "application/json",
        "Authorization": basic(server.variables["MLFLOW_TRACKING_PASSWORD"]),
    } | headers
    request = urllib.request.Request(f"{server.url}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as problem:
        problem.close()
        return problem.code


@pytest.mark.slow
def test_the_real_server_runs_no_commands_and_answers_no_other_name(mlflow_server: MlflowServer) -> None:
    body = {"providers": {"claude_code": {"model": "own", "selected": True, "permissions": {"full_access": True}}}}
    search = "/api/2.0/mlflow/experiments/search?max_results=5"
    for key, status in (
        ("", 401),
        (basic("wrong"), 401),
        (basic(mlflow_server.variables["MLFLOW_TRACKING_PASSWORD"]), 403),
    ):
        assert ask(mlflow_server, f"{ASSISTANT}/config", "PUT", body, Authorization=key) == status
        assert ask(mlflow_server, f"{ASSISTANT}/message", "POST", {"message": "run id"}, Authorization=key) == status
    assert not (mlflow_server.artifacts.parent.parent / ".mlflow").exists(), "the assistant's settings were written"
    assert ask(mlflow_server, search) == ask(mlflow_server, "/") == 200
    for host in ("10.evil.example", "192.168.evil.example", "evil.example:5000", "127.0.0.1.evil.example"):
        assert ask(mlflow_server, search, Host=host) == 403
    assert ask(mlflow_server, search, Host="localhost:5000") == 200
    upload = "/api/2.0/mlflow-artifacts/artifacts/1/x"
    assert ask(mlflow_server, upload, "PUT", "text") >= 400, "artifacts are not uploaded through the server"


@pytest.mark.slow
def test_clients_need_the_key_and_what_is_written_is_the_owners(
    mlflow_server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.url)
    with pytest.raises(UserError, match=r"401.*password: the text in .flywheel/mlflow.key"):
        store.experiment(store.connect(tmp_path), tmp_path, "guarded")
    for name, value in mlflow_server.variables.items():
        monkeypatch.setenv(name, value)
    client = store.connect(tmp_path)
    run = client.create_run(store.experiment(client, tmp_path, "guarded")).info.run_id
    client.log_text(run, "an artifact", "note.txt")
    [note] = mlflow_server.artifacts.rglob("note.txt")
    assert note.read_text() == "an artifact"
    state = mlflow_server.artifacts.parent
    for folder in (state, mlflow_server.artifacts):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.nightly  # tests/flows/test_ui.py starts and stops it with the others
@pytest.mark.slow
def test_make_mlflow_starts_it_alone_and_ends_well_by_ctrl_c(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start(
        python("flows.ui", "--only", "mlflow", "--mlflow-port", str(free_port())), tmp_path, log, PYTHONPATH=str(ROOT)
    )
    try:
        until = time.monotonic() + 120
        while "Ctrl-C stops" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()
    finally:
        end(process)
    assert "user name: flywheel, password: the text in .flywheel/mlflow.key" in log.read_text()
    names = [
        line.split("=")[0].removeprefix("export ")
        for line in (tmp_path / ".flywheel/mlflow.env").read_text().splitlines()
    ]
    assert {"MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"} <= set(names)
    assert not [name for name in names if name.startswith("PREFECT_")]
