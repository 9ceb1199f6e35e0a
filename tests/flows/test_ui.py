"""`make ui` for real: MLflow, Prefect with its key, a worker; by night two deployed runs at a time, judged, made again."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator

import pytest

from steps.project.git import git
from tests.conftest import copy_project, python, run
from tests.support.ui_server import Ui, webhook

SECRETS = {"OPENAI_API_KEY": "sk-key-of-a-provider", "http_proxy": "http://user:password@127.0.0.1:9"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def hook() -> Iterator[tuple[str, list[str]]]:
    with webhook() as address:
        yield address


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, hook: tuple[str, list[str]]) -> Iterator[Ui]:
    server = Ui(
        copy_project(tmp_path_factory.mktemp("ui")), runs=2, environment={"FLYWHEEL_NOTIFY_URL": hook[0], **SECRETS}
    )
    try:
        yield server
    finally:
        server.end()


@pytest.mark.nightly
def test_two_runs_at_a_time_have_worktrees_of_their_own_and_are_kept_under_refs(ui: Ui) -> None:
    before = git(ui.folder, "status", "--porcelain"), git(ui.folder, "rev-parse", "HEAD")
    started = [ui.train("nightly"), ui.train("numbers", "multiplication")]
    runs = [ui.finished(entry) for entry in started]
    assert [entry["state_type"] for entry in runs] == ["COMPLETED", "COMPLETED"], [entry["state"] for entry in runs]
    assert max(entry["start_time"] for entry in runs) < min(entry["end_time"] for entry in runs), "one after the other"
    assert (git(ui.folder, "status", "--porcelain"), git(ui.folder, "rev-parse", "HEAD")) == before
    assert git(ui.folder, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/runs").split() == ["nightly", "numbers"]
    for name, task in (("nightly", "email_search"), ("numbers", "multiplication")):
        kept = git(ui.folder, "show", "--format=", "--name-only", f"refs/runs/{name}").split()
        assert set(kept) <= {"params.yaml", "chain.yaml", "dvc.lock"}
        written = git(ui.folder, "show", f"refs/runs/{name}:params.yaml")
        assert f"task: {task}" in written
        assert "iterations: 1" in written
    shown = ui.artifacts()
    assert {"iterations", "progress", "trajectories", "learning-curve", "mlflow", "result"} <= set(shown)
    assert "trained: test success " in shown["result"]["data"]
    assert {entry["name"] for entry in runs} == {"nightly", "numbers"}
    assert len(json.loads(shown["iterations"]["data"])) == 2
    assert f"127.0.0.1:{ui.mlflow}/#/experiments/" in shown["mlflow"]["data"]


@pytest.mark.nightly
def test_kept_runs_can_be_read(ui: Ui) -> None:
    """The worktree is gone; DVC's cache has the run."""
    page = f"http://127.0.0.1:{ui.view}"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(page, timeout=240)
    key = (ui.folder / ".flywheel/viewer.key").read_text().strip()
    signed_in = {"Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(page, headers=signed_in), timeout=240) as answer:
        assert answer.url.partition("?")[2] in ("run=nightly", "run=numbers"), "the newest run, as run/ is empty"
        assert ">nightly (kept, " in answer.read().decode()
    kept = urllib.request.Request(f"{page}/?run=nightly&kind=rollout", headers=signed_in)
    with urllib.request.urlopen(kept, timeout=240) as answer:
        shown = answer.read().decode()
    assert "<strong>16</strong> of " in shown  # 4 scenarios, 4 attempts each
    assert "cache lacks" not in shown


@pytest.mark.nightly
def test_every_new_challenger_is_judged_by_itself(ui: Ui) -> None:
    versions = {
        (entry["parameters"]["settings"]["model"], entry["parameters"]["settings"]["version"]): ui.finished(entry["id"])
        for entry in ui.until(lambda: ui.runs("evaluate"), 60, lambda: "no evaluate was started")
    }
    assert versions
    assert all(entry["state_type"] == "COMPLETED" for entry in versions.values()), versions
    assert "the lower end must exceed" in ui.artifacts()["promotion"]["data"]
    assert list((ui.folder / ".flywheel/worktrees").iterdir()) == []


@pytest.mark.nightly
def test_a_turn_of_the_flywheel_without_anything_new_trains_nothing_and_says_so(ui: Ui) -> None:
    turn = ui.finished(ui.start("flywheel", task="email_search", name="turn", sources=[]))
    assert turn["state_type"] == "COMPLETED", turn["state"]
    assert ui.artifacts()["flywheel"]["description"] == "nothing is trained: fewer than 30 (--min-new)"
    assert list((ui.folder / ".flywheel/worktrees").iterdir()) == []


@pytest.mark.nightly
def test_a_run_that_fails_says_why_and_notifies(ui: Ui, hook: tuple[str, list[str]]) -> None:
    failed = ui.finished(ui.start("train", task="email_search", name="bad", more={"rollout.attempts": "many"}))
    assert failed["state_type"] == "FAILED"
    assert "rollout.attempts: Input should be a valid integer" in failed["state"]["message"]
    assert "Traceback" not in failed["state"]["message"]
    ui.until(lambda: hook[1], 60, lambda: "no notification")
    assert any("rollout.attempts: Input should be a valid integer" in text for text in hook[1])
    assert hook[0] not in json.dumps(ui.ask("block_documents/filter", {})), "the webhook's address is a secret"


def test_the_forms_have_ranges_choices_and_help(ui: Ui) -> None:
    for name in ("train", "flywheel", "evaluate", "promote", "rescore", "rollback"):
        [form] = ui.deployment(name)["parameter_openapi_schema"]["definitions"].values()
        assert all(one.get("description") for one in form["properties"].values()), name
    form = ui.deployment("train")["parameter_openapi_schema"]["definitions"]["TrainSettings"]["properties"]
    assert (form["iterations"]["type"], form["iterations"]["minimum"], form["iterations"]["maximum"]) == (
        "integer",
        1,
        999,
    )
    assert "email_search" in form["task"]["enum"]
    for name in ("train", "flywheel"):
        [schedule] = ui.deployment(name)["schedules"]
        assert not schedule["active"]
    with pytest.raises(urllib.error.HTTPError, match="409"):
        ui.start("train", task="email_search", iterations=0)


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


def experiments(ui: Ui, key: str) -> set[str]:
    """By name, as MLflow's server lists them."""
    address = f"http://127.0.0.1:{ui.mlflow}/api/2.0/mlflow/experiments/search?max_results=9"
    password = b64encode(f"flywheel:{key}".encode()).decode()
    request = urllib.request.Request(address, headers={"Authorization": f"Basic {password}"} if key else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return {entry["name"] for entry in json.load(answer)["experiments"]}


@pytest.mark.nightly
def test_runs_log_through_mlflows_server_with_the_key_that_the_worker_has(ui: Ui) -> None:
    assert {"email_search", "multiplication"} <= experiments(ui, ui.mlflow_key)


def test_mlflow_asks_for_its_key(ui: Ui) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        experiments(ui, "")
    assert "Default" in experiments(ui, ui.mlflow_key)
    assert ui.mlflow_key not in ui.log.read_text()


def test_servers_have_no_keys_of_others_and_files_are_the_owners(ui: Ui) -> None:
    services = {name: json.dumps(variables) for name, variables in ui.services().items()}
    servers = ("-m flows.deployment.mlflow_server", "-m prefect server", "-m viewer")
    [worker] = [
        variables for name, variables in services.items() if name not in (*servers, "-m flows.deployment.guardian")
    ]
    assert SECRETS["OPENAI_API_KEY"] in worker, "runs need it"
    for name in servers:
        assert SECRETS["OPENAI_API_KEY"] not in services[name]
        assert ui.mlflow_key not in services[name]
        assert (ui.key in services[name]) == (name == "-m prefect server")
    state = ui.folder / ".flywheel"
    open_to_others = [
        path for path in (*state.iterdir(), *(state / "prefect").iterdir()) if path.lstat().st_mode & 0o077
    ]
    assert open_to_others == []


@pytest.mark.nightly  # tests/flows/test_deploy.py asks the same of a stand-in
def test_starting_again_leaves_the_schedules_as_they_were_set(ui: Ui) -> None:
    deployment = ui.deployment("train")
    for cron in ("0 2 * * *", "0 2 * * *", "0 6 * * 1"):
        times = {"cron": cron, "timezone": "UTC"}
        ui.ask(f"deployments/{deployment['id']}/schedules", [{"schedule": times, "active": False}])
    variables = {"PREFECT_API_URL": f"http://127.0.0.1:{ui.prefect}/api", "PREFECT_API_AUTH_STRING": ui.key}
    process = run(python("flows.deploy", "--runs", "2"), ui.folder, 280, **variables)
    assert process.returncode == 0, process.stderr
    crons = [entry["schedule"]["cron"] for entry in ui.deployment("train")["schedules"]]
    assert sorted(crons) == ["0 2 * * *", "0 6 * * 1"]


@pytest.mark.nightly
def test_a_run_beside_another_is_what_it_is_alone(ui: Ui) -> None:
    process = run(python("flows.reproduce", "nightly", "--json"), ui.folder, seconds=600)
    assert process.returncode == 0, process.stderr[-3000:]
    rows = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    assert len(rows) > 10
    assert all(row["same"] for row in rows), [row for row in rows if not row["same"]]


def test_one_stop_ends_all_of_it(ui: Ui) -> None:
    """Nor do further ones stop it in that, as the one that make passes on, or an impatient Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        ui.process.send_signal(number)
        time.sleep(0.3)
    assert ui.process.wait(240) == 0
    for port in (ui.prefect, ui.mlflow, ui.view):
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
