"""Agents in the stages: a job of theirs comes to the gateway, with pictures, and what it refuses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import environments
from addons.agents.gateway import play as gateway
from addons.selfplay.rivals import Opponent
from steps.code import Imports, named_by
from steps.core.errors import UserError
from steps.core.params import CodeParams, Policy, Rollout, Update
from steps.sampling.job import Job
from steps.sampling.play import play, sampler
from tests.addons.pictures.test_engine import measured
from tests.conftest import ROOT
from tests.support import seeing

ONLOOKER = "tests.support.agents.onlooker"


def job(**more: Any) -> Job:
    attempts = [(scenario, 0) for scenario in seeing.Colours.scenarios(None, "train", 2, 0)]
    return Job(Policy(), Rollout(), Path("nowhere"), environments.load(ONLOOKER), attempts, "x", 1, task="t", **more)


def test_the_gateway_plays_them_wherever_the_engines_are() -> None:
    assert sampler(job()) is gateway


def test_they_have_no_other_side() -> None:
    with pytest.raises(UserError, match=r"rollout\.opponent: t is an agent of your own, and no game; take it out"):
        play(job(opponent=Opponent("random", None, Counter())))


def test_a_policy_that_sees_none_is_refused_before_it_samples() -> None:
    with pytest.raises(UserError, match=f"scenario {job().attempts[0][0].id} shows a picture"):
        play(job())


@pytest.mark.parametrize(
    ("task", "text", "counts"),
    [
        ("mine", "def rollout(episode):\n    ...\n", True),
        ("mine", "class Mine(Env):\n    ...\n", False),
        ("my_package.mine", "", True),
    ],
)
def test_the_gateways_code_counts_where_the_task_may_be_an_agent(
    tmp_path: Path, task: str, text: str, counts: bool
) -> None:
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments/mine.py").write_text(text)
    named = named_by(CodeParams(task=task, policy=Policy(), update=Update()), tmp_path / "environments")
    assert named["agents"] == ["gateway"] * counts
    brought = set(Imports(ROOT, named).closure("steps.rollout"))
    assert (ROOT / "addons/agents/gateway/play.py" in brought) is counts


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen3-vl"])
def test_episodes_of_an_agent_pass_the_stages(family: str, tmp_path: Path) -> None:
    """Pictures of scenarios.jsonl and of the agent's own, through the gateway: each trajectory is one row."""
    found = measured(tmp_path, family, "--stages", "5", "4")
    check_stages(found, 20)


def check_stages(found: dict[str, Any], episodes: int) -> None:
    assert (found["episodes"], found["rows"], found["errors"], found["breaches"]) == (episodes, episodes, [], [])
    assert found["pictures"] == [1, 2]  # a scenario's, and the agent's own in its second request
    assert found["same_bytes"]
    assert found["picture_tokens_with_loss"] == 0
    metrics = found["metrics"]
    assert metrics["trained"] > 0
    assert metrics["trained"] + metrics["without_signal"] == episodes
    assert metrics["sampler_kl"] < 1e-8
    fates = [value for name, value in metrics.items() if name.startswith(("tokens_trained", "tokens_dropped/"))]
    assert sum(fates) == metrics["tokens_collected"] > 0
    assert metrics["grad_norm"] > 0
    assert found["evaluated"] == 2
