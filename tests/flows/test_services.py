"""The processes that `make ui` starts: whose they are, what they get of the environment, and that they end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from flows import ui
from flows.deployment import services
from flows.deployment.services import Services, plain
from flows.terminal.command import without_proxy
from steps.core.errors import UserError
from steps.core.keys import key
from steps.core.terminal import served
from steps.kit.process import alive
from steps.runner import handover
from tests.conftest import ROOT, free_port

# A service with a process of its own, as Prefect's server has one. It writes both ids when it is ready. Both sleep for
# moments, because a signal that comes just before signal.pause() or a long sleep would be handled after it.
SERVICE = """
import os, pathlib, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time\\nwhile True: time.sleep(0.05)"])
signal.signal(signal.SIGINT, lambda *_: sys.exit(child.wait()))
pathlib.Path("written").write_text("secret")
pathlib.Path("pids.new").write_text(f"{os.getpid()} {child.pid}")
os.rename("pids.new", "pids")
while True:
    time.sleep(0.05)
"""
STARTER = """
import os, pathlib, time
from flows.deployment.services import Services
with Services(pathlib.Path("state"), dict(os.environ)) as services:
    services.start("service", "service")
    while True:
        time.sleep(0.05)
"""


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until a function answers with True."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_services_end_with_the_process_that_started_them(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    variables = os.environ | {"PYTHONPATH": os.fspath(ROOT)}
    starter = subprocess.Popen([sys.executable, "-c", STARTER], cwd=tmp_path, env=variables, stderr=subprocess.DEVNULL)
    try:
        until((tmp_path / "pids").exists)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(map(alive, pids))
        starter.send_signal(number)
        starter.wait(20)
        until(lambda: not any(map(alive, pids)))
    finally:
        starter.kill()
        starter.wait()
        for pid in [int(pid) for pid in (tmp_path / "pids").read_text().split()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("written", "state", "state/service.log")}
    assert modes == {"written": 0o600, "state": 0o700, "state/service.log": 0o600}


def test_a_folder_that_others_could_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o777)
    (tmp_path / "state").chmod(0o777)
    Services(tmp_path / "state", {})
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


LATE = """
import http.server, sys, time
print("loading weights", flush=True)
time.sleep(float(sys.argv[2]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_waited_for_as_long_as_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what it does meanwhile. A proxy is not asked for what is on this machine."""
    (tmp_path / "late.py").write_text(LATE)
    port, environment = free_port(), {**os.environ, "PYTHONPATH": str(tmp_path)}
    monkeypatch.setattr(services, "SHOWN", 0.2)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Services(tmp_path / "state", environment) as started:
        started.start("late", "late", str(port), "1.5")
        started.wait("late", f"http://127.0.0.1:{port}/health")
        assert re.search(r"late is starting, \d s: loading weights\n", capsys.readouterr().out)
        started.start("gone", "no_such_module")
        with pytest.raises(UserError, match=r"gone ended \(exit code 1\) before it answered: see .*gone.log"):
            started.wait("gone", f"http://127.0.0.1:{free_port()}/health")
        monkeypatch.setattr(services, "PATIENCE", 0.0)
        with pytest.raises(UserError, match="late does not answer after 0 s"):
            started.wait("late", f"http://127.0.0.1:{free_port()}/health")


class Recorder(Services):
    """Notes the variables of what would be started, and starts nothing."""

    def start(self, name: str, *words: str, environment: Mapping[str, str] | None = None) -> None:
        self.variables: dict[str, Any] = dict(environment or self.environment)


SECRETS = {
    "OPENAI_API_KEY": "sk-1",
    "HF_TOKEN": "hf-1",
    "AWS_SECRET_ACCESS_KEY": "aws-1",
    "FLYWHEEL_NOTIFY_URL": "https://hooks.example/1",
    "FLYWHEEL_LEDGER_URL": "postgresql://user:password@host/db",
    "MY_OWN": "thing",
}


def test_servers_get_no_secret_that_they_do_not_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SECRETS | {"http_proxy": "http://user:pw@proxy:1"}).items():
        monkeypatch.setenv(name, value)
    variables = ui.environment(tmp_path, 4200, 5000)
    prefects, mlflows = variables["PREFECT_API_AUTH_STRING"], variables["MLFLOW_TRACKING_PASSWORD"]
    assert variables.items() >= SECRETS.items(), "runs need them"
    services = Recorder(tmp_path / ".flywheel", variables)
    ui.start_mlflow(services, 5000)
    for value in (*SECRETS.values(), prefects, mlflows, "user:pw"):
        assert value not in json.dumps(services.variables)
        assert value not in json.dumps(plain(variables))
    ui.start_prefect(services, 4200)
    assert services.variables["PREFECT_SERVER_API_AUTH_STRING"] == prefects
    for value in (*SECRETS.values(), mlflows):
        assert value not in json.dumps(services.variables)
    assert {"PATH", "HOME"} <= plain(variables).keys()


def test_keys_and_the_shells_variables_are_the_owners_alone(tmp_path: Path) -> None:
    variables = ui.environment(tmp_path, 4200, 5000)
    path = tmp_path / ".flywheel/ui.env"
    path.touch(mode=0o666)
    ui.write_variables(path, variables, [name for names in ui.SHELL.values() for name in names])
    shown = subprocess.run(
        ["sh", "-c", f". {path}; echo $MLFLOW_TRACKING_USERNAME:$MLFLOW_TRACKING_PASSWORD $PREFECT_API_AUTH_STRING"],
        capture_output=True,
        text=True,
    ).stdout.split()
    assert shown == [
        f"flywheel:{key(tmp_path / '.flywheel/mlflow.key')}",
        key(tmp_path / ".flywheel/prefect.key"),
    ]
    for file in (path, path.with_name("mlflow.key"), path.with_name("prefect.key")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        ("", "", "127.0.0.1,localhost"),
        ("corp.example", "", "corp.example,127.0.0.1,localhost"),
        ("", "corp.example,localhost", "corp.example,localhost,127.0.0.1"),
        ("a", "b", "a,b,127.0.0.1,localhost"),
        ("*", "", "*"),
    ],
)
def test_no_proxy_sees_what_is_sent_to_this_machine(
    monkeypatch: pytest.MonkeyPatch, lower: str, upper: str, expected: str
) -> None:
    monkeypatch.setenv("no_proxy", lower)
    monkeypatch.setenv("NO_PROXY", upper)
    without_proxy()
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == expected


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"port {port} on 127.0.0.1 is in use.*--mlflow-port {port + 1}.*MLFLOW_PORT={port + 1}"
        ):
            ui.check_ports({"mlflow": port})


def test_ctrl_c_is_how_a_server_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    def failing() -> None:
        raise UserError("no")

    assert (served(interrupted), served(lambda: None), served(failing)) == (0, 0, 2)
    assert capsys.readouterr().err == "error: no\n"


def test_a_worker_keeps_out_of_another_user_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's workers of all users keep their files in <temporary folder>/runner_storage."""
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    monkeypatch.setattr(ui.handover, "socket_folder", lambda: tmp_path / "own")
    assert ui.own_temporary_folder() == {}
    (tmp_path / "runner_storage").mkdir()
    assert ui.own_temporary_folder() == {}, "it is ours"
    another = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: another)
    assert ui.own_temporary_folder() == {"TMPDIR": os.fspath(tmp_path / "own")}


def test_the_folder_of_sockets_may_be_the_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/tmp")
    folder = handover.socket_folder()
    assert folder.parent == Path("/tmp")
    monkeypatch.setenv("TMPDIR", os.fspath(folder))
    assert handover.socket_folder() == folder


def test_who_watches_a_run_sees_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect streams logs only where its server is told to."""
    from prefect.settings.models.server.logs import ServerLogsSettings

    for name, value in ui.environment(tmp_path, 4200, 5000).items():
        if name.startswith("PREFECT_SERVER_LOGS_"):
            monkeypatch.setenv(name, value)
    settings = ServerLogsSettings()
    assert settings.stream_out_enabled
    assert settings.stream_publishing_enabled
