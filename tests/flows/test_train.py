"""The main job, for real: Prefect's server, the warm worker with vLLM and the trainer, DVC, MLflow. Small numbers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import environments
from environments.base import Scenario
from steps.analytics.analysis import analyse
from steps.core.evaluations import Evaluation
from steps.core.params import UpdateParams, load
from steps.core.records import Reward, Trajectory, read_records
from steps.core.stats import counted
from steps.registry import paired
from steps.runner.handover import LOG, stop_workers, worker_pids
from steps.training.batches import steps_of
from tests.conftest import ROOT, SMALL, Project, change_params, copy_project, end, python, run, start
from tests.support.judge_server import ByRule, Judge
from tests.support.openai_server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def lock(folder: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((folder / "dvc.lock").read_text())["stages"])


def stamps(folder: Path) -> dict[str, int]:
    """When each stage last ran: its timings file."""
    return {str(path): path.stat().st_mtime_ns for path in folder.glob("run/**/timings/*.json")}


def test_ctrl_c_stops_cleanly(project: Project) -> None:
    assert project.interrupted.returncode == 130, project.interrupted.stderr
    assert "goes on from here" in project.interrupted.stderr
    assert "Traceback" not in project.interrupted.stderr


def test_the_flow_ends_well_and_says_what_is_next(project: Project) -> None:
    assert project.finished.returncode == 0, project.finished.stderr
    for word in ("iteration", "base", "trained", "steps.analytics.transcripts", "make mlflow", "make reproduce"):
        assert word in project.finished.stdout
    assert (project.folder / "run/learning_curve.png").stat().st_size > 5000
    assert 20_000 < (project.folder / "run/report.html").stat().st_size < 400_000
    assert "is left out" not in project.finished.stdout, "the page and the scenario before and after are there"
    log = (project.folder / LOG).read_text()
    assert "steps.sampling.packages took" in log, "a worker imports while Prefect starts"
    assert "code or environment changed" not in log, "and is the one that runs the stages"
    assert worker_pids(project.folder) == {}
    assert not [path for path in project.folder.glob("run/**/*") if ".tmp" in path.name]


@pytest.mark.nightly
def test_ask_plays_a_test_scenario_again_with_both_policies_and_the_same_tokens(project: Project) -> None:
    done = run(python("addons.production.ask", "--scenario", "2"), project.folder)
    assert done.returncode == 0, done.stderr
    best = json.loads((project.folder / "run/summary.json").read_text())["trained"]["iteration"]
    for who, name in (("base", "000"), ("trained", f"{best:03d}")):
        tested = read_records(Trajectory, project.folder / f"run/{name}/test/trajectories.parquet")[2]
        tokens = sum(len(turn.completion_ids) for turn in tested.turns)
        shown = done.stdout.partition(f"\n{who} (run/{name})\n")[2]
        assert f"({len(tested.turns)} turns, {tokens} sampled tokens, " in shown.partition("\nended: ")[2], done.stdout


@pytest.mark.nightly
def test_two_processes_give_the_update_of_one_through_dvc(project: Project, tmp_path: Path) -> None:
    """The command is the same: params.yaml alone says that two processes share the stage, each with half of the base."""
    from safetensors.numpy import load_file

    folder = shutil.copytree(project.folder, tmp_path / "project", symlinks=True)
    one = load_file(folder / "run/001/adapter/adapter_model.safetensors")
    update = yaml.safe_load((folder / "params.yaml").read_text())["update"]
    two = update | {"launcher": "accelerate", "processes": 2, "shard": True}
    change_params(folder, {"update": two})
    done = run(python("dvc", "repro", "--single-item", "update@001"), folder, OMP_WAIT_POLICY="passive")
    assert done.returncode == 0, done.stderr
    assert "starting 2 processes that share the stage" in done.stdout
    divided = load_file(folder / "run/001/adapter/adapter_model.safetensors")
    assert divided.keys() == one.keys()
    assert max(abs(divided[name] - one[name]).max() for name in one) < 1e-5
    first = lock(project.folder)["update@001"]["cmd"]
    assert lock(folder)["update@001"]["cmd"] == first
    stop_workers(folder)


def test_summary(project: Project) -> None:
    summary = json.loads((project.folder / "run/summary.json").read_text())
    assert set(summary) == {"task", "way", "base", "trained", "iterations", "registered", "wall_seconds"}
    assert summary["base"]["n"] == summary["trained"]["n"] == SMALL["scenarios"]["test"]
    for who in ("base", "trained"):
        low, high = summary[who]["ci95"]
        assert 0 <= low <= summary[who]["success"] <= high <= 1
    assert [row["iteration"] for row in summary["iterations"]] == [1, 2]
    for row in summary["iterations"]:
        assert set(row["seconds"]) == {"rollout", "score", "update", "evaluate"}
        assert row["overhead_seconds"] > 0
        assert row["tokens_per_second"] > 0
    receipt = json.loads((project.folder / "run/receipt.json").read_text())
    assert (summary["registered"] is not None) == receipt["registered"]


def test_every_interval_that_is_shown_is_that_of_groups_of_alike_scenarios(project: Project) -> None:
    """In files, terminal, report, registry and MLflow; of single questions it would be another one."""
    env, folder = environments.load("email_search"), project.folder
    data, found = env.load(ROOT / "tasks_data/email_search"), dict[str, dict[str, Any]]()
    stored = json.loads((folder / "run/scenarios/clusters.json").read_text())

    def expected(rewards: Path, names: dict[str, str]) -> tuple[float, float]:
        records = read_records(Reward, rewards)
        groups_N = paired.numbered([names[record.scenario_id] for record in records])
        return paired.share_interval(np.array([float(bool(record.success)) for record in records]), groups_N)

    for path in sorted(folder.glob("run/*/*/summary.json")):
        summary = Evaluation.model_validate_json(path.read_text())
        scenarios = read_records(Scenario, folder / f"run/scenarios/{summary.split}.parquet")
        names = {scenario.id: env.cluster(scenario, data) for scenario in scenarios}
        assert names == {name: stored[name] for name in names}
        assert summary.ci95 == expected(path.with_name("rewards.parquet"), names)
        assert summary.sampled_ci95 == expected(path.with_name("sampled.parquet"), names)
        assert summary.clusters == len(set(names.values()))
        assert summary.counted == counted(summary.n, summary.clusters)
        low, high = summary.ci95
        found[str(path.relative_to(folder))] = {"ci95": [low, high], "counted": summary.counted}
    run_summary = json.loads((folder / "run/summary.json").read_text())
    best = run_summary["trained"]["policy"]
    page, receipt = ((folder / f"run/{name}").read_text() for name in ("report.html", "receipt.json"))
    said = project.finished.stdout
    for who, policy in (("base", "000"), ("trained", best)):
        tested = found[f"run/{policy}/test/summary.json"]
        low, high = tested["ci95"]
        assert run_summary[who]["ci95"] == json.loads(receipt)[who]["ci95"] == [low, high]
        assert f"[{low:.3f}, {high:.3f}] of {tested['counted']}" in said
        assert f"95 % interval {low:.3f} to {high:.3f}" in page
        assert tested["counted"] in page
    lines = {line.group: line for line in analyse(folder, "iteration,split", ("val", "test")).lines}
    for number in ("000", "001", "002"):
        validated = found[f"run/{number}/evaluation/summary.json"]
        low, high = validated["ci95"]
        assert f"[{low:.2f} – {high:.2f}] of {validated['counted']}" in project.interrupted.stdout + said
        assert list(lines[number, "val"].ci95 or ()) == [low, high]
        if number != "000":  # which has no run of its own in MLflow
            groups = {stored[scenario.id] for scenario in read_records(Scenario, folder / "run/scenarios/val.parquet")}
            assert point_of(folder, number) == (low, high, len(groups))


def point_of(folder: Path, number: str) -> tuple[float, float, float]:
    """What MLflow has of an iteration's validation: both ends of the interval, and the groups."""
    query = (
        "select m.key, m.value from metrics m join tags t on t.run_uuid = m.run_uuid "
        "where t.key = 'iteration' and t.value = ?"
    )
    with contextlib.closing(sqlite3.connect(folder / ".flywheel/mlflow.db")) as link:
        metrics = dict(link.execute(query, (number,)))
    return metrics["val/ci95_low"], metrics["val/ci95_high"], metrics["val/clusters"]


def test_the_power_is_said_first_and_the_runs_own_test_is_a_look(project: Project) -> None:
    assert "at its first look at the 30 test scenarios" in project.interrupted.stdout + project.finished.stdout
    receipt = json.loads((project.folder / "run/receipt.json").read_text())
    with contextlib.closing(sqlite3.connect(project.folder / ".flywheel/ledger.db")) as link:
        looks = link.execute("SELECT challenger, against FROM looks").fetchall()
    assert [challenger for challenger, _ in looks] == [receipt["adapter_hash"]], "registered or not, and once"


def test_every_episode_is_accounted_for(project: Project) -> None:
    made, settings = 0, load(project.folder / "params.yaml", UpdateParams).update
    for iteration in ("001", "002"):
        metrics = json.loads((project.folder / f"run/{iteration}/metrics.json").read_text())
        assert metrics["collected"] == 24
        assert metrics["collected"] == metrics["trained"] + metrics["quarantined"] + metrics["without_signal"]
        assert metrics["sampler_kl"] < 1e-5
        with_signal = metrics["groups"] - metrics["zero_variance_groups"]
        made += settings.num_iterations * steps_of(with_signal, metrics["groups"], settings)
        assert metrics["optimizer_steps"] == made


def test_prefect_shows_the_run(project: Project) -> None:
    def ask(path: str) -> list[dict[str, Any]]:
        request = urllib.request.Request(
            f"{project.api}/{path}", data=b"{}", headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return list(json.loads(answer.read()))

    flows = ask("flow_runs/filter")
    assert "COMPLETED" in {run["state_type"] for run in flows}
    tasks = {run["name"] for run in ask("task_runs/filter") if run["state_type"] == "COMPLETED"}
    stages = {
        "scenarios",
        "initialise",
        "rollout@002",
        "score@002",
        "update@002",
        "evaluate@002",
        "test@best",
        "register",
    }
    assert stages <= tasks


def test_again_runs_no_stage(project: Project) -> None:
    before = stamps(project.folder), lock(project.folder)
    again = project.train(FLYWHEEL_WORKER="off")  # which would import everything for no stage
    assert again.returncode == 0, again.stderr
    assert (stamps(project.folder), lock(project.folder)) == before
    nowhere = Project(project.folder, "http://127.0.0.1:9/api")
    again = nowhere.train(FLYWHEEL_WORKER="off")
    assert "nothing has changed since this run ended" in again.stdout, again.stdout + again.stderr
    assert " trained: test success " in again.stdout, "what a run ends with"
    (project.folder / "environments/added.py").write_text("")
    again = nowhere.train(FLYWHEEL_WORKER="off")
    (project.folder / "environments/added.py").unlink()
    assert "no Prefect server answers" in again.stderr, "there may be something to do"


def test_dvc_says_up_to_date(project: Project) -> None:
    status = run(["dvc", "status"], project.folder)
    assert "up to date" in status.stdout, status.stdout + status.stderr


@pytest.mark.parametrize("is_trained", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_stored_iterations_are_judged_again_and_trained_on_without_sampling(project: Project, is_trained: bool) -> None:
    """By the rule's own opinion, told over HTTP: no group flips, and the updates are the rule's, but for the KL term."""
    before, sampled = stamps(project.folder), lock(project.folder)
    with Server(Judge(ByRule("email_search", project.folder / "run/scenarios", -2.0, 2.0))) as server:
        score = {"judges": {"ruler": 1}, "ruler": {"endpoint": {"model": "m", "base_url": server.url}}}
        name, more = ("again", ["--update"]) if is_trained else ("judged", [])
        words = python("flows.rescore", "--set", f"score={json.dumps(score)}", "--name", name, *more)
        worker = "on" if is_trained else "off"  # judging alone needs no engine and no trainer
        process = run(words, project.folder, PREFECT_API_URL=project.api, FLYWHEEL_WORKER=worker)
    assert process.returncode == 0, process.stderr
    folder = project.folder / "run/rescored" / name
    rows = json.loads((folder / "comparison.json").read_text())
    assert [row["iteration"] for row in rows] == [1, 2]
    for row in rows:
        number = f"{row['iteration']:03d}"
        alike = json.loads((folder / number / "judge.json").read_text())["judge_groups_alike"]  # not sent to the judge
        assert (row["before"], row["after"], row["flipped"]) == ("rule", "ruler", {})
        assert row["trajectories"] == 24 - 4 * alike > 0
        assert row["tau"] > 0.99
        if not is_trained:
            assert not (folder / number / "adapter").exists()
            continue
        first, again = (
            json.loads((path / number / "metrics.json").read_text()) for path in (folder.parents[1], folder)
        )
        assert again["trained"] == first["trained"]
        assert again["sampler_kl"] == first["sampler_kl"]
        # Dr. GRPO does not divide by a deviation: scores from 0 to 1 weigh a quarter of the rule's from -2 to 2.
        assert again["grad_norm"] == pytest.approx(first["grad_norm"] / 4, rel=0.1)
        assert (folder / number / "adapter" / "adapter_model.safetensors").exists()
    assert "tau +1.000" in process.stdout or "tau +0.99" in process.stdout
    assert (stamps(project.folder).items() >= before.items(), lock(project.folder)) == (True, sampled)


def test_a_batch_that_is_sampled_again_by_another_worker_has_the_same_bytes(project: Project) -> None:
    """The stopped run's worker had evaluated before; the next run's had just started."""
    assert (project.folder / "run/001/trajectories.parquet").read_bytes() == project.sampled_before
    logged = (project.folder / LOG).read_text()[len(project.logged_before) :]
    assert logged.count("steps.rollout took") == 2, "the first batch was sampled again"


def test_an_update_that_is_made_again_has_the_same_hashes(project: Project, tmp_path: Path) -> None:
    """Scored and trained on, in another folder."""
    folder = shutil.copytree(project.folder, tmp_path / "project", symlinks=True)
    (folder / LOG).unlink()
    words = ["dvc", "repro", "--force", "--single-item", "score@001", "update@001"]
    again = run(words, folder, seconds=600)
    assert again.returncode == 0, again.stderr[-3000:]
    assert lock(folder) == lock(project.folder)
    log = (folder / LOG).read_text()
    assert [f"steps.{name} took" in log for name in ("rollout", "score", "update")] == [False, True, True]
    assert stop_workers(folder) == 1


@pytest.mark.nightly
def test_repro_from_nothing_gives_the_same_hashes(project: Project) -> None:
    before = lock(project.folder)
    shutil.rmtree(project.folder / ".dvc/cache")
    shutil.rmtree(project.folder / ".dvc/tmp")
    shutil.rmtree(project.folder / "run")
    again = run(["dvc", "repro"], project.folder, seconds=600)
    assert again.returncode == 0, again.stderr[-3000:]
    assert lock(project.folder) == before
    assert stop_workers(project.folder) == 1


@pytest.mark.nightly  # by the worker above; here each process imports all there is
def test_stages_in_processes_of_their_own_give_the_same_hashes(project: Project) -> None:
    """A rollout and an update."""
    before = lock(project.folder)
    shutil.rmtree(project.folder / "run/001")
    shutil.rmtree(project.folder / ".dvc/cache")
    again = run(["dvc", "repro", "update@001"], project.folder, seconds=600, FLYWHEEL_WORKER="off")
    assert again.returncode == 0, again.stderr[-3000:]
    assert worker_pids(project.folder) == {}
    assert lock(project.folder) == before


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_project(tmp_path_factory.mktemp("fresh"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rolout": {"attempts": 8}}, "rolout is not a known key"),
        ({"rollout": {"attempts": 1}}, "rollout.attempts"),
        ({"rollout": {"atempts": 8}}, "attempts"),
        ({"update": {"loss_type": "ppo"}}, "update.loss_type"),
    ],
)
def test_bad_params_end_in_a_sentence(fresh: Path, change: dict[str, Any], reason: str) -> None:
    kept = (fresh / "params.yaml").read_text()
    try:
        change_params(fresh, change)
        process = run(python("flows.train"), fresh)
    finally:
        (fresh / "params.yaml").write_text(kept)
    assert process.returncode == 2
    assert reason in process.stderr
    assert len(process.stderr.strip().splitlines()) == 1
    assert not (fresh / "run").exists()


def test_a_missing_mailbox_is_a_sentence(fresh: Path, prefect_server: str) -> None:
    moved = fresh / "tasks_data/email_search/mails.jsonl"
    kept = moved.read_bytes()
    moved.unlink()
    try:
        process = run(python("flows.train"), fresh, PREFECT_API_URL=prefect_server, FLYWHEEL_WORKER="off")
    finally:
        moved.write_bytes(kept)
    assert process.returncode == 2
    [line] = process.stderr.strip().splitlines()
    assert "mails.jsonl" in line
    assert "git checkout" in line
    made = {path.name for path in (fresh / "run").glob("*")}
    assert made <= {"code", "timings"}, "what reads no mailbox"


@pytest.mark.nightly
def test_a_base_model_that_cannot_be_loaded_is_a_sentence(fresh: Path, prefect_server: str) -> None:
    kept = (fresh / "params.yaml").read_text()
    try:
        change_params(fresh, {"policy": {"base_model": "no/such-model"}})
        process = run(
            python("flows.train"), fresh, PREFECT_API_URL=prefect_server, HF_HUB_OFFLINE="1", FLYWHEEL_WORKER="off"
        )
    finally:
        (fresh / "params.yaml").write_text(kept)
    assert process.returncode == 2
    [line] = process.stderr.strip().splitlines()
    assert "policy.base_model" in line
    assert not (fresh / "run/000/adapter").exists()


def test_set_refuses_and_keeps_the_file(fresh: Path) -> None:
    kept = (fresh / "params.yaml").read_text()
    process = run(python("flows.train", "--set", "rollout.attempts=1"), fresh)
    assert process.returncode == 2
    assert "rollout.attempts" in process.stderr
    assert (fresh / "params.yaml").read_text() == kept


def test_dry_run_prints_every_parameter_and_runs_nothing(fresh: Path) -> None:
    process = run(python("flows.train", "--dry-run"), fresh)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["update"]["max_sampler_kl"] == 1e-3
    assert not (fresh / "run/001").exists()


def test_a_killed_flow_leaves_nothing_half_written(fresh: Path, prefect_server: str) -> None:
    process = start(python("flows.train"), fresh, PREFECT_API_URL=prefect_server)
    until = time.monotonic() + 120
    while not (fresh / "run/scenarios").exists() and time.monotonic() < until:
        time.sleep(0.02)
    end(process, signal.SIGKILL)
    run(python("steps.runner.handover", "--stop"), fresh)
    assert (fresh / "run/scenarios/test.parquet").exists()
    assert not (fresh / "run/000/evaluation").exists()


@pytest.mark.nightly
def test_ctrl_c_on_a_terminal_ends_a_flow_with_a_server_of_its_own(fresh: Path) -> None:
    """It reaches the server, too, which has to live until it knows how the run ended."""
    log, until = fresh / ".flywheel/train.log", time.monotonic() + 120
    log.unlink(missing_ok=True)
    process = start(python("flows.train"), fresh)
    try:
        while not log.exists() or "Task run 'scenarios' - Finished" not in log.read_text():
            assert process.poll() is None, process.communicate(timeout=60)
            assert time.monotonic() < until, "no stage ended"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)  # it waits for the server's end, which has the same stderr
    finally:
        end(process, signal.SIGKILL)
    assert process.returncode == 130, err
    assert err == "Stopped. The same command goes on from here.\n"
    with contextlib.closing(sqlite3.connect(fresh / ".flywheel/prefect/prefect.db")) as database:
        states = [row[0] for row in database.execute("SELECT state_type FROM flow_run")]
    assert states == ["CANCELLED"], "by a person, and no crash"
    assert worker_pids(fresh) == {}
