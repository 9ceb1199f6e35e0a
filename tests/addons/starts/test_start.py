"""What a run starts from: addresses resolved once, adapters of another policy refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from addons.selfplay.section import Opponent
from addons.starts import sources
from addons.starts.section import Started
from addons.supervised.section import Sft
from environments.base import Scenario
from flows.deployment import workspace
from flows.repro.parameters import set_params
from flows.training import start
from steps.core.errors import UserError
from steps.core.params import Lora, Params, Policy, Rollout
from steps.core.records import Reward, StopReason, Trajectory, Turn, write_records
from steps.policy.adapter import adapter_hash
from steps.project import kept_runs
from steps.project.chain import CHAMPION
from steps.project.dvc import dvc
from steps.project.lock import file_md5, folder_md5
from tests.conftest import small_repository

CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4.0, "base_model_name_or_path": "base", "bias": "none"}
# answers, how their episodes ended, and their scores
ATTEMPTS: list[tuple[int, StopReason, float]] = [(5, "done", 0.0), (6, "done", 1.0), (7, "max_turns", 1.0)]
LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


def tensors(rank: int = 2) -> bytes:
    """A safetensors file of one adapted layer, with zeros."""
    header, place = {}, 0
    for name, shape in ((f"{LAYER}.lora_A.weight", [rank, 3]), (f"{LAYER}.lora_B.weight", [5, rank])):
        size = 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(place)


def adapter(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    (folder / "adapter_model.safetensors").write_bytes(tensors())
    return folder


def checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "state.json").write_text('{"adapter": "x", "steps": 8}')
    (folder / "state.safetensors").write_bytes(b"moments")
    return folder


def asked(address: str, optimizer: bool = False, **more: Any) -> Params:
    fields = {"base_model": "base", "lora": Lora(rank=2, alpha=4), "start_from": address, "start_optimizer": optimizer}
    policy = Policy.model_validate(fields)
    return Params(task="multiplication", policy=policy, **more)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with DVC, and no MLflow but its own."""
    small_repository(tmp_path, "task: multiplication\npolicy: {base_model: base, lora: {rank: 2, alpha: 4}}\n")
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".gitignore").write_text("/.flywheel/\n/run/\n/start/\n")
    return tmp_path


def played(scenario: Scenario, answer: int, stop: StopReason, name: str) -> Trajectory:
    message = {"role": "assistant", "content": str(answer)}
    turn = Turn(
        prompt_ids=(1,), completion_ids=(2,), logprobs=(-1.0,), message=message, observations=(), finish_reason="stop"
    )
    own: dict[str, Any] = {"id": f"a{answer}", "scenario_id": scenario.id, "attempt": answer, "adapter_hash": name}
    return Trajectory(**own, turns=(turn,), stop_reason=stop)


def kept_run(project: Path) -> str:
    """Keep a run; the hash of its adapter."""
    run = project / "run/001"
    name = adapter_hash(adapter(run / "adapter"))
    checkpoint(run / "checkpoint")
    (run / "evaluation").mkdir()
    (run / "evaluation/summary.json").write_text('{"success": 0.625}')
    (project / "run/scenarios").mkdir()
    scenario = Scenario.make("multiplication", "train", [{"role": "user", "content": "2 × 3?"}], {})
    write_records([scenario], project / "run/scenarios/train.parquet")
    write_records([played(scenario, answer, stop, name) for answer, stop, _ in ATTEMPTS], run / "trajectories.parquet")
    rewards = [
        Reward(trajectory_id=f"a{answer}", scenario_id=scenario.id, name="rule", score=score, success=score > 0)
        for answer, _, score in ATTEMPTS
    ]
    write_records(rewards, run / "rewards.parquet")
    outs = ["run/scenarios", *(str(path.relative_to(project)) for path in sorted(run.iterdir()))]
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"all": {"cmd": "true", "outs": outs}}}))
    dvc(project, "commit", "--force", "--quiet", "all")
    chain = {"iterations": {"001": {"prev": "000"}}, "tested": {"base": "000", "best": "001"}}
    (project / "chain.yaml").write_text(yaml.safe_dump(chain))
    workspace.git(project, "add", "dvc.yaml", ".gitignore")
    workspace.git(project, "commit", "--quiet", "-m", "dvc.yaml")
    kept_runs.keep_described(project, "nightly")
    return name


def test_a_kept_runs_iteration_and_its_good_trajectories_come_from_dvcs_cache(project: Path) -> None:
    """One real run of everything: DVC, a git worktree, start.dvc, what is said, and the same again without resolving."""
    import shutil

    name = kept_run(project)
    md5 = file_md5(project / "run/001/trajectories.parquet")
    shutil.rmtree(project / "run")
    params = asked("run:nightly", sft=Sft(from_runs=("nightly/001",)))
    lines = start.prepare(params)
    assert lines == [
        f"starts from run:nightly/001 (run:nightly): adapter {name}, validation success 0.625",
        "learns from 1 demonstrations first: 1 of run:nightly/001",
    ]
    assert adapter_hash(project / "start/policy") == name
    assert sorted(path.name for path in (project / "start/policy").iterdir()) == list(sources.FILES)
    [line] = (project / "start/demonstrations.jsonl").read_text().splitlines()
    question = {"role": "user", "content": "2 × 3?"}
    answer = {"role": "assistant", "content": "6"}
    assert json.loads(line) == {"messages": [question, answer], "source": f"{md5[:12]}/a6"}
    pointer = yaml.safe_load((project / "start.dvc").read_text())["outs"][0]
    assert pointer["md5"] == folder_md5(project / "start")
    assert list((project / ".flywheel/worktrees").iterdir()) == []
    assert workspace.git(project, "status", "--porcelain", "--", ".gitignore") == ""
    workspace.git(project, "update-ref", "-d", "refs/runs/nightly")  # what it was resolved to stays
    assert start.prepare(params, keep=True) == lines
    with pytest.raises(UserError, match="no run or revision 'nightly'"):
        start.prepare(params)
    assert start.prepare(Params(task="multiplication")) == []
    assert not (project / "start").exists() | (project / "start.dvc").exists()


class FakeRegistry:
    """Stands for MLflow: a champion, which another version may become."""

    version = 3

    def bring(self, root: Path, address: str, to: Path) -> sources.Brought:
        assert address == "models:/tic_tac_toe@champion"
        adapter(to, note=self.version)
        return sources.Brought(f"models:/tic_tac_toe/{self.version}", "base", None, ", test success 0.875")


def test_a_champion_that_is_the_opponent_is_resolved_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = FakeRegistry()
    monkeypatch.setattr(sources, "from_registry", registry.bring)
    policy = Policy(base_model="base", lora=Lora(rank=2, alpha=4))
    params = Params(
        task="tic_tac_toe", policy=policy, rollout=Rollout.model_validate({"opponent": Opponent(player="champion")})
    )
    lines = start.prepare(params)
    name = adapter_hash(project / "start/champion")
    assert lines == [f"plays against models:/tic_tac_toe/3: adapter {name}, test success 0.875"]
    assert start.opponent(params) == CHAMPION == "start/champion"
    assert yaml.safe_load((project / "start.dvc").read_text())["outs"][0]["md5"] == folder_md5(project / "start")
    registry.version = 4
    assert start.prepare(params, keep=True) == lines, "the same run goes on against the same champion"
    assert "models:/tic_tac_toe/4" in start.prepare(params)[0]
    assert adapter_hash(project / "start/champion") != name


def test_a_champion_of_another_rank_cannot_be_the_opponent(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "from_registry", FakeRegistry().bring)
    params = Params(
        task="tic_tac_toe",
        policy=Policy(base_model="base", lora=Lora(rank=8, alpha=4)),
        rollout=Rollout.model_validate({"opponent": Opponent(player="champion")}),
    )
    with pytest.raises(
        UserError, match=r"rollout\.opponent: models:/tic_tac_toe/3 has r 2, and policy\.lora\.rank is 8"
    ):
        start.prepare(params)


@pytest.mark.parametrize(("player", "expected"), [("iteration", 3), ("random", None)])
def test_other_opponents_need_nothing_from_elsewhere(project: Path, player: str, expected: int | None) -> None:
    params = Params(task="tic_tac_toe", rollout=Rollout.model_validate({"opponent": Opponent(player=player, every=3)}))
    assert start.prepare(params) == []
    assert start.opponent(params) == expected


def test_a_fork_has_its_runs_settings(project: Path) -> None:
    kept_run(project)
    (project / "params.yaml").write_text("task: email_search\nseed: 9\n")
    text, changes = sources.fork("nightly/001")
    params = set_params([*changes, "seed=4"], begin=text)
    assert (params.task, params.seed, params.policy.base_model) == ("multiplication", 4, "base")
    assert (Started.of(params.policy).start_from, Started.of(params.policy).start_optimizer) == (
        "run:nightly/001",
        True,
    )
    assert "seed: 9" in (project / "params.yaml.before").read_text()
    with pytest.raises(UserError, match="there is no run or revision 'other'"):
        sources.fork("other/001")


def test_a_folder_of_ones_own_is_not_removed(project: Path) -> None:
    (project / "start").mkdir()
    (project / "start/mine").write_text("")
    with pytest.raises(UserError, match="holds something else"):
        start.prepare(Params(task="multiplication"))
    assert (project / "start/mine").exists()


# --- Folders and the Hub


def test_a_checkpoint_is_found_beside_its_adapter_and_the_other_way_round(tmp_path: Path) -> None:
    adapter(tmp_path / "run/003/adapter")
    checkpoint(tmp_path / "run/003/checkpoint")
    for part in ("adapter", "checkpoint"):
        brought = sources.bring(tmp_path, asked(str(tmp_path / "run/003" / part), True), tmp_path / f"to-{part}")
        assert brought["adapter"] == adapter_hash(tmp_path / "run/003/adapter")
        assert {path.name for path in (tmp_path / f"to-{part}").iterdir()} == {*sources.FILES, *sources.CHECKPOINT}


def test_the_hub_is_asked_once_and_the_commit_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    calls = []
    commit = adapter(tmp_path / ("c" * 40))

    def download(name: str, revision: str | None = None, allow_patterns: Any = None) -> str:
        calls.append((name, revision, allow_patterns))
        return str(commit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    brought = sources.bring(tmp_path, asked("me/agent@main"), tmp_path / "to")
    assert brought["resolved"] == f"me/agent@{'c' * 40}"
    assert calls == [("me/agent", "main", list(sources.FILES))]  # no pickled weights
    with pytest.raises(UserError, match=r"start_optimizer would have no effect: an adapter on the Hub"):
        sources.bring(tmp_path, asked("me/agent", True), tmp_path / "other")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("no/folder/here", "there is no folder no/folder/here, and it is no models:/"),
        ("empty", "has no adapter_config.json and no adapter_model.safetensors: name a folder"),
        ("alone", "has no state.json and no state.safetensors, so there is no optimiser state"),
    ],
)
def test_an_address_that_leads_nowhere_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    adapter(tmp_path / "alone")
    with pytest.raises(UserError, match=reason):
        sources.bring(tmp_path, asked(address, optimizer=True), tmp_path / "to")


BREAKS: dict[str, tuple[dict[str, Any], Callable[[Path], object] | None, str]] = {
    "kind": ({"peft_type": "IA3"}, None, "is IA3, and only plain LoRA"),
    "dora": ({"use_dora": True}, None, "is a LoRA adapter with use_dora"),
    "bias": ({"bias": "all"}, None, "trains biases, too"),
    "rank": ({"r": 8}, None, r"has r 8, and policy\.lora\.rank is 2: set it to 8"),
    "alpha": ({"lora_alpha": 32}, None, r"has lora_alpha 32, and policy\.lora\.alpha is 4: set it to 32"),
    "base": ({"base_model_name_or_path": "other"}, None, "base model other, and policy.base_model is base"),
    "weights": ({}, lambda folder: (folder / sources.FILES[1]).write_bytes(tensors(3)), "has matrices of rank 3"),
    "no weights": ({}, lambda folder: (folder / sources.FILES[1]).write_bytes(b"PK"), "is no safetensors file"),
    "no json": ({}, lambda folder: (folder / sources.FILES[0]).write_text("{"), "is no JSON"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BREAKS)
def test_an_adapter_of_another_policy_is_refused_before_anything_loads(tmp_path: Path, kind: str) -> None:
    config, change, reason = BREAKS[kind]
    folder = adapter(tmp_path / "adapter", **config)
    if change is not None:
        change(folder)
    with pytest.raises(UserError, match=reason):
        sources.bring(tmp_path, asked(str(folder)), tmp_path / "to")
