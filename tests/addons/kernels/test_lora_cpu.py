"""Where addons/kernels/lora_cpu.py takes the place of vLLM's operators of embeddings and logits, it gives their bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from addons.kernels.lora_cpu import OneAdapter

RANK, HIDDEN, VOCABULARY = 16, 128, 2340


@pytest.fixture(params=[1, 7, 128, 600])
def rows(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


def wrapper(rows: int, monkeypatch: pytest.MonkeyPatch, enabled: bool, is_prefill: bool) -> OneAdapter:
    """The wrapper before a batch whose rows all have the adapter in slot 0."""
    from vllm.lora.layers import LoRAMapping

    from addons.kernels.lora_cpu import OneAdapter

    monkeypatch.setattr(OneAdapter, "enabled", enabled)
    made = OneAdapter(rows, rows, "cpu")
    mapping = LoRAMapping(index_mapping=(1,) * rows, prompt_mapping=(1,) * rows, is_prefill=is_prefill)
    made.update_metadata(mapping, [1], 1, VOCABULARY)
    assert made.is_single is enabled
    return made


def weights(*shape: int) -> Any:
    return torch.randn(1, 1, *shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("is_prefill", [True, False])
def test_embeddings(rows: int, is_prefill: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, up = weights(rows, RANK)[0, 0], weights(HIDDEN, RANK)
    results = []
    for enabled in (True, False):
        y = weights(rows, HIDDEN)[0, 0].clone()
        wrapper(rows, monkeypatch, enabled, is_prefill).add_lora_embedding(y, x, up)
        results.append(y)
    assert torch.equal(*results)
    assert not torch.equal(results[0], weights(rows, HIDDEN)[0, 0])


@pytest.mark.parametrize("padding", [0, 28])
def test_logits(rows: int, padding: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, down, up = weights(rows, HIDDEN)[0, 0], weights(RANK, HIDDEN), weights(VOCABULARY, RANK)
    results = []
    for enabled in (True, False):
        y = weights(rows, VOCABULARY + padding)[0, 0].clone()
        wrapper(rows, monkeypatch, enabled, False).add_lora_logits(y, x, down, up, 0.5)
        results.append(y)
    assert torch.equal(*results)
    assert not torch.equal(results[0], weights(rows, VOCABULARY + padding)[0, 0])
