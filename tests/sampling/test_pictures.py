"""Pictures through the real engine: tiny random models of the families that see, sampled and trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, python, run
from tests.support import seeing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FAMILIES = [pytest.param("qwen2.5-vl", marks=pytest.mark.long), "qwen3-vl"]


def measured(folder: Path, *words: str) -> dict[str, Any]:
    """What tests/support/seeing.py prints in a process of its own, which holds one engine."""
    process = run(python("tests.support.seeing", str(folder), *words), ROOT, seconds=560)
    lines = [line for line in process.stdout.splitlines() if line.startswith("{")]
    assert lines, process.stdout[-1000:] + process.stderr[-3000:]
    return dict(json.loads(lines[-1]))


@pytest.mark.parametrize("family", FAMILIES)
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


@pytest.mark.long
@pytest.mark.parametrize("family", seeing.FAMILIES)
def test_20_episodes_of_an_agent_pass_the_stages(family: str, tmp_path: Path) -> None:
    """Pictures of scenarios.jsonl and of the agent's own, through the gateway: each trajectory is one row."""
    check_stages(measured(tmp_path, family, "--stages", "5", "4"), 20)


def check_stages(found: dict[str, Any], episodes: int) -> None:
    assert (found["episodes"], found["rows"], found["errors"], found["breaches"]) == (episodes, episodes, [], [])
    assert found["pictures"] == [1, 2]  # a scenario's, and the agent's own in its second request
    assert found["same_bytes"]
    assert found["picture_tokens_with_loss"] == 0
    metrics = found["metrics"]
    assert (metrics["trained"], metrics["quarantined"]) == (episodes, 0)
    assert metrics["sampler_kl"] < 1e-8
    assert metrics["tokens_trained"] == metrics["tokens_collected"] == 2 * 12 * episodes
    assert metrics["grad_norm"] > 0
    assert found["evaluated"] == 2
