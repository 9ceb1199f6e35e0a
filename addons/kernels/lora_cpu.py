"""A faster LoRA adapter for vLLM on the CPU: one matrix product, where vLLM gathers a copy of the weights for each token.

vLLM serves many adapters at a time. Its CPU operators do that work even when all tokens have the same adapter, which is the
only case here, and take two thirds of an engine step. The mathematics is the same; mixed batches are left to vLLM. vLLM
imports this module by the name that `use` sets (vLLM 0.32).
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU


class OneAdapter(PunicaWrapperCPU):
    """vLLM's wrapper, with a shortcut for batches whose tokens all have the adapter in slot 0."""

    is_single = False
    enabled = True

    def update_metadata(self, *arguments: Any, **more: Any) -> None:
        super().update_metadata(*arguments, **more)
        self.is_single = self.enabled and not bool(self.token_lora_indices.any())  # 0 is the slot, -1 no adapter

    def add_lora_linear(
        self,
        y: Any,  # [tokens, out], changed in place
        x: Any,  # [tokens, in]
        lora_a_stacked: tuple[Any, ...],  # [slots, 1, rank, in] for each slice of the output
        lora_b_stacked: tuple[Any, ...],  # [slots, 1, width of the slice, rank]
        scale: float,
        output_slices: tuple[int, ...],
        **more: Any,
    ) -> None:
        if not self.is_single:
            super().add_lora_linear(y, x, lora_a_stacked, lora_b_stacked, scale, output_slices, **more)
            return
        start = 0
        for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            y[:, start : start + width].addmm_(x @ a[0, 0].T, b[0, 0].T, alpha=scale)
            start += width

    def add_lora_embedding(self, y: Any, x: Any, lora_b_stacked: Any, add_inputs: bool = True, **more: Any) -> None:
        if self.is_single and add_inputs:
            _add(y, _product(x, lora_b_stacked, y.dtype))
        else:
            super().add_lora_embedding(y, x, lora_b_stacked, add_inputs, **more)

    def add_lora_logits(
        self, y: Any, x: Any, lora_a_stacked: Any, lora_b_stacked: Any, scale: float, **more: Any
    ) -> None:
        if self.is_single:
            down = scale * _product(x.view(-1, x.shape[-1]), lora_a_stacked, torch.float32)
            _add(y.view(-1, y.shape[-1]), _product(down, lora_b_stacked, y.dtype))
        else:
            super().add_lora_logits(y, x, lora_a_stacked, lora_b_stacked, scale, **more)


def _product(x: Any, stacked: Any, dtype: Any) -> Any:
    """[rows, out] of x [rows, in] and the weights in slot 0 of [slots, 1, out, in], by vLLM's own product and so with its
    rounding, but of a view of the weights for each row in place of a copy."""
    weights = stacked[0, 0].to(dtype)
    return torch.einsum("bi, boi -> bo", x.to(dtype), weights.expand(len(x), *weights.shape))


def _add(y: Any, added: Any) -> None:
    width = min(y.shape[1], added.shape[1])  # the two may be padded by different amounts
    y[:, :width] += added[:, :width]


def use() -> None:
    """Let the CPU engines that this process starts from now on use the wrapper."""
    from vllm.platforms import current_platform

    type(current_platform).get_punica_wrapper = classmethod(lambda _: f"{__name__}.OneAdapter")
