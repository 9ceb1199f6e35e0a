"""`make ui` over a copy of the project, for tests: starting and asking its deployments as Prefect's own pages do."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.conftest import end, free_port, python, start

SMALL = {"scenarios.train": 16, "scenarios.val": 12, "scenarios.test": 15, "train.way": "grpo"}
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class Ui:
    """The services over a copy of the project."""

    def __init__(self, folder: Path, runs: int = 1, environment: dict[str, str] | None = None) -> None:
        self.folder, self.prefect, self.mlflow, self.view = folder, free_port(), free_port(), free_port()
        ports = ("--prefect-port", str(self.prefect), "--mlflow-port", str(self.mlflow), "--view-port", str(self.view))
        self.log = folder / "ui.log"
        command = python("flows.ui", *ports, "--runs", str(runs))
        self.process: subprocess.Popen[str] = start(command, folder, self.log, **(environment or {}))
        self.until(lambda: "Ctrl-C stops" in self.log.read_text(), 240, self.log.read_text)

    def until(self, true: Callable[[], Any], seconds: float, otherwise: Callable[[], object]) -> Any:
        """What `true` answers, once it does."""
        until = time.monotonic() + seconds
        while not (answer := true()):
            if self.process.poll() is not None or time.monotonic() > until:
                raise AssertionError(otherwise())
            time.sleep(0.3)
        return answer

    @property
    def key(self) -> str:
        return (self.folder / ".flywheel/prefect.key").read_text().strip()

    @property
    def mlflow_key(self) -> str:
        return (self.folder / ".flywheel/mlflow.key").read_text().strip()

    def services(self) -> dict[str, dict[str, str]]:
        """The environment of each service, by the first words of its command."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                parent = process.joinpath("stat").read_text().rpartition(")")[2].split()[1]
                words = process.joinpath("cmdline").read_text().split("\0")
                if parent == str(self.process.pid):
                    variables = process.joinpath("environ").read_text().split("\0")
                    found[" ".join(words[1 : 4 if words[2] == "prefect" else 3])] = dict(
                        entry.split("=", 1) for entry in variables if entry
                    )
        return found

    def ask(self, path: str, body: object = None, key: str | None = None) -> Any:
        headers = {"content-type": "application/json"}
        if key != "":
            headers["Authorization"] = f"Basic {b64encode((key or self.key).encode()).decode()}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.prefect}/api/{path}", data, headers)
        for attempts_left in reversed(range(10)):
            try:
                with urllib.request.urlopen(request, timeout=240) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as problem:
                if problem.code != 503 or not attempts_left:  # SQLite was busy: Prefect's own client asks again, too
                    raise
                time.sleep(0.5)
        raise AssertionError

    def deployment(self, name: str) -> dict[str, Any]:
        [deployment] = [entry for entry in self.ask("deployments/filter", {}) if entry["name"] == name]
        return dict(deployment)

    def start(self, deployment: str, **settings: Any) -> str:
        """A flow run, as the deployment's form starts it; its id."""
        path = f"deployments/{self.deployment(deployment)['id']}/create_flow_run"
        return str(self.ask(path, {"parameters": {"settings": settings}})["id"])

    def train(self, name: str, task: str = "email_search", iterations: int = 1) -> str:
        """A small run."""
        sizes = {"iterations": iterations, "scenarios": 4, "attempts": 4, "more": SMALL}
        return self.start("train", task=task, name=name, **sizes)

    def runs(self, flow: str) -> list[dict[str, Any]]:
        """All flow runs of a flow."""
        return list(
            self.ask("flow_runs/filter", {"flows": {"name": {"any_": [flow]}}, "sort": "EXPECTED_START_TIME_ASC"})
        )

    def finished(self, flow_run: str, seconds: float = 420) -> dict[str, Any]:
        def finished() -> dict[str, Any] | None:
            run: dict[str, Any] = self.ask(f"flow_runs/{flow_run}")
            return run if run["state_type"] in ENDED else None

        return dict(self.until(finished, seconds, lambda: self.ask(f"flow_runs/{flow_run}")["state"]))

    def artifacts(self) -> dict[str, dict[str, Any]]:
        """The latest of each key."""
        artifacts = self.ask("artifacts/filter", {"sort": "CREATED_DESC"})
        return {artifact["key"]: artifact for artifact in reversed(artifacts) if artifact["key"]}

    def end(self) -> None:
        end(self.process)


@contextlib.contextmanager
def webhook() -> Iterator[tuple[str, list[str]]]:
    """An address that takes {"text": ...}, and what it was told so far."""
    texts: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", texts
    finally:
        server.shutdown()
        server.server_close()
