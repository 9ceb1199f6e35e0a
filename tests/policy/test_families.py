"""Other model families: the trainer updates an adapter that vLLM samples with, on random checkpoints
(tests/support/families.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, python, run

LAYERS = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def family(name: str, folder: Path) -> dict[str, Any]:
    done = run(python("tests.support.families", name, str(folder)), ROOT, seconds=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "llama3"])
def test_sampler_and_trainer_agree_before_and_after_an_update(name: str, tmp_path: Path) -> None:
    found = family(name, tmp_path)
    assert found["layers"] == LAYERS
    assert found["kl"] < 1e-8
    assert found["kl_updated"] < 1e-8  # vLLM serves the new adapter, not the one before
    assert found["kl_stale"] > 0.01
    assert found["greedy_same"] == found["greedy"] == 4  # the tokens of Hugging Face generate


def test_a_mixture_of_experts_trains_and_is_refused_by_vllm_on_the_cpu(tmp_path: Path) -> None:
    """Kimi K2 has DeepSeek-V3's architecture. vLLM 0.32 has no operators for it with an adapter on the CPU."""
    found = family("kimi-k2", tmp_path)
    assert found["layers"] == ["kv_a_proj_with_mqa", "o_proj", "q_a_proj", "q_b_proj"]
    assert "mixture of experts" in found["refused"]
    assert "on a GPU alone" in found["refused"]
    assert found["off"] < 1e-4
