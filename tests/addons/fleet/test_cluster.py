"""Engines on a real Ray cluster of this machine, with actors that sample nothing (tests/support/fake_engine.py)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from addons.fleet import cluster, engine_actor, raycluster
from environments.base import Scenario
from environments.multiplication import Multiplication
from steps.core.errors import FreshProcessNeeded, UserError
from steps.core.params import Params, Policy, Rollout
from steps.core.progress import take_measurements
from steps.core.records import Trajectory
from steps.sampling.job import Job
from steps.sampling.play import play
from tests.conftest import ROOT

POLICY = Policy.model_validate({"kind": "ray", "threads": 1, "engines": 2})
LIMITS = Rollout.model_validate({"scenarios": 6, "shards": 3, "max_tokens": 16})


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of two CPUs, whose engines follow the orders in this folder."""
    folder = tmp_path_factory.mktemp("orders")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_ENGINE_ORDERS", str(folder))
        from tests.support.fake_engine import FakeEngineActor

        patch.setattr(cluster, "EngineActor", FakeEngineActor)
        patch.setattr(raycluster, "cores", lambda: [0, 1])
        raycluster.connect(None, ["tests"])
        yield folder
        cluster.end()
        raycluster.disconnect()


def played(tmp_path: Path, policy: Policy = POLICY) -> list[Trajectory]:
    adapter = tmp_path / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    attempts = [
        (Scenario(id=f"s{number}", task="t", split="train", messages=[], data={}), attempt)
        for number in range(6)
        for attempt in range(2)
    ]
    return play(Job(policy, LIMITS, adapter, Multiplication, attempts, "001", 7, None, tmp_path / "none"))


@pytest.mark.nightly
@pytest.mark.slow
def test_each_episode_is_there_once_whatever_becomes_of_engines(orders: Path, tmp_path: Path) -> None:
    take_measurements()
    first = played(tmp_path)
    assert [trajectory.id for trajectory in first] == [f"001-s{n}-{attempt}" for n in range(6) for attempt in range(2)]
    assert {len(trajectory.turns[0].completion_ids) for trajectory in first} == {2}
    assert {trajectory.turns[0].completion_ids[0] for trajectory in first} == {4}  # two scenarios' attempts in a shard
    measured = take_measurements()
    assert len(measured.turns) == 12
    assert measured.numbers["engines"] == 2
    (orders / "die").touch()
    assert played(tmp_path) == first
    assert not (orders / "die").exists()  # an engine has died of it
    [fleet] = cluster._fleets.values()
    fleet.ray.kill(fleet.members[max(fleet.members)].handle)  # an idle one, between two batches
    assert played(tmp_path) == first
    with pytest.raises(FreshProcessNeeded):
        raycluster.connect("auto")


@pytest.mark.nightly
@pytest.mark.slow
def test_an_engine_that_cannot_start_ends_the_stage(orders: Path, tmp_path: Path) -> None:
    cluster.end()
    (orders / "refuse").touch()
    with pytest.raises(UserError, match="cannot load it"):
        played(tmp_path)
    (orders / "refuse").rename(orders / "unlike")
    reason = r"gives the bytes that this machine gives: [\d.]+: torch: 2\.13\.0 here, 2\.12\.0 there"
    with pytest.raises(UserError, match=reason):  # 127.0.0.1, unless this process had imported ray before
        played(tmp_path, POLICY.model_copy(update={"engines": 1}))
    (orders / "unlike").unlink()
    with pytest.raises(
        UserError, match=r"policy.threads: 64 needs a node with 64 CPU, and no node .* largest has 2 CPU"
    ):
        cluster.fleet_of(Policy(kind="ray", threads=64))


def test_two_engines_of_a_machine_compute_on_cores_of_their_own(tmp_path: Path) -> None:
    program = (
        "import os, sys; from addons.fleet import engine_actor as e; e.cores = lambda: sorted(os.sched_getaffinity(0)); "
        "e.take_cores(1); print(sorted(os.sched_getaffinity(0)), flush=True); sys.stdin.read()"
    )
    cores = engine_actor.cores()
    words, variables = [sys.executable, "-c", program], {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    engines = []
    for _ in range(min(2, len(cores))):
        engine = subprocess.Popen(words, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        engines.append((engine, engine.stdout.readline() if engine.stdout else ""))
    for engine, _ in engines:
        engine.communicate()
    assert [answer for _, answer in engines] == [f"[{core}]\n" for core in cores[: len(engines)]]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"policy": {"cluster": "auto"}}, "policy.cluster would have no effect with policy.kind: vllm"),
        ({"policy": {"engines": 2}}, "policy.engines would have no effect with policy.kind: vllm"),
        ({"policy": {"kind": "ray", "cluster": "http://x"}}, "policy.cluster"),
        ({"rollout": {"shards": 17}}, "rollout.shards (17) is more than rollout.scenarios (16)"),
        ({"evaluate": {"shards": 121}}, "evaluate.shards (121) is more than the scenarios of a split"),
        ({"policy": {"kind": "scripted"}, "evaluate": {"shards": 2}}, "evaluate.shards would have no effect"),
    ],
)
def test_settings_that_nothing_reads_are_refused(settings: dict[str, dict[str, object]], reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        Params.model_validate(settings)


def test_a_policy_on_ray_learns_as_one_in_this_process_does() -> None:
    assert Policy(kind="ray").has_adapter
    assert not Policy(kind="random").has_adapter


def test_why_an_actor_was_lost_is_one_short_sentence() -> None:
    text = """The actor died unexpectedly before finishing this task. class_name: EngineActor
    The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker
    unexpectedly exits with a connection error code 2. End of file. Some common causes include: …"""
    words = "its process has died (SYSTEM_ERROR: Worker unexpectedly exits with a connection error code 2)"
    assert cluster.reason(RuntimeError(text)) == words
    assert cluster.reason(RuntimeError("The actor died because its node has died. Node Id: x")) == "its node has died"
