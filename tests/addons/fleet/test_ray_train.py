"""Workers of a Ray cluster: what is sent to them is all that they need, and how a run that fails is explained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from addons.fleet import ray_train as cluster
from addons.fleet import raycluster
from addons.fleet.ray_train import StageFailed
from steps.core.errors import UserError
from steps.core.params import Policy, Rollout, Update, UpdateParams
from steps.runner.handover import WorkerError
from steps.update import update
from tests.stages.test_update import SETTINGS, Batch
from tests.support import ray_update
from tests.support.tiny import files

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def batch(tmp_path: Path, policy: Policy) -> Batch:
    made = Batch(tmp_path, policy)
    made.write()
    return made


def job_of(batch: Batch, to: str) -> dict:
    """An update of the batch, as it is sent to a worker, through JSON for what is not content."""
    place = batch.folder / to
    params = UpdateParams(
        task="email_search",
        seed=3,
        policy=batch.policy,
        rollout=Rollout(),
        update=Update.model_validate(SETTINGS | {"launcher": "ray"}),
    )
    job = cluster.packed(
        update,
        {
            "trajectories": batch.folder / "trajectories.parquet",
            "rewards": batch.folder / "rewards.parquet",
            "previous": batch.folder / "previous",
            "adapter": place / "adapter",
            "checkpoint": place / "checkpoint",
            "metrics": place / "metrics.json",
            "params": params,
            "fates": None,
        },
    )
    return job | {"values": json.loads(json.dumps(job["values"]))}


def test_what_is_sent_is_all_that_a_worker_needs(batch: Batch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker is this process, with the variables that Ray Train sets. The bytes are those of the stage here."""
    batch.update("here")
    job = job_of(batch, "there")
    for path in [*batch.folder.glob("*.parquet"), *(batch.folder / "previous").iterdir()]:
        path.unlink()
    monkeypatch.setenv("RANK", "0")
    result = cluster.run(job)
    assert set(result["outputs"]) == {"adapter", "checkpoint", "metrics"}
    for name, content in result["outputs"].items():
        cluster.unpack(content, tmp_path / "back" / name)
    for name in ("adapter", "checkpoint"):
        assert files(tmp_path / "back" / name) == files(batch.folder / "here" / name)
    assert (tmp_path / "back/metrics").read_bytes() == (batch.folder / "here/metrics.json").read_bytes()
    assert result["measured"]["learning_rate"] == 1e-2
    assert not (batch.folder / "there").exists(), "the stage alone writes"


def test_a_worker_s_refusal_names_the_stage_s_own_paths(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none of the folder that the worker has put its inputs in."""
    monkeypatch.setenv("RANK", "0")
    batch.change("s0/0", adapter_hash="0" * 16)
    batch.write()
    monkeypatch.chdir(batch.folder)
    with pytest.raises(StageFailed) as failed:
        cluster.run(job_of(batch, "there"))
    assert failed.value.code == 2
    assert "previous" in failed.value.text
    assert "/tmp" not in failed.value.text
    assert "flywheel-update-" not in failed.value.text


def test_paths_outside_the_project_stay_below_the_worker_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cluster._below(Path("run/001/adapter")) == "run/001/adapter"
    assert cluster._below(tmp_path / "run") == "run"
    assert cluster._below(Path("../other")) == str(tmp_path.parent / "other")[1:]


def test_a_refusal_is_told_before_a_death_and_a_death_before_its_consequence() -> None:
    refusal, consequence = StageFailed("choose another", 2), StageFailed("Connection closed by peer", 1)
    death = RuntimeError("The actor died\nunexpectedly")
    explained = cluster.explained({0: consequence, 1: refusal}, 2)
    assert isinstance(explained, UserError)
    assert not isinstance(explained, WorkerError)
    assert str(explained) == "choose another"
    explained = cluster.explained({0: consequence, 1: death}, 2)
    assert isinstance(explained, WorkerError)
    assert str(explained) == "worker 2 of the 2 that share the update died: The actor died unexpectedly"
    assert str(cluster.explained({0: consequence}, 2)) == "Connection closed by peer"


def test_a_cluster_without_room_is_a_sentence_with_numbers() -> None:
    text = cluster.no_room(4, {"CPU": 1, "GPU": 1}, {"CPU": 8.0, "GPU": 2.0}, {"CPU": 6.0})
    assert "update.processes: 4 within 60 s: they need 4 CPUs and 4 GPUs" in text
    assert "of the cluster's 8 CPUs and 2 GPUs, 6 CPUs and 0 GPUs are free" in text


@pytest.fixture
def local_ray() -> Iterator[None]:
    """A cluster of this process with two cores, which ends with the test."""
    raycluster.connect(None)
    yield
    raycluster.disconnect()


@pytest.mark.nightly
def test_two_workers_of_ray_train_make_the_update_of_one_process(batch: Batch, local_ray: None) -> None:
    """Gradients (in Adam's moments) and adapters. `python -m tests.support.ray_update` does it on two nodes, and kills
    workers."""
    batch.policy = batch.policy.model_copy(update={"threads": 1})
    measured = ray_update.compare(batch, 2, ["adapter"])
    assert measured["adapter_gap"] < 1e-5
    assert measured["adapter_moments_gap"] < 1e-5
    assert batch.update("after", beta=0)["optimizer_steps"] == 2, "this process is as it was"
