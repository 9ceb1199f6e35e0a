"""Tracking, on a real MLflow store in a folder of its own, and a run of few bytes in DVC's form."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.exceptions import TerminationSignal

from steps.core.errors import UserError
from steps.core.evaluations import Evaluation
from steps.core.params import Update
from steps.core.records import ITERATION_STAGES
from steps.policy import adapter
from steps.project.chain import read_chain
from steps.project.git import git_state
from steps.project.lock import read_lock
from steps.project.store import MANY_RUNS, explained, make_store, plan_for_many_runs
from steps.tracking.__main__ import main as by_hand
from steps.tracking.lasting import LastingMlflow
from steps.tracking.measured import MeasuredRun
from steps.tracking.tracker import MlflowTracker, Sample
from tests.conftest import MlflowServer
from tests.support.slow_servers import dripping_server

ROOT = Path(__file__).parent.parent.parent
PARAMS: dict[str, Any] = {
    "task": "toy",
    "seed": 3,
    "policy": {"base_model": "tasks_data/embedded_policy", "lora": {"rank": 4, "alpha": 8}},
    "scenarios": {"train": 20, "val": 8, "test": 8},
    "rollout": {"scenarios": 2, "attempts": 4},
    "score": {"judges": {"rule": 1}},
    "update": {"learning_rate": 1e-05},
    "evaluate": {"max_tokens": 64},
    "register": {"name": "toy"},
    "train": {"iterations": 2, "patience": 1},
}
READS = {  # stage -> its parameters, and what it reads and writes
    "scenarios": ("task seed scenarios", "", "run/scenarios"),
    "initialise": ("seed policy", "tasks_data/embedded_policy", "run/000/adapter run/000/checkpoint"),
    "rollout": ("task seed policy rollout", "run/scenarios run/{p}/adapter", "run/{n}/trajectories.parquet"),
    "score": ("task score", "run/scenarios run/{n}/trajectories.parquet", "run/{n}/rewards.parquet"),
    "update": (
        "seed policy rollout update",
        "run/{n}/rewards.parquet run/{n}/trajectories.parquet run/{p}/checkpoint",
        "run/{n}/adapter run/{n}/checkpoint run/{n}/metrics.json",
    ),
    "evaluate": ("task policy evaluate", "run/{n}/adapter run/scenarios", "run/{n}/evaluation"),
    "test": ("task policy evaluate", "run/{n}/adapter run/scenarios", "run/{n}/test"),
}


def evaluation(folder: Path, split: str, success: float, adapter_hash: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    summary = Evaluation(
        split=split,
        adapter_hash=adapter_hash,
        n=8,
        success=success,
        ci95=(success - 0.1, success + 0.1),
        reward=success * 2,
        turns=3.0,
        tokens=40.0,
        slices={"by sender": success, "date: last?": 0.5},
    )
    (folder / "summary.json").write_text(summary.model_dump_json() + "\n")


def md5_of(root: Path, path: str) -> str:
    """As DVC would have it; a folder's is of its files' contents here, which is all that a key needs."""
    full = root / path
    if full.is_dir():
        every = b"".join(file.read_bytes() for file in sorted(full.rglob("*")) if file.is_file())
        return hashlib.md5(every).hexdigest() + ".dir"
    return hashlib.md5(full.read_bytes() if full.exists() else path.encode()).hexdigest()


class Project:
    """A finished run of some iterations, as it lies on disk."""

    def __init__(self, root: Path, iterations: int = 2, **params: Any) -> None:
        self.root, self.params = root, copy.deepcopy(PARAMS) | params
        for number in range(iterations + 1):
            self.add(number)
        self.write()

    def add(self, number: int) -> None:
        folder = self.root / "run" / f"{number:03d}"
        (folder / "adapter").mkdir(parents=True)
        (folder / "adapter/adapter_config.json").write_text("{}")
        (folder / "adapter/adapter_model.safetensors").write_bytes(f"{number} {self.params['seed']}".encode())
        name = adapter.adapter_hash(folder / "adapter")
        evaluation(folder / "evaluation", "val", 0.3 + number / 10, name)
        evaluation(folder / "test", "test", 0.2 + number / 10, name)
        if number:
            (folder / "trajectories.parquet").write_text(f"trajectories {number}")
            (folder / "rewards.parquet").write_text(f"rewards {number}")
            metrics = {"reward_mean": 0.5 * number, "success": 0.25, "tokens": 40.0, "turns": 3, "collected": 8}
            metrics |= {"clip_ratio/region_mean": 0.01, "grad_norm": 1.5, "trained": 6, "quarantined": 0}
            (folder / "metrics.json").write_text(json.dumps(metrics))
            (folder / "timings").mkdir()
            for stage, output in ITERATION_STAGES.items():
                measured = {"stage": stage, "seconds": 2.0} | ({"learning_rate": 3e-06} if stage == "update" else {})
                (folder / f"timings/{output}.json").write_text(json.dumps(measured))

    def write(self) -> None:
        """params.yaml, chain.yaml and dvc.lock of what is there."""
        numbers = sorted(folder.name for folder in (self.root / "run").glob("[0-9]*"))
        (self.root / "params.yaml").write_text(yaml.safe_dump(self.params))
        chain = {
            "iterations": {n: {"prev": p} for p, n in pairwise(numbers)},
            "evaluated": numbers,
        }
        (self.root / "chain.yaml").write_text(yaml.safe_dump(chain | {"tested": {"base": "000", "best": numbers[-1]}}))
        names = ["scenarios", "initialise"]
        names += [f"{stage}@{n}" for n in numbers for stage in ITERATION_STAGES if n != "000" or stage == "evaluate"]
        names += ["test@base", "test@best"]
        self.lock({name: self.entry(name, numbers) for name in names})

    def entry(self, name: str, numbers: list[str]) -> dict[str, Any]:
        stage, _, key = name.partition("@")
        number = {"base": numbers[0], "best": numbers[-1]}.get(key, key)
        params, reads, writes = READS[stage]
        fields = {"n": number, "p": f"{int(number or 1) - 1:03d}"}

        def files(paths: str) -> list[dict[str, Any]]:
            names = [path.format(**fields) for path in paths.split()]
            return [{"path": path, "hash": "md5", "md5": md5_of(self.root, path), "size": 1} for path in names]

        recorded = {"params.yaml": {key: self.params[key] for key in params.split()}}
        deps = [*files(reads), {"path": f"steps/{stage}.py", "hash": "md5", "md5": "c" * 32, "size": 9}]
        return {"cmd": f"python -m steps.{stage} {number}", "deps": deps, "params": recorded, "outs": files(writes)}

    def lock(self, stages: dict[str, Any]) -> None:
        (self.root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}, sort_keys=False))

    def log(self, *numbers: str, finish: bool = True) -> tuple[MlflowTracker, list[str]]:
        """What a flow does; returns what was told as well."""
        messages: list[str] = []
        tracker = MlflowTracker(self.root, messages.append)
        for number in numbers or read_chain(self.root)["iterations"]:
            tracker.iteration(number, 0.25)
        if finish:
            tracker.finish()
        return tracker, messages


@pytest.fixture
def project(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FLYWHEEL_TRACE_RATE", "0")  # its trajectories are no such; tests/test_traces.py has real ones
    root = tmp_path / "a project"  # paths with a space are common
    (root / ".flywheel").mkdir(parents=True)
    shutil.copy(empty_store, root / ".flywheel/mlflow.db")
    yield Project(root)
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        os.environ.pop(name)


def runs(tracker: MlflowTracker, parent: bool = False) -> list[Any]:
    logged = tracker.client.search_runs([tracker.experiment], order_by=["tags.iteration ASC"])
    return [run for run in logged if ("iteration" not in run.data.tags) == parent]


def everything(root: Path) -> dict[str, int]:
    """Rows of each table of the store, and how many artifacts lie beside it."""
    with sqlite3.connect(root / ".flywheel/mlflow.db") as link:
        names = [name for (name,) in link.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        count = {name: link.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0] for name in names}
    return count | {"artifacts": sum(path.is_file() for path in (root / ".flywheel/mlartifacts").rglob("*"))}


def test_a_run_is_logged_whole(project: Project) -> None:
    tracker, messages = project.log()
    assert messages == []
    (parent,), nested = runs(tracker, parent=True), runs(tracker)
    key = parent.data.tags["run_key"][:6]
    assert [run.info.run_name for run in nested] == [f"iteration 00{n}, {key}" for n in (1, 2)]
    assert parent.info.run_name.endswith(f", {key}")
    for run in (parent, *nested):
        assert (run.data.tags["mlflow.source.name"], run.data.tags["mlflow.source.type"]) == ("flows/train.py", "LOCAL")
    assert [item.dataset.name for item in parent.inputs.dataset_inputs] == ["scenarios"]
    second = nested[1].data
    assert second.metrics["reward_mean"] == 1.0
    assert second.metrics["val/success"] == 0.5
    assert second.metrics["val/ci95_low"] == pytest.approx(0.4)
    assert second.metrics["val/success_date_ last_"] == 0.5
    assert second.metrics["update/clip_ratio_region_mean"] == 0.01
    assert second.metrics["seconds/update"] == 2.0
    assert second.metrics["update/learning_rate"] == 3e-06
    assert second.metrics["overhead_seconds"] == 0.25
    assert second.metrics["tokens_per_second"] == 40 * 8 / 2
    assert second.params["update.learning_rate"] == "1e-05"
    assert second.params["update.beta"] == str(Update().beta), "a default that params.yaml does not hold"
    assert "train.iterations" not in second.params
    assert nested[1].info.end_time - nested[1].info.start_time >= 8000
    assert second.tags["mlflow.parentRunId"] == parent.info.run_id
    name = adapter.adapter_hash(project.root / "run/002/adapter")
    expected = {"task": "toy", "base_model": "tasks_data/embedded_policy", "iteration": "002", "adapter_hash": name}
    assert second.tags.items() >= expected.items()

    inputs = {item.dataset.name: item.dataset.digest for item in nested[1].inputs.dataset_inputs}
    paths = {"scenarios": "scenarios", "trajectories": "002/trajectories.parquet", "rewards": "002/rewards.parquet"}
    assert inputs == {key: md5_of(project.root, f"run/{path}") for key, path in paths.items()}
    (output,) = nested[1].outputs.model_outputs
    model = tracker.client.get_logged_model(output.model_id)
    assert model.tags["adapter_hash"] == name
    assert model.source_run_id == nested[1].info.run_id
    of_model = {metric.key: metric.value for metric in model.metrics}
    assert of_model["val/success"] == 0.5
    assert not [name for name in of_model if "ci95" in name or name.endswith(("/n", "/scenarios"))], "no measures of it"
    assert [best.model_id for best in parent.outputs.model_outputs] == [output.model_id]
    assert min(name for name in second.metrics if "/" in name) > "clip", "what clipping did is not the first group"

    run_id = parent.info.run_id
    history = tracker.client.get_metric_history(run_id, "val/success")
    assert sorted((point.step, point.value) for point in history) == [(0, 0.3), (1, 0.4), (2, 0.5)]
    assert [point.step for point in tracker.client.get_metric_history(run_id, "reward_mean")] == [1, 2]
    assert (parent.data.metrics["test/success"], parent.data.metrics["test_base/success"]) == (0.4, 0.2)
    assert parent.data.tags.items() >= {"best_iteration": "002", "train.patience": "1"}.items()
    assert parent.data.params == second.params
    assert {item.path for item in tracker.client.list_artifacts(run_id)} == {"dvc.lock", "params.yaml", "chain.yaml"}
    assert parent.info.status == "FINISHED"
    assert parent.info.artifact_uri.startswith(f"{(project.root / '.flywheel/mlartifacts/toy').as_uri()}/")
    assert "experiment toy" in tracker.where()


def test_what_compare_shows(project: Project) -> None:
    """Two runs that differ in judges, data and a knob: names, tags, parameters and intervals tell them apart."""
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-C", str(project.root)]
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "one"]):
        subprocess.run([*git, *words], check=True)
    tracker, _ = project.log()
    (project.root / "run/scenarios").mkdir()
    (project.root / "run/scenarios/train.parquet").write_text("others")
    ruler = {"endpoint": {"model": "gpt-5-mini"}}
    project.params["score"] = {"judges": {"rule": 0.5, "ruler": 1}, "ruler": ruler}
    project.params["update"] = {"learning_rate": 2e-05, "loss_type": "grpo"}
    project.write()
    project.log()
    parents = sorted(runs(tracker, parent=True), key=lambda run: run.info.start_time)
    shown = [run.data.tags for run in parents]
    assert [tags["judge"] for tags in shown] == ["rule 1", "rule 0.5, ruler 1 (gpt-5-mini)"]
    assert shown[1]["data_hash"] == md5_of(project.root, "run/scenarios") != shown[0]["data_hash"]
    assert (
        parents[0].info.run_name
        == f"toy seed 3, learning_rate 1e-05, scenarios 2, attempts 4, {shown[0]['run_key'][:6]}"
    )
    assert parents[1].info.run_name.startswith(
        "toy seed 3, rule 0.5, ruler 1 (gpt-5-mini), loss_type grpo, learning_rate 2e-05"
    )
    nested = runs(tracker)
    assert len({run.info.run_name for run in nested}) == 4
    for run in nested:
        parent = next(
            candidate for candidate in parents if candidate.info.run_id == run.data.tags["mlflow.parentRunId"]
        )
        for name in ("task", "base_model", "base_revision", "judge", "data_hash", "git_commit", "git_dirty"):
            assert run.data.tags[name] == parent.data.tags[name], name
        assert run.data.metrics.keys() >= {"val/success", "val/ci95_low", "val/ci95_high"}
    for run in parents:
        assert run.data.metrics.keys() >= {
            f"{of}/{key}" for of in ("test", "test_base") for key in ("success", "ci95_low")
        }


def test_system_metrics_go_to_the_iteration(project: Project) -> None:
    samples = [Sample(1_000_000 + 2000 * n, {"system/cpu_utilization_percentage": 10.0 * n}) for n in range(3)]
    tracker = MlflowTracker(project.root)
    run_id = tracker.iteration("001", 0.25, samples)
    assert run_id is not None
    tracker.iteration("001", 0.25, samples)
    tracker.iteration("002", 0.25)
    history = tracker.client.get_metric_history(run_id, "system/cpu_utilization_percentage")
    assert [(point.step, point.timestamp, point.value) for point in history] == [
        (0, 1_000_000, 0.0),
        (1, 1_002_000, 10.0),
        (2, 1_004_000, 20.0),
    ]
    assert [any(name.startswith("system/") for name in run.data.metrics) for run in runs(tracker)] == [True, False]
    assert not any(name.startswith("system/") for name in runs(tracker, parent=True)[0].data.metrics)


def test_logging_again_adds_nothing(project: Project) -> None:
    project.log()
    before = everything(project.root)
    tracker, _ = project.log()
    tracker.iteration("001")
    tracker.finish()
    assert tracker.logged == []
    assert everything(project.root) == before


def test_an_artifact_of_the_flow_goes_to_the_parent(project: Project) -> None:
    tracker, messages = project.log()
    (project.root / "curve.png").write_bytes(b"png")
    MlflowTracker(project.root, messages.append).log_artifact(project.root / "curve.png")
    (parent,) = runs(tracker, parent=True)
    assert "curve.png" in {item.path for item in tracker.client.list_artifacts(parent.info.run_id)}


def test_a_run_s_page_leads_to_the_registry(project: Project) -> None:
    tracker, _ = project.log()
    again = MlflowTracker(project.root)
    again.note("Registered as [toy, version 1](#/models/toy/versions/1).")
    (parent,) = runs(tracker, parent=True)
    assert parent.data.tags["mlflow.note.content"] == "Registered as [toy, version 1](#/models/toy/versions/1)."
    assert again.run_name == tracker.run_name == parent.info.run_name


def test_going_on_later_finds_the_same_parent(project: Project) -> None:
    tracker, _ = project.log()
    project.add(3)
    project.params["train"] = {"iterations": 3}  # of the flow alone: it is the same run
    project.write()
    later, messages = project.log("001", "002", "003", finish=False)
    assert (messages, later.logged) == ([], ["003"])
    (parent,) = runs(tracker, parent=True)
    assert parent.info.status == "RUNNING"
    later.finish()
    (parent,) = runs(tracker, parent=True)
    assert (parent.info.status, len(runs(tracker))) == ("FINISHED", 3)
    assert parent.data.tags["train.iterations"] == "3"
    assert parent.data.metrics["test/success"] == pytest.approx(0.5)
    later.finish("KILLED")
    assert runs(tracker, parent=True)[0].info.status == "FINISHED", "its end was logged already"


def test_a_run_has_the_name_that_it_was_given_and_says_where_it_was_started(project: Project) -> None:
    tracker, _ = project.log("001", finish=False)
    assert runs(tracker, parent=True)[0].info.run_name.startswith("toy seed")
    origin = {"prefect_flow_run_id": "1", "prefect_flow_run_url": "http://prefect/1"}
    again = MlflowTracker(project.root, print, "second", origin)
    for number in ("001", "002"):
        again.iteration(number)
    [parent] = runs(again, parent=True)
    assert parent.info.run_name == "second"
    assert origin.items() <= parent.data.tags.items()
    assert runs(again)[-1].info.run_name == "iteration 002 of second"
    assert again.where().endswith("second")


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (OSError("full"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (TerminationSignal(15), "KILLED"),  # what Prefect makes of a SIGTERM
    ],
)
def test_a_flow_that_does_not_get_to_its_end_leaves_no_run_running(
    project: Project, monkeypatch: pytest.MonkeyPatch, problem: BaseException, status: str
) -> None:
    from flows.terminal.display import RunDisplay
    from flows.training import run as train
    from steps.project import chain

    def fails(*_: object, **__: object) -> None:
        raise problem

    tracker, _ = project.log("001", finish=False)
    monkeypatch.setattr(train.Pipeline, "look", lambda _: False)  # which writes lists of the code here
    monkeypatch.setattr(train, "open_trackers", lambda *_: (LastingMlflow(tracker, print), [tracker]))
    monkeypatch.setattr(train, "begin", lambda *_: None)
    monkeypatch.setattr(chain, "write_chain", fails)
    with pytest.raises(type(problem)):
        train.train_here(RunDisplay())
    assert tracker.iteration("002") is None, "what is still being logged beside the flow does not bring it to life"
    assert runs(tracker, parent=True)[0].info.status == status
    later, _ = project.log("001", "002", finish=False)
    assert later.logged == ["002"]
    assert runs(tracker, parent=True)[0].info.status == "RUNNING"
    later.finish()
    later.finish("FAILED")
    assert runs(tracker, parent=True)[0].info.status == "FINISHED"


def test_a_store_that_is_away_hides_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, _ = project.log("001", finish=False)
    client = tracker.client
    monkeypatch.setattr(tracker, "client", None)
    tracker.finish("FAILED")
    monkeypatch.setattr(tracker, "client", client)
    assert runs(tracker, parent=True)[0].info.status == "RUNNING"


def test_an_interrupted_iteration_is_completed(project: Project) -> None:
    tracker, _ = project.log()
    before = everything(project.root)
    tracker.client.update_run(runs(tracker)[1].info.run_id, status="RUNNING")
    again, _ = project.log()
    assert again.logged == ["002"]
    assert everything(project.root) == before


def test_what_ran_again_takes_the_place_of_what_was_there(project: Project) -> None:
    tracker, _ = project.log()
    old = runs(tracker)[1]
    (project.root / "run/002/rewards.parquet").write_text("judged again")
    project.write()
    again, messages = project.log()
    assert (messages, again.logged) == ([], ["002"])
    new = runs(tracker)[1]
    assert len(runs(tracker)) == 2
    assert new.info.run_id != old.info.run_id
    gone = tracker.client.get_run(old.info.run_id)
    assert gone.info.lifecycle_stage == "deleted"
    assert gone.data.tags["superseded_by"] == new.data.tags["iteration_key"]
    assert new.outputs.model_outputs[0].model_id == old.outputs.model_outputs[0].model_id, "the adapter is the same"


def test_other_parameters_or_code_are_another_run(project: Project) -> None:
    tracker, _ = project.log()
    project.params["update"] = {"learning_rate": 2e-05}
    project.write()
    project.log()
    assert len(runs(tracker, parent=True)) == 2
    lock = read_lock(project.root)
    for name, entry in lock.items():
        if name.startswith("evaluate@"):
            entry["deps"][-1]["md5"] = "d" * 32
    project.lock(lock)
    project.log()
    assert len(runs(tracker, parent=True)) == 3


@pytest.mark.parametrize(
    ("path", "reason", "metrics"),
    [
        ("run/002/metrics.json", "run/002/metrics.json is missing", {"val/success", "seconds/score"}),
        ("run/002/evaluation", "run/002/evaluation/summary.json is missing", {"reward_mean", "seconds/score"}),
        ("run/002/timings/rewards.json", "run/002/timings/rewards.json is missing", {"reward_mean", "val/success"}),
        ("run/002/adapter", "run/002/adapter is missing", {"reward_mean", "val/success", "seconds/score"}),
    ],
)
def test_what_is_missing_is_left_out_and_said(project: Project, path: str, reason: str, metrics: set[str]) -> None:
    lost = project.root / path
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    tracker, messages = project.log()
    assert [text for text in messages if "test" not in text] == [f"{reason}, and is left out"]
    logged = runs(tracker)[1].data.metrics
    assert logged.keys() & {"reward_mean", "val/success", "seconds/score"} == metrics


def test_what_is_not_what_dvc_recorded_is_left_out(project: Project) -> None:
    (project.root / "run/002/metrics.json").write_text('{"reward_mean": 9}')
    (project.root / "run/001/adapter/adapter_config.json").write_text('{"r": 8}')
    tracker, messages = project.log()
    assert "run/001/evaluation is of another adapter" in messages[0]
    assert "run/002/metrics.json is not what dvc.lock recorded" in messages[1]
    first, second = runs(tracker)
    assert "val/success" not in first.data.metrics
    assert "reward_mean" not in second.data.metrics


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("params", "params.yaml is not what rollout@001 ran with (`.venv/bin/dvc repro` runs it again)"),
        ("unfinished", "dvc.lock has no update@002, evaluate@002: not finished yet"),
        ("stale", "run/001/adapter has changed since rollout@002 ran"),
        ("no lock", "dvc.lock has no rollout@001"),
    ],
)
def test_what_is_not_finished_is_not_logged(project: Project, change: str, reason: str) -> None:
    lock = read_lock(project.root)
    if change == "params":
        (project.root / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"rollout": {"scenarios": 3}}))
    elif change == "unfinished":
        project.lock({name: entry for name, entry in lock.items() if name not in ("update@002", "evaluate@002")})
    elif change == "stale":
        lock["update@001"]["outs"][0]["md5"] = "e" * 32
        lock["evaluate@001"]["deps"][0]["md5"] = "e" * 32
        project.lock(lock)
    else:
        (project.root / "dvc.lock").unlink()
    tracker, messages = project.log()
    assert any(reason in text for text in messages)
    assert len(runs(tracker)) == (0 if change in ("params", "no lock") else 1)


def test_git_is_recorded(project: Project) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", "-C", str(project.root), *who, *words], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    (project.root / ".gitignore").write_text("/run/\n/.flywheel/\n")
    (project.root / "code.py").write_text("a = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    (project.root / "dvc.lock").write_text((project.root / "dvc.lock").read_text() + "\n")
    clean, difference = git_state(project.root)
    assert clean == {"git_commit": git("rev-parse", "HEAD"), "git_dirty": "false"} | {
        "mlflow.source.git.commit": git("rev-parse", "HEAD")
    }
    assert difference == "", "dvc.lock is the run's own"
    (project.root / "code.py").write_text("a = 2\n")
    (project.root / "new.py").touch()
    tracker, _ = project.log()
    (parent,) = runs(tracker, parent=True)
    assert parent.data.tags["git_dirty"] == "true"
    text = Path(tracker.client.download_artifacts(parent.info.run_id, "git.diff")).read_text()
    assert "?? new.py" in text
    assert "+a = 2" in text


def test_without_git_there_is_no_commit(tmp_path: Path) -> None:
    assert git_state(tmp_path) == ({}, "")


def test_a_store_plans_for_many_runs(tmp_path: Path) -> None:
    """To sort runs by a metric, SQLite looks each up; without statistics it compares every run with every metric."""
    database = tmp_path / "mlflow.db"
    make_store(database)
    metrics = "SELECT run_uuid, value FROM latest_metrics WHERE key = 'a'"
    query = f"SELECT DISTINCT runs.*, m.value FROM runs LEFT JOIN ({metrics}) AS m ON runs.run_uuid = m.run_uuid"

    def plan() -> str:
        with contextlib.closing(sqlite3.connect(database)) as link:
            rows = link.execute(f"EXPLAIN QUERY PLAN {query} WHERE experiment_id = 1 ORDER BY m.value, runs.run_uuid")
            return str(rows.fetchall())

    looks_up = "SEARCH m USING AUTOMATIC COVERING INDEX (run_uuid=?)"
    assert looks_up in plan()
    with contextlib.closing(sqlite3.connect(database)) as link, link:
        assert {row[0] for row in link.execute("SELECT idx FROM sqlite_stat1")} == set(MANY_RUNS)
        link.execute("DELETE FROM sqlite_stat1")
    assert looks_up not in plan()
    plan_for_many_runs(database)  # as when the server starts
    assert looks_up in plan()


def test_the_store_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.store.db import utils

    def interrupted(engine: Any) -> None:
        initialize(engine)
        raise KeyboardInterrupt

    initialize = utils._initialize_tables
    monkeypatch.setattr(utils, "_initialize_tables", interrupted)
    database = tmp_path / ".flywheel" / "mlflow.db"
    with pytest.raises(KeyboardInterrupt):
        make_store(database)
    assert list(database.parent.iterdir()) == []
    monkeypatch.undo()
    make_store(database)
    first = database.stat().st_ino
    make_store(database)  # as another process does that began at the same time
    assert database.stat().st_ino == first
    assert [path.name for path in database.parent.iterdir()] == ["mlflow.db"]
    with sqlite3.connect(database) as link:
        assert link.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_server_that_drips_is_one_sentence(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte used to begin the time-out anew, and the run hung."""
    from steps.project import slow_server

    monkeypatch.setattr(slow_server.LimitedResponse, "seconds", 0.3)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with dripping_server() as url:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        with pytest.raises(UserError, match="cannot be reached"):
            MlflowTracker(project.root)


def test_a_locked_store_is_a_sentence_without_sql(tmp_path: Path) -> None:
    import sqlalchemy

    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/mlflow.db", connect_args={"timeout": 0})
    with sqlite3.connect(tmp_path / "mlflow.db") as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError) as caught, explained("sqlite:///mlflow.db"), engine.connect() as link:
            link.exec_driver_sql("CREATE TABLE runs (id)")
    assert str(caught.value) == (
        "MLflow at sqlite:///mlflow.db cannot be reached or does not accept this: another process writes to its database; "
        "wait until that has ended, or stop it, then run the same again"
    )


def test_a_flow_s_tracker_outlasts_its_store(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.terminal.display import RunDisplay
    from flows.training import run as train

    monkeypatch.chdir(project.root)
    mlflow, (first, *_) = train.open_trackers(RunDisplay())
    with monkeypatch.context() as broken:
        broken.setattr(MlflowTracker, "_open", lambda *_: 1 / 0)  # pyrefly: ignore[division-by-zero]
        first.iteration("001")
        mlflow.log_artifact(project.root / "params.yaml")
        first.finish()
    mlflow.next_attempt = 0.0
    first.iteration("002")
    assert mlflow.tracker.logged == ["001", "002"]


@pytest.mark.parametrize("silent", [False, True])
def test_a_server_that_is_away_is_one_sentence(project: Project, monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        if not silent:
            server.close()
        else:
            monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        port = server.getsockname()[1] if silent else 9
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://anna:secret@127.0.0.1:{port}")
        started = time.monotonic()
        with pytest.raises(UserError, match=r"cannot be reached.*correct MLFLOW_TRACKING_URI, or unset it") as caught:
            MlflowTracker(project.root)
    assert time.monotonic() - started < 30
    assert "secret" not in str(caught.value)


def test_a_store_that_cannot_be_used_is_one_sentence(project: Project) -> None:
    (project.root / ".flywheel/mlflow.db").write_bytes(b"not a database" * 100)
    with pytest.raises(UserError, match=r"MLflow at sqlite:.*not a database.*run the same again"):
        MlflowTracker(project.root)


def test_its_experiment_opens_on_its_runs(project: Project) -> None:
    """MLflow opens the traces of an experiment without the tag. What a person chooses there stays."""
    tracker, _ = project.log()
    assert tracker.client.get_experiment(tracker.experiment).tags["mlflow.experimentKind"] == "custom_model_development"
    tracker.client.set_experiment_tag(tracker.experiment, "mlflow.experimentKind", "genai_development")
    MlflowTracker(project.root)
    assert tracker.client.get_experiment(tracker.experiment).tags["mlflow.experimentKind"] == "genai_development"


def test_a_deleted_experiment_is_one_sentence(project: Project) -> None:
    tracker, _ = project.log()
    tracker.client.delete_experiment(tracker.experiment)
    with pytest.raises(UserError, match=r"toy was deleted.*restore --experiment-id"):
        MlflowTracker(project.root)


def test_by_hand(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(project.root)
    assert by_hand([]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "logged: 001, 002; in MLflow now: 001, 002\n" in said.out


def test_by_hand_without_parameters_is_a_sentence(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project.root / "params.yaml").unlink()
    monkeypatch.chdir(project.root)
    assert by_hand([]) == 2
    said = capsys.readouterr()
    assert (said.out, "params.yaml does not exist" in said.err) == ("", True)


@pytest.mark.slow
def test_through_a_server(project: Project, mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in mlflow_server.variables.items():
        monkeypatch.setenv(name, value)
    tracker, messages = project.log()
    assert (messages, tracker.logged) == ([], ["001", "002"])
    again, _ = project.log()
    assert again.logged == []
    (parent,), nested = runs(tracker, parent=True), runs(tracker)
    assert len(nested) == 2
    assert {item.path for item in tracker.client.list_artifacts(parent.info.run_id)} >= {"dvc.lock", "params.yaml"}
    assert any(mlflow_server.artifacts.rglob("adapter_model.safetensors"))
    assert not any(project.root.rglob("mlartifacts/**/adapter_model.safetensors"))


def test_the_lag_of_an_overlapped_iteration_is_a_metric(project: Project) -> None:
    tracker, _ = project.log("001", "002", finish=False)
    assert all("policy_lag" not in run.data.metrics for run in runs(tracker))
    chain = yaml.safe_load((project.root / "chain.yaml").read_text())
    chain["iterations"]["002"]["policy"] = "000"
    (project.root / "chain.yaml").write_text(yaml.safe_dump(chain))
    measured = MeasuredRun(project.root, print)
    assert measured.iteration("002", {}, None)[0]["policy_lag"] == 1.0
    assert "policy_lag" not in measured.iteration("001", {}, None)[0]
