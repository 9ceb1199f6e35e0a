"""Pictures through the real engine: tiny random models of the families that see, sampled and trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from addons.pictures import engine
from steps.core.errors import UserError
from steps.core.params import Policy, Rollout
from steps.policy.loading import load_vision
from tests.conftest import ROOT, python, run
from tests.support import seeing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def measured(folder: Path, *words: str) -> dict[str, Any]:
    """What tests/support/seeing.py prints in a process of its own, which holds one engine."""
    process = run(python("tests.support.seeing", str(folder), *words), ROOT, seconds=560)
    lines = [line for line in process.stdout.splitlines() if line.startswith("{")]
    assert lines, process.stdout[-1000:] + process.stderr[-3000:]
    return dict(json.loads(lines[-1]))


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen3-vl"])
def test_sampler_and_trainer_see_the_same(family: str, tmp_path: Path) -> None:
    found = measured(tmp_path, family)
    assert found["kl"] < 1e-8
    assert found["kl_of_others"] > 0.01  # with the pictures of other rows
    assert found["update_kl"] < 1e-8
    assert found["kl_updated"] < 1e-8  # vLLM serves the new adapter, and
    assert found["kl_stale"] > 0.01  # not the one before
    assert found["breaches"] == []
    assert found["same"]
    assert max(found["turns"]) == 2
    assert set(found["pictures"]) == {1}
    assert len(found["stored"]) == 4


def test_a_stage_whose_policy_sees_none_ends_before_it_samples() -> None:
    from steps.sampling.job import Job
    from steps.sampling.play import play

    attempts = [(scenario, 0) for scenario in seeing.Colours.scenarios(None, "train", 2, 0)]
    name, job = attempts[0][0].id, Job(Policy(), Rollout(), Path("nowhere"), seeing.Colours, attempts, "x", 1)
    with pytest.raises(UserError, match=f"scenario {name} shows a picture: the policy .* sees no pictures"):
        play(job)


@pytest.mark.parametrize(
    "change", [{"tensor_parallel": 2}, {"quantization": "bnb-4bit"}, {"rollout_quantization": "fp8"}]
)
def test_settings_that_such_models_do_not_have_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    policy = seeing.make("qwen3-vl", tmp_path).model_copy(update=change)
    vision: Any = load_vision(policy)
    with pytest.raises(UserError, match=rf"policy.{next(iter(change))}: .* sees pictures, and such models are"):
        engine.arguments(policy, vision)
