"""Other model families: the trainer updates an adapter that vLLM samples with, on random checkpoints
(tests/support/families.py).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ROOT, python, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SHORT = "qwen3"  # the family of `make test`; `make nightly` takes all
LAYERS = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


Results = tuple[dict[str, dict[str, Any]], str]
PARSERS = {
    "qwen2.5": ("hermes", None),
    "qwen3": ("hermes", "qwen3"),
    "qwen3.5": ("qwen3_coder", "qwen3"),
    "llama3": ("llama3_json", None),
    "kimi-k2": ("kimi_k2", None),
}


def parameters(*names: str) -> list[Any]:
    """These families as parameters of a test: all but one are nightly."""
    return [name if name == SHORT else pytest.param(name, marks=pytest.mark.nightly) for name in names]


@pytest.fixture(scope="module")
def families(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results by family, of the selected tests, and what was written to stderr: a family that fails has none."""
    folder = tmp_path_factory.mktemp("families")
    selected = [item for item in request.session.items if item.path == request.path]
    names = {item.callspec.params["name"] for item in selected if isinstance(item, pytest.Function)}
    words = [name for name in PARSERS if name in names]
    process = run(python("tests.support.families", str(folder), *words), ROOT, seconds=560)
    results = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    return {result["family"]: result for result in results}, process.stderr


@pytest.mark.parametrize("name", parameters("qwen2.5", "qwen3", "qwen3.5", "llama3"))
def test_sampler_and_trainer_agree_before_and_after_an_update(name: str, families: Results) -> None:
    results, errors = families
    assert name in results, errors[-3000:]
    result = results[name]
    assert result["layers"] == LAYERS
    assert result["kl"] < 1e-8
    assert result["kl_updated"] < 1e-8  # vLLM serves the new adapter, not the one before
    assert result["kl_stale"] > 0.01
    assert (result["turns"], result["breaches"]) == (3, [])  # a rollout in the form of the family's own template
    for kind in ("schema", "tag"):
        assert result[f"kl_{kind}"] < 1e-8  # among the tokens that a grammar allowed
        assert result[f"kl_{kind}_without"] > 1
        assert result[f"choices_{kind}"] >= 32
    assert result["greedy_same"] == result["greedy"] == 4  # the tokens of Hugging Face generate


@pytest.mark.parametrize("name", parameters(*PARSERS))
def test_vllms_server_is_started_with_the_familys_parsers(name: str, families: Results) -> None:
    """Its own command line takes the options, and the parsers that they name read a call of the family's template."""
    results, errors = families
    assert name in results, errors[-3000:]
    tool_parser, reasoning_parser = PARSERS[name]
    expected = {"tool_parser": tool_parser, "reasoning_parser": reasoning_parser, "read": True}
    assert results[name]["served"] == expected


@pytest.mark.parametrize("name", parameters("qwen2.5", "qwen3", "llama3"))
def test_what_is_sampled_does_not_depend_on_the_batch(name: str, families: Results) -> None:
    """Each request has a seed of its own, also where vLLM computes its prompt in parts because the batch is full."""
    results, errors = families
    assert name in results, errors[-3000:]
    result = results[name]
    assert result["apart"] == [True, True, True]  # all at once again, three at a time, one at a time
    assert result["long"] > 2048  # the most tokens of a step
    assert result["parts"]


@pytest.mark.parametrize("name", parameters("kimi-k2"))
def test_a_mixture_of_experts_trains_and_is_refused_by_vllm_on_the_cpu(name: str, families: Results) -> None:
    """Kimi K2 has DeepSeek-V3's architecture. vLLM 0.32 has no operators for it with an adapter on the CPU."""
    results, errors = families
    assert name in results, errors[-3000:]
    result = results[name]
    assert result["layers"] == ["kv_a_proj_with_mqa", "o_proj", "q_a_proj", "q_b_proj"]
    assert "mixture of experts" in result["refused"]
    assert "on a GPU alone" in result["refused"]
    assert result["off"] < 1e-4
