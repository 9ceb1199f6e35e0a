"""`make ui` for real: MLflow, Prefect with its key, a worker; a deployed run in a worktree of its own, made again later."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.workspace import git
from tests.conftest import copy_project, end, free_port, python, run, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SMALL = {"scenarios.train": 16, "scenarios.val": 12, "scenarios.test": 15}


class Ui:
    """The services over a copy of the project."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.prefect, self.mlflow = folder, free_port(), free_port()
        ports = ("--prefect-port", str(self.prefect), "--mlflow-port", str(self.mlflow))
        self.log = folder / "ui.log"
        self.process: subprocess.Popen[str] = start(python("flows.ui", *ports), folder, log=self.log)
        until = time.monotonic() + 240
        while "Ctrl-C stops" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > until:
                raise AssertionError(self.log.read_text())
            time.sleep(0.3)

    @property
    def key(self) -> str:
        return (self.folder / ".flywheel/prefect.key").read_text().strip()

    def ask(self, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> Any:
        known = {"content-type": "application/json"}
        if key != "":
            known["Authorization"] = f"Basic {b64encode((key or self.key).encode()).decode()}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.prefect}/api/{path}", data, known)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def train(self, name: str) -> str:
        """Start a small run from the deployment, as its form would; the flow run's id."""
        [deployment] = [one for one in self.ask("deployments/filter", {}) if one["name"] == "train"]
        settings = {"task": "email_search", "name": name, "iterations": 1, "scenarios": 4, "attempts": 4, "more": SMALL}
        made = self.ask(f"deployments/{deployment['id']}/create_flow_run", {"parameters": {"settings": settings}})
        return str(made["id"])

    def finished(self, flow_run: str, seconds: float = 420) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found: dict[str, Any] = self.ask(f"flow_runs/{flow_run}")
            if found["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
                return found
            time.sleep(1)
        raise AssertionError(f"not finished: {found['state']}")


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    made = Ui(copy_project(tmp_path_factory.mktemp("ui")))
    try:
        yield made
    finally:
        end(made.process)


def test_a_deployed_run_has_a_worktree_of_its_own_and_is_kept_under_a_ref(ui: Ui) -> None:
    before = git(ui.folder, "status", "--porcelain"), git(ui.folder, "rev-parse", "HEAD")
    found = ui.finished(ui.train("nightly"))
    assert found["state_type"] == "COMPLETED", found["state"]
    assert (git(ui.folder, "status", "--porcelain"), git(ui.folder, "rev-parse", "HEAD")) == before
    assert list((ui.folder / ".flywheel/worktrees").iterdir()) == []
    assert git(ui.folder, "for-each-ref", "--format=%(refname)").split()[-1] == "refs/runs/nightly"
    kept = git(ui.folder, "show", "--format=", "--name-only", "refs/runs/nightly").split()
    assert set(kept) <= {"params.yaml", "chain.yaml", "dvc.lock"}
    assert "iterations: 1" in git(ui.folder, "show", "refs/runs/nightly:params.yaml")
    shown = {one["key"]: one for one in ui.ask("artifacts/filter", {}) if one["key"]}
    assert {"iterations", "progress", "trajectories", "learning-curve", "mlflow"} <= set(shown)
    assert len(json.loads(shown["iterations"]["data"])) == 2


def test_the_form_has_ranges_and_help(ui: Ui) -> None:
    [deployment] = [one for one in ui.ask("deployments/filter", {}) if one["name"] == "train"]
    form = deployment["parameter_openapi_schema"]["definitions"]["TrainSettings"]["properties"]
    assert form["iterations"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 999}
    assert "email_search" in form["task"]["examples"]
    assert all(one.get("description") for one in form.values())


def test_prefect_asks_for_its_key_and_other_pages_are_not_let_in(ui: Ui) -> None:
    for key in ("", "flywheel:wrong"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ui.ask("deployments/filter", {}, key)
    assert oct((ui.folder / ".flywheel/prefect.key").stat().st_mode & 0o777) == "0o600"
    request = urllib.request.Request(
        f"http://127.0.0.1:{ui.prefect}/api/health", headers={"Origin": "http://evil.example"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers.get("access-control-allow-origin") in (None, f"http://127.0.0.1:{ui.prefect}")


def test_the_run_is_made_again_to_the_same_bytes(ui: Ui) -> None:
    done = run(python("flows.reproduce", "nightly", "--json"), ui.folder, seconds=600)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rows) > 10
    assert all(row["same"] for row in rows), [row for row in rows if not row["same"]]
    assert not list((ui.folder / ".flywheel/worktrees").iterdir())


def test_one_stop_ends_all_of_it(ui: Ui) -> None:
    ui.process.send_signal(signal.SIGTERM)
    assert ui.process.wait(60) == 130
    for port in (ui.prefect, ui.mlflow):
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
