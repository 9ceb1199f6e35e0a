"""Weights & Biases, really run offline: what it would send is read back from its own file. Nothing goes out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from addons.trackers import wandb, wandb_process
from environments.base import Scenario, error, use
from steps.core.params import Params
from steps.core.records import Reward, Trajectory, Turn, write_records
from steps.policy.adapter import adapter_hash
from steps.project import lock
from tests.support.wandb_file import Sent
from tests.tracking.test_tracking import Project

ROOT = Path(wandb.__file__).parent.parent.parent
PLANTED = {  # in the environment, in a prompt, in a call's arguments, in what a tool answered
    "SHOP_API_KEY": "s3cr3t-of-the-shop",
    "prompt": "sk-proj-Abcdefgh1234567890xyz",
    "arguments": "hunter2-hunter2",
    "answer": "ghp_0123456789abcdefghijABCDEFGHIJ012345",
}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_", "FLYWHEEL_ROOT"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two iterations, with episodes in which secrets were planted."""
    created = Project(tmp_path / "a project")
    root = created.root
    asked = [{"role": "user", "content": f"How far is the moon? {PLANTED['prompt']}"}]
    scenario = Scenario.make("toy", "train", asked, {})
    (root / "run/scenarios").mkdir(exist_ok=True)
    write_records([scenario], root / "run/scenarios/train.parquet")
    for number in ("001", "002"):
        batch = episodes(number, scenario, 6)
        write_records(batch, root / "run" / number / "trajectories.parquet")
        rewards = [
            Reward(trajectory_id=trajectory.id, scenario_id=scenario.id, name="rule", score=0.5, success=True)
            for trajectory in batch
        ]
        write_records(rewards, root / "run" / number / "rewards.parquet")
    created.write()
    return created


@pytest.fixture
def store(project: Project, empty_store: Path) -> Iterator[None]:
    """A real MLflow store for it."""
    (project.root / ".flywheel").mkdir(parents=True)
    shutil.copy(empty_store, project.root / ".flywheel/mlflow.db")
    yield
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        os.environ.pop(name)


def episodes(number: str, scenario: Scenario, count: int, turns: int = 2) -> list[Trajectory]:
    """Each asks so many times, and is answered with an error at last."""
    message = use("measure", text=f"password: {PLANTED['arguments']}", name=f"of {PLANTED['SHOP_API_KEY']}")
    answers = [f"384400 km, {PLANTED['answer']}"] * (turns - 1) + [error("no such thing")]
    sampled = [
        Turn(
            prompt_ids=(1,),
            completion_ids=(2, 3),
            logprobs=(-0.1, -0.1),
            message=message,
            observations=({"role": "tool", "name": "measure", "content": text},),
            finish_reason="stop",
        )
        for text in answers
    ]
    fields: dict[str, Any] = {"scenario_id": scenario.id, "adapter_hash": "a", "turns": tuple(sampled)}
    return [Trajectory(id=f"{number}-{n}", attempt=n, stop_reason="max_turns", **fields) for n in range(count)]


def tracked(project: Project) -> list[str]:
    """What a flow does, with a real tracker; returns what was told."""
    from steps.tracking.tracker import MlflowTracker, Tracker

    messages: list[str] = []
    mlflow = MlflowTracker(project.root, messages.append)
    beside = wandb.begin(mlflow, is_live=True)
    assert beside is not None
    trackers: list[Tracker] = [mlflow, beside]
    for number in ("001", "002"):
        for tracker in trackers:
            tracker.iteration(number, 0.25)
    for tracker in trackers:
        tracker.finish()
    return messages


def sent(root: Path) -> list[Sent]:
    return [Sent(folder) for folder in sorted((root / ".flywheel/wandb").glob("offline-run-*"))]


def interrupt(project: Project) -> None:
    """Begin a run, and end it after its first iteration as the end of a flow that is killed does."""
    messages: list[str] = []
    interrupted = wandb.WandbTracker(fake(project.root, messages))
    interrupted.iteration("001")
    interrupted.finish("KILLED")
    interrupted.iteration("002")  # what is still being logged beside the flow is not sent
    assert interrupted.process is not None
    assert interrupted.process.wait(240) == 0
    assert messages == []
    time.sleep(1.05 - time.time() % 1)  # offline runs are named by the second


def test_an_offline_run_that_was_interrupted_is_gone_on_with_and_holds_it_all(
    project: Project, store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("SHOP_API_KEY", PLANTED["SHOP_API_KEY"])
    interrupt(project)
    assert tracked(project) == []
    assert (project.root / ".flywheel/wandb.log").read_text() == ""
    [first, offline] = sent(project.root)
    assert ([row["_step"] for row in first.history], first.exit_code) == ([0, 1], 1)
    assert first.run.run_id == offline.run.run_id
    key = str(lock.run_key(lock.read_lock(project.root)))
    assert (offline.run.run_id, offline.run.project, offline.run.run_group) == (key, "agent-flywheel", "toy")
    assert offline.run.display_name == f"toy seed 3 {key[:6]}"
    assert offline.run.resume
    assert offline.exit_code == 0

    assert {name: offline.config[name] for name in ("seed", "update.learning_rate", "update.loss_type")} == {
        "seed": 3,
        "update.learning_rate": 1e-05,
        "update.loss_type": "dapo",
    }
    assert [row["_step"] for row in offline.history] == [0, 1, 2]
    base, _, last = offline.history
    assert base["val/success"] == 0.3
    assert "average_reward" not in base
    expected = {"average_reward": 1.0, "success_rate": 0.25, "average_episode_length": 3.0, "reward_mean": 1.0}
    expected |= {"val/success": 0.5, "seconds/update": 2.0, "overhead_seconds": 0.25, "learning_rate": 3e-06}
    assert last.items() >= expected.items()
    assert offline.summary["test/success"] == 0.4
    assert offline.summary["best_iteration"] == "002"

    columns, rows = offline.table(2, "episodes")
    assert (columns, len(rows)) == (wandb_process.EPISODES, 6)
    row = dict(zip(columns, rows[0], strict=True))
    assert (row["episode"], row["turns"], row["tokens"], row["reward"], row["success"]) == ("002-0", 2, 4, 0.5, True)
    assert row["prompt"] == "How far is the moon? [masked]"
    columns, rows = offline.table(1, "actions")
    assert (columns, len(rows)) == (wandb_process.ACTIONS, 12)
    row = dict(zip(columns, rows[0], strict=True))
    assert (row["turn"], row["action"], row["is_error"]) == (1, "measure", False)
    assert row["answer"] == "384400 km, [masked]"
    assert rows[1][-1] is True

    name = adapter_hash(project.root / "run/002/adapter")
    [adapter] = [item for item in offline.artifacts if item.type == "model"]
    assert (adapter.name, set(adapter.aliases)) == (f"adapter-{name}", {"latest", "best"})
    assert {item.path for item in adapter.manifest.contents} == {"adapter_config.json", "adapter_model.safetensors"}

    everything = [
        path for path in (project.root / ".flywheel").rglob("*") if path.is_file() and "mlflow" not in path.name
    ]
    assert any(path.suffix == ".wandb" for path in everything)
    unmasked = str(wandb_process.rows(project.root / "run", "001"))
    assert all(secret in unmasked for secret in PLANTED.values()), "they would be sent"
    for path in everything:
        content = path.read_bytes()
        assert [name for name, secret in PLANTED.items() if secret.encode() in content] == [], path
    names = {path.name for path in offline.files.rglob("*")}
    assert names.isdisjoint({"wandb-metadata.json", "requirements.txt", "output.log", "diff.patch", "code"}), names
    assert not {field.name for field, _ in offline.run.ListFields()} & {"git", "host"}


def test_without_it_nothing_is_imported_or_started() -> None:
    code = "import sys; from addons.trackers import wandb; print(wandb.begin(None, True), 'wandb' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert process.stdout == "None False\n", process.stderr


def test_switched_off_in_spite_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    assert wandb.begin(fake(Path(), []), is_live=True) is not None
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb.begin(fake(Path(), []), is_live=True) is None
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY")
    assert wandb.begin(fake(Path(), []), is_live=True) is None


def test_a_key_without_the_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    messages: list[str] = []
    assert wandb.begin(fake(Path(), messages), is_live=True) is None
    [message] = messages
    assert "(WANDB_API_KEY), and the package wandb is not installed" in message
    assert "k" * 40 not in message


# --- What goes wrong


def fake(root: Path, messages: list[str]) -> Any:
    """Stands for MLflow's tracker, with metrics that no MLflow measured."""

    def metrics(number: str | None) -> dict[str, float]:
        return {"loss": 0.5} if number else {"test/success": 0.4, "val/success": 0.2}

    return SimpleNamespace(root=root, params=Params(task="toy"), metrics=metrics, log_message=messages.append)


def beside(root: Path, program: str) -> tuple[wandb.WandbTracker, list[str]]:
    """In place of the process one that runs this."""
    messages: list[str] = []
    (root / "chain.yaml").write_text('tested: {base: "000", best: "001"}')
    return wandb.WandbTracker(fake(root, messages), command=(sys.executable, "-c", program)), messages


def all_of_it(tracker: wandb.WandbTracker, iterations: int = 3) -> float:
    started = time.monotonic()
    for number in range(1, iterations + 1):
        tracker.iteration(f"{number:03d}")
    tracker.finish()
    return time.monotonic() - started


def test_one_that_fails_is_one_warning(tmp_path: Path) -> None:
    tracker, messages = beside(tmp_path, "print('noise\\nerror: CommError: no such key'); raise SystemExit(1)")
    all_of_it(tracker)
    tracker.iteration("004")
    tracker.finish()
    [message] = messages
    assert message.startswith("Weights & Biases does not log this run (CommError: no such key; ")
    assert message.endswith("; the run goes on without it")


def test_one_that_ends_at_once_is_one_warning(tmp_path: Path) -> None:
    tracker, messages = beside(tmp_path, "")
    tracker.iteration("001")
    assert tracker.process is not None
    tracker.process.wait(240)
    all_of_it(tracker)
    assert len(messages) == 1


def test_one_that_cannot_be_started_is_one_warning(tmp_path: Path) -> None:
    messages: list[str] = []
    tracker = wandb.WandbTracker(fake(tmp_path, messages), command=(str(tmp_path / "missing"),))
    all_of_it(tracker)
    assert len(messages) == 1


@pytest.mark.parametrize("iterations", [3, 2000])  # the second fills the line, and the writer would wait
def test_one_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iterations: int) -> None:
    monkeypatch.setattr(wandb, "PATIENCE", 0.3)
    tracker, messages = beside(tmp_path, "import time; time.sleep(60)")
    taken = all_of_it(tracker, iterations)
    assert tracker.process is not None
    os.killpg(tracker.process.pid, signal.SIGKILL)
    tracker.process.wait(240)
    assert taken < 30  # of the 60 for which it hangs
    [message] = messages
    assert ("the upload goes on by itself" in message) == (iterations == 3)


def test_a_server_that_does_not_answer_holds_nothing_up(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real wandb, online, against a port at which nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
        monkeypatch.setattr(wandb, "PATIENCE", 1.0)
        messages: list[str] = []
        tracker = wandb.WandbTracker(fake(project.root, messages))
        taken = all_of_it(tracker)
        assert tracker.process is not None
        assert tracker.process.poll() is None, "it waits by itself"
        os.killpg(tracker.process.pid, signal.SIGKILL)
        tracker.process.wait(240)
    assert taken < 30  # of the 60 for which it hangs
    assert ["the upload goes on by itself" in message for message in messages] == [True]
    assert "k" * 40 not in "".join(
        path.read_text(errors="replace")
        for path in (project.root / ".flywheel").rglob("*.log")
        if path.exists()  # wandb links to a log before it writes one
    )


# --- Parts


def test_usual_names() -> None:
    given = {
        "loss": 0.1,
        "kl": 0.2,
        "entropy": 0.3,
        "reward_mean": 0.4,
        "success": 0.5,
        "turns": 6.0,
        "update/learning_rate": 1e-4,
    }
    named = wandb_process.usual(given)
    assert {name: named[name] for name in named.keys() - given.keys()} == {
        "policy_loss": 0.1,
        "kl_divergence": 0.2,
        "average_reward": 0.4,
        "success_rate": 0.5,
        "average_episode_length": 6.0,
        "learning_rate": 1e-4,
    }
    assert named.items() >= given.items()


def test_tables_are_bounded_and_of_the_whole_batch(tmp_path: Path) -> None:
    scenario = Scenario.make("toy", "train", [{"role": "user", "content": "w" * 900}], {})
    (tmp_path / "001").mkdir()
    (tmp_path / "scenarios").mkdir()
    write_records([scenario], tmp_path / "scenarios/train.parquet")
    write_records(episodes("001", scenario, 450, turns=7), tmp_path / "001/trajectories.parquet")
    first, actions = wandb_process.rows(tmp_path, "001")
    assert (len(first), len(actions)) == (200, 196)  # 28 whole episodes of seven actions
    assert int(first[-1][1].partition("-")[2]) > 440
    assert len({row[1] for row in actions}) == 28
    assert {len(row[3]) for row in first} == {wandb_process.CHARACTERS}
    assert len(wandb_process.rows(tmp_path, "002")[0]) == 0


def test_an_adapter_that_names_a_secret_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "https://me:pa55word@hub/model"})
    )
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    messages: list[str] = []
    wandb_process.send_adapter(None, tmp_path, messages.append)
    wandb_process.send_adapter(None, tmp_path / "missing", messages.append)
    assert ["holds what looks like a secret" in messages[0], "does not exist" in messages[1]] == [True, True]
